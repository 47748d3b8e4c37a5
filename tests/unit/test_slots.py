"""What slots of the BPF scheduler say of threads besides a policy's order."""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sched_ctl.backends.scx.slots import heads_ns, numbers, rivals
from sched_ctl.model.policy import Spacing, form
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import Thread

Query = tuple[str, str]


def schedule(ages_s: list[float], queries: tuple[Query | None, ...], *depth: int) -> Schedule:
    n = len(ages_s)
    return Schedule(
        "s",
        "p",
        Spacing.LINEAR,
        tuple(Thread(1, i + 1, 0) for i in range(n)),
        ("",) * n,
        form(n),
        np.array(ages_s),
        np.zeros(n),
        queries=queries,
        depth=np.array(depth, dtype=np.intp),
    )


def test_a_query_has_one_number_in_all_schedules() -> None:
    one = schedule([0, 0, 0], (("e", "a"), None, ("e", "b")), 1, 0, 2)
    two = schedule([0, 0], (("e", "b"), ("f", "a")), 1, 1)
    query, depth = numbers([one, two])
    assert query.tolist() == [1, 0, 2, 2, 3]
    assert depth.tolist() == [1, 0, 2, 1, 1]


def test_without_queries_and_depths_all_is_unknown() -> None:
    query, depth = numbers([schedule([0, 0], ())])
    assert query.tolist() == depth.tolist() == [0, 0]


def test_rivals_are_in_one_rank_and_of_two_queries() -> None:
    a, b = ("e", "a"), ("e", "b")

    def found(queries: tuple[Query | None, ...], rank: Sequence[float]) -> list[bool]:
        ranks = np.array(rank, dtype=np.float64)
        aging = form(len(queries), rank=ranks, per_second=1.0)
        of = replace(schedule([0.0] * len(queries), queries), form=aging)
        return [bool(shared) for shared in rivals([of])]

    assert found((a, a, b, None), (0, 0, 0, 0)) == [True, True, True, False]
    assert found((a, a, b, b), (1, 0, 0, 0)) == [False, True, True, True]
    assert found((a, a, b), (1, 1, 0)) == [False, False, False]
    assert found((a, a, None), (0, 0, 0)) == [False, False, False]
    # Ages count for nothing.
    assert not rivals([schedule([0, 0], (a, b)), schedule([0], ())]).any()


def test_head_ages_are_moments_and_unknown_ones_none() -> None:
    found = heads_ns([schedule([2.0, np.nan, np.inf, 0.0], ())]).astype(np.int64)
    now_ns = time.monotonic_ns()
    assert found[1] == found[2] == 0
    assert 2e9 <= now_ns - found[0] < 4e9
    assert 0 <= now_ns - found[3] < 2e9
