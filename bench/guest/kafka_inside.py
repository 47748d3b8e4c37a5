"""Runs in a guest: a real worker of Kafka Connect, in phases under the OS and under sched-ctl.

    kafka_inside.py [PATTERN]    of names of ways; prints each phase as JSON, in lines that begin
    with "@@ ".

Worker, broker and controller have the one CPU. Before each phase the arrivals begin anew, the same
in each.
"""

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.guest.inside import Load, Neighbour, Pulse, go_first, measure, say, show, threads
from engines.cluster import patiently
from engines.kafka import Connector, Kafka, running
from engines.storm import finished

FOLDER = Path("/run/kafka")
HOW = ("--engine", "program:kafka-connect", "--poll-timeout", "30", "--stale-after", "60")
ALARMS, BURST = 25, 100  # a second, and at once each two seconds
LIGHT, HEAVY = Connector("alarms", 2_000), Connector("archive", 10_000, tasks=2)
TASKS = LIGHT.tasks + HEAVY.tasks
SECONDS = 12.0  # six bursts
SETTLE_S = 4.0
WARM_S = 60.0
LAG_S = 0.5
CPU_LIMIT_S = 7200
BY_CLASS = ("--policy", "multi-class", "--policy-option", 'classes={"alarms": "constant"}')


@dataclass(frozen=True)
class Way:
    """arguments: of `load`; none: the OS alone."""

    name: str
    arguments: tuple[str, ...] = ()


NOTHING = Way("os")
WAYS = tuple(
    Way(f"{name}, {backend}", (*arguments, "--backend", backend))
    for backend in ("nice", "scx")
    for name, arguments in (
        ("multi-class", BY_CLASS),
        ("a target of 10 ms", ("--target", "alarms=10ms")),
    )
)


def role_of(label: str, comm: str) -> str:
    if label == "worker" and comm.startswith("task-thread-"):
        return "operators of " + ("alarms" if comm.startswith("task-thread-ala") else "archive")
    return {"worker": "the worker's helpers"}.get(label, label)


def latencies_ms(kafka: Kafka, one: Connector, begin_s: float, end_s: float) -> list[float]:
    waits = finished(kafka.out(one.name), begin_s, end_s)
    return [round(float(wait) * 1e3, 3) for wait in waits]


def caught_up(kafka: Kafka) -> bool:
    now_s = time.monotonic()
    waits = finished(kafka.out(LIGHT.name), now_s - 1.0, now_s)
    return len(waits) > ALARMS / 4 and bool(waits[-3:].max() < LAG_S)


def phase(kafka: Kafka, number: int, way: Way, neighbour: Neighbour, pulse: Pulse) -> Any:
    broker, worker = kafka.started
    pids = {"the broker": broker.pid, "worker": worker.pid, "neighbour": neighbour.pid}
    patiently(lambda: caught_up(kafka), 2, "no backlog")
    # Other words for the same let arrivals begin anew.
    kafka.rates.write_text(f"{ALARMS}.{'0' * (number + 1)} {BURST}")
    time.sleep(SETTLE_S)
    found = measure(way.name, SECONDS, pids, role_of, neighbour)
    begin_s, end_s = found["begin"], found["end"]
    found["queries"] = {
        one.name: latencies_ms(kafka, one, begin_s, end_s) for one in (LIGHT, HEAVY)
    }
    found["stopped_s"] = pulse.longest_s(begin_s - SETTLE_S, end_s)
    for name, ms in found["queries"].items():
        say(f"{way.name}: {len(ms)} of {name}, {sum(ms) / max(1, len(ms)):.1f} ms")
    say(f"nothing ran for {found['stopped_s'] * 1e3:.0f} ms at most, idle {found['idle']:.0%}")
    return found


def run(kafka: Kafka, ways: Sequence[Way]) -> None:
    pulse, neighbour = Pulse(), Neighbour(0.0003)
    try:
        for number, way in enumerate((NOTHING, *ways, *reversed(ways), NOTHING)):
            load = None
            if way.arguments:
                load = Load((*HOW, *way.arguments), TASKS, {}, (), first=False)
            found = phase(kafka, number, way, neighbour, pulse)
            show({"scenario": "bursts", **found})
            if load is not None:
                load.end()
    finally:
        pulse.end()
        neighbour.end()


def main() -> None:
    go_first()
    chosen = re.compile(sys.argv[1] if len(sys.argv) > 1 else ".*")
    with running(FOLDER, cpu_limit_s=CPU_LIMIT_S) as kafka:
        say("the broker is up")
        worker = kafka.connect(LIGHT, HEAVY)
        kafka.rates.write_text(f"{ALARMS} {BURST // 4}")
        patiently(lambda: caught_up(kafka), 5, "records of alarms")
        say(f"Connect is up: {sorted(comm for _, comm in threads(worker.pid))}")
        kafka.rates.write_text(f"{ALARMS} {BURST}")
        time.sleep(WARM_S)
        run(kafka, [way for way in WAYS if chosen.fullmatch(way.name)])


if __name__ == "__main__":
    main()
