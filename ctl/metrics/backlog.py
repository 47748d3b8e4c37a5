"""Who waits for nothing but its own backlog, and a policy that lets all others go first.

A query is heavy if one of its operators is saturated and it uses more of the CPU than queries do on
average. What its tuples wait for is its own backlog, which no order makes shorter: it gets what
the others leave, whoever goes first, so its results come no sooner if those of a light query wait
as well. A rule such as HR's would have the light one wait, for the last operators of a heavy query
are cheap and many results leave them. Light ones first is what least attained service does, where
who has got least is served next (Nuyens and Wierman, "The Foreground-Background queue: a survey",
Performance Evaluation 65, 2008), in two steps: they use what they need and no more.

A saturated query that uses little may be a light one that was kept from the CPU, and then gets all
that it needs by going first. Or it was last in our own order, and wants everything: it would go
first until it has used most of the CPU, and then the other one would, for seconds each. So who was
heavy is so for a minute, as long as it is saturated. Where that is all of them, none goes last.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sched_ctl.errors import UserError
from sched_ctl.model.graph import Array, Index
from sched_ctl.model.policy import OperatorFrame, Policy, UrgencyForm

__all__ = ["BEFORE", "HEAVY", "SEEN_BY", "heavy", "last", "lately", "remembered", "seen"]

HEAVY = 1.25  # multiples of the queries' mean CPU use
SATURATED = 0.95  # of the time an operator had work
SEEN_BY = frozenset({"cpu_use", "utilisation"})
BEFORE = "heavy_before"  # column of a frame: 1 where the query was heavy lately
REMEMBERED_S = 60.0

Queries = Mapping[tuple[str, str], float]  # (engine, query) -> when it was heavy last, s


def heavy(frame: OperatorFrame, beyond: float = HEAVY) -> npt.NDArray[np.bool_]:
    """(n,) whether the operator's query is heavy. No query is of which the frame does not tell.

    beyond: multiples of the queries' mean CPU use.
    """
    saturated, much = _saturated_and_much(frame, beyond)
    before = frame.columns.get(BEFORE)
    return saturated & (much if before is None else much | (before > 0))


def lately(before: Queries, now_s: float) -> Queries:
    """Those of before, unless one of them was seen too long ago: who is forgotten alone would go
    before the others."""
    return before if all(now_s - s < REMEMBERED_S for s in before.values()) else {}


def remembered(frame: OperatorFrame, engines: Sequence[str], before: Queries) -> Array:
    """The column `BEFORE` of the frame. engines: names, by the frame's numbers."""
    if not before:
        return np.zeros(len(frame))
    _, names = _queries(frame, engines, np.arange(len(frame)))
    return np.array([float(name in before) for name in names])[frame.query]


def seen(
    frame: OperatorFrame, engines: Sequence[str], before: Queries, now_s: float, beyond: float
) -> Queries:
    """Who is to be remembered: those that are heavy by what they use now, and those of before."""
    saturated, much = _saturated_and_much(frame, beyond)
    if not saturated.any():
        return {}
    rows, names = _queries(frame, engines, np.flatnonzero(saturated))
    return {
        name: now_s if uses_much else before[name]
        for name, uses_much in zip(names, much[rows].tolist(), strict=True)
        if uses_much or name in before
    }


def _queries(
    frame: OperatorFrame, engines: Sequence[str], rows: Index
) -> tuple[Index, list[tuple[str, str]]]:
    """Of each query that these operators have, by number: a row, and engine and name."""
    first = rows[np.unique(frame.query[rows], return_index=True)[1]]
    at = np.zeros(len(first), dtype=int) if frame.engine is None else frame.engine[first]
    queries = [frame.operators[row].query for row in first.tolist()]
    return first, [(engines[i], query) for i, query in zip(at.tolist(), queries, strict=True)]


def _saturated_and_much(
    frame: OperatorFrame, beyond: float
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """(n,) each: whether an operator of its query is saturated, and whether that uses much."""
    unknown = np.full(len(frame), np.nan)
    use, busy = (frame.columns.get(name, unknown) for name in ("cpu_use", "utilisation"))
    saturated = busy >= SATURATED
    if not saturated.any():
        return saturated, saturated
    used = np.bincount(frame.query, np.nan_to_num(use))
    much = used > beyond * used.sum() / len(used)
    return (np.bincount(frame.query, saturated) > 0)[frame.query], much[frame.query]


def last(policy: Policy, beyond: float = HEAVY) -> Policy:
    """The policy, with heavy queries in a rank below all others; beyond = 0: as it is.

    Raises UserError for a bound that a query could be above on its own.
    """
    if beyond == 0:
        return policy
    if not beyond > 1:
        raise UserError(
            f"policy {policy.name}: heavy {beyond!r} must be above 1", "0 = no query is heavy"
        )

    def urgency(frame: OperatorFrame) -> UrgencyForm:
        inside = policy.urgency(frame)
        below = heavy(frame, beyond)
        if not below.any() or below.all():
            return inside
        # Ranks of the policy's own stay apart, inside those of light and heavy.
        both = np.stack([~below, np.nan_to_num(inside.rank)])
        _, rank = np.unique(both, axis=1, return_inverse=True)
        return replace(inside, rank=rank.reshape(-1).astype(np.float64))

    return replace(policy, urgency=urgency, wants=policy.wants | SEEN_BY)
