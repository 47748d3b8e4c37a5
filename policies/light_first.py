"""Light first: rank = whether the query is light; inside each rank `within` orders.

`sched_ctl.metrics.backlog` says which queries are heavy, and why they lose nothing by going last.
Where none is everything stays as it is, or as `within` has it, which is nothing by default. Other
policies let heavy queries go last as well; this one does that alone.
"""

from dataclasses import replace

from sched_ctl.errors import UserError
from sched_ctl.metrics.backlog import HEAVY, SEEN_BY, last
from sched_ctl.model.policy import Level, Policy
from sched_ctl.plugins import registry

__all__ = ["policy"]


def policy(heavy: float = HEAVY, within: str = "constant") -> Policy:
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
    return replace(
        last(inner, heavy),
        name="light-first",
        needs=inner.needs | SEEN_BY,
        goal="latency of light queries beside heavy ones",
        options={"heavy": heavy, "within": within},
    )
