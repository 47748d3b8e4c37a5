"""HNR, highest normalised rate: u = S_x / (C_x T_x).

Least mean slowdown (Sharaf et al. 2006, equation 3): like HR, but results of cheap queries count
more, for the wait hurts them more. On a DAG: S and C as in `hr`, T of the costliest path through x.
An operator that several segments share, for it has several branches or serves several queries, has
the priority of a set of them (section 7 there): by default the priority-defining tree, see
`sched_ctl.metrics.sharing`. With `sharing` "none" the formula above holds for all operators.
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
    segments.check("hnr", sharing)

    def urgency(frame: OperatorFrame) -> UrgencyForm:
        with np.errstate(all="ignore"):
            weight = 1.0 / frame["ideal_time"]
        return form(len(frame), static=segments.rate(frame, weight, sharing))

    made = Policy(
        name="hnr",
        urgency=urgency,
        needs=segments.NEEDS | {"ideal_time"},
        goal="mean slowdown",
        spacing=Spacing.LOGARITHMIC,
    )
    return last(made, heavy)
