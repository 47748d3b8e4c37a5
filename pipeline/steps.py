"""Where the level of a series changes, and where it drifts: pure functions over columns.

A series that goes up and down in a rhythm loses it first: the rhythm is the lag at which slots are
most like those before, and what it does is the median of each of its phases, steps left out (the
same hour of other days, or the same minute of other hours). It takes three turns to be seen.

A step is seen by the medians of the w slots before and after a place, for several w (a MOSUM,
Eichinger and Kirch 2018, with medians). How much they differ is held against how much they differ
at all other places of the same series: a load that goes up and down, a policy that takes turns, or
correlated noise make large differences everywhere, so none of them stands out. One slot
that is absurd moves no median.

Where noise is so correlated that no median stands out, a step is a leap that what came before
does not foretell (`_leaps`), which no other leap comes near to, and after which the level stays.
One node alone seldom has so clear a one; several that leap together do (`together`).

A drift is the median slope between parts of a series (Theil and Sen) whose order Kendall's test
takes for no chance, with its variance widened by what the rest remembers (Hamed and Rao 1998).
Over two days and more only moments that are whole days apart are compared.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

__all__ = ["Found", "drift", "rhythm", "steps", "tail", "together", "without_rhythm"]

Array = npt.NDArray[np.float64]

WIDTHS = (5, 7, 9, 12, 16, 24, 32, 48)  # slots each way; of the short ones half moves no median
LEAST_SLOTS = 30
MOST_CHANCE = 1e-7  # of a step by mere noise, in one series: some 100,000 are searched
MOST_STEPS = 4
APART = 0.9  # of the pairs of slots before and after differ as their medians do
PARTS = 24  # of a series, for its drift
LEAST_TURNS = 3  # of a rhythm
ALIKE = 0.6  # slots a turn apart differ so much less than others do
REMEMBERS = 0.5  # correlation of a slot with the one before, from which leaps are looked for
ALONE = 1.8  # times a leap is as large as the next largest one
TAIL = 9  # how fast noise with heavy tails may fade: a leap as large as two others is chance
STAYS = 0.7  # of a leap, by medians before and after
BLOCKS = 12


@dataclass(frozen=True)
class Found:
    """A step at slot `at`, or a drift (at = -1: `size` is that of all slots together).

    size, low, high: in the unit of the series, with its 95% interval. chance: that a series as
    uneasy as this one shows it without a cause.
    """

    at: int
    size: float
    low: float
    high: float
    chance: float
    width: int = 0


def together(chances: list[float], series: int, places: float) -> float:
    """That so many of `series` show at one of `places` what each shows somewhere by chance.

    The least over how many of them are asked: chance of each, of one place, and of the choice.
    """
    least = 1.0
    for m in range(1, len(chances) + 1):
        log = sum(math.log(max(one, 1e-300)) for one in sorted(chances)[:m])
        log += math.lgamma(series + 1) - math.lgamma(m + 1) - math.lgamma(series - m + 1)
        log += (1 - m) * math.log(max(1.0, places))
        least = min(least, math.exp(min(0.0, log)))
    return least


def tail(z: float, freedom: float) -> float:
    """P(|T| > z) of Student's distribution, by the angle atan(z / sqrt(freedom))."""
    angle = math.atan(z / math.sqrt(freedom))
    left = math.pi / 2 - angle
    grid = np.linspace(0.0, left, 2001)
    c = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return float(min(1.0, 2 * c * np.trapezoid(np.sin(grid) ** (freedom - 1), grid)))


def steps(x: Array, floor: float, least: float, most_chance: float = MOST_CHANCE) -> list[Found]:
    """Steps of a series (n,), NaN = unknown, by place.

    floor: least noise of a slot; least: size that matters; both in the unit of the series.
    most_chance: of a step by mere noise.
    """
    known = np.flatnonzero(np.isfinite(x))
    if len(known) < LEAST_SLOTS:
        return []
    first = int(known[0])
    found = _within(x[first : known[-1] + 1], floor, least, most_chance)
    return [replace(one, at=first + one.at) for one in found]


def _within(x: Array, floor: float, least: float, most_chance: float) -> list[Found]:
    """Of a series that is known where it begins and ends."""
    flat, turns = without_rhythm(x, [], least)
    found = _of_medians(flat, floor, least, most_chance, turns)
    if turns and found:  # once more, as the steps stood in the rhythm's way
        flat, turns = without_rhythm(x, found, least)
        found = _of_medians(flat, floor, least, most_chance, turns)
    return found or _leaps(flat, floor, least, most_chance)


def _of_medians(
    x: Array, floor: float, least: float, most_chance: float, turns: float
) -> list[Found]:
    """One after the other: what is found is taken out before the next is looked for."""
    found: list[Found] = []
    left = x.copy()
    while len(found) < MOST_STEPS:
        one = _largest(left, floor, least, most_chance, turns)
        if one is None or any(one.at == other.at for other in found):
            break
        left[one.at :] -= one.size
        found.append(one)
    return sorted(found, key=lambda one: one.at)


def _largest(
    x: Array, floor: float, least: float, most_chance: float, turns: float
) -> Found | None:
    n = len(x)
    widths = [w for w in WIDTHS if w <= n // 6]
    # What each phase has of the noise went with the rhythm.
    hidden = math.sqrt(turns / (turns - 1)) if turns else 1.0
    best = (1.0, 0, 0, 0.0, 0.0)
    for w in widths:
        moved = _moved(x, w)
        if not np.isfinite(moved[w : n - w + 1]).any():
            continue
        seen, known = _spread(moved, w) * hidden, floor / math.sqrt(w)
        noise = max(seen, known)
        # The spread is estimated from so many places that have nothing in common; a floor is not.
        freedom = max(3.0, n / w) if seen > known else 60.0
        at = int(np.nanargmax(np.abs(moved)))
        if abs(moved[at]) >= least:
            chance = tail(abs(float(moved[at])) / noise, freedom) * n * len(widths)
            best = min(best, (chance, w, at, float(moved[at]), noise))
    chance, w, at, size, noise = best
    if not w or chance > most_chance:
        return None
    at = _edge(x, at, w)
    if _apart(x[max(0, at - w) : at], x[at : at + w]) <= APART:
        return None
    return Found(at, size, size - 2 * noise, size + 2 * noise, chance, w)


def rhythm(x: Array) -> int:
    """Slots of a turn after which a series does the same again; 0 = it has none.

    Shortlisted by autocorrelation, and chosen by the median of how much slots that are a turn
    apart differ, which a step does not move.
    """
    known = np.isfinite(x)
    middle = float(np.median(x[known]))
    apart = np.where(known, x - middle, 0.0)
    scale = 1.4826 * float(np.median(np.abs(apart[known])))
    if scale <= 0.0:
        return 0
    n = len(x)
    clipped = np.clip(apart, -3 * scale, 3 * scale)
    power = np.abs(np.fft.rfft(clipped, 2 * n)) ** 2
    like = np.fft.irfft(power)[: n // LEAST_TURNS + 1] / np.arange(n, n - n // LEAST_TURNS - 1, -1)
    inner = np.arange(3, len(like) - 1)
    tops = inner[(like[inner] >= like[inner - 1]) & (like[inner] >= like[inner + 1])]
    tops = tops[np.argsort(-like[tops])[:8]]
    differs = {int(lag): _differs(x, int(lag)) for lag in tops}
    if not differs:
        return 0
    usual = float(np.median([_differs(x, lag) for lag in range(2, len(like), max(1, n // 50))]))
    least = min(differs.values())
    if least >= ALIKE * usual:
        return 0
    return min(lag for lag, value in differs.items() if value <= 1.4 * least)


def _differs(x: Array, lag: int) -> float:
    apart = np.abs(x[lag:] - x[:-lag])
    known = apart[np.isfinite(apart)]
    return float(np.median(known)) if len(known) else math.inf


def without_rhythm(x: Array, found: list[Found], least: float) -> tuple[Array, float]:
    """A series without what it does in each turn, and the number of turns; as it is, and 0, where
    there is none that matters (`least`). found: steps, which are no part of the rhythm."""
    level = np.zeros(len(x))
    for one in found:
        level[one.at :] += one.size
    lag = rhythm(x - level)
    if not lag:
        return x, 0.0
    n = len(x)
    turns = n / lag
    rest = x - level
    if not found:
        rest = rest - _middles(rest, lag)
    padded = np.full(math.ceil(turns) * lag, np.nan)
    padded[:n] = rest
    by_phase = _median_of_columns(padded.reshape(-1, lag))
    by_phase -= float(np.median(by_phase))
    if np.ptp(by_phase) < least / 2:
        return x, 0.0
    flat: Array = x - np.tile(by_phase, math.ceil(turns))[:n]
    return flat, turns


def _middles(x: Array, lag: int) -> Array:
    """(n,) mean over a whole turn around each place: its level, whatever the phase."""
    known = np.isfinite(x)
    padded = np.pad(np.where(known, x, 0.0), (lag // 2, lag - 1 - lag // 2), mode="reflect")
    counts = np.pad(known.astype(float), (lag // 2, lag - 1 - lag // 2), mode="reflect")
    window = np.ones(lag)
    sums = np.convolve(padded, window, "valid")
    level: Array = sums / np.maximum(np.convolve(counts, window, "valid"), 1.0)
    return level


def _median_of_columns(table: Array) -> Array:
    """NaN is left out; a column of nothing else is 0."""
    ordered = np.sort(table, axis=0)
    count = np.isfinite(table).sum(axis=0)
    columns = np.arange(table.shape[1])
    middle = (ordered[(count - 1) // 2, columns] + ordered[count // 2, columns]) / 2
    return np.where(count > 0, np.nan_to_num(middle), 0.0)


def _leaps(x: Array, floor: float, least: float, most_chance: float) -> list[Found]:
    """The one step of a series whose noise is correlated, or none."""
    known = np.flatnonzero(np.isfinite(x))
    y = x[known]
    apart = y - np.median(y)
    scale = 1.4826 * float(np.median(np.abs(np.diff(y))))
    if scale <= 0.0:
        return []
    # How a slot follows from the one before, whatever a few leaps do.
    now, before = apart[1:], apart[:-1]
    steady = np.abs(now - before) < 4 * scale
    total = float((before[steady] ** 2).sum())
    rho = float((now[steady] * before[steady]).sum()) / total if total > 0 else 0.0
    if rho < REMEMBERS:
        return []
    rest = np.diff(y) + (1 - min(rho, 1.0)) * before
    size = np.abs(rest)
    at = int(np.argmax(size))
    noise = max(1.4826 * float(np.median(size)), floor)
    others = float(np.partition(size, -2)[-2])
    chance = tail(float(size[at]) / noise, 60.0) * len(size)
    chance = max(chance, (others / float(size[at])) ** TAIL)
    if size[at] < max(least, ALONE * others) or chance > most_chance:
        return []
    place = at + 1  # in y
    w = min(WIDTHS[-1], place, len(y) - place)
    if w < WIDTHS[0]:
        return []
    moved = float(np.median(y[place : place + w]) - np.median(y[place - w : place]))
    leap = float(rest[at])
    if moved * leap < 0 or abs(moved) < abs(leap) * STAYS or abs(moved) < least:
        return []
    half = 2 * noise
    return [Found(int(known[place]), leap, leap - half, leap + half, chance, w)]


def _moved(x: Array, w: int) -> Array:
    """(n + 1,) median of the w slots from each place on, less that of the w before it."""
    medians = np.full(len(x) + 1, np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(x, w)
    known = np.isfinite(windows).sum(axis=1) * 2 >= w
    middle = np.full(len(windows), np.nan)
    # NaN is sorted to the end.
    ordered = np.sort(windows[known], axis=1)
    count = np.isfinite(ordered).sum(axis=1)
    rows = np.arange(len(ordered))
    middle[known] = (ordered[rows, (count - 1) // 2] + ordered[rows, count // 2]) / 2
    medians[: len(middle)] = middle  # of the window that begins there
    before = np.full(len(x) + 1, np.nan)
    before[w:] = medians[: len(x) + 1 - w]
    apart: Array = medians - before
    return apart


def _spread(moved: Array, w: int) -> float:
    """Of differences that are mostly none, in standard deviations.

    Not less than half of the largest but for so many as may be steps: what happens every other
    hour is none. By places of which it is known (one at least).
    """
    size = np.abs(moved[w : len(moved) - w])
    usual = 1.4826 * float(np.nanmedian(size))
    n = int(np.isfinite(size).sum()) + 2 * w  # slots, if all are known
    size = np.nan_to_num(size)
    left = size.copy()
    for _ in range(min(MOST_STEPS, n // (6 * w))):
        at = int(np.argmax(left))
        left[max(0, at - w) : at + w + 1] = 0.0
    return max(usual, float(left.max()) / 2)


def _apart(before: Array, after: Array) -> float:
    """Mann and Whitney's: how often one of `after` lies beyond one of `before`, either way."""
    a, b = before[np.isfinite(before)], after[np.isfinite(after)]
    if not (len(a) and len(b)):
        return 0.0
    sign = np.sign(b[:, None] - a[None, :])
    return 0.5 + abs(float(sign.mean())) / 2


def _edge(x: Array, at: int, w: int) -> int:
    """The place near `at` that parts the slots best: least sum of distances from two levels."""
    first, last = max(0, at - w), min(len(x), at + w)
    around = x[first:last]
    known = np.isfinite(around)
    inner = max(1, w // 2)
    ends = [v[np.isfinite(v)] for v in (around[:inner], around[-inner:])]
    if not (len(ends[0]) and len(ends[1])):
        return at
    low, high = (float(np.median(v)) for v in ends)
    left = np.concatenate([[0.0], np.cumsum(np.where(known, np.abs(around - low), 0.0))])
    right = np.concatenate([[0.0], np.cumsum(np.where(known, np.abs(around - high), 0.0))])
    return first + int(np.argmin(left + right[-1] - right))


def drift(
    x: Array,
    found: list[Found],
    floor: float,
    least: float,
    day: float = math.inf,
    most_chance: float = MOST_CHANCE,
) -> Found | None:
    """The drift of a series once its steps are taken out, or None. day: slots of it."""
    level = x.copy()
    for one in found:
        level[one.at :] -= one.size
    if len(x) >= 2 * day:
        return _by_day(level, round(day), floor, least, most_chance)
    level, _ = without_rhythm(level, [], least)
    n = len(x)
    if n < 2 * PARTS or np.isfinite(level).sum() < n / 2:
        return None
    parts = [part[np.isfinite(part)] for part in np.array_split(level, PARTS)]
    at = np.array([i for i, part in enumerate(parts) if len(part)])
    y = np.array([float(np.median(part)) for part in parts if len(part)])
    if len(y) < PARTS // 2:
        return None
    i, j = np.triu_indices(len(y), 1)
    slopes = (y[j] - y[i]) / (at[j] - at[i])
    slope = float(np.median(slopes))
    size = slope * (PARTS - 1)
    if abs(size) < least:
        return None
    s = float(np.sign(slopes[np.abs(slopes) * PARTS > floor]).sum())
    rest = y - slope * at
    wide = _remembers(rest - np.median(rest))
    m = len(y)
    z = abs(s) / math.sqrt(wide * m * (m - 1) * (2 * m + 5) / 18)
    chance = tail(z, 1e4)
    if chance > most_chance:
        return None
    half = 1.4826 * float(np.median(np.abs(rest - np.median(rest)))) * math.sqrt(12 * wide / m) * 2
    return Found(-1, size, size - half, size + half, chance)


def _by_day(level: Array, day: int, floor: float, least: float, most_chance: float) -> Found | None:
    """By what has changed since the same time of the day before."""
    apart = level[day:] - level[:-day]
    if np.isfinite(apart).sum() < max(BLOCKS * 2, len(level) / 4):
        return None
    blocks = [part[np.isfinite(part)] for part in np.array_split(apart, BLOCKS)]
    y = np.array([float(np.median(part)) for part in blocks if len(part)])
    a_day = float(np.median(y))
    days = len(level) / day
    size = a_day * days
    if len(y) < BLOCKS // 2 or abs(size) < least:
        return None
    rest = y - float(y.mean())
    # A day's mean noise is in two differences, so blocks of two days remember each other.
    spread = max(float(y.std(ddof=1)), floor / math.sqrt(day)) * math.sqrt(max(2, _remembers(rest)))
    error = spread / math.sqrt(len(y))
    chance = tail(abs(float(y.mean())) / error, len(y) - 1)
    if chance > most_chance or float((np.sign(y) == np.sign(a_day)).mean()) < APART:
        return None
    half = 2.2 * error * days
    return Found(-1, size, size - half, size + half, chance)


def _remembers(rest: Array) -> float:
    """Times that the variance of a mean grows as values follow each other: 1 + 2 sum of rho."""
    total = float((rest**2).sum())
    wide = 1.0
    for lag in range(1, len(rest) // 2):
        rho = float((rest[lag:] * rest[:-lag]).sum()) / total if total > 0 else 0.0
        if rho <= 0:
            break
        wide += 2 * rho
    return wide
