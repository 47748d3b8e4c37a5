"""Which thread has which slot of the memory shared with the scheduler, and what stands there."""

import errno
import heapq
import operator
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_ctl.backends.scx.room import Room, domain_of
from sched_ctl.kernel import identity, sched
from sched_ctl.kernel.libbpf import BpfError
from sched_ctl.kernel.scheduler import Scheduler, thread_pidfd
from sched_ctl.model.graph import Index, distinct
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import Thread

__all__ = ["Adopted", "Slots", "behind", "heads_ns", "numbers", "rivals", "strict", "write"]

_NUMBERS = 1 << 16  # of queries that a slot can name, and of depths
_OLDEST_S = 1e6
_LONGEST_S = 1e3  # on other nodes; the scheduler believes no more
REST_S = 30.0  # of a slot: nobody waits for longer in the queue that it joined with it (watchdog)
_OURS_IN_FULL_MODE = (sched.OTHER, sched.BATCH, sched.IDLE, sched.EXT)


@dataclass
class Adopted:
    """A thread that has a slot."""

    slot: int
    domain: str = ""
    scopes: set[str] = field(default_factory=set)
    gone: bool = False


class Slots:
    """The slots of one loaded scheduler. full: whether it schedules all normal threads."""

    def __init__(self, scheduler: Scheduler, *, full: bool) -> None:
        self._scheduler = scheduler
        self._full = full
        self._adopted: dict[Thread, Adopted] = {}
        self._free = list(range(1, len(scheduler.slots)))  # a heap
        self._resting: deque[tuple[float, int]] = deque()  # since when (CLOCK_MONOTONIC)
        self._room = Room(len(self._free))
        self._untied: dict[Thread, None] = {}
        self._flushers: dict[Thread, int] = {}  # and the slots of their operators
        self._pairs: list[tuple[tuple[Thread, Thread], ...]] = []

    def get(self, thread: Thread) -> Adopted | None:
        return self._adopted.get(thread)

    def of(self, threads: Sequence[Thread]) -> Index:
        """(n,) the threads' slots; 0 for those that have none."""
        found = (self._adopted.get(thread) for thread in threads)
        return np.array([a.slot if a else 0 for a in found], dtype=np.intp)

    def follow(
        self, scope: str, before: Sequence[Thread], after: Sequence[Thread]
    ) -> tuple[list[Thread], list[Thread], list[str]]:
        """Slots for a scope's new threads, and none for those that it has no more.

        Returns threads that got a slot, threads that lost theirs, and problems in words.
        """
        released = []
        for thread in set(before) - set(after):
            adopted = self._adopted.get(thread)
            if adopted is None:
                continue
            adopted.scopes.discard(scope)
            if not adopted.scopes:
                self._release(thread)
                released.append(thread)
        fresh: list[Thread] = []
        without: list[Thread] = []
        for thread in dict.fromkeys(after):
            adopted = self._adopted.get(thread)
            if adopted is None:
                if not self.has_room(scope):
                    without.append(thread)
                    continue
                adopted = self._adopted[thread] = self._take(domain_of(scope))
                fresh.append(thread)
            adopted.scopes.add(scope)
        problems = []
        if without:
            which = f"{len(without)} threads, from thread {without[0].tid} on"
            problems = [f"no slot left for {which}: they are not scheduled by us"]
        return fresh, released, problems

    def has_room(self, scope: str) -> bool:
        """Whether there is a slot for one more thread of the scope."""
        return bool(self._free or self._resting) and self._room.has(domain_of(scope))

    def _take(self, domain: str) -> Adopted:
        """The lowest that has rested: the scheduler looks at all up to the highest ever used."""
        rested_s = time.monotonic() - REST_S
        while self._resting and self._resting[0][0] <= rested_s:
            heapq.heappush(self._free, self._resting.popleft()[1])
        slot = heapq.heappop(self._free) if self._free else self._resting.popleft()[1]
        self._room.take(domain)
        return Adopted(slot, domain)

    def untied(self, threads: Iterable[Thread]) -> list[Thread]:
        """Those of these threads that have a slot, but to tie them to it failed."""
        wanted = set(threads) if self._untied else ()
        return [thread for thread in self._untied if thread in wanted]

    def adopt(self, threads: Sequence[Thread]) -> tuple[tuple[str, ...], int]:
        """Tie threads to their slots, which are filled. Returns problems, and how many are gone."""
        problems = []
        gone = 0
        for thread in threads:
            adopted = self._adopted[thread]
            self._untied.pop(thread, None)
            try:
                fd = thread_pidfd(thread.tid)
                with open(fd, "rb", buffering=0):
                    # Opened first: if the start time is right now, the descriptor is right.
                    now = identity.same(thread)
                    if now is None:
                        raise ProcessLookupError(errno.ESRCH, "gone")
                    self._scheduler.adopt(fd, adopted.slot)
            except (ProcessLookupError, BpfError) as error:
                if error.errno == errno.ESRCH:
                    adopted.gone = True
                    gone += 1
                    continue
                self._untied[thread] = None
                problems.append(f"thread {thread.tid} ({thread.name}): {error.strerror}")
                continue
            if self._full and now.policy not in _OURS_IN_FULL_MODE:
                name = sched.POLICY_NAMES.get(now.policy, str(now.policy))
                problems.append(
                    f"thread {thread.tid} ({thread.name or now.name}) is {name} by somebody "
                    "else's will: left alone"
                )
        return tuple(problems), gone

    def follow_flushers(self, schedules: Sequence[Schedule]) -> bool:
        """Tie those helper threads to the slots of their operators that the schedules name.

        Returns whether there are any.
        """
        pairs = [schedule.flushers for schedule in schedules]
        if len(pairs) == len(self._pairs) and all(map(operator.is_, pairs, self._pairs)):
            return bool(self._flushers)
        self._pairs = pairs
        wanted = {
            flusher: self._adopted[thread].slot
            for one in pairs
            for flusher, thread in one
            if thread in self._adopted and flusher not in self._adopted
        }
        before, self._flushers = self._flushers, wanted
        for flusher in before.keys() - wanted.keys() - self._adopted.keys():
            self._disown(flusher)
        for flusher, slot in wanted.items() - before.items():
            # Who is gone, or cannot be tied, goes on as any other thread.
            with suppress(OSError), open(thread_pidfd(flusher.tid), "rb", buffering=0) as fd:
                if identity.same(flusher) is not None:
                    self._scheduler.adopt(fd.fileno(), 0, flushes=slot)
        return bool(wanted)

    def _release(self, thread: Thread) -> None:
        adopted = self._adopted.pop(thread)
        self._untied.pop(thread, None)
        self._scheduler.slots[adopted.slot]["flags"] = 0
        self._resting.append((time.monotonic(), adopted.slot))
        self._room.give_back(adopted.domain)
        if not adopted.gone:
            self._disown(thread)

    def _disown(self, thread: Thread) -> None:
        with suppress(OSError), open(thread_pidfd(thread.tid), "rb", buffering=0) as fd:
            if identity.same(thread) is not None:
                self._scheduler.disown(fd.fileno())


def numbers(schedules: Sequence[Schedule]) -> tuple[Index, Index]:
    """(n,) a number, from 1, of each thread's query, 0 where it has none, and its depth there."""
    known: dict[tuple[str, str] | None, int] = {None: 0}
    queries: list[int] = []
    depths = []
    for schedule in schedules:
        n = len(schedule.threads)
        of = schedule.queries or (None,) * n
        queries += [known.setdefault(query, len(known) % _NUMBERS) for query in of]
        depths.append(schedule.depth if len(schedule.depth) == n else np.zeros(n, dtype=np.intp))
    return np.array(queries, dtype=np.intp), np.minimum(np.concatenate(depths), _NUMBERS - 1)


def rivals(schedules: Sequence[Schedule]) -> NDArray[np.bool_]:
    """(n,) whether another query of the schedule is in the thread's rank.

    Then ages are compared between the two, and not only inside a query.
    """
    return np.concatenate([_rivals(schedule) for schedule in schedules])


def _rivals(schedule: Schedule) -> NDArray[np.bool_]:
    known = dict.fromkeys(query for query in schedule.queries if query is not None)
    if len(known) < 2 or not schedule.form.per_second.any():
        return np.zeros(len(schedule.threads), dtype=np.bool_)
    number: dict[tuple[str, str] | None, int] = {query: i for i, query in enumerate(known)}
    query = np.array([number.get(query, -1) for query in schedule.queries], dtype=np.intp)
    rank = np.unique(schedule.form.rank, return_inverse=True)[1].reshape(-1)
    pairs = distinct((rank * len(known) + query)[query >= 0])
    several = np.bincount(pairs // len(known), minlength=int(rank.max()) + 1) > 1
    found: NDArray[np.bool_] = several[rank] & (query >= 0)
    return found


def behind(schedules: Sequence[Schedule]) -> NDArray[np.bool_]:
    """(n,) whether threads of the thread's own query are in a rank above it.

    Then what it runs for is what the query's other results wait for.
    """
    return np.concatenate([_behind(schedule) for schedule in schedules])


def _behind(schedule: Schedule) -> NDArray[np.bool_]:
    n, rank = len(schedule.threads), schedule.form.rank
    if not schedule.queries or not n or rank.min() == rank.max():
        return np.zeros(n, dtype=np.bool_)
    number: dict[tuple[str, str] | None, int] = {}
    query = np.array([number.setdefault(q, len(number)) for q in schedule.queries], dtype=np.intp)
    highest = np.full(len(number), -np.inf)
    np.fmax.at(highest, query, rank)
    if None in number:
        highest[number[None]] = -np.inf
    return np.asarray(rank < highest[query])


def strict(schedules: Sequence[Schedule]) -> NDArray[np.bool_]:
    """(n,) whether the thread's order is one that may starve, by the policy's intent."""
    return np.concatenate([np.full(len(s.threads), s.strict) for s in schedules])


def arrivals_us(schedules: Sequence[Schedule], by_age: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """(n,) how old tuples are when they come to each thread from another node.

    by_age: (n,) whether what waits longer comes first, and this is to count. Elsewhere an age
    breaks the order after a time (`gap`), so that nobody starves here: what was elsewhere does not
    count.
    """
    parts = [
        schedule.arrival_age_s
        if len(schedule.arrival_age_s) == len(schedule.threads)
        else np.zeros(len(schedule.threads))
        for schedule in schedules
    ]
    ages_s = np.clip(np.nan_to_num(np.concatenate(parts)), 0, _LONGEST_S)
    return np.where(by_age, ages_s * 1e6, 0).astype(np.uint32)


def heads_ns(
    schedules: Sequence[Schedule], came_us: NDArray[np.uint32] | None = None
) -> NDArray[np.uint64]:
    """(n,) when the oldest tuple of each thread's queue came in, CLOCK_MONOTONIC; 0 = unknown.

    came_us: of `arrivals_us`; no tuple is younger than when it comes.
    """
    ages_s = np.concatenate([schedule.head_age_s for schedule in schedules])
    known = np.isfinite(ages_s)
    if came_us is not None and came_us.any():
        ages_s = np.fmax(ages_s, came_us * 1e-6)
    then_ns = time.monotonic_ns() - np.where(known, np.clip(ages_s, 0, _OLDEST_S), 0) * 1e9
    return np.where(known, np.maximum(then_ns, 1), 0).astype(np.uint64)


def write(scheduler: Scheduler, slots: Index, fresh: NDArray[Any]) -> int:
    """Copy the rows of `fresh` into the slots, where they differ. Returns how many did.

    slots: (n,) with 0 for rows that have none. What is known of a slot's former thread is
    forgotten when the slot comes into use.
    """
    if not len(slots):
        return 0
    table = scheduler.slots
    # As words: comparing and copying structs member by member takes four times as long.
    words, wanted = (x.view(np.uint64).reshape(len(x), -1) for x in (table, fresh))
    at = _consecutive(slots)
    differ = _differ(words[at], wanted)
    if not isinstance(at, slice):
        differ &= slots != 0
    changed = int(np.count_nonzero(differ))
    unused = table["flags"][at] == 0
    if unused.any():
        new = slots[unused & differ]
        scheduler.threads[new] = np.zeros((), dtype=scheduler.threads.dtype)
    if isinstance(at, slice) and changed > len(slots) // 8:
        words[at] = wanted  # one copy costs less than to pick what changed
    else:
        words[slots[differ]] = wanted[differ]
    return changed


def _consecutive(slots: Index) -> slice | Index:
    """These slots as a slice, where they are one: a tenth of the time to read and write."""
    first = int(slots[0]) if len(slots) else 0
    if first > 0 and bool((np.diff(slots) == 1).all()):
        return slice(first, first + len(slots))
    return slots


def _differ(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """(n,) whether rows of (n, 4) words differ."""
    differing = one != other
    if differing.shape[1] != 4:
        return differing.any(axis=1)  # type: ignore[no-any-return]
    found: NDArray[np.bool_] = differing.view(np.uint32).ravel() != 0  # 4 bytes, a word of them
    return found
