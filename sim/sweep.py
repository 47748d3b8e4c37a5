"""Policies, loads and seeds: many runs on all CPUs, and their figures."""

import math
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sched_ctl.errors import UserError
from sched_ctl.sim.node import Node
from sched_ctl.sim.result import Result, interval
from sched_ctl.sim.run import Progress, expected_arrivals, simulate_by_name
from sched_ctl.sim.setting import Setting
from sched_ctl.sim.targets import Kept, kept

__all__ = ["MEMINFO", "Job", "Row", "row", "run_all"]

MEMINFO = Path("/proc/meminfo")
ARRIVAL_BYTES = 60  # of each that is drawn ahead, while a run begins


@dataclass(frozen=True)
class Job:
    """One run. policy: None is the OS's own scheduling."""

    node: Node
    policy: str | None
    setting: Setting
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def memory(self) -> float:
        """Bytes that it needs at once for what comes."""
        return ARRIVAL_BYTES * expected_arrivals(self.node, self.setting)

    def run(self, progress: Progress | None = None) -> Result:
        return simulate_by_name(self.node, self.policy, self.options, self.setting, progress)


@dataclass(frozen=True)
class Row:
    """One policy at one load, over the seeds: mean and half width of the 95% interval."""

    policy: str
    load: float
    stable: bool
    figures: dict[str, tuple[float, float]]
    by_class: dict[str, dict[str, float]]
    targets: tuple[Kept, ...]
    results: tuple[Result, ...]


def run_all(jobs: Sequence[Job], progress: Callable[[Job], Progress] | None = None) -> list[Result]:
    """All jobs, on all CPUs; the first error ends it, and is raised.

    Nearly all of it is compiled and holds no lock of Python's, so threads fill the CPUs. Fewer at
    once where the largest would take more than half of the memory that is available; raises
    UserError where one alone does.
    """
    workers = _at_once(max((job.memory for job in jobs), default=0.0))
    ended = threading.Event()

    def run(job: Job) -> Result:
        told = progress(job) if progress else None

        def look(share: float) -> None:
            if ended.is_set():
                raise CancelledError
            if told is not None:
                told(share)

        return job.run(look)

    with ThreadPoolExecutor(workers) as pool:
        running = [pool.submit(run, job) for job in jobs]
        try:
            return [each.result() for each in running]
        finally:  # also at Ctrl-C, when long runs are under way
            ended.set()
            pool.shutdown(wait=False, cancel_futures=True)


def _at_once(largest: float) -> int:
    """How many runs of so many bytes."""
    cpus = len(os.sched_getaffinity(0))
    try:
        found = re.search(r"^MemAvailable: +(\d+) kB", MEMINFO.read_text(), re.MULTILINE)
    except OSError:
        found = None
    if not found or not largest:
        return cpus
    room = int(found[1]) * 1024 / 2
    if largest > room:
        raise UserError(
            f"a run would take {largest / 1e9:.1f} GB of memory for its arrivals, and half of what "
            f"is available is {room / 1e9:.1f} GB",
            "a shorter --duration takes less",
        )
    return min(cpus, int(room / largest))


def _mean(values: Sequence[float]) -> float:
    """Of those that there are; NaN if there are none."""
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


def row(name: str, load: float, runs: Sequence[Result]) -> Row:
    """The figures of one policy at one load over several seeds."""
    summaries = [result.summary() for result in runs]

    def over(values: Iterator[float] | list[float]) -> tuple[float, float]:
        return interval(list(values))

    figures = {
        "throughput": over([s.throughput for s in summaries]),
        "response_s": over([s.response_s for s in summaries]),
        "response_p50_s": over([r.quantile(0.5) for r in runs]),
        "response_p99_s": over([r.quantile(0.99) for r in runs]),
        "response_max_s": over([s.response_max_s for s in summaries]),
        "slowdown": over([s.slowdown for s in summaries]),
        "slowdown_max": over([s.slowdown_max for s in summaries]),
        "slowdown_l2": over([s.l2 for s in summaries]),
        "slowdown_rms": over([s.rms for s in summaries]),
        "memory_tuples": over([r.memory for r in runs]),
        "imbalance": over([r.imbalance for r in runs]),
        "switches_per_s": over([r.totals["switches"] / r.seconds for r in runs]),
        "offered": over([r.offered for r in runs]),
    }
    classes = [result.by_class() for result in runs]
    by_class = {
        klass: {
            "response_s": _mean([of[klass].response_s for of in classes]),
            "slowdown": _mean([of[klass].slowdown for of in classes]),
            "slowdown_max": max(of[klass].slowdown_max for of in classes),
        }
        for klass in classes[0]
    }
    return Row(name, load, all(r.stable for r in runs), figures, by_class, kept(runs), tuple(runs))
