"""What schedules of several rules, and of several users, take from each other in the scheduler."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scheduler import Memory, unloaded

from sched_ctl.backends.scx import weight
from sched_ctl.model.policy import Spacing, form
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import Thread

NOBODY = 1 << 22  # ids that no process has begin here


def schedule(scope: str, tids: Sequence[int], queries: Sequence[str] = ()) -> Schedule:
    n = len(tids)
    return Schedule(
        scope,
        "p",
        Spacing.LINEAR,
        tuple(Thread(NOBODY + tid, NOBODY + tid, 0) for tid in tids),
        ("",) * n,
        form(n, static=np.arange(float(n))),
        np.full(n, np.nan),
        np.zeros(n),
        queries=tuple(("e", query) for query in queries) or (None,) * n,
    )


def test_of_engines_that_ended_nothing_is_left(tmp_path: Path) -> None:
    with unloaded(tmp_path, Memory()) as backend:
        for user in range(1000, 1020):
            backend.apply(schedule(f"a@{user}", [user]))
            backend.apply(schedule("a", [1, 2]))
            backend.apply(schedule(f"a@{user}", []))
        assert list(backend._scopes) == ["a"]
        backend.apply(schedule("a", []))
        backend.apply(schedule("b", []))
        assert len(backend._scopes) == 1
        assert not any(memory_in_use(backend.scheduler))


def memory_in_use(memory: object) -> list[int]:
    assert isinstance(memory, Memory)
    return [int(slot) for slot in np.flatnonzero(memory.slots["flags"])]


def test_caps_that_lose_their_room_to_a_new_schedule_are_no_longer_in_force(tmp_path: Path) -> None:
    """In the same pass, and the rest are: nobody shares a group with a capped query."""
    memory = Memory()
    many = schedule("a", range(1, 65), ("", *(f"q{nth:02}" for nth in range(63))))
    with unloaded(tmp_path, memory, caps={"q*": 2}) as backend:
        assert backend.apply(many).problems == ()
        assert sum(cap > 0 for _, cap in memory.groups()) == 63
        assert backend.apply(schedule("b", [100])).problems == ()
        slots = [int(slot) for slot in backend.loaded.slots.of(many.threads)]  # type: ignore[union-attr]
        of = memory.control["queues"]["group"][memory.slots["queue"]]
        assert len(set(of[slots].tolist())) == 63 and of[slots[0]] == of[slots[-1]]
        assert int(np.count_nonzero(of[memory.slots["flags"] > 0] == of[slots[-1]])) == 2
        assert sum(cap > 0 for _, cap in memory.groups()) == 62
        assert backend.apply(many).problems == ("no room for the caps of 1 queries, from e:q62 on",)


def test_one_thread_takes_from_twenty_what_it_would_without_an_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight, "LEAST_S", 0.0)
    memory = Memory()
    with unloaded(tmp_path, memory) as backend:
        for _ in range(2):
            memory.threads["run_ns"] += 1_000_000_000
            backend.apply(schedule("a", range(20), [f"q{nth}" for nth in range(20)]))
            backend.apply(schedule("a@1000", [100], ["q"]))
        (many, _), (one, _) = memory.groups()
        assert many / one == pytest.approx(20, rel=0.01)


def test_who_comes_back_has_a_share_again(tmp_path: Path) -> None:
    memory = Memory()
    with unloaded(tmp_path, memory) as backend:
        for tids in ([1], [], [1]):
            backend.apply(schedule("a", tids))
            if not tids:
                backend.apply(schedule("b", [2]))
        (one, _), (two, _) = memory.groups()
        assert one == two > 0


def test_one_users_threads_leave_slots_to_all_others(tmp_path: Path) -> None:
    """Of 16 a user's may have 4, and it is told; those that come free are theirs who lack one."""
    memory = Memory(slots=17)
    many = schedule("a@1000", range(8))
    lacking = "no slot left for 4 threads, from thread {} on: they are not scheduled by us"
    with unloaded(tmp_path, memory) as backend:
        assert backend.apply(many).problems == (lacking.format(NOBODY + 4),)
        others = [schedule(f"a@{1001 + nth}", range(10 + 4 * nth, 14 + 4 * nth)) for nth in (0, 1)]
        assert [backend.apply(one).problems for one in others] == [(), ()]
        assert backend.apply(schedule("b@1003", [30])).problems
        assert backend.apply(schedule("a", [40, 41, 42])).problems == ()
        assert len(memory_in_use(memory)) == 15
        assert backend.apply(many).problems == (lacking.format(NOBODY + 4),)
        backend.apply(schedule(others[0].scope, [10, 11, 12]))
        assert backend.apply(schedule("b@1003", [30])).problems == ()
        assert len(memory_in_use(memory)) == 15
