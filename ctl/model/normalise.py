"""From priorities, which are any real numbers, to what an OS mechanism takes (Lachesis, section 4).

A *position* says where in a range something belongs: 0 the least urgent place, 1 the most urgent.
Two things are not in order and are told apart:

* *unknown* among others that are known: in the middle of them, see `model.unknown`; of a bare NaN
  among numbers the position is 0.5;
* *nothing to say*, because all are equal or unknown: position NaN, and whoever turns positions
  into nice values or weights uses the mechanism's own default, as if we were not there.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from sched_ctl.model.graph import Array
from sched_ctl.model.policy import Spacing, UrgencyForm
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.unknown import known

__all__ = [
    "NICE_STEP",
    "linear",
    "logarithmic",
    "nice_levels",
    "nice_values",
    "positions",
    "scaled_shares",
    "weights",
]

NICE_STEP = 1.25  # CPU weight of a nice level over that of the next, sched_prio_to_weight (kernel)
GAP = 0.5  # between two ranks, of the width of a rank: 4 nice levels in 0..19 for two ranks
# For `Spacing.RANKED`:
CLOSE = 0.25  # width of a rank: of two ranks 5 nice levels in 0..19 each, and 9 between them
LEAST_SLACK_S = 1e-3  # what has less, or is late, is as urgent


def linear(values: Array) -> Array:
    """(n,) positions by min-max normalisation. Infinite values take the ends."""
    known = np.isfinite(values)
    if len(values) and known.all():
        return _spread(values)
    low = values[known].min(initial=np.inf)
    high = values[known].max(initial=-np.inf)
    if high > low:
        # Scaled first: the difference of two huge values would overflow
        size = max(abs(low), abs(high))
        place = (values / size - low / size) / (high / size - low / size)
    else:
        place = np.where(known, 0.5, values)
    place = np.clip(place, 0.0, 1.0)  # infinite ones too
    unknown = np.isnan(place)
    sure = place[~unknown]
    if not len(sure) or sure.min() == sure.max():
        return np.full(len(values), np.nan)
    return np.where(unknown, 0.5, place)


def _spread(values: Array) -> Array:
    """`linear` of finite values."""
    low, high = values.min(), values.max()
    size = max(abs(low), abs(high))
    if low < high:
        place = np.clip((values / size - low / size) / (high / size - low / size), 0.0, 1.0)
        if place.min() < place.max():
            return np.asarray(place, dtype=np.float64)
    return np.full(len(values), np.nan)


def logarithmic(values: Array) -> Array:
    """(n,) positions by min-max normalisation of the logarithms.

    Zero and negative values have none: they come one nice step below the smallest positive value,
    all together. If no value is positive, normalisation is linear.
    """
    logs = _logs(values)
    return linear(values if logs is None else logs)


def positions(form: UrgencyForm, head_age_s: Array, queue_size: Array, spacing: Spacing) -> Array:
    """(n,) positions of urgency forms, at the given head ages and queue sizes.

    Ranks (lexicographic comparison) become bands one above the other, with a gap between: whatever
    has the larger rank has the larger position. A rank in which nothing differs has no width.
    """
    sure = known(form, head_age_s, queue_size)
    form, urgency = sure.form, sure.urgency()
    spread = logarithmic if spacing is Spacing.LOGARITHMIC else linear
    ranks = _ranks(form)
    if spacing is Spacing.RANKED:
        return _by_slack(urgency) if len(ranks) <= 1 else _bands(form, urgency, _by_slack, ranks)
    return spread(urgency) if len(ranks) <= 1 else _bands(form, urgency, spread, ranks)


def _ranks(form: UrgencyForm) -> list[float]:
    """The ranks that occur, lowest first. (np.unique would load all of numpy.ma.)"""
    if len(form) and (form.rank == form.rank[0]).all():
        return [float(form.rank[0])]
    return sorted(set(form.rank[~np.isnan(form.rank)].tolist()))


def _by_slack(urgency: Array) -> Array:
    """`linear` of urgencies; of those that are slack (s, below 0) of its logarithm.

    So who is very late leaves no less room for the others, and 10 ms are as far from 100 ms as
    these from a second.
    """
    if not (urgency < 0).any():
        return linear(urgency)
    return linear(-np.log(np.maximum(-urgency, LEAST_SLACK_S)))


def _bands(
    form: UrgencyForm, urgency: Array, spread: Callable[[Array], Array], ranks: Sequence[float]
) -> Array:
    inside = [spread(urgency[form.rank == rank]) for rank in ranks]
    most = CLOSE if spread is _by_slack else 1.0
    widths = [0.0 if np.isnan(place).all() else most for place in inside]
    total = sum(widths) + GAP * (len(ranks) - 1)
    result = np.full(len(form), 0.5)
    start = 0.0
    for rank, place, width in zip(ranks, inside, widths, strict=True):
        result[form.rank == rank] = (start + width * np.where(np.isnan(place), 0.0, place)) / total
        start += width + GAP
    return np.asarray(np.clip(result, 0.0, 1.0), dtype=np.float64)


def nice_values(schedule: Schedule, best: int = 0, worst: int = 19) -> npt.NDArray[np.intp]:
    """(m,) nice values in best..worst for the threads of a schedule: `nice_levels`, rounded."""
    return np.rint(nice_levels(schedule, best, worst)).astype(np.intp)


def nice_levels(schedule: Schedule, best: int = 0, worst: int = 19) -> Array:
    """(m,) nice values before they are rounded, in best..worst.

    Logarithmic priorities without ranks take the exact form if it fits: CPU time in proportion to
    priority, n(x) = best + (log p_max - log p(x)) / log 1.25 (Lachesis, section 4). What does not
    fit, and all else, is squeezed into the range by min-max. Nothing to say: nice 0, or what is
    nearest to it in the range.
    """
    if best > worst:
        raise ValueError(f"nice range {best}..{worst} is empty")
    sure = known(schedule.form, schedule.head_age_s, schedule.queue_size)
    form, urgency, span = sure.form, sure.urgency(), float(worst - best)
    logs = _logs(urgency) if schedule.spacing is Spacing.LOGARITHMIC else None
    if logs is None or len(_ranks(form)) > 1:
        place = positions(form, sure.head_age_s, sure.queue_size, schedule.spacing)
    else:
        place = linear(logs)
        if not np.isinf(logs).any():
            sizes = logs[~np.isnan(logs)]
            span = min(span, (sizes.max() - sizes.min()) / math.log(NICE_STEP))
    neutral = min(max(0, best), worst)
    return np.where(np.isnan(place), neutral, best + (1.0 - place) * span)


def weights(place: Array, low: int, high: int, default: int) -> npt.NDArray[np.intp]:
    """(n,) CPU weights for positions, geometric from low to high; `default` for nothing to say."""
    if not 0 < low <= default <= high:
        raise ValueError(f"no weights {low}..{high} around {default}")
    spread = low * (high / low) ** np.where(np.isnan(place), 0.0, place)
    return np.rint(np.where(np.isnan(place), default, spread)).astype(np.intp)


def scaled_shares(
    shares: Mapping[str, float], low: int = 2, high: int = 262144, default: int = 1024
) -> dict[str, int]:
    """CPU shares of groups as weights whose ratios are those of the shares.

    low, high, default: of cpu.shares (cgroup v1); 1, 10000, 100 for cpu.weight (v2). The geometric
    mean of the groups is put at `default`, so that groups of others count as an average one of
    ours, and moved only as far as it takes to fit; ratios wider than the range are squeezed by
    min-max of the logarithms.
    """
    names = list(shares)
    values = np.array([shares[name] for name in names], dtype=np.float64)
    if not len(values):
        return {}
    if not (np.isfinite(values) & (values > 0)).all():
        raise ValueError(f"shares must be finite and positive, not {dict(shares)}")
    logs = np.log(values) - np.log(values).mean() + np.log(default)
    room = np.log(high) - np.log(low)
    if logs.max() - logs.min() > room:
        logs = np.log(low) + room * linear(logs)
    else:
        logs = logs + max(0.0, np.log(low) - logs.min()) - max(0.0, logs.max() - np.log(high))
    scaled = np.clip(np.rint(np.exp(logs)), low, high).astype(np.intp)
    return dict(zip(names, scaled.tolist(), strict=True))


def _logs(values: Array) -> Array | None:
    """Logarithms, see `logarithmic`; None if no value is finite and positive."""
    fit = np.isfinite(values) & (values > 0)
    if fit.all():
        return np.log(values) if len(values) else None
    positive = values[fit]
    if not len(positive):
        return None
    floor = np.log(positive.min()) - np.log(NICE_STEP)
    with np.errstate(all="ignore"):
        logs = np.where(values > 0, np.log(values), np.where(values <= 0, floor, np.nan))
    return np.asarray(logs, dtype=np.float64)
