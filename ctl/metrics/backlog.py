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

Nor does CPU use tell a query that will always be saturated from one that catches up with a backlog
and would be done soon at its fair share. Who kept up until lately is taken for one that catches up,
for half a minute: to be last costs it what the floor allows, at each change of the order, and with
little to spare that is seconds. After that both are heavy, so to be last must not take their fair
share from them: who enforces an order that is not strict (`Policy.strict`) holds that floor
(bpf/floor.h) or lets those of the last rank share.
"""

import functools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sched_ctl.errors import UserError
from sched_ctl.model.graph import Array
from sched_ctl.model.policy import OperatorFrame, Policy, Query, UrgencyForm

__all__ = [
    "HEAVY",
    "KEEPS_UP",
    "LATELY",
    "MEMORY",
    "SATURATED",
    "SEEN_BY",
    "heavy",
    "keeps_up",
    "kept_up",
    "last",
    "seen",
]

HEAVY = 1.25  # multiples of the queries' mean CPU use
SATURATED = 0.95  # of the time an operator had work
SEEN_BY = frozenset({"cpu_use", "utilisation"})
MEMORY = "backlog.heavy"  # when queries were heavy last, CLOCK_MONOTONIC, s
REMEMBERED_S = 60.0
KEEPS_UP = "backlog.keeps_up"  # since when queries do, CLOCK_MONOTONIC, s
LATELY = "backlog.kept_up"  # when queries had done so for long, last
IN_TIME = 0.8  # of the time each operator has work, at most, where a query keeps up
LONG_S = 10.0  # a job that begins looks as if it kept up
CATCHES_UP_S = 30.0


def heavy(frame: OperatorFrame, beyond: float = HEAVY) -> npt.NDArray[np.bool_]:
    """(n,) whether the operator's query is heavy. No query is of which the frame does not tell.

    beyond: multiples of the queries' mean CPU use.
    """
    saturated, much = _saturated_and_much(frame, beyond)
    if not saturated.any():
        return saturated
    known = _among(frame, frame.memory.get(MEMORY, {}))
    return saturated & (much | known) & ~_among(frame, frame.memory.get(LATELY, {}))


def keeps_up(frame: OperatorFrame, now_s: float) -> Mapping[Query, float]:
    """Since when each query keeps up that does."""
    busy = frame.columns.get("utilisation")
    if busy is None or not len(frame):
        return {}
    most = np.full(len(frame.queries), -np.inf)
    np.maximum.at(most, frame.query, np.where(np.isnan(busy), np.inf, busy))
    before = frame.memory.get(KEEPS_UP, {})
    found = [frame.queries[row] for row in np.flatnonzero(most <= IN_TIME).tolist()]
    return {query: before.get(query, now_s) for query in found}


def kept_up(frame: OperatorFrame, now_s: float) -> Mapping[Query, float]:
    """Who kept up for long until lately, and when it did last."""
    before = frame.memory.get(LATELY, {})
    found = {query: at_s for query, at_s in before.items() if now_s - at_s < CATCHES_UP_S}
    since = keeps_up(frame, now_s).items()
    return {**found, **{query: now_s for query, since_s in since if now_s - since_s >= LONG_S}}


def _among(frame: OperatorFrame, queries: Mapping[Query, float]) -> npt.NDArray[np.bool_]:
    """(n,) whether the operator's query is one of these."""
    if not queries:
        return np.zeros(len(frame), dtype=np.bool_)
    found = np.array([query in queries for query in frame.queries], dtype=np.bool_)
    return np.asarray(found[frame.query])


def seen(frame: OperatorFrame, now_s: float, beyond: float = HEAVY) -> Mapping[Query, float]:
    """Who is to be remembered: those that are heavy by what they use now, and those of before.

    All are forgotten as soon as one of them was seen too long ago: who is forgotten alone would go
    before the others.
    """
    saturated, much = _saturated_and_much(frame, beyond)
    if not saturated.any():
        return {}
    before = frame.memory.get(MEMORY, {})
    if not all(now_s - at_s < REMEMBERED_S for at_s in before.values()):
        before = {}
    rows = np.flatnonzero(saturated & ~_among(frame, kept_up(frame, now_s)))
    first = rows[np.unique(frame.query[rows], return_index=True)[1]]
    found = zip((frame.queries[i] for i in frame.query[first]), much[first].tolist(), strict=True)
    return {
        query: now_s if uses_much else before[query]
        for query, uses_much in found
        if uses_much or query in before
    }


def _saturated_and_much(
    frame: OperatorFrame, beyond: float
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """(n,) each: whether an operator of its query is saturated, and whether that uses much."""
    unknown = np.full(len(frame), np.nan)
    use, busy = (frame.columns.get(name, unknown) for name in ("cpu_use", "utilisation"))
    saturated = busy >= SATURATED
    if not saturated.any():
        return saturated, saturated
    used = _used(frame, use)
    known = used[np.isfinite(used)]
    much = used > (beyond * known.mean() if len(known) > 1 else np.inf)
    return (np.bincount(frame.query, saturated) > 0)[frame.query], much[frame.query]


def _used(frame: OperatorFrame, use: Array) -> Array:
    """(q,) CPUs that each query uses; NaN where that is not known, as of one that has just come:
    threads of one of its operators were not read yet. What has none here, for it is on another
    node, uses none.
    """
    told = np.isfinite(use)
    here = np.array([bool(getattr(o, "threads", ())) for o in frame.operators], dtype=np.bool_)
    used = np.bincount(frame.query, np.where(told, use, 0.0))
    some, lacks = (np.bincount(frame.query, rows) > 0 for rows in (told, here & ~told))
    return np.where(some & ~lacks, used, np.nan)


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

    remember = functools.partial(seen, beyond=beyond)
    return replace(
        policy,
        urgency=urgency,
        wants=policy.wants | SEEN_BY,
        remembers={**policy.remembers, MEMORY: remember, KEEPS_UP: keeps_up, LATELY: kept_up},
    )
