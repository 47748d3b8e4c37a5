"""Operator frames out of parts: joined over engines, cut down to some operators."""

from collections.abc import Sequence

import numpy as np

from sched_ctl.model.graph import Graph, Index
from sched_ctl.model.policy import OperatorFrame

__all__ = ["join_graphs", "subframe", "subgraph"]


def subgraph(graph: Graph, rows: Index) -> Graph:
    """The graph of the operators in `rows`, in that order, and of the edges among them."""
    place = np.full(graph.n, -1, dtype=np.intp)
    place[rows] = np.arange(len(rows))
    source, target = place[graph.source], place[graph.target]
    inside = (source >= 0) & (target >= 0)
    return Graph(len(rows), source[inside], target[inside], graph.share[inside])


def subframe(frame: OperatorFrame, rows: Index) -> OperatorFrame:
    """The operators in `rows`. Their metrics stay as they were computed over the whole graph."""
    return OperatorFrame(
        tuple(frame.operators[row] for row in rows),
        subgraph(frame.graph, rows),
        {name: column[rows] for name, column in frame.columns.items()},
        None if frame.engine is None else frame.engine[rows],
        frame.engines,
        frame.memory,
    )


def join_graphs(graphs: Sequence[Graph]) -> Graph:
    """The graphs side by side; the rows of each come after those of the one before."""
    starts = np.cumsum([0, *(graph.n for graph in graphs)])
    if not graphs:
        none = np.empty(0, dtype=np.intp)
        return Graph(0, none, none, np.empty(0))
    return Graph(
        int(starts[-1]),
        np.concatenate([g.source + start for g, start in zip(graphs, starts, strict=False)]),
        np.concatenate([g.target + start for g, start in zip(graphs, starts, strict=False)]),
        np.concatenate([graph.share for graph in graphs]),
    )
