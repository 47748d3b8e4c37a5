"""HNR, highest normalised rate: u = S_x / (C_x T_x).

Least mean slowdown (Sharaf et al. 2006, equation 3): like HR, but results of cheap queries count
more, for the wait hurts them more. On a DAG: S and C as in `hr`, T of the costliest path through x.
For operators that several queries share, `sharing` takes the priority of a set of segments instead
(section 7 there): "max", "sum" or "pdt", the priority-defining tree, see `sched_ctl.sharing`.
"""

import numpy as np

from sched_ctl.errors import UserError, near_miss
from sched_ctl.policy import OperatorFrame, Policy, Spacing, UrgencyForm, form
from sched_ctl.sharing import RULES, shared_rate

__all__ = ["policy"]


def policy(sharing: str = "none") -> Policy:
    """sharing: "none", or how segments that share an operator add up: "max", "sum", "pdt"."""
    if sharing not in (*RULES, "none"):
        raise UserError(f"policy hnr: no sharing {sharing!r}{near_miss(sharing, RULES)}")

    def urgency(frame: OperatorFrame) -> UrgencyForm:
        with np.errstate(all="ignore"):
            weight = 1.0 / frame["ideal_time"]
            if sharing == "none":
                static = frame["global_selectivity"] / frame["global_cost"] * weight
            else:
                static = shared_rate(
                    frame.graph, frame["cost"], frame["selectivity"], weight, sharing
                )
        return form(len(frame), static=static)

    return Policy(
        name="hnr",
        urgency=urgency,
        needs=frozenset({"global_selectivity", "global_cost", "ideal_time"})
        if sharing == "none"
        else frozenset({"cost", "selectivity", "ideal_time"}),
        goal="mean slowdown",
        spacing=Spacing.LOGARITHMIC,
    )
