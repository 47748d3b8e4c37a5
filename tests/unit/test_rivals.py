"""The published rules that ours is measured beside (bench.lachesis), by hand."""

from types import SimpleNamespace
from typing import Any

import pytest

from bench import lachesis
from plans import array
from sched_ctl.kernel import sched


def test_lachesis_takes_a_factor_for_a_level() -> None:
    """A quarter more tuples and one are a level; the longest queue has the least value."""
    levels = lachesis.nice_values(array(0, 99, 124, float("nan"))).tolist()
    assert levels == [2, -19, -20, 2]
    assert lachesis.nice_values(array(0, 1e9)).tolist() == [19, -20], "there are no more levels"
    assert lachesis.nice_values(array()).tolist() == []


def test_real_time_priorities_go_by_the_length_of_the_queue() -> None:
    given = lachesis.real_time_priorities
    assert given(array(0, 50, 100, float("nan"))).tolist() == [1, 50, 99, 1]
    assert given(array(7, 7)).tolist() == [1, 1], "all alike"
    assert given(array()).tolist() == []


@pytest.mark.parametrize("real_time", [False, True])
def test_only_what_differs_is_written_and_all_is_put_back(
    monkeypatch: pytest.MonkeyPatch, real_time: bool
) -> None:
    done: list[tuple[object, ...]] = []
    monkeypatch.setattr(sched, "set_nice", lambda tid, nice: done.append((tid, nice)))
    monkeypatch.setattr(
        sched,
        "set_policy",
        lambda tid, policy, *, reset_on_fork=False, priority=0: done.append(
            (tid, policy, reset_on_fork, priority)
        ),
    )
    operators = [SimpleNamespace(threads=[SimpleNamespace(tid=tid)]) for tid in (11, 12)]
    queues = iter((array(0, 9), array(0, 9), array(9, 0)))

    def poll(_: float) -> Any:
        topology = SimpleNamespace(operators=operators)
        return SimpleNamespace(topology=topology, columns={"queue_size": next(queues)})

    driver: Any = SimpleNamespace(poll=poll, close=lambda: done.append(("closed",)))
    rule = lachesis.Rule(driver, real_time=real_time)
    rule.step()
    rule.step()
    if real_time:
        assert done == [(11, sched.RR, True, 1), (12, sched.RR, True, 99)]
        rule.step()  # by the newest length alone
        assert done[2:] == [(11, sched.RR, True, 99), (12, sched.RR, True, 1)]
    else:
        assert done == [(11, -10), (12, -20)]
        rule.step()  # by the mean: 3 and 6
        assert done[2:] == [(11, -17)]
    done.clear()
    rule.end()
    back = sched.OTHER if real_time else 0
    assert [one[:2] for one in done] == [(11, back), (12, back), ("closed",)]
