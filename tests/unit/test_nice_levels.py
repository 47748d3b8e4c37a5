"""Nice values as numbers: which one a thread gets that had one of its own."""

import numpy as np
import pytest

from sched_ctl.backends.threads import nice
from sched_ctl.backends.threads.parameters import Target, at_first
from sched_ctl.model.topology import Thread


def levels(values: list[float], own: list[int], *, best: int, worst: int) -> list[int]:
    threads = tuple(Thread(1, 100 + row, 0) for row in range(len(values)))
    found = at_first(Target("s", threads, np.array(values), best=best, worst=worst), np.array(own))
    return [int(level) for level in found]


def test_who_had_none_gets_what_is_wanted() -> None:
    assert levels([0, 5, 10], [0, 0, 0], best=0, worst=10) == [0, 5, 10]


def test_who_had_one_of_its_own_gets_a_range_that_begins_there() -> None:
    assert levels([0, 5, 10, 0], [-5, -5, -20, 0], best=0, worst=10) == [-5, 0, -10, 0]
    assert levels([-3, 4], [-20, -20], best=-3, worst=4) == [-20, -16]
    assert levels([0, 5, 10, 10], [4, 4, 4, 0], best=0, worst=10) == [4, 9, 14, 10]
    # The lowest there is ends the range; inside it places are kept.
    assert levels([0, 5, 10], [15, 15, 15], best=0, worst=10) == [15, 17, 19]
    assert levels([2, 4], [3, 3], best=2, worst=4) == [5, 7]
    assert levels([3, 3], [2, 0], best=3, worst=3) == [5, 3]


def test_what_is_near_enough_stays() -> None:
    target = Target("s", (Thread(1, 1, 0),), np.array([5.6]), dead_band=0.6)
    assert at_first(target, np.array([0])).tolist() == [6]
    # Of one that had -5 the range begins there: 0.6 is far from what is in force.
    assert at_first(target, np.array([-5])).tolist() == [1]


def test_nice_is_refused_where_it_could_not_be_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nice, "may_lower", lambda: False)
    refused = nice.probe()
    assert not refused.can and "undone" in refused.because and "CAP_SYS_NICE" in str(refused.hint)
    monkeypatch.setattr(nice, "may_lower", lambda: True)
    assert nice.probe().can
