"""LSF, longest stretch first: u = W_x / T_x.

Whose oldest waiting tuple has the largest slowdown so far comes first: least maximum slowdown
(Acharya and Muthukrishnan 1998; Sharaf et al. 2006, equation 5). T on a DAG: the costliest path
through x, at window joins of all inputs.
"""

import numpy as np

from sched_ctl.model.policy import OperatorFrame, Policy, UrgencyForm, form

__all__ = ["policy"]


def urgency(frame: OperatorFrame) -> UrgencyForm:
    with np.errstate(all="ignore"):
        slope = 1.0 / frame["ideal_time"]
        return form(len(frame), static=slope * 0.0, per_second=slope)


policy = Policy(
    name="lsf",
    urgency=urgency,
    needs=frozenset({"head_age", "ideal_time"}),
    goal="maximum slowdown",
)
