"""How many threads pay off, on made-up curves: the paper's rule, and ours."""

import ctypes
import math
import random
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bench.papers.elastic import CURVES, MOST, RULES, Run, run, simulated
from bench.papers.levels import (
    MOST_LOOKS,
    PAUSE,
    Elastic,
    Rule,
    above_of,
    begun,
    below_of,
    rule,
    ruled,
    weighed,
)
from bench.papers.threads import pipelines

SEEDS = range(1, 7)
ENGINE = Path(__file__).parents[2] / "engine"
LEVELS = 1024  # of engine/elastic.h


def runs(who: str, curve: str, noise: float) -> list[Run]:
    return [run(RULES[who], CURVES[curve], noise, seed) for seed in SEEDS]


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def climbed(state: Rule, *throughputs: float, busy: float = 0.0) -> list[int]:
    levels = []
    for throughput in throughputs:
        state = rule(state, throughput, busy)
        levels.append(state.level)
    return levels


# --- the paper's rule ---


def test_the_paper_goes_up_while_it_pays_and_one_back() -> None:
    # 1 -> 2 -> 3: no more than 2 gave, so 2 again, between what is worse and what is no better.
    assert climbed(ruled(1, 9, single=True), 100, 200, 200, 200, 200) == [2, 3, 2, 2, 2]


def test_the_paper_trusts_nothing_after_a_change_in_load() -> None:
    state = ruled(1, 9, single=True)
    for throughput in (100, 200, 200, 200):
        state = rule(state, throughput)
    changed = rule(state, 300)
    assert changed.gave == {2: 300}
    assert changed.level == 1  # nothing below is trusted
    assert rule(state, 209).gave == {1: 100, 2: 209, 3: 200}  # less than 5% is none


def test_the_paper_adds_no_thread_to_a_busy_machine() -> None:
    assert climbed(ruled(1, 9), 100, busy=0.81) == [1]
    assert climbed(ruled(1, 9), 100, busy=0.80) == [2]
    assert climbed(ruled(1, 9, busy_limit=1.0), 100, busy=1.0) == [2]


def test_both_ends_hold() -> None:
    assert climbed(ruled(3, 4), *[100.0, 200.0] * 5)[-1] in (3, 4)
    assert set(climbed(ruled(3, 4), *[100.0, 50.0, 200.0, 20.0] * 9)) <= {3, 4}
    assert climbed(ruled(5, 5), 1, 2, 3) == [5, 5, 5]
    with pytest.raises(ValueError, match="there are none"):
        ruled(3, 2)
    with pytest.raises(ValueError, match="there are none"):
        begun(0, 2)


def test_steps_of_one_stall_where_five_per_cent_are_one_thread() -> None:
    assert run(RULES["paper +1"], CURVES["straight"], 0.0, 1).level == 20
    assert run(RULES["paper"], CURVES["straight"], 0.0, 1).level == MOST


@pytest.mark.parametrize("who", ["paper", "ours"])
@pytest.mark.parametrize(
    ("curve", "level"),
    [("peak at 8", 8), ("plateau from 8", 8), ("straight", MOST), ("falling", 1)],
)
def test_without_noise_both_find_the_best(who: str, curve: str, level: int) -> None:
    assert run(RULES[who], CURVES[curve], 0.0, 1).level == level


@pytest.mark.needs("cc")
def test_a_simulated_curve_rises_until_the_shared_queue_is_full() -> None:
    """With 20 us an operator and 0.5 us in the lock: until 41 threads, at 2 million a second."""
    curve = simulated(pipelines(10, 20, 20.0), 5e-7)
    for level in (1, 10, 27):
        assert curve(level, 0.0) == pytest.approx(level / 20.5e-6, rel=0.03)
    for level in (46, 100, 176):
        assert curve(level, 0.0) == pytest.approx(2e6, rel=0.03)


class OfEngine(ctypes.Structure):
    """struct elastic of engine/elastic.h."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("least", "most", "level")),
        ("busy_limit", ctypes.c_double),
        ("fine", ctypes.c_bool),
        ("last", ctypes.c_double * (LEVELS + 1)),
        ("trusted", ctypes.c_bool * (LEVELS + 1)),
    )


@pytest.mark.needs("cc")
def test_the_lab_engine_has_the_same_rule(tmp_path: Path) -> None:
    assert f"enum {{ LEVELS = {LEVELS} }};" in (ENGINE / "elastic.h").read_text()
    library = tmp_path / "elastic.so"
    source = str(ENGINE / "elastic.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), source, "-lm"], check=True)
    engine = ctypes.CDLL(str(library))
    seen = set()
    for seed in range(40):
        chance = random.Random(seed)
        most, best, noise = chance.choice([1, 2, 7, 64, LEVELS]), chance.randint(1, 99), seed / 400
        own, theirs = ruled(1, most), OfEngine()
        engine.elastic_begin(ctypes.byref(theirs), ctypes.c_uint64(1), ctypes.c_uint64(most))
        for period in range(150):
            best += 30 * (period == 75)
            throughput = min(own.level, best) * 100 * (1 + noise * chance.gauss(0, 1))
            throughput = chance.choice([throughput] * 30 + [0.0, math.nan])
            busy = chance.choice([0.5, 0.5, 0.5, 0.95])
            own = rule(own, throughput, busy)
            engine.elastic_step(
                ctypes.byref(theirs), ctypes.c_double(throughput), ctypes.c_double(busy)
            )
            assert theirs.level == own.level, (seed, period)
            seen.add(own.level)
    assert max(seen) > 40 and 1 in seen


# --- ours ---


@pytest.mark.parametrize(
    "curve", ["peak at 8", "plateau from 8", "straight", "from 24, then 8", "falling"]
)
@pytest.mark.parametrize("noise", [0.06, 0.1])
def test_noise_misleads_ours_less_than_the_paper(curve: str, noise: float) -> None:
    ours, paper = runs("ours", curve, noise), runs("paper", curve, noise)
    assert mean([one.regret for one in ours]) < 0.7 * mean([one.regret for one in paper])


@pytest.mark.parametrize("curve", ["peak at 8", "plateau from 8"])
def test_ours_turns_less_often_and_loses_no_more(curve: str) -> None:
    ours, paper = runs("ours", curve, 0.03), runs("paper", curve, 0.03)
    assert mean([one.reversals for one in ours]) < 0.7 * mean([one.reversals for one in paper])
    assert mean([one.regret for one in ours]) < 1.1 * mean([one.regret for one in paper])


def test_what_more_threads_have_become_worth_is_found_at_the_next_look() -> None:
    """The throughput of 8 threads does not tell that 24 would now do more."""
    one = run(RULES["ours"], CURVES["from 8, then 24"], 0.0, 1, 400)
    assert one.level == 24
    assert run(RULES["paper"], CURVES["from 8, then 24"], 0.0, 1, 400).level == 8


def settled(noise: float = 0.0) -> Elastic:
    """At 4 of 8 threads, more than which bring nothing."""
    state = begun(1, 8)
    for period in range(200):
        if state.settled:
            break
        state = weighed(state, min(state.level, 4) * (1 + noise * (-1) ** period))
    assert state.settled and state.kept == 4
    return state


def test_one_odd_period_is_none_and_two_are_a_change() -> None:
    state = settled()
    for _ in range(6):
        state = weighed(state, 4)
    once = weighed(weighed(state, 2), 4)
    assert once.settled and once.reopened == 0 and once.level == 4
    twice = weighed(weighed(state, 2), 2)
    assert not twice.settled and twice.reopened == 1


def test_it_looks_again_the_later_the_more_often_it_found_the_same() -> None:
    state = settled()
    assert state.pause == PAUSE
    for _ in range(4 * PAUSE):
        state = weighed(state, min(state.level, 4))
    assert state.pause > PAUSE and state.kept == 4


def test_noise_is_that_of_periods_in_a_row() -> None:
    state = begun(1, 1)
    for period in range(40):
        state = weighed(state, math.exp(0.1 * (-1) ** period))
    assert state.noise == pytest.approx(0.2 / math.sqrt(2))
    shocked = weighed(replace(state, last=(1, 0.0)), math.exp(5))
    assert shocked.noise < 1.2 * state.noise  # a change in load is none


def test_what_is_not_known_moves_nothing() -> None:
    for unknown in (math.nan, math.inf, 0.0, -1.0):
        assert weighed(settled(), unknown).level == 4
    for unknown in (math.nan, math.inf, -1.0):
        assert rule(ruled(1, 4), unknown) == ruled(1, 4)


def test_ours_tries_no_more_threads_on_a_busy_machine() -> None:
    state, tried = begun(1, 8, level=4), set()
    for _ in range(60):
        state = weighed(state, 100.0 * state.level, 0.9)
        tried.add(state.level)
    assert max(tried) == 4 and min(tried) < 4  # fewer may do
    assert state.kept == 4


def test_a_comparison_ends() -> None:
    """Whatever comes, the most looks are not exceeded."""
    state, longest = begun(1, 16), 0
    for period in range(300):
        state = weighed(state, 10 + 9 * math.sin(period**2))
        longest = max(longest, len(state.ours) + len(state.theirs))
        assert 1 <= state.level <= 16
    assert longest <= MOST_LOOKS + 1


@pytest.mark.parametrize("small", [True, False])
def test_the_ladder_leads_down_where_it_led_up(small: bool) -> None:
    for level in range(1, 200):
        above = above_of(level, 1000, small=small)
        assert level < above
        assert above_of(below_of(above, 1, small=small), 1000, small=small) <= above
        assert level <= below_of(above, 1, small=small) < above
    assert above_of(7, 8, small=False) == 8 == above_of(8, 8, small=False)
    assert below_of(3, 3, small=small) == 3
