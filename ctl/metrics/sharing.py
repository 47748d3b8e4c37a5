"""Priorities of operators that several segments share (Sharaf et al. 2006, section 7).

An operator x with several branches is shared by the segments that begin with x and go on along one
branch. With S_i, C_i of segment i, its own priority is w_i S_i / C_i, and that of a set of segments
is sum(w_i S_i) / SC, where SC counts the cost of x once: SC = sum(C_i) - (N - 1) c_x. The weight w
belongs to the end of the segment: 1 for HR, 1/T for HNR, 1/T^2 for BSD.

* "max": the best segment alone.
* "sum": all segments.
* "pdt", the priority-defining tree: the set with the largest priority. Those left out run later,
  with their own priority behind x.

The best set is found by adding segments by falling gain w_i S_i / (C_i - c_x), the priority of the
branch alone, as long as that is above the priority of the set so far. A segment belongs to the best
set, of priority P, exactly if its gain is above P, so that the set is a prefix of this order. The
paper adds them by w_i S_i / C_i, which misses its own definition where a segment is cheap behind a
costly x: in 8% of random cases, by up to 44%.

A branch that is itself shared further down goes in with the set that was chosen there.
"""

import numpy as np

from sched_ctl.errors import UserError, near_miss
from sched_ctl.model.graph import Array, Graph
from sched_ctl.model.policy import OperatorFrame

__all__ = ["NEEDS", "RULES", "check", "rate", "shared_rate"]

RULES = ("max", "sum", "pdt")
NEEDS = frozenset({"cost", "selectivity", "global_cost", "global_selectivity"})  # of `rate`


def check(policy: str, rule: str, rules: tuple[str, ...] = (*RULES, "none")) -> None:
    """Raises UserError if a policy is given a rule that it has not."""
    if rule not in rules:
        raise UserError(f"policy {policy}: no sharing {rule!r}{near_miss(rule, rules)}")


def rate(frame: OperatorFrame, weight: Array, rule: str) -> Array:
    """(n,) S / C * weight; of operators that several segments share, by one of `RULES`.

    weight: (n,), of shared operators read at the ends of the segments. "none": S / C * weight
    everywhere.
    """
    with np.errstate(all="ignore"):
        plain = np.asarray(frame["global_selectivity"] / frame["global_cost"] * weight)
    graph = frame.graph
    if rule == "none" or not graph.shared.any():
        return plain
    together = shared_rate(graph, frame["cost"], frame["selectivity"], weight, rule)
    return np.where(graph.shared, together, plain)


def shared_rate(
    graph: Graph,
    cost: Array,
    selectivity: Array,
    egress_weight: Array,
    rule: str,
) -> Array:
    """(n,) priority of each operator by one of `RULES`; NaN where unknown.

    egress_weight: (n,) read at the egresses. A window join counts with its mean selectivity.
    """
    worth = np.where(graph.egress, egress_weight, np.nan)  # of a tuple that leaves the operator
    price = np.where(graph.egress, 0.0, np.nan)  # of what comes after the operator, likewise
    entering = selectivity[graph.target]
    with np.errstate(all="ignore"):
        for operators, edges in graph.levels[1:]:
            source, target = graph.source[edges], graph.target[edges]
            gain = graph.share[edges] * entering[edges] * worth[target]
            pay = graph.share[edges] * (cost[target] + entering[edges] * price[target])
            # A tuple of x is 1 / s_x of an input: what x costs per tuple that leaves it
            own = cost / selectivity
            by = gain / (pay if rule == "pdt" else own[source] + pay)
            worth[operators], price[operators] = 0.0, 0.0
            order = np.lexsort((-np.nan_to_num(by, nan=-np.inf), source))
            start = np.flatnonzero(np.r_[True, np.diff(source[order]) != 0])
            branches = np.diff(np.r_[start, len(order)])
            growing = np.ones(len(start), dtype=np.bool_)
            for nth in range(branches.max() if rule != "max" else 1):  # best branch first
                growing &= branches > nth
                branch = order[start[growing] + nth]
                x = source[branch]
                new_worth, new_price = worth[x] + gain[branch], price[x] + pay[branch]
                if rule == "pdt" and nth > 0:
                    grows = new_worth / (own[x] + new_price) > worth[x] / (own[x] + price[x])
                    growing[growing] = grows
                    x, new_worth, new_price = x[grows], new_worth[grows], new_price[grows]
                worth[x], price[x] = new_worth, new_price
        return np.asarray(selectivity * worth / (cost + selectivity * price))
