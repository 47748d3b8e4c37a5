"""Light first: rank = whether the query is light. Among light ones, and among heavy ones: no order.

A query that uses more of the CPU than the others do is heavy: what it waits for is its own backlog,
and its results come no sooner if those of a light query wait as well. Light ones go first, as under
least attained service in queueing theory, where who has got least is served next: they use what
they need and no more, so a heavy one still gets the rest. Where all use about as much, everything
stays as it is. For backends that write a schedule now and then and cannot follow ages: under them
`hr` places the cheap operators of a heavy query above a light one's source.
"""

import numpy as np

from sched_ctl.errors import UserError
from sched_ctl.model.policy import OperatorFrame, Policy, UrgencyForm, form

__all__ = ["policy"]


def policy(heavy: float = 1.25) -> Policy:
    """heavy: multiples of the queries' mean CPU use; a query that uses more is heavy."""
    if not heavy > 1:
        raise UserError(f"policy light-first: heavy {heavy!r} must be above 1")

    def urgency(frame: OperatorFrame) -> UrgencyForm:
        names = [operator.query for operator in frame.operators]
        queries, member = np.unique(np.array(names, dtype=object), return_inverse=True)
        used = np.bincount(member, np.nan_to_num(frame["cpu_use"]), minlength=len(queries))
        light = used <= heavy * used.sum() / max(len(used), 1)
        return form(len(frame), rank=light[member].astype(float))

    return Policy(
        name="light-first",
        urgency=urgency,
        needs=frozenset({"cpu_use"}),
        goal="latency of light queries beside heavy ones",
        options={"heavy": heavy},
    )
