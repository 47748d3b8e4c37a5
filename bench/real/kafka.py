"""Connectors that compete for one CPU of a real worker of Kafka Connect.

`alarms` has a light record now and then, `archive`, of two tasks, many heavy ones at once. The
broker is on other CPUs. What is shown: how long records of `alarms` take from when they are due
until their task is done with them, and what `archive` gets done.
"""

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.real.abba import Figures, Phase, Way, take_turns
from engines.compete import following
from engines.kafka import Connector, running
from engines.storm import finished
from sched_ctl.kernel import procfs

__all__ = ["CASES", "Case", "run"]

ENGINE = "program:kafka-connect"
ALARMS = 25  # a second
LIGHT, HEAVY = Connector("alarms", 2_000), Connector("archive", 10_000, tasks=2)
WARM_S = 40.0
TASKS = 1  # of which an order changes something
CPU_LIMIT_S = 7200
BY_CLASS = ("--policy", "multi-class", "--policy-option", 'classes={"alarms": "constant"}')
WAYS = (
    Way("multi-class by nice", (*BY_CLASS, "--backend", "nice")),
    Way("a target of 10 ms by nice", ("--target", "alarms=10ms", "--backend", "nice")),
    Way("auto, no option", ()),
)


@dataclass(frozen=True)
class Case:
    """burst: records that come to `archive` at once, each two seconds."""

    title: str
    burst: int
    ways: tuple[Way, ...] = WAYS


CASES = {
    "kafka-bursts": Case("Connect's alarms (25/s) beside bursts that fill half of its CPU", 100),
    "kafka-behind": Case("Connect's alarms (25/s) beside a connector that is far behind", 400),
}


def run(case: Case, folder: Path, cycles: int, seconds: float, end_s: float) -> Iterator[Phase]:
    """The phases of a case, with the worker on one CPU; the first pair is left out."""
    own = os.sched_getaffinity(0)
    one = {max(own)}
    os.sched_setaffinity(0, own - one or own)  # and so what is started from here
    try:
        with running(folder / "kafka", cpu_limit_s=CPU_LIMIT_S) as kafka:
            worker = kafka.connect(LIGHT, HEAVY)
            kafka.rates.write_text(f"{ALARMS} {case.burst}")
            time.sleep(WARM_S)
            for tid in procfs.tids(worker.pid):
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(tid, one)

            def measure() -> Figures:
                end = time.monotonic()
                waits, done = (
                    finished(kafka.out(c.name), end - seconds, end) * 1e3 for c in (LIGHT, HEAVY)
                )
                assert len(waits), kafka.tail()
                return {
                    "mean (ms)": float(waits.mean()),
                    "p50 (ms)": float(np.median(waits)),
                    "p99 (ms)": float(np.quantile(waits, 0.99)),
                    "archive's mean (ms)": float(done.mean()) if len(done) else math.nan,
                    "archive (1/s)": len(done) / seconds,
                }

            @contextmanager
            def load(way: Way) -> Iterator[None]:
                changed = 0 if way.name.startswith("auto") else TASKS
                with following([worker.pid], ENGINE, folder, way.arguments or (), changed):
                    yield

            every = take_turns(
                case.ways,
                cycles,
                load,
                measure,
                [worker.pid],
                settle_s=4.0,
                seconds=seconds,
                end_s=end_s,
            )
            for number, phase in enumerate(every):
                if number > 1:
                    yield phase
    finally:
        os.sched_setaffinity(0, own)
