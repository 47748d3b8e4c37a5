"""Elastic scheduling's rule and our own on made-up curves: where they settle, at what cost.

    ./dev run python -m bench.papers.elastic [--seeds 30] [--periods 200] [--keep elastic]
    ./dev run python -m bench.papers.elastic --queue-us 0.5 [--keep elastic-queue]

A curve says what each level of 1 to 64 threads gives; one period's measurement is that times a
normal deviate. Simulated: no thread runs, nothing here says what threads cost on a machine. The
rules are the objects of `bench/papers/levels.py`. All of a cell's runs are from seeds 1, 2, ...

With --queue-us the curves are of 1 to 176 threads, as many as the paper's machine has CPUs, and the
simulator gives them: a saturated engine whose threads share one queue, where each decision holds
the lock for so long (`Costs.queue_s`). How long is a guess. Nothing else has a price, and that of
the lock does not rise with those who wait, so a curve flattens and does not fall.
"""

import argparse
import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench import results
from bench.papers import levels
from bench.papers.threads import SHAPES
from bench.results import Figure, Result, Row
from sched_ctl.plugins import registry
from sched_ctl.sim import Costs, Setting, of_workload, simulate
from sched_ctl.workloads import workload

__all__ = ["CURVES", "MOST", "NOISES", "RULES", "Run", "run", "simulated"]

MOST = 64
NOISES = (0.0, 0.01, 0.03, 0.06, 0.10)
NEAR = 0.95  # of the best: there
STAY = 10  # periods in a row, to have arrived
LAST = 50  # periods that say where it settled

# Of simulated curves
CPUS = 176
LADDER = sorted({round(level) for level in np.geomspace(1, CPUS, 48)})  # between: interpolated
SIMULATED = ("10 pipelines of 100", "100 in parallel")
COSTS_US = (1.0, 20.0, 100.0)
NOISE = 0.03
TUPLES = 3000  # from all sources

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


def _rules(most: int) -> Mapping[str, Way]:
    return {
        "paper +1": Way(lambda: levels.ruled(1, most, single=True), levels.rule),
        "paper": Way(lambda: levels.ruled(1, most), levels.rule),
        "ours": Way(lambda: levels.begun(1, most), levels.weighed),
    }


RULES = _rules(MOST)


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


def run(
    way: Way, curve: Curve, noise: float, seed: int, periods: int = 200, most: int = MOST
) -> Run:
    """One rule on one curve. noise: standard deviation over the mean."""
    random = np.random.default_rng(seed)
    state = way.first()
    levels, got = [], []
    for period in range(periods):
        part = period / periods
        levels.append(state.level)
        true = curve(state.level, part)
        got.append(true / max(curve(level, part) for level in range(1, most + 1)))
        state = way.step(state, true * max(1e-3, 1 + noise * random.standard_normal()))
    is_moved = curve(most, 0.0) != curve(most, 1.0)
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


def simulated(graph: str, queue_s: float) -> Curve:
    """Tuples/s of all operators of a saturated workload, by threads, up to `CPUS`. They take the
    oldest tuple, one a turn.
    """
    node = of_workload(workload.parse(graph), 1.0)
    each = np.array([1e-9 * number for number in range(TUPLES // len(node.streams))])
    node = replace(node, streams=tuple(replace(stream, times=each) for stream in node.streams))
    basic = Setting(warm_s=0.0, costs=Costs(queue_s=queue_s))
    rates = []
    for level in LADDER:
        totals = simulate(node, registry.policy("fcfs"), replace(basic, cpus=level)).totals
        rates.append(totals["events"] / totals["now"])
    whole = np.interp(range(1, CPUS + 1), LADDER, rates).tolist()
    return lambda level, _: whole[level - 1]


def _shared(seeds: int, periods: int, queue_s: float) -> list[Row]:
    """Where the rules settle on simulated curves, and what they lose."""
    rows = []
    for name, cost_us in itertools.product(SIMULATED, COSTS_US):
        curve = simulated(SHAPES[name](cost_us), queue_s)
        rates = [curve(level, 0.0) for level in range(1, CPUS + 1)]
        fewest = next(level for level, rate in enumerate(rates, 1) if rate >= NEAR * max(rates))
        levels: dict[str, Figure | str] = {"fewest within 5%": str(fewest)}
        lost: dict[str, Figure | str] = {}
        for rule in ("paper", "ours"):
            way = _rules(CPUS)[rule]
            runs = [run(way, curve, NOISE, seed, periods, CPUS) for seed in range(1, seeds + 1)]
            levels[f"level, {rule}"] = _figure([one.level for one in runs])
            lost[f"lost, {rule}"] = _figure([one.regret for one in runs], "%")
        rows.append(Row(f"{name}, {cost_us:g} us each", {**levels, **lost}))
    return rows


FIGURES = {"level": "", "periods": "", "changes": "", "reversals": "", "regret": "%"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--periods", type=int, default=200)
    results.argument(parser)
    parser.add_argument("--queue-us", type=float, help="simulated curves: of a decision, locked")
    options = parser.parse_args()
    here = results.here()  # before it writes anything
    if options.queue_us is None:
        whole, lost = _tables(options.seeds, options.periods)
        tables = [
            ("Elastic scheduling's rule and ours on made-up curves", whole, ""),
            ("Throughput lost to the best of 1 to 64 threads, by noise", lost, "-regret"),
        ]
    else:
        rows = _shared(options.seeds, options.periods, options.queue_us * 1e-6)
        what = f"up to {CPUS} threads share a queue and hold its lock for {options.queue_us:g} us"
        tables = [(f"Simulated: {what}, {NOISE:.0%} noise", rows, "")]
    for title, rows, suffix in tables:
        result = Result(
            title=title,
            columns=list(rows[0].figures),
            n=options.seeds,
            spread="smallest-largest",
            seeds=[*range(1, options.seeds + 1)],
            kernel=None,
            rows=rows,
            **here,
        )
        results.tell(result, options.keep and options.keep + suffix)


if __name__ == "__main__":
    main()
