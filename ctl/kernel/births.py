"""Threads and processes that came or went, noticed by a few cheap looks.

Most looks find nothing, so what tells that nothing was born comes first: the last field of
/proc/loadavg is the process or thread id that was given last (proc(5)), 2 us; the link count of
/proc/PID/task counts the threads of a process (fs/proc/base.c: proc_task_getattr), 3 us. Where one
of these moved, a large process is asked for the few ids that were given since, and listed (2 us a
thread) only if its count does not fit what that tells; about once a second at most, and sooner
where the count alone has changed.

The kernel's proc events (connector) would tell at once, but only in the machine's own namespaces,
and on a machine that compiles they would wake us thousands of times a second.
"""

import functools
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from sched_ctl.kernel import procfs

__all__ = ["Births", "Young", "thread_count"]

# Below a second, at which most loops come by: who is a moment early need not wait twice.
LOOK_S = 0.9
SELDOM = 100  # times what the last look took, before which none is made: 1% of a CPU at most
SEVERAL = 4  # threads: what compiles or runs a script beside an engine has fewer
# When a process with new threads is looked at: it may take so long to be an engine. After the last
# one there is the regular search, each minute.
AGES_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 36.0, 54.0)
YOUNG_S = 60.0  # after which a process that has few threads is taken for none
MOST_YOUNG = 1000  # processes watched: on a machine that starts more, the regular search must do
MOST_OLD = 200  # the same of those that are looked at after each birth, 5 us each


def thread_count(pid: int) -> int:
    """Threads of a process; 0 if it is gone."""
    try:
        return os.stat(f"/proc/{pid}/task").st_nlink - 2  # noqa: PTH116  each second
    except (FileNotFoundError, ProcessLookupError):
        return 0


def last_id() -> bytes:
    """The process or thread id that was given last, as text; b"" where that cannot be told."""
    try:
        return os.pread(_loadavg(), 200, 0).rpartition(b" ")[2]
    except OSError:
        return b""


@functools.cache
def _loadavg() -> int:
    """Kept open, as it is read each second. Raises OSError."""
    return os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)


class Births:
    """Notices births and deaths of threads in given processes."""

    def __init__(self, every_s: float = LOOK_S) -> None:
        self._every_s = every_s
        self._next_s = self._soon_s = 0.0
        self._last_id: bytes | None = None
        self._tids: dict[int, frozenset[int]] = {}

    def changed(self, pids: Callable[[], Collection[int]]) -> set[int]:
        """Those of the processes whose threads are others than at the last look.

        Processes that were not asked about then are among them. If the last look was less than a
        second ago: nothing, without asking for `pids`, unless one of those of then has more or
        fewer threads than it had.
        """
        now_s = time.monotonic()
        if now_s < self._next_s and (now_s < self._soon_s or self._counts_are_as_before()):
            return set()
        found = self._look(pids())
        self._next_s = now_s + self._every_s
        self._soon_s = now_s + SELDOM * (time.monotonic() - now_s)
        return found

    def _counts_are_as_before(self) -> bool:
        return all(thread_count(pid) == len(tids) for pid, tids in self._tids.items())

    def _look(self, pids: Collection[int]) -> set[int]:
        last, then = last_id(), self._last_id
        given = _given(then, last)
        self._last_id = last
        found: set[int] = set()
        tids: dict[int, frozenset[int]] = {}
        for pid in pids:
            before = self._tids.get(pid)
            if before is not None and given is not None and len(given) <= len(before) // 2:
                new = {tid for tid in given if tid not in before and _has(pid, tid)}
                if thread_count(pid) == len(before) + len(new):
                    tids[pid] = before | new if new else before
                    if new:
                        found.add(pid)
                    continue
            tids[pid] = frozenset(procfs.tids(pid))
            if tids[pid] != before:
                found.add(pid)
        self._tids = tids
        return found


def _given(then: bytes | None, now: bytes) -> range | None:
    """Ids given between two looks at `last_id`; None where that cannot be told: it began anew."""
    if then is None or not then.strip().isdigit() or not now.strip().isdigit():
        return None
    return range(int(then) + 1, int(now) + 1) if int(then) <= int(now) else None


def _has(pid: int, tid: int) -> bool:
    return os.path.exists(f"/proc/{pid}/task/{tid}")  # noqa: PTH110  many of them


@dataclass
class _Process:
    born_s: float
    many_s: float | None = None  # since when it has several threads, or more than ever
    told: int = 0


class Young:
    """Tells of processes that may be engines from now on: new ones with several threads, as every
    engine has, and older ones with more threads than they ever had, as if a query began.

    Each is told of several times, at growing distances: it may not be ready at first, and open its
    files, by which it is known, only later.
    """

    def __init__(self, every_s: float = LOOK_S) -> None:
        self._every_s = every_s
        self._next_s = 0.0
        self._last_id: bytes | None = None
        self._known: set[int] | None = None
        self._young: dict[int, _Process] = {}
        self._left = False  # whether some found no place
        self._old: dict[int, int] = {}  # process with several threads -> the most it had

    def due(self) -> bool:
        """Whether it is time to look what some process is."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + self._every_s
        last = last_id()
        if last != self._last_id or not last or self._left:
            self._born(now_s)
            self._last_id = last
        due = False
        for pid, process in list(self._young.items()):
            count = thread_count(pid)
            if process.many_s is None and count >= SEVERAL:
                process.many_s = now_s
            if process.many_s is not None:
                for age_s in AGES_S[process.told :]:
                    if now_s - process.many_s < age_s:
                        break
                    process.told, due = process.told + 1, True
            told = process.told == len(AGES_S)
            if not count or told or (process.many_s is None and now_s - process.born_s > YOUNG_S):
                del self._young[pid]
            if told:
                self._settle(pid, count)
        return due

    def _born(self, now_s: float) -> None:
        """Which processes came, and which older ones have more threads than ever."""
        pids = set(procfs.pids())
        if self._known is None:
            for pid in pids:
                self._settle(pid, thread_count(pid))
        else:
            new = sorted(pids - self._known)
            few = [pid for pid, process in self._young.items() if process.many_s is None]
            eldest = few[: max(0, len(self._young) + len(new) - MOST_YOUNG)]
            for pid in eldest:  # anybody may have many that only sleep
                del self._young[pid]
            # Those, and who finds no place, have their turn later.
            pids -= {*eldest, *new[MOST_YOUNG - len(self._young) :]}
            self._left = len(self._young) + len(new) > MOST_YOUNG or bool(eldest)
            self._young |= {pid: _Process(now_s) for pid in new if pid in pids}
        self._known = pids
        for pid, most in list(self._old.items()):
            count = thread_count(pid) if pid in pids else 0
            if not count or count > most:
                del self._old[pid]
            if count > most and len(self._young) < MOST_YOUNG:
                self._young[pid] = _Process(now_s, now_s)

    def _settle(self, pid: int, count: int) -> None:
        if count >= SEVERAL and len(self._old) < MOST_OLD:
            self._old[pid] = count
