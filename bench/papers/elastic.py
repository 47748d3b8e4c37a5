"""Elastic scheduling's rule and our own on made-up curves: where they settle, at what cost.

    ./dev run python -m bench.papers.elastic [--seeds 30] [--periods 200] [--keep elastic]

A curve says what each level of 1 to 64 threads gives; one period's measurement is that times a
normal deviate. Simulated: no thread runs, nothing here says what threads cost on a machine. The
rules are the objects of `ctl/adapt/elastic.py`. All of a cell's runs are from seeds 1, 2, ...
"""

import argparse
import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench import results
from bench.results import Figure, Result, Row
from sched_ctl.adapt import elastic

__all__ = ["CURVES", "MOST", "NOISES", "RULES", "Run", "run"]

MOST = 64
NOISES = (0.0, 0.01, 0.03, 0.06, 0.10)
NEAR = 0.95  # of the best: there
STAY = 10  # periods in a row, to have arrived
LAST = 50  # periods that say where it settled

Curve = Callable[[int, float], float]
CURVES: dict[str, Curve] = {
    "peak at 8": lambda level, _: min(level, 8) * min(1.0, 8 / level) ** 0.5,
    "plateau from 8": lambda level, _: min(level, 8),
    "straight": lambda level, _: level,
    "falling": lambda level, _: level**-0.5,
    "from 8, then 24": lambda level, part: min(level, 8 if part < 0.5 else 24),
    "from 8, then 24 and half the cost": lambda level, part: (
        min(level, 8) if part < 0.5 else 2 * min(level, 24)
    ),
    "from 24, then 8": lambda level, part: min(level, 24 if part < 0.5 else 8),
}


@dataclass(frozen=True)
class Way:
    """A rule: its first state, whatever that is, and its step."""

    first: Callable[[], Any]
    step: Callable[[Any, float], Any]


RULES = {
    "paper +1": Way(lambda: elastic.ruled(1, MOST, single=True), elastic.rule),
    "paper": Way(lambda: elastic.ruled(1, MOST), elastic.rule),
    "ours": Way(lambda: elastic.begun(1, MOST), elastic.weighed),
}


@dataclass(frozen=True)
class Run:
    """One run. level: median at its end. periods: until it was near the best for good, counted from
    the last change of the curve; as many as there were if never. changes: of the level, and
    reversals: up after down or down after up, both in all. regret: 1 - mean over best, in %.
    """

    level: float
    periods: int
    changes: int
    reversals: int
    regret: float


def run(way: Way, curve: Curve, noise: float, seed: int, periods: int = 200) -> Run:
    """One rule on one curve. noise: standard deviation over the mean."""
    random = np.random.default_rng(seed)
    state = way.first()
    levels, got = [], []
    for period in range(periods):
        part = period / periods
        levels.append(state.level)
        true = curve(state.level, part)
        got.append(true / max(curve(level, part) for level in range(1, MOST + 1)))
        state = way.step(state, true * max(1e-3, 1 + noise * random.standard_normal()))
    is_moved = curve(MOST, 0.0) != curve(MOST, 1.0)
    since = periods // 2 if is_moved else 0
    near = [part >= NEAR for part in got[since:]]
    there = next((at for at in range(len(near)) if sum(near[at : at + STAY]) == STAY), len(near))
    moves = [b - a for a, b in itertools.pairwise(levels) if a != b]
    return Run(
        statistics.median(levels[-LAST:]),
        there,
        len(moves),
        sum((a > 0) != (b > 0) for a, b in itertools.pairwise(moves)),
        100 * (1 - statistics.fmean(got)),
    )


def _figure(values: Sequence[float], unit: str = "") -> Figure:
    """The mean, and the smallest and the largest run."""
    return Figure(statistics.fmean(values), min(values), max(values), unit)


def _tables(seeds: int, periods: int) -> tuple[list[Row], list[Row]]:
    """All figures by curve and noise; and what is lost, by curve."""
    rows, lost = [], []
    for name, curve in CURVES.items():
        regret: dict[str, Figure | str] = {}
        for noise in NOISES:
            figures: dict[str, Figure | str] = {}
            for rule, way in RULES.items():
                runs = [run(way, curve, noise, seed, periods) for seed in range(1, seeds + 1)]
                for what, unit in FIGURES.items():
                    values = [float(getattr(one, what)) for one in runs]
                    figures[f"{what} {rule}"] = _figure(values, unit)
                regret[f"{rule} {noise:.0%}"] = figures[f"regret {rule}"]
            rows.append(Row(f"{name}, {noise:.0%}", figures))
        lost.append(Row(name, regret))
    return rows, lost


FIGURES = {"level": "", "periods": "", "changes": "", "reversals": "", "regret": "%"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--periods", type=int, default=200)
    results.argument(parser)
    options = parser.parse_args()
    here = results.here()  # before it writes anything
    whole, lost = _tables(options.seeds, options.periods)
    for rows, what in (
        (whole, "elastic scheduling's rule and ours on made-up curves"),
        (lost, "throughput lost to the best of 1 to 64 threads, by noise"),
    ):
        result = Result(
            title=what[0].upper() + what[1:],
            columns=list(rows[0].figures),
            n=options.seeds,
            spread="smallest-largest",
            seeds=[*range(1, options.seeds + 1)],
            kernel=None,
            rows=rows,
            **here,
        )
        keep = options.keep and options.keep + ("-regret" if rows is lost else "")
        results.tell(result, keep)


if __name__ == "__main__":
    main()
