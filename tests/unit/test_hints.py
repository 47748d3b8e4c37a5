"""What the scheduler is told says the same as the policy's urgency forms."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from plans import LIMITS
from sched_ctl.backends.scx.hints import TIE_S, Hints, capped, hints, merged
from sched_ctl.model.graph import Array
from sched_ctl.model.policy import Spacing, UrgencyForm, form
from sched_ctl.model.schedule import Group, Schedule
from sched_ctl.model.topology import Thread


def schedule(
    shape: UrgencyForm,
    sizes: Array | None = None,
    groups: Mapping[str, Group] | None = None,
    queries: Sequence[str] = (),
) -> Schedule:
    n = len(shape)
    return Schedule(
        "s",
        "p",
        Spacing.LINEAR,
        tuple(Thread(1, i + 1, 0) for i in range(n)),
        tuple(f"{queries[i] if queries else 'q'}/{i}" for i in range(n)),
        shape,
        np.zeros(n),
        np.zeros(n) if sizes is None else sizes,
        groups or {},
        tuple(("lab:1", queries[i] if queries else "q") for i in range(n)),
    )


def made(
    shape: UrgencyForm,
    sizes: Array | None = None,
    groups: Mapping[str, Group] | None = None,
    queries: Sequence[str] = (),
    caps: Mapping[str, int] | None = None,
    live: list[bool] | None = None,
) -> Hints:
    one = schedule(shape, sizes, groups, queries)
    told = None if live is None else np.array(live)
    given, problems = capped(one, caps or {}, LIMITS.groups)
    assert not problems
    parts = hints(one, LIMITS, caps=given, live=told)
    return merged([(0, part) for part in parts], len(shape), LIMITS)


def urgency(given: Hints, age_s: Array, tuples: Array | float = 0.0) -> Array:
    """What the BPF program computes at the head of a queue, bpf/order.bpf.h."""
    age = np.asarray(age_s) / 1.024e-6
    q = given.queue
    lead = given.lead_us.astype(float) / 1.024
    plain = given.queue_base[q].astype(float) + given.queue_slope[q].astype(float) * (age + lead)
    exact = given.base.astype(float) + given.slope.astype(float) * age
    exact += given.per_tuple.astype(float) * tuples
    return np.where(given.queue_exact[q], exact, plain)


def order(values: Array) -> list[int]:
    return [int(i) for i in np.argsort(-np.asarray(values), kind="stable")]


def test_static_urgency_is_one_queue_in_order() -> None:
    given = made(form(4, static=np.array([5.0, 1e9, -3.0, 7.0])))
    assert len(given.queue_base) == 1
    assert order(urgency(given, np.zeros(4))) == [1, 3, 0, 2]
    # Work that is older by more than a place's gap goes first.
    assert order(urgency(given, np.array([0, 0, 0, 1.01]))) == [3, 1, 0, 2]


def test_rank_goes_before_urgency() -> None:
    given = made(form(3, rank=np.array([0.0, 1.0, 0.0]), static=np.array([9.0, 0.0, 5.0])))
    assert order(urgency(given, np.zeros(3))) == [1, 0, 2]


def test_unknown_is_in_the_middle() -> None:
    given = made(form(3, static=np.array([1.0, np.nan, 3.0])))
    assert order(urgency(given, np.zeros(3))) == [2, 1, 0]


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinite_is_unknown(value: float) -> None:
    given = made(form(3, static=np.array([5.0, value, 9.0])))
    assert order(urgency(given, np.zeros(3))) == [2, 1, 0]


@pytest.mark.parametrize("seed", range(5))
def test_clusters_are_within_a_factor_of_the_exact_urgency(seed: int) -> None:
    random = np.random.default_rng(seed)
    slope = 10 ** random.uniform(0, 5, 200)
    given = made(form(200, per_second=slope))
    assert len(given.queue_base) <= 12
    ages = np.full(200, 0.01)
    ratio = urgency(given, ages) / slope
    half = 10 ** (np.log10(slope.max() / slope.min()) / 12 / 2)
    ratio /= np.exp(np.log(ratio).mean())
    assert ratio.max() <= half * 1.2
    assert ratio.min() >= 1 / half / 1.2


def test_equal_slopes_are_first_come_first_served() -> None:
    given = made(form(3, per_second=1.0))
    assert len(given.queue_base) == 1
    assert order(urgency(given, np.array([1.0, 3.0, 2.0]))) == [1, 2, 0]


def test_ranks_separate_clusters() -> None:
    given = made(form(4, rank=np.array([0, 0, 2, 2.0]), per_second=np.array([1, 100, 1, 100.0])))
    for ages in (np.zeros(4), np.array([900.0, 900, 0.001, 0.001])):
        assert set(order(urgency(given, ages))[:2]) == {2, 3}


def test_a_mixed_form_is_exact() -> None:
    shape = form(3, static=np.array([0.0, 50.0, 100.0]), per_second=np.array([100.0, 10.0, 0.0]))
    given = made(shape)
    assert given.queue_exact.all()
    for seconds in (0.0, 0.3, 0.7, 2.0):
        expected = shape.at(np.full(3, seconds), np.zeros(3))
        assert order(urgency(given, np.full(3, seconds))) == order(expected)


def test_more_ranks_than_an_exact_queue_can_tell_apart_do_not_wrap_around() -> None:
    """128 of them are told apart; all that are higher are level with each other, and above."""
    n = 300
    shape = form(n, rank=np.arange(float(n)), per_second=1.0, per_tuple=1.0)
    given = made(shape, np.ones(n), live=[True] * n)
    assert given.queue_exact.all()
    places = (given.base >> np.uint64(LIMITS.rank_shift)).astype(int)
    assert places.tolist() == [min(rank, 128) for rank in range(n)]


def test_a_tie_break_needs_no_exact_queue() -> None:
    given = made(form(3, static=np.array([1.0, 1.0, 3.0]), per_second=1e-9 / TIE_S))
    assert not given.queue_exact.any()
    assert order(urgency(given, np.array([0.1, 0.2, 0.0]))) == [2, 1, 0]


def test_queue_lengths_count_as_they_are_now() -> None:
    given = made(form(3, per_tuple=1.0), sizes=np.array([3.0, np.nan, 30.0]))
    assert order(urgency(given, np.zeros(3))) == [2, 1, 0]


def test_queue_lengths_that_an_engine_tells_count_as_they_will_be() -> None:
    given = made(form(3, per_tuple=1.0), np.array([30.0, 2.0, 1.0]), live=[True] * 3)
    assert given.queue_exact.all()
    assert not given.by_age.any()
    assert order(urgency(given, np.zeros(3), np.array([0.0, 4.0, 5.0]))) == [2, 1, 0]


def test_lengths_of_some_are_compared_with_those_that_others_had() -> None:
    given = made(form(3, per_tuple=1.0), np.array([30.0, 9.0, 1.0]), live=[True, False, True])
    for told, expected in ((6.0, [1, 2, 0]), (8.0, [1, 0, 2]), (10.0, [0, 1, 2])):
        assert order(urgency(given, np.zeros(3), np.array([told, 99.0, 7.0]))) == expected


def test_a_form_of_lengths_and_ages_is_exact() -> None:
    shape = form(
        3,
        rank=np.array([0.0, 0.0, 1.0]),
        static=np.array([5.0, 0.0, 0.0]),
        per_second=np.array([1.0, 20.0, 1.0]),
        per_tuple=np.array([2.0, 1.0, 1.0]),
    )
    given = made(shape, live=[True] * 3)
    assert given.by_age.all()
    for age, tuples in ((0.0, 1.0), (0.5, 30.0), (3.0, 100_000.0)):
        ages, lengths = np.full(3, age), np.full(3, tuples)
        expected = shape.at(ages, lengths) + 1e9 * shape.rank
        assert order(urgency(given, ages, lengths)) == order(expected)
    most = float(given.per_tuple.max()) * LIMITS.max_tuples
    assert most < 2.0**LIMITS.rank_shift / 2
    assert given.per_tuple.max() < 1 << 32


def test_age_counts_where_waiting_decides() -> None:
    assert made(form(3, per_second=1.0)).by_age.all()
    assert made(form(3, static=np.arange(3.0), per_second=np.array([1.0, 9.0, 5.0]))).by_age.all()
    assert not made(form(3, static=np.arange(3.0))).by_age.any()


def test_groups_have_queues_of_their_own() -> None:
    slopes = np.array([1.0, 10, 100, 1e3, 1e4, 1e5])
    given = made(
        form(6, per_second=slopes), groups={"a": Group(4, (0, 1)), "b": Group(1, (2, 3, 4))}
    )
    group = given.queue_group[given.queue]
    assert [set(group[list(rows)]) for rows in ((0, 1), (2, 3, 4), (5,))] == [{0}, {1}, {2}]
    assert given.shares[0] == 4 * given.shares[1]
    assert given.shares[1] < given.shares[2] < given.shares[0]


@pytest.mark.parametrize("ages", ["static", "per_second"])
def test_a_capped_query_has_groups_of_its_own_and_its_place_in_the_order(ages: str) -> None:
    """Compared by urgency with the others, which are not capped."""
    values = np.array([3.0, 70.0, 500.0, 9.0, 8000.0, 1.0])
    queries = ("a", "b", "a", "b", "c", "c")
    given = made(form(6, **{ages: values}), queries=queries, caps={"lab:[ab]": 2, "a": 9})
    group = given.queue_group[given.queue]
    assert [set(group[list(rows)]) for rows in ((0, 2), (1, 3), (4, 5))] == [{0}, {1}, {2}]
    assert (given.caps, given.shares) == ([2, 2, 0], [0, 0, 0])
    alone = made(form(6, **{ages: values}), queries=queries)
    assert not alone.caps
    for age in (0.0, 0.5):
        ages_s = np.full(6, age)
        assert (urgency(given, ages_s) == urgency(alone, ages_s)).all()


def test_caps_keep_the_shares_of_groups() -> None:
    shape = form(6, per_second=np.arange(6.0) + 1)
    groups = {"a": Group(4, (0, 1)), "b": Group(1, (2, 3, 4, 5))}
    given = made(shape, groups=groups, queries=("a", "a", "b", "b", "c", "c"), caps={"b": 1})
    assert given.caps == [0, 1, 0]
    assert given.shares[0] == 8 * given.shares[1] == 8 * given.shares[2]


def test_schedules_share_though_one_has_caps() -> None:
    one = schedule(form(4, static=np.arange(4.0)), queries=("a", "a", "b", "b"))
    two = schedule(form(2, static=np.arange(2.0)))
    parts = [(0, part) for part in hints(one, LIMITS, caps={("lab:1", "a"): 1})]
    given = merged([*parts, *((4, part) for part in hints(two, LIMITS))], 6, LIMITS)
    assert given.caps == [1, 0, 0]
    assert given.shares[0] + given.shares[1] == given.shares[2]


@pytest.mark.parametrize("count", [60, 100, 300])
def test_more_groups_than_queues_lose_nobody(count: int) -> None:
    groups = {f"g{i}": Group(1.0, (2 * i, 2 * i + 1)) for i in range(count)}
    given = made(form(2 * count, per_second=np.arange(2.0 * count) + 1), groups=groups)
    assert len(given.queue_base) <= LIMITS.queues
    assert given.queue.max() < len(given.queue_base)
    assert given.queue_group.max() < LIMITS.groups


def test_ten_thousand_threads_fit_the_limits() -> None:
    random = np.random.default_rng(1)
    for shape in (
        form(10_000, static=random.normal(size=10_000)),
        form(10_000, per_second=random.exponential(size=10_000), rank=np.arange(10_000.0) % 300),
        form(10_000, static=random.normal(size=10_000), per_second=random.exponential(size=10_000)),
    ):
        given = made(shape)
        assert given.lead_us.max() <= LIMITS.max_lead_us
        assert given.queue_slope.max() <= LIMITS.max_slope
        assert given.slope.max() <= LIMITS.max_slope
        assert len(given.queue_base) <= LIMITS.queues


@pytest.mark.parametrize(("weights", "second"), [({}, 16384), ({0: 20.0, 2: 1.0}, 819)])
def test_schedules_share_by_their_weights(weights: Mapping[int, float], second: int) -> None:
    one, two = schedule(form(2, static=np.arange(2.0))), schedule(form(3, static=np.arange(3.0)))
    parts = [(0, part) for part in hints(one, LIMITS)] + [(2, part) for part in hints(two, LIMITS)]
    given = merged(parts, 5, LIMITS, weights)
    assert given.shares == [16 * LIMITS.share_one, second]
    assert given.queue_group.tolist() == [0, 1]
    assert given.caps == [0, 0]


def test_groups_divide_what_their_schedule_gets() -> None:
    """However high their shares are, or how many they: the other keeps its part."""
    groups = {"a": Group(400, (0,)), "b": Group(100, (1,))}
    one = schedule(form(2, static=np.arange(2.0)), groups=groups)
    parts = [(0, part) for part in hints(one, LIMITS)]
    parts += [(2, part) for part in hints(schedule(form(1)), LIMITS)]
    assert merged(parts, 3, LIMITS, {0: 1.0, 2: 1.0}).shares == [13107, 3277, 16384]


def test_one_part_that_is_not_everybody_in_order_is_put_where_it_belongs() -> None:
    one = schedule(form(3, static=np.array([5.0, 1.0, 9.0])))
    [part] = hints(one, LIMITS)
    part.rows = np.array([2, 0, 1])
    given = merged([(0, part)], 3, LIMITS)
    assert order(urgency(given, np.zeros(3))) == [1, 2, 0]
    assert given.shares == [] and given.queue_group.tolist() == [0]
    part.rows = np.array([0, 2, 1])
    assert order(urgency(merged([(0, part)], 3, LIMITS), np.zeros(3))) == [1, 0, 2]
    part.rows = np.arange(3)
    later = merged([(2, part)], 5, LIMITS)
    assert order(urgency(later, np.zeros(5)))[:2] == [4, 2]


def test_a_query_whose_cap_has_no_room_keeps_its_place_in_the_order() -> None:
    """The first by name have it; of those in two groups each takes the room of two."""
    n = 70
    queries = tuple(f"q{i:02}" for i in range(n))
    shape = form(n, rank=np.arange(float(n)))
    one = schedule(shape, queries=queries)
    caps, problems = capped(one, {"*": 2}, LIMITS.groups)
    assert list(caps) == [("lab:1", query) for query in queries[:63]]
    assert problems == ("no room for the caps of 7 queries, from lab:1:q63 on",)
    given = merged([(0, part) for part in hints(one, LIMITS, caps=caps)], n, LIMITS)
    assert (sorted(given.caps), given.shares) == ([0, *[2] * 63], [0] * 64)
    assert order(urgency(given, np.zeros(n))) == list(range(n))[::-1]
    of_two = {"a": Group(1, tuple(range(0, 6, 2))), "b": Group(1, tuple(range(1, 6, 2)))}
    two = schedule(form(6), groups=of_two, queries=("q", "q", "r", "r", "s", "s"))
    for room, some in ((8, 3), (7, 2), (6, 2), (5, 1), (3, 0), (1, 0)):
        caps, problems = capped(two, {"[qrs]": 1}, room)
        assert [query for _, query in caps] == ["q", "r", "s"][:some]
        assert len(problems) == (some < 3)


def test_one_part_with_a_cap_is_a_group() -> None:
    given = made(form(2, static=np.arange(2.0)), queries=("a", "a"), caps={"a": 3})
    assert given.caps == [3]


def test_too_many_queues_become_one_of_the_same_order_at_equal_age() -> None:
    """Parts of one queue, and those that are compared one by one, stay as they are."""
    n = 40
    slopes = np.logspace(0, 8, n)
    pairs = [schedule(form(n, per_second=slopes)) for _ in range(9)]
    parts = [(n * nth, part) for nth, one in enumerate(pairs) for part in hints(one, LIMITS)]
    assert sum(len(part.queue_base) for _, part in parts) > LIMITS.queues
    exact = schedule(form(2, static=np.array([1.0, 2.0]), per_second=np.array([0.0, 5.0])))
    parts += [(9 * n, part) for part in hints(exact, LIMITS)]
    given = merged(parts, 9 * n + 2, LIMITS)
    assert len(given.queue_base) == 10
    assert given.queue_exact.tolist() == [False] * 9 + [True]
    first = urgency(given, np.ones(9 * n + 2))[:n]
    assert (np.diff(first) >= 0).all() and len(set(first.tolist())) > 3


def test_who_never_gains_by_waiting_has_a_class_of_its_own_below() -> None:
    given = made(form(4, per_second=np.array([0.0, 1.0, 1000.0, 0.0])))
    assert given.queue[0] == given.queue[3]
    assert given.queue_slope[given.queue[0]] == 0
    assert 0 < given.queue_slope[given.queue[1]] < given.queue_slope[given.queue[2]]
    assert given.by_age.tolist() == [True] * 4


def test_a_lead_for_what_does_not_age_is_taken_where_everybody_gains_and_it_fits() -> None:
    """Else each is compared by its own form."""
    static = np.array([0.0, 5.0, 9.0])
    fits = made(form(3, static=static, per_second=np.array([1.0, 10.0, 100.0])))
    assert not fits.queue_exact.any() and fits.lead_us.tolist() == [0, 500_000, 90_000]
    one_stands = made(form(3, static=static, per_second=np.array([1.0, 10.0, 0.0])))
    assert one_stands.queue_exact.all()
    limit_s = LIMITS.max_lead_us / 1e6
    too_far = made(form(2, static=np.array([0.0, 2 * limit_s]), per_second=np.array([9.0, 1.0])))
    assert too_far.queue_exact.all()


@pytest.mark.parametrize(("max_tuples", "most"), [(1 << 20, 2.0**32 - 1), (1 << 30, 2.0**24)])
def test_what_tuples_are_worth_stays_below_a_rank(max_tuples: int, most: float) -> None:
    shape = form(3, per_tuple=np.array([1e12, 1e6, 3.0]), static=np.array([0.0, 1.0, 2.0]))
    limits = replace(LIMITS, max_tuples=max_tuples)
    [part] = hints(schedule(shape), limits, live=np.full(3, True))
    assert part.exact and part.per_tuple.tolist()[0] == most
    assert most * max_tuples <= 2.0 ** (limits.rank_shift - 2)


def test_a_capped_query_has_its_part_of_its_groups_share() -> None:
    shape = form(6, per_second=np.arange(6.0) + 1)
    groups = {"a": Group(4, (0, 1)), "b": Group(1, (2, 3, 4, 5))}
    given = made(shape, groups=groups, queries=("a", "a", "b", "c", "c", "c"), caps={"b": 1})
    # Of four threads of a group one is capped.
    assert given.shares == [16 * LIMITS.share_one, *(LIMITS.share_one, 3 * LIMITS.share_one)]


@pytest.mark.parametrize(("clusters", "queues"), [(1, 2), (2, 2), (5, 5), (64, 64)])
def test_who_never_gains_by_waiting_is_one_of_the_classes(clusters: int, queues: int) -> None:
    slopes = np.append(0.0, np.logspace(0, 9, 400))
    [part] = hints(schedule(form(401, per_second=slopes)), LIMITS, clusters=clusters)
    assert len(part.queue_base) == len(part.queue_slope) == queues


def test_parts_of_one_queue_keep_their_leads_where_others_become_one_queue() -> None:
    """Those of two queues become one, too."""
    n = 40
    heavy = [schedule(form(n, per_second=np.logspace(0, 8, n))) for _ in range(9)]
    two = schedule(form(2, rank=np.array([0.0, 1.0]), per_second=1.0))
    plain = schedule(form(3, static=np.array([5.0, 1.0, 9.0])))
    parts = [(n * nth, part) for nth, one in enumerate(heavy) for part in hints(one, LIMITS)]
    [pair], [order_only] = hints(two, LIMITS), hints(plain, LIMITS)
    assert len(pair.queue_base) == 2 and len(order_only.queue_base) == 1
    parts += [(9 * n, pair), (9 * n + 2, order_only)]
    given = merged(parts, 9 * n + 5, LIMITS)
    assert len(given.queue_base) == 11
    assert given.lead_us[-3:].tolist() == [1_000_000, 0, 2_000_000]
    assert given.lead_us[-5:-3].tolist() == [0, 1_000_000]


def test_a_lead_may_be_as_long_as_there_is_room_for() -> None:
    limits = replace(LIMITS, max_lead_us=10_000_000_000)
    shape = form(2, static=np.array([0.0, 1e6]), per_second=np.array([1.0, 100.0]))
    [part] = hints(schedule(shape), limits)
    assert not part.exact and part.lead_us.tolist() == [0, 10_000_000_000]
    [part] = hints(schedule(shape), replace(limits, max_lead_us=9_999_999_999))
    assert part.exact


def test_an_exact_queue_is_as_fine_as_what_is_widest_in_it_allows() -> None:
    """What does not age lies below a quarter of a rank; slopes have 20 bits."""
    wide = form(2, static=np.array([0.0, 1.0]), per_second=np.array([0.0, 2e-5]))
    [part] = hints(schedule(wide), LIMITS)
    assert part.base.tolist() == [0, 1 << (LIMITS.rank_shift - 2)]
    assert (len(part.queue_base), len(part.queue_slope)) == (1, 1)
    steep = form(2, static=np.array([0.0, 1.0]), per_second=np.array([0.0, 5.0]))
    [part] = hints(schedule(steep), LIMITS)
    assert part.slope[1] == pytest.approx(LIMITS.max_slope, abs=1)
    assert part.base[1] == pytest.approx(LIMITS.max_slope / 5.0 / 1.024e-6, rel=1e-6)


def test_as_many_queues_as_there_are_are_not_too_many() -> None:
    for ranks, queues in ((LIMITS.queues, LIMITS.queues), (LIMITS.queues + 1, 1)):
        [part] = hints(schedule(form(ranks, rank=np.arange(float(ranks)), per_second=1.0)), LIMITS)
        assert len(part.queue_base) == queues
    slopes = np.logspace(0, 9, 400)
    groups = {"a": Group(1, tuple(range(0, 400, 2))), "b": Group(1, tuple(range(1, 400, 2)))}
    one = schedule(form(400, per_second=slopes), groups=groups)
    parts = [(0, part) for part in hints(one, LIMITS, clusters=99)]
    assert [len(part.queue_base) for _, part in parts] == [32, 32]
    assert len(merged(parts, 400, LIMITS).queue_base) == 64


def test_groups_beyond_those_that_there_can_be_share_the_last_one() -> None:
    limits = replace(LIMITS, groups=3)
    for count, shares in ((3, [4, 3, 2]), (4, [4, 3, 3]), (5, [4, 3, 4])):
        given = (4.0, 3.0, 2.0, 1.0, 1.0)[:count]
        groups = {f"g{nth}": Group(share, (nth,)) for nth, share in enumerate(given)}
        one = schedule(form(count, static=np.arange(float(count))), groups=groups)
        made_ = merged([(0, part) for part in hints(one, limits)], count, limits)
        assert made_.shares == [4 * share * LIMITS.share_one for share in shares]
        assert made_.queue_group[made_.queue].tolist() == [0, 1, *[2] * (count - 2)]
        assert made_.lead_us[2:].tolist() == [0] * (count - 2)
    parts = [(nth, part) for nth in range(5) for part in hints(schedule(form(1)), limits)]
    assert merged(parts, 5, limits).shares == [(16 * LIMITS.share_one) // of for of in (3, 3, 1)]
    small = {"a": Group(1e-9, (0,)), "b": Group(1.0, (1,))}
    assert made(form(2, static=np.arange(2.0)), groups=small).shares[0] == 1


def test_what_an_engine_tells_of_counts_only_where_queues_do() -> None:
    given = made(form(3, static=np.arange(3.0)), live=[True] * 3)
    assert not given.queue_exact.any() and not given.per_tuple.any()


def test_a_wait_is_a_tie_break_where_it_cannot_decide_for_long() -> None:
    for apart, order_only in ((1.0, False), (1.001, True)):
        shape = form(2, static=np.array([0.0, apart]), per_second=1 / TIE_S)
        assert hints(schedule(shape), LIMITS)[0].exact is not order_only


def test_places_of_an_order_share_the_room_for_leads() -> None:
    [part] = hints(schedule(form(2, static=np.arange(2.0))), replace(LIMITS, max_lead_us=1000))
    assert part.lead_us.tolist() == [0, 1000]
    [part] = hints(schedule(form(5, static=np.arange(5.0))), replace(LIMITS, max_lead_us=1000))
    assert part.lead_us.tolist() == [0, 250, 500, 750, 1000]
    [part] = hints(schedule(form(3, static=np.arange(3.0))), LIMITS, gap_s=0.5)
    assert part.lead_us.tolist() == [0, 500_000, 1_000_000]
    assert part.queue_slope.tolist() == [1024] and part.queue_base.tolist() == [0]


def test_slopes_of_queues_reach_from_one_to_the_largest_that_there_is() -> None:
    given = made(form(50, per_second=np.logspace(0, 12, 50)))
    assert (given.queue_slope.min(), given.queue_slope.max()) == (1, LIMITS.max_slope)
    alike = made(form(3, per_second=7.0))
    assert alike.queue_slope.tolist() == [LIMITS.max_slope >> 10]


def test_ranks_beyond_those_that_a_base_can_tell_apart_are_level() -> None:
    n = 300
    shape = form(n, rank=np.arange(float(n)), per_second=1.0)
    [part] = hints(schedule(shape), replace(LIMITS, queues=1000))
    places = (part.queue_base[part.queue] >> np.uint64(LIMITS.rank_shift)).astype(int)
    assert places.tolist() == [min(rank, 128) for rank in range(n)]
