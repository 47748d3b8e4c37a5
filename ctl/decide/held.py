"""What a sample is worth to who holds a decision until the next one.

Nice values and weights stay for a period, a second as a rule. An operator empties a queue of a few
tuples in a hundredth of that: such a queue tells which operator gets much, and hardly who needs the
CPU now. So while all queues are short, operators are told apart by the factors between their
queues, of one tuple and upwards, which few tuples change little. Where a queue stands for longer,
the longest one is what everybody waits for, and the lengths themselves count.

On a real Storm the first lost by a factor of 7 in overload, and the second let the operators take
turns below it; what divides them lies between 24 and 39 tuples of some 0.1 ms.
"""

import numpy as np

from sched_ctl.model.graph import Array
from sched_ctl.model.median import median
from sched_ctl.model.policy import UrgencyForm

__all__ = ["LONG_S", "SHORT_S", "steadily"]

LONG_S = 0.01  # a queue that takes so much CPU time stands, until it takes no more than
SHORT_S = 0.002
TUPLE_S = 1e-4  # cost of a tuple where it is unknown


def steadily(
    form: UrgencyForm, head_age_s: Array, queue_size: Array, cost_s: Array | None, stood: bool
) -> tuple[bool, float | None]:
    """Whether queues stand, and what one tuple is worth in urgency; None where nothing waits by it.

    All (n,) over operators, queues and ages as means over several samples. cost_s: NaN or None
    where unknown. stood: whether they did a period ago.
    """
    if not (form.per_second.any() or form.per_tuple.any()):
        return False, None
    known = np.array([]) if cost_s is None else cost_s[np.isfinite(cost_s) & (cost_s > 0)]
    usual_s = median(known) if len(known) else TUPLE_S
    cost = np.full(len(form), usual_s) if cost_s is None else np.where(cost_s > 0, cost_s, usual_s)
    waits = queue_size * cost
    if np.isnan(waits).all():
        waits = head_age_s
    longest_s = float(waits[np.isfinite(waits)].max(initial=0.0))
    standing = longest_s > (SHORT_S if stood else LONG_S)
    of_one = form.per_tuple + form.per_second * usual_s
    of_one = of_one[np.isfinite(of_one) & (of_one > 0)]
    return standing, median(of_one) if len(of_one) else None
