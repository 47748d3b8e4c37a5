"""`only_starved`: no boost for a thread that would not use it.

A thread that sleeps because a queue downstream is full, or on I/O, gains nothing from a place far
above all others, and its large queue or age takes the range of priorities from those that would:
under `qs` by nice, all others then have the least one. So it comes right above the most urgent of
the others. Nobody changes sides: to put such threads among others, or level with them, made all of
it worse, for whoever sleeps on I/O at nearly all it can do wants a CPU at once each time it wakes,
and uses little of it (docs/kernel-benchmarks.md). Operators that keep up stay where they are: they
do not wait because they are served at once, and that may be our doing.
"""

from dataclasses import replace

import numpy as np

from sched_ctl.metrics.verdicts import Verdict
from sched_ctl.model.policy import OperatorFrame, Policy, UrgencyForm

__all__ = ["only_starved"]

MARGIN = 0.01  # of the range of the others, that those above them have for themselves
WASTED = (Verdict.BACKPRESSURED, Verdict.IO_BOUND, Verdict.MEMORY_BOUND)


def only_starved(policy: Policy) -> Policy:
    """The policy, with operators whose verdict is one of `WASTED` close above others, if above."""

    def urgency(frame: OperatorFrame) -> UrgencyForm:
        form = policy.urgency(frame)
        wasted = np.isin(frame["verdict"], [int(verdict) for verdict in WASTED])
        nothing = np.full(len(frame), np.nan)
        age, queue = (frame.columns.get(name, nothing) for name in ("head_age", "queue_size"))
        value = form.at(age, queue)
        others = ~wasted & np.isfinite(form.rank) & np.isfinite(value)
        if not others.any():  # there is nobody who would use a better place
            return form
        rank = form.rank[others].max()
        top = value[others & (form.rank == rank)].max()
        above = wasted & ((form.rank > rank) | ((form.rank == rank) & (value > top)))
        # As they were among themselves.
        keys = np.stack((form.rank[above], value[above]))
        order = np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1)
        near = form.static.copy()
        margin = MARGIN * ((top - value[others].min()) or abs(top) or 1.0)
        near[above] = top + margin * (order + 1) / max(1, len(order))
        return UrgencyForm(
            np.where(above, rank, form.rank),
            near,
            np.where(above, 0.0, form.per_second),
            np.where(above, 0.0, form.per_tuple),
        )

    return replace(policy, urgency=urgency, needs=policy.needs | {"verdict"})
