"""What slots of the BPF scheduler say of threads besides a policy's order."""

import errno
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sched_ctl.backends.scx.backend import Scx, _Scope
from sched_ctl.backends.scx.slots import (
    REST_S,
    Slots,
    behind,
    heads_ns,
    numbers,
    rivals,
    strict,
    write,
)
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.drivers.threads import thread_of
from sched_ctl.kernel.libbpf import BpfError
from sched_ctl.model.options import ScxOptions
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


def test_behind_are_those_that_the_rest_of_their_query_goes_before() -> None:
    a, b = ("e", "a"), ("e", "b")

    def found(queries: tuple[Query | None, ...], rank: Sequence[float]) -> list[bool]:
        ranked = form(len(rank), rank=np.array(rank, dtype=np.float64))
        of = replace(schedule([0.0] * len(rank), queries), form=ranked)
        return [bool(one) for one in behind([schedule([0.0], (a,)), of])]

    assert found((a, a, b, None), (1, 0, 0, 0)) == [False, False, True, False, False]
    assert found((a, a, b, b), (1, 1, 0, 0)) == [False] * 5, "a query as a whole"
    assert found((a, a, None), (1, float("nan"), 0)) == [False] * 4
    assert found((), (1, 0)) == [False] * 3


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


class Tied:
    """In place of the loaded program: thread ids and what they are tied to."""

    def __init__(self) -> None:
        self.slots = np.zeros(9, dtype=[("flags", np.uint8)])
        self.now: dict[int, tuple[int, int]] = {}

    def adopt(self, pidfd: int, slot: int, flushes: int = 0) -> None:
        self.now[_tid(pidfd)] = slot, flushes

    def disown(self, pidfd: int) -> bool:
        return self.now.pop(_tid(pidfd), None) is not None


class Failing(Tied):
    errors: Mapping[int, int] = {}

    def adopt(self, pidfd: int, slot: int, flushes: int = 0) -> None:
        if number := self.errors.get(_tid(pidfd), 0):
            raise BpfError(number, "update of map adopted")
        super().adopt(pidfd, slot, flushes)


def _tid(pidfd: int) -> int:
    with open(f"/proc/self/fdinfo/{pidfd}") as file:
        return int(next(line for line in file if line.startswith("Pid:")).split()[1])


@pytest.fixture
def threads() -> Iterator[list[Thread]]:
    """Four real ones."""
    end = threading.Event()
    running = [threading.Thread(target=end.wait, daemon=True) for _ in range(4)]
    for one in running:
        one.start()
    found = [thread_of(os.getpid(), one.native_id or 0) for one in running]
    yield [one for one in found if one is not None]
    end.set()
    for one in running:
        one.join()


@pytest.fixture
def tied_threads(threads: list[Thread]) -> list[Thread]:
    """Where the kernel ties a thread by a descriptor of its own."""
    try:
        os.close(os.pidfd_open(threads[0].tid, os.O_EXCL))
    except OSError:
        pytest.skip("needs thread pidfds (Linux 6.9)")
    return threads


def test_flushers_follow_the_slots_of_their_operators(tied_threads: list[Thread]) -> None:
    first, second, flusher, other = tied_threads
    tied: Any = Tied()
    slots = Slots(tied, full=True)
    slots.follow("s", (), (first, second))
    slots.adopt((first, second))
    base = replace(schedule([0, 0], ()), threads=(first, second))
    gone = Thread(first.pid, 1 << 21, 5)  # no thread has such an id
    one = replace(base, flushers=((flusher, second), (other, first), (gone, first)))
    assert not slots.follow_flushers([base])
    assert slots.follow_flushers([one])
    at = {thread: slots.of([thread])[0] for thread in (first, second)}
    assert tied.now[flusher.tid] == (0, at[second]) and tied.now[other.tid] == (0, at[first])
    tied.now[flusher.tid] = 7, 7  # nothing has changed: nothing is written
    slots.follow_flushers([one])
    assert tied.now[flusher.tid] == (7, 7)
    # One that is an operator now keeps its slot, one that is named no more is any thread again.
    slots.follow("s", (first, second), (first, second, other))
    slots.adopt((other,))
    assert not slots.follow_flushers([replace(one, flushers=((other, first),))])
    assert flusher.tid not in tied.now
    assert tied.now[other.tid] == (slots.of([other])[0], 0)


def test_threads_that_could_not_be_tied_are_told_until_they_are(
    tied_threads: list[Thread],
) -> None:
    first, second, third, _ = tied_threads
    tied: Any = Failing()
    slots = Slots(tied, full=True)
    slots.follow("s", (), (first, second, third))
    tied.errors = {first.tid: errno.ENOMEM, second.tid: errno.ENOMEM, third.tid: errno.ESRCH}
    problems, gone = slots.adopt((first, second, third))
    assert len(problems) == 2 and gone == 1
    assert slots.untied((first, second, third)) == [first, second]
    assert slots.untied((second,)) == [second], "what another scope's threads lack is not its own"
    slots.follow("s", (first, second, third), (first, third))
    assert slots.untied((first, second, third)) == [first]
    tied.errors = {}
    assert slots.adopt(slots.untied((first,))) == ((), 0)
    assert slots.untied((first,)) == [] and tied.now[first.tid] == (slots.of([first])[0], 0)


def test_of_a_reload_only_what_lasts_is_told_from_then_on(
    threads: list[Thread], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No slot left is told; a thread that was not tied then is tied by the next pass."""
    first, second, *_ = threads
    tied: Any = Failing()
    slots = Slots(tied, full=True)
    slots._free = [1]
    live = SimpleNamespace(
        strangers=lambda _: ("a stranger",), refused=lambda *_: (), keep=lambda _: None
    )
    journal = Journal(tmp_path / "journal")
    backend = Scx(journal, ScxOptions(mode="partial"))
    nothing: Any = None
    before = replace(schedule([0, 0], ()), threads=(first, second))
    backend._scopes["s"] = _Scope(before, np.zeros(2, dtype=np.intp), nothing)
    monkeypatch.setattr(backend, "_load", lambda: nothing)
    monkeypatch.setattr(backend, "_take", lambda _: SimpleNamespace(slots=slots, live=live))
    monkeypatch.setattr(backend, "_scope", lambda _, of: _Scope(of, slots.of(of.threads), nothing))
    for name in ("_hint", "_write", "_attach"):
        monkeypatch.setattr(backend, name, lambda *_: [])
    tied.errors = {first.tid: errno.ENOMEM}
    backend._reload()
    journal.close()
    told = backend._scopes["s"].problems
    [lacking, stranger] = told
    assert lacking.startswith(f"no slot left for 1 threads, from thread {second.tid} on")
    assert stranger == "a stranger"


def test_the_lowest_slot_that_has_rested_is_taken_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the scheduler would look at all that ever were; and nobody waits by an old one."""
    now_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    tied: Any = Tied()
    slots = Slots(tied, full=True)
    nobody = [Thread(1 << 22, (1 << 22) + nth, 0) for nth in range(9)]
    slots.follow("s", (), nobody[:3])
    assert slots.adopt(nobody[:3]) == ((), 3)
    slots.follow("s", nobody[:3], nobody[3:5])
    assert slots.of(nobody[3:5]).tolist() == [4, 5]
    now_s += REST_S
    slots.follow("s", nobody[3:5], nobody[3:8])
    assert slots.of(nobody[3:8]).tolist() == [4, 5, 1, 2, 3]


def test_a_slot_that_has_not_rested_is_better_than_none() -> None:
    tied: Any = Tied()
    slots = Slots(tied, full=True)
    nobody = [Thread(1 << 22, (1 << 22) + nth, 0) for nth in range(9)]
    slots.follow("s", (), nobody[:8])
    slots.adopt(nobody[:8])
    slots.follow("s", nobody[:8], nobody[1:])
    assert slots.of(nobody[8:]).tolist() == [1]


class Memory:
    """What `write` and `Weight` use of a scheduler."""

    def __init__(self) -> None:
        row = [("lead_us", "u4"), ("flags", "u4"), ("rest", "u8", 3)]
        self.slots = np.zeros(8, dtype=row)
        self.threads = np.zeros(8, dtype=[("run_ns", "u8")])


def test_the_only_engine_ends_and_nothing_is_left_to_write() -> None:
    scheduler: Any = Memory()
    before = scheduler.slots.copy()
    assert write(scheduler, np.zeros(0, dtype=np.intp), np.zeros(0, dtype=before.dtype)) == 0
    assert (scheduler.slots == before).all()
    assert [len(of([schedule([], ())])) for of in (heads_ns, rivals, strict)] == [0, 0, 0]


def test_strict_is_the_schedule_that_a_strict_policy_made() -> None:
    one, two = schedule([0, 0], ()), replace(schedule([0], ()), strict=True)
    assert strict([one, two]).tolist() == [False, False, True]
