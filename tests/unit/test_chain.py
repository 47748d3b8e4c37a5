"""The lower envelope against a brute-force search, on chains and on out-trees."""

from itertools import combinations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from plans import array, graph
from sched_ctl.metrics.envelope import flow, steepness
from sched_ctl.metrics.formulas import memory_freed
from sched_ctl.model.graph import Array, Graph


def chain_of(n: int) -> Graph:
    return graph(n, *((i, i + 1) for i in range(n - 1)))


def by_hand(cost: Array, selectivity: Array) -> list[float]:
    """The lower envelope of the progress chart of a chain, point by point (Babcock et al. 2003)."""
    n = len(cost)
    size = np.r_[1.0, np.cumprod(selectivity)]
    size[-1] = 0.0  # what the egress emits leaves the queues
    reached = np.r_[1.0, np.cumprod(selectivity)[:-1]]
    time = np.r_[0.0, np.cumsum(reached * cost)]
    slopes: list[float] = []
    start = 0
    while start < n:
        ends = range(start + 1, n + 1)
        slope = [(size[start] - size[end]) / (time[end] - time[start]) for end in ends]
        best = max(range(len(slope)), key=lambda i: (slope[i], i))
        slopes += [slope[best]] * (best + 1)
        start += best + 1
    return slopes


def test_the_classic_example() -> None:
    # A slow operator before one that removes almost all: they go together
    g = chain_of(2)
    c, s = array(1, 1), array(0.9, 0.0)
    slope = steepness(g, c, s, memory_freed(g, s, np.ones(2)))
    assert_allclose(slope, [1 / 1.9] * 2)


@pytest.mark.parametrize("seed", range(30))
def test_chains_have_their_lower_envelope(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(1, 9))
    cost, selectivity = random.uniform(0.1, 5, n), random.uniform(0.05, 1.4, n)
    g = chain_of(n)
    slope = steepness(g, cost, selectivity, memory_freed(g, selectivity, np.ones(n)))
    assert_allclose(slope, by_hand(cost, selectivity), rtol=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_the_first_segment_of_a_tree_is_the_steepest_of_all(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = 7
    parent = [int(random.integers(0, i)) for i in range(1, n)]
    g = graph(n, *((p, i + 1) for i, p in enumerate(parent)))
    cost, selectivity = random.uniform(0.1, 5, n), random.uniform(0.05, 1.2, n)
    freed = memory_freed(g, selectivity, np.ones(n))
    rate = flow(g, selectivity)
    best = -np.inf
    for size in range(n):
        for others in combinations(range(1, n), size):
            piece = {0, *others}
            if all(parent[i - 1] in piece for i in others):
                rows = sorted(piece)
                best = max(best, (rate * freed)[rows].sum() / (rate * cost)[rows].sum())
    assert steepness(g, cost, selectivity, freed)[0] == pytest.approx(best)


@pytest.mark.parametrize("seed", range(40))
def test_segments_of_a_tree_are_the_steepest_one_after_the_other(seed: int) -> None:
    """Whatever the sizes of tuples: what is left below a segment is divided in the same way."""
    random = np.random.default_rng(seed)
    n = int(random.integers(2, 8))
    parent = [-1, *(int(random.integers(0, i)) for i in range(1, n))]
    g = graph(n, *((parent[i], i) for i in range(1, n)))
    cost, selectivity = random.uniform(0.1, 5, n), random.uniform(0.05, 1.2, n)
    freed = memory_freed(g, selectivity, random.lognormal(0, 1.5, n))
    rate = flow(g, selectivity)
    expected = np.full(n, np.nan)

    def divide(begin: int) -> None:
        below = [i for i in range(begin, n) if i == begin or leads_to(begin, i, parent)]
        pieces = [
            {begin, *others}
            for size in range(len(below))
            for others in combinations(below[1:], size)
            if all(parent[i] in {begin, *others} for i in others)
        ]

        def slope(piece: set[int]) -> float:
            rows = sorted(piece)
            return float((rate * freed)[rows].sum() / (rate * cost)[rows].sum())

        best = max(pieces, key=slope)
        expected[sorted(best)] = slope(best)
        for i in below:
            if i not in best and parent[i] in best:
                divide(i)

    divide(0)
    assert_allclose(steepness(g, cost, selectivity, freed), expected)


def leads_to(above: int, below: int, parent: list[int]) -> bool:
    return below >= 0 and (parent[below] == above or leads_to(above, parent[below], parent))


def test_who_becomes_steep_goes_before_who_is_steeper_at_first() -> None:
    # 2 frees less than 1 does, and more with 3 behind it: then 1 only takes time
    g = graph(4, (0, 1), (0, 2), (2, 3))
    slope = steepness(g, array(1, 1, 1, 1), array(1, 1, 1, 1), array(0, 1, 0.5, 100))
    assert_allclose(slope, [33.5, 1, 33.5, 33.5])


def test_a_source_of_very_many() -> None:
    n = 3000
    g = graph(n, *((0, i) for i in range(1, n)))
    cost, freed = np.ones(n), np.arange(n, dtype=np.float64)
    slope = steepness(g, cost, np.ones(n), freed)
    steeper = np.r_[0, np.cumsum(freed[:0:-1])] / np.arange(1, n + 1)
    taken = int(steeper.argmax())
    assert_allclose(slope[0], steeper[taken])
    assert_allclose(slope[1 : n - taken], freed[1 : n - taken])
    assert_allclose(slope[n - taken :], steeper[taken])


def test_operators_above_a_cycle_are_in_segments() -> None:
    g = graph(4, (0, 1), (1, 2), (2, 3), (3, 2))
    slope = steepness(g, array(1, 1, 1, 1), array(1, 0.5, 1, 1), array(0, 1, 0.5, 100))
    assert_allclose(slope, [0.5, 0.5, np.nan, np.nan])


def test_a_diamond_can_be_one_segment() -> None:
    # The join behind the fork removes everything: all lead there
    g = graph(4, (0, 1), (0, 2), (1, 3), (2, 3))
    c, s = array(5, 1, 1, 0.1), array(1, 1, 1, 0)
    slope = steepness(g, c, s, memory_freed(g, s, np.ones(4)))
    assert_allclose(slope, [slope[0]] * 4)


def test_an_operator_with_two_sources_begins_a_segment() -> None:
    g = graph(3, (0, 2), (1, 2))
    c, s = array(1, 1, 0.1), array(1, 1, 1)
    slope = steepness(g, c, s, memory_freed(g, s, np.ones(3)))
    assert_allclose(slope, [0, 0, 10])


def test_unknown_operators_are_in_no_segment() -> None:
    g = chain_of(3)
    c, s = array(1, np.nan, 1), array(0.5, 0.5, 1)
    slope = steepness(g, c, s, memory_freed(g, s, np.ones(3)))
    assert np.isnan(slope).tolist() == [False, True, False]


def test_a_filter_that_lets_nothing_through() -> None:
    g = chain_of(3)
    c, s = array(1, 1, 2), array(0, 0.5, 1)
    slope = steepness(g, c, s, memory_freed(g, s, np.ones(3)))
    assert np.isfinite(slope).all()


def test_flow() -> None:
    g = graph(4, (0, 1, 0.25), (0, 2), (1, 3), (2, 3))
    assert_allclose(flow(g, array(2, 1, 0.5, 1)), [1, 0.5, 2, 0.5 + 1])
