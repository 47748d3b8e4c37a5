"""What `fleet changes` finds of costs that double, and what it tells where nothing changes.

    ./dev run python -m bench.sim.fleet_changes [--seeds 50] [--keep fleet-changes]

Fleets of eight nodes, a day in slots of ten minutes. The cost of one operator doubles after ten
hours on none, one or three of them. Each kind of series is noise of its own on each node: 5% of
the level (white), with two degrees of freedom (heavy tails), with absurd values in 2% of the
slots, with a third of the slots missing, with a wave of a factor of 2.7 over four hours, with a
policy that takes turns of two hours, with noise that remembers .9 of itself. Where nothing is
planted, all that is told is false; others told are in all fleets of a kind together.
"""

import argparse
import math
import platform

import numpy as np
import numpy.typing as npt
import pandas as pd

from bench.results import Figure, Result, Row, argument, here, tell
from sched_ctl.pipeline.changes import Search

SLOTS, MINUTES, AT, NODES = 144, 10, 60, 8
Array = npt.NDArray[np.float64]


def series(kind: str, seed: int) -> Array:
    """(SLOTS,) logarithms of a cost."""
    source = np.random.default_rng([seed, 77])
    at, noise = np.arange(SLOTS), source.normal(0, 1, SLOTS)
    wave = 0.5 * np.sin(2 * np.pi * (at / 24 + source.random()))
    remembers = noise.copy()
    for i in range(1, SLOTS):
        remembers[i] += 0.9 * remembers[i - 1]
    made: dict[str, Array] = {
        "white": 0.05 * noise,
        "heavy tails": 0.05 * source.standard_t(2, SLOTS),
        "absurd values": 0.05 * noise + 14 * (source.random(SLOTS) < 0.02),
        "gaps": np.where(source.random(SLOTS) < 0.3, np.nan, 0.05 * noise),
        "waves": wave + 0.03 * noise,
        "turns": 0.5 * (at // 12 % 2) + 0.05 * noise,
        "waves, remembers": wave + 0.03 * remembers,
        "remembers": 0.1 * remembers,
    }
    return made[kind]


KINDS = (
    *("white", "heavy tails", "absurd values", "gaps", "waves", "turns"),
    *("waves, remembers", "remembers"),
)


def told(kind: str, seed: int, planted: int) -> tuple[bool, int]:
    """Whether the change was told, at its place and with its size; and how many others were."""
    search = Search(0, SLOTS * MINUTES * 60_000, MINUTES * 60_000)
    frames = []
    for node in range(NODES):
        x = series(kind, seed * 100 + node)
        if node < planted:
            x[AT:] += math.log(2)
        slots = {"node": f"n{node}", "slot": np.arange(SLOTS), "cost": np.exp(x)}
        frames.append(pd.DataFrame(slots).dropna())
    found = search.of_figure("cost", pd.concat(frames))
    right = [one for one in found if not one[0] and abs(one[1] - AT) <= 1 and 1.6 < one[2] < 2.5]
    return bool(right), len(found) - len(right)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, default=50)
    argument(parser)
    given = parser.parse_args()
    rows = []
    for kind in KINDS:
        by_nodes = {
            planted: [told(kind, seed, planted) for seed in range(given.seeds)]
            for planted in (0, 1, 3)
        }
        figures: dict[str, Figure | str] = {
            f"told on {n} of {NODES}": f"{sum(right for right, _ in by_nodes[n])} of {given.seeds}"
            for n in (1, 3)
        }
        false = sum(n for each in by_nodes.values() for _, n in each)
        figures["others told"] = f"{false} in {3 * given.seeds}"
        rows.append(Row(kind, figures))
        print(kind, figures, flush=True)
    result = Result(
        title=f"A cost that doubles, as fleet changes tells it: {given.seeds} fleets",
        columns=list(rows[0].figures),
        n=given.seeds,
        spread=None,
        seeds=list(range(given.seeds)),
        kernel=platform.release(),
        rows=rows,
        **here(),
    )
    tell(result, given.keep)


if __name__ == "__main__":
    main()
