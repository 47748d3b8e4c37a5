"""Reproduces figures of the papers in the simulator and draws the pictures of docs/papers.md.

./dev run python -m bench.papers --keep papers             # half an hour of CPU time
./dev run python -m bench.papers --packets 100 --seeds 1 --out /tmp   # whether it works
"""

import argparse
import ast
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from bench import results
from bench.papers import aqsios, edgewise
from bench.papers.report import Curve, Data, write
from bench.papers.sweep import POLICIES, run_all, under
from sched_ctl.plugins import registry
from sched_ctl.sim import Costs, Setting, User, simulate

ROOT = Path(__file__).parents[2]
LOADS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.97)
CLUSTERS = (2, 4, 6, 8, 10, 12, 16, 24, 32, 64, 128)


@dataclass(frozen=True)
class Way:
    """How BSD is implemented. operations: that a look at one candidate takes."""

    clusters: int = 0
    uniform: bool = False
    candidates: str = "none"
    train: bool = False
    operations: int = 2


TECHNIQUES = {  # figure 14, added one by one
    "naive": Way(candidates="operators"),
    "clusters": Way(12, candidates="groups"),
    "and pruning": Way(12, candidates="fagin"),
    "and clustered processing": Way(12, candidates="fagin", train=True),
}
DEFAULT = aqsios.Traffic()
# How far the ratios depend on the stand-in for the trace
TRAFFIC: dict[str, aqsios.Traffic | None] = {
    "Poisson": None,
    **{
        str(t): t
        for t in (
            aqsios.Traffic(16, 25, 75, 1.4),
            aqsios.Traffic(4, 25, 75, 1.4),
            aqsios.Traffic(4, 50, 250, 1.3),
            DEFAULT,
            aqsios.Traffic(4, 50, 450, 1.2),
            aqsios.Traffic(1, 50, 150, 1.4),
            aqsios.Traffic(1, 100, 900, 1.4),
        )
    },
}
RATES = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0)
ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)


Runs = dict[Any, list[Curve]]  # by key, one a seed


def single(job: tuple[aqsios.Traffic | None, float, str, int, int, int]) -> Curve:
    """Figures 5 to 11: one policy at one load."""
    traffic, load, name, seed, packets, clusters = job
    node = aqsios.queries(seed, load, aqsios.packets(seed, packets, traffic))
    result = under(node, name, clusters=clusters)
    s = result.summary()
    figures = {
        "response": s.response_s,
        "p50": result.quantile(0.5),
        "p99": result.quantile(0.99),
        "slowdown": s.slowdown,
        "slowdown_max": s.slowdown_max,
        "l2": s.l2,
    }
    cost, selectivity = aqsios.classes(node)
    by_query = list(result.by_query().values())
    for tenth in range(1, 10):
        inside = np.flatnonzero(
            (cost == 0) & (selectivity >= tenth / 10) & (selectivity < (tenth + 1) / 10)
        )
        tuples = sum(by_query[i].tuples for i in inside)
        total = sum(by_query[i].slowdown * by_query[i].tuples for i in inside if by_query[i].tuples)
        figures[f"class {tenth}"] = total / tuples if tuples else np.nan
    return figures


def joined(job: tuple[float, str, int, int]) -> Curve:
    """Figure 12."""
    load, name, seed, queries = job
    node = aqsios.joins(seed, load, 120.0, queries, 4.0)
    result = simulate(
        node,
        registry.policy(name),
        Setting(user=User(level="query"), duration_s=120.0, warm_s=12.0, seed=seed),
    )
    return {"l2": result.summary().l2}


def implemented(job: tuple[str, Way, int, int]) -> Curve:
    """Figures 13 and 14: BSD with a price for its decisions, in costs of the cheapest operator."""
    name, way, seed, packets = job
    node = aqsios.queries(seed, 0.95, aqsios.packets(seed, packets, DEFAULT))
    price = way.operations * float(node.cost_s.min())
    user, costs = User(train=way.train, candidates=way.candidates), Costs(candidate_s=price)
    result = under(node, name, None, user, clusters=way.clusters, uniform=way.uniform, costs=costs)
    return {"l2": result.summary().l2}


def sharing(job: tuple[str, str, int, int]) -> Curve:
    """Table 2."""
    name, rule, seed, packets = job
    node = aqsios.shared(seed, 0.95, aqsios.packets(seed, packets, DEFAULT))
    s = under(node, name, {"sharing": rule}).summary()
    return {"slowdown": s.slowdown, "l2": s.l2}


def example() -> dict[str, tuple[float, float]]:
    """Table 1."""
    found = {}
    for name in ("hr", "hnr"):
        s = simulate(
            aqsios.example(), registry.policy(name), Setting(user=User(level="query"), warm_s=0)
        ).summary()
        found[name] = (s.response_s * 1e3, s.slowdown)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Reproduce the figures of the papers.")
    parser.add_argument("--packets", type=int, default=1500, help="length of the stream")
    parser.add_argument("--seeds", type=int, default=8, help="runs of each point")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep what was found")
    parser.add_argument("--load", type=Path, metavar="FILE", help="only write it out, from --save")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="folder for papers/*.png")
    results.argument(parser)
    arguments = parser.parse_args()
    if arguments.load:
        packets, seeds, runs = ast.literal_eval(arguments.load.read_text())
    else:
        packets, seeds = arguments.packets, arguments.seeds
        runs = found(packets, tuple(range(1, seeds + 1)))
    if arguments.save:
        arguments.save.write_text(repr((packets, seeds, runs)))
    fixed: dict[str, Any] = {
        "packets": packets,
        "seeds": seeds,
        "traffic_seeds": max(1, seeds // 2),
        "default": str(DEFAULT),
        "example": example(),
    }
    means: dict[str, Any] = {
        name: {k: _mean(curves) for k, curves in of.items()} for name, of in runs.items()
    }
    each: list[dict[str, Any]] = [
        {
            name: {k: curves[i % len(curves)] for k, curves in of.items()}
            for name, of in runs.items()
        }
        for i in range(seeds)
    ]
    every = [Data(**fixed, **one) for one in each]
    write(Data(**fixed, **means), every, arguments.out, arguments.keep)


def found(packets: int, seeds: tuple[int, ...]) -> dict[str, Runs]:
    """What each sweep found, by its name."""
    queries = 60
    with Progress() as bar:

        def sweep(
            label: str, function: Callable[[Any], Curve], jobs: Iterable[tuple[Any, Any]]
        ) -> Runs:
            """jobs: (key, arguments), several with one key for several seeds."""
            todo = list(jobs)
            task = bar.add_task(label, total=len(todo))
            done = run_all(function, [job for _, job in todo], lambda: bar.advance(task))
            by_key: Runs = {}
            for (key, _), curve in zip(todo, done, strict=True):
                by_key.setdefault(key, []).append(curve)
            return by_key

        full = Way(candidates="fagin", train=True)
        ways = {("hnr", 0): ("hnr", Way()), ("ideal", 0): ("bsd", Way())}
        for m in CLUSTERS:
            clustered = replace(full, clusters=m)
            ways["log", m] = "bsd", clustered
            ways["log, one operation", m] = "bsd", replace(clustered, operations=1)
            ways["log, free", m] = "bsd", replace(clustered, candidates="none")
            ways["uniform", m] = "bsd", replace(clustered, uniform=True)
        ways |= {(label, 0): ("bsd", how) for label, how in TECHNIQUES.items()}
        runs: dict[str, Runs] = {
            "main": sweep(
                "policies",
                single,
                (
                    ((u, p), (DEFAULT, u, p, s, packets, 0))
                    for u in LOADS
                    for p in POLICIES
                    for s in seeds
                ),
            ),
            "traffic": sweep(
                "traffic",
                single,
                (
                    ((label, u, p), (t, u, p, s, packets, 48))  # 1% off the exact BSD
                    for label, t in TRAFFIC.items()
                    for u in (0.7, 0.95, 0.97)
                    for p in ("rr", "rr-time", "srpt", "hr", "hnr", "lsf", "bsd")
                    for s in seeds[: max(1, len(seeds) // 2)]
                ),
            ),
            "joins": sweep(
                "joins",
                joined,
                (
                    ((u, p), (u, p, s, queries))
                    for u in (0.5, 0.6, 0.7, 0.8, 0.9)
                    for p in ("rr", "fcfs", "hnr", "lsf", "bsd")
                    for s in seeds
                ),
            ),
            "ways": sweep(
                "clusters",
                implemented,
                ((key, (p, how, s, packets)) for key, (p, how) in ways.items() for s in seeds),
            ),
            "sharing": sweep(
                "sharing",
                sharing,
                (
                    ((p, r), (p, r, s, packets))
                    for p in ("hnr", "bsd")
                    for r in ("max", "sum", "pdt")
                    for s in seeds
                ),
            ),
            "balance": sweep(
                "balance",
                edgewise.balance,
                (((who, u), (who, u, s)) for who in ("os", "pool") for u in RATES for s in seeds),
            ),
            "capacity": sweep(
                "shares", edgewise.capacity, ((a, (a, s)) for a in ALPHAS for s in seeds)
            ),
        }
    return runs


def _mean(curves: list[Curve]) -> Curve:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a class that no seed has stays unknown
        return {k: float(np.nanmean([curve[k] for curve in curves])) for k in curves[0]}


if __name__ == "__main__":
    main()
