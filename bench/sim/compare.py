"""Which policy for which workload, in the simulator: response times and l2 over the OS's.

    ./dev run python -m bench.sim.compare [--seeds 3] [--free]

Threads as under our BPF scheduler (`--scheduler scx`) against EEVDF with equal weights. Wake-ups
and switches cost what they cost in a guest (`guest-costs.json`); with --free nothing, so that what
is left is the order alone. The second table is SYN at 0.97: what bounding the worst slowdown costs.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np

from bench import results
from bench.results import Figure, Result, Row
from sched_ctl.plugins import registry
from sched_ctl.sim import Costs, Setting, of_workload, simulate
from sched_ctl.workloads import synthetic, workload

HERE = Path(__file__).resolve().parent
POLICIES = (
    *("hr", "hnr", "srpt", "rb", "bsd", "balanced", "lsf", "fcfs", "chain"),
    *("min-cost", "min-latency", "min-memory", "random"),
)
CASES = (
    *(("syn", 0.9), ("multi", 0.95), ("etl", 0.9), ("etl", 1.0), ("vs", 0.95), ("lr", 0.95)),
    *(("pred", 0.95), ("stats", 0.95), ("train", 0.95)),
)
BOUNDED = (
    *(("hr", None), ("hnr", None), *(("balanced", p) for p in (80.0, 40.0, 20.0, 10.0, 5.0))),
    *(("bsd", None), ("lsf", None)),
)
OS = "os"
SHOWN = ("mean", "p50", "p99", "l2")  # of `Figures`, in the first table


@dataclass(frozen=True)
class Run:
    """policy: a name and, for `balanced`, its patience."""

    workload: str
    load: float
    policy: str
    patience: float | None
    seed: int
    free: bool


@dataclass(frozen=True)
class Figures:
    mean: float
    p50: float
    p99: float
    worst: float
    l2: float


def run(job: Run) -> Figures:
    made: Mapping[str, Callable[[int], workload.Workload]] = {
        "syn": synthetic.syn,
        "multi": synthetic.multi,
    }
    if job.workload in made:
        spec = made[job.workload](job.seed)
    else:
        spec = workload.load(HERE.parent / "workloads" / f"{job.workload}.graph")
    scheduler = "os" if job.policy == OS else "scx"
    options = {} if job.patience is None else {"patience": job.patience}
    found = simulate(
        of_workload(spec, job.load),
        None if job.policy == OS else registry.policy(job.policy, options),
        Setting(
            scheduler=scheduler,
            clusters=12 if scheduler == "scx" else 0,
            duration_s=6.0,
            warm_s=1.0,
            seed=job.seed,
            costs=Costs() if job.free else costs()[scheduler],
        ),
    )
    told = found.summary()
    p50, p99 = map(found.quantile, (0.5, 0.99))
    return Figures(told.response_s, p50, p99, told.slowdown_max, told.l2)


@cache
def costs() -> dict[str, Costs]:
    """What `bench/guest/kernel.py --calibrate` measured."""
    found = map(json.loads, (HERE / "guest-costs.json").read_text().splitlines())
    return {entry.pop("job"): Costs(**entry) for entry in found}


def geometric(ratios: Sequence[float]) -> float:
    return round(float(np.exp(np.mean(np.log(ratios)))), 4)


def over(ours: Sequence[object], base: Sequence[object], figure: str) -> float:
    """Of a figure, seed by seed."""
    pairs = zip(ours, base, strict=True)
    return geometric([getattr(one, figure) / getattr(other, figure) for one, other in pairs])


def policies(found: Mapping[Run, Figures], job: Callable[..., Run], seeds: Sequence[int]) -> Result:
    def of(name: str, load: float, policy: str) -> list[Figures]:
        return [found[job(name, load, policy, None, seed)] for seed in seeds]

    rows = [
        Row(
            f"{name} {load}: {figure}",
            {
                policy: Figure(over(of(name, load, policy), of(name, load, OS), figure))
                for policy in POLICIES
            },
        )
        for name, load in CASES
        for figure in SHOWN
    ]
    return Result(
        title="Simulated: response times and l2 of slowdowns over EEVDF, threads as under scx",
        columns=[*POLICIES],
        n=len(seeds),
        spread=None,
        seeds=[*seeds],
        kernel=None,
        rows=rows,
        **results.here(),
    )


def bounds(found: Mapping[Run, Figures], job: Callable[..., Run], seeds: Sequence[int]) -> Result:
    def of(policy: str, patience: float | None = None) -> list[Figures]:
        return [found[job("syn", 0.97, policy, patience, seed)] for seed in seeds]

    base, hr = of(OS), of("hr")
    rows = []
    for bound, patience in BOUNDED:
        ours = of(bound, patience)
        worst = [o.worst / b.worst for o, b in zip(ours, base, strict=True)]
        cells: dict[str, Figure | str] = {
            "mean over EEVDF": Figure(over(ours, base, "mean")),
            "p50 over EEVDF": Figure(over(ours, base, "p50")),
            "mean over HR": Figure(over(ours, hr, "mean")),
            "worst slowdown over EEVDF": Figure(geometric(worst), min(worst), max(worst)),
            "l2": Figure(over(ours, base, "l2")),
        }
        rows.append(Row(bound if patience is None else f"{bound}, patience {patience:g}", cells))
    return Result(
        title="Simulated: SYN at 0.97, what a bound of the worst case costs",
        columns=list(rows[0].figures),
        n=len(seeds),
        spread="smallest-largest over seeds",
        seeds=[*seeds],
        kernel=None,
        rows=rows,
        **results.here(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--free", action="store_true", help="no overheads: the order alone")
    results.argument(parser)
    arguments = parser.parse_args()
    seeds = range(1, arguments.seeds + 1)
    more = range(1, 8 * arguments.seeds + 1)
    job = partial(Run, free=arguments.free)
    many = [
        job(name, load, policy, None, seed)
        for name, load in CASES
        for policy in (OS, *POLICIES)
        for seed in seeds
    ]
    bounded = [job("syn", 0.97, p, o, s) for p, o in ((OS, None), *BOUNDED) for s in more]
    with ProcessPoolExecutor() as pool:
        found = dict(zip(many + bounded, pool.map(run, many + bounded, chunksize=8), strict=True))
    results.tell(policies(found, job, seeds), arguments.keep and f"{arguments.keep}-policies")
    results.tell(bounds(found, job, more), arguments.keep and f"{arguments.keep}-bound")


if __name__ == "__main__":
    main()
