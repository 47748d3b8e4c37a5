"""Orders and weights of whole columns are those that each operator gets by itself, in plain Python.

Figures are drawn from a few values, so that ties and unknown ones are met.
"""

import math
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from plans import LIMITS, array, frame, graph, plan
from sched_ctl.backends.scx.hints import hints, merged
from sched_ctl.decide.layout import SameObjects, layout_of
from sched_ctl.decide.starved import SLEEPERS, only_starved
from sched_ctl.errors import UserError
from sched_ctl.metrics.settle import Reading, Said, settle
from sched_ctl.metrics.sharing import shared_rate
from sched_ctl.metrics.verdicts import Verdict
from sched_ctl.model.files import snapshot_from_json, snapshot_to_json
from sched_ctl.model.graph import Graph
from sched_ctl.model.normalise import nice_levels, places, scaled_shares, weights, with_weight_kept
from sched_ctl.model.options import NiceOptions, SliceOptions
from sched_ctl.model.policy import Level, OperatorFrame, Policy, Spacing, UrgencyForm, form
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.targets import Target, targets_of
from sched_ctl.model.topology import Edge, HelperThread, Snapshot, Thread
from sched_ctl.plugins import registry
from sched_ctl.policies import balanced, deadline, light_first

NAN = math.nan
HELD, ASLEEP = Verdict.BACKPRESSURED, SLEEPERS[0]


def edges_of(draw: random.Random, n: int) -> list[tuple[int, int]]:
    """Without a cycle."""
    row = draw.sample(range(n), n)
    return [(row[a], row[b]) for b in range(n) for a in range(b) if draw.random() < 0.3]


# -- places that change (`only_starved`) --------------------------------------------------------


@pytest.mark.parametrize("seed", range(150))
def test_who_holds_others_has_the_place_of_the_most_urgent_one(seed: int) -> None:
    draw = random.Random(seed)
    n = draw.randint(3, 9)
    topology = plan({"q": [f"o{i}" for i in range(n)]}, edges_of(draw, n))
    verdict = [draw.choice((HELD, HELD, *SLEEPERS, Verdict.IDLE)) for _ in range(n)]
    rank = [draw.choice((0.0, 0.0, 1.0, NAN)) for _ in range(n)]
    static = [draw.choice((-1.0, 0.0, 2.0, 3.0, NAN)) for _ in range(n)]
    age = [draw.choice((0.0, 1.0)) for _ in range(n)]
    before = form(n, rank=array(*rank), static=array(*static), per_second=1.0)
    policy = replace(registry.policy("constant"), urgency=lambda _: before)
    after = only_starved(policy).urgency(frame(topology, verdict=verdict, head_age=age))

    value = [s + a for s, a in zip(static, age, strict=True)]

    def last_if_unknown(row: int) -> tuple[bool, float, bool, float, int]:
        known = [not math.isnan(x) for x in (rank[row], value[row])]
        return (
            not known[0],
            rank[row] if known[0] else 0,
            not known[1],
            value[row] if known[1] else 0,
            row,
        )

    def holder(row: int) -> int | None:
        found = set()
        for source, target in [(edge.source, edge.target) for edge in topology.edges]:
            if source == row:
                found.add(target if verdict[target] in SLEEPERS else holder(target))
        held = [one for one in found - {None} if one is not None]
        return min(held, key=last_if_unknown, default=None) if verdict[row] == HELD else None

    place = list(zip(rank, value, strict=True))
    expected = dict(enumerate(place))
    gave: dict[int, list[tuple[float, float]]] = {}
    for row in range(n):
        by = holder(row)
        if by is None or any(map(math.isnan, (*place[row], *place[by]))):
            continue
        if place[row] > place[by]:
            gave.setdefault(by, []).append(place[row])
            expected[row] = place[by]
    expected |= {by: max(places) for by, places in gave.items()}
    changed = {row for row in range(n) if expected[row] is not place[row]}
    found = after.at(array(*age), np.zeros(n))
    for row in range(n):
        np.testing.assert_array_equal((after.rank[row], found[row]), expected[row])
        assert (after.per_second[row] == 0.0) == (row in changed)


# -- segments that share an operator ------------------------------------------------------------


@pytest.mark.parametrize("rule", ["max", "sum", "pdt"])
@pytest.mark.parametrize("seed", range(30))
def test_what_an_operator_of_several_segments_is_worth(seed: int, rule: str) -> None:
    draw = random.Random(seed)
    n = draw.randint(3, 8)
    streams = [(a, b, draw.choice((0.25, 0.5, 1.0))) for a, b in edges_of(draw, n)]
    of: Graph = graph(n, *streams)
    cost, selectivity, weight = ([draw.uniform(0.1, 3.0) for _ in range(n)] for _ in range(3))

    def after(row: int) -> tuple[float, float]:
        """What a tuple that leaves it gains and costs from there on."""
        below = [(target, share) for source, target, share in streams if source == row]
        if not below:
            return weight[row], 0.0
        own = cost[row] / selectivity[row]
        ways = []
        for target, share in below:
            worth, price = after(target)
            gain = share * selectivity[target] * worth
            pay = share * (cost[target] + selectivity[target] * price)
            ways.append((gain / (pay if rule == "pdt" else own + pay), gain, pay))
        ways.sort(key=lambda way: -way[0])
        worth, price = ways[0][1:]
        for _, gain, pay in ways[1:]:
            if rule == "max":
                break
            if rule == "pdt" and (worth + gain) / (own + price + pay) <= worth / (own + price):
                break
            worth, price = worth + gain, price + pay
        return worth, price

    found = shared_rate(of, array(*cost), array(*selectivity), array(*weight), rule)
    for row in range(n):
        worth, price = after(row)
        rate = selectivity[row] * worth / (cost[row] + selectivity[row] * price)
        assert found[row] == pytest.approx(rate)


# -- nice values and weights --------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_weights_have_the_ratios_of_shares_as_far_as_they_fit(seed: int) -> None:
    draw = random.Random(seed)
    low, high, default = draw.choice(((2, 262144, 1024), (1, 10000, 100)))
    scale = draw.choice((1.0, 1.5, 3.0, 8.0))
    shares = {f"g{i}": math.exp(draw.gauss(0, scale)) for i in range(draw.randint(1, 6))}
    logs = {name: math.log(share) for name, share in shares.items()}
    mean = sum(logs.values()) / len(logs)
    wide, least = max(logs.values()) - min(logs.values()), min(logs.values())
    room = math.log(high / low)
    for name, weight in scaled_shares(shares, low, high, default).items():
        if wide > room:
            exact = low * math.exp((logs[name] - least) / wide * room)
        else:
            middle = math.log(default)
            below = max(0.0, math.log(low) - (least - mean + middle))
            above = max(0.0, least + wide - mean + middle - math.log(high))
            exact = math.exp(logs[name] - mean + middle + below - above)
        assert weight == pytest.approx(exact, abs=0.51)


def test_weights_between_the_least_and_the_largest() -> None:
    found = weights(array(0, 0.5, 1, NAN), 1, 10000, 100)
    assert found.tolist() == [1, 100, 10000, 100]


@pytest.mark.parametrize("seed", range(40))
def test_a_weight_is_kept_as_well_as_rounding_allows(seed: int) -> None:
    """Levels within the range; of shifts by at most half a level the best one."""
    draw = random.Random(seed)
    n = draw.randint(2, 6)
    below = [draw.uniform(0, 5) for _ in range(n)]
    demand = [draw.choice((0.1, 0.5, 1.0)) for _ in range(n)]

    def sum_of(levels: list[float]) -> float:
        return sum(d / math.pow(1.25, level) for d, level in zip(demand, levels, strict=True))

    found = with_weight_kept(array(*below), np.zeros(n), array(*demand)).tolist()
    exact = math.log(sum_of(below) / sum_of([0.0] * n)) / math.log(1.25)
    moved = [level - b for level, b in zip(found, below, strict=True)]
    assert max(moved) - min(moved) < 1e-9 and abs(moved[0] - exact) < 0.5 + 1e-9

    def wrong_by(shift: float) -> float:
        rounded = [float(np.rint(b + shift)) for b in below]
        return round(abs(math.log(sum_of(rounded) / sum_of([0.0] * n))), 9)

    tried = [exact + part / 20 for part in range(-10, 11)]
    assert wrong_by(moved[0]) <= min(map(wrong_by, tried)) + 1e-6


def scheduled(made: UrgencyForm, depth: list[int] | None = None, **more: object) -> Schedule:
    n = len(made)
    return Schedule(
        "s",
        "p",
        Spacing.LOGARITHMIC,
        tuple(Thread(1, i + 1, 0) for i in range(n)),
        tuple(f"q/{i}" for i in range(n)),
        made,
        np.zeros(n),
        np.zeros(n),
        depth=np.array(depth or (), dtype=np.intp),
        **more,  # type: ignore[arg-type]
    )


def test_ranks_take_the_whole_range() -> None:
    """Without, priorities that are as close as this take a part of it."""
    close = [1.0, 1.2, 1.0, 1.2]
    flat = nice_levels(scheduled(form(4, static=array(*close))))
    assert np.ptp(flat) < 1.0
    ranked = nice_levels(scheduled(form(4, static=array(*close), rank=array(0, 0, 1, 1))))
    assert np.ptp(ranked) == pytest.approx(19.0)


def test_a_source_at_which_nothing_waits_has_no_place_in_the_shortest_chain() -> None:
    of = scheduled(form(3, per_second=1.0), depth=[1, 2, 2])
    of.head_age_s[:] = [0.0, 0.5, 2.0]
    assert np.isnan(places(of, 19.0)).tolist() == [True, False, False]
    alone = replace(of, depth=np.array([1, 1, 1]))
    assert not np.isnan(places(alone, 19.0)).any()


# -- bounds of options, files and texts ---------------------------------------------------------


def test_a_range_of_one_level_is_a_range() -> None:
    assert NiceOptions(best=3, worst=3).fault is None
    assert NiceOptions(best=4, worst=3).fault
    assert NiceOptions(best=0, worst=10, levels=5).range == (0, 5)
    assert SliceOptions(short=2.0, long=2.0).fault is None
    assert SliceOptions(short=2.1, long=2.0).fault


@pytest.mark.parametrize(
    ("policy", "option", "good", "bad"),
    [(balanced.policy, "branches", 0.0, 1.0), (light_first.policy, "heavy", 1.01, 1.0)],
)
def test_least_options(policy: Callable[..., Policy], option: str, good: float, bad: float) -> None:
    assert policy(**{option: good}).options[option] == good
    with pytest.raises(UserError, match=option):
        policy(**{option: bad})


def test_a_stream_that_carries_nothing_and_a_helper_of_the_first_operator_are_read() -> None:
    helpers = (HelperThread(Thread(9, 9, 1), "gc", 0), HelperThread(Thread(8, 8, 1), "gc"))
    topology = plan({"q": ["a", "b"]}, [], helpers=helpers)
    topology = replace(topology, edges=(Edge(0, 1, 0.0),), logical_edges=(Edge(0, 1, 0.0),))
    assert topology.pids == {1, 8, 9}
    told = snapshot_to_json(Snapshot(topology, 1.0, {}))
    assert snapshot_from_json(told).topology == topology
    for source, share in ((0, -0.1), (-1, 1.0), (2, 1.0)):
        bad = replace(topology, edges=(Edge(source, 1, share),))
        with pytest.raises(UserError):
            snapshot_from_json(snapshot_to_json(Snapshot(bad, 1.0, {})))


def test_targets_by_query_and_in_words() -> None:
    plain = Target(queries=("a*",), latency="50ms")
    heavy = Target(queries=("b",), latency="1s", weight=2.0)
    queries = {("lab", name): ("lab", name) for name in ("a1", "b", "c")}
    assert targets_of([plain, heavy], queries) == {("lab", "a1"): plain, ("lab", "b"): heavy}
    assert "weight" not in str(plain) and "weight 2" in str(heavy)


def test_a_target_is_in_danger_below_half_of_it() -> None:
    of = frame(plan({"a": ["x"], "b": ["y"]}), head_age=[4.0, 4.125], path_cost=[0.0, 0.0])
    targets = tuple(Target(queries=(name,), latency="8s") for name in "ab")
    rank = deadline.policy(targets=targets, others="constant").urgency(of).rank
    assert rank[0] < rank[1]


def test_threads_that_are_as_many_as_operators_need_not_be_theirs() -> None:
    of = plan({"q": ["a", "b"]})
    first, second = of.operators
    both = replace(first, threads=(*first.threads, *second.threads))
    uneven = replace(of, operators=(both, replace(second, threads=())))
    straight = [
        layout_of(SameObjects((topology,)), Level.PHYSICAL, None, ()).straight
        for topology in (of, uneven)
    ]
    assert straight == [True, False]


# -- edges of the others ------------------------------------------------------------------------


def test_another_verdict_waits_for_its_time_whatever_the_clock_says() -> None:
    before = Said(Verdict.KEEPS_UP, "q/a", 0.9, 0.0, 100.0, settled=True, other_s=99.0)
    other = [
        Reading(s, v, "q/b", 0.9) for s, v in ((5, Verdict.IO_BOUND), (30, Verdict.CPU_STARVED))
    ]
    assert settle(before, 100.0, other) == before
    assert settle(before, 130.0, other).verdict is Verdict.CPU_STARVED


def test_ages_count_in_an_exact_queue_of_which_some_do_not_age() -> None:
    mixed = form(3, static=array(1, 2, 0), per_second=array(0, 1, 2))
    assert merged([(0, part) for part in hints(scheduled(mixed), LIMITS)], 3, LIMITS).by_age.all()


def test_a_cap_takes_queues_from_its_own_query_alone() -> None:
    n = 60
    queries = tuple(("lab", f"q{i}") for i in range(n))
    slopes = form(n, per_second=np.geomspace(1, 1e6, n))
    of = scheduled(slopes, queries=queries)
    parts = hints(of, replace(LIMITS, queues=40), clusters=12, caps={("lab", "q0"): 1})
    assert max(len(part.queue_base) for part in parts) == 12


def test_targets_of_several_engines_and_of_others_with_ranks() -> None:
    topology = plan({"a": ["x"], "b": ["y"], "c": ["z", "w"]})
    given = frame(topology, head_age=[0.0] * 4, path_cost=[0.0] * 4)
    given = OperatorFrame(
        given.operators, given.graph, given.columns, np.array([0, 1, 1, 1]), ("e", "f")
    )
    others = replace(registry.policy("constant"), urgency=lambda _: form(4, rank=array(0, 3, 5, 1)))
    targets = [Target(queries=("b",), latency="10ms")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "policy", lambda name, **_: others)
        rank = deadline.policy(targets=tuple(targets)).urgency(given).rank
    assert rank[1] > 5 and rank[[0, 2, 3]].tolist() == [0, 5, 1]
