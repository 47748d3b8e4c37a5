"""Runs in a guest: two connectors of a Kafka Connect worker, in phases under the OS and sched-ctl.

    connect_inside.py PATTERN    prints each phase as JSON, in lines that begin "@@ ".

PATTERN: a regular expression for the names of ways. Before each phase what waits leaves, and the
arrivals begin anew, the same in each.
"""

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.guest.inside import Load, Pulse, be_ordinary, go_first, measure, say, show, threads
from engines.cluster import patiently
from engines.kafka import Kafka, running
from engines.storm import finished

FOLDER = Path("/run/connect")
SECONDS = 12.0
SETTLE_S = 4.0
WARM_S = 60.0
FLUSH_S = 2.0  # until what came last is done
RACE_S = 60.0
PHASE_S = 2.0  # of a race
TARGET_MS = 20
ALARMS, ARCHIVE = 25, 90  # a second, and each two seconds
COST_US = {"alarms": 2_000, "archive": 10_000}
ROLES = {"task-thread-ala": "operators, alarms", "task-thread-arc": "operators, archive"}
HOW = ("--engine", "program:kafka-connect", "--poll-timeout", "30", "--stale-after", "60")
CLASSES = 'classes={"alarms": "constant", "*": "constant"}'


@dataclass(frozen=True)
class Way:
    """name: "os" = nothing is loaded. race_s: time for a race, before it is measured."""

    name: str
    arguments: tuple[str, ...] = ()
    race_s: float = 0.0


OS = Way("os")
TARGET = ("--target", f"alarms={TARGET_MS}ms", "--policy-option", "others=min-cost")
KINDS = {
    "a target": ("--policy", "deadline", *TARGET),
    "multi-class": ("--policy", "multi-class", "--policy-option", CLASSES),
}
WAYS = (
    *(
        Way(f"{kind}, {backend}", (*words, "--race", "0", "--backend", backend))
        for backend in ("nice", "scx")
        for kind, words in KINDS.items()
    ),
    *(
        Way(f"auto, {backend}", ("--race", f"{PHASE_S:g}", "--backend", backend), RACE_S)
        for backend in ("nice", "scx")
    ),
)


def role_of(label: str, comm: str) -> str:
    return ROLES.get(comm, "others of Connect") if label == "worker" else label


def offer(kafka: Kafka, alarms: int, archive: int) -> None:
    """Let what waits leave, then have so many come."""
    kafka.rates.write_text("0 0")

    def nothing_left() -> bool:
        time.sleep(1.0)
        now_s = time.monotonic()
        return not any(len(finished(kafka.out(name), now_s - 1.0, now_s)) for name in COST_US)

    patiently(nothing_left, 60, "no records")
    kafka.rates.write_text(f"{alarms} {archive}")


def phase(way: Way, kafka: Kafka, pulse: Pulse, others: dict[str, int]) -> dict[str, Any]:
    offer(kafka, ALARMS, ARCHIVE)
    time.sleep(SETTLE_S)
    pids = {"worker": kafka.worker.pid, "broker": kafka.broker.pid, **others}
    found = measure(way.name, SECONDS, pids, role_of)
    time.sleep(FLUSH_S)
    waits = {
        name: finished(kafka.out(name), found["begin"], found["end"]) * 1e3 for name in COST_US
    }
    found["queries"] = {name: each.round(3).tolist() for name, each in waits.items()}
    stopped_s = pulse.longest_s(found["begin"], found["end"])
    told = {name: f"{len(each)}, {np.mean(each):.1f} ms" for name, each in waits.items()}
    say(f"{way.name}: {told}; nothing ran for {stopped_s * 1e3:.0f} ms at most")
    return found


def run(ways: Sequence[Way], kafka: Kafka) -> None:
    pulse = Pulse()
    try:
        # The first is thrown away: much of what runs is compiled in it.
        for number, way in enumerate((OS, OS, *ways, *reversed(ways), OS)):
            load, others = None, {}
            if way.arguments:
                expected = 0 if way.race_s else len(COST_US)
                load = Load(way.arguments, expected, {}, HOW, first=False)
                be_ordinary(load.process.pid)
                others = {"the controller": load.process.pid}
                time.sleep(way.race_s)
            if load is not None and way.race_s:
                say([rule["race"]["words"] for rule in load.ask("status")["policies"]])
            found = phase(way, kafka, pulse, others)
            if number:
                show({"scenario": "connect", **found})
            if load is not None:
                load.end()
    finally:
        pulse.end()


def main() -> None:
    chosen = re.compile(sys.argv[1] if len(sys.argv) > 1 else ".*")
    go_first()
    FOLDER.mkdir()
    with running(FOLDER, COST_US) as kafka:
        say("the broker is up")
        kafka.rates.write_text(f"{ALARMS} {ARCHIVE}")

        def flows() -> bool:
            now_s = time.monotonic()
            return all(len(finished(kafka.out(name), now_s - 3.0, now_s)) for name in COST_US)

        patiently(flows, 120, "records that are done")
        say([comm for _, comm in threads(kafka.worker.pid)])
        time.sleep(WARM_S)
        run([way for way in WAYS if chosen.fullmatch(way.name)], kafka)


if __name__ == "__main__":
    main()
