"""Policies, loads and seeds: many runs on all CPUs, and their figures."""

import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from sched_ctl.sim.node import Node
from sched_ctl.sim.result import Result, interval
from sched_ctl.sim.run import Progress, simulate_by_name
from sched_ctl.sim.setting import Setting

__all__ = ["Job", "Row", "row", "run_all"]


@dataclass(frozen=True)
class Job:
    """One run. policy: None is the OS's own scheduling."""

    node: Node
    policy: str | None
    setting: Setting
    options: Mapping[str, object] = field(default_factory=dict)

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
    results: tuple[Result, ...]


def run_all(jobs: Sequence[Job], progress: Callable[[Job], Progress] | None = None) -> list[Result]:
    """All jobs, on all CPUs; the first error ends it, and is raised.

    Nearly all of it is compiled and holds no lock of Python's, so threads fill the CPUs.
    """
    ended = threading.Event()

    def run(job: Job) -> Result:
        told = progress(job) if progress else None

        def look(share: float) -> None:
            if ended.is_set():
                raise CancelledError
            if told is not None:
                told(share)

        return job.run(look)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        running = [pool.submit(run, job) for job in jobs]
        try:
            return [each.result() for each in running]
        finally:  # also at Ctrl-C, when long runs are under way
            ended.set()
            pool.shutdown(wait=False, cancel_futures=True)


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
    return Row(name, load, all(r.stable for r in runs), figures, by_class, tuple(runs))
