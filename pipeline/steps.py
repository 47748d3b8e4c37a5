"""Where the level of a series changes, and where it drifts: pure functions over columns.

A step is seen by the medians of the w slots before and after a place, for several w (a MOSUM,
Eichinger and Kirch 2018, with medians). How much they differ is held against how much they differ
at all other places of the same series: a load that goes up and down by the hour, a policy that
takes turns, or noise that remembers itself make large differences everywhere, so none of them
stands out. One slot that is absurd moves no median.

A drift is the median slope between parts of a series (Theil and Sen) whose order Kendall's test
takes for no chance, with its variance widened by what the rest remembers (Hamed and Rao 1998).
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Found", "drift", "steps", "tail"]

Array = npt.NDArray[np.float64]

WIDTHS = (5, 7, 9, 12, 16, 24, 32, 48)  # slots each way; of the short ones half moves no median
LEAST_SLOTS = 30
MOST_CHANCE = 1e-7  # of a step by mere noise, in one series: some 100,000 are searched
MOST_STEPS = 4
APART = 0.9  # of the pairs of slots before and after differ as their medians do
PARTS = 24  # of a series, for its drift


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


def tail(z: float, freedom: float) -> float:
    """P(|T| > z) of Student's distribution, by the angle atan(z / sqrt(freedom))."""
    angle = math.atan(z / math.sqrt(freedom))
    left = math.pi / 2 - angle
    grid = np.linspace(0.0, left, 2001)
    c = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return float(min(1.0, 2 * c * np.trapezoid(np.sin(grid) ** (freedom - 1), grid)))


def steps(x: Array, floor: float, least: float) -> list[Found]:
    """Steps of a series (n,), NaN = unknown, by place.

    floor: least noise of a slot; least: size that matters; both in the unit of the series.
    """
    n = len(x)
    if np.isfinite(x).sum() < LEAST_SLOTS:
        return []
    widths = [w for w in WIDTHS if w <= n // 6]
    moved = {w: np.nan_to_num(_moved(x, w)) for w in widths}
    noise, freedom = {}, {}
    for w, differences in moved.items():
        seen, known = _spread(differences, w), floor / math.sqrt(w)
        noise[w] = max(seen, known)
        # The spread is estimated from so many places that have nothing in common; a floor is not.
        freedom[w] = max(3.0, n / w) if seen > known else 60.0
    found: list[Found] = []
    free = np.ones(n + 1, dtype=bool)
    while len(found) < MOST_STEPS:
        best = (1.0, 0, 0)
        for w in widths:
            reach = np.where(free, np.abs(moved[w]), 0.0)
            at = int(np.argmax(reach))
            if reach[at] >= least:
                chance = tail(float(reach[at]) / noise[w], freedom[w]) * n * len(widths)
                best = min(best, (chance, w, at))
        chance, w, at = best
        if chance > MOST_CHANCE:
            break
        size, half = float(moved[w][at]), 2 * noise[w]
        free[max(0, at - w) : at + w + 1] = False
        at = _edge(x, at, w)
        if _apart(x[max(0, at - w) : at], x[at : at + w]) > APART:
            found.append(Found(at, size, size - half, size + half, chance, w))
    return sorted(found, key=lambda one: one.at)


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
    hour is none.
    """
    size = np.abs(moved[w : len(moved) - w])
    usual = 1.4826 * float(np.median(size))
    left = size.copy()
    for _ in range(min(MOST_STEPS, len(moved) // (6 * w))):
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


def drift(x: Array, found: list[Found], floor: float, least: float) -> Found | None:
    """The drift of a series once its steps are taken out, or None."""
    level = x.copy()
    for one in found:
        level[one.at :] -= one.size
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
    if chance > MOST_CHANCE:
        return None
    half = 1.4826 * float(np.median(np.abs(rest - np.median(rest)))) * math.sqrt(12 * wide / m) * 2
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
