"""Sets a scheduling parameter of many threads, journalled, and only where they differ.

Which one is a `Kind`: nice values, real-time priorities, or time slices.

Each thread is a *cell*, a row of a few arrays that hold what is in force. A pass compares arrays;
only the threads that differ cost anything: 1.8 us to ask whether it is still the same thread,
0.5 us to set. What is in force is re-read a few threads a pass, so that each has its turn within
`recheck_s`, and what somebody else changed is repaired.

A helper thread may be in the schedules of several rules, and so have parameters of several
backends. What it had before is journalled once for all of them. Who lets go of it puts back its own
parameter, and the last one everything.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary, WeakSet

import msgspec
import numpy as np

from sched_ctl.backends import Applied
from sched_ctl.backends.threads.sweep import Sweep
from sched_ctl.backends.undo import put_back as undo
from sched_ctl.backends.undo.journal import Journal, JournalError
from sched_ctl.backends.undo.records import Adopted, Process, Set
from sched_ctl.kernel import identity, procfs, sched
from sched_ctl.kernel.identity import UNPINNED
from sched_ctl.model.graph import Array, Index
from sched_ctl.model.normalise import with_weight_kept
from sched_ctl.model.topology import Thread

__all__ = [
    "NICE",
    "Kind",
    "Parameters",
    "Target",
    "at_first",
    "policy_alone",
    "real_time",
    "slices",
]

HIGHEST, LOWEST = -20, 19  # the nicest is the lowest
GONE = -128  # in place of a value
ADOPTABLE = (sched.OTHER, sched.BATCH, sched.EXT)
_by_journal: WeakKeyDictionary[Journal, WeakSet["Parameters"]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Kind:
    """A parameter: how it is read and written.

    Values are whole numbers above `GONE`. set: OSError that names the thread.
    first: what the thread had before us, by the journal.
    policy: what it makes of a thread; None = left as it is, or one of `policies`, by the value.
    sliced: changes its time slice.
    """

    name: str
    get: Callable[[int], int]
    set: Callable[[int, int], None]
    first: Callable[[Adopted], int]
    policy: int | None = None
    policies: tuple[int, ...] = ()
    sliced: bool = False


NICE = Kind(
    "nice",
    lambda tid: os.getpriority(os.PRIO_PROCESS, tid),
    sched.set_nice,
    lambda record: record.nice,
)


def policy_alone(policy: int) -> Kind:
    """The scheduling policy and nothing else: the one value there is, is the policy's number."""

    def write(tid: int, value: int) -> None:
        sched.set_policy(tid, value, reset_on_fork=sched.get_policy(tid)[1])

    return Kind(
        "policy", lambda tid: sched.get_policy(tid)[0], write, lambda record: record.policy, policy
    )


def real_time(policy: int) -> Kind:
    """Priorities 1 to 99 of SCHED_FIFO or SCHED_RR; 0: ordinary. What it starts is ordinary."""

    def write(tid: int, priority: int) -> None:
        sched.set_policy(
            tid, policy if priority else sched.OTHER, reset_on_fork=True, priority=priority
        )

    return Kind(
        "priority",
        lambda tid: os.sched_getparam(tid).sched_priority,
        write,
        lambda _: 0,
        policies=(policy, sched.OTHER),
    )


def slices() -> Kind:
    """Time slices in microseconds. What such a thread starts has the kernel's own again."""

    def read(tid: int) -> int:
        return sched.get_attributes(tid).slice_ns // 1000

    def write(tid: int, slice_us: int) -> None:
        now = sched.get_attributes(tid)
        sched.set_attributes(tid, replace(now, slice_ns=slice_us * 1000, reset_on_fork=True))

    return Kind("slice_us", read, write, lambda record: (record.slice_ns or 0) // 1000, sliced=True)


@dataclass(frozen=True)
class Target:
    """What a scope wants. values: (m,) over the threads.

    A value need not be whole: it is rounded, and written where it is further than dead_band from
    what is in force. best, worst: the range of nice values, for a thread that had 0 of its own.
    One that had another gets a range that begins as far from it, so that nobody gains by us.
    demand: (m,) of nice values that are to keep the threads' weight, see `with_weight_kept`: then
    values are levels below the most urgent, and the range is around what each thread had.
    """

    scope: str
    threads: tuple[Thread, ...]
    values: Array | Index
    dead_band: float = 0.5
    best: int = 0
    worst: int = 19
    demand: Array | None = None


@dataclass
class _Scope:
    threads: tuple[Thread, ...] = ()
    cells: Index = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    problems: tuple[str, ...] = ()  # of threads that could not be adopted
    tried_at: float = 0.0  # when that was seen last
    settled: tuple[Target, int, Applied] | None = None  # in force, as of which change
    next: int = 0  # row whose turn it is to be re-read
    due: float = 0.0  # rows that should have been re-read by now
    reread_at: float = 0.0


class Parameters:
    """What is in force, by thread and by scope. Not for several threads at a time."""

    def __init__(self, journal: Journal, recheck_s: float, kind: Kind = NICE) -> None:
        self._journal = journal
        self._kind = kind
        self._recheck_s = recheck_s
        self._scopes: dict[str, _Scope] = {}
        self._cell: dict[Thread, int] = {}
        self._threads: list[Thread] = []  # by cell, as are the following
        self._pins: list[int] = []
        self._value = np.empty(0, dtype=np.intp)
        self._own = np.empty(0, dtype=np.intp)  # nice of each before us
        self._pids = np.empty(0, dtype=np.intp)
        self._policies: list[int] = []
        self._used: Counter[Thread] = Counter()  # how many scopes have it
        self._free: list[int] = []
        self._sweep = Sweep(journal, recheck_s, self._pids_held, self._held)
        self._changes = 0  # of what is in force
        self._all = _by_journal.setdefault(journal, WeakSet())  # us and those of other backends
        self._all.add(self)

    def apply(self, target: Target) -> Applied:
        """Make it so. Raises JournalError before anything is changed."""
        scope = self._scopes.setdefault(target.scope, _Scope(reread_at=time.monotonic()))
        problems: list[str] = []
        writes = 0
        new = target.threads is not scope.threads and target.threads != scope.threads
        if new or self._may_do_now(scope):
            writes += self._follow(scope, target, problems)
        repaired = self._reread(scope)
        settled = scope.settled
        if settled is not None and settled[0] is target and settled[1] == self._changes:
            late = self._sweep.look()
            problems = [*settled[2].problems, *late]
            return replace(settled[2], writes=repaired, repaired=repaired, problems=tuple(problems))
        scope.settled = None
        now = self._value[scope.cells]
        values = target.values
        if self._kind is NICE:
            values = _from_own(target, self._own[scope.cells])
        wanted = _settled(values, now, target.dead_band)
        rows = np.flatnonzero((now != wanted) & (now != GONE))
        written, failed = self._write(scope.cells[rows], wanted[rows])
        gone = int((self._value[scope.cells] == GONE).sum())
        failed += self._sweep.look()
        unchanged = len(target.threads) - len(rows) - int((now == GONE).sum())
        if not len(rows) and not problems:
            done = Applied(unchanged=unchanged, gone=gone, problems=scope.problems)
            scope.settled = target, self._changes, done
        return Applied(
            writes=writes + written + repaired,
            unchanged=unchanged,
            repaired=repaired,
            gone=gone,
            problems=(*scope.problems, *problems, *failed),
        )

    def applied(self, thread: Thread) -> Mapping[str, str | float]:
        cell = self._cell.get(thread)
        if cell is None or self._value[cell] == GONE:
            return {}
        policy = sched.POLICY_NAMES.get(self._policies[cell], str(self._policies[cell]))
        return {self._kind.name: int(self._value[cell]), "policy": policy}

    def restore(self) -> tuple[str, ...]:
        """Release all threads of all scopes."""
        problems: list[str] = []
        threads = list(self._cell)
        self._scopes.clear()
        self._used.clear()
        self._release(threads, problems)
        problems += self._sweep.below()
        return tuple(problems)

    def rest(self) -> tuple[str, ...]:
        """See `Backend.rest`: what was let go is looked at once more, when that is due."""
        return tuple(self._sweep.rest())

    # Threads come and go

    def _follow(self, scope: _Scope, target: Target, problems: list[str]) -> int:
        """Adopt what is new in the scope, release what it has no more. Returns the writes."""
        old, new = set(scope.threads), set(target.threads)
        refused = self._adopt(
            [thread for thread in dict.fromkeys(target.threads) if thread not in self._cell]
        )
        self._used.update(new - old)
        self._used.subtract(old - new)
        nowhere = self._nowhere()
        scope.cells = np.array(
            [self._cell.get(thread, nowhere) for thread in target.threads], dtype=np.intp
        )
        scope.threads = target.threads
        scope.problems, scope.tried_at = tuple(refused), time.monotonic()
        scope.settled = None
        return self._release([t for t in old - new if self._used[t] <= 0], problems)

    def _may_do_now(self, scope: _Scope) -> bool:
        """Whether to ask again for threads that were not to be had: what kept us may be over."""
        return bool(scope.problems) and time.monotonic() - scope.tried_at >= self._recheck_s

    def _nowhere(self) -> int:
        """A cell that is always gone, for threads that we do not have."""
        if not self._threads:
            self._place(Thread(0, 0, 0), UNPINNED, GONE, 0, 0)
        return 0

    def _place(self, thread: Thread, pinned: int, value: int, own: int, policy: int) -> int:
        if self._free:
            cell = self._free.pop()
            self._threads[cell], self._pins[cell] = thread, pinned
            self._policies[cell] = policy
        else:
            cell = len(self._threads)
            self._threads.append(thread)
            self._pins.append(pinned)
            self._policies.append(policy)
            if cell >= len(self._value):
                self._value = np.resize(self._value, max(64, 2 * cell))
                self._own = np.resize(self._own, len(self._value))
                self._pids = np.resize(self._pids, len(self._value))
        self._value[cell], self._own[cell], self._pids[cell] = value, own, thread.pid
        self._changes += 1
        return cell

    def _adopt(self, threads: Sequence[Thread]) -> list[str]:
        """Journal what the threads have. Returns which are not to be had, in words."""
        self._nowhere()
        refused: list[str] = []
        found: list[tuple[Thread, int, int, Adopted]] = []
        known = self._known({thread.pid for thread in threads})
        for thread in threads:
            if (pinned := identity.pin(thread)) is None:
                continue  # gone already
            fd, now = pinned
            try:
                held = self._journal.state.adopted.get(thread.key)
                process = known.get(thread.pid)
                record = _original(thread, now, process, held, sliced=self._kind.sliced)
                found.append((thread, fd, self._kind.get(thread.tid), record))
            except ProcessLookupError:
                identity.unpin(fd)
            except (OSError, _Refused) as error:
                identity.unpin(fd)
                refused.append(str(error))
        records = [record for *_, record in found]
        try:
            self._journal.write([*_processes(records, self._kind, known), *records])
        except BaseException:
            for _, fd, *_ in found:
                identity.unpin(fd)
            raise
        for thread, fd, value, record in found:
            policy = record.policy if self._kind.policy is None else self._kind.policy
            self._cell[thread] = self._place(thread, fd, value, record.nice, policy)
        return refused

    def _known(self, pids: Iterable[int]) -> dict[int, Process]:
        """Journal lines of these processes, leaving out those of a process that had the pid."""
        lines = self._journal.state.processes
        return {pid: lines[pid] for pid in pids if pid in lines and identity.same(lines[pid])}

    def _release(self, threads: Sequence[Thread], problems: list[str]) -> int:
        """Put the threads back and forget them."""
        cells = [(thread, self._cell.pop(thread)) for thread in threads if thread in self._cell]
        alone = []
        for thread, cell in cells:
            del self._used[thread]
            if others := [one for one in self._all if thread in one._cell]:
                problems += self._leave(cell, others)
            else:
                alone.append(thread.key)
        problems += undo.parameters(self._journal, alone)
        for _, cell in cells:
            identity.unpin(self._pins[cell])
            self._pins[cell] = UNPINNED
            self._value[cell] = GONE
            self._free.append(cell)
        self._changes += 1
        self._sweep.let_go(thread for thread, _ in cells)
        return len(cells)

    def _leave(self, cell: int, others: Sequence["Parameters"]) -> list[str]:
        """Put back our parameter of a thread that others have: the rest is theirs."""
        thread, kind = self._threads[cell], self._kind
        alike = [one for one in others if one._kind.name == kind.name]
        for one in alike:
            one._repair(one._cell[thread])
        record = self._journal.state.adopted.get(thread.key)
        if alike or record is None:
            return []
        ours, first = int(self._value[cell]), kind.first(record)
        try:
            there = ours != first and identity.is_alive(thread, self._pins[cell])
            if there and kind.get(thread.tid) == ours:  # else somebody else has set it since
                kind.set(thread.tid, first)
        except ProcessLookupError:
            pass
        except OSError as error:
            return [str(error)]
        return []

    def _pids_held(self) -> set[int]:
        return {thread.pid for thread in self._cell}

    def _held(self) -> Iterator[Thread | Adopted]:
        """Threads that we have, and those of other backends: one line of a process is for all."""
        yield from self._cell
        yield from self._journal.state.adopted.values()

    # Values change

    def _write(self, cells: Index, values: Index) -> tuple[int, list[str]]:
        """Set values where the thread is still the one that was meant."""
        if not len(cells):
            return 0, []
        if self._kind is NICE:
            self._journal.write([*self._new_values(cells, values), self._given(cells, values)])
        problems: list[str] = []
        writes = 0
        self._changes += 1
        threads, pins, in_force = self._threads, self._pins, self._value
        is_alive, put = identity.is_alive, self._kind.set
        for cell, value in zip(cells.tolist(), values.tolist(), strict=True):
            thread = threads[cell]
            try:
                if is_alive(thread, pins[cell]):
                    put(thread.tid, value)
                    in_force[cell] = value
                    writes += 1
                    continue
            except ProcessLookupError:
                pass
            except OSError as error:
                meaning = sched.explain(error.errno or 0)
                what = f"{self._kind.name} {value} for thread {thread.tid} ({thread.name})"
                problems.append(f"{what}: {meaning}")
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

    def _given(self, cells: Index, nice: Index) -> Set:
        threads = (self._threads[cell] for cell in cells.tolist())
        return Set([(*t.key, value) for t, value in zip(threads, nice.tolist(), strict=True)])

    def _reread(self, scope: _Scope) -> int:
        """Look at the next few threads; repair what is not as we set it. Returns how many."""
        now, count = time.monotonic(), len(scope.cells)
        scope.due = min(scope.due + count * (now - scope.reread_at) / self._recheck_s, count)
        scope.reread_at = now
        repaired = 0
        while scope.due >= 1:
            repaired += self._repair(int(scope.cells[scope.next % count]))
            scope.next = (scope.next + 1) % count
            scope.due -= 1
        return repaired

    def _repair(self, cell: int) -> bool:
        wanted = int(self._value[cell])
        if wanted == GONE:
            return False
        thread = self._threads[cell]
        try:
            policy = self._kind.policy
            right = policy is None or sched.get_policy(thread.tid)[0] == policy
            if right and self._kind.get(thread.tid) == wanted:
                return False
            if not identity.is_alive(thread, self._pins[cell]):
                raise ProcessLookupError
            if self._kind is NICE and wanted not in self._journal.state.given.get(thread.key, ()):
                self._journal.write([Set([(*thread.key, wanted)])])  # others have set theirs since
            self._kind.set(thread.tid, wanted)
        except ProcessLookupError:
            self._value[cell] = GONE
            self._changes += 1
            return False
        except (OSError, JournalError):
            return False  # comes again in the next round; the write of a difference reports it
        return True


def at_first(target: Target, own: Index) -> Index:
    """(m,) nice values that threads get at first which have these of their own."""
    return _settled(_from_own(target, own), own, target.dead_band)


def _from_own(target: Target, own: Index) -> Array | Index:
    """(m,) nice values of the target for threads that had these of their own."""
    if target.demand is not None:
        below = np.asarray(target.values, dtype=np.float64)
        return with_weight_kept(below, own, target.demand, target.best, target.worst)
    if not own.any():
        return target.values
    best = np.clip(target.best + own, HIGHEST, LOWEST)
    worst = np.clip(target.worst + own, HIGHEST, LOWEST)
    place = (target.values - target.best) / max(1, target.worst - target.best)
    return np.asarray(best + place * (worst - best), dtype=np.float64)


def _settled(wanted: Array | Index, now: Index, dead_band: float) -> Index:
    """Nice values to have: what is wanted, rounded; what is in force where that is near it."""
    return np.where(np.abs(wanted - now) > dead_band, np.rint(wanted).astype(np.intp), now)


class _Refused(Exception):
    """A thread that we do not touch, and why."""


def _original(
    thread: Thread, now: procfs.Stat, process: Process | None, held: Adopted | None, *, sliced: bool
) -> Adopted:
    """What the thread would have without us. Raises ProcessLookupError, OSError, _Refused.

    held: what the journal has of it, as another backend ordered it first.
    """
    policy, reset = sched.get_policy(thread.tid)
    ours = process.set_policies if process and held else ()
    if policy not in ADOPTABLE and policy not in ours:
        raise _Refused(
            f"thread {thread.tid} ({thread.name or now.name}) is "
            f"{sched.POLICY_NAMES.get(policy, policy)} by somebody else's will: left alone"
        )
    slice_ns = sched.own_slice_ns(thread.tid) if sliced else None
    if held is not None:
        return held if slice_ns is None else msgspec.structs.replace(held, slice_ns=slice_ns)
    nice = now.nice
    if process and undo.is_inherited(process, now):
        nice, policy = process.nice, process.policy
    return Adopted(thread.pid, thread.tid, thread.start_time, nice, policy, reset, slice_ns)


def _processes(
    records: Iterable[Adopted], kind: Kind, known: Mapping[int, Process]
) -> list[Process]:
    """Journal lines for processes that are new to us, or in which we set a new policy."""
    policies = [*kind.policies, *([] if kind.policy is None else [kind.policy])]
    by_pid: dict[int, list[Adopted]] = {}
    for record in records:
        by_pid.setdefault(record.pid, []).append(record)
    lines = []
    for pid, members in by_pid.items():
        if process := known.get(pid):
            if not set(policies) <= set(process.set_policies):
                lines.append(_replaced(process, policies=policies))
        elif leader := procfs.stat(pid):
            common = Counter((record.nice, record.policy) for record in members)
            nice, before = common.most_common(1)[0][0]
            since = procfs.boot_ticks()
            lines.append(Process(pid, leader.start_time, since, nice, before, [], policies))
    return lines


def _replaced(process: Process, nice: Iterable[int] = (), policies: Iterable[int] = ()) -> Process:
    return Process(
        process.pid,
        process.start_time,
        process.since,
        process.nice,
        process.policy,
        sorted({*process.set_nice, *nice}),
        sorted({*process.set_policies, *policies}),
    )
