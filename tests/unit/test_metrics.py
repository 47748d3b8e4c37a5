import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from plans import array, plan, snapshot
from sched_ctl.metrics.catalogue import DERIVATIONS, METRICS, MissingMetric, evaluate, resolve
from sched_ctl.metrics.window import Window, clean, divide
from sched_ctl.model.graph import Array
from sched_ctl.model.policy import Level
from sched_ctl.model.topology import (
    Edge,
    LogicalOperator,
    PhysicalOperator,
    Snapshot,
    Thread,
    Topology,
)

NAN, INF = float("nan"), float("inf")
ONE = plan({"q": ["a", "b", "c"]})  # b is the one to look at: neither ingress nor egress


def got(metric: str, now: Snapshot, then: Snapshot | None = None) -> Array:
    resolution = resolve({metric}, now.columns, policy="p", engine="e")
    return evaluate(resolution, Window(now, then))[metric]


def test_every_derivation_reads_known_metrics_and_describes_itself() -> None:
    for metric, derivations in DERIVATIONS.items():
        assert metric in METRICS
        for derivation in derivations:
            assert set(derivation.needs) <= METRICS.keys()
            assert derivation.how


def test_the_best_derivation_wins() -> None:
    counters: dict[str, list[float]] = {"tuples_in": [10, 10, 10], "busy_time": [9, 9, 9]}
    assert_allclose(got("cost", snapshot(ONE, **counters)), [0.9] * 3)
    counters["thread_cpu_time"] = [5, 5, 5]
    assert_allclose(got("cost", snapshot(ONE, **counters)), [0.5] * 3)
    counters["cpu_time"] = [4, 4, 4]
    assert_allclose(got("cost", snapshot(ONE, **counters)), [0.4] * 3)
    counters["cost"] = [0.1, 0.2, 0.3]
    assert_allclose(got("cost", snapshot(ONE, **counters)), [0.1, 0.2, 0.3])


def test_estimates_are_marked() -> None:
    busy = resolve(
        {"global_cost"}, {"tuples_in", "tuples_out", "busy_time"}, policy="p", engine="e"
    )
    assert busy.is_estimate("global_cost")
    assert not busy.is_estimate("selectivity")
    assert "too high" in busy.how("cost")
    driver = resolve({"head_age"}, {"head_age_estimate"}, policy="p", engine="e")
    assert driver.is_estimate("head_age")
    assert not resolve({"head_age"}, {"head_age"}, policy="p", engine="e").is_estimate("head_age")


def test_what_goes_by_costs() -> None:
    provides = {"tuples_in", "tuples_out", "thread_cpu_time", "queue_size"}
    found = resolve(["global_cost", "queue_size"], provides, policy="p", engine="e")
    assert found.goes_by("cost", ["queue_size", "global_cost"])
    assert not found.goes_by("cost", ["queue_size", "selectivity", "head_age"])
    told = resolve(["cost"], {"cost"}, policy="p", engine="e")
    assert told.goes_by("cost", ["cost"]) and not told.goes_by("thread_cpu_time", ["cost"])


def test_a_missing_primitive_is_named_with_metric_policy_and_engine() -> None:
    with pytest.raises(MissingMetric) as error:
        resolve({"global_cost"}, {"tuples_in", "tuples_out"}, policy="hr", engine="flink:8081")
    text = f"{error.value.message} {error.value.hint}"
    for word in ("hr", "global_cost", "flink:8081", "cpu_time", "thread_cpu_time", "busy_time"):
        assert word in text
    assert "tuples_in" not in text  # it has that


def test_each_way_names_all_it_lacks() -> None:
    with pytest.raises(MissingMetric) as error:
        resolve({"head_age"}, {"queue_size"}, policy="fcfs", engine="e")
    hint = str(error.value.hint)
    assert "head_age_estimate" in hint
    assert "tuples_in" in hint


def test_a_metric_that_nobody_knows() -> None:
    with pytest.raises(MissingMetric, match="qeue_size, which is no metric"):
        resolve({"qeue_size"}, set(), policy="p", engine="e")


def test_rates_are_differences_over_the_window() -> None:
    then = snapshot(ONE, 10, tuples_in=[100, 100, 100])
    now = snapshot(ONE, 12, tuples_in=[100, 104, 300])
    assert_allclose(got("input_rate", now, then), [0, 2, 100])
    assert np.isnan(got("input_rate", now)).all()


def test_what_comes_is_what_was_taken_and_what_the_queue_has_more() -> None:
    then = snapshot(ONE, 10, tuples_in=[100, 100, 100], queue_size=[50, 0, NAN])
    now = snapshot(ONE, 12, tuples_in=[140, 104, 300], queue_size=[20, 6, 3])
    assert_allclose(got("arrival_rate", now, then), [5, 5, NAN])
    assert np.isnan(got("arrival_rate", now)).all()
    burst = snapshot(ONE, 10.1, tuples_in=[100, 100, 100], queue_size=[500, 0, 0])
    assert np.isnan(got("arrival_rate", burst, then)).all()
    fell = snapshot(ONE, 12, tuples_in=[110, 100, 100], queue_size=[20, 0, 0])
    assert got("arrival_rate", fell, then)[0] == 0, "some were dropped"


def test_a_cost_is_taken_over_the_window_while_tuples_flow() -> None:
    then = snapshot(ONE, 10, tuples_in=[100, 100, 100], cpu_time=[100, 100, 100])
    now = snapshot(ONE, 11, tuples_in=[110, 100, 100], cpu_time=[102, 100, 103])
    # a: 2/10. b: nothing flowed, so the total. c: time but no tuple, so the total
    assert_allclose(got("cost", now, then), [0.2, 1, 1.03])


def test_a_filter_that_rarely_passes_keeps_its_selectivity() -> None:
    then = snapshot(ONE, 10, tuples_in=[0, 1000, 0], tuples_out=[0, 10, 0])
    now = snapshot(ONE, 11, tuples_in=[0, 1020, 0], tuples_out=[0, 10, 0])
    assert got("selectivity", now, then)[1] == pytest.approx(10 / 1020)


def test_nothing_ever_counted_is_unknown() -> None:
    now = snapshot(ONE, tuples_in=[0, 0, 0], cpu_time=[0, 0, 0])
    assert np.isnan(got("cost", now)).all()


def test_a_restart_resets_counters() -> None:
    then = snapshot(ONE, 10, tuples_in=[0, 1000, 0], cpu_time=[0, 500, 0])
    now = snapshot(ONE, 12, tuples_in=[0, 40, 0], cpu_time=[0, 8, 0])
    assert got("cost", now, then)[1] == pytest.approx(0.2)
    assert got("input_rate", now, then)[1] == pytest.approx(20)


def test_a_counter_that_falls_a_little_began_not_anew() -> None:
    """Such as the sum of three series, of which one has gone."""
    then = snapshot(ONE, 10, tuples_in=[0, 90_000, 0], cpu_time=[0, 9, 0])
    now = snapshot(ONE, 12, tuples_in=[0, 60_400, 0], cpu_time=[0, 9.1, 0])
    assert math.isnan(got("input_rate", now, then)[1])
    assert got("cost", now, then)[1] == pytest.approx(9.1 / 60_400)


def test_a_restart_seen_by_one_counter_only() -> None:
    then = snapshot(ONE, 10, tuples_in=[0, 10, 0], cpu_time=[0, 500, 0])
    now = snapshot(ONE, 12, tuples_in=[0, 40, 0], cpu_time=[0, 8, 0])
    assert got("cost", now, then)[1] == pytest.approx(0.2)


@pytest.mark.parametrize("then_time", [12.0, 13.0])
def test_a_clock_that_did_not_move_leaves_the_totals(then_time: float) -> None:
    then = snapshot(ONE, then_time, tuples_in=[1, 1, 1], cpu_time=[1, 1, 1])
    now = snapshot(ONE, 12.0, tuples_in=[5, 5, 5], cpu_time=[10, 10, 10])
    assert_allclose(got("cost", now, then), [2, 2, 2])
    assert np.isnan(got("input_rate", now, then)).all()


def test_another_topology_is_not_compared() -> None:
    then = snapshot(plan({"q": ["a"]}), 10, tuples_in=[3])
    now = snapshot(ONE, 12, tuples_in=[5, 5, 5])
    assert np.isnan(got("input_rate", now, then)).all()


@pytest.mark.parametrize("bad", [NAN, INF, -INF, -1.0])
def test_values_that_cannot_be_are_unknown(bad: float) -> None:
    now = snapshot(ONE, queue_size=[1, bad, 2])
    assert_allclose(got("queue_size", now), [1, NAN, 2])
    counted = snapshot(ONE, tuples_in=[1, bad, 2], cpu_time=[1, 1, bad])
    assert_allclose(got("cost", counted), [1, NAN, NAN])


def test_hostile_sizes_do_not_overflow() -> None:
    now = snapshot(ONE, tuples_in=[1e-300] * 3, tuples_out=[1e18] * 3, cpu_time=[1e18] * 3)
    for metric in ("selectivity", "cost", "global_cost", "global_selectivity", "ideal_time"):
        assert np.isnan(got(metric, now)).all()


def test_a_column_of_the_wrong_length_names_engine_and_metric() -> None:
    with pytest.raises(ValueError, match="lab:1: queue_size"):
        got("queue_size", snapshot(ONE, queue_size=[1, 2]))


def test_sources_and_sinks_that_count_one_side_only() -> None:
    # as Flink does: a source takes in nothing, a sink emits nothing
    now = snapshot(ONE, tuples_in=[0, 100, 40], tuples_out=[100, 40, 0], cpu_time=[2, 1, 1])
    assert_allclose(got("selectivity", now), [1, 0.4, 1])
    assert_allclose(got("cost", now), [0.02, 0.01, 0.025])
    assert_allclose(got("global_selectivity", now), [0.4, 0.4, 1])


def test_a_queue_is_what_is_under_way() -> None:
    fork = plan({"q": ["a", "b", "c"]}, [(0, 1), (0, 2)])
    now = snapshot(fork, tuples_in=[100, 60, 110], tuples_out=[100, 60, 1])
    assert_allclose(got("queue_size", now), [NAN, 40, 0])


def test_littles_law_adds_up_the_waits_on_the_way() -> None:
    then = snapshot(ONE, 10, tuples_in=[0, 0, 0], queue_size=[0, 0, 0])
    now = snapshot(ONE, 12, tuples_in=[20, 40, 40], queue_size=[5, 40, 0])
    # a: 5 waiting at 10/s; b: 40 at 20/s after a's wait; c: none waits
    assert_allclose(got("head_age", now, then), [0.5, 2.5, 0])


def test_a_queue_that_nobody_serves_is_as_old_as_the_window() -> None:
    then = snapshot(ONE, 10, tuples_in=[5, 5, 5], queue_size=[0, 0, 0])
    now = snapshot(ONE, 12, tuples_in=[5, 5, 5], queue_size=[0, 7, 0])
    assert_allclose(got("head_age", now, then), [0, 2, 0])


def test_utilisation() -> None:
    then = snapshot(ONE, 10, idle_time=[0, 0, 0])
    now = snapshot(ONE, 12, idle_time=[0.5, 2, 0])
    assert_allclose(got("utilisation", now, then), [0.75, 0, 1])


def test_a_logical_operator_is_as_busy_as_its_replicas_are() -> None:
    """And so is each of a fused chain."""
    logical = tuple(LogicalOperator("q", name) for name in "ab")
    operators = tuple(PhysicalOperator("q", f"ab{nth}", ("a", "b"), nth, 4) for nth in range(4))
    topology = Topology("e", operators, (), logical, ())
    counters = "idle_time", "backpressured_time", "busy_time", "tuples_in"
    then = snapshot(topology, 10, **dict.fromkeys(counters, [0] * 4))
    now = snapshot(
        topology,
        12,
        idle_time=[0.6, 0.6, 0.6, 0.2],
        backpressured_time=[0, 0, 0, 1.0],
        busy_time=[1.4, 1.4, 1.4, 0.8],
        tuples_in=[7, 7, 7, 4],
    )
    needs = {"utilisation", "idle", "backpressured", "busy", "cost"}
    resolution = resolve(needs, now.columns, policy="p", engine="e")
    found = evaluate(resolution, Window(now, then, Level.LOGICAL))
    assert_allclose(found["utilisation"], [0.75, 0.75])
    assert_allclose(found["idle"], [0.25, 0.25])
    assert_allclose(found["backpressured"], [0.125, 0.125])
    assert_allclose(found["busy"], [0.625, 0.625])
    assert_allclose(found["cost"], [0, 0.2])


@pytest.mark.parametrize("level", list(Level))
def test_a_pool_is_busy_when_all_of_its_threads_are(
    level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight threads, of which each has work for an eighth of its time, are no full thread."""
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    a, b, c = ONE.operators
    pools = [
        replace(
            b,
            name=f"b{nth}",
            replica=nth,
            replicas=2,
            threads=tuple(Thread(1, 200 + 4 * nth + tid, 7) for tid in range(4)),
        )
        for nth in range(2)
    ]
    nobody = replace(c, threads=())
    topology = replace(ONE, operators=(a, *pools, nobody), edges=())
    then = snapshot(topology, 10, tuples_in=[0] * 4, thread_cpu_time=[0] * 4)
    now = snapshot(topology, 12, tuples_in=[8] * 4, thread_cpu_time=[2.0, 1.0, 1.0, 0.5])
    resolution = resolve({"utilisation"}, now.columns, policy="p", engine="e")
    found = evaluate(resolution, Window(now, then, level))["utilisation"]
    b_s = [0.125] * (1 if level is Level.LOGICAL else 2)
    assert_allclose(found, [1, *b_s, 0.25])


@pytest.mark.parametrize(("cpus", "utilisation"), [(16, 0.5), (8, 0.5), (4, 1.0), (None, 1.0)])
def test_a_pool_that_is_wider_than_the_machine_is_busy_when_all_cpus_are(
    cpus: int | None, utilisation: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cpus)
    a, b, c = ONE.operators
    pool = replace(b, threads=tuple(Thread(1, 200 + tid, 7) for tid in range(8)))
    topology = replace(ONE, operators=(a, pool, c))
    then = snapshot(topology, 10, tuples_in=[0] * 3, thread_cpu_time=[0] * 3)
    now = snapshot(topology, 12, tuples_in=[8] * 3, thread_cpu_time=[0.2, 8.0, 0.2])
    assert_allclose(got("utilisation", now, then), [0.1, utilisation, 0.1])


def test_joins_are_taken_into_account_where_the_engine_tells_of_windows() -> None:
    join = plan({"q": ["left", "right", "join"]}, [(0, 2), (1, 2)])
    counters: dict[str, list[float]] = {
        "tuples_in": [100, 300, 400],
        "tuples_out": [100, 300, 400],
        "cpu_time": [1, 1, 1],
    }
    then = snapshot(join, 10, **{name: [0, 0, 0] for name in counters}, window=[0, 0, 5])
    now = snapshot(join, 11, **counters, window=[0, 0, 5])
    # half of the output is caused by either input
    assert_allclose(got("global_selectivity", now, then), [2, 400 / 2 / 300, 1])
    plain = snapshot(join, 11, **counters)
    assert_allclose(got("global_selectivity", plain, then), [1, 1, 1])


# Two logical operators fused into one physical one, a third one in two replicas:
# physical 0 runs a > b, 1 and 2 are the replicas of c.
FUSED = Topology(
    "e",
    (
        PhysicalOperator("q", "a+b", ("a", "b")),
        PhysicalOperator("q", "c/0", ("c",), 0, 2),
        PhysicalOperator("q", "c/1", ("c",), 1, 2),
    ),
    (Edge(0, 1, 0.5), Edge(0, 2, 0.5)),
    tuple(LogicalOperator("q", name) for name in "abc"),
    (Edge(0, 1), Edge(1, 2)),
)


def test_physical_counters_seen_by_logical_operators() -> None:
    now = snapshot(
        FUSED,
        tuples_in=[100, 20, 30],
        tuples_out=[50, 20, 30],
        cpu_time=[10, 1, 4],
        queue_size=[7, 1, 2],
        head_age=[3, 1, 2],
    )
    window = Window(now, level=Level.LOGICAL)
    expected: dict[str, list[float]] = {
        "tuples_in": [100, 100, 50],
        "tuples_out": [100, 50, 50],
        "cpu_time": [0, 10, 5],
        "queue_size": [7, 0, 3],
        "head_age": [3, 0, 2],
    }
    for metric, values in expected.items():
        assert_allclose(window.value(metric), values, err_msg=metric)


def test_a_fused_operator_is_worth_the_same_at_both_levels() -> None:
    now = snapshot(FUSED, tuples_in=[100, 20, 30], tuples_out=[50, 20, 30], cpu_time=[10, 1, 4])
    resolution = resolve({"global_selectivity", "global_cost"}, now.columns, policy="p", engine="e")
    physical = evaluate(resolution, Window(now))
    logical = evaluate(resolution, Window(now, level=Level.LOGICAL))
    assert_allclose(logical["global_selectivity"][:2], physical["global_selectivity"][0])
    assert_allclose(logical["global_cost"][:2], 10 / 100 + 0.5 * 5 / 50)


def test_logical_counters_seen_by_physical_operators() -> None:
    now = Snapshot(
        FUSED,
        1.0,
        {},
        {
            "tuples_in": array(100, 90, 50),
            "tuples_out": array(90, 50, 50),
            "cpu_time": array(2, 3, 8),
            "queue_size": array(7, 0, 4),
            "selectivity": array(0.9, 0.5, 1),
        },
    )
    window = Window(now)
    expected: dict[str, list[float]] = {
        "tuples_in": [100, 25, 25],
        "tuples_out": [50, 25, 25],
        "cpu_time": [5, 4, 4],
        "queue_size": [7, 2, 2],
        "selectivity": [0.45, 1, 1],
    }
    for metric, values in expected.items():
        assert_allclose(window.value(metric), values, err_msg=metric)


@pytest.mark.parametrize("value", [-1.0, float("inf"), -0.0, 3.0])
def test_one_value_alone_is_cleaned_too(value: float) -> None:
    [found] = clean([value])
    assert found == value if value in (0.0, 3.0) else math.isnan(found)
    assert clean([]).shape == (0,)


def test_an_ingress_that_counts_has_its_own_word_and_others_that_of_their_output() -> None:
    topology = plan({"q": ["a", "b"], "r": ["c", "d"]})
    window = Window(snapshot(topology, 10.0, tuples_in=[1, 4, 0, 3], tuples_out=[5, 0.5, 0.7, 0]))
    assert window.value("tuples_in").tolist() == [1, 4, 0.7, 3]
    assert window.value("tuples_out").tolist() == [5, 0.5, 0.7, 3]


def test_a_prior_stands_for_what_is_unknown_and_for_nothing_else() -> None:
    now = replace(snapshot(ONE), priors={"cost": np.array([1.0, 2.0, 3.0])})
    window = Window(now)
    known = np.array([np.nan, 9.0, np.nan])
    assert window.or_prior("cost", known).tolist() == [1, 9, 3]
    assert window.or_prior("selectivity", known) is known
    whole = np.array([7.0, 8.0, 9.0])
    assert window.or_prior("cost", whole).tolist() == [7, 8, 9]


def test_rates_of_what_is_new_are_those_of_the_shorter_window() -> None:
    then, recent, now = (
        snapshot(ONE, time_s, cpu_time=column)
        for time_s, column in ((0.0, [0, NAN, NAN]), (8.0, [1, 2, NAN]), (10.0, [5, 6, NAN]))
    )
    found = Window(now, then, recent=recent).rate("cpu_time")
    assert found.tolist()[:2] == [0.5, 2.0] and np.isnan(found[2])


def test_who_has_not_run_since_we_look_costs_something() -> None:
    now = snapshot(ONE, thread_cpu_time=[0, 2, NAN], tuples_in=[100, 100, 100])
    assert_allclose(got("cost", now), [NAN, 0.02, NAN])


def test_by_nothing_there_is_no_ratio() -> None:
    assert np.isnan(divide(array(1, 0, 3, 3), array(0, 0, -1, NAN))).all()
    assert divide(array(3), array(2)).tolist() == [1.5]


def test_what_waits_outside_of_the_engine_makes_nobody_older() -> None:
    now = snapshot(ONE, 10.0, queue_size=[NAN, 4, 2], input_rate=[1, 2, 2])
    assert got("head_age", now).tolist()[1:] == [2, 3] and np.isnan(got("head_age", now)[0])
