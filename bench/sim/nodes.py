"""Queries over two nodes: what it gives to know how old tuples are when they come to the second.

    ./dev run python -m bench.sim.nodes [--seeds 10] [--first-seed 301] [--keep sim]

In the simulator: 20 queries, each with two operators on the first node and five (SYN's chains) on
the second, one CPU each, both with the same policy. Arrivals come in bursts. A load of 0: the first
node delays each query's tuples by a time of its own, up to 0.9 of its target, as a saturated
operator with a bounded queue does.

On the second node ages begin anew (`anew`), or how old tuples are when they come is estimated: by
Little's law over the first node's queues, as an engine tells them every second or every ten.
`targets` count that in the slack of `deadline` (as is usual), `arrivals` has the scheduler begin
ages there as well (the option of that name). End to end, from the arrival at the first node.
Targets are 100 ms for every third query and a second for the others; only `deadline` knows them.
The first node does not feel what the second one does.
"""

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from random import Random

import numpy as np

from bench import results
from bench.results import Figure, Result, Row
from bench.sim.compare import costs
from sched_ctl.model.graph import Array, Index
from sched_ctl.model.policy import Policy
from sched_ctl.plugins import registry
from sched_ctl.sim import Node, Setting, Stream, of_workload, simulate
from sched_ctl.sim.setting import Threads
from sched_ctl.workloads import synthetic
from sched_ctl.workloads.workload import (
    Arrivals,
    OperatorSpec,
    QuerySpec,
    SourceSpec,
    Workload,
)
from sched_ctl.workloads.workload import Stream as Link

OS = "EEVDF"
POLICIES = (OS, "lsf", "bsd", "balanced", "deadline")
# Of the first node, of the second
LOADS = ((0.9, 0.8), (0.8, 0.9), (0.95, 0.95), (0.0, 0.9), (0.0, 0.97))
# How often the engine tells (0 = never), and whether the scheduler begins ages there
ARMS = {
    "anew": (0.0, False),
    "targets, 1 s": (1.0, False),
    "targets, 10 s": (10.0, False),
    "arrivals, 1 s": (1.0, True),
    "arrivals, 10 s": (10.0, True),
}
OF_TARGETS = ("targets, 1 s", "targets, 10 s")
SHORT_S, LONG_S = 0.1, 1.0
DURATION_S, WARM_S = 60.0, 12.0
BURSTS = Arrivals("onoff", 0.2, 0.6)
FIGURES = {"mean": "s", "p50": "s", "p99": "s", "worst slowdown": "", "hit rate": ""}


@dataclass(frozen=True)
class Run:
    loads: tuple[float, float]
    policy: str
    arm: str
    seed: int


def first_node(seed: int, queries: int, load: float) -> Node:
    """Where each query is parsed and enriched; nothing is dropped."""
    random = Random(1000 + seed)
    made = []
    for number in range(queries):
        cost = 2 ** random.randrange(4)
        names = (f"q{number:02}-in", f"q{number:02}-parse")
        operators = tuple(OperatorSpec(name=name, cost=cost) for name in names)
        source = SourceSpec(names[0], 1.0, BURSTS)
        made.append(QuerySpec(f"q{number:02}", operators, (Link(*names),), (source,)))
    return of_workload(Workload("first", tuple(made)), load or 0.5)


def target_s(query: int) -> float:
    return SHORT_S if query % 3 == 0 else LONG_S


def arms(policy: str) -> list[str]:
    """Those that differ from each other."""
    if policy == OS:
        return ["anew"]
    return [arm for arm in ARMS if policy == "deadline" or arm not in OF_TARGETS]


def policy_of(name: str, queries: tuple[str, ...]) -> Policy | None:
    if name == OS:
        return None
    if name != "deadline":
        return registry.policy(name)
    targets = [
        {"queries": list(queries[at::3]), "latency": f"{limit:g}s"}
        for at, limit in ((0, SHORT_S), (1, LONG_S), (2, LONG_S))
    ]
    return registry.policy("deadline", {"targets": targets})


def through(
    node: Node, policy: Policy | None, seed: int, arrivals: bool = False
) -> list[tuple[Array, Array]]:
    """By query, when its tuples came to the node and when they left it, in order of the latter."""
    scheduler = "os" if policy is None else "scx"
    setting = Setting(
        scheduler=scheduler,
        clusters=0 if policy is None else 12,
        costs=costs()[scheduler],
        threads=Threads(arrivals=arrivals),
        duration_s=DURATION_S,
        warm_s=WARM_S,
        seed=seed,
        record=4_000_000,
    )
    found = simulate(node, policy, setting)
    # Recorded are those that came after warm_s: earlier ones of the first node are no loss.
    row, came, left = found.record.T
    query = node.query_of[row.astype(np.intp)]
    order = np.argsort(left, kind="stable")
    return [
        (came[order][query[order] == i], left[order][query[order] == i])
        for i in range(len(node.topology.queries))
    ]


def by_littles_law(
    first: list[tuple[Array, Array]], query_of: Index, every_s: float
) -> Callable[[float], Array]:
    """Time -> (n,) s, as the engine told it last: what was in the queues, over what left them."""

    @cache
    def told(at_s: float) -> Array:
        ages = np.zeros(len(first))
        for i, (came, left) in enumerate(first):
            inside = np.count_nonzero(came <= at_s) - np.count_nonzero(left <= at_s)
            rate = np.count_nonzero((left <= at_s) & (left > at_s - every_s)) / every_s
            ages[i] = inside / rate if rate > 0 else 0.0
        return np.asarray(ages[query_of])

    return lambda time_s: told(float(np.floor(time_s / every_s) * every_s))


def path_s(node: Node) -> Array:
    """(queries,) CPU time of a tuple through all of a query's operators."""
    return np.bincount(node.query_of, node.cost_s).astype(np.float64)


@cache
def before(loads: tuple[float, float], policy: str, seed: int) -> list[tuple[Array, Array]]:
    queries = len(synthetic.syn(seed).queries)
    node = first_node(seed, queries, loads[0])
    found = through(node, policy_of(policy, node.topology.queries), seed)
    if loads[0] > 0:
        return found
    random = Random(seed)
    return [
        (came, came + random.uniform(0.0, 0.9) * target_s(i))
        for i, (came, _) in enumerate((np.sort(came), left) for came, left in found)
    ]


def run(job: Run) -> tuple[float, ...]:
    """`FIGURES`, from end to end; a hit is a tuple within its target."""
    every_s, arrivals = ARMS[job.arm]
    first = before(job.loads, job.policy, job.seed)
    bare = of_workload(synthetic.syn(job.seed), job.loads[1])
    rates = [len(left) / (DURATION_S - WARM_S) for _, left in first]
    streams = tuple(
        Stream(stream.rows, rate, times=left)
        for stream, rate, (_, left) in zip(bare.streams, rates, first, strict=True)
    )
    # As much work as is asked for, whatever the first node's rates are.
    fed = replace(bare, streams=streams)
    fed = replace(fed, cost_s=fed.cost_s * job.loads[1] / fed.demand)
    node = first_node(job.seed, len(first), job.loads[0])
    work_s = path_s(node)[fed.query_of] + path_s(fed)[fed.query_of]
    age = by_littles_law(first, fed.query_of, every_s) if every_s else None
    fed = replace(
        fed,
        told=lambda t: {"ideal_time": work_s, **({} if age is None else {"arrival_age": age(t)})},
    )
    second = through(fed, policy_of(job.policy, fed.topology.queries), job.seed, arrivals)
    ages, hits, slowdowns = [], [], []
    for i, ((came, left), (arrived, gone)) in enumerate(zip(first, second, strict=True)):
        # A tuple is known by when it left the first node.
        own = gone - came[np.searchsorted(left, arrived)]
        ages.append(own)
        slowdowns.append(own / work_s[fed.query_of == i][0])
        hits.append(own <= target_s(i))
    times, slowdown = np.concatenate(ages), np.concatenate(slowdowns)
    return (
        float(times.mean()),
        *map(float, np.quantile(times, (0.5, 0.99))),
        float(slowdown.max()),
        float(np.concatenate(hits).mean()),
    )


def row(loads: tuple[float, float], policy: str, arm: str, runs: list[tuple[float, ...]]) -> Row:
    figures: dict[str, Figure | str] = {}
    for at, (name, unit) in enumerate(FIGURES.items()):
        each = [one[at] for one in runs]
        value = float(np.mean(each))
        part = value if unit else 1.0
        figures[name] = Figure(value, min(each) / part, max(each) / part, unit)
    return Row(f"{loads[0]:g} and {loads[1]:g}, {policy}, {arm}", figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=301)
    results.argument(parser)
    asked = parser.parse_args()
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    todo = [
        Run(loads, policy, arm, seed)
        for loads in LOADS
        for policy in POLICIES
        for seed in seeds
        for arm in arms(policy)
    ]
    with ProcessPoolExecutor(2) as pool:
        found = dict(zip(todo, pool.map(run, todo, chunksize=4), strict=True))
    rows = [
        row(loads, policy, arm, [found[Run(loads, policy, arm, s)] for s in seeds])
        for loads in LOADS
        for policy in POLICIES
        for arm in arms(policy)
    ]
    told = Result(
        title="Queries over two nodes, simulated: end to end, with and without the age on arrival",
        columns=list(FIGURES),
        n=asked.seeds,
        spread="smallest-largest over seeds",
        seeds=list(seeds),
        kernel=None,
        rows=rows,
        **results.here(),
    )
    results.tell(told, asked.keep and f"{asked.keep}-nodes")


if __name__ == "__main__":
    main()
