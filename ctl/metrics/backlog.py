"""Who waits for nothing but its own backlog, and a policy that lets all others go first.

A query is heavy if one of its operators is saturated and it uses more of the CPU than queries do on
average. What its tuples wait for is its own backlog, which no order makes shorter: it gets what
the others leave, whoever goes first, so its results come no sooner if those of a light query wait
as well. A rule such as HR's would have the light one wait, for the last operators of a heavy query
are cheap and many results leave them. Light ones first is what least attained service does, where
who has got least is served next (Nuyens and Wierman, "The Foreground-Background queue: a survey",
Performance Evaluation 65, 2008), in two steps: they use what they need and no more.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sched_ctl.errors import UserError
from sched_ctl.model.policy import OperatorFrame, Policy, UrgencyForm

__all__ = ["HEAVY", "SEEN_BY", "heavy", "last"]

HEAVY = 1.25  # multiples of the queries' mean CPU use
SATURATED = 0.95  # of the time an operator had work
SEEN_BY = frozenset({"cpu_use", "utilisation"})


def heavy(frame: OperatorFrame, beyond: float = HEAVY) -> npt.NDArray[np.bool_]:
    """(n,) whether the operator's query is heavy. No query is of which the frame does not tell.

    beyond: multiples of the queries' mean CPU use.
    """
    unknown = np.full(len(frame), np.nan)
    use, busy = (frame.columns.get(name, unknown) for name in ("cpu_use", "utilisation"))
    saturated = busy >= SATURATED
    if not saturated.any():
        return saturated
    used = np.bincount(frame.query, np.nan_to_num(use))
    found: npt.NDArray[np.bool_] = used > beyond * used.sum() / len(used)
    found &= np.bincount(frame.query, saturated) > 0
    return found[frame.query]


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
