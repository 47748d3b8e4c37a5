"""What is not known is put in the middle: neither favoured nor punished.

Every backend, and the simulator, asks here, so that an operator of which the policy knows nothing
has the same place under all of them. What "the middle" is, exactly:

* An operator is unknown if any part of its form (static, per_second, per_tuple) is NaN or infinite,
  as what is divided by a cost of 0. It gets, as a whole, the median of each part over the known
  operators of its rank, and keeps its own age and queue: under a policy of ages it gains by waiting
  as the middle one does, so it cannot starve.
* A rank that is not finite becomes the median of the ranks. That may be between two ranks, where
  nothing else is.
* Where no operator of the rank is known, all are alike: each part is 0, and the oldest is first.
* A head age or queue size that is NaN is the median of those that are known in its rank, 0 if
  none is; it matters only where its weight is not 0.

The median, since unlike the mean or the middle of the range it is between the same two operators
whether priorities are spaced linearly or by factors.
"""

from dataclasses import dataclass

import numpy as np

from sched_ctl.model.graph import Array
from sched_ctl.model.median import median
from sched_ctl.model.policy import UrgencyForm

__all__ = ["Known", "known", "known_form"]


@dataclass(frozen=True, eq=False)
class Known:
    """A form with the head ages (s) and queue sizes to evaluate it at, all finite, (n,) each."""

    form: UrgencyForm
    head_age_s: Array
    queue_size: Array

    def urgency(self) -> Array:
        """(n,) now, inside each rank."""
        return self.form.at(self.head_age_s, self.queue_size)


def known(form: UrgencyForm, head_age_s: Array, queue_size: Array) -> Known:
    """All of it with the middle in place of what is unknown."""
    settled = known_form(form)
    return Known(settled, _filled(head_age_s, settled.rank), _filled(queue_size, settled.rank))


def known_form(form: UrgencyForm) -> UrgencyForm:
    """The form with the middle in place of what is unknown, and no infinities."""
    parts = (form.static, form.per_second, form.per_tuple)
    if np.isfinite((form.rank, *parts)).all():
        return form
    ranks = np.where(np.isfinite(form.rank), form.rank, np.nan)
    rank = _filled(ranks, np.zeros(len(form)))
    sure = np.isfinite(parts).all(axis=0)
    return UrgencyForm(rank, *(_filled(np.where(sure, part, np.nan), rank) for part in parts))


def _filled(values: Array, rank: Array) -> Array:
    """NaN as the median of the others of the same rank; 0 where there are none."""
    unknown = np.isnan(values)
    if not unknown.any():
        return values
    filled = np.where(unknown, 0.0, values)
    for value in set(rank[unknown].tolist()):
        inside = rank == value
        if (others := inside & ~unknown).any():
            filled[inside & unknown] = median(values[others])
    return filled
