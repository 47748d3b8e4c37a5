"""The guard's judgement on synthetic series, and its phases."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from bench.sim.guard import beside
from plans import plan
from sched_ctl.adapt import effect as effect_module
from sched_ctl.adapt import guard as module
from sched_ctl.adapt.effect import AWAKE, COUNTED, LITTLE, Effect, Span
from sched_ctl.adapt.guard import Guard, staked, worse
from sched_ctl.adapt.race import Figures, Objective, by_output, compare
from sched_ctl.metrics.window import Window
from sched_ctl.model.graph import Array
from sched_ctl.model.policy import Level
from sched_ctl.model.topology import Snapshot

TOPOLOGY = plan({"q": ["a", "b"]})


def test_noise_alone_is_hardly_ever_worse() -> None:
    """A day with a look each minute: one in twenty may be mistaken, in all three figures."""
    mistaken = 0
    for seed in range(12):
        random = np.random.default_rng(seed)
        mistaken += seen(beside(random, 1.0, 0.2 + 0.05 * seed, module.DAY)) is not None
    assert mistaken <= 1


def seen(comparisons: Array) -> int | None:
    """The comparison by which tuples are said to wait longer."""
    guard = Guard(every_s=60, phase_s=6)
    said = (number for number, pair in enumerate(comparisons, 1) if guard.counts("wait", pair))
    return next(said, None)


def means(comparisons: Array) -> list[float]:
    """Of the two pieces of ours in each."""
    return [statistics.geometric_mean(pair) for pair in comparisons]


def capitals(comparisons: Array) -> list[float]:
    """What is had after each comparison."""
    had: tuple[float, ...] = ()
    found, known = [], means(comparisons)
    for number, pair in enumerate(comparisons):
        had = staked(had, pair, known[max(0, number - module.MOST) : number])
        found.append(sum(had))
    return found


@pytest.mark.parametrize("tails", [None, 3])
def test_who_is_at_the_margin_all_day_makes_nobody_rich(tails: int | None) -> None:
    """To have ten times as much at some time has a chance of a tenth. A fifth more is seen."""
    rich = {1.05: 0, 1.26: 0}
    for day in range(20):
        random = np.random.default_rng([day, 7])
        size = 0.1 * 2.0 ** (day % 4)
        apart = random.normal(0, 1, (module.DAY, 3))
        if tails:
            apart = random.standard_t(tails, (module.DAY, 3))
        for middle in rich:
            ratios = middle * np.exp(size / math.sqrt(1.5) * (apart[:, :2] - apart[:, 2:]))
            rich[middle] += max(capitals(ratios)) >= 10
    assert rich[1.05] <= 4, "of 20, by chance"
    assert rich[1.26] == 20


def test_bursts_that_come_to_whoever_orders_are_no_harm() -> None:
    """Seven times as long in a fifth of all pieces: twice as often in one of two as in one."""
    for day in range(10):
        random = np.random.default_rng([day, 5])
        logs = random.normal(0.0, 0.1, (module.DAY, 3)) + 2 * (random.random((module.DAY, 3)) < 0.2)
        ratios = np.exp(logs[:, :2] - logs[:, 2:])
        assert max(capitals(ratios)) * module.SHARE < 1 and seen(ratios) is None, day


@pytest.mark.parametrize(("spread", "last_few", "within"), [(0.4, 8, 60), (0.7, 3, 150)])
def test_what_no_few_comparisons_tell_their_sum_does(
    spread: float, last_few: int, within: int
) -> None:
    """Half as long again, as by an order made up to harm near saturation."""
    by_few = 0
    for seed in range(20):
        ratios = beside(np.random.default_rng(seed), 1.5, spread, within)
        at, known = seen(ratios), means(ratios)
        assert at is not None, seed
        by_few += any(worse(known[max(0, n - module.MOST) : n]) for n in range(1, at + 1))
    assert by_few <= last_few


def test_harm_that_begins_after_a_good_day_is_seen_as_soon() -> None:
    for seed in range(10):
        random = np.random.default_rng(seed)
        true = np.repeat([0.7, 1.5], [module.DAY, 120])
        ratios = beside(random, true, 0.4, len(true))
        had = capitals(ratios)
        assert max(had[: module.DAY]) < 1
        assert max(had[module.DAY :]) * module.SHARE >= 1, seed
        at = seen(ratios)
        assert at is not None and at > module.DAY


def test_one_comparison_far_out_decides_nothing() -> None:
    """A collector's pause in one phase: of ours, or of the system's own."""
    same = beside(np.random.default_rng(3), 1.0, 0.2, 300)
    assert seen(np.insert(same, 100, 1e6, axis=0)) is None
    bad = beside(np.random.default_rng(4), 1.5, 0.4, 100)
    without, later = seen(bad), seen(np.insert(bad, 4, 1e-6, axis=0))
    assert without is not None and later is not None and later <= without + 20


def test_the_ratio_of_those_that_say_so_is_told() -> None:
    """Of the last few where they are plain, else of all that are kept; not that of the last one."""
    guard = Guard(every_s=60, phase_s=6)
    late = [0.7] * 40 + [2.9, 3.1] * 4
    told = next(filter(None, (guard.counts("wait", [one, one]) for one in late)))
    assert told == pytest.approx(3.0, rel=0.02)
    guard = Guard(every_s=60, phase_s=6)
    noisy = beside(np.random.default_rng(3), 1.5, 0.7, 150).tolist()
    told = next(filter(None, (guard.counts("wait", pair) for pair in noisy)))
    assert not worse(guard.ratios["wait"]), "their sum says so"
    assert told == statistics.geometric_mean(guard.ratios["wait"])


def pieces(
    given: Sequence[float],
    sources: Sequence[str] = (COUNTED,) * 3,
    time_s: float = 5.0,
    taken: float = 8.0,
) -> tuple[list[Figures], list[float]]:
    """Ours, the system's own and ours again, of two queries; what the first is said to have let
    through in each."""
    made = [
        Figures((Effect("e", "q", 4.0, taken, out, time_s, by), Effect("e", "r", 4.0, 7.0)))
        for out, by in zip(given, sources, strict=True)
    ]
    found = by_output(made)
    assert [len(one.effects) for one in found] == [2, 2, 2]
    assert all(one.effects[1].tuples_in == 7 for one in found), "it does not tell what left"
    return found, [one.effects[0].tuples_in for one in found]


def test_what_leaves_counts_where_tuples_are_older_than_each_piece() -> None:
    assert pieces([3, 4, 5])[1] == [6, 8, 10], "as many as went in, in all"
    assert pieces([3, 4, 5], time_s=3.0)[1] == [8, 8, 8], "windows that end in step with phases"
    assert pieces([3, 0, 5])[1] == [8, 8, 8], "a window may have ended in two of them"
    assert pieces([3, math.nan, 5])[1] == [8, 8, 8]
    assert pieces([3, 4, 5], (COUNTED, LITTLE, COUNTED))[1] == [8, 8, 8]
    assert pieces([3, 4, 5], (AWAKE,) * 3)[1] == [8, 8, 8], "wake-ups are no tuples"
    assert pieces([3, 4, 5], (COUNTED, AWAKE, COUNTED))[1] == [8, 8, 8]
    assert pieces([3, 4, 5], taken=0.0)[1] == [0, 0, 0]


def test_an_aggregation_counts_as_much_as_a_query_that_gives_what_it_takes() -> None:
    """Ours takes in as much as the system's own and gives a third of the results of one of them."""
    ours, system = (
        Figures(
            (
                Effect("e", "few", 4.0, 9000.0, out, 5.0, COUNTED),
                Effect("e", "all", 4.0, 9000.0, 9000.0, 5.0, COUNTED),
            )
        )
        for out in (1.0, 3.0)
    )
    before, own, after = by_output([ours, system, ours])
    for one in (before, after):
        assert math.exp(-compare(one, own).lost) == pytest.approx(14400 / 25200)


def test_a_query_that_one_piece_lacks_is_none_to_compare() -> None:
    one, both = (Effect("e", q, 4.0, 9.0, 3.0, 5.0, COUNTED) for q in ("q", "r"))
    found = by_output(
        [Figures((one, both)), Figures((replace(one, tuples_out=6.0),)), Figures((one, both))]
    )
    taken = [[effect.tuples_in for effect in figures.effects] for figures in found]
    assert taken == [[6.75, 9], [13.5], [6.75, 9]]


def test_what_is_forgotten_counts_no_more() -> None:
    guard = Guard(every_s=60, phase_s=6)
    bad = beside(np.random.default_rng(4), 1.5, 0.4, 100)
    at = seen(bad)
    assert at is not None
    for pair in bad[: at - 1].tolist():
        assert not guard.counts("wait", pair)
    guard.forget()
    assert not guard.counts("wait", bad[at - 1].tolist())


def test_bursts_that_are_shorter_than_a_phase_of_ours_are_no_harm() -> None:
    """Every 40 s half a second of queues a hundred times as long, whoever orders."""
    guard, found = Guard(every_s=60, phase_s=5), []
    for tick in range(2 * 8000):
        queue = 1000.0 if tick % 83 == 0 else 10.0
        now = snapshot(tick / 2, 50 * tick, queue)
        found.append(guard.look(tick / 2, {"e": window(now)}))
    assert len(guard.ratios["wait"]) == module.MOST and not any(found)


@pytest.mark.parametrize(
    ("ratio", "spread", "within"), [(3.0, 0.1, 8), (1.3, 0.05, 16), (1.9, 0.2, 16), (1.1, 0.02, 20)]
)
def test_what_is_worse_is_found(ratio: float, spread: float, within: int) -> None:
    for seed in range(20):
        random = np.random.default_rng(seed)
        ratios = ratio * np.exp(random.normal(0.0, spread, within))
        before = np.exp(random.normal(0.0, spread, 100))
        assert worse(ratios.tolist()) and worse([*before, *ratios]), seed


def test_a_few_comparisons_say_nothing() -> None:
    assert not worse([9.0, 9.0, 9.0])
    assert not worse([math.nan, math.inf, 0.0, 9.0, 9.0, 9.0])
    assert not worse([1.03] * 8), "within the margin"


def snapshot(time_s: float, taken: float, queue: float) -> Snapshot:
    columns = {
        "tuples_in": np.array([taken, taken]),
        "queue_size": np.array([math.nan, queue]),
    }
    return Snapshot(TOPOLOGY, time_s, columns)


def window(now: Snapshot, then: Snapshot | None = None) -> Window:
    return Window(now, then, Level.PHYSICAL)


def run(guard: Guard, seconds: int, queue_ours: float, queue_own: float) -> list[tuple[int, str]]:
    """Passes once a second; what it found, and when."""
    found = []
    for second in range(seconds):
        queue = queue_own if guard.own else queue_ours
        said = guard.look(float(second), {"e": window(snapshot(second, 100 * second, queue))})
        if said:
            found.append((second, said))
    return found


def test_phases_take_turns_and_harm_is_found() -> None:
    guard = Guard(every_s=20, phase_s=5)
    own = []
    for second in range(60):
        guard.look(float(second), {"e": window(snapshot(second, 100 * second, 10))})
        own.append(guard.own)
    assert 10 <= sum(own) <= 20 and not own[0]
    assert guard.ratios["wait"] == [1, 1]
    guard = Guard(every_s=20, phase_s=5)
    first, said = run(guard, 140, queue_ours=300, queue_own=100)[0]
    assert (
        first < 110 and said == "tuples wait 3.00 times as long as by the system's own scheduling"
    )
    assert "wait 3.00" in guard.words
    guard.forget()
    assert guard.words == "nothing compared yet"


def test_the_first_phases_are_told_in_words() -> None:
    guard, told = Guard(every_s=20, phase_s=5), []
    for second in range(400):
        own = guard.own
        guard.look(float(second), {"e": window(snapshot(second, 100 * second, 10))})
        if guard.own != own:
            told.append(guard.phase)
    first = "the system's own scheduling for 5 s; nothing compared yet"
    assert told[:2] == [first, "the policy's order again"]
    assert told[2].startswith("the system's own scheduling for 5 s; over the system's own in 1 ")
    assert len(list(filter(None, told))) == 2 * module.TOLD < len(told)
    guard.forget()
    assert guard.phase


def test_who_is_left_alone_with_the_systems_own_gets_his_order_back() -> None:
    """Such as one user's engines, as another user's come: nobody's word counts then."""
    guard = Guard(every_s=20, phase_s=5)
    second = 0
    while not guard.own:
        guard.look(float(second), {"e": window(snapshot(second, 100 * second, 10))})
        second += 1
    assert guard.look(float(second), {}) is None and not guard.own
    assert run(guard, 140, queue_ours=300, queue_own=100), "and goes on when somebody's does"


def test_whose_engines_have_gone_keeps_nobody_else_from_trying() -> None:
    guard, second = Guard(every_s=20, phase_s=5), 0
    for own in (True, False):
        while guard.own != own:
            guard.look(float(second), {"e": window(snapshot(second, 100 * second, 10))})
            second += 1
    assert guard.trying, "what follows the system's own is looked at"
    guard.look(float(second), {})
    assert not guard.trying


def test_help_and_empty_queues_are_left_alone() -> None:
    assert run(Guard(20, 5), 300, queue_ours=50, queue_own=100) == []
    assert run(Guard(20, 5), 300, queue_ours=0.05, queue_own=0.0) == []


def test_what_the_engine_tells_goes_before_its_queues() -> None:
    """Its latency is three times as long under ours, while its queues are shorter."""
    guard, found = Guard(every_s=20, phase_s=5), []
    for second in range(140):
        now = snapshot(second, 100 * second, 50 if guard.own else 10)
        told = {"latency": np.array([math.nan, 0.1 if guard.own else 0.3])}
        latency = Snapshot(TOPOLOGY, now.time_s, {**now.columns, **told})
        found.append(guard.look(float(second), {"e": window(latency)}))
    assert "tuples wait 3.00 times as long as by the system's own scheduling" in found


@pytest.mark.parametrize(("objective", "found"), [("all", True), ("mean", False)])
def test_a_better_mean_is_not_paid_by_half_of_all_tuples(
    objective: Objective, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = Guard(every_s=20, phase_s=5, objective=objective)

    def told(_: Span, targets: object) -> tuple[Effect, ...]:
        time_s, p50_s = (0.1, 0.01) if guard.own else (0.05, 0.06)
        return (Effect("e", "q", 5.0, 100.0, 100.0, time_s, COUNTED, p50_s=p50_s),)

    monkeypatch.setattr(effect_module, "effects", told)
    said = run(guard, 300, 10, 10)
    assert bool(said) == found
    assert "median 6.0" in guard.words
    assert not found or said[0][1] == "the median is 6.00 times that by the system's own scheduling"
