"""The formulas over the graph of a query: global selectivity and cost, ideal time.

Each works on whole levels of the graph at once. Symbols are those of Sharaf et al. 2006, section 2.
"""

import numpy as np

from sched_ctl.graph import Array, Graph

__all__ = ["costliest", "global_cost", "global_selectivity", "ideal_time"]


def _capped(values: Array) -> Array:
    """NaN where a sum or a product left the range of floats."""
    return np.where(np.isfinite(values), values, np.nan)


def global_selectivity(graph: Graph, selectivity: Array) -> Array:
    """Tuples emitted at the egresses per tuple that enters each operator: (n,).

    S_x = s_x * sum(share_b * S_b over downstream b), and s_x at an egress (Sharaf et al. 2006,
    section 2, for chains). In a DAG this is the sum over all paths to the egresses of the product
    of the selectivities on the path: what forks and joins again is counted on both ways.
    NaN where any operator downstream is unknown, and for operators on or above a cycle.
    """
    total = np.full(graph.n, np.nan)
    below = np.zeros(graph.n)
    for level, (operators, edges) in enumerate(graph.levels):
        if level == 0:
            total[operators] = selectivity[operators]
            continue
        np.add.at(below, graph.source[edges], graph.share[edges] * total[graph.target[edges]])
        total[operators] = selectivity[operators] * below[operators]
    return _capped(total)


def global_cost(graph: Graph, cost: Array, selectivity: Array) -> Array:
    """Expected CPU seconds to push one tuple from each operator through all egresses: (n,).

    C_x = c_x + s_x * sum(share_b * C_b over downstream b), Sharaf et al. 2006, section 2.
    NaN where any operator downstream is unknown, and for operators on or above a cycle.
    """
    total = np.full(graph.n, np.nan)
    below = np.zeros(graph.n)
    for operators, edges in graph.levels:
        np.add.at(below, graph.source[edges], graph.share[edges] * total[graph.target[edges]])
        inner = ~graph.egress[operators]
        after = np.where(inner, selectivity[operators] * below[operators], 0.0)
        total[operators] = cost[operators] + after
    return _capped(total)


def ideal_time(graph: Graph, cost: Array) -> Array:
    """CPU seconds of a tuple that survives every filter on its way: (n,).

    T_x = sum of c from leaf to root of the query (Sharaf et al. 2006, section 2). In a DAG: the sum
    over the costliest path from an ingress to an egress that leads through x, which is the response
    time of the last result on an idle machine whose CPUs are enough for the branches.
    NaN where any operator on a path through x is unknown, and on, above and below a cycle.
    """
    return _capped(costliest(graph, cost) + costliest(graph.reversed, cost) - cost)


def costliest(graph: Graph, cost: Array) -> Array:
    """(n,) cost of the costliest path from each operator, itself included, to an egress."""
    total = np.full(graph.n, np.nan)
    below = np.zeros(graph.n)
    for operators, edges in graph.levels:
        np.maximum.at(below, graph.source[edges], total[graph.target[edges]])
        total[operators] = cost[operators] + below[operators]
    return total
