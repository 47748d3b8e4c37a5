"""How often a race errs, and how soon it is over, on arms that are made up.

    ./dev run python -m bench.sim.race [--races 200]

Three arms that are alike beside the system's own scheduling, of one query. The logarithm of the
time in the system in a phase is normal about the true one, phases are independent. The spread is
that of a comparison: one phase of an arm beside two of the system's own; loads near saturation give
.2 to .6. With bursts a fifth of all phases, whoever orders, take seven times as long.

Of races between arms that are no better one in twenty may keep one. An arm that is better may be
out by mistake: it takes part in the next race.
"""

import argparse
import math
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import NamedTuple

import numpy as np

from bench import results
from bench.results import Figure, Result, Row
from sched_ctl.adapt.effect import COUNTED, Effect
from sched_ctl.adapt.race import Figures, opened, step

SPREADS = (0.1, 0.2, 0.4, 0.7)
KINDS = (
    *((ratio, False) for ratio in (1.0, 1.02, 1.05, 1.3, 0.9, 0.7)),
    *((ratio, True) for ratio in (1.0, 1.3, 0.7)),
)
ARMS = ("a", "b", "c")
BURSTS, TIMES = 0.2, 7.0
BASE_S, PHASE_S = 0.5, 10.0
MOST = 1000  # phases


class Case(NamedTuple):
    ratio: float
    bursts: bool
    spread: float
    number: int


class Ended(NamedTuple):
    kept: bool  # an arm, not the system's own
    minutes: float


def race(case: Case) -> Ended:
    seed = [case.number, round(100 * case.ratio), round(100 * case.spread), case.bursts]
    random = np.random.default_rng(seed)
    state = opened(ARMS)
    for phase in range(1, MOST + 1):
        noise = math.exp(random.normal(0.0, case.spread / math.sqrt(1.5)))
        burst = TIMES if case.bursts and random.random() < BURSTS else 1.0
        time_s = BASE_S * (case.ratio if state.turn else 1.0) * burst * noise
        state = step(state, Figures((Effect("e", "q", PHASE_S, 100, 100, time_s, COUNTED),)))
        if state.mode == "kept":
            return Ended(state.kept > 0, phase * PHASE_S / 60)
    return Ended(False, math.inf)


def share(races: Sequence[Ended]) -> Figure:
    return Figure(100 * statistics.fmean(one.kept for one in races), unit="%")


def minutes(races: Sequence[Ended]) -> str:
    """The median, and until nine of ten are over."""
    ranked = sorted(one.minutes for one in races)
    return f"{statistics.median(ranked):.0f} ({ranked[math.ceil(0.9 * len(ranked)) - 1]:.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--races", type=int, default=200, help="of each case (%(default)s)")
    results.argument(parser)
    arguments = parser.parse_args()
    if arguments.races < 1:
        parser.error("--races is 1 or more")
    numbers = range(arguments.races)
    cases = [Case(*kind, spread, n) for kind, spread, n in product(KINDS, SPREADS, numbers)]
    with ProcessPoolExecutor() as pool:
        found = dict(zip(cases, pool.map(race, cases, chunksize=20), strict=True))
    rows = []
    for ratio, bursts in KINDS:
        what = f"three at {ratio:g}{', with bursts' if bursts else ''}"
        cells = {
            f"spread {spread:g}": [found[Case(ratio, bursts, spread, n)] for n in numbers]
            for spread in SPREADS
        }
        rows.append(Row(f"{what}: races that keep one", {k: share(v) for k, v in cells.items()}))
        rows.append(Row(f"{what}: minutes", {k: minutes(v) for k, v in cells.items()}))
    told = Result(
        title="The race on made-up arms by their time over the system's own; spread: of the "
        "logarithm of a comparison; bursts: a fifth of phases take 7 times as long; minutes: "
        "median (nine of ten)",
        columns=[f"spread {spread:g}" for spread in SPREADS],
        n=len(numbers),
        spread=None,
        seeds=None,
        kernel=None,
        rows=rows,
        **results.here(),
    )
    results.tell(told, arguments.keep)


if __name__ == "__main__":
    main()
