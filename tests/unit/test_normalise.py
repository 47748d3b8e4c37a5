"""From priorities to nice values and weights: by hand, and properties over random priorities."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from plans import array
from sched_ctl.model.clusters import logarithmic_clusters
from sched_ctl.model.graph import Array
from sched_ctl.model.normalise import (
    _logs,
    from_one_up,
    linear,
    logarithmic,
    nice_levels,
    nice_values,
    places,
    positions,
    scaled_shares,
    weights,
    with_weight_kept,
)
from sched_ctl.model.policy import Spacing, form
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import Thread

NAN, INF = float("nan"), float("inf")
SPACINGS = [linear, logarithmic]


def schedule(static: Array, spacing: Spacing, rank: Array | float = 0.0) -> Schedule:
    n = len(static)
    none = np.zeros(n)
    return Schedule(
        "s",
        "p",
        spacing,
        tuple(Thread(1, i, 1) for i in range(n)),
        ("x",) * n,
        form(n, static=static, rank=rank),
        none,
        none,
    )


def random_priorities(seed: int) -> Array:
    """All that a policy may come up with: any size and sign, ties, zeros, infinite, unknown."""
    random = np.random.default_rng(seed)
    n = int(random.integers(1, 12))
    values = random.choice([-1.0, 1.0, 1.0, 1.0], n) * 10 ** random.uniform(-300, 300, n)
    values[random.random(n) < 0.2] = values[0]
    for special in (0.0, INF, -INF, NAN):
        values[random.random(n) < 0.1] = special
    return values


def keeps_order(values: Array, place: Array) -> bool:
    known = ~np.isnan(values)
    order = np.argsort(values[known], kind="stable")
    return bool((np.diff(place[known][order]) >= 0).all())


def test_by_hand() -> None:
    assert_allclose(linear(array(2, 4, 10)), [0, 0.25, 1])
    assert_allclose(logarithmic(array(1, 10, 1000)), [0, 1 / 3, 1])
    assert_allclose(linear(array(2, NAN, 10)), [0, 0.5, 1])
    assert_allclose(linear(array(1, 2, INF)), [0, 1, 1])
    assert_allclose(linear(array(1, INF)), [0.5, 1])
    assert_allclose(linear(array(-INF, 5, INF)), [0, 0.5, 1])


@pytest.mark.parametrize("spread", SPACINGS)
def test_nothing_to_say(spread: Callable[[Array], Array]) -> None:
    for values in (array(), array(3), array(3, 3), array(NAN), array(NAN, NAN), array(3, NAN)):
        if len(values) == 2 and np.isnan(values).sum() == 1:
            continue
        assert np.isnan(spread(values)).all()
        assert len(spread(values)) == len(values)


def test_one_known_priority_among_unknown_ones_says_nothing() -> None:
    assert np.isnan(linear(array(3, NAN))).all()


def test_zeros_and_negative_values_in_logarithmic_spacing_come_last() -> None:
    place = logarithmic(array(0, -5, 1, 1.25, 1.25**3))
    assert_allclose(place, [0, 0, 0.25, 0.5, 1])
    assert_allclose(logarithmic(array(-3, -2, -1)), [0, 0.5, 1])  # none positive: linear


@pytest.mark.parametrize("seed", range(60))
def test_positions_keep_the_order_and_stay_in_range(seed: int) -> None:
    values = random_priorities(seed)
    for spread in SPACINGS:
        place = spread(values)
        assert place.shape == values.shape
        if np.isnan(place).all():
            continue
        assert ((place >= 0) & (place <= 1)).all()
        assert keeps_order(values, place)
        assert (place[np.isnan(values)] == 0.5).all()
        finite = np.isfinite(values)
        if finite.any() and values[finite].min() < values[finite].max():
            assert place[finite].max() == 1 or spread is logarithmic


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("spacing", list(Spacing))
def test_nice_values_keep_the_order_and_stay_in_range(seed: int, spacing: Spacing) -> None:
    values = random_priorities(seed)
    nice = nice_values(schedule(values, spacing), 0, 19)
    assert ((nice >= 0) & (nice <= 19)).all()
    known = np.isfinite(values)
    assert keeps_order(values[known], -nice[known].astype(np.float64))


def test_the_exact_form_gives_cpu_time_in_proportion_to_priority() -> None:
    # Lachesis: each nice level is a factor of 1.25
    values = array(1, 1.25, 1.25**2, 1.25**10)
    assert nice_values(schedule(values, Spacing.LOGARITHMIC)).tolist() == [10, 9, 8, 0]
    assert nice_values(schedule(values, Spacing.LOGARITHMIC), -10, 19).tolist() == [0, -1, -2, -10]


def test_what_does_not_fit_is_squeezed() -> None:
    values = array(1, 1.25**19, 1.25**38)
    assert nice_values(schedule(values, Spacing.LOGARITHMIC)).tolist() == [19, 10, 0]
    assert nice_values(schedule(values, Spacing.LOGARITHMIC), -20, 18).tolist() == [18, -1, -20]


def test_linear_priorities_use_the_whole_range() -> None:
    assert nice_values(schedule(array(1, 1.1, 1.2), Spacing.LINEAR), 0, 10).tolist() == [10, 5, 0]


@pytest.mark.parametrize(("best", "worst", "neutral"), [(0, 19, 0), (-20, 19, 0), (5, 19, 5)])
def test_nothing_to_say_leaves_nice_alone(best: int, worst: int, neutral: int) -> None:
    for values in (array(3), array(3, 3), array(NAN, NAN)):
        nice = nice_values(schedule(values, Spacing.LINEAR), best, worst)
        assert nice.tolist() == [neutral] * len(values)


def test_an_empty_nice_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"5\.\.4"):
        nice_values(schedule(array(1), Spacing.LINEAR), 5, 4)


@pytest.mark.parametrize("seed", range(40))
def test_ranks_are_lexicographic(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(2, 12))
    rank = random.integers(-3, 4, n).astype(np.float64)
    static = 10 ** random.uniform(-5, 5, n)
    none = np.zeros(n)
    for spacing in Spacing:
        place = positions(form(n, rank=rank, static=static), none, none, spacing)
        if len(set(rank)) == 1:
            continue
        order = np.lexsort((static, rank))
        assert (np.diff(place[order]) >= 0).all()
        ranks = rank[order]
        assert (np.diff(place[order])[np.diff(ranks) > 0] > 0).all()
        assert place.min() == pytest.approx(0)
        assert place.max() == pytest.approx(1)


def test_bands_of_ranks_by_hand() -> None:
    f = form(4, rank=array(0, 0, 1, 1), static=array(1, 2, 1, 5))
    none = np.zeros(4)
    # two bands of width 1 and a gap of 1/2
    assert_allclose(positions(f, none, none, Spacing.LINEAR), array(0, 1, 1.5, 2.5) / 2.5)
    f = form(3, rank=array(0, 0, 1), static=array(1, 2, 0))
    assert_allclose(positions(f, none[:3], none[:3], Spacing.LINEAR), array(0, 1, 1.5) / 1.5)


def test_ranks_are_worth_more_than_slack_and_slack_counts_by_its_logarithm() -> None:
    f = form(6, rank=array(0, 0, 1, 1, 1, 1), static=array(1, 2, -0.1, -1, -0.01, 7))
    f.per_second[2:] = 1.0
    place = positions(f, np.zeros(6), np.zeros(6), Spacing.RANKED)
    # Two bands of width 1/4 and a gap of 1/2; who is late is as urgent as with 1 ms left.
    expected = np.array([0, 0.25, *(0.75 + 0.25 * np.array([1 / 3, 0, 2 / 3, 1]))])
    assert_allclose(place, expected)
    once = form(3, rank=1.0, per_second=1.0, static=array(-0.1, -1, -0.01))
    assert_allclose(positions(once, np.zeros(3), np.zeros(3), Spacing.RANKED), [0.5, 0, 1])


def test_an_unknown_urgency_is_in_the_middle_of_its_rank() -> None:
    f = form(5, rank=array(0, 0, 0, 1, 1), static=array(1, 2, NAN, 1, 2))
    none = np.zeros(5)
    assert positions(f, none, none, Spacing.LINEAR)[2] == pytest.approx(0.5 / 2.5)


def test_waits_and_queues_count_at_their_present_values() -> None:
    f = form(3, static=1.0, per_second=2.0, per_tuple=array(0, 0, 1))
    place = positions(f, array(0, 1, 0), array(NAN, NAN, 4), Spacing.LINEAR)
    assert_allclose(place, [0, 0.5, 1])


def test_weights() -> None:
    assert weights(array(0, 0.5, 1, NAN), 2, 200, 100).tolist() == [2, 20, 200, 100]
    with pytest.raises(ValueError, match="no weights"):
        weights(array(0), 0, 10, 5)


@pytest.mark.parametrize(("low", "high", "default"), [(2, 262144, 1024), (1, 10000, 100)])
def test_shares_keep_their_ratios(low: int, high: int, default: int) -> None:
    scaled = scaled_shares({"a": 1, "b": 4}, low, high, default)
    assert scaled == {"a": default // 2, "b": default * 2}
    assert scaled_shares({"a": 0.7}, low, high, default) == {"a": default}
    assert scaled_shares({}, low, high, default) == {}


def test_shares_that_are_wider_than_the_range_are_squeezed() -> None:
    scaled = scaled_shares({"a": 1, "b": 1e3, "c": 1e6}, 1, 10000, 100)
    assert scaled == {"a": 1, "b": 100, "c": 10000}
    # moved, not squeezed, where the ratio fits
    assert scaled_shares({"a": 1, "b": 1, "c": 1, "d": 5000}, 1, 10000, 100) == {
        "a": 2,
        "b": 2,
        "c": 2,
        "d": 10000,
    }


@pytest.mark.parametrize("bad", [0.0, -1.0, NAN, INF])
def test_shares_must_be_positive(bad: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        scaled_shares({"a": 1.0, "b": bad})


@pytest.mark.parametrize("seed", range(60))
def test_the_weights_of_those_that_want_to_run_add_up_to_what_they_were(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(2, 30))
    below = random.uniform(0, 10, n)
    below[random.random(n) < 0.1] = NAN
    own = random.integers(-5, 6, n)
    demand = random.random(n) ** 3
    levels = with_weight_kept(below, own, demand)
    said = ~np.isnan(below)
    assert (levels[~said] == own[~said]).all()
    if not said.any():
        return
    before = (demand[said] * 1.25 ** -own[said].astype(float)).sum()
    after = (demand[said] * 1.25 ** -np.rint(levels[said])).sum()
    assert after == pytest.approx(before, rel=0.12)  # half a nice level
    assert_allclose(np.diff(levels[said] - own[said]), np.diff(below[said]), atol=1e-9)


def test_who_hardly_runs_is_lifted_and_who_always_does_stays_near_its_place() -> None:
    light, heavy = with_weight_kept(array(0, 10), array(0, 0), array(0.03, 1.0))
    assert heavy == pytest.approx(1, abs=0.6) and light == heavy - 10
    light, heavy = with_weight_kept(array(0, 10), array(0, 0), array(1.0, 0.03))
    assert light == pytest.approx(0, abs=0.6)
    assert with_weight_kept(array(3, 3, 3), array(0, 0, 0), array(1, 0.1, 0)) == pytest.approx(0)
    bounded = with_weight_kept(array(0, 10), array(0, 0), array(0.03, 1.0), -5, 10)
    assert bounded[0] == -5


def of_queues(queues: Array, depth: list[int], rank: Array | float = 0.0) -> Schedule:
    n = len(queues)
    made = schedule(np.zeros(n), Spacing.LINEAR)
    return replace(
        made,
        form=form(n, rank=rank, per_tuple=1.0),
        queue_size=queues,
        depth=np.array(depth, dtype=np.intp),
        grain=1.0,
    )


def test_short_queues_differ_by_factors_and_standing_ones_by_their_lengths() -> None:
    short = of_queues(array(0, 1, 3, 0), [2, 2, 2, 2])
    step = np.log(2) / np.log(1.25)
    assert_allclose(nice_levels(short, 0, 10), [2 * step, step, 0, 2 * step])
    one = of_queues(array(0, 0, 0.1), [2, 2, 2])
    assert nice_levels(one, 0, 10).max() < 0.5  # a tuple now and then is next to nothing
    standing = replace(short, standing=True)
    assert_allclose(nice_levels(standing, 0, 9), [9, 6, 0, 9])
    assert nice_levels(of_queues(array(0, 1e6), [2, 2]), 0, 10).tolist() == [10, 0]


def test_a_source_without_a_queue_is_neutral_and_helpers_on_top_take_no_part_of_the_range() -> None:
    for standing in (False, True):
        fed = replace(of_queues(array(0, 5, 0), [1, 2, 3]), standing=standing)
        place = places(fed)
        assert np.isnan(place[0]) and place[1] == 1 and place[2] < 1
    assert not np.isnan(places(of_queues(array(4, 5, 0), [1, 2, 3]))[0])
    assert not np.isnan(places(of_queues(array(0, 5, 3), [1, 1, 1]))).any()  # nothing feeds any
    acked = of_queues(array(0, 90, 0), [2, 2, 0], rank=array(0, 0, 1))
    assert nice_values(replace(acked, standing=True), 0, 10).tolist() == [10, 1, 0]
    alike = of_queues(array(3, 3, 0), [2, 2, 0], rank=array(0, 0, 1))
    assert np.isnan(places(alike)[:2]).all()  # an order of nothing pushes nobody back


def test_shares_keep_their_ratios_up_to_the_whole_range_and_no_further() -> None:
    low, high, default = 1, 10_000, 100
    exact = scaled_shares({"a": 1, "b": 9999}, low, high, default)
    assert exact == {"a": 1, "b": 9999}
    wide = scaled_shares({"a": 1, "b": 1e3, "c": 1e6}, low, high, default)
    assert wide == {"a": 1, "b": 100, "c": 10_000}
    up = scaled_shares({"a": 1, "b": 8, "c": 8, "d": 8000}, low, high, default)
    assert (up["a"], up["b"], up["d"]) == (1, 10, 10_000)
    middle = scaled_shares({"a": 1, "b": 4}, low, high, default)
    assert middle == {"a": 50, "b": 200}
    assert scaled_shares({"a": 3}, low, high, default) == {"a": default}


@pytest.mark.parametrize("factor", [1.0, 1e-3, 1e6])
def test_clusters_have_edges_at_equal_ratios_wherever_they_lie(factor: float) -> None:
    values = factor * array(1, 9.9, 10.1, 99, 101, 1000, 0, -5)
    cluster, edges = logarithmic_clusters(values, 3)
    assert cluster.tolist() == [0, 0, 1, 1, 2, 2, 0, 0]
    assert_allclose(edges, factor * array(1, 10, 100, 1000))
    assert logarithmic_clusters(array(0, -1), 3)[1].tolist() == [0, 0]
    assert logarithmic_clusters(factor * array(2, 2), 3)[1].tolist() == [2 * factor] * 2


def test_helpers_on_top_leave_half_of_a_narrow_range_at_least() -> None:
    acked = replace(of_queues(array(0, 90, 0), [2, 2, 0], rank=array(0, 0, 1)), standing=True)
    assert places(acked, 1.0).tolist() == [0, 0.5, 1]
    assert places(acked, 4.0).tolist() == [0, 0.75, 1]
    unknown = replace(acked, form=replace(acked.form, rank=array(0, np.nan, 1)))
    assert places(unknown, 4.0).tolist() == [0, 0.75, 1]
    of_all = replace(acked, depth=np.array([0, 0, 0], dtype=np.intp))
    assert places(of_all, 4.0).tolist() == pytest.approx([0, 1 / 1.5, 1])


def test_a_source_is_neutral_though_others_wait_by_nothing() -> None:
    fed = of_queues(array(0, 5, 0), [1, 2, 3])
    some = form(3, static=array(0, 0, 2), per_tuple=array(1, 1, 0))
    place = places(replace(fed, form=some, standing=True))
    assert np.isnan(place[0]) and place[1:].tolist() == [1, 0]
    aside = form(3, static=array(4, 0, 2), per_tuple=array(1, 1, 0))
    assert not np.isnan(places(replace(fed, form=aside, standing=True))).any()


def test_a_narrow_span_is_a_level_at_least_and_what_is_not_known_is_by_its_size() -> None:
    for span in (0.25, 1.0):
        assert_allclose(from_one_up(array(0, 0.25, 0.1), 1.0, span)[:2], [0, 1], atol=1e-9)
    assert_allclose(from_one_up(array(0, 1, 4), 0.0, 10), linear(array(0, 1, 4)))
    unknown = array(0, np.nan, 4)  # nobody's factors are told from what is not known
    np.testing.assert_equal(from_one_up(unknown, 1.0, 10), linear(unknown))
    assert np.isnan(from_one_up(array(3, 3), 1.0, 10)).all()
    assert from_one_up(array(), 1.0, 10).shape == (0,)


def test_logarithms_of_what_is_not_positive_are_a_level_below_the_least() -> None:
    logs = _logs(array(2, 0, -5, np.nan, 8))
    assert logs is not None
    below = np.log(2) - np.log(1.25)
    assert_allclose(logs, [np.log(2), below, below, np.nan, np.log(8)])
    assert _logs(array(0, -1)) is None and _logs(array()) is None


def test_sizes_that_are_far_apart_do_not_overflow() -> None:
    for low in (-1e-300, -1.7e308):
        place = linear(array(low, 1.7e308, NAN))
        assert place.tolist() == [0, 1, 0.5]
