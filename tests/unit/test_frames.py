"""Frames and graphs out of parts, rows of one level for those of another, and who is in none."""

from dataclasses import replace

import numpy as np
import pytest

from plans import array, frame, graph, plan
from sched_ctl.decide import decision
from sched_ctl.decide.idle import without_input_last
from sched_ctl.metrics.backlog import (
    CATCHES_UP_S,
    KEEPS_UP,
    LATELY,
    LONG_S,
    MEMORY,
    REMEMBERED_S,
    heavy,
    keeps_up,
    kept_up,
    seen,
)
from sched_ctl.metrics.levels import most_urgent, to_logical
from sched_ctl.model.frames import join_graphs, subframe, subgraph
from sched_ctl.model.graph import Graph
from sched_ctl.model.policy import OperatorFrame, Policy, UrgencyForm, form
from sched_ctl.model.topology import LogicalOperator

NAN = float("nan")


def edges(of: Graph) -> list[tuple[int, int, float]]:
    return list(zip(of.source.tolist(), of.target.tolist(), of.share.tolist(), strict=True))


def test_a_part_of_a_graph_has_the_edges_inside_of_it() -> None:
    whole = graph(4, (0, 1, 0.3), (1, 2, 0.5), (2, 3, 0.7), (0, 2, 0.9))
    assert edges(subgraph(whole, np.array([2, 0]))) == [(1, 0, 0.9)]
    assert edges(subgraph(whole, np.array([1, 2]))) == [(0, 1, 0.5)]
    assert edges(subgraph(whole, np.array([0, 1]))) == [(0, 1, 0.3)]
    part = subframe(frame(plan({"q": ["a", "b", "c"]}), cost=[1, 2, 3]), np.array([2, 1]))
    assert [operator.name for operator in part.operators] == ["c", "b"]
    assert part["cost"].tolist() == [3, 2] and edges(part.graph) == [(1, 0, 1.0)]


def test_graphs_side_by_side_keep_their_edges_and_have_none_between() -> None:
    one, two = graph(2, (0, 1, 0.5)), graph(3, (0, 1, 0.25), (1, 2, 0.75))
    both = join_graphs([one, two, one])
    assert both.n == 7
    assert edges(both) == [(0, 1, 0.5), (2, 3, 0.25), (3, 4, 0.75), (5, 6, 0.5)]
    assert join_graphs([]).n == 0 and edges(join_graphs([])) == []


def test_heights_are_of_the_longest_way_out() -> None:
    assert graph(4, (0, 1), (1, 2), (0, 3)).height.tolist() == [2, 1, 0, 0]
    assert graph(1).height.tolist() == [0]


def test_of_equal_candidates_the_first_has_an_owner_and_none_has_it_by_default() -> None:
    owner, candidate = np.array([0, 0, 1, 1, 3]), np.array([1, 0, 2, 0, 2])
    shape = form(3, static=array(5, 5, 1))
    assert most_urgent(shape, shape.static, owner, candidate, 4).tolist() == [0, 3, -1, 4]
    ranked = replace(shape, rank=array(0, 0, 1))
    assert most_urgent(ranked, shape.static, owner, candidate, 4).tolist() == [0, 2, -1, 4]
    unknown = array(NAN, 5, 1)
    assert most_urgent(shape, unknown, owner, candidate, 4).tolist() == [0, 2, -1, 4]


def plain(**more: object) -> Policy:
    return Policy("p", lambda of: form(len(of)), frozenset(), "g", **more)  # type: ignore[arg-type]


def test_who_has_nothing_to_do_is_a_rank_below_all_and_says_nothing_else() -> None:
    shape = form(3, rank=array(2, 4, 3), static=array(7, 8, 9), per_second=1.0, per_tuple=2.0)
    spins = np.array([True, True, False])
    last = without_input_last(plain(), shape, array(0, 1, 0), spins)
    assert last.rank.tolist() == [1, 4, 3]
    assert last.static.tolist() == [0, 8, 9]
    assert last.per_second.tolist() == [0, 1, 1] and last.per_tuple.tolist() == [0, 2, 2]
    some = without_input_last(plain(), shape, array(0.5, 1, 0), spins)
    assert some.rank.tolist() == [1, 4, 3]


@pytest.mark.parametrize("static", [1.0, NAN])
def test_an_order_of_equals_is_none(static: float) -> None:
    shape = form(2, static=static)
    spins = np.array([True, False])
    assert without_input_last(plain(), shape, array(0, 5), spins) is shape
    other = form(2, static=array(NAN, 1))
    assert without_input_last(plain(), other, array(0, 5), spins).rank.tolist() == [-1, 0]


def test_threads_that_nothing_decides_for_are_in_the_middle_or_on_top() -> None:
    shape = form(3, rank=array(1, 5, NAN), static=array(7, 8, 9), per_second=1.0, per_tuple=2.0)
    row, decided = np.array([0, 1, 0, 0]), np.array([True, True, False, False])
    made = decision._of_threads(shape, row, decided, np.array([False, True, False, True]))
    assert made.rank.tolist() == [1, 5, 3, 6]
    assert made.static.tolist()[:2] == [7, 8]
    assert np.isnan(made.static[2]) and made.static[3] == 0
    assert made.per_second.tolist() == [1, 1, 0, 0] and made.per_tuple.tolist() == [2, 2, 0, 0]
    unknown = form(1, rank=array(NAN))
    made = decision._of_threads(
        unknown, np.array([0, 0]), np.array([False, False]), np.array([False, True])
    )
    assert made.rank.tolist() == [0, 1]
    none = UrgencyForm(*(np.empty(0) for _ in range(4)))
    made = decision._of_threads(none, np.array([0]), np.array([False]), np.array([False]))
    assert made.rank.tolist() == [0] and made.per_second.tolist() == [0]


def used(memory: dict[str, float] | None = None, /, **columns: list[float]) -> OperatorFrame:
    """Queries x and y; memory: when they were heavy last."""
    of = replace(frame(plan({"x": ["a"], "y": ["b"]}), **columns), engines=("lab:1",))
    of = replace(of, engine=np.zeros(2, dtype=np.intp))
    known = {query: memory[query[1]] for query in of.queries if memory and query[1] in memory}
    return of.remembering({MEMORY: known}) if known else of


def test_who_was_heavy_stays_so_while_something_is_saturated() -> None:
    much = {"cpu_use": [0.9, 0.1], "utilisation": [1.0, 1.0]}
    equal = {"cpu_use": [0.5, 0.5], "utilisation": [1.0, 1.0]}
    assert heavy(used(**much)).tolist() == [True, False]
    assert heavy(used(**equal)).tolist() == [False, False]
    assert heavy(used({"x": 5.0}, **equal)).tolist() == [True, False]
    assert heavy(used({"x": 5.0}, **{**equal, "utilisation": [0.5, 0.5]})).tolist() == [False] * 2


def test_what_is_remembered_is_forgotten_at_once_and_all_together() -> None:
    equal = {"cpu_use": [0.5, 0.5], "utilisation": [1.0, 1.0]}
    before = {"x": 5.0, "y": 6.0}
    young = seen(used(before, **equal), 5.0 + REMEMBERED_S - 0.1)
    assert sorted(young.values()) == [5.0, 6.0]
    assert seen(used(before, **equal), 5.0 + REMEMBERED_S) == {}
    much = {"cpu_use": [0.9, 0.1], "utilisation": [1.0, 1.0]}
    assert list(seen(used({"y": 6.0}, **much), 9.0).values()) == [9.0, 6.0]
    assert seen(used(before, cpu_use=[0.9, 0.1], utilisation=[0.1, 0.1]), 9.0) == {}


def test_who_kept_up_until_lately_is_not_heavy_for_half_a_minute() -> None:
    """It catches up, whether it was remembered as heavy or not; and one who never kept up is."""
    much = {"cpu_use": [0.9, 0.1], "utilisation": [1.0, 1.0]}
    of = used(cpu_use=[0.2, 0.1], utilisation=[0.5, 0.81])
    since = keeps_up(of, 7.0 - LONG_S)
    assert [(query[1], at_s) for query, at_s in since.items()] == [("x", 7.0 - LONG_S)]
    of = of.remembering({KEEPS_UP: since})
    assert keeps_up(of, 7.0) == since
    assert kept_up(of, 6.9) == {}, "a job that began"
    lately = kept_up(of, 7.0)
    assert list(lately.values()) == [7.0] and lately.keys() == since.keys()
    stopped = used({"x": 5.0}, **much)
    stopped = stopped.remembering({**stopped.memory, LATELY: lately})
    assert kept_up(stopped, 7.0 + CATCHES_UP_S - 0.1) == lately
    assert not heavy(stopped).any() and not seen(stopped, 8.0)
    after = 7.0 + CATCHES_UP_S
    assert kept_up(stopped, after) == {}
    assert [query[1] for query in seen(stopped, after)] == ["x"]
    assert heavy(stopped.remembering({LATELY: {}})).tolist() == [True, False]
    nan = float("nan")
    assert keeps_up(used(cpu_use=[0, 0], utilisation=[nan, 0.95]), 1.0) == {}
    assert keeps_up(used(), 1.0) == {}


def test_a_query_is_saturated_from_the_bound_on() -> None:
    assert heavy(used(cpu_use=[0.9, 0.1], utilisation=[0.95, 0.1])).tolist() == [True, False]
    assert not heavy(used(cpu_use=[0.9, 0.1], utilisation=[0.949, 0.1])).any()


def test_a_logical_operator_that_nothing_runs_has_no_metrics() -> None:
    topology = plan({"q": ["a", "b"]})
    more = replace(topology, logical=(*topology.logical, LogicalOperator("q", "nowhere")))
    for metric in ("cost", "tuples_in", "head_age"):
        found = to_logical(more, metric, {metric: array(1, 2)})
        assert found.tolist()[:2] == [1, 2] and np.isnan(found[2])
