"""SRPT, shortest remaining processing time: u = 1 / C_x.

Least mean response time where every tuple survives (s = 1); else HR is, of which this is the case
s = 1 (Sharaf et al. 2006, section 3.5). On a DAG C sums over the downstream branches, see `hr`.
"""

import numpy as np

from sched_ctl.metrics.backlog import last
from sched_ctl.model.policy import OperatorFrame, Policy, Spacing, UrgencyForm, form

__all__ = ["policy"]


def urgency(frame: OperatorFrame) -> UrgencyForm:
    with np.errstate(all="ignore"):
        return form(len(frame), static=1.0 / frame["global_cost"])


policy = last(
    Policy(
        name="srpt",
        urgency=urgency,
        needs=frozenset({"global_cost"}),
        goal="mean latency where no tuple is filtered out",
        spacing=Spacing.LOGARITHMIC,
    )
)
