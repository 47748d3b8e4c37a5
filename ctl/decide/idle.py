"""No boost for a thread that has nothing to do and uses its CPU all the same.

Where idle threads sleep, the place of an operator without input does not matter: it is not ready,
and no order among ready operators knows it. An executor of Storm looks for input a thousand times
before it sleeps. Favoured by a policy that knows no queues, such as `hr`, it takes the CPU from
those that have work: a strict order by nice doubled Storm's mean latency, and cost 2% of its
throughput (docs/benchmarks.md).
"""

import numpy as np
import numpy.typing as npt

from sched_ctl.model.graph import Array
from sched_ctl.model.policy import Policy, UrgencyForm

__all__ = ["without_input_last"]


def without_input_last(
    policy: Policy, form: UrgencyForm, queue_size: Array, spins: npt.NDArray[np.bool_]
) -> UrgencyForm:
    """The form, with operators of nothing to do below all others, in a rank of their own.

    queue_size: (n,) tuples, NaN = unknown: then it stays where it is. spins: (n,) whether the
    operator's thread uses a CPU while it waits for input. Policies on queues or ages say it
    themselves: theirs are left as they are. So is one that favours nobody: a single query under
    the default stays as the system has it.
    """
    idle = spins & (queue_size < 1)
    if not _orders(form):
        return form
    if policy.needs & {"queue_size", "head_age"} or not idle.any() or idle.all():
        return form
    lowest = float(np.nan_to_num(form.rank).min()) - 1
    return UrgencyForm(
        np.where(idle, lowest, form.rank),
        np.where(idle, 0.0, form.static),
        np.where(idle, 0.0, form.per_second),
        np.where(idle, 0.0, form.per_tuple),
    )


def _orders(form: UrgencyForm) -> bool:
    """Whether it tells any two operators apart."""
    table = np.array([form.rank, form.static, form.per_second, form.per_tuple])
    return bool(len(form)) and not bool(
        ((table == table[:, :1]) | (np.isnan(table) & np.isnan(table[:, :1]))).all()
    )
