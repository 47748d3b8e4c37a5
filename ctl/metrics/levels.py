"""Between logical and physical operators (Lachesis, section 4, "transformation rules").

Fusion runs several logical operators as one physical one, fission one logical as several
replicas. Priorities go from logical to physical: a fused operator gets the largest of its logical
ones, every replica gets that of its logical one. Metrics go both ways, whichever the engine
reports.

A column of a physical operator that fuses a > b > c says nothing about a, b and c alone, so the
last one carries all of it: c gets the cost and the selectivity, a and b cost nothing and pass
every tuple on. Then every logical operator of the chain has the global cost and selectivity of the
physical one, and the largest of their priorities is its own.
"""

from collections.abc import Mapping

import numpy as np

from sched_ctl.model.graph import Array, Index
from sched_ctl.model.policy import UrgencyForm
from sched_ctl.model.topology import Topology

__all__ = ["most_urgent", "to_logical", "to_physical"]

# shares of time, and time of which each replica has all and its chain has it together; not
# `busy_time`, by which a tuple costs what replicas and chains add up to
_OF_TIME = frozenset(
    {"idle_time", "backpressured_time", "utilisation", "busy", "backpressured", "idle"}
)
# replicas: the largest, or the mean, of their values; anything else is added up
_LARGEST = frozenset({"head_age", "head_age_estimate", "latency", "window"})
_MEAN = frozenset({"tuple_size", "cost", "selectivity"}) | _OF_TIME
# a fused chain: what its first operator has, and what all its operators have alike
_FIRST = frozenset({"queue_size", "head_age", "head_age_estimate"})
_ALIKE = frozenset({"tuples_in", "arrival_rate", "latency", "window", "tuple_size"}) | _OF_TIME


def to_logical(topology: Topology, metric: str, columns: Mapping[str, Array]) -> Array:
    """(n_logical,) a metric of which `columns` has the values of the physical operators.

    Counters and queue sizes of replicas are added, ages are the oldest, sizes and ratios the mean.
    """
    physical, logical, position, length = topology.logical_rows
    values = columns[metric][physical]
    last = position == length - 1
    if metric in _FIRST:
        values = np.where(position == 0, values, 0.0)
    elif metric == "selectivity":
        values = np.where(last, values, 1.0)
    elif metric == "tuples_out":
        taken_in = columns.get("tuples_in", np.full_like(columns[metric], np.nan))
        values = np.where(last, values, taken_in[physical])
    elif metric not in _ALIKE:
        values = np.where(last, values, 0.0)
    return _combine(metric, values, logical, len(topology.logical))


def to_physical(topology: Topology, metric: str, columns: Mapping[str, Array]) -> Array:
    """(n_physical,) a metric of which `columns` has the values of the logical operators.

    Replicas share counters and queues equally. A fused operator takes in what its first logical
    operator does, emits what its last one does, and costs what they cost together.
    """
    physical, logical, position, length = topology.logical_rows
    n = len(topology.operators)
    values = columns[metric][logical]
    if metric == "selectivity":
        product = np.ones(n)
        np.multiply.at(product, physical, values)
        return np.where(np.bincount(physical, minlength=n) > 0, product, np.nan)
    if metric not in _LARGEST | _MEAN:
        replicas = np.array([operator.replicas for operator in topology.operators], dtype=float)
        values = values / replicas[physical]
    if metric in _FIRST | _ALIKE:
        chosen = position == 0
    elif metric == "tuples_out":
        chosen = position == length - 1
    else:
        chosen = np.ones_like(position, dtype=np.bool_)
    return _combine("sum", values[chosen], physical[chosen], n)


def _combine(metric: str, values: Array, rows: Index, n: int) -> Array:
    count = np.bincount(rows, minlength=n)
    if metric in _LARGEST:
        combined = np.full(n, -np.inf)
        np.maximum.at(combined, rows, values)
    else:
        combined = np.bincount(rows, weights=values, minlength=n).astype(np.float64)
        if metric in _MEAN:
            combined = combined / np.maximum(count, 1)
    return np.where(count > 0, combined, np.nan)


def most_urgent(
    form: UrgencyForm, urgency: Array, owner: Index, candidate: Index, owners: int
) -> Index:
    """(owners,) for each owner the place of its most urgent candidate; -1 if it has none.

    owner, candidate: one entry for each pair of an owner and a row of the form; the result points
    into these. Compared by rank, then by `urgency` (the form at the present head ages and queue
    sizes). An unknown urgency is below every known one, of equals the first pair wins.
    """
    key, rank = urgency[candidate], form.rank[candidate]
    unknown = np.isnan(key) | np.isnan(rank)
    key = np.where(unknown, -np.inf, key)
    rank = np.where(unknown, -np.inf, rank)
    order = np.lexsort((-np.arange(len(candidate)), key, rank, owner))
    best = np.full(owners, -1, dtype=np.intp)
    best[owner[order]] = order  # of several writes to one place the last one stays
    return best
