"""The lower envelope of progress charts (Babcock et al. 2003), for Chain scheduling.

A chain's progress chart goes from (0, size of a new tuple) down: operator by operator, by the
expected CPU time to the right and to the memory that is left of the tuple. Its lower envelope joins
operators to segments of falling steepness; a segment frees `freed / time` bytes per CPU second.

On a DAG a segment is a connected piece that begins with one operator: the piece below an operator
that frees the most per CPU second, by Sidney's decomposition for out-trees (Horn 1972): a segment
swallows the steepest of the segments below it as long as that one is steeper than itself. On a
chain this is the lower envelope. An operator with several upstream ones is swallowed only when they
are all in the same segment (a diamond), else it begins a segment of its own.
"""

import numpy as np
import numpy.typing as npt

from sched_ctl.model.graph import Array, Graph, Index

__all__ = ["flow", "steepness"]


def flow(graph: Graph, selectivity: Array) -> Array:
    """(n,) expected input tuples of each operator per tuple that enters its ingresses.

    NaN below an unknown selectivity and on or below a cycle.
    """
    arriving = np.where(graph.ingress, 1.0, np.nan)
    for _, edges in graph.reversed.levels[1:]:
        source, target = graph.source[edges], graph.target[edges]
        arriving[target] = 0.0
        np.add.at(arriving, target, graph.share[edges] * selectivity[source] * arriving[source])
    return arriving


def steepness(graph: Graph, cost: Array, selectivity: Array, freed: Array) -> Array:
    """(n,) memory freed per CPU second by the segment that each operator is in.

    freed: (n,) per input tuple, see `formulas.memory_freed`. NaN where an operator's own cost,
    selectivity or flow is unknown; such an operator is in no segment.
    """
    rate = np.maximum(flow(graph, selectivity), 1e-12)  # a tuple in a million million still counts
    gain, time = rate * freed, rate * cost
    known = np.isfinite(gain) & np.isfinite(time)
    segment = np.arange(graph.n)
    inner = known[graph.source] & known[graph.target]
    with np.errstate(all="ignore"):
        while True:
            total_gain = np.bincount(segment[known], gain[known], graph.n)
            slope = total_gain / np.bincount(segment[known], time[known], graph.n)
            absorbed = _steeper_below(graph, segment, slope, inner)
            if not (absorbed != np.arange(graph.n)).any():
                return np.where(known, slope[segment], np.nan)
            while (absorbed != absorbed[absorbed]).any():  # a chain of swallowed segments
                absorbed = absorbed[absorbed]
            segment = absorbed[segment]


def _steeper_below(
    graph: Graph, segment: Index, slope: Array, inner: npt.NDArray[np.bool_]
) -> Index:
    """(n,) for each segment the one that swallows it now; itself if none does."""
    n = graph.n
    above, below = segment[graph.source], segment[graph.target]
    between = above != below
    # A segment with two different segments above it (or an unknown one) stays on its own
    lowest, highest = np.full(n, n), np.full(n, -1)
    np.minimum.at(lowest, below[between], above[between])
    np.maximum.at(highest, below[between], above[between])
    alone = np.zeros(n, dtype=np.bool_)
    alone[below[between & ~inner]] = True
    child = np.flatnonzero((lowest == highest) & ~alone)
    parent = lowest[child]
    steeper = slope[child] > slope[parent]
    child, parent = child[steeper], parent[steeper]
    result = np.arange(n)
    order = np.lexsort((slope[child], parent))
    last = np.flatnonzero(np.r_[np.diff(parent[order]) != 0, len(order) > 0][: len(order)])
    steepest = order[last]
    result[child[steepest]] = parent[steepest]
    return result
