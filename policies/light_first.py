"""Light first: rank = whether the query is light; inside each rank `within` orders.

A query is heavy if one of its operators is saturated and it uses more of the CPU than the others
do: what it waits for is its own backlog, and its results come no sooner if those of a light query
wait as well. Light ones go first, as under least attained service in queueing theory, where who has
got least is served next: they use what they need and no more, so a heavy one still gets the rest.
Where no query is heavy everything stays as it is, or as `within` has it, which is nothing by
default. `hr` and `balanced` alone place the cheap operators of a heavy query above a light one's
source.
"""

from dataclasses import replace

import numpy as np

from sched_ctl.errors import UserError
from sched_ctl.model.policy import Level, OperatorFrame, Policy, UrgencyForm
from sched_ctl.plugins import registry

__all__ = ["policy"]


SATURATED = 0.95  # of the time an operator had work


def policy(heavy: float = 1.25, within: str = "constant") -> Policy:
    """heavy: multiples of the queries' mean CPU use; a saturated query that uses more is heavy.

    within: the policy inside each rank; its own ranks stay inside.
    """
    if not heavy > 1:
        raise UserError(f"policy light-first: heavy {heavy!r} must be above 1")
    if within == "light-first":
        raise UserError("policy light-first: within must be another policy")
    inner = registry.policy(within)
    if inner.level is not Level.PHYSICAL:
        raise UserError(f"policy light-first: {within} is not on physical operators")

    def urgency(frame: OperatorFrame) -> UrgencyForm:
        names = [operator.query for operator in frame.operators]
        queries, member = np.unique(np.array(names, dtype=object), return_inverse=True)
        used = np.bincount(member, np.nan_to_num(frame["cpu_use"]), minlength=len(queries))
        saturated = np.bincount(member, frame["utilisation"] >= SATURATED, minlength=len(queries))
        light = (used <= heavy * used.sum() / max(len(used), 1)) | (saturated == 0)
        inside = inner.urgency(frame)
        # Those of `within` go from 0 down, and not as far as 1.
        levels, place = np.unique(np.nan_to_num(inside.rank), return_inverse=True)
        rank = light[member] + (place.reshape(-1) - (len(levels) - 1)) / max(len(levels), 1)
        return replace(inside, rank=rank)

    return Policy(
        name="light-first",
        urgency=urgency,
        needs=inner.needs | {"cpu_use", "utilisation"},
        goal="latency of light queries beside heavy ones",
        spacing=inner.spacing,
        options={"heavy": heavy, "within": within},
    )
