"""HR, highest rate: u = S_x / C_x, the most results per CPU second first, over all queries.

S_x: tuples that leave at the egress per tuple that enters x; C_x: CPU time for that (Sharaf et
al. 2006, equation 4). On a DAG both are sums over the downstream branches, so what forks and joins
again counts on both ways, and an operator that serves several queries counts the results of all
of them ("Sum" of Sharaf et al., section 7.1; `pdt` does better there).
"""

import numpy as np

from sched_ctl.policy import OperatorFrame, Policy, Spacing, UrgencyForm, form

__all__ = ["policy"]


def urgency(frame: OperatorFrame) -> UrgencyForm:
    with np.errstate(all="ignore"):
        return form(len(frame), static=frame["global_selectivity"] / frame["global_cost"])


policy = Policy(
    name="hr",
    urgency=urgency,
    needs=frozenset({"global_selectivity", "global_cost"}),
    goal="mean latency of all results",
    spacing=Spacing.LOGARITHMIC,
)
