"""HR, highest rate: u = S_x / C_x, the most results per CPU second first, over all queries.

S_x: tuples that leave at the egress per tuple that enters x; C_x: CPU time for that (Sharaf et
al. 2006, equation 4). On a DAG both are sums over the downstream branches, so what forks and joins
again counts on both ways, and an operator that serves several queries counts the results of all
of them. `sharing` chooses a subset of the branches instead: "max" or "pdt", see
`sched_ctl.metrics.sharing`.
"""

import numpy as np

from sched_ctl.metrics.backlog import HEAVY, last
from sched_ctl.metrics.sharing import RULES, check, shared_rate
from sched_ctl.model.policy import OperatorFrame, Policy, Spacing, UrgencyForm, form

__all__ = ["NEEDS", "policy", "urgency"]

NEEDS = frozenset({"global_selectivity", "global_cost"})


def urgency(frame: OperatorFrame) -> UrgencyForm:
    with np.errstate(all="ignore"):
        return form(len(frame), static=frame["global_selectivity"] / frame["global_cost"])


def policy(sharing: str = "sum", heavy: float = HEAVY) -> Policy:
    """sharing: how branches of a shared operator add up: "sum", "max" or "pdt".

    heavy: saturated queries go last that use more than so many times the queries' mean CPU use; 0 =
    they go by their results like all others, see `metrics.backlog`.
    """
    check("hr", sharing, RULES)

    def chosen(frame: OperatorFrame) -> UrgencyForm:
        one = np.ones(len(frame))
        rate = shared_rate(frame.graph, frame["cost"], frame["selectivity"], one, sharing)
        return form(len(frame), static=rate)

    rates = Policy(
        name="hr",
        urgency=urgency if sharing == "sum" else chosen,
        needs=NEEDS if sharing == "sum" else frozenset({"cost", "selectivity"}),
        goal="mean latency of all results",
        spacing=Spacing.LOGARITHMIC,
        options={"sharing": sharing, "heavy": heavy},
    )
    return last(rates, heavy)
