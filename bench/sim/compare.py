"""Which policy for which workload, in the simulator: mean response time and l2 over the OS's.

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
    result = simulate(
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
    ).summary()
    return Figures(result.response_s, result.slowdown_max, result.l2)


@cache
def costs() -> dict[str, Costs]:
    """What `bench/guest/kernel.py --calibrate` measured."""
    found = map(json.loads, (HERE / "guest-costs.json").read_text().splitlines())
    return {entry.pop("job"): Costs(**entry) for entry in found}


def geometric(ratios: Sequence[float]) -> str:
    return f"{np.exp(np.mean(np.log(ratios))):.2f}"


def table(lines: Sequence[Sequence[str]]) -> None:
    head, *rest = lines
    print("\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *rest]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--free", action="store_true", help="no overheads: the order alone")
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

    lines = [["", *POLICIES]]
    for name, load in CASES:
        means, fairness = [], []
        for policy in POLICIES:
            ours = [found[job(name, load, policy, None, s)] for s in seeds]
            base = [found[job(name, load, OS, None, s)] for s in seeds]
            both = list(zip(ours, base, strict=True))
            means.append(float(geometric([o.mean / b.mean for o, b in both])))
            fairness.append(geometric([o.l2 / b.l2 for o, b in both]))
        near = 1.05 * min(means)
        cells = [f"**{m:.2f}**" if m <= near else f"{m:.2f}" for m in means]
        cells = [f"{mean} ({l2})" for mean, l2 in zip(cells, fairness, strict=True)]
        lines.append([f"{name} {load}", *cells])
    print("\nMean response time over EEVDF's, and in brackets l2 of slowdowns. Bold: within 5% of")
    print("the best mean.\n")
    table(lines)

    lines = [["SYN 0.97", "mean", "mean over HR's", "worst slowdown", "its largest", "l2"]]
    base = [found[job("syn", 0.97, OS, None, s)] for s in more]
    hr = [found[job("syn", 0.97, "hr", None, s)] for s in more]
    for policy, patience in BOUNDED:
        ours = [found[job("syn", 0.97, policy, patience, s)] for s in more]
        worst = [o.worst / b.worst for o, b in zip(ours, base, strict=True)]
        lines.append(
            [
                policy if patience is None else f"{policy}, patience {patience:g}",
                geometric([o.mean / b.mean for o, b in zip(ours, base, strict=True)]),
                geometric([o.mean / h.mean for o, h in zip(ours, hr, strict=True)]),
                geometric(worst),
                f"{max(worst):.1f}",
                geometric([o.l2 / b.l2 for o, b in zip(ours, base, strict=True)]),
            ]
        )
    print(f"\nOver EEVDF's, {len(more)} seeds.\n")
    table(lines)


if __name__ == "__main__":
    main()
