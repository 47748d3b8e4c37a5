"""Topologies that compete with nobody but themselves, on one CPU of a real Storm.

A case is a workload, at several loads. Its capacity is measured first, under the OS alone and after
minutes of warming up, for the compilers of the virtual machine change it by half: the highest rate
of a ladder at which tuples still leave as they come and wait less than 0.3 s.
"""

import itertools
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench import lachesis
from bench.real.abba import Figures, Phase, Way, take_turns
from engines.compete import following
from engines.storm import finished, running
from sched_ctl.drivers import Target
from sched_ctl.drivers.storm.driver import connect
from sched_ctl.workloads import workload
from sched_ctl.workloads.demand import rate_scale

__all__ = ["CASES", "Case", "run"]

WORKLOADS = Path(__file__).parents[1] / "workloads"
WARM_S = 90.0
LADDER_S = 5.0
LADDER = 1.08  # ratio of a rate to the one before
WAIT_S = 0.3  # mean latency that ends the ladder
LOW, HIGH = 0.7, 1.1  # the two loads of a step
LEARN_S = 600.0  # before a race's order is measured


def _nice(policy: str, *more: str) -> tuple[str, ...]:
    return ("--policy", policy, "--backend", "nice", *more)


RULE = "rule"
WAYS = (
    Way("Lachesis' rule", (RULE,)),
    Way("qs", _nice("qs")),
    Way("hr", _nice("hr")),
    Way("balanced", _nice("balanced")),
    Way("CF 2023's rule", (RULE, "--real-time")),
    Way("auto", _nice("auto", "--race", "10"), LEARN_S),
)
LOADS: dict[str, tuple[float, ...]] = {
    **{f"{load:g}": (load,) for load in (0.5, 0.8, 0.95, 1.0, 1.1)},
    "step": (LOW, HIGH),
}


@dataclass(frozen=True)
class Case:
    """loads: parts of the measured capacity, one after the other on the same cluster."""

    title: str
    shape: str
    loads: tuple[str, ...] = tuple(LOADS)
    ways: tuple[Way, ...] = WAYS


CASES = {
    f"storm-{shape}": Case(f"{shape} on a real Storm, one CPU", shape)
    for shape in ("chain", "etl", "fork", "stats", "lr", "vs")
}


class Arrivals:
    """What comes each second: so many, or rates that take turns, each for `turn_s`."""

    def __init__(self, file: Path, rates: Sequence[float], turn_s: float) -> None:
        self._file = file
        self._rates = rates
        self._turn_s = turn_s if len(rates) > 1 else None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.begin()

    def begin(self) -> None:
        """From the first rate on, so that each phase of a measurement meets the same steps."""
        self.hold()
        self._over.clear()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        for rate in itertools.cycle(self._rates):
            self._file.write_text(f"{rate:.1f}")
            if self._over.wait(self._turn_s):
                break

    def hold(self) -> None:
        """Nothing comes until the next `begin`."""
        if self._thread is not None:
            self._over.set()
            self._thread.join()
            self._thread = None
        self._file.write_text("0")


def run(case: Case, folder: Path, cycles: int, seconds: float, end_s: float) -> Iterator[Phase]:
    """The phases of a case, on a cluster of its own with its worker on one CPU, and nothing else.

    end_s: each load has an equal part of the time until then.
    """
    own = os.sched_getaffinity(0)
    one = {max(own)}
    os.sched_setaffinity(0, own - one or own)  # and so what is started from here
    out, file = folder / "out", folder / "rate"
    out.mkdir()
    graph = WORKLOADS / f"{case.shape}.graph"
    try:
        java, limit_s = "-XX:+UseSerialGC", 6 * 3600
        with running(folder / "cluster", java=java, period_ms=100, cpu_limit_s=limit_s) as cluster:
            half = rate_scale(workload.load(graph), 0.5)  # were nothing but its operators to cost
            file.write_text(f"{half:.1f}")
            cluster.submit(name=case.shape, graph=graph, out=out, rate_file=file)
            cluster.pin(one, case.shape)
            (pid,) = cluster.workers(case.shape)
            time.sleep(WARM_S)
            end = time.monotonic()
            leaving = len(finished(out, end - 10.0, end)) / 10.0 / half  # of each tuple
            capacity = _capacity(out, file, half)
            print(f"{case.title}: capacity {capacity:.0f}/s", flush=True)
            began = time.monotonic()
            for number, load in enumerate(case.loads, 1):
                rates = [part * capacity for part in LOADS[load]]
                until = began + (end_s - began) * number / len(case.loads)
                arrivals = Arrivals(file, rates, seconds / 2)
                try:
                    for phase in _phases(case, pid, out, arrivals, cycles, seconds, until):
                        delivered = phase.figures["delivered"] / leaving / float(np.mean(rates))
                        figures = {**phase.figures, "delivered": delivered}
                        yield replace(phase, figures=figures, part=load)
                finally:
                    arrivals.hold()
    finally:
        os.sched_setaffinity(0, own)


def _phases(
    case: Case,
    pid: int,
    out: Path,
    arrivals: Arrivals,
    cycles: int,
    seconds: float,
    end_s: float,
) -> Iterator[Phase]:
    """Without the first pair, unless a way learns. delivered: tuples that left, a second.

    What a way that learns let wait meanwhile leaves before it is measured: beyond its capacity an
    engine lets more wait the longer it runs, whoever schedules it.
    """
    said: list[str] = []

    def measure() -> Figures:
        end = time.monotonic()
        waits = finished(out, end - seconds, end) * 1e3
        if not len(waits):
            return dict.fromkeys(("mean (ms)", "p50 (ms)", "p99 (ms)"), math.nan) | {"delivered": 0}
        return {
            "mean (ms)": float(waits.mean()),
            "p50 (ms)": float(np.median(waits)),
            "p99 (ms)": float(np.quantile(waits, 0.99)),
            "delivered": len(waits) / seconds,
        }

    @contextmanager
    def load(way: Way) -> Iterator[None]:
        arguments = way.arguments or ()
        _drain(out, arrivals)
        if arguments[0] == RULE:
            with _rule(Target("storm", case.shape, pid), real_time="--real-time" in arguments):
                arrivals.begin()
                yield
        else:
            arrivals.begin()  # of nothing there is no order
            with following([pid], "storm", out.parent, arguments, 0 if way.learn_s else 1):
                time.sleep(way.learn_s)
                _drain(out, arrivals)
                arrivals.begin()
                yield
                if way.learn_s:
                    said.append(_said(out.parent / "run"))
        _drain(out, arrivals)
        arrivals.begin()

    every = take_turns(
        case.ways, cycles, load, measure, [pid], settle_s=5.0, seconds=seconds, end_s=end_s
    )
    skipped = 0 if any(way.learn_s for way in case.ways) else 2
    for phase in itertools.islice(every, skipped, None):
        learned = said and phase.way in {way.name for way in case.ways if way.learn_s}
        yield replace(phase, said=said.pop()) if learned else phase


def _said(run: Path) -> str:
    """What the controller says of its race."""
    command = [str(Path(sys.executable).with_name("sched-ctl")), "status", "--json"]
    status = subprocess.run(
        [*command, "--run-dir", str(run)], capture_output=True, text=True, check=True, timeout=60
    )
    return "; ".join(
        rule["race"]["words"] for rule in json.loads(status.stdout)["policies"] if rule["race"]
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
            rate.write_text("0")
            _emptied(out)
            return kept
        kept = tried


def _drain(out: Path, arrivals: Arrivals) -> None:
    """Let what waits leave, inside and outside of the engine."""
    arrivals.hold()
    _emptied(out)
    time.sleep(1.0)


def _emptied(out: Path) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        time.sleep(1.0)
        end = time.monotonic()
        if not len(finished(out, end - 0.9, end)):
            break


@contextmanager
def _rule(target: Target, *, real_time: bool) -> Iterator[None]:
    """A published rule (bench.lachesis) at work."""
    rule = lachesis.Rule(connect(target), real_time=real_time)
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(lachesis.PERIOD_S):
            rule.step()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        rule.end()
