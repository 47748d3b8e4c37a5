"""BSD, balance slowdown: u = S_x / (C_x T_x) * W_x / T_x = Phi_x W_x, Phi_x = S_x / (C_x T_x^2).

Least l2 norm of slowdowns: the mean and the worst case together, so nobody starves (Sharaf et al.
2006, equation 6). The measured best for many queries where the order is decided at each dispatch;
evaluated once a period it is of little use, for ages change faster. On a DAG and for operators that
several queries share: see `hnr`; segments then weigh 1 / T^2.
"""

import numpy as np

from sched_ctl.errors import UserError, near_miss
from sched_ctl.policy import OperatorFrame, Policy, Spacing, UrgencyForm, form
from sched_ctl.sharing import RULES, shared_rate

__all__ = ["policy"]


def policy(sharing: str = "none") -> Policy:
    """sharing: "none", or how segments that share an operator add up: "max", "sum", "pdt"."""
    if sharing not in (*RULES, "none"):
        raise UserError(f"policy bsd: no sharing {sharing!r}{near_miss(sharing, RULES)}")

    def urgency(frame: OperatorFrame) -> UrgencyForm:
        with np.errstate(all="ignore"):
            weight = 1.0 / frame["ideal_time"] ** 2
            if sharing == "none":
                slope = frame["global_selectivity"] / frame["global_cost"] * weight
            else:
                slope = shared_rate(
                    frame.graph, frame["cost"], frame["selectivity"], weight, sharing
                )
        return form(len(frame), static=slope * 0.0, per_second=slope)

    return Policy(
        name="bsd",
        urgency=urgency,
        needs=frozenset({"head_age", "ideal_time"})
        | (
            frozenset({"global_selectivity", "global_cost"})
            if sharing == "none"
            else frozenset({"cost", "selectivity"})
        ),
        goal="mean and worst slowdown together (l2 norm)",
        spacing=Spacing.LOGARITHMIC,
    )
