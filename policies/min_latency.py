"""MIN-LATENCY: rank = -(operators to the egress); inside a rank u = S_x / C_x.

Operators nearest to the egress first, ties by the smallest CPU time per result, C / S (after
Aurora, Carney et al. 2003, whose rule is the tie alone, so very like RB). On a DAG the distance is
that of the longest way to an egress, so an operator comes before all that feed it, also across
forks, joins and shared operators. Operators on cycles and above them have no distance: they get the
median of the others.
"""

import numpy as np

from sched_ctl.metrics.formulas import distance
from sched_ctl.model.policy import OperatorFrame, Policy, Spacing, UrgencyForm, form

__all__ = ["policy"]


def urgency(frame: OperatorFrame) -> UrgencyForm:
    with np.errstate(all="ignore"):
        rate = frame["global_selectivity"] / frame["global_cost"]
    static = np.where(frame.graph.height < 0, np.nan, rate)
    return form(len(frame), rank=-distance(frame.graph), static=static)


policy = Policy(
    name="min-latency",
    urgency=urgency,
    needs=frozenset({"global_selectivity", "global_cost"}),
    goal="mean latency, finishing what was begun",
    spacing=Spacing.LOGARITHMIC,
)
