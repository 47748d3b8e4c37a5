"""Graphs of wake-ups, and what is made of histograms of waits."""

import math
import random

import pytest

from sched_ctl.probes.waits import quantile_s, waits_of
from sched_ctl.probes.wakegraph import LEAST, parts, wake_graph

CHAIN = {(1, 2): 500, (2, 3): 400}


def test_a_chain_is_a_chain_and_shares_are_of_the_waker() -> None:
    assert wake_graph(CHAIN, range(1, 4)) == {(1, 2): 1.0, (2, 3): 1.0}
    split = wake_graph({(1, 2): 300, (1, 3): 100}, range(1, 4))
    assert split == {(1, 2): 0.75, (1, 3): 0.25}


def test_noise_and_strangers_are_no_edges() -> None:
    noise = {(3, 2): 30, (9, 1): 10_000, (0, 2): 1000, (2, 2): 10_000, (3, 1): LEAST - 1}
    assert wake_graph(CHAIN | noise, range(1, 4)).keys() == CHAIN.keys()


def test_who_is_woken_from_outside_has_few_edges() -> None:
    """14 of 194 wake-ups are no edge, though nobody else inside gave any."""
    assert wake_graph({(0, 2): 180 * 5, (1, 2): 14 * 5}, [1, 2]) == {}
    assert wake_graph({(9, 2): 90 * 5, (1, 2): 14 * 5}, [1, 2]) == {(1, 2): 1.0}


def test_the_heavier_direction_and_the_lightest_edge_of_a_circle() -> None:
    assert wake_graph({(1, 2): 500, (2, 1): 400}, {1, 2}).keys() == {(1, 2)}
    circle = {(1, 2): 500, (2, 3): 400, (3, 1): 300}
    assert wake_graph(circle, range(1, 4)).keys() == CHAIN.keys()


def test_parts_are_what_no_edge_joins() -> None:
    assert parts([]) == []
    assert parts([(8, 3), (1, 2), (3, 9)]) == [{1, 2}, {3, 8, 9}]
    assert parts([(1, 2), (4, 3), (2, 3)]) == [{1, 2, 3, 4}]


def test_an_edge_stays_for_half_of_what_it_takes_to_become_one() -> None:
    counts = {(1, 3): 930, (2, 3): 70}
    assert (2, 3) not in wake_graph(counts, range(1, 4))
    assert (2, 3) in wake_graph(counts, range(1, 4), before=[(2, 3)])


def test_no_graph_has_a_circle() -> None:
    rng = random.Random(1)
    for _ in range(100):
        counts = {(rng.randrange(9), rng.randrange(9)): rng.randrange(1000) for _ in range(40)}
        below: dict[int, set[int]] = {}
        for a, b in wake_graph(counts, range(9)):
            below.setdefault(a, set()).add(b)
        for start in range(9):
            seen: set[int] = set()
            todo = [start]
            while todo:
                for one in below.get(todo.pop(), set()) - seen:
                    seen.add(one)
                    todo.append(one)
            assert start not in seen


def test_quantiles_of_a_histogram() -> None:
    assert math.isnan(quantile_s([0, 0], 0.5))
    slots = [0, 0, 0, 90, 0, 0, 0, 0, 9, 0, 0, 1]  # 90 below 8 units, 9 below 256, one below 2048
    assert quantile_s(slots, 0.5) == pytest.approx(8 * 1024e-9)
    assert quantile_s(slots, 0.99) == pytest.approx(256 * 1024e-9)
    assert quantile_s(slots, 1.0) == pytest.approx(2048 * 1024e-9)


def test_who_held_a_thread_up_and_who_woke_it() -> None:
    found = waits_of(
        5,
        [0, 2, 1],
        1_000_000,
        {(7, 5): 700_000, (8, 5): 200_000, (7, 6): 9_000_000},
        {(7, 5): 3, (0, 5): 9, (5, 7): 4},
    )
    assert found.waits == 3 and found.wait_s == pytest.approx(1e-3)
    assert found.behind == ((7, 0.7), (8, 0.2))
    assert found.woken_by == ((0, 9), (7, 3)) and not found.goes_on_s


def test_a_wait_that_goes_on_is_one_of_them() -> None:
    found = waits_of(5, [0, 2, 1] + [0] * 29, 1_000_000, {(7, 5): 1_000_000}, {}, 3.0)
    assert found.waits == 4 and found.wait_s == pytest.approx(3.001)
    assert found.goes_on_s == 3.0 and 3.0 < found.long_s < 6.1
    assert [who for who, _ in found.behind] == [7] and found.behind[0][1] < 0.001
    never = waits_of(5, [0] * 32, 0, {}, {}, 3.0)
    assert (never.waits, never.wait_s, never.behind) == (1, 3.0, ())
    assert 3.0 < never.median_s == never.long_s
    finer = waits_of(5, [0] * 32, 0, {}, {}, 2.023897630002466)  # than what the kernel counts
    assert finer.goes_on_s == finer.wait_s


def test_sources_that_contend_for_a_lock_do_not_feed_each_other() -> None:
    """As two of GStreamer's do, whose periods are the same and whose phases happen to be, too."""
    chains = {(1, 2): 600, (2, 3): 600, (4, 5): 600, (5, 6): 600}
    lock = {(1, 4): 90, (4, 1): 60, (0, 1): 540, (0, 4): 510}
    graph = wake_graph(chains | lock, range(1, 7))
    assert graph.keys() == chains.keys()
    assert parts(graph) == [{1, 2, 3}, {4, 5, 6}]
