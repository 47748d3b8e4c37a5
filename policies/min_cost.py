"""MIN-COST: rank = -(operators to the egress); inside a rank u = 1 / c.

Fewest operator calls, so least overhead per tuple (after Aurora, Carney et al. 2003). With a thread
an operator, downstream first lets queues fill upstream while results leave, so every turn processes
a whole batch; order="upstream" is Aurora's own traversal of one batch, which with steady arrivals
starves the results. Ties go to the cheaper operator. On a DAG the distance is that of the longest
way to an egress, so an operator comes before all that feed it, also across forks, joins and shared
operators. Operators on cycles and above them have no distance: they get the median of the others.
"""

import numpy as np

from sched_ctl.errors import UserError, near_miss
from sched_ctl.metrics.formulas import distance
from sched_ctl.model.policy import OperatorFrame, Policy, Spacing, UrgencyForm, form

__all__ = ["policy"]

ORDERS = {"downstream": -1.0, "upstream": 1.0}


def policy(order: str = "downstream") -> Policy:
    """order: which end of a query comes first: "downstream" or "upstream"."""
    if order not in ORDERS:
        raise UserError(f"policy min-cost: no order {order!r}{near_miss(order, ORDERS)}")

    def urgency(frame: OperatorFrame) -> UrgencyForm:
        with np.errstate(all="ignore"):
            static = np.where(frame.graph.height < 0, np.nan, 1.0 / frame["cost"])
        return form(len(frame), rank=ORDERS[order] * distance(frame.graph), static=static)

    return Policy(
        name="min-cost",
        urgency=urgency,
        needs=frozenset({"cost"}),
        goal="fewest operator calls: throughput",
        spacing=Spacing.LOGARITHMIC,
    )
