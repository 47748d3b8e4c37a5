"""Runs in a guest: a real Kafka in phases under the OS and under sched-ctl.

    kafka_inside.py connect|streams [PATTERN]    PATTERN: of names of ways; prints each phase as
    JSON, in lines that begin with "@@ ".

What is ordered, a worker of Connect or two applications of Kafka Streams in one process, has one
CPU with broker and controller. Before each phase the arrivals begin anew, the same in each.
"""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.guest.inside import Load, Neighbour, Pulse, go_first, measure, say, show, threads
from engines.cluster import patiently
from engines.kafka import Connector, Kafka, running
from engines.storm import finished

FOLDER = Path("/run/kafka")
HOW = ("--poll-timeout", "30", "--stale-after", "60")
ALARMS, BURST = 25, 100  # a second, and at once each two seconds
ALARM_US, RECORD_US = 2_000, 10_000  # that one of each takes
SECONDS = 12.0  # six bursts
SETTLE_S = 4.0
WARM_S = 60.0
LAG_S, BURST_S = 0.5, 2.0
STOPPED_S = 0.1  # nothing ran for so long: then what came all at once decides, not we
TRIES = 3
CPU_LIMIT_S = 7200


@dataclass(frozen=True)
class Case:
    """What is ordered. queries: alarms and the archive, by what they are called in the tables.

    begins: how the names of their threads begin in the kernel. threads: those that are ordered.
    """

    engine: str
    label: str
    queries: Mapping[str, str]
    begins: Mapping[str, str]
    threads: int
    start: Callable[[Kafka], "subprocess.Popen[bytes]"]

    def ways(self) -> "tuple[Way, ...]":
        light = self.queries["alarms"]
        by_class = f'classes={{"{light}": "constant"}}'
        asked = {
            "multi-class": ("--policy", "multi-class", "--policy-option", by_class),
            "a target of 10 ms": ("--target", f"{light}=10ms"),
        }
        engine = ("--engine", f"program:{self.engine}")
        every = [
            Way(f"{name}, {backend}", (*engine, *words, "--backend", backend))
            for backend in ("nice", "scx")
            for name, words in asked.items()
        ]
        auto = (*engine, "--race", "2", "--backend", "nice")
        return (*every[:2], Way("auto, nice", auto, races=True), *every[2:])

    def role_of(self, label: str, comm: str) -> str:
        """An application's few threads beside its stream threads have its name, too, and sleep."""
        if label != self.label:
            return label
        whose = (query for query, begin in self.begins.items() if comm.startswith(begin))
        query = next(whose, None)
        return f"{label}'s helpers" if query is None else f"operators of {query}"


CASES = {
    "connect": Case(
        "kafka-connect",
        "the worker",
        {"alarms": "alarms", "archive": "archive"},
        {"alarms": "task-thread-ala", "archive": "task-thread-arc"},
        3,
        lambda kafka: kafka.connect(
            Connector("alarms", ALARM_US), Connector("archive", RECORD_US, tasks=2)
        ),
    ),
    "streams": Case(
        "kafka-streams",
        "the process",
        {"alarms": "alarms-app", "archive": "archive-app"},
        {"alarms": "alarms-app-", "archive": "archive-app-"},
        4,
        lambda kafka: kafka.streams(alarms=ALARM_US, archive=RECORD_US),
    ),
}


@dataclass(frozen=True)
class Way:
    """arguments: of `load`; none: the OS alone. races: it is measured when a race has ended."""

    name: str
    arguments: tuple[str, ...] = ()
    races: bool = False


NOTHING = Way("os")


def latencies_ms(kafka: Kafka, query: str, begin_s: float, end_s: float) -> list[float]:
    waits = finished(kafka.out(query), begin_s, end_s)
    return [round(float(wait) * 1e3, 3) for wait in waits]


def caught_up(kafka: Kafka, case: Case) -> bool:
    """Both have: what was loaded before took CPU time from bursts."""
    now_s = time.monotonic()
    waits = finished(kafka.out(case.queries["alarms"]), now_s - 1.0, now_s)
    bursts = finished(kafka.out(case.queries["archive"]), now_s - BURST_S, now_s)
    return (
        len(waits) > ALARMS / 4
        and bool(waits[-3:].max() < LAG_S)
        and len(bursts) > 0
        and bool(bursts.max() < BURST_S)
    )


@dataclass
class Running:
    """What phases are measured of. begun: how often arrivals began anew."""

    kafka: Kafka
    case: Case
    neighbour: Neighbour
    pulse: Pulse
    begun: int = 0

    def phase(self, way: Way) -> Any:
        """Once more where the machine itself stood still."""
        for _ in range(TRIES):
            found = self._once(way)
            if found["stopped_s"] < STOPPED_S:
                break
        return found

    def _once(self, way: Way) -> Any:
        broker, other = self.kafka.started
        pids = {"the broker": broker.pid, self.case.label: other.pid}
        patiently(lambda: caught_up(self.kafka, self.case), 2, "no backlog")
        # Other words for the same let arrivals begin anew.
        self.begun += 1
        self.kafka.rates.write_text(f"{ALARMS}.{'0' * self.begun} {BURST}")
        time.sleep(SETTLE_S)
        pids["neighbour"] = self.neighbour.pid
        found = measure(way.name, SECONDS, pids, self.case.role_of, self.neighbour)
        begin_s, end_s = found["begin"], found["end"]
        found["queries"] = {
            name: latencies_ms(self.kafka, query, begin_s, end_s)
            for name, query in self.case.queries.items()
        }
        found["stopped_s"] = self.pulse.longest_s(begin_s - SETTLE_S, end_s)
        for name, ms in found["queries"].items():
            say(f"{way.name}: {len(ms)} of {name}, {sum(ms) / max(1, len(ms)):.1f} ms")
        say(f"nothing ran for {found['stopped_s'] * 1e3:.0f} ms at most, idle {found['idle']:.0%}")
        return found


def run(kafka: Kafka, case: Case, ways: Sequence[Way]) -> None:
    pulse, neighbour = Pulse(), Neighbour(0.0003)
    measured = Running(kafka, case, neighbour, pulse)
    try:
        for way in (NOTHING, *ways, *reversed(ways), NOTHING):
            load, mode = None, {}
            if way.arguments:
                load = Load((*HOW, *way.arguments), case.threads, {}, (), first=False)
                mode = {"mode": load.raced()} if way.races else {}
            found = measured.phase(way)
            show({"scenario": sys.argv[1], **mode, **found})
            if load is not None:
                load.end()
    finally:
        pulse.end()
        neighbour.end()


def main() -> None:
    go_first()
    case = CASES[sys.argv[1]]
    chosen = re.compile(sys.argv[2] if len(sys.argv) > 2 else ".*")
    with running(FOLDER, cpu_limit_s=CPU_LIMIT_S) as kafka:
        say("the broker is up")
        process = case.start(kafka)
        kafka.rates.write_text(f"{ALARMS} {BURST // 4}")
        patiently(lambda: caught_up(kafka, case), 5, "records of alarms")
        say(f"it is up: {sorted(comm for _, comm in threads(process.pid))}")
        kafka.rates.write_text(f"{ALARMS} {BURST}")
        time.sleep(WARM_S)
        run(kafka, case, [way for way in case.ways() if chosen.fullmatch(way.name)])


if __name__ == "__main__":
    main()
