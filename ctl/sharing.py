"""Priorities of operators that several segments share (Sharaf et al. 2006, section 7).

An operator x with several branches is shared by the segments that begin with x and go on along one
branch. With S_i, C_i of segment i, its own priority is w_i S_i / C_i, and that of a set of segments
is sum(w_i S_i) / SC, where SC counts the cost of x once: SC = sum(C_i) - (N - 1) c_x. The weight w
belongs to the end of the segment: 1 for HR, 1/T for HNR, 1/T^2 for BSD.

* "max": the best segment alone.
* "sum": all segments.
* "pdt", the priority-defining tree: segments are added by falling priority, as long as that makes
  the priority of the set grow. Those left out run later, with their own priority behind x.

A branch that is itself shared further down goes in with the set that was chosen there.
"""

import numpy as np

from sched_ctl.graph import Array, Graph

__all__ = ["RULES", "shared_rate"]

RULES = ("max", "sum", "pdt")


def shared_rate(
    graph: Graph, cost: Array, selectivity: Array, egress_weight: Array, rule: str
) -> Array:
    """(n,) priority of each operator by one of `RULES`; NaN where unknown.

    egress_weight: (n,) read at the egresses.
    """
    worth = np.where(graph.egress, selectivity * egress_weight, np.nan)
    price = np.where(graph.egress, cost, np.nan)
    with np.errstate(all="ignore"):
        for operators, edges in graph.levels[1:]:
            passed = selectivity[graph.source[edges]] * graph.share[edges]
            gain, pay = passed * worth[graph.target[edges]], passed * price[graph.target[edges]]
            source = graph.source[edges]
            own = gain / (cost[source] + pay)
            worth[operators], price[operators] = 0.0, cost[operators]
            order = np.lexsort((-np.nan_to_num(own, nan=-np.inf), source))
            start = np.flatnonzero(np.r_[True, np.diff(source[order]) != 0])
            branches = np.diff(np.r_[start, len(order)])
            growing = np.ones(len(start), dtype=np.bool_)
            for nth in range(branches.max() if rule != "max" else 1):  # best branch first
                growing &= branches > nth
                branch = order[start[growing] + nth]
                x = source[branch]
                new_worth, new_price = worth[x] + gain[branch], price[x] + pay[branch]
                if rule == "pdt" and nth > 0:
                    grows = new_worth / new_price > worth[x] / price[x]
                    growing[growing] = grows
                    x, new_worth, new_price = x[grows], new_worth[grows], new_price[grows]
                worth[x], price[x] = new_worth, new_price
        return np.asarray(worth / price)
