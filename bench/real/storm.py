"""Topologies that compete with nobody but themselves, on one CPU of a real Storm.

A case is a workload and a load. Its capacity is measured first, under the system's own scheduling
and after minutes of warming up, for the compilers of the virtual machine change it by half: the
highest rate of a ladder at which tuples still leave as they come and wait less than 0.3 s.
"""

import math
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.real.abba import Figures, Phase, Way, take_turns
from engines.compete import following
from engines.storm import Storm, finished, running
from sched_ctl.drivers import Target
from sched_ctl.drivers.storm.driver import StormDriver, connect
from sched_ctl.kernel import sched
from sched_ctl.workloads import workload
from sched_ctl.workloads.demand import rate_scale

__all__ = ["CASES", "Case", "run"]

WORKLOADS = Path(__file__).parents[1] / "workloads"
WARM_S = 90.0
LADDER_S = 5.0
LADDER = 1.08  # ratio of a rate to the one before
WAIT_S = 0.3  # mean latency that ends the ladder
RIVAL_NICE = (-20, 19)


def _nice(policy: str, period: str) -> tuple[str, ...]:
    return ("--policy", policy, "--backend", "nice", "--period", period)


RIVAL = "rival"
WAYS = (
    Way("qs, 1 s", _nice("qs", "1")),
    Way("qs, 0.1 s", _nice("qs", "0.1")),
    Way("hr, 1 s", _nice("hr", "1")),
    Way("balanced, 0.1 s", _nice("balanced", "0.1")),
    Way("balanced, 1 s", _nice("balanced", "1")),
    Way("Lachesis QS", (RIVAL, "1")),
    Way("Lachesis QS, 10 s averages", (RIVAL, "10")),
)


@dataclass(frozen=True)
class Case:
    """load: part of the measured capacity."""

    title: str
    shape: str
    load: float
    ways: tuple[Way, ...] = WAYS


CASES = {
    f"storm-{shape}-{load:g}": Case(
        f"{shape.upper()} on Storm at {load:g} of its capacity, one CPU", shape, load
    )
    for shape in ("etl", "fork", "stats", "lr", "vs")
    for load in (0.8, 0.95, 1.0, 1.1)
}


def run(case: Case, folder: Path, cycles: int, seconds: float, end_s: float) -> Iterator[Phase]:
    """The phases of a case, on a cluster of its own with its worker on one CPU."""
    out, rate = folder / "out", folder / "rate"
    out.mkdir()
    graph = WORKLOADS / f"{case.shape}.graph"
    with running(folder / "cluster", java="-XX:+UseSerialGC", period_ms=100) as cluster:
        half = rate_scale(workload.load(graph), 0.5)  # were nothing but its operators to cost
        rate.write_text(f"{half:.1f}")
        cluster.submit(name=case.shape, graph=graph, out=out, rate_file=rate)
        cluster.pin({max(os.sched_getaffinity(0))}, case.shape)
        (pid,) = cluster.workers(case.shape)
        time.sleep(WARM_S)
        end = time.monotonic()
        leaving = len(finished(out, end - 10.0, end)) / 10.0 / half  # of each tuple
        capacity = _capacity(out, rate, half)
        offered = case.load * capacity
        print(f"{case.title}: capacity {capacity:.0f}/s, offered {offered:.0f}/s", flush=True)
        rate.write_text(f"{offered:.1f}")

        def measure() -> Figures:
            end = time.monotonic()
            waits = finished(out, end - seconds, end)
            return {
                "mean (ms)": float(waits.mean()) * 1e3 if len(waits) else math.nan,
                "p50 (ms)": float(np.median(waits)) * 1e3 if len(waits) else math.nan,
                "p99 (ms)": float(np.quantile(waits, 0.99)) * 1e3 if len(waits) else math.nan,
                "delivered": len(waits) / seconds / (offered * leaving),
            }

        @contextmanager
        def load(way: Way) -> Iterator[None]:
            arguments = way.arguments or ()
            _drain(out, rate, offered)
            if arguments[:1] == (RIVAL,):
                with _rival(cluster, case.shape, float(arguments[1])):
                    yield
            else:
                with following([pid], "storm", folder, arguments, 1):
                    yield
            _drain(out, rate, offered)

        yield from take_turns(
            case.ways, cycles, load, measure, [pid], settle_s=5.0, seconds=seconds, end_s=end_s
        )


def _capacity(out: Path, rate: Path, start: float) -> float:
    """The highest rate of the ladder that the engine kept up with."""
    kept = start
    while True:
        tried = kept * LADDER
        rate.write_text(f"{tried:.1f}")
        time.sleep(LADDER_S)
        end = time.monotonic()
        waits = finished(out, end - LADDER_S / 2, end)
        if not len(waits) or waits.mean() > WAIT_S:
            _drain(out, rate, 0.5 * kept)
            return kept
        kept = tried


def _drain(out: Path, rate: Path, offered: float) -> None:
    """Let what waits leave, inside and outside of the engine, then offer the rate again."""
    end = time.monotonic()
    waits = finished(out, end - 1.0, end)
    if len(waits) and waits.mean() < WAIT_S:
        return
    rate.write_text("0")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        time.sleep(1.0)
        end = time.monotonic()
        if not len(finished(out, end - 0.9, end)):
            break
    rate.write_text(f"{offered:.1f}")
    time.sleep(1.0)


@contextmanager
def _rival(cluster: Storm, name: str, average_s: float) -> Iterator[None]:
    """Queue lengths as nice values, once a second, as Lachesis sets them (its section 5).

    Min-max over the whole range of nice values, on the mean of the lengths of so many seconds.
    """
    (pid,) = cluster.workers(name)
    driver = connect(Target("storm", name, pid))
    stop = threading.Event()
    changed: set[int] = set()

    def work() -> None:
        seen: deque[np.ndarray[tuple[int], np.dtype[np.float64]]] = deque(maxlen=int(average_s))
        while not stop.wait(1.0):
            with suppress(ProcessLookupError):
                changed.update(_set(driver, seen))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        for tid in changed:
            with suppress(ProcessLookupError):
                sched.set_nice(tid, 0)
        driver.close()


def _set(
    driver: StormDriver, seen: "deque[np.ndarray[tuple[int], np.dtype[np.float64]]]"
) -> set[int]:
    snapshot = driver.poll(1.0)
    seen.append(np.nan_to_num(snapshot.columns["queue_size"]))
    queue = np.mean([one for one in seen if len(one) == len(seen[-1])], axis=0)
    best, worst = RIVAL_NICE
    span = float(queue.max() - queue.min()) or 1.0
    levels = worst - (queue - queue.min()) / span * (worst - best)
    tids = set()
    for operator, level in zip(snapshot.topology.operators, levels, strict=True):
        for one in operator.threads:
            sched.set_nice(one.tid, round(float(level)))
            tids.add(one.tid)
    return tids
