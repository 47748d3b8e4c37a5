"""`only_starved`: no boost for a thread that would not use it.

A thread that sleeps because a queue downstream is full, or on I/O, gains nothing from a better
place, and its large queue or age takes the best places from those that would. It gets the urgency
that the others have in the middle now. Operators that keep up stay where they are: they do not wait
because they are served at once, and that may be our doing.
"""

from dataclasses import replace

import numpy as np

from sched_ctl.metrics.verdicts import Verdict
from sched_ctl.model.graph import Array
from sched_ctl.model.policy import OperatorFrame, Policy, UrgencyForm

__all__ = ["only_starved"]

WASTED = (Verdict.BACKPRESSURED, Verdict.IO_BOUND, Verdict.MEMORY_BOUND)


def only_starved(policy: Policy) -> Policy:
    """The policy, with the median urgency for operators whose verdict is one of `WASTED`."""

    def urgency(frame: OperatorFrame) -> UrgencyForm:
        form = policy.urgency(frame)
        wasted = np.isin(frame["verdict"], [int(verdict) for verdict in WASTED])
        nothing = np.full(len(frame), np.nan)
        age, queue = (frame.columns.get(name, nothing) for name in ("head_age", "queue_size"))
        middle = _median(form.at(age, queue)[~wasted])
        if np.isnan(middle):  # there is nobody who would use a better place
            return form
        return UrgencyForm(
            np.where(wasted, _median(form.rank[~wasted]), form.rank),
            np.where(wasted, middle, form.static),
            np.where(wasted, 0.0, form.per_second),
            np.where(wasted, 0.0, form.per_tuple),
        )

    return replace(policy, urgency=urgency, needs=policy.needs | {"verdict"})


def _median(values: Array) -> float:
    """Of the known values, one that occurs; NaN without any."""
    known = np.sort(values[np.isfinite(values)])
    return float(known[(len(known) - 1) // 2]) if len(known) else float("nan")
