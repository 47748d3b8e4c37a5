"""From priorities, which are any real numbers, to what an OS mechanism takes (Lachesis, section 4).

A *position* says where in a range something belongs: 0 the least urgent place, 1 the most urgent.
Two things are not in order and are told apart:

* *unknown* among others that are known: in the middle of them, see `model.unknown`; of a bare NaN
  among numbers the position is 0.5;
* *nothing to say*, because all are equal or unknown: position NaN, and whoever turns positions
  into nice values or weights uses the mechanism's own default, as if we were not there. So it is
  for a source at which nothing waits, under a policy of queues or ages: it has none, and last it
  would starve.
"""

import functools
import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from sched_ctl.model.graph import Array, Index
from sched_ctl.model.options import SPAN
from sched_ctl.model.policy import Spacing, UrgencyForm
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.unknown import known

__all__ = [
    "NICE_STEP",
    "linear",
    "logarithmic",
    "nice_levels",
    "nice_values",
    "places",
    "positions",
    "scaled_shares",
    "weights",
    "with_weight_kept",
]

NICE_STEP = 1.25  # CPU weight of a nice level over that of the next, sched_prio_to_weight (kernel)
BEST, WORST = -20, 19  # nice values that there are
LEAST_DEMAND = 0.01  # of a CPU: who hardly ran may begin to

GAP = 0.5  # between two ranks, of the width of a rank: 4 nice levels in 0..19 for two ranks
BY_FACTORS = (Spacing.LOGARITHMIC, Spacing.RANKED_LOGARITHMIC)
CLOSELY = (Spacing.RANKED, Spacing.RANKED_LOGARITHMIC)
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


def from_one_up(values: Array, grain: float, span: float) -> Array:
    """(n,) positions by the factors between values, each counted from `grain` upwards.

    1 for the largest, and 0 for what is `span` nice levels or more below it, so few tuples among
    none make a small difference (Lachesis' rule for queues, its section 4).
    """
    if not grain > 0 or not np.isfinite(values).all():
        return linear(values)
    logs = np.log1p(np.maximum(values, 0.0) / grain) / math.log(NICE_STEP)
    if not len(logs) or logs.min() == logs.max():
        return np.full(len(values), np.nan)
    return np.asarray(np.maximum(0.0, 1.0 - (logs.max() - logs) / max(1.0, span)))


def places(schedule: Schedule, span: float = SPAN) -> Array:
    """(m,) positions of a schedule's threads, for who holds them until the next schedule.

    span: nice levels between the positions 0 and 1, see `from_one_up`. Helper threads above all
    operators are one level above, whether they have work or not.
    """
    top = _above(schedule)
    place = np.full(len(schedule.form), np.nan)
    rows = np.flatnonzero(~(top | _empty_sources(schedule)))
    grain = None if schedule.standing else schedule.grain
    place[rows] = positions(
        schedule.form.take(rows),
        schedule.head_age_s[rows],
        schedule.queue_size[rows],
        schedule.spacing,
        grain,
        span,
    )
    if top.any() and not np.isnan(place).all():
        place *= 1.0 - 1.0 / max(2.0, span)
        place[top] = 1.0
    return place


def _above(schedule: Schedule) -> npt.NDArray[np.bool_]:
    """(m,) whether each is a helper thread of a rank above that of every operator."""
    none = np.zeros(len(schedule.form), dtype=np.bool_)
    helps = schedule.depth == 0
    if len(helps) != len(none) or helps.all() or not helps.any():
        return none
    above = schedule.form.rank > np.fmax.reduce(schedule.form.rank[~helps])  # NaN: unknown
    return np.asarray(helps & above, dtype=np.bool_)


def _empty_sources(schedule: Schedule) -> npt.NDArray[np.bool_]:
    """(m,) whether each is an ingress at which nothing waits, where waiting is what counts."""
    form, depth = schedule.form, schedule.depth
    sampled = (form.per_second != 0) | (form.per_tuple != 0)
    if len(depth) != len(sampled) or not sampled.any() or not (depth > 1).any():
        return np.zeros(len(sampled), dtype=np.bool_)
    urgency = form.at(schedule.head_age_s, schedule.queue_size)
    empty: npt.NDArray[np.bool_] = (depth == 1) & sampled & (form.static == 0) & ~(urgency > 0)
    return empty


def positions(
    form: UrgencyForm,
    head_age_s: Array,
    queue_size: Array,
    spacing: Spacing,
    grain: float | None = None,
    span: float = SPAN,
) -> Array:
    """(n,) positions of urgency forms, at the given head ages and queue sizes.

    Ranks (lexicographic comparison) become bands one above the other, with a gap between: whatever
    has the larger rank has the larger position. A rank in which nothing differs has no width.
    grain, span: see `from_one_up`, by which linear priorities go where it is given.
    """
    sure = known(form, head_age_s, queue_size)
    form, urgency = sure.form, sure.urgency()
    spread = logarithmic if spacing in BY_FACTORS else linear
    if grain is not None and spacing is Spacing.LINEAR:
        spread = functools.partial(from_one_up, grain=grain, span=span)
    slack = (form.static < 0) & (form.per_second == 1) & (spacing in CLOSELY)

    def inside(rows: npt.NDArray[np.bool_] | slice) -> Array:
        return (_by_slack if slack[rows].any() else spread)(urgency[rows])

    ranks = _ranks(form)
    if len(ranks) <= 1:
        return inside(slice(None))
    bands = {rank: inside(form.rank == rank) for rank in ranks}
    return _bands(form, bands, CLOSE if spacing in CLOSELY else 1.0)


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


def _bands(form: UrgencyForm, inside: Mapping[float, Array], most: float) -> Array:
    """(n,) positions. inside: by rank, lowest first, those in it. most: width of a rank."""
    widths = [0.0 if np.isnan(place).all() else most for place in inside.values()]
    total = sum(widths) + GAP * (len(inside) - 1)
    result = np.full(len(form), 0.5)
    start = 0.0
    for (rank, place), width in zip(inside.items(), widths, strict=True):
        result[form.rank == rank] = (start + width * np.where(np.isnan(place), 0.0, place)) / total
        start += width + GAP
    return np.asarray(np.clip(result, 0.0, 1.0), dtype=np.float64)


def nice_values(schedule: Schedule, best: int = 0, worst: int = 19) -> npt.NDArray[np.intp]:
    """(m,) nice values in best..worst for the threads of a schedule: `nice_levels`, rounded."""
    return np.rint(nice_levels(schedule, best, worst)).astype(np.intp)


def nice_levels(
    schedule: Schedule, best: int = 0, worst: int = 19, neutral: float | None = None
) -> Array:
    """(m,) nice values before they are rounded, in best..worst.

    Logarithmic priorities without ranks take the exact form if it fits: CPU time in proportion to
    priority, n(x) = best + (log p_max - log p(x)) / log 1.25 (Lachesis, section 4). What does not
    fit, and all else, is squeezed into the range by min-max. Nothing to say: `neutral`, which
    is nice 0, or what is nearest to it in the range.
    """
    if best > worst:
        raise ValueError(f"nice range {best}..{worst} is empty")
    span = float(worst - best)
    place = places(schedule, span)
    if schedule.spacing is Spacing.LOGARITHMIC:
        span = _fitting(schedule, span)
    neutral = min(max(0, best), worst) if neutral is None else neutral
    return np.where(np.isnan(place), neutral, best + (1.0 - place) * span)


def with_weight_kept(
    below: Array, own: Array | Index, demand: Array, best: int = BEST, worst: int = WORST
) -> Array:
    """(m,) nice values, not rounded, whose weights add up to what they were without us.

    below: (m,) levels below the most urgent; NaN: a thread that keeps its own nice value. own: (m,)
    these, from which none is moved further than best or worst. demand: (m,) the share of time in
    which each wants a CPU: only who does takes anything from others. So helper threads of an
    engine, and the programs beside it, have what they had, whoever of its operators is favoured.
    Rounding is chosen for the sum, too.
    """
    said = ~np.isnan(below)
    mine = np.asarray(own, dtype=np.float64)
    if not said.any():
        return mine.copy()
    want = np.maximum(demand[said], LEAST_DEMAND)
    before = float((want * NICE_STEP ** -mine[said]).sum())
    place = mine[said] + below[said]
    low, high = np.clip(mine[said] + best, BEST, WORST), np.clip(mine[said] + worst, BEST, WORST)

    def total(levels: Array) -> float:
        return float((want * NICE_STEP ** -np.clip(levels, low, high)).sum())

    shift = 0.0
    for _ in range(4):  # more than once only where something is beyond the range
        shift += math.log(total(place + shift) / before) / math.log(NICE_STEP)

    def off(by: float) -> float:
        return round(abs(math.log(total(np.rint(place + by)) / before)), 9)

    parts: list[float] = sorted(np.linspace(-0.5, 0.5, 21).tolist(), key=abs)
    nearest = min((shift + part for part in parts), key=off)
    levels = mine.copy()
    levels[said] = np.clip(place + nearest, low, high)
    return levels


def _fitting(schedule: Schedule, span: float) -> float:
    """The span, or the lesser one that logarithmic priorities without ranks take."""
    sure = known(schedule.form, schedule.head_age_s, schedule.queue_size)
    logs = _logs(sure.urgency())
    if logs is None or len(_ranks(sure.form)) > 1 or np.isinf(logs).any():
        return span
    sizes = logs[~np.isnan(logs)]
    return min(span, float(sizes.max() - sizes.min()) / math.log(NICE_STEP))


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
