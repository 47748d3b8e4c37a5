"""Which operators of a query with branches let the tuples of the others pass.

Where more comes in than a CPU can do, a fair scheduler gives every thread the same share, so the
operator that wants most has the whole backlog, and results of branches without it stay fast. An
order by results or ages lets all branches wait alike: a better mean, and half of all tuples pay for
it. So an operator that would have a backlog goes last in its query. Where one that all results go
through would have one too, nobody was fast, and nobody is put last.

What operators want is told by their costs and by how many tuples reach them for one that comes in,
and not by the CPU that they used, which depends on the order. A little more than a CPU (`OVERLOAD`)
is handed out evenly, nobody getting more than it wants; who gets less is *dear*.

Beside other queries that is told of each by itself, and only of those that have a backlog: in one
that keeps up whoever is last would wait for the other queries, and for nothing of its own.
"""

import numpy as np
import numpy.typing as npt

from sched_ctl.metrics.backlog import SATURATED
from sched_ctl.model.graph import Array, distinct
from sched_ctl.model.policy import OperatorFrame

__all__ = ["NEEDS", "OVERLOAD", "dear"]

NEEDS = frozenset({"cost", "selectivity"})
OVERLOAD = 1.1  # of what can be done: with 1.3 branches count that would keep up


def dear(frame: OperatorFrame, overload: float = OVERLOAD) -> npt.NDArray[np.bool_]:
    """(n,) whether the operator is dear.

    overload: what is wanted over what can be done, above 1.
    """
    found = np.zeros(len(frame), dtype=np.bool_)
    shared = frame.graph.shared
    if not shared.any():
        return found
    queries = frame.query[shared]
    if len(frame.queries) > 1:
        busy = frame.columns.get("utilisation", np.full(len(frame), np.nan))
        queries = queries[np.isin(queries, frame.query[busy >= SATURATED])]
    if not len(queries):
        return found
    wants = np.nan_to_num(_reaching(frame) * frame["cost"])
    on_every_way = _on_every_way(frame)
    for query in distinct(queries):
        rows = np.flatnonzero(frame.query == query)
        behind = wants[rows] > _level(wants[rows], wants[rows].sum() / overload)
        found[rows] = behind & ~(behind & on_every_way[rows]).any()
    return found


def _level(wants: Array, total: float) -> float:
    """What each gets at most, so that all together get `total`."""
    rising = np.sort(wants)
    left = total - np.r_[0.0, np.cumsum(rising)[:-1]]
    even = left / np.arange(len(rising), 0, -1)
    short = np.flatnonzero(rising > even)
    return float(even[short[0]]) if len(short) else np.inf


def _reaching(frame: OperatorFrame) -> Array:
    """(n,) tuples that reach each operator for one that comes in at every ingress."""
    graph = frame.graph
    rate: Array = (np.bincount(graph.target, minlength=graph.n) == 0).astype(np.float64)
    out = np.nan_to_num(frame["selectivity"])
    for _, edges in graph.levels[:0:-1]:
        source = graph.source[edges]
        np.add.at(rate, graph.target[edges], graph.share[edges] * out[source] * rate[source])
    return rate


def _on_every_way(frame: OperatorFrame) -> npt.NDArray[np.bool_]:
    """(n,) whether every way through its query goes through the operator, or one of its replicas.

    What comes in divides evenly at each branch; who gets all of it is on every way.
    """
    graph = frame.graph
    flow = (np.bincount(graph.target, minlength=graph.n) == 0).astype(np.float64)
    total, branches = np.bincount(frame.query, flow), np.bincount(graph.source, minlength=graph.n)
    for _, edges in graph.levels[:0:-1]:
        source = graph.source[edges]
        np.add.at(flow, graph.target[edges], flow[source] / branches[source])
    number: dict[object, int] = {}
    names = (getattr(o, "logical", ()) or o.name for o in frame.operators)
    known = zip(frame.query.tolist(), names, strict=True)
    which = np.array([number.setdefault(one, len(number)) for one in known], dtype=np.intp)
    return np.asarray(np.bincount(which, flow)[which] > total[frame.query] * (1 - 1e-9))
