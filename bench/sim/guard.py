"""How often the guard errs, and how soon it sees harm, on comparisons that are made up.

    ./dev run python -m bench.sim.guard [--days 200]

Of one figure, the wait: logarithms of ratios to the system's own scheduling, one comparison a
minute, normal about the true ratio with a spread. Each is the mean of two pieces of ours beside one
of the system's own; pieces are independent. Loads near saturation give spreads of .2 to .6.
An alarm in a day at a ratio up to the margin is a mistake. What the three figures err with adds up.
"""

import argparse
import math
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product

import numpy as np

from bench import results
from bench.results import Figure, Result, Row
from sched_ctl.adapt.guard import DAY, Guard
from sched_ctl.model.graph import Array

SPREADS = (0.1, 0.2, 0.4, 0.7)
SAME, WORSE = (1.0, 1.02, 1.05), (1.2, 1.5, 3.0)
LATE = 300  # comparisons at .7 before that order becomes worse
BETTER = 0.7
Case = tuple[float, float, int, int]  # ratio, spread, comparisons before, day


def beside(random: np.random.Generator, ratios: float | Array, size: float, count: int) -> Array:
    """Ratios of two pieces of ours to one of the system's own, of so many comparisons. size: spread
    of the logarithms of their means.
    """
    ours, theirs = np.split(random.normal(0.0, size / math.sqrt(1.5), (count, 3)), [2], axis=1)
    found: Array = np.exp(ours - theirs) * np.reshape(ratios, (-1, 1))
    return found


def alarm(case: Case) -> float:
    """Minutes until the guard calls it worse, infinite if it does not within a day. Below 1 it was
    one of the comparisons before.
    """
    ratio, spread, before, day = case
    random = np.random.default_rng([day, round(100 * ratio), round(100 * spread), before])
    true = np.where(np.arange(before + DAY) < before, BETTER, ratio)
    guard = Guard(every_s=60.0, phase_s=6.0)
    for minute, pair in enumerate(beside(random, true, spread, len(true)).tolist(), 1 - before):
        if guard.counts("wait", pair):
            return float(minute)
    return math.inf


def mistaken(minutes: Sequence[float], until: float) -> Figure:
    """Share of days with an alarm until then."""
    return Figure(100 * sum(one < until for one in minutes) / len(minutes), unit="%")


def soon(minutes: Sequence[float]) -> Figure | str:
    """The median, and until nine of ten are seen. Whoever was mistaken before saw nothing."""
    ranked = sorted(minute if minute >= 1 else math.inf for minute in minutes)
    middle, most = statistics.median_low(ranked), ranked[math.ceil(0.9 * len(ranked)) - 1]
    if math.isinf(middle):
        return "over a day"
    return f"{middle:g} ({most:g})" if math.isfinite(most) else f"{middle:g} (over a day)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=int, default=200, help="of each case (%(default)s)")
    results.argument(parser)
    arguments = parser.parse_args()
    if arguments.days < 1:
        parser.error("--days is 1 or more")
    kinds = [*((ratio, 0) for ratio in (*SAME, *WORSE)), *((ratio, LATE) for ratio in WORSE)]
    days = range(arguments.days)
    cases = [(r, s, b, d) for (r, b), s, d in product(kinds, SPREADS, days)]
    with ProcessPoolExecutor() as pool:
        found = dict(zip(cases, pool.map(alarm, cases, chunksize=20), strict=True))
    rows = []
    for ratio, before in kinds:
        cells: dict[str, Figure | str] = {}
        for spread in SPREADS:
            minutes = [found[ratio, spread, before, day] for day in days]
            cells[f"spread {spread:g}"] = (
                mistaken(minutes, math.inf) if ratio in SAME else soon(minutes)
            )
        what = "days with a mistake" if ratio in SAME else "minutes until seen"
        since = f", after {before} at {BETTER:g}" if before else ""
        rows.append(Row(f"{what} at {ratio:g}{since}", cells))
    early: dict[str, Figure | str] = {
        f"spread {spread:g}": mistaken([found[r, spread, LATE, d] for r in WORSE for d in days], 1)
        for spread in SPREADS
    }
    rows.insert(len(SAME), Row(f"mistakes in {LATE} minutes at {BETTER:g}", early))
    told = Result(
        title="The guard on made-up comparisons, one a minute: median (nine of ten)",
        columns=[f"spread {spread:g}" for spread in SPREADS],
        n=len(days),
        spread=None,
        seeds=None,
        kernel=None,
        rows=rows,
        **results.here(),
    )
    results.tell(told, arguments.keep)


if __name__ == "__main__":
    main()
