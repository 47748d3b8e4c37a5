"""Global selectivity and cost, ideal time and joins, against examples computed by hand."""

import numpy as np
from numpy.testing import assert_allclose

from plans import array, graph
from sched_ctl.metrics.formulas import (
    global_cost,
    global_selectivity,
    ideal_time,
    join_through,
    memory_freed,
)

NAN = float("nan")


def test_a_chain() -> None:
    g = graph(3, (0, 1), (1, 2))
    c, s = array(1, 2, 3), array(0.5, 0.4, 0.9)
    assert_allclose(global_selectivity(g, s), [0.18, 0.36, 0.9])
    assert_allclose(global_cost(g, c, s), [1 + 0.5 * (2 + 0.4 * 3), 2 + 0.4 * 3, 3])
    assert_allclose(ideal_time(g, c), [6, 6, 6])


def test_two_children_each_get_every_tuple() -> None:
    g = graph(3, (0, 1), (0, 2))
    c, s = array(1, 2, 4), array(0.5, 0.4, 0.2)
    assert_allclose(global_selectivity(g, s), [0.5 * (0.4 + 0.2), 0.4, 0.2])
    assert_allclose(global_cost(g, c, s), [1 + 0.5 * (2 + 4), 2, 4])
    assert_allclose(ideal_time(g, c), [5, 3, 5])


def test_three_children_and_a_selectivity_above_one() -> None:
    g = graph(4, (0, 1), (0, 2), (0, 3))
    c, s = array(1, 1, 2, 3), array(3, 1, 0.5, 2)
    assert_allclose(global_selectivity(g, s)[0], 3 * (1 + 0.5 + 2))
    assert_allclose(global_cost(g, c, s)[0], 1 + 3 * (1 + 2 + 3))


def test_a_diamond_counts_both_ways() -> None:
    # 0 > {1, 2} > 3: each tuple reaches 3 twice
    g = graph(4, (0, 1), (0, 2), (1, 3), (2, 3))
    c, s = array(1, 2, 3, 4), array(1, 0.5, 0.25, 0.8)
    assert_allclose(global_selectivity(g, s), [0.4 + 0.2, 0.4, 0.2, 0.8])
    assert_allclose(global_cost(g, c, s), [1 + 4 + 4, 2 + 0.5 * 4, 3 + 0.25 * 4, 4])
    assert_allclose(ideal_time(g, c), [8, 7, 8, 8])


def test_shares_split_a_stream() -> None:
    g = graph(3, (0, 1, 0.25), (0, 2, 0.75))
    c, s = array(1, 10, 2), array(2, 1, 0.5)
    assert_allclose(global_selectivity(g, s)[0], 2 * (0.25 * 1 + 0.75 * 0.5))
    assert_allclose(global_cost(g, c, s)[0], 1 + 2 * (0.25 * 10 + 0.75 * 2))


def test_what_lies_before_an_unknown_operator_is_unknown() -> None:
    g = graph(4, (0, 1), (1, 2), (0, 3))
    c = array(1, NAN, 1, 1)
    assert np.isnan(global_cost(g, c, np.ones(4))).tolist() == [True, True, False, False]
    # 0 has a way round the unknown operator, but which of its ways costs more is unknown
    assert np.isnan(ideal_time(g, c)).tolist() == [True, True, True, False]


def test_cycles_are_unknown_and_so_is_what_lies_before_them() -> None:
    g = graph(5, (0, 1), (1, 2), (2, 1), (2, 3), (4, 3))
    one = np.ones(5)
    for values in (global_selectivity(g, one), global_cost(g, one, one)):
        assert np.isnan(values).tolist() == [True, True, True, False, False]
    # T also looks upstream: 3 may get its tuples from the cycle
    assert np.isnan(ideal_time(g, one)).tolist() == [True, True, True, True, False]


def test_overflow_is_unknown() -> None:
    g = graph(2, (0, 1))
    assert np.isnan(global_selectivity(g, array(1e200, 1e200))[0])


def test_no_operators() -> None:
    none = np.empty(0)
    assert global_selectivity(graph(0), none).shape == (0,)
    assert ideal_time(graph(0), none).shape == (0,)


def test_a_join_by_the_rates_of_its_inputs() -> None:
    # Sharaf et al. 2006, section 5.2. 0: left segment, 1: right segment, 2: join, 3: common
    g = graph(4, (0, 2), (1, 2), (2, 3))
    c = array(1, 2, 3, 4)
    s_l, s_r, s_j, s_c, window_s = 0.5, 0.8, 0.01, 0.9, 10.0
    tau_l, tau_r = 1 / 20, 1 / 5  # mean inter-arrival times at the ingresses
    to_join = (s_l / tau_l, s_r / tau_r)
    left, right = s_j * s_r * window_s / tau_r, s_j * s_l * window_s / tau_l
    mean = np.average([left, right], weights=to_join)
    # What an engine measures is the mean over both inputs; the rates give back the two sides
    s = array(s_l, s_r, mean, s_c)
    rates = array(*to_join, 0, 0)
    through = join_through(g, s, array(0, 0, window_s, 0), rates)
    assert_allclose(through, [left, right, s_c])
    big_s = global_selectivity(g, s, through)
    big_c = global_cost(g, c, s, through)
    assert_allclose(big_s[0], s_l * s_j * (s_r * window_s / tau_r) * s_c)
    assert_allclose(big_c[0], c[0] + s_l * c[2] + s_l * s_j * s_r * window_s / tau_r * c[3])
    assert_allclose(big_s[1], s_r * s_j * (s_l * window_s / tau_l) * s_c)


def test_the_ideal_time_of_a_join_has_both_inputs() -> None:
    # T = C_L + C_R + 2 C_J + C_C, for every operator of the query
    g = graph(4, (0, 2), (1, 2), (2, 3))
    c = array(1, 2, 3, 4)
    assert_allclose(ideal_time(g, c, array(0, 0, 1, 0)), [13, 13, 13, 13])
    assert_allclose(ideal_time(g, c), [8, 9, 9, 9])


def test_a_join_without_known_rates_takes_the_mean() -> None:
    g = graph(3, (0, 2), (1, 2))
    through = join_through(g, array(1, 1, 0.5), array(0, 0, 1), array(0, NAN, 1))
    assert_allclose(through, [0.5, 0.5])


def test_memory_freed() -> None:
    g = graph(4, (0, 1), (0, 2), (2, 3))
    freed = memory_freed(g, array(0.5, 1, 0.25, 1), array(1, 1, 2, 4))
    # 0: half a tuple of 1 and half a tuple of 2 for each; 1 and 3 are egresses
    assert_allclose(freed, [1 - 0.5 - 1, 1, 2 - 0.25 * 4, 4])


def test_a_join_of_one_input_is_done_once() -> None:
    two = graph(2, (0, 1))
    assert_allclose(ideal_time(two, array(3, 5), array(0, 1)), [8, 8])
    assert_allclose(ideal_time(graph(1), array(5), array(1)), [5])
