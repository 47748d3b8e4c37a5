"""Queries that span nodes: how old tuples are when they come, and what is known of other nodes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from numpy.testing import assert_allclose

from plans import LIMITS, array, frame, graph, plan, snapshot
from sched_ctl.backends.scx.hints import hints, merged
from sched_ctl.backends.scx.slots import arrivals_us, heads_ns
from sched_ctl.decide.decision import decide
from sched_ctl.drivers.flink.metrics import HeadAge
from sched_ctl.drivers.flink.renewals import Renewals
from sched_ctl.metrics import feasibility
from sched_ctl.metrics.catalogue import evaluate, resolve
from sched_ctl.metrics.feasibility import Load
from sched_ctl.metrics.formulas import arrival_age
from sched_ctl.metrics.window import Window
from sched_ctl.model.files import snapshot_from_json, snapshot_to_json
from sched_ctl.model.graph import Array, Graph
from sched_ctl.model.schedule import Schedule, without
from sched_ctl.model.targets import Target
from sched_ctl.model.topology import Snapshot, Topology
from sched_ctl.plugins import registry

NAN = float("nan")


def spanning(topology: Topology, *away: int) -> Topology:
    """The same with these operators on another node."""
    operators = tuple(
        replace(operator, threads=(), away=True) if row in away else operator
        for row, operator in enumerate(topology.operators)
    )
    return replace(topology, operators=operators)


def mask(n: int, *rows: int) -> npt.NDArray[np.bool_]:
    found = np.zeros(n, dtype=np.bool_)
    found[list(rows)] = True
    return found


# --- how old tuples are when they come ---


def test_all_waits_before_a_node_count() -> None:
    g = graph(5, (0, 1), (1, 2), (2, 3), (3, 4))
    wait = array(1, 2, 4, 8, 16)
    assert arrival_age(g, wait, mask(5, 0, 1)).tolist() == [0, 0, 3, 3, 3]
    # away and back: what tuples waited here before counts as well
    assert arrival_age(g, wait, mask(5, 2)).tolist() == [0, 0, 0, 7, 7]
    assert arrival_age(g, wait, mask(5, 3, 4)).tolist() == [0] * 5, "downstream makes nobody older"


def test_the_slowest_way_from_elsewhere_counts_and_no_way_from_here() -> None:
    g = graph(4, (0, 3), (1, 3), (2, 3))
    assert arrival_age(g, array(1, 5, 9, 1), mask(4, 0, 1))[3] == 5


def random_graph(rng: np.random.Generator) -> tuple[Graph, Array]:
    n = int(rng.integers(2, 30))
    pairs = {(int(a), int(b)) for a, b in rng.integers(0, n, (3 * n, 2)) if a < b}
    return graph(n, *sorted(pairs)), rng.exponential(1.0, n)


@pytest.mark.parametrize("seed", range(200))
def test_properties_of_the_age(seed: int) -> None:
    rng = np.random.default_rng(seed)
    g, wait = random_graph(rng)
    away = rng.random(g.n) < 0.4
    age = arrival_age(g, wait, away)
    assert (arrival_age(g, wait, mask(g.n)) == 0).all(), "a job on one node"
    assert np.isfinite(age).all() and (age >= 0).all() and (age[away] == 0).all()
    # it is part of the whole wait down to there, and no less than that before any producer away
    behind = np.zeros(g.n)
    for _, edges in g.reversed.levels:
        np.maximum.at(behind, g.target[edges], (behind + wait)[g.source[edges]])
    assert (age <= behind + 1e-9).all()
    for source, target in zip(g.source.tolist(), g.target.tolist(), strict=True):
        if not away[target]:
            assert age[target] >= (behind[source] + wait[source] if away[source] else age[source])
    # who waits longer makes nobody younger; what is not known makes nobody older
    longer = wait + rng.exponential(1.0, g.n)
    assert (arrival_age(g, longer, away) >= age).all()
    unknown = np.where(rng.random(g.n) < 0.5, NAN, wait)
    assert (arrival_age(g, unknown, away) <= age + 1e-9).all()
    assert (arrival_age(g, np.full(g.n, NAN), away) == 0).all()


def test_cycles_stay_without() -> None:
    g = graph(4, (0, 1), (1, 2), (2, 1), (2, 3))
    assert arrival_age(g, np.ones(4), mask(4, 0)).tolist() == [0] * 4


# --- metrics ---

CHAIN = spanning(plan({"q": ["a", "b", "c", "d"]}), 0, 1)


def columns(now: Snapshot, *wanted: str, then: Snapshot | None = None) -> dict[str, Array]:
    resolution = resolve(wanted, now.columns, policy="p", engine="e")
    return dict(evaluate(resolution, Window(now, then)))


def test_the_age_from_what_a_driver_waited_or_by_littles_law() -> None:
    told = snapshot(CHAIN, wait_estimate=[NAN, 0.5, 3, 3])
    assert_allclose(columns(told, "arrival_age")["arrival_age"], [0, 0, 0.5, 0.5])
    counted = snapshot(CHAIN, queue_size=[NAN, 50, 9, 9], input_rate=[100, 100, 100, 100])
    assert_allclose(columns(counted, "arrival_age")["arrival_age"], [0, 0, 0.5, 0.5])
    # nothing comes from one that takes nothing in
    stuck = snapshot(CHAIN, queue_size=[NAN, 50, 9, 9], input_rate=[100, 0, 100, 100])
    assert_allclose(columns(stuck, "arrival_age")["arrival_age"], [0, 0, 0, 0])


def test_head_ages_begin_elsewhere_and_fall_back_to_what_is_known() -> None:
    counted = snapshot(CHAIN, queue_size=[NAN, 50, 10, 0], input_rate=[100, 100, 100, 100])
    assert_allclose(columns(counted, "head_age")["head_age"][2:], [0.6, 0])
    cut_off = snapshot(CHAIN, queue_size=[NAN, NAN, 10, 0], input_rate=[NAN, NAN, 100, 100])
    assert_allclose(columns(cut_off, "head_age")["head_age"][2:], [0.1, 0])


def test_what_a_tuple_costs_elsewhere_is_what_the_engine_says() -> None:
    chain = spanning(plan({"q": ["a", "b", "c"]}), 2)
    counts: dict[str, Sequence[float]] = {
        "tuples_in": [100, 100, 100],
        "tuples_out": [100, 100, 100],
        "thread_cpu_time": [1, 1, NAN],
        "busy_time": [9, 9, 4],
    }
    found = columns(snapshot(chain, **counts), "global_cost", "ideal_time")
    assert_allclose(found["global_cost"], [0.06, 0.05, 0.04])
    assert_allclose(found["ideal_time"], [0.06] * 3)
    without_busy = {name: column for name, column in counts.items() if name != "busy_time"}
    assert np.isnan(columns(snapshot(chain, **without_busy), "cost")["cost"][2])


def test_a_job_on_one_node_is_as_before() -> None:
    here = plan({"q": ["a", "b", "c"]})
    counts: dict[str, Sequence[float]] = {
        "tuples_in": [100, 100, 100],
        "tuples_out": [100, 100, 100],
        "thread_cpu_time": [1, NAN, 1],
        "busy_time": [9, 9, 4],
        "queue_size": [NAN, 4, NAN],
    }
    then = snapshot(here, 9.0, **{name: [0.0] * 3 for name in counts})
    found = columns(snapshot(here, **counts), "cost", "head_age", "arrival_age", then=then)
    assert_allclose(found["cost"], [0.01, NAN, 0.01])
    assert_allclose(found["head_age"], [NAN, 0.04, NAN])
    assert (found["arrival_age"] == 0).all()


def test_a_snapshot_in_a_file_keeps_who_is_elsewhere() -> None:
    data = snapshot_to_json(snapshot(CHAIN, queue_size=[1, 2, 3, 4]))
    assert snapshot_from_json(data).topology.away.tolist() == [True, True, False, False]


# --- freshness of what another node tells ---


def test_a_rate_is_between_two_renewals() -> None:
    """The JobManager fetches every 10 s: 100 tuples/s, and 50 wait each time."""
    g = graph(2, (0, 1))
    estimate, renewals = HeadAge(g), Renewals(2)
    asked = mask(2, 1)
    for second in range(35):
        fetched = 10 * (second // 10)
        taken = array(100 * second, 100 * fetched)
        fresh = renewals.update(float(second), np.stack([taken, taken]), asked)
        assert fresh.tolist() == [True, second % 10 == 0]
        estimate.update(float(second), taken, array(0, 50), fresh)
        if second >= 10:
            assert estimate.waits[1] == pytest.approx(0.5)
    assert not renewals.stale(35.0, 30.0).any()
    for second in range(35, 70):
        renewals.update(float(second), np.stack([taken, taken]), asked)
    assert renewals.stale(70.0, 30.0).tolist() == [False, True]
    # cut off: its queue is not known any more
    estimate.update(70.0, taken, array(0, NAN), mask(2, 1))
    assert np.isnan(estimate.waits[1])


# --- targets ---


def judged(latency: str = "100ms", **told: Sequence[float]) -> Load:
    of = frame(CHAIN, **told)
    (load,) = feasibility.loads(of, [""], (Target(queries=("q",), latency=latency),)).values()
    return load


def test_a_target_counts_time_elsewhere_and_this_nodes_cpus_alone() -> None:
    load = judged(
        cost=[1e-3] * 4,
        selectivity=[1] * 4,
        # what another node tells of its rates is old: what comes is counted here
        input_rate=[0, 0, 100, 100],
        path_cost=[4e-3, 3e-3, 2e-3, 1e-3],
        arrival_age=[0, 0, 0.06, 0.06],
        queue_size=[0, 500, 1, 0],
        global_cost=[4e-3, 3e-3, 2e-3, 1e-3],
        head_age=[0, 0.06, 0.061, 0],
    )
    assert load.path_s == 4e-3
    assert load.cpus == pytest.approx(0.2)
    assert load.work_s == pytest.approx(2e-3)
    assert load.slack_s == pytest.approx(0.1 - 0.063)


def test_the_least_slack_counts_time_elsewhere() -> None:
    two = plan({"near": ["a", "b"], "far": ["c", "d"]})
    policy = registry.policy("deadline", {"targets": [{"queries": ["*"], "latency": "1s"}]})
    known = {
        "cost": [1e-3] * 4,
        "selectivity": [1.0] * 4,
        "global_cost": [2e-3, 1e-3] * 2,
        "path_cost": [2e-3, 1e-3] * 2,
        "head_age": [0.0] * 4,
    }
    told = {name: [1.0] * 4 for name in policy.needs} | known

    def standing(age: float) -> float:
        of = frame(spanning(two, 2), **told, arrival_age=[0, 0, 0, age])
        (far,) = (
            load
            for (_, query), load in feasibility.loads(of, [""], policy.targets).items()
            if query == "far"
        )
        return far.slack_s

    assert standing(0.9) == pytest.approx(0.1 - 1e-3)
    assert standing(0.0) == pytest.approx(1.0 - 2e-3)


# --- to the kernel ---


def ruled(policy: str, **told: Sequence[float]) -> Schedule:
    now = snapshot(CHAIN, **told)
    chosen = registry.policy(policy)
    resolution = resolve(
        chosen.needs, now.columns, policy=policy, engine="e", wants={"arrival_age"}
    )
    name = now.topology.engine
    return decide("main", chosen, {name: Window(now)}, {name: resolution})


def test_the_scheduler_is_told_where_age_decides() -> None:
    told: dict[str, Sequence[float]] = {
        "queue_size": [NAN, 50, 10, 0],
        "input_rate": [100] * 4,
        "head_age": [0, 0.5, 0.6, 0],
        "cost": [1e-3] * 4,
        "selectivity": [1] * 4,
    }
    for policy, ages_us in (("lsf", [500_000] * 2), ("bsd", [500_000] * 2), ("hr", [0, 0])):
        schedule = ruled(policy, **told)
        assert_allclose(schedule.arrival_age_s, [0.5, 0.5])
        parts = [(0, part) for part in hints(schedule, LIMITS)]
        by_age = merged(parts, len(schedule.threads), LIMITS).by_age
        assert arrivals_us([schedule], by_age).tolist() == ages_us, policy
    assert without(schedule, {schedule.threads[0]}).arrival_age_s.tolist() == [0.5]


def test_no_tuple_is_younger_than_when_it_comes() -> None:
    schedule = replace(ruled("lsf", head_age=[0, 0, 0.2, 0.7], cost=[1e-3] * 4), queries=())
    came = arrivals_us([replace(schedule, arrival_age_s=array(0.5, 0.5))], np.ones(2, dtype=bool))
    before, after = heads_ns([schedule]), heads_ns([schedule], came)
    moved_s = (before.astype(np.int64) - after.astype(np.int64)) * 1e-9
    assert_allclose(moved_s, [0.3, 0.0], atol=0.05)


@pytest.mark.parametrize("odd", [NAN, np.inf, -1.0, 1e300])
def test_odd_ages_are_bounded(odd: float) -> None:
    schedule = ruled("lsf", head_age=[0, 0, 0, 0], cost=[1e-3] * 4)
    told = replace(schedule, arrival_age_s=array(odd, 0.5))
    assert arrivals_us([told], np.ones(2, dtype=bool))[0] in (0, 1_000_000_000)
