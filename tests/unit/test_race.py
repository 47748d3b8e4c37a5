"""The race between orders, on made-up arms: who wins, at what price, and how often it errs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from sched_ctl.adapt.effect import COUNTED, LITTLE, UNKNOWN, Effect
from sched_ctl.adapt.race import (
    ALPHA,
    MOST_ROUNDS,
    RARE,
    RAREST,
    REOPEN,
    SOON,
    USUAL,
    WIDEST,
    Figures,
    Objective,
    Race,
    _reopened,
    changed,
    compare,
    harms,
    is_worse,
    opened,
    price,
    spending,
    step,
    told,
)

BASE_S = 0.05
QUERIES = 3


@dataclass
class World:
    """Arms of which each has its time in the system, by phase. inertia: part of a phase's time that
    is left from the phase before it, as queues have yet to drain.
    """

    ratios: Callable[[int], Sequence[float]]  # of a phase: of all arms, the system's own first
    noise: float
    seed: int = 1
    drift: float = 0.0  # a phase, in the logarithm
    inertia: float = 0.0
    rate: Callable[[int], float] = lambda _: 100.0
    delivered: Sequence[float] = (1.0,) * 9
    medians: Sequence[float] = (math.nan,) * 9  # over the system's own
    race: Race = field(default_factory=lambda: opened(["a", "b", "c"]))
    turns: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    level: float = math.nan

    def run(self, phases: int) -> Race:
        random = np.random.default_rng(self.seed)
        for phase in range(len(self.turns), len(self.turns) + phases):
            turn = self.race.turn
            wanted = math.log(self.ratios(phase)[turn])
            self.level = wanted if math.isnan(self.level) else self.level
            self.level = self.inertia * self.level + (1 - self.inertia) * wanted
            self.turns.append(turn)
            self.times.append(math.exp(self.level))
            self.race = step(self.race, self.figures(random, phase, turn))
            self.kept.append(self.race.kept if self.race.mode == "kept" else -1)
        return self.race

    def figures(self, random: np.random.Generator, phase: int, turn: int) -> Figures:
        common = BASE_S * math.exp(self.level + self.drift * phase)
        times = common * np.exp(random.normal(0, self.noise * math.sqrt(QUERIES), QUERIES))
        rate = self.rate(phase) * self.delivered[turn] * math.exp(random.normal(0, 0.01))
        medians = BASE_S * self.medians[turn] * times / common
        return Figures(
            tuple(
                effect(f"q{q}", time_s, rate, p50_s=float(medians[q]))
                for q, time_s in enumerate(times)
            )
        )


def effect(query: str, time_s: float, rate: float = 100.0, **more: Any) -> Effect:
    return replace(Effect("e", query, 7.0, rate, rate, time_s, COUNTED, cpus=1e-3 * rate), **more)


def always(*ratios: float) -> Callable[[int], Sequence[float]]:
    return lambda _: (1.0, *ratios)


def longest(world: World, bad: float = 1.05) -> int:
    """Phases in a row that were worse than the system's own."""
    runs = [len(list(g)) for worse, g in groupby(time > bad for time in world.times) if worse]
    return max(runs, default=0)


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.1, 0.2, 0.3])
def test_the_right_one_wins_and_looking_is_cheap(noise: float) -> None:
    for seed in range(4):
        world = World(always(0.6, 0.85, 1.3), noise, seed)
        race = world.run(110)
        assert race.kept == 1 and race.mode == "kept", seed
        regret = float(np.mean(world.times)) / 0.6 - 1
        assert regret < (0.25 if noise <= 0.1 else 0.45)
        assert longest(world) <= 2
        assert "a won: 0." in told(race) and "trying has cost " in told(race)


def test_what_is_expected_wins_sooner_only_if_it_is_the_best() -> None:
    """Whether it is right or wrong: the same order is kept, and a wrong word costs no phase."""

    def won(seed: int, expected: int) -> tuple[int, int]:
        race = opened(["a", "b", "c"], expected=expected)
        world = World(always(0.6, 0.7, 0.8), 0.1, seed, race=race)
        world.run(80)
        return world.race.kept, next(i for i, kept in enumerate(world.kept) if kept >= 0)

    saved = 0
    for seed in range(6):
        usual = won(seed, 0)
        right, wrong, worst = (won(seed, expected) for expected in (1, 2, 3))
        assert usual[0] == right[0] == 1
        assert wrong == worst == usual
        saved += usual[1] - right[1]
    assert saved / 6 > 2  # phases, of 23


@pytest.mark.parametrize("expected", [1, 3])
def test_of_equals_what_is_expected_is_kept_no_more_often(expected: int) -> None:
    races, mistaken = 60, 0
    for seed in range(races):
        race = opened(["a", "b", "c"], expected=expected)
        world = World(always(1.0, 1.0, 1.0), 0.15, seed, race=race)
        world.run(10 * MOST_ROUNDS + 5)
        mistaken += any(kept > 0 for kept in world.kept)
    assert mistaken <= 2 * ALPHA * races


@pytest.mark.parametrize("noise", [0.01, 0.1, 0.3])
def test_where_all_are_worse_the_systems_own_stays(noise: float) -> None:
    for seed in range(3):
        world = World(always(1.5, 2.0, 2.5), noise, seed)
        race = world.run(110)
        assert race.mode == "kept" and race.kept == 0
        assert longest(world) <= 2
        assert "the system's own scheduling stays" in told(race)


@pytest.mark.parametrize("noise", [0.2, 0.3])
def test_who_is_worse_is_out_soon(noise: float) -> None:
    """With the level that a winner needs it took 41 to 83 phases, and 1.2 to 1.3 times as long."""
    ended, times = [], []
    for seed in range(6):
        world = World(always(1.5, 2.0, 2.5), noise, seed)
        world.run(110)
        ended.append(world.kept.index(0))
        times.append(float(np.mean(world.times)))
    assert np.median(ended) < 30 and np.mean(times) < 1.15


def test_who_seems_to_be_better_gets_more_rounds() -> None:
    """Of 20 seeds that nothing was chosen by 11 keep it; with an end after `MOST_ROUNDS` 2 did."""
    kept = [
        World(always(0.75, 1.0, 1.0), 0.35, seed).run(10 * 2 * MOST_ROUNDS).kept
        for seed in range(1000, 1020)
    ]
    assert kept.count(1) >= 7 and kept.count(2) + kept.count(3) <= 3, kept


def test_of_equals_none_is_kept_more_often_than_promised() -> None:
    """Arms like the system's own, with much noise: it errs in no more than one race of twenty."""
    races, mistaken = 60, 0
    for seed in range(races):
        world = World(always(1.0, 1.0, 1.0), 0.15, seed)
        world.run(10 * MOST_ROUNDS + 5)
        mistaken += any(kept > 0 for kept in world.kept)
    assert mistaken <= 2 * ALPHA * races  # what is promised, and what chance adds to it
    looks = [spending(look, 3) for look in range(1, 10_000)]
    assert 3 * sum(looks) == pytest.approx(ALPHA, rel=0.001)


@pytest.mark.parametrize("drift", [0.02, -0.02])
def test_a_load_that_rises_counts_for_nobody(drift: float) -> None:
    for seed in range(3):
        good = World(always(0.7, 1.0, 1.2), 0.05, seed, drift=drift)
        assert good.run(60).kept == 1
        equal = World(always(1.0, 1.0, 1.0), 0.05, seed, drift=drift)
        equal.run(60)
        assert all(kept <= 0 for kept in equal.kept)


def test_an_arm_that_ends_in_a_disaster_is_left_at_once() -> None:
    """It is 70 times as bad: a phase, one more try, and never again."""
    world = World(always(70.0, 0.7, 0.8), 0.1)
    world.run(3)
    ours = world.race
    assert ours.turn == 1
    bad = Figures(tuple(effect(f"q{q}", 70 * BASE_S) for q in range(QUERIES)))
    assert harms(ours, bad) and not harms(replace(ours, turn=0), bad)
    after = step(ours, bad)
    assert after.turn == 0 and after.drop and after.arms[1].strikes == 1 and after.kept == 0
    world.run(80)
    assert world.turns[1:].count(1) == 2 and world.race.kept == 2
    assert world.race.arms[1].out.startswith("harmful: time ")


def test_an_arm_for_which_half_of_all_tuples_pay_is_left_at_once() -> None:
    """Its mean is less than half, its median fifty times the system's own, told once three phases
    of that are known; and where one figure alone is wanted it counts alone."""
    world = World(always(0.4, 0.8), 0.1, race=opened(["a", "b"]), medians=(1.0, 50.0, 0.9))
    world.run(80)
    assert world.turns[1:].count(1) == 3 and world.race.kept == 2
    assert world.race.arms[1].out.startswith("harmful: ") and "median" in world.race.arms[1].out
    race = opened(["a", "b"], "mean")
    world = World(always(0.4, 0.8), 0.1, race=race, medians=(1.0, 50.0, 0.9))
    assert world.run(80).kept == 1


def half(p50_s: float) -> Figures:
    return Figures((effect("q", 0.5, p50_s=p50_s),))


def after(race: Race, *own_s: float) -> Race:
    """At the order's next turn, after phases of the system's own that have these medians."""
    left = list(own_s)
    while left or race.turn == 0:
        race = step(race, half(left.pop(0) if race.turn == 0 else 0.1))
    return race


def test_phases_of_the_systems_own_whose_median_is_short_by_chance_strike_nobody() -> None:
    race = after(opened(["a"]), 0.1, 1e-3)  # the first one does not count
    assert not harms(race, half(4.0)), "beside one it tells nothing"
    assert step(race, half(4.0)).arms[1].strikes == 0
    race = after(race, 0.1, 1e-3)
    assert race.half == 2, "they are of two half-rounds"
    assert not harms(race, half(0.2)) and step(race, half(0.2)).arms[1].strikes == 0
    assert harms(race, half(4.0)) and step(race, half(4.0)).arms[1].strikes == 1
    assert not harms(race, half(math.nan)), "it tells none"
    assert not harms(replace(race, objective="mean"), half(4.0))
    assert not harms(replace(race, mode="kept"), half(4.0)), "it is compared now and then"
    race = after(step(race, Figures(pressed=False)), 0.1, 0.1)
    assert not harms(race, half(4.0)), "this is another stretch of time"


def test_an_order_with_the_medians_of_the_systems_own_is_not_struck_by_them() -> None:
    """It halves the mean. Of either a queue is short for a phase in five, by chance."""
    for seed in range(20):
        random, race = np.random.default_rng(seed), opened(["a"])
        while race.mode == "race":
            mean_s = (0.5 if race.turn else 1.0) * math.exp(random.normal(0, 0.1))
            short, long = 1e-3, 0.1 * math.exp(random.normal(0, 0.3))
            p50_s = short if random.random() < 0.2 else long
            race = step(race, Figures((effect("q", mean_s, p50_s=p50_s),)))
        assert not race.arms[1].out.startswith("harmful"), seed


def test_an_arm_that_loses_throughput_cannot_win() -> None:
    world = World(always(0.5, 0.8), 0.05, race=opened(["a", "b"]), delivered=(1.0, 0.93, 1.0))
    assert world.run(80).kept == 2
    assert "throughput" in world.race.arms[1].out


def test_when_the_load_changes_the_race_opens_again() -> None:
    """After phase 100 the other one is right, and twice as much comes in."""
    world = World(
        lambda phase: (1.0, 0.6, 0.9) if phase < 100 else (1.0, 1.4, 0.7),
        0.05,
        race=opened(["a", "b"]),
        rate=lambda phase: 100.0 if phase < 100 else 200.0,
    )
    world.run(100)
    assert world.kept[-1] == 1
    world.run(5)
    assert world.race.mode == "race" and "the rate of q0 changed" in world.race.why
    world.run(60)
    assert world.race.kept == 2
    assert longest(world) <= 2


@pytest.mark.parametrize(("kept", "counts"), [(0, 3), (1, 1)])
def test_long_phases_count_as_several_where_the_systems_own_has_won(kept: int, counts: int) -> None:
    """An engine that tells something each ten seconds makes phases long: an order that has won is
    not raced more often for that, nor by fewer phases that say what is usual."""
    race = replace(opened(["a"]), mode="kept", kept=kept, turn=kept, drop=False)
    figures = Figures((effect("q", 0.5),), phases=3.0)
    known = looks = 0
    while race.mode == "kept":
        race = step(race, figures)
        looks += 1
        known = max(known, len(race.usual))
    assert race.why == "it is time to look again"
    assert looks == REOPEN / counts and known == math.ceil(USUAL / counts)


def test_a_winner_that_has_become_worse_is_taken_back() -> None:
    """A little worse, with nothing else to see: by phases of the system's own, that come sooner."""
    world = World(lambda phase: (1.0, 0.8) if phase < 60 else (1.0, 1.3), 0.02, race=opened(["a"]))
    world.run(60)
    assert world.kept[-1] == 1
    world.run(80)
    assert world.race.kept == 0


def test_it_does_not_open_again_without_a_reason() -> None:
    for seed in range(4):
        world = World(always(0.7, 0.9, 1.1), 0.1, seed)
        world.run(60)
        assert world.race.races == 1
        world.run(130)
        assert world.race.races == 1 and world.race.mode == "kept", world.race.why
        own = world.turns[60:].count(0)
        assert own <= 10, "a phase of the system's own is rare where it costs much"
    world.run(400)
    assert world.race.races > 1, "but now and then it looks"


@pytest.mark.parametrize("inertia", [0.3, 0.6])
def test_queues_that_drain_slowly_do_not_make_it_swing(inertia: float) -> None:
    """What is left of the phase before blurs the arms; it must not make them take turns."""
    for seed in range(3):
        world = World(always(0.6, 0.8, 1.3), 0.1, seed, inertia=inertia)
        world.run(400)
        kept = [turn for turn, _ in groupby(turn for turn in world.kept if turn >= 0)]
        assert len(kept) <= 2 and kept[-1] in (1, 2), kept


def test_where_nobody_waits_nothing_is_tried() -> None:
    race = opened(["a", "b"])
    calm = Figures((effect("q", 0.0),), pressed=False)
    assert "nobody waits" not in told(race), "nobody has looked"
    for _ in range(50):
        race = step(race, calm)
        assert race.turn == race.kept == 1
    assert told(race) == "a, as nobody waits; nothing is tried"
    pressed = Figures((effect("q", 0.1),))
    turns = []
    for _ in range(4):
        race = step(race, pressed)
        turns.append(race.turn)
    assert turns == [0, 0, 1, 2]
    race = step(race, calm)
    assert race.turn == 1 and race.seen == ()
    assert step(race, pressed).turn == 0, "and begins with the system's own again"


def spells(busy: int, every: int, phases: int, **kwargs: Any) -> World:
    """A world in which threads wait in `busy` phases of each `every` alone."""
    world = World(always(0.5, 0.8, 1.2), 0.1, **kwargs)
    for phase in range(phases):
        if phase % every < busy:
            world.run(1)
        else:
            world.race = step(world.race, Figures(pressed=False))
    return world


@pytest.mark.parametrize(("busy", "every"), [(4, 6), (5, 6), (6, 12), (8, 40)])
def test_a_race_goes_on_from_one_busy_spell_to_the_next(busy: int, every: int) -> None:
    for seed in range(3):
        world = spells(busy, every, 90 * every // (busy - 3), seed=seed)
        assert world.race.races > 0 and {*world.kept} == {-1, 1}, (seed, world.race)


def test_where_spells_are_too_short_to_compare_the_systems_own_stays() -> None:
    world = spells(3, 6, 400)
    assert (world.race.kept, world.race.mode) == (0, "kept")
    assert "long enough" in told(world.race)
    assert world.turns[100:] == [0] * len(world.turns[100:])


def test_an_arm_is_compared_with_the_same_spell_alone() -> None:
    """By night all take 20 ms and by day 100: nobody does harm, and nobody is better."""
    race = opened(["a"])
    for spell in range(40):
        figures = Figures((effect("q", 0.02 if spell % 2 else 0.1),))
        for phase in range(9):
            calm = Figures(figures.effects, pressed=False)
            race = step(race, calm if phase > 4 + spell % 3 else figures)
    assert race.arms[1].strikes == 0 and not race.arms[1].out
    assert all(score.time == 0 for score in race.arms[1].scores.values())
    assert len(race.arms[1].scores) > 8


def test_bursts_that_slow_all_orders_alike_do_not_open_it_again() -> None:
    """Two phases of each eighteen take eight times as long, whoever orders."""

    def ratios(phase: int) -> Sequence[float]:
        burst = 8.0 if phase > 60 and phase % 18 < 2 else 1.0
        return burst, 0.5 * burst, 0.8 * burst

    races = []
    for seed in range(5):
        world = World(ratios, 0.1, seed, race=opened(["a", "b"]))
        world.run(60)
        assert world.race.kept == 1
        world.run(240)
        races.append(world.race.races)
        assert world.race.kept == 1 and world.turns[60:].count(0) < 0.25 * 240
    assert np.median(races) == 2, "once, as such times were not usual before"


def test_bursts_of_a_phase_cost_no_more_than_the_rare_looks() -> None:
    """One of each eighteen phases takes eight times as long, whoever orders."""

    def ratios(phase: int) -> Sequence[float]:
        burst = 8.0 if phase > 60 and phase % 18 == 0 else 1.0
        return burst, 0.5 * burst, 0.8 * burst

    own = kept = 0
    for seed in range(3):
        world = World(ratios, 0.1, seed, race=opened(["a", "b"]))
        world.run(500)
        turns = [turn for turn, won in zip(world.turns[1:], world.kept, strict=False) if won > 0]
        own, kept = own + turns.count(0), kept + len(turns)
    assert own < 0.03 * kept, "each called for one, which was 6%"


def test_a_calm_after_the_race_judges_nothing() -> None:
    race = replace(opened(["a"]), mode="kept", begun=True, half=5, races=1)
    after = step(race, Figures(pressed=False))
    assert (after.half, after.left, after.broken, after.begun) == (5, (), 0, False)


def test_a_winner_that_does_harm_is_looked_at_at_once() -> None:
    """Soon after it has won, when nothing is known yet of how it usually is."""
    for seed in range(4):
        world = World(always(0.6, 0.9), 0.1, seed, race=opened(["a", "b"]))
        while world.race.mode == "race":
            world.run(1)
        world.ratios = always(9.0, 9.0)
        world.run(20)
        assert world.race.races == 1 and world.race.kept == 0, seed
        assert longest(world) <= 2 and world.turns[-20:].count(1) <= 9


def test_a_look_that_was_called_for_and_finds_tuples_lost_is_not_in_vain() -> None:
    def phase(time_s: float, rate: float) -> Figures:
        return Figures((effect("q", time_s, rate),))

    for rate, after in ((100.0, RARE), (80.0, SOON)):
        race = replace(opened(["a"]), mode="kept", drop=False, check_in=RAREST, os=phase(0.1, 100))
        arm = replace(race.arms[1], ratio=math.log(0.9))
        race = step(replace(race, arms=(race.arms[0], arm)), phase(0.5, rate))
        assert race.turn == 0, "called for"
        race = step(step(race, phase(0.1, 100)), phase(0.1, rate))
        assert race.check_in == after - 1


def test_a_spell_that_compared_something_is_no_broken_one() -> None:
    """With one arm a half-round is over within a spell, and the spell ends in the next one."""
    race = opened(["a"])
    for spell in range(30):
        for _ in range(5):
            ratio = (1.0, 0.9 + 0.2 * (spell % 2))[race.turn]
            race = step(race, Figures((effect("q", 0.1 * ratio),)))
        race = step(race, Figures(pressed=False))
        assert race.broken <= 1
    assert "long enough" not in race.why and race.races > 0


def test_who_is_out_is_not_tried_again_after_a_calm() -> None:
    race = opened(["a"])
    own, bad = Figures((effect("q", 0.1),)), Figures((effect("q", 1.0),))
    for _ in range(40):
        race = step(race, bad if race.turn else own)
        if race.arms[1].out:
            break
    race = step(race, Figures(pressed=False))
    assert race.arms[1].out and 1 not in race.left


def test_no_more_than_two_phases_in_a_row_are_not_the_systems_own() -> None:
    for arms in range(1, 5):
        world = World(always(*[0.99] * arms), 0.2, race=opened([*"abcd"[:arms]]))
        world.run(2 + 10 * arms)
        runs = [len(list(g)) for tried, g in groupby(turn > 0 for turn in world.turns) if tried]
        assert max(runs) == 2 if arms > 1 else max(runs) <= 2
        halves = world.race.arms[1].scores
        assert len(halves) >= 3


def test_an_engine_that_tells_nothing_keeps_the_systems_own() -> None:
    race = opened(["a"])
    for _ in range(150):
        race = step(race, Figures((Effect("e", "q", 7.0),)))
    assert race.kept == 0 and math.isnan(race.arms[1].ratio)
    assert "stays" in told(race)


# --- what is compared ---


def figures(*effects: Effect) -> Figures:
    return Figures(tuple(effects))


def test_ratios_are_of_queries_that_both_tell_of_alike() -> None:
    ours = figures(effect("a", 0.2), effect("b", 0.1), effect("new", 9.0))
    theirs = figures(effect("a", 0.1), effect("b", 0.1))
    assert compare(ours, theirs).time == pytest.approx(math.log(2) / 2)
    assert compare(ours, theirs, "worst").time == pytest.approx(math.log(2))
    other = figures(effect("a", 0.1, source=LITTLE))
    assert math.isnan(compare(ours, other).time)
    assert compare(figures(effect("a", 1e-5)), figures(effect("a", 1e-7))).time == 0
    assert compare(ours, figures(effect("a", 0.1, 125.0))).lost == pytest.approx(math.log(1.25))


def test_objectives_take_the_percentiles_where_there_are_any() -> None:
    ours = figures(effect("a", 0.2, p50_s=0.1, p99_s=0.8))
    theirs = figures(effect("a", 0.1, p50_s=0.1, p99_s=0.2))
    scores = {o: compare(ours, theirs, o).time for o in ("mean", "median", "p99", "worst")}
    assert [round(math.exp(score), 6) for score in scores.values()] == [2, 1, 4, 2]
    score = compare(ours, theirs)
    assert (score.median, score.tail) == pytest.approx((0.0, math.log(4)))
    bare = compare(figures(effect("a", 0.2)), figures(effect("a", 0.1)), "p99")
    assert bare.time == pytest.approx(math.log(2))


def test_a_median_counts_beside_another_one_and_never_below_one_tuple() -> None:
    """By queues half of the tuples wait for one tuple's time or for nothing, as it happens."""
    one = effect("q", 0.5, 5.0, p50_s=0.19, source=LITTLE)
    for p50_s, rate, ratio in ((0.0, 5.0, 1.0), (0.8, 5.0, 4.0), (0.38, 100.0, 1.9)):
        theirs, ours = (replace(some, tuples_in=rate) for some in (one, replace(one, p50_s=p50_s)))
        expected = pytest.approx(math.log(ratio), abs=0.1)
        assert compare(figures(ours), figures(theirs)).median == expected
        assert compare(figures(ours), figures(theirs), "median").time == expected
    untold = figures(replace(one, p50_s=math.nan))
    assert compare(figures(one), untold, "median").time == 0.0, "the means of both"


@pytest.mark.parametrize(("objective", "kept"), [("all", 2), ("mean", 1), ("median", 2)])
def test_the_objective_says_whether_half_of_the_tuples_may_pay(
    objective: Objective, kept: int
) -> None:
    """`a` has the better mean, and its median is eight times the system's own."""
    race = opened(["a", "b"], objective)
    world = World(always(0.4, 0.8), 0.05, race=race, medians=(1.0, 8.0, 0.9))
    assert world.run(80).kept == kept
    assert kept == 1 or world.race.arms[1].out
    assert ("the median worse" in world.race.arms[1].out) == (objective == "all")


def test_targets_that_are_missed_count_first() -> None:
    """A third of the missed tuples outweighs twice the time."""
    ours = figures(effect("a", 0.2, within_target=0.91))
    theirs = figures(effect("a", 0.1, within_target=0.71))
    assert compare(ours, theirs).time < 0 < compare(theirs, ours).time
    met = figures(effect("a", 0.2, within_target=0.999))
    assert compare(met, figures(effect("a", 0.1, within_target=1.0))).time == pytest.approx(
        math.log(2)
    )


def test_student_needs_four_and_does_not_mind_what_is_unknown() -> None:
    assert not is_worse([9.0, 9.1, 9.2], 0.0, 0.01)
    assert is_worse([0.5, 0.52, 0.48, 0.5, math.nan], 0.0, 0.01)
    assert not is_worse([0.5, 0.52, 0.48, 0.5], 0.6, 0.01)
    assert not is_worse([2.0, -1.0, 1.0, -0.5], 0.0, 0.01)
    assert is_worse([0.1] * 4, 0.0, 0.01)


def test_student_errs_as_often_as_its_level_says() -> None:
    random = np.random.default_rng(3)
    for freedom in (3, 7):
        samples = random.normal(0, 1, (20_000, freedom + 1))
        said = sum(is_worse(row, 0.0, 0.02) for row in samples.tolist())
        assert said / 20_000 == pytest.approx(0.02, abs=0.004)


def test_noise_is_not_taken_for_a_change_and_a_step_is_not_missed() -> None:
    random = np.random.default_rng(5)

    def phase(times: float = 1.0, rates: float = 1.0) -> Figures:
        return figures(
            *(
                effect(f"q{q}", times * BASE_S * math.exp(n), rates * 100 * math.exp(m))
                for q, (n, m) in enumerate(random.normal(0, (0.1, 0.03), (10, 2)))
            )
        )

    usual = [phase() for _ in range(16)]
    assert sum(bool(changed(usual, phase())) for _ in range(500)) <= 1
    assert "the rate of q" in changed(usual, phase(rates=2.0))
    assert "time in the system" in changed(usual, phase(times=8.0))
    assert changed(usual, figures(effect("q0", BASE_S))) == "other queries run"


def test_the_price_is_what_was_above_the_one_that_is_kept() -> None:
    race = opened(["a"])
    own, arm = race.arms
    arms = (
        replace(own, phases=10, times={("e", "q"): (1.0, 10.0), ("e", "gone"): (5.0, 1.0)}),
        replace(arm, phases=90, times={("e", "q"): (0.5, 10.0)}),
    )
    assert price(replace(race, arms=arms, mode="kept", kept=1)) == pytest.approx(0.1)
    assert price(replace(race, arms=arms, mode="kept", kept=0)) == 0.0
    assert price(replace(race, arms=arms, kept=1)) == 0.0, "beside the system's own, while it looks"
    again = replace(race, arms=arms, kept=1, races=1)
    assert price(again) == pytest.approx(0.1), "beside the winner, while it looks again"
    opened_again = _reopened(again, "it is time")
    assert price(opened_again) == pytest.approx(0.1), "what was is not forgotten"
    assert not any(arm.scores or arm.strikes or arm.out for arm in opened_again.arms)
    assert math.isnan(price(race))


def test_a_phase_that_did_harm_is_in_the_price() -> None:
    """A geometric mean hid it: of .45 at most times and 13 once it made 'has cost 0.0%'."""
    bad = -1
    world = World(lambda phase: (1.0, 13.0 if phase == bad else 0.9, 0.95, 1.0), 0.01)
    world.run(14)
    assert price(world.race) < 0.001
    while bad < 0 or world.turns[-1] != 1:
        bad = len(world.turns)
        world.run(1)
    lost = 12 / len(world.turns)
    assert price(world.race) == pytest.approx(lost, rel=0.3)


def test_batches_that_come_now_and_then_strike_nobody_out() -> None:
    """Few in a phase, of many tuples each: half of all phases take in a third less than others, and
    one of fifty next to nothing."""
    for seed in range(6):
        batches = np.random.default_rng(seed).poisson(4, 200)
        world = World(
            always(0.6, 0.8),
            0.05,
            seed,
            race=opened(["a", "b"]),
            rate=lambda phase, batches=batches: 200.0 * max(batches[phase], 0.1),  # type: ignore[misc]
        )
        while world.race.mode == "race":
            world.run(1)
        assert world.race.kept == 1 and all("harmful" not in arm.out for arm in world.race.arms), (
            seed
        )


def test_an_arm_that_stops_the_intake_is_struck_when_its_phase_is_over() -> None:
    """By time alone it looks well, as little waits."""
    world = World(always(0.5, 0.8), 0.05, race=opened(["a", "b"]), delivered=(1.0, 0.01, 1.0))
    while world.race.turn != 1 or not world.race.os.effects:
        world.run(1)
    assert not harms(world.race, world.figures(np.random.default_rng(1), 0, 1)), "by no look"
    world.run(1)
    assert (world.race.arms[1].strikes, world.race.turn) == (1, 0)
    world.run(80)
    assert world.race.kept == 2 and world.race.arms[1].out.startswith("harmful")
    assert world.turns[1:].count(1) == 2


@pytest.mark.parametrize("lone", [False, True])
@pytest.mark.parametrize("told", [{"time_s": 7.0, "source": LITTLE}, {"source": UNKNOWN}])
def test_an_arm_that_stops_a_query_is_struck_though_nobody_tells_its_time_any_more(
    told: dict[str, Any], lone: bool
) -> None:
    """What gives no output has no latency that the engine could count."""
    stopped = replace(effect("b", math.nan, 0.0), **told)
    race, phases = opened(["a"]), 0
    while race.mode == "race" and phases < 40:
        quick = () if lone else (effect("a", 0.05 if race.turn else 0.1),)
        now = figures(*quick, stopped if race.turn else effect("b", 0.1))
        assert not harms(race, now), "by no look: it may be batches"
        race, phases = step(race, now), phases + 1
    assert race.kept == 0 and race.arms[1].out.startswith("harmful")
    assert race.arms[1].phases == 3, "one before the race, and two strikes"


def test_a_phase_that_ended_early_is_judged_by_its_times_alone() -> None:
    """In the second until it ended the batches of `b` had not come yet: one strike, and no more."""
    waits = Effect("e", "b", 1.0, 0.0, 0.0, 7.0, LITTLE)
    bad = Figures((effect("a", 0.4), waits), over=False)
    race, scores = opened(["a"]), []
    while race.half < 1:
        early = race.turn == 1 and race.os.effects and not race.arms[1].strikes
        race = step(race, bad if early else figures(effect("a", 0.1), effect("b", 0.1)))
        scores = [*race.arms[1].scores.values()]
    assert race.arms[1].strikes == 1 and not race.arms[1].out
    assert scores[0].time == pytest.approx(math.log(4)) and math.isnan(scores[0].lost)


def test_a_query_that_one_of_both_stops_is_beyond_comparison() -> None:
    fine = figures(effect("a", 0.1), effect("b", 0.1))
    stuck = figures(effect("a", 0.1), effect("b", 7.0, 5.0, source=LITTLE))
    assert compare(stuck, fine).time == -compare(fine, stuck).time == pytest.approx(WIDEST / 2)
    early = compare(replace(stuck, over=False), fine)
    assert early.time == 0 and math.isnan(early.lost), "not of a phase that ended early"
    assert compare(stuck, fine).lost == pytest.approx(math.log(200 / 105))
    for other in (
        effect("b", 7.0, 50.0, source=LITTLE),  # it is slower, as far as is known
        effect("b", 0.0, 0.0, source=LITTLE),  # the load has ended, and nothing waits
        effect("b", math.nan, math.nan, source=UNKNOWN),
    ):
        score = compare(figures(effect("a", 0.1), other), fine)
        assert score.time == compare(fine, figures(effect("a", 0.1), other)).time == 0


def test_an_arm_that_halves_throughput_is_soon_out_but_by_no_single_look() -> None:
    world = World(always(0.5, 0.8), 0.05, race=opened(["a", "b"]), delivered=(1.0, 0.5, 1.0))
    while world.race.turn != 1 or not world.race.os.effects:
        world.run(1)
    assert not harms(world.race, world.figures(np.random.default_rng(1), 0, 1))
    world.run(80)
    assert world.race.kept == 2 and world.race.arms[1].out.startswith("throughput worse")
    assert world.turns[1:].count(1) == 4, "in two rounds"


@pytest.mark.parametrize(("given", "kept"), [(0.9, 0), (1.0, 1)])
def test_past_saturation_throughput_is_what_leaves(given: float, kept: int) -> None:
    """Both take in alike, tuples are older than a phase, and those that leave are younger."""
    random = np.random.default_rng(7)
    race, phases = opened(["a"]), 0
    while race.mode == "race" and phases < 100:
        time_s, out = (40.0, given) if race.turn else (50.0, 1.0)
        noise = np.exp(random.normal(0, 0.02, 2))
        one = effect("q", time_s * noise[0], tuples_out=0.01 * out * noise[1])
        race, phases = step(race, figures(one)), phases + 1
    assert (race.mode, race.kept) == ("kept", kept)
    assert kept or race.arms[1].out.startswith("throughput worse")


def test_afterwards_what_leaves_counts_too() -> None:
    """The winner's phases take in as much as ever, and a tenth of it stays inside."""
    race, given = opened(["a"]), 1.0
    for _ in range(400):
        time_s, out = (40.0, given) if race.turn else (50.0, 1.0)
        race = step(race, figures(effect("q", time_s, tuples_out=out)))
        if race.races and race.kept == 0:
            break
        given = 0.9 if race.races else 1.0
    assert race.kept == 0 and "throughput 0.90" in race.why
