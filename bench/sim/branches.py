"""What the order between a query's branches gives, and who pays for it: ratios to EEVDF.

    ./dev run python -m bench.sim.branches [--seeds 10] [--first-seed 201] [--keep sim]

In the simulator, with the costs of switches that were measured (bench/sim/guest-costs.json).
`alike`: all branches wait alike (`balanced` with branches = 0).
"""

import argparse
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

from bench import results
from bench.results import Result, Row
from bench.sim.compare import HERE, OS, costs
from sched_ctl.plugins import registry
from sched_ctl.sim import Setting, of_workload, simulate
from sched_ctl.workloads import workload

CASES = (
    ("lr", 0.95), ("etl", 0.9), ("etl", 1.0), ("vs", 0.95), ("stats", 0.95), ("pred", 0.95)
)  # fmt: skip
ORDERS: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "balanced": ("balanced", {}),
    "alike": ("balanced", {"branches": 0.0}),
    "hr": ("hr", {}),
}
FIGURES = ("mean", "p50", "p99")


@dataclass(frozen=True)
class Run:
    workload: str
    load: float
    order: str
    seed: int


def run(job: Run) -> tuple[float, float, float]:
    """Mean, median and p99 of the response times, s."""
    node = of_workload(workload.load(HERE.parent / "workloads" / f"{job.workload}.graph"), job.load)
    setting = Setting(scheduler="os", costs=costs()["os"], duration_s=6.0, seed=job.seed)
    policy = None
    if job.order != OS:
        policy = registry.policy(*ORDERS[job.order])
        setting = replace(setting, scheduler="scx", clusters=12, costs=costs()["scx"])
    found = simulate(node, policy, setting)
    return found.summary().response_s, found.quantile(0.5), found.quantile(0.99)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=201)
    results.argument(parser)
    asked = parser.parse_args()
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    todo = [Run(*case, order, s) for case in CASES for order in (OS, *ORDERS) for s in seeds]
    with ProcessPoolExecutor(2) as pool:
        found = dict(zip(todo, pool.map(run, todo, chunksize=4), strict=True))
    rows = [
        Row(
            f"{name.upper()} {load:g}, {order}",
            {
                figure: results.over(
                    found[Run(name, load, order, s)][at] / found[Run(name, load, OS, s)][at]
                    for s in seeds
                )
                for at, figure in enumerate(FIGURES)
            },
        )
        for name, load in CASES
        for order in ORDERS
    ]
    told = Result(
        title="Queries with branches, simulated: ratios to EEVDF",
        columns=list(FIGURES),
        n=asked.seeds,
        spread="smallest-largest over seeds",
        seeds=list(seeds),
        kernel=None,
        rows=rows,
        **results.here(),
    )
    results.tell(told, asked.keep and f"{asked.keep}-branches")


if __name__ == "__main__":
    main()
