"""Sets nice and policy of many threads, journalled, and only where they differ.

Each thread is a *cell*, a row of a few arrays that hold what is in force. A pass compares arrays;
only the threads that differ cost anything: 1.8 us to ask whether it is still the same thread,
0.5 us to set. What is in force is re-read a few threads a pass, so that each has its turn within
`recheck_s`, and what somebody else changed is repaired.
"""

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sched_ctl.backends import Applied, undo
from sched_ctl.backends.journal import Journal
from sched_ctl.backends.records import Adopted, Process
from sched_ctl.graph import Array, Index
from sched_ctl.kernel import identity, procfs, sched
from sched_ctl.kernel.identity import UNPINNED
from sched_ctl.model import Thread

__all__ = ["Parameters", "Target"]

GONE = -128  # in place of a nice value
ADOPTABLE = (sched.OTHER, sched.BATCH, sched.EXT)


@dataclass(frozen=True)
class Target:
    """What a scope wants. nice: (m,) over the threads; None = left alone. policy: for all.

    nice need not be whole: it is rounded, and written where it is further than dead_band from
    what is in force.
    """

    scope: str
    threads: tuple[Thread, ...]
    nice: Array | Index | None
    policy: int
    dead_band: float = 0.5


@dataclass
class _Scope:
    threads: tuple[Thread, ...] = ()
    cells: Index = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    problems: tuple[str, ...] = ()  # of threads that could not be adopted
    next: int = 0  # row whose turn it is to be re-read
    due: float = 0.0  # rows that should have been re-read by now
    reread_at: float = 0.0


class Parameters:
    """What is in force, by thread and by scope. Not for several threads at a time."""

    def __init__(self, journal: Journal, recheck_s: float) -> None:
        self._journal = journal
        self._recheck_s = recheck_s
        self._scopes: dict[str, _Scope] = {}
        self._cell: dict[Thread, int] = {}
        self._threads: list[Thread] = []  # by cell, as are the following
        self._pins: list[int] = []
        self._nice = np.empty(0, dtype=np.intp)
        self._pids = np.empty(0, dtype=np.intp)
        self._policies: list[int] = []
        self._used: Counter[Thread] = Counter()  # how many scopes have it
        self._free: list[int] = []
        self._swept_at = time.monotonic()

    def apply(self, target: Target) -> Applied:
        """Make it so. Raises JournalError before anything is changed."""
        scope = self._scopes.setdefault(target.scope, _Scope(reread_at=time.monotonic()))
        problems: list[str] = []
        writes = 0
        if target.threads != scope.threads:
            writes += self._follow(scope, target, problems)
        repaired = self._reread(scope, target)
        now = self._nice[scope.cells]
        nice = now if target.nice is None else _settled(target.nice, now, target.dead_band)
        rows = np.flatnonzero((now != nice) & (now != GONE))
        written, failed = self._write(scope.cells[rows], nice[rows])
        gone = int((self._nice[scope.cells] == GONE).sum())
        self._sweep()
        return Applied(
            writes=writes + written + repaired,
            unchanged=len(target.threads) - len(rows) - int((now == GONE).sum()),
            repaired=repaired,
            gone=gone,
            problems=(*scope.problems, *problems, *failed),
        )

    def applied(self, thread: Thread) -> Mapping[str, str | float]:
        cell = self._cell.get(thread)
        if cell is None or self._nice[cell] == GONE:
            return {}
        policy = sched.POLICY_NAMES.get(self._policies[cell], str(self._policies[cell]))
        return {"nice": int(self._nice[cell]), "policy": policy}

    def restore(self) -> tuple[str, ...]:
        """Release all threads of all scopes."""
        problems: list[str] = []
        threads = list(self._cell)
        self._scopes.clear()
        self._used.clear()
        self._release(threads, problems)
        return tuple(problems)

    # Threads come and go

    def _follow(self, scope: _Scope, target: Target, problems: list[str]) -> int:
        """Adopt what is new in the scope, release what it has no more. Returns the writes."""
        old, new = set(scope.threads), set(target.threads)
        writes, refused = self._adopt(
            [thread for thread in dict.fromkeys(target.threads) if thread not in self._cell],
            target.policy,
        )
        self._used.update(new - old)
        self._used.subtract(old - new)
        nowhere = self._nowhere()
        scope.cells = np.array(
            [self._cell.get(thread, nowhere) for thread in target.threads], dtype=np.intp
        )
        scope.threads = target.threads
        scope.problems = tuple(refused)
        return writes + self._release([t for t in old - new if self._used[t] <= 0], problems)

    def _nowhere(self) -> int:
        """A cell that is always gone, for threads that we do not have."""
        if not self._threads:
            self._place(Thread(0, 0, 0), UNPINNED, GONE, 0)
        return 0

    def _place(self, thread: Thread, pinned: int, nice: int, policy: int) -> int:
        if self._free:
            cell = self._free.pop()
            self._threads[cell], self._pins[cell] = thread, pinned
            self._policies[cell] = policy
        else:
            cell = len(self._threads)
            self._threads.append(thread)
            self._pins.append(pinned)
            self._policies.append(policy)
            if cell >= len(self._nice):
                self._nice = np.resize(self._nice, max(64, 2 * cell))
                self._pids = np.resize(self._pids, len(self._nice))
        self._nice[cell], self._pids[cell] = nice, thread.pid
        return cell

    def _adopt(self, threads: Sequence[Thread], policy: int) -> tuple[int, list[str]]:
        """Journal what the threads have, then set the policy. Returns writes and problems."""
        self._nowhere()
        refused: list[str] = []
        found: list[tuple[Thread, int, procfs.Stat, Adopted]] = []
        known = self._known({thread.pid for thread in threads})
        for thread in threads:
            if (pinned := identity.pin(thread)) is None:
                continue  # gone already
            fd, now = pinned
            try:
                found.append((thread, fd, now, _original(thread, now, known.get(thread.pid))))
            except ProcessLookupError:
                identity.unpin(fd)
            except (OSError, _Refused) as error:
                identity.unpin(fd)
                refused.append(str(error))
        records = [record for *_, record in found]
        try:
            self._journal.write([*_processes(records, policy, known), *records])
        except BaseException:
            for _, fd, *_ in found:
                identity.unpin(fd)
            raise
        writes = 0
        for thread, fd, now, record in found:
            cell = self._cell[thread] = self._place(thread, fd, now.nice, policy)
            if now.policy == policy:
                continue
            try:
                sched.set_policy(thread.tid, policy, reset_on_fork=record.reset_on_fork)
                writes += 1
            except ProcessLookupError:
                self._nice[cell] = GONE
            except OSError as error:
                self._policies[cell] = now.policy
                refused.append(str(error))
        return writes, refused

    def _known(self, pids: Iterable[int]) -> dict[int, Process]:
        """Journal lines of these processes, leaving out those of a process that had the pid."""
        lines = self._journal.state.processes
        return {
            pid: lines[pid]
            for pid in pids
            if pid in lines and (now := procfs.stat(pid)) and now.start_time == lines[pid].start
        }

    def _release(self, threads: Sequence[Thread], problems: list[str]) -> int:
        """Put the threads back and forget them; sweep processes in which we have none left."""
        cells = [(thread, self._cell.pop(thread)) for thread in threads if thread in self._cell]
        for thread, _ in cells:
            del self._used[thread]
        problems += undo.parameters(
            self._journal, [(thread.tid, thread.start_time) for thread, _ in cells]
        )
        for _, cell in cells:
            identity.unpin(self._pins[cell])
            self._pins[cell] = UNPINNED
            self._nice[cell] = GONE
            self._free.append(cell)
        left = {thread.pid for thread in self._cell}
        empty = {thread.pid for thread, _ in cells} - left
        problems += undo.processes(self._journal, empty, {thread.tid for thread, _ in cells})
        return len(cells)

    # Values change

    def _write(self, cells: Index, nice: Index) -> tuple[int, list[str]]:
        """Set nice values where the thread is still the one that was meant."""
        if not len(cells):
            return 0, []
        self._journal.write(self._new_values(cells, nice))
        problems: list[str] = []
        writes = 0
        threads, pins, in_force = self._threads, self._pins, self._nice
        is_alive, setpriority = identity.is_alive, os.setpriority
        for cell, value in zip(cells.tolist(), nice.tolist(), strict=True):
            thread = threads[cell]
            try:
                if is_alive(thread, pins[cell]):
                    setpriority(os.PRIO_PROCESS, thread.tid, value)
                    in_force[cell] = value
                    writes += 1
                    continue
            except ProcessLookupError:
                pass
            except OSError as error:
                meaning = sched.explain(error.errno or 0)
                problems.append(f"nice {value} for thread {thread.tid} ({thread.name}): {meaning}")
                continue
            in_force[cell] = GONE
        return writes, problems

    def _new_values(self, cells: Index, nice: Index) -> list[Process]:
        """Journal lines for processes in which a nice value is set for the first time."""
        wanted: dict[int, set[int]] = {}
        for pid, value in set(zip(self._pids[cells].tolist(), nice.tolist(), strict=True)):
            wanted.setdefault(pid, set()).add(value)
        processes = self._journal.state.processes
        return [
            _replaced(processes[pid], nice=values)
            for pid, values in wanted.items()
            if pid in processes and not values <= set(processes[pid].set_nice)
        ]

    def _reread(self, scope: _Scope, target: Target) -> int:
        """Look at the next few threads; repair what is not as we set it. Returns how many."""
        now, count = time.monotonic(), len(scope.cells)
        scope.due = min(scope.due + count * (now - scope.reread_at) / self._recheck_s, count)
        scope.reread_at = now
        repaired = 0
        while scope.due >= 1:
            repaired += self._repair(int(scope.cells[scope.next % count]), target)
            scope.next = (scope.next + 1) % count
            scope.due -= 1
        return repaired

    def _repair(self, cell: int, target: Target) -> bool:
        wanted = int(self._nice[cell])
        if wanted == GONE:
            return False
        thread = self._threads[cell]
        try:
            is_policy = os.sched_getscheduler(thread.tid)
            right = is_policy & ~sched.RESET_ON_FORK == self._policies[cell]
            alone = target.nice is None
            if right and (alone or os.getpriority(os.PRIO_PROCESS, thread.tid) == wanted):
                return False
            if not identity.is_alive(thread, self._pins[cell]):
                raise ProcessLookupError
            if not right:
                sched.set_policy(
                    thread.tid, target.policy, reset_on_fork=bool(is_policy & sched.RESET_ON_FORK)
                )
            if not alone:
                sched.set_nice(thread.tid, wanted)
        except ProcessLookupError:
            self._nice[cell] = GONE
            return False
        except OSError:
            return False  # comes again in the next round; the write of a difference reports it
        return True

    def _sweep(self) -> None:
        """Now and then, put back what threads that are not ours inherited from ours."""
        now = time.monotonic()
        if now - self._swept_at < self._recheck_s:
            return
        self._swept_at = now
        held = {thread.tid for thread in self._cell}
        for pid in {thread.pid for thread in self._cell}:
            if process := self._journal.state.processes.get(pid):
                undo.passed_on(process, held, below=False)


def _settled(wanted: Array | Index, now: Index, dead_band: float) -> Index:
    """Nice values to have: what is wanted, rounded; what is in force where that is near it."""
    return np.where(np.abs(wanted - now) > dead_band, np.rint(wanted).astype(np.intp), now)


class _Refused(Exception):
    """A thread that we do not touch, and why."""


def _original(thread: Thread, now: procfs.Stat, process: Process | None) -> Adopted:
    """What the thread would have without us. Raises ProcessLookupError, OSError, _Refused."""
    policy, reset = sched.get_policy(thread.tid)
    if policy not in ADOPTABLE:
        raise _Refused(
            f"thread {thread.tid} ({thread.name or now.name}) is "
            f"{sched.POLICY_NAMES.get(policy, policy)} by somebody else's will: left alone"
        )
    nice = now.nice
    if process and undo.is_inherited(process, now):
        nice, policy = process.nice, process.policy
    return Adopted(thread.pid, thread.tid, thread.start_time, nice, policy, reset)


def _processes(
    records: Iterable[Adopted], policy: int, known: Mapping[int, Process]
) -> list[Process]:
    """Journal lines for processes that are new to us, or in which we set a new policy."""
    by_pid: dict[int, list[Adopted]] = {}
    for record in records:
        by_pid.setdefault(record.pid, []).append(record)
    lines = []
    for pid, members in by_pid.items():
        if process := known.get(pid):
            if policy not in process.set_policies:
                lines.append(_replaced(process, policies=[policy]))
        elif leader := procfs.stat(pid):
            common = Counter((record.nice, record.policy) for record in members)
            nice, before = common.most_common(1)[0][0]
            since = procfs.boot_ticks()
            lines.append(Process(pid, leader.start_time, since, nice, before, [], [policy]))
    return lines


def _replaced(process: Process, nice: Iterable[int] = (), policies: Iterable[int] = ()) -> Process:
    return Process(
        process.pid,
        process.start,
        process.since,
        process.nice,
        process.policy,
        sorted({*process.set_nice, *nice}),
        sorted({*process.set_policies, *policies}),
    )
