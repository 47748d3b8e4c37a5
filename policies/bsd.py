"""BSD, balance slowdown: u = S_x / (C_x T_x) * W_x / T_x = Phi_x W_x, Phi_x = S_x / (C_x T_x^2).

Least l2 norm of slowdowns: the mean and the worst case together, so nobody starves (Sharaf et al.
2006, equation 6). The measured best for many queries where the order is decided at each dispatch;
evaluated once a period it is of little use, for ages change faster. On a DAG and for operators that
several segments share: see `hnr`; each segment weighs 1 / T^2.
"""

import numpy as np

from sched_ctl.metrics import sharing as segments
from sched_ctl.metrics.backlog import HEAVY, last
from sched_ctl.model.policy import OperatorFrame, Policy, Spacing, UrgencyForm, form

__all__ = ["policy"]


def policy(sharing: str = "pdt", heavy: float = HEAVY) -> Policy:
    """sharing: how segments that share an operator add up: "pdt", "max", "sum" or "none".

    heavy: saturated queries go last that use more than so many times the queries' mean CPU use; 0 =
    they go by their results like all others, see `metrics.backlog`.
    """
    segments.check("bsd", sharing)

    def urgency(frame: OperatorFrame) -> UrgencyForm:
        with np.errstate(all="ignore"):  # what costs nothing divides by zero
            slope = segments.rate(frame, 1.0 / frame["ideal_time"] ** 2, sharing)
            return form(len(frame), static=slope * 0.0, per_second=slope)

    made = Policy(
        name="bsd",
        urgency=urgency,
        needs=segments.NEEDS | {"head_age", "ideal_time"},
        goal="mean and worst slowdown together (l2 norm)",
        spacing=Spacing.LOGARITHMIC,
    )
    return last(made, heavy)
