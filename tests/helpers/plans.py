"""Small query plans for tests."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from sched_ctl.backends.scx.hints import Limits
from sched_ctl.model.graph import Array, Graph
from sched_ctl.model.policy import OperatorFrame
from sched_ctl.model.topology import (
    Edge,
    HelperThread,
    LogicalOperator,
    PhysicalOperator,
    Snapshot,
    Thread,
    Topology,
)

__all__ = ["LIMITS", "array", "frame", "graph", "plan", "snapshot"]

# As in bpf/sched_ctl.h.
LIMITS = Limits(
    queues=64,
    groups=64,
    max_slope=1 << 20,
    max_lead_us=1 << 30,
    max_tuples=1 << 20,
    rank_shift=56,
    share_one=1024,
)


def array(*values: float) -> Array:
    return np.array(values, dtype=np.float64)


def graph(n: int, *edges: tuple[int, int] | tuple[int, int, float]) -> Graph:
    """Edges as (source, target) or (source, target, share)."""
    full = [(edge[0], edge[1], edge[2] if len(edge) == 3 else 1.0) for edge in edges]
    return Graph(
        n,
        np.array([edge[0] for edge in full], dtype=np.intp),
        np.array([edge[1] for edge in full], dtype=np.intp),
        np.array([edge[2] for edge in full], dtype=np.float64),
    )


def plan(
    queries: Mapping[str, Sequence[str]],
    edges: Iterable[tuple[int, int]] | None = None,
    engine: str = "lab:1",
    helpers: tuple[HelperThread, ...] = (),
    first_tid: int = 100,
) -> Topology:
    """One thread an operator; chains, unless edges are given."""
    names = [(query, name) for query, operators in queries.items() for name in operators]
    if edges is None:
        edges = [(i, i + 1) for i in range(len(names) - 1) if names[i][0] == names[i + 1][0]]
    streams = tuple(Edge(source, target) for source, target in edges)
    return Topology(
        engine,
        tuple(
            PhysicalOperator(query, name, (name,), threads=(Thread(1, first_tid + row, 7),))
            for row, (query, name) in enumerate(names)
        ),
        streams,
        tuple(LogicalOperator(query, name) for query, name in names),
        streams,
        helpers,
    )


def snapshot(topology: Topology, time_s: float = 10.0, /, **columns: Sequence[float]) -> Snapshot:
    return Snapshot(topology, time_s, {name: array(*values) for name, values in columns.items()})


def frame(topology: Topology, **columns: Sequence[float]) -> OperatorFrame:
    return OperatorFrame(
        topology.operators,
        topology.graph,
        {name: array(*values) for name, values in columns.items()},
    )
