"""The experiments of Sharaf et al., "Efficient Scheduling of Heterogeneous Continuous Queries"
(VLDB 2006), sections 8 and 9: 500 queries of select, join and project over one packet stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sched_ctl.model.graph import Array
from sched_ctl.model.topology import Edge, LogicalOperator, PhysicalOperator, Topology
from sched_ctl.sim import Node, Stream

__all__ = ["Traffic", "classes", "example", "joins", "packets", "queries", "shared"]

QUERIES = 500


@dataclass(frozen=True)
class Traffic:
    """A stand-in for the trace LBL-PKT-4: On/Off sources with Pareto period lengths, added up.

    Shapes between 1 and 2 make the sum self-similar (Willinger et al. 1997). A source sends at a
    constant rate while it is On. Lengths are in mean packet gaps of the whole stream.
    """

    sources: int = 4
    on: float = 80.0
    off: float = 400.0
    shape: float = 1.3

    def __str__(self) -> str:
        return f"{self.sources} sources, On {self.on:g}, Off {self.off:g}, shape {self.shape:g}"


def packets(seed: int, count: int, traffic: Traffic | None) -> Array:
    """(count,) arrival times with a mean gap of 1 s. traffic: None is Poisson."""
    generator = np.random.default_rng([seed, 4])
    if traffic is None:
        return np.cumsum(generator.exponential(1.0, count))
    mean = (traffic.shape - 1) / traffic.shape

    def pareto(length: float, n: int) -> Array:
        return np.asarray(length * mean * (1 + generator.pareto(traffic.shape, n)))

    # While On, a source sends often enough that all together send one packet a second.
    gap = traffic.sources * traffic.on / (traffic.on + traffic.off)
    horizon = 1.5 * count
    times = []
    for _ in range(traffic.sources):
        n = int(2 * horizon / (traffic.on + traffic.off)) + 8
        on, off = pareto(traffic.on, n), pareto(traffic.off, n)
        end = np.cumsum(on + off) - generator.random() * horizon / 4
        start = end - on - off
        for begin, length in zip(start, on, strict=True):
            if begin < horizon:
                first = begin + generator.random() * gap
                times.append(np.arange(first, begin + length, gap))
    merged = np.sort(np.concatenate(times))
    merged = merged[merged >= 0][:count]
    span = merged[-1] - merged[0]
    return np.asarray((merged - merged[0]) * (count / span))  # the mean gap is 1, as measured


def _costs(generator: np.random.Generator, n: int) -> Array:
    return np.asarray(2.0 ** generator.integers(0, 5, n))


def _node(
    name: str,
    chains: Sequence[Sequence[tuple[float, float]]],
    times: Array,
    utilisation: float,
) -> Node:
    """Chains of (cost, selectivity) that all see the same packets, one a second."""
    operators: list[PhysicalOperator] = []
    edges: list[Edge] = []
    cost: list[float] = []
    selectivity: list[float] = []
    leaves: list[int] = []
    for q, chain in enumerate(chains):
        leaves.append(len(operators))
        for step, (c, s) in enumerate(chain):
            if step:
                edges.append(Edge(len(operators) - 1, len(operators)))
            label = ("select", "join", "project")[step]
            operators.append(PhysicalOperator(f"q{q:03}", label, (label,)))
            cost.append(c)
            selectivity.append(s)
    return _made(name, operators, edges, cost, selectivity, [(tuple(leaves), times)], utilisation)


def _made(
    name: str,
    operators: list[PhysicalOperator],
    edges: list[Edge],
    cost: Sequence[float],
    selectivity: Sequence[float],
    streams: Sequence[tuple[tuple[int, ...], Array]],
    utilisation: float,
    window_s: Sequence[float] | None = None,
) -> Node:
    n = len(operators)
    logical = tuple(LogicalOperator(o.query, o.name) for o in operators)
    node = Node(
        name,
        Topology(f"sim:{name}", tuple(operators), tuple(edges), logical, tuple(edges)),
        np.array(cost),
        np.array(selectivity),
        np.zeros(n),
        np.zeros(n),
        np.zeros(n) if window_s is None else np.array(window_s),
        tuple(
            Stream(rows, len(times) / (times[-1] - times[0]), times=times)
            for rows, times in streams
        ),
    )
    return replace(node, cost_s=node.cost_s * utilisation / node.demand)


def queries(seed: int, utilisation: float, times: Array, n: int = QUERIES) -> Node:
    """Single-stream queries: select, join with a stored relation, project."""
    generator = np.random.default_rng([seed, 1])
    costs, chosen = _costs(generator, n), generator.uniform(0.1, 1.0, n)
    chains = [[(c, s), (c, s), (c, 1.0)] for c, s in zip(costs, chosen, strict=True)]
    return _node("aqsios", chains, times, utilisation)


def classes(node: Node) -> tuple[Array, Array]:
    """(queries,) cost class 0..4 and selectivity, for the slowdown by class."""
    first = np.flatnonzero(node.topology.graph.ingress)
    cost = node.cost_s[first]
    return np.rint(np.log2(cost / cost.min())), node.selectivity[first]


def shared(seed: int, utilisation: float, times: Array, n: int = QUERIES, group: int = 10) -> Node:
    """As `queries`, but those of a group share one select operator.

    The select has the cost and selectivity of the group's first query; its other operators keep
    those of their own query.
    """
    generator = np.random.default_rng([seed, 1])
    costs, chosen = _costs(generator, n), generator.uniform(0.1, 1.0, n)
    operators: list[PhysicalOperator] = []
    edges: list[Edge] = []
    cost: list[float] = []
    selectivity: list[float] = []
    leaves: list[int] = []
    for first in range(0, n, group):
        select = len(operators)
        leaves.append(select)
        operators.append(PhysicalOperator(f"g{first // group:02}", "select", ("select",)))
        cost.append(costs[first])
        selectivity.append(chosen[first])
        for q in range(first, first + group):
            for step, s in (("join", chosen[q]), ("project", 1.0)):
                name = f"{step}{q:03}"
                edges.append(Edge(select if step == "join" else len(operators) - 1, len(operators)))
                operators.append(PhysicalOperator(f"g{first // group:02}", name, (name,)))
                cost.append(costs[q])
                selectivity.append(float(s))
    return _made(
        "shared", operators, edges, cost, selectivity, [(tuple(leaves), times)], utilisation
    )


def joins(seed: int, utilisation: float, seconds: float, n: int, rate: float) -> Node:
    """Two-stream queries: select on each of two Poisson streams, window join, project."""
    generator = np.random.default_rng([seed, 2])
    costs, chosen = _costs(generator, n), generator.uniform(0.1, 1.0, n)
    windows = generator.uniform(1.0, 10.0, n)
    operators: list[PhysicalOperator] = []
    edges: list[Edge] = []
    cost: list[float] = []
    selectivity: list[float] = []
    window_s: list[float] = []
    feeds: tuple[list[int], list[int]] = ([], [])
    for q in range(n):
        base = len(operators)
        for step, name in enumerate(("left", "right", "join", "project")):
            operators.append(PhysicalOperator(f"q{q:03}", name, (name,)))
            cost.append(costs[q])
            selectivity.append(float(chosen[q]) if step < 3 else 1.0)
            window_s.append(float(windows[q]) if step == 2 else 0.0)
        feeds[0].append(base)
        feeds[1].append(base + 1)
        edges += [Edge(base, base + 2), Edge(base + 1, base + 2), Edge(base + 2, base + 3)]
    streams = [
        (tuple(rows), np.sort(generator.random(generator.poisson(rate * seconds)) * seconds))
        for rows in feeds
    ]
    return _made("joins", operators, edges, cost, selectivity, streams, utilisation, window_s)


def example() -> Node:
    """Example 1: three tuples at time 0; Q1 costs 5 ms and passes all, Q2 2 ms and the middle."""
    operators = [PhysicalOperator(q, "select", ("select",)) for q in ("Q1", "Q2")]
    logical = tuple(LogicalOperator(o.query, o.name) for o in operators)
    zeros = np.zeros(2)
    return Node(
        "example",
        Topology("sim:example", tuple(operators), (), logical, ()),
        np.array([5e-3, 2e-3]),
        np.array([1.0, 0.33]),
        zeros,
        zeros,
        zeros,
        (Stream((0, 1), 1.0, times=np.zeros(3)),),
        forced={0: (1, 1, 1), 1: (0, 1, 0)},
    )
