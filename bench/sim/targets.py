"""Latency targets in the simulator: Cameo's comparison, and what the others pay.

    ./dev run python -m bench.sim.targets [--seeds 5]

The workload is Cameo's shape (`bench/workloads/targets.graph`): cheap alarms and bursts of reports
that have targets, beside bulk that has none. `auto` is what it takes with these targets, as by
`sched-ctl simulate --target`. What Cameo (NSDI 2021) is compared with there is a user-level
scheduler that takes the oldest tuple first: `fcfs` in the pool. Costs are those of a guest.
"""

import argparse
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from bench import results
from bench.guest.targets import CASES, CLASSES
from bench.results import Figure, Result, Row
from bench.sim.compare import costs
from sched_ctl.cli import kept as asked
from sched_ctl.model.targets import Target
from sched_ctl.plugins import registry
from sched_ctl.sim import Setting, of_workload, simulate
from sched_ctl.sim.targets import kept
from sched_ctl.workloads import workload

WORKLOAD = Path(__file__).resolve().parents[1] / "workloads" / "targets.graph"
OS = "EEVDF"
WAYS: Mapping[str, tuple[str, str]] = {
    OS: ("os", ""),
    "nice hr": ("os", "hr"),
    "nice multi-class": ("os", "multi-class"),
    "nice auto": ("os", "deadline"),
    "scx hr": ("scx", "hr"),
    "scx balanced": ("scx", "balanced"),
    "scx multi-class": ("scx", "multi-class"),
    "scx auto": ("scx", "deadline"),
    "real-time hr": ("fifo", "hr"),
    "real-time deadline": ("fifo", "deadline"),
    "pool fcfs": ("user", "fcfs"),
    "pool auto": ("user", "deadline"),
}
FIFO = "pool fcfs"


@dataclass(frozen=True)
class Run:
    case: str
    way: str
    seed: int


@dataclass(frozen=True)
class Part:
    """Of one target, or of the queries without. met: share of tuples, NaN without a target."""

    met: float
    mean_s: float
    p50_s: float
    p99_s: float


def run(job: Run) -> dict[str, Part]:
    """By the pattern of the target; "" = without one."""
    case, (scheduler, policy) = CASES[job.case], WAYS[job.way]
    targets = tuple(msgspec.convert(target, Target) for target in case.targets)
    node = of_workload(workload.load(WORKLOAD), case.utilisation)
    node = replace(node, targets=targets)
    setting = Setting(
        scheduler=scheduler,
        clusters=12 if scheduler == "scx" else 0,
        duration_s=60.0,
        warm_s=6.0,
        seed=job.seed,
        costs=costs()[{"user": "os"}.get(scheduler, scheduler)],
    )
    options: Mapping[str, Any] = asked.options(policy, node, setting)
    if policy == "multi-class":
        options = CLASSES
    chosen = registry.policy(policy, options) if policy else None
    return {
        "" if part.target is None else part.target.queries[0]: Part(
            part.met[0], part.response_s[0], part.p50_s[0], part.p99_s[0]
        )
        for part in kept([simulate(node, chosen, setting)])
    }


def rows_of(case: str, found: Mapping[Run, dict[str, Part]], seeds: Sequence[int]) -> list[Row]:
    def of(way: str, pattern: str) -> list[Part]:
        return [found[Run(case, way, seed)][pattern] for seed in seeds]

    def over(way: str, base: str, pattern: str, figure: str = "mean_s") -> Figure | str:
        pairs = zip(of(way, pattern), of(base, pattern), strict=True)
        return results.over([getattr(mine, figure) / getattr(o, figure) for mine, o in pairs])

    patterns = list(found[Run(case, OS, seeds[0])])
    rows = []
    for pattern in filter(None, patterns):
        met = {w: results.median([100 * p.met for p in of(w, pattern)], "%") for w in WAYS}
        p50 = {w: results.median([1e3 * p.p50_s for p in of(w, pattern)], "ms") for w in WAYS}
        p99 = {w: results.median([1e3 * p.p99_s for p in of(w, pattern)], "ms") for w in WAYS}
        rows += [
            Row(f"{case}: {pattern} in time", {**met}),
            Row(f"{case}: {pattern}, p50", {**p50}),
            Row(f"{case}: {pattern}, p99", {**p99}),
        ]
        if case == "cameo":
            less = {w: over(FIFO, w, pattern) for w in WAYS}
            rows.append(Row(f"{case}: {pattern}, mean of {FIFO} over it", {**less}))
    if "" in patterns:
        for figure in ("mean", "p50"):
            cells = {w: over(w, OS, "", f"{figure}_s") for w in WAYS}
            rows.append(Row(f"{case}: others, {figure} over {OS}", cells))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    results.argument(parser)
    arguments = parser.parse_args()
    seeds = range(1, arguments.seeds + 1)
    jobs = [Run(case, way, seed) for case in CASES for way in WAYS for seed in seeds]
    with ProcessPoolExecutor() as pool:
        found = dict(zip(jobs, pool.map(run, jobs), strict=True))
    told = Result(
        title="Cameo's shape, simulated: tuples in time, and what the others pay",
        columns=list(WAYS),
        n=len(seeds),
        spread="smallest-largest over seeds",
        seeds=[*seeds],
        kernel=None,
        rows=[row for case in CASES for row in rows_of(case, found, seeds)],
        **results.here(),
    )
    results.tell(told, arguments.keep)


if __name__ == "__main__":
    main()
