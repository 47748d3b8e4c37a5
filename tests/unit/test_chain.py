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
