from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from sched_ctl.model.graph import Graph


def graph(n: int, *edges: tuple[int, int], share: float = 1.0) -> Graph:
    source, target = np.array(edges, dtype=np.intp).reshape(-1, 2).T
    return Graph(n, source, target, np.full(len(edges), share))


def test_a_diamond_has_three_levels() -> None:
    g = graph(4, (0, 1), (0, 2), (1, 3), (2, 3))
    assert g.height.tolist() == [2, 1, 1, 0]
    assert [operators.tolist() for operators, _ in g.levels] == [[3], [1, 2], [0]]
    assert [edges.tolist() for _, edges in g.levels] == [[], [2, 3], [0, 1]]
    assert g.ingress.tolist() == [True, False, False, False]
    assert g.egress.tolist() == [False, False, False, True]
    assert not g.cyclic


def test_height_is_the_longest_path() -> None:
    assert graph(4, (0, 3), (0, 1), (1, 2), (2, 3)).height.tolist() == [3, 2, 1, 0]


def test_a_deep_graph_is_not_walked_over_again_for_each_level(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An engine may tell of a chain of 30,000, and that held up the main loop for seconds."""
    calls: Counter[int] = Counter()

    def count(depth: int, function: Callable[..., Any], *given: Any, **more: Any) -> Any:
        calls[depth] += 1
        return function(*given, **more)

    for depth in (3, 300):
        deep = graph(depth, *((i, i + 1) for i in range(depth - 1)))
        with monkeypatch.context() as patched:
            for name in ("bincount", "flatnonzero"):
                patched.setattr(np, name, partial(count, depth, getattr(np, name)))
            assert [rows.tolist() for rows, _ in deep.levels] == [[i] for i in range(depth)][::-1]
            assert [edges.tolist() for _, edges in deep.levels[1:]] == [
                [i] for i in range(depth - 1)
            ][::-1]
    assert calls[3] == calls[300] > 0


def test_a_cycle_is_noticed_and_reaches_no_level() -> None:
    g = graph(4, (0, 1), (1, 2), (2, 1), (2, 3))
    assert g.cyclic
    assert g.height.tolist() == [-1, -1, -1, 0]


def test_sum_downstream_weighs_by_share() -> None:
    g = graph(3, (0, 1), (0, 2), share=0.5)
    assert g.sum_downstream(np.array([0.0, 10.0, 30.0])).tolist() == [20.0, 0.0, 0.0]


def test_two_parallel_edges_count_twice() -> None:
    g = graph(2, (0, 1), (0, 1))
    assert g.height.tolist() == [1, 0]
    assert g.sum_downstream(np.array([0.0, 3.0])).tolist() == [6.0, 0.0]


def test_no_operators() -> None:
    g = graph(0)
    assert g.levels == ()
    assert not g.cyclic


def test_an_edge_to_nowhere_is_refused() -> None:
    with pytest.raises(ValueError, match=r"outside 0\.\.1"):
        graph(2, (0, 2))
    for wrong in ((0, -1), (0, 2), (-1, 0), (2, 0)):
        with pytest.raises(ValueError, match=r"outside 0\.\.1"):
            graph(2, (0, 1), wrong)
        with pytest.raises(ValueError, match=r"outside 0\.\.1"):
            graph(2, wrong, (0, 1))


def test_shared_is_who_has_branches_after_it_and_nobody_on_a_chain() -> None:
    assert graph(3, (0, 1), (1, 2)).shared.tolist() == [False] * 3
    assert graph(4, (0, 1), (1, 2), (1, 3)).shared.tolist() == [True, True, False, False]
    assert graph(4, (0, 2), (1, 2), (2, 3)).shared.tolist() == [False] * 4
