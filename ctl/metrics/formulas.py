"""The formulas over the graph of a query: global selectivity and cost, ideal time, joins.

Each works on whole levels of the graph at once. Symbols are those of Sharaf et al. 2006.

A window join is special: what a tuple finds there depends on the input it comes through. Wherever
`through` is a parameter, it is the (m,) selectivity of each edge's consumer as seen by tuples of
that edge, see `join_through`; without it, that is the consumer's selectivity.
"""

import numpy as np
import numpy.typing as npt

from sched_ctl.model.graph import Array, Graph
from sched_ctl.model.median import median

__all__ = [
    "arrival_age",
    "costliest",
    "distance",
    "global_cost",
    "global_selectivity",
    "ideal_time",
    "join_through",
    "memory_freed",
]


@np.errstate(all="ignore")
def global_selectivity(graph: Graph, selectivity: Array, through: Array | None = None) -> Array:
    """Tuples emitted at the egresses per tuple that enters each operator: (n,).

    S_x = s_x * sum(share_b * S_b over downstream b), and s_x at an egress (Sharaf et al. 2006,
    section 2, for chains). In a DAG this is the sum over all paths to the egresses of the product
    of the selectivities on the path: what forks and joins again is counted on both ways.
    NaN where any operator downstream is unknown, and for operators on or above a cycle.
    """
    entering = selectivity[graph.target] if through is None else through
    after = np.full(graph.n, np.nan)  # egress tuples per tuple that leaves the operator
    after[graph.egress] = 1.0
    for _, edges in graph.levels[1:]:
        source, target = graph.source[edges], graph.target[edges]
        after[source] = 0.0
        np.add.at(after, source, graph.share[edges] * entering[edges] * after[target])
    return _finite(selectivity * after)


@np.errstate(all="ignore")
def global_cost(
    graph: Graph, cost: Array, selectivity: Array, through: Array | None = None
) -> Array:
    """Expected CPU seconds to push one tuple from each operator through all egresses: (n,).

    C_x = c_x + s_x * sum(share_b * C_b over downstream b), Sharaf et al. 2006, section 2.
    NaN where any operator downstream is unknown, and for operators on or above a cycle.
    """
    entering = selectivity[graph.target] if through is None else through
    after = np.full(graph.n, np.nan)  # CPU seconds downstream per tuple that leaves the operator
    after[graph.egress] = 0.0
    for _, edges in graph.levels[1:]:
        source, target = graph.source[edges], graph.target[edges]
        after[source] = 0.0
        each = cost[target] + entering[edges] * after[target]
        np.add.at(after, source, graph.share[edges] * each)
    return _finite(cost + np.where(graph.egress, 0.0, selectivity * after))


@np.errstate(all="ignore")
def ideal_time(graph: Graph, cost: Array, join: Array | None = None) -> Array:
    """CPU seconds of a tuple that survives every filter on its way: (n,).

    T_x = sum of c from leaf to root of the query (Sharaf et al. 2006, section 2). In a DAG: the sum
    over the costliest path from an ingress to an egress that leads through x, which is the response
    time of the last result on an idle machine whose CPUs are enough for the branches.

    join: (n,) > 0 for window joins. A composite tuple needs all inputs, and the join once for
    each: T = C_L + C_R + 2 C_J + C_C (section 5.1).
    NaN where any operator on a path through x is unknown, and on, above and below a cycle.
    """
    is_join = np.zeros(graph.n, dtype=np.bool_) if join is None else np.asarray(join) > 0
    inputs = np.bincount(graph.target, minlength=graph.n)
    own = np.where(is_join, np.maximum(inputs, 1) * cost, cost)
    until = np.full(graph.n, np.nan)  # from the ingresses to the end of the operator
    arrived = np.zeros(graph.n)
    for operators, edges in graph.reversed.levels:
        # Edge i of the reversed graph is edge i of the graph: its source lies downstream here
        below, above = graph.target[edges], graph.source[edges]
        meets = is_join[below]
        np.maximum.at(arrived, below[~meets], until[above[~meets]])
        np.add.at(arrived, below[meets], until[above[meets]])
        until[operators] = arrived[operators] + own[operators]
    # What an edge adds: its consumer and, at a join, what the other inputs take
    others = np.where(is_join[graph.target], arrived[graph.target] - until[graph.source], 0.0)
    step = own[graph.target] + others
    onwards = np.zeros(graph.n)
    onwards[graph.height < 0] = np.nan
    for _, edges in graph.levels[1:]:
        source, target = graph.source[edges], graph.target[edges]
        np.maximum.at(onwards, source, step[edges] + onwards[target])
    return _finite(until + onwards)


@np.errstate(all="ignore")
def costliest(graph: Graph, cost: Array) -> Array:
    """(n,) cost of the costliest path from each operator, itself included, to an egress."""
    total = np.full(graph.n, np.nan)
    below = np.zeros(graph.n)
    for operators, edges in graph.levels:
        np.maximum.at(below, graph.source[edges], total[graph.target[edges]])
        total[operators] = cost[operators] + below[operators]
    return total


def distance(graph: Graph) -> Array:
    """(n,) edges on the longest way to an egress. On a cycle and above it there is none: then the
    median of the others, so that it is neither first nor last for that.
    """
    known = graph.height >= 0
    middle = median(graph.height[known]) if known.any() else 0.0
    return np.where(known, graph.height, middle)


def arrival_age(graph: Graph, wait: Array, away: npt.NDArray[np.bool_]) -> Array:
    """(n,) s: how old tuples are when they come to each operator's node from another one.

    All waits on the slowest way there count, on whatever node: by Little's law, queue over rate. 0
    where tuples come in on this node, and for operators that are away. wait: (n,) s in each
    operator's own queue; NaN counts as 0, so what is not known makes nothing older.
    """
    came = np.zeros(graph.n)
    if not away.any():
        return came
    arrived, until = np.zeros(graph.n), np.zeros(graph.n)
    own = np.nan_to_num(wait)
    for operators, edges in graph.reversed.levels:
        above, below = graph.source[edges], graph.target[edges]
        np.maximum.at(arrived, below, until[above])
        np.maximum.at(came, below, np.where(away[above], until[above], came[above]))
        until[operators] = arrived[operators] + own[operators]
    return np.where(away, 0.0, came)


def join_through(graph: Graph, selectivity: Array, window_s: Array, output_rate: Array) -> Array:
    """(m,) selectivity of each edge's consumer for tuples of that edge, as `through` above.

    For window joins (window_s > 0), from what is measured. Each pair is found once, by whichever
    of its tuples comes second, and both inputs do so equally often: with k inputs the tuples of
    input i cause 1/k of all output, so s_i = s * (sum of all input rates) / (k * rate_i). Of two
    inputs that is s_J * V / tau of the other (Sharaf et al. 2006, section 5.2), without knowing
    s_J, the probability that two tuples match. Where a rate is unknown or 0 the average selectivity
    stands in.
    """
    average = selectivity[graph.target]
    rate = graph.share * output_rate[graph.source]
    total = np.bincount(graph.target, weights=rate, minlength=graph.n)[graph.target]
    inputs = np.bincount(graph.target, minlength=graph.n)[graph.target]
    with np.errstate(all="ignore"):
        seen = average * total / (inputs * rate)
    joins = (window_s[graph.target] > 0) & np.isfinite(seen)
    return np.where(joins, seen, average)


def memory_freed(graph: Graph, selectivity: Array, tuple_size: Array) -> Array:
    """(n,) bytes that leave the queues for each tuple that an operator processes.

    tuple_size * (1 - s) in a chain of equal tuples (Aurora, Carney et al. 2003). In a DAG every
    branch queues its own copy: size_x - s_x * sum(share_b * size_b). What an egress emits leaves
    the engine, so an egress frees all of its input.
    """
    return tuple_size - np.where(graph.egress, 0.0, selectivity * graph.sum_downstream(tuple_size))


def _finite(values: Array) -> Array:
    """NaN where a sum or a product left the range of floats."""
    return np.where(np.isfinite(values), values, np.nan)
