"""Operators whose backlog the tuples of other branches pass."""

from collections.abc import Sequence

import numpy as np
import pytest

from bench.sim.branches import Run, run
from plans import frame, plan
from sched_ctl.errors import UserError
from sched_ctl.metrics.branches import dear
from sched_ctl.model.policy import OperatorFrame
from sched_ctl.model.topology import Topology
from sched_ctl.plugins import registry
from sched_ctl.sim import of_workload
from sched_ctl.workloads import workload

#         0 source   1 insert, dear
#                    2 convert  3 publish
FORK = plan({"q": ["source", "insert", "convert", "publish"]}, [(0, 1), (0, 2), (2, 3)])


def found(
    topology: Topology, cost: Sequence[float], selectivity: Sequence[float], **more: Sequence[float]
) -> list[int]:
    of = frame(topology, cost=cost, selectivity=selectivity, **more)
    return np.flatnonzero(dear(of)).tolist()


def test_the_dearest_branch_lets_the_others_pass() -> None:
    assert found(FORK, [1, 10, 2, 1], [1, 1, 1, 1]) == [1]
    assert found(FORK, [1, 10, 2, 1], [5, 1, 0.2, 1]) == [1], "all get as many"
    assert found(FORK, [1, 1, 2, 40], [1, 1, 1, 1]) == [3]
    # Few reach it, so it wants little.
    assert found(FORK, [1, 4, 2, 40], [1, 1, 0.01, 1]) == [1]
    assert found(FORK, [1, float("nan"), 2, 1], [1, 1, 1, 1]) == [2]


def test_nobody_passes_where_all_results_go() -> None:
    assert found(plan({"q": ["a", "b", "c"]}), [1, 9, 1], [1, 1, 1]) == []
    assert found(FORK, [50, 2, 2, 2], [1, 1, 1, 1]) == [], "the source"
    joined = plan({"q": ["a", "b", "c", "d"]}, [(0, 1), (0, 2), (1, 3), (2, 3)])
    assert found(joined, [1, 2, 1, 50], [1, 1, 1, 1]) == []
    assert found(joined, [1, 50, 1, 2], [1, 1, 1, 1]) == [1]


def test_replicas_are_one_operator() -> None:
    """Both halves of the middle are dear; there is no way but through one of them."""
    chain = plan({"q": ["a", "b", "b", "c"]}, [(0, 1), (0, 2), (1, 3), (2, 3)])
    assert found(chain, [1, 50, 50, 1], [1, 1, 1, 1]) == []


def test_beside_a_second_query_only_with_a_backlog() -> None:
    both = plan({"q": ["a", "b", "c"], "r": ["a", "b", "c"]}, [(0, 1), (0, 2), (3, 4), (3, 5)])
    cost, passed = [1, 50, 1, 1, 1, 9], [1] * 6
    assert found(both, cost, passed) == [], "nobody knows"
    busy = [0.2, 1, 0.1, 0.5, 0.1, 0.94]
    assert found(both, cost, passed, utilisation=busy) == [1]
    assert found(both, cost, passed, utilisation=[1] * 6) == [1, 5]
    assert found(both, cost, passed, utilisation=[0.9] * 6) == []
    # Whatever a second query wants, where all results of the first go through one is not dear.
    assert found(both, [50, 1, 1, 1, 1, 9], passed, utilisation=[1] * 6) == [5]
    assert found(plan({}), [], []) == []


def test_who_is_dear_stays_above_a_query_that_is_heavy() -> None:
    """Two queries with branches that have a backlog, one of which uses most of the CPU."""
    both = plan({"q": ["a", "b", "c"], "r": ["a", "b", "c"]}, [(0, 1), (0, 2), (3, 4), (3, 5)])
    columns: dict[str, Sequence[float]] = {
        "cost": [1, 50, 1, 1, 1, 9],
        "selectivity": [1] * 6,
        "utilisation": [1] * 6,
        "cpu_use": [0.1, 0.6, 0.1, 0.05, 0.05, 0.1],
        "head_age": [0] * 6,
        "ideal_time": [0.1] * 6,
        "global_cost": [1] * 6,
        "global_selectivity": [1] * 6,
        "shared_cost": [1] * 6,
    }
    policy = registry.policy("balanced")
    of = frame(both, **columns)
    assert policy.urgency(of).rank.tolist() == [1, 0, 1, 3, 3, 2]


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("etl", {"AzureInsert"}),
        ("lr", {"average_speed", "count_vehicles"}),
        ("stats", {"LinearRegression"}),
        ("vs", set()),  # what all its results go through falls behind as well
        ("syn", set()),
    ],
)
def test_who_has_the_backlog_in_known_workloads(name: str, names: set[str]) -> None:
    node = of_workload(workload.load(f"bench/workloads/{name}.graph"), utilisation=1.0)
    policy = registry.policy("balanced")
    of: OperatorFrame = node.frame(policy)
    behind = dear(of)
    assert {of.operators[row].name for row in np.flatnonzero(behind)} == names
    ranks = policy.urgency(of).rank
    assert ranks.tolist() == (np.where(behind, 0, 1) if names else 0 * ranks).tolist()
    plain = registry.policy("balanced", {"branches": 0})
    assert not plain.urgency(of).rank.any()
    assert np.array_equal(plain.urgency(of).static, policy.urgency(of).static)
    with pytest.raises(UserError, match="must be above 1"):
        registry.policy("balanced", {"branches": 1})


@pytest.mark.parametrize("case", [("lr", 0.95), ("etl", 1.0), ("stats", 0.95), ("vs", 0.95)])
def test_half_of_all_tuples_do_not_pay_for_the_mean(case: tuple[str, float]) -> None:
    """Simulated, on arrivals that nobody looked at."""
    usual, ours, alike = (run(Run(*case, order, 401)) for order in ("os", "balanced", "alike"))
    assert ours[1] <= 1.2 * usual[1]
    assert ours[0] < 0.9 * usual[0] and ours[2] < 0.9 * usual[2]
    if case[0] != "vs":  # where a branch is dear
        assert alike[1] > 2 * usual[1]
