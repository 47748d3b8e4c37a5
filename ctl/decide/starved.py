"""`only_starved`: the place of a thread that cannot use it goes to the one that holds it back.

A thread that sleeps because a queue downstream is full gains nothing from a place above the
operator that is slow to empty that queue. Under `qs` it has one, as all that waits for both piles
up before it. So the two change places. Nobody else's does, nor does the range of priorities.

Only with one that sleeps on I/O or for memory: whoever sleeps so for nearly all of its time wants a
CPU at once each time it wakes, uses little of it, and does less for each moment that it waits. One
that is held by its need for the CPU would take from all others what its place is worth
(docs/kernel-benchmarks.md).
"""

from dataclasses import replace

import numpy as np

from sched_ctl.metrics.verdicts import Verdict, rows_by
from sched_ctl.model.graph import Array, Graph, Index
from sched_ctl.model.policy import OperatorFrame, Policy, UrgencyForm

__all__ = ["only_starved"]

SLEEPERS = (Verdict.IO_BOUND, Verdict.MEMORY_BOUND)


def only_starved(policy: Policy) -> Policy:
    """The policy, with backpressured operators and those that hold them having changed places.

    Of several that are held by the same one, above it, the most urgent one's place is handed on,
    and all take the place that it had.
    """

    def urgency(frame: OperatorFrame) -> UrgencyForm:
        form = policy.urgency(frame)
        if not (frame["verdict"] == Verdict.BACKPRESSURED).any():
            return form
        nothing = np.full(len(frame), np.nan)
        age, queue = (frame.columns.get(name, nothing) for name in ("head_age", "queue_size"))
        value = form.at(age, queue)
        place = list(zip(form.rank.tolist(), value.tolist(), strict=True))
        known = np.isfinite(form.rank) & np.isfinite(value)
        holder = _holders(frame.graph, frame["verdict"], np.lexsort((value, form.rank)))
        taken = dict[int, tuple[float, float]]()  # the places that change
        for row in np.flatnonzero(holder >= 0).tolist():
            by = int(holder[row])
            if known[row] and known[by] and place[row] > place[by]:
                taken[row] = place[by]
                taken[by] = max(taken.get(by, place[by]), place[row])
        if not taken:
            return form
        rank, static, per_second, per_tuple = (
            column.astype(np.float64)
            for column in (form.rank, form.static, form.per_second, form.per_tuple)
        )
        rows = np.array(list(taken), dtype=np.intp)
        rank[rows], static[rows] = np.array(list(taken.values())).T
        per_second[rows] = per_tuple[rows] = 0.0
        return UrgencyForm(rank, static, per_second, per_tuple)

    return replace(policy, urgency=urgency, needs=policy.needs | {"verdict"})


def _holders(graph: Graph, verdict: Array, order: Index) -> Index:
    """(n,) for each backpressured operator the one that holds it, downstream; -1 for others.

    order: (n,) rows, the least urgent first, unknown ones last.

    Of those that it feeds, and that those feed which are backpressured, the least urgent one that
    sleeps with work in hand.
    """
    holder = np.full(graph.n, -1, dtype=np.intp)
    own = np.isin(verdict, [int(code) for code in SLEEPERS])
    standing = np.argsort(order)
    below = dict(rows_by(graph.source, graph.n))
    held = np.flatnonzero(verdict == Verdict.BACKPRESSURED)
    for row in held[np.argsort(graph.height[held], kind="stable")].tolist():
        fed = graph.target[below[row]].tolist() if row in below else []
        found = {t if own[t] else int(holder[t]) for t in fed} - {-1}
        holder[row] = min(found, key=lambda one: standing[one], default=-1)
    return holder
