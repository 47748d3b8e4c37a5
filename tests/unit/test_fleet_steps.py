"""Steps and drifts of a series: planted ones are found at their place, and no others."""

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from sched_ctl.pipeline import changes, steps

N = 144
FLOOR, LEAST = 0.01, math.log(1.2)


def series(kind: str, seed: int) -> steps.Array:
    source = np.random.default_rng([seed, 77])
    at, noise = np.arange(N), source.normal(0, 1, N)
    if kind == "remembers":
        for i in range(1, N):
            noise[i] += 0.9 * noise[i - 1]
        return 0.1 * noise
    made = {
        "white": 0.05 * noise,
        "heavy tails": 0.05 * source.standard_t(2, N),
        "hours": 0.5 * np.sin(2 * np.pi * (at / 24 + source.random())) + 0.03 * noise,
        "turns": 0.5 * (at // 12 % 2) + 0.05 * noise,
        "walk": 0.1 * np.cumsum(noise),
        "gaps": np.where(source.random(N) < 0.3, np.nan, 0.05 * noise),
        "absurd": 0.05 * noise + 14.0 * (source.random(N) < 0.02),
    }
    return made[kind]


KINDS = ("white", "heavy tails", "hours", "turns", "walk", "gaps", "absurd", "remembers")


def test_an_input_that_stops_is_a_change() -> None:
    """Also where it comes back; a slot without tuples now and then is none."""
    pandas = pytest.importorskip("pandas")
    slot, noise = np.arange(N), np.random.default_rng(5).lognormal(0, 0.05, N)
    search = changes.Search(0, N * 300_000, 300_000)

    def told(silent: npt.NDArray[np.bool_]) -> list[tuple[int, bool]]:
        rate = np.where(silent, 0.0, noise)
        found = search.of_figure(
            "rate", pandas.DataFrame({"node": "n", "slot": slot, "rate": rate})
        )
        return [(at, size < 1) for drifts, at, size, *_ in found if not drifts]

    assert told(slot >= 80) == [(80, True)]
    assert sorted(told((slot >= 50) & (slot < 90))) == [(50, True), (90, False)]
    assert told(slot % 29 == 0) == told(slot >= 0) == []


def test_where_nothing_changes_nothing_is_told() -> None:
    told = [
        (kind, seed)
        for kind in KINDS
        for seed in range(1000, 1020)
        if steps.steps(series(kind, seed), FLOOR, LEAST)
    ]
    assert len(told) <= 1, told  # of 160


def test_who_came_late_shows_no_more_steps_than_others() -> None:
    """Nor who left early, or was away for long."""
    told = []
    for seed in range(100):
        source = np.random.default_rng([seed, 3])
        noise = source.normal(0, 0.2, 32 + seed % 17)
        half = len(noise) // 2
        for places in (np.arange(-len(noise), 0), np.r_[0:half, half - len(noise) : 0]):
            x = np.full(300, np.nan)
            x[places] = noise
            told += [(seed, one) for one in steps.steps(x, FLOOR, LEAST)]
    assert told == []  # of 200


def test_a_step_is_told_by_its_place_in_all_slots() -> None:
    late = np.full(300, np.nan)
    late[100:244] = series("white", 1)
    late[160:] += math.log(2)
    [one] = steps.steps(late, FLOOR, LEAST)
    assert [one] == [replace(f, at=100 + f.at) for f in steps.steps(late[100:244], FLOOR, LEAST)]
    assert abs(one.at - 160) <= 1


@pytest.mark.parametrize("kind", ["white", "gaps", "absurd", "heavy tails", "hours", "turns"])
def test_a_cost_that_doubles_is_told_with_its_begin_and_size(kind: str) -> None:
    right = 0
    for seed in range(2000, 2010):
        x, at = series(kind, seed), 40 + 7 * (seed % 10)
        x[at:] += math.log(2)
        found = steps.steps(x, FLOOR, LEAST)
        right += any(abs(one.at - at) <= 1 and one.low < math.log(2) < one.high for one in found)
    assert right >= 7


def test_a_drift_is_told_and_is_no_step() -> None:
    for seed in range(5):
        x = series("white", seed) * 0.4
        assert steps.drift(x, [], FLOOR, LEAST / 2) is None
        x += np.linspace(0, math.log(1.5), N)
        found = steps.steps(x, FLOOR, LEAST)
        assert found == []
        drifted = steps.drift(x, found, FLOOR, LEAST / 2)
        assert drifted is not None
        assert drifted.size == pytest.approx(math.log(1.5), rel=0.15)


def test_a_rhythm_is_found_and_taken_out() -> None:
    at = np.arange(N)
    for lag in (6, 12, 24):
        wave = 0.5 * np.sin(2 * np.pi * at / lag) + series("white", lag) * 0.4
        assert steps.rhythm(wave) == lag
        flat, turns = steps.without_rhythm(wave, [], LEAST)
        assert turns == N / lag
        assert float(np.std(flat)) < 0.04 < float(np.std(wave))
    for kind in ("white", "remembers", "walk"):
        assert [seed for seed in range(20) if steps.rhythm(series(kind, seed))] == [], kind


def test_a_daily_wave_is_no_drift_and_hides_none() -> None:
    """Ten minutes a slot, three days."""
    at, day = np.arange(432), 144
    for seed in range(10):
        noise = np.random.default_rng([seed, 5]).normal(0, 0.03, 432)
        wave = 0.5 * np.sin(2 * np.pi * (at / day + seed / 10)) + noise
        assert steps.drift(wave, [], FLOOR, LEAST / 2, day) is None, seed
        found = steps.drift(wave + at / day * math.log(1.2), [], FLOOR, LEAST / 2, day)
        assert found is not None, seed
        assert found.size == pytest.approx(3 * math.log(1.2), rel=0.1)


def test_what_is_faint_on_each_node_is_sure_on_several_at_once() -> None:
    assert steps.together([1e-4], 10, 30) == pytest.approx(1e-3)
    three = steps.together([1e-4, 1e-4, 1e-4, 0.9], 10, 30)
    assert three == pytest.approx(1e-12 * 120 / 900)
    assert steps.together([0.5, 0.5], 2, 30) == pytest.approx(0.25 / 30)
    # Leaps of noise that remembers itself: none by itself is told, all together are.
    found = []
    for seed in range(6):
        x = series("remembers", seed)
        x[60:] += 0.9
        found += [f for f in steps.steps(x, FLOOR, LEAST, 1e-2) if abs(f.at - 60) <= 1]
    assert len(found) >= 3
    assert steps.together([f.chance for f in found], 6, N / 5) < steps.MOST_CHANCE


def test_tails_are_those_of_tables() -> None:
    assert steps.tail(2.571, 5) == pytest.approx(0.05, rel=0.01)
    assert steps.tail(6.869, 5) == pytest.approx(0.001, rel=0.01)
