"""What engines weigh against the rest of the machine, so that our groups weigh the same.

In the root cgroup the kernel divides the CPU either among sessions, each of which weighs as much
as one thread (autogroup, sched(7)), or, where that is off and in every other cgroup, among the
single threads that can run. A group that takes the place of some processes there must weigh what
their sessions did, or as many threads as can run at a time: their *demand*.

Where no group of ours is between, threads that are made nicer yield to every other process of the
same *fair group*: that session, or the nearest cgroup with a CPU weight, which for a service may be
the slice that it shares with all others. `Rivals` finds those that gain by it.
"""

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import numpy as np

from sched_ctl.backends.undo.records import Adopted, Key
from sched_ctl.errors import printable
from sched_ctl.kernel import cgroup, procfs
from sched_ctl.kernel.cgroup import ROOT_NAME
from sched_ctl.model.graph import Array
from sched_ctl.model.normalise import NICE_STEP
from sched_ctl.model.topology import Thread

__all__ = [
    "Demand",
    "Rivals",
    "Wanted",
    "autogroup_is_on",
    "fair_group",
    "sessions",
    "sessions_weight",
]

AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")
SESSION = re.compile(r"(?P<name>/autogroup-\d+) nice (?P<nice>-?\d+)")
EVERY_S = 1.0  # from one look at the demand to the next
SMOOTH_S = 3.0
WANTED_S = 10.0  # as above, of single threads: operators have queues for seconds
LOOK_S = 0.002  # a thread, from one look to the next: .4% of a CPU
RIVALS_FIRST_S = 10.0  # that two looks at who is busy are apart at first
RIVALS_EVERY_S = 60.0  # and then: each takes 10 us a process, and more where caches are cold
RIVAL = 0.1  # of a CPU, below which nobody is named


def autogroup_is_on() -> bool:
    try:
        return procfs.text(AUTOGROUP).strip() == "1"
    except OSError:
        return False


def sessions(pids: Iterable[int]) -> dict[str, int]:
    """Sessions that these processes are in, with the nice value of each, proc(5)."""
    found = {}
    for pid in pids:
        try:
            text = procfs.text(f"/proc/{pid}/autogroup")
        except OSError:
            continue
        if match := SESSION.match(text):
            found[match["name"]] = int(match["nice"])
    return found


def sessions_weight(pids: Iterable[int]) -> float:
    """What the sessions of these processes weigh, in threads of nice 0; at least 1."""
    return max(1.0, sum(NICE_STEP**-nice for nice in sessions(pids).values()))


def fair_group(pid: int) -> str | None:
    """Among whose threads nice counts for those of a process (sched(7)); None if it is gone.

    The nearest cgroup that has a weight, or in the root cgroup the session under autogroup.
    """
    tree = next((found for found in cgroup.hierarchies() if cgroup.has_cpu(found)), None)
    folder = tree.folder_of(pid, pid) if tree else None
    if tree and folder:
        for group in (folder, *folder.parents):
            if group == tree.mount:
                break
            if (group / tree.weight).exists():
                return str(group)
    if not autogroup_is_on():
        return "the machine" if Path(f"/proc/{pid}").exists() else None
    return next(iter(sessions([pid])), None)


class Rivals:
    """Busy processes that are in a fair group with an engine and are none of its own."""

    def __init__(self) -> None:
        self.problem = ""
        self._used: dict[int, int] = {}  # pid -> CPU time so far, ns
        self._at_s = 0.0
        self._pause_s = RIVALS_FIRST_S

    def look(self, ours: Callable[[], Collection[int]]) -> str:
        """What people should know of them, or ""; looked at anew each minute.

        ours: the engine's own processes, asked for when they are needed.
        """
        now_s = time.monotonic()
        elapsed_s = now_s - self._at_s
        if self._used and elapsed_s < self._pause_s:
            return self.problem
        used = {pid: procfs.cpu_ns(pid) for pid in procfs.pids()}
        before, self._used, self._at_s = self._used, used, now_s
        if not before:
            return self.problem
        self._pause_s = RIVALS_EVERY_S
        pids = ours()
        groups = {fair_group(pid) for pid in pids}
        own = {group for group in groups if group and ROOT_NAME not in Path(group).parts}
        busy = {pid: (ns - before.get(pid, ns)) / 1e9 / elapsed_s for pid, ns in used.items()}
        rivals = sorted(
            (pid for pid in busy if busy[pid] > RIVAL and pid not in {*pids, os.getpid()}),
            key=lambda pid: -busy[pid],
        )
        names = [_named(pid) for pid in rivals if fair_group(pid) in own]
        self.problem = (
            f"{', '.join(names[:3])} gain the CPU that threads with a higher nice value yield, for "
            "they are not set apart from the engine: start it as a service with a CPUWeight of its "
            "own, or by setsid"
            if names
            else ""
        )
        return self.problem


def _named(pid: int) -> str:
    stat = procfs.stat(pid)
    return f"{printable(stat.name) if stat else 'a process'} (pid {pid})"


class Demand:
    """What the threads of some processes that want a CPU weigh, on average over the last seconds.

    They want one while they run and while they wait to: both are counted by the kernel
    (/proc/PID/task/TID/schedstat). Costs some 10 us a thread and second.
    """

    def __init__(self) -> None:
        self.weight = 1.0
        self._seen: dict[int, int] = {}  # tid -> ns in which it wanted a CPU
        self._at_s = 0.0

    def look(self, pids: Collection[int], given: Mapping[Key, Adopted] | None = None) -> float:
        """In threads of nice 0, at least one thread of theirs; looked at anew if that was long ago.

        given: threads that have another nice value than their own, which counts.
        """
        now_s = time.monotonic()
        elapsed_s = now_s - self._at_s
        if self._seen and elapsed_s < EVERY_S:
            return self.weight
        tids = [(pid, tid) for pid in pids for tid in procfs.tids(pid)]
        seen = {tid: ns for pid, tid in tids if (ns := _wanted_ns(pid, tid))}
        if not self._seen:
            states = ((tid, procfs.stat(pid, tid)) for pid, tid in tids)
            wanted = {tid: 1.0 for tid, found in states if found is not None and found.state == "R"}
        else:
            span_ns = elapsed_s * 1e9
            wanted = {
                tid: max(0, ns - self._seen.get(tid, ns)) / span_ns for tid, ns in seen.items()
            }
        now = _weight(wanted, {tid: one.nice for (tid, _), one in (given or {}).items()})
        self.weight += (now - self.weight) * (min(1.0, elapsed_s / SMOOTH_S) if self._seen else 1.0)
        self._seen, self._at_s = seen, now_s
        return self.weight


def _weight(wanted: Mapping[int, float], given: Mapping[int, int]) -> float:
    """wanted: tid -> share of time in which it wants a CPU. given: tid -> its own nice value."""
    own = {tid: given[tid] if tid in given else _nice(tid) for tid in wanted}
    each = {tid: NICE_STEP**-nice for tid, nice in own.items()}
    threads = sum(wanted.values())
    if not threads > 0:
        return sum(each.values()) / len(each) if each else 1.0
    return max(1.0, 1.0 / threads) * sum(share * each[tid] for tid, share in wanted.items())


def _nice(tid: int) -> int:
    try:
        return os.getpriority(os.PRIO_PROCESS, tid)
    except OSError:
        return 0


class Wanted:
    """The share of time in which each of some threads wants a CPU.

    The larger one of the last look and of the last seconds, for who was idle may begin again at any
    time; 1 where it is not known yet. A look costs some 8 us a thread, and so comes the more seldom
    the more there are.
    """

    def __init__(self) -> None:
        self._threads: tuple[Thread, ...] = ()
        self._share = np.ones(0)
        self._smooth: dict[Thread, float] = {}
        self._seen: dict[Thread, int] = {}
        self._at_s = 0.0

    def look(self, threads: tuple[Thread, ...]) -> Array:
        """(m,) the shares; the same object as before if nothing was looked at."""
        now_s = time.monotonic()
        elapsed_s = now_s - self._at_s
        if threads != self._threads:
            self._threads = threads
            self._share = np.array([min(1.0, self._smooth.get(t, 1.0)) for t in threads])
        elif elapsed_s < max(EVERY_S, LOOK_S * len(threads)):
            return self._share
        seen = {thread: _wanted_ns(thread.pid, thread.tid) for thread in threads}
        smooth: dict[Thread, float] = {}
        shares = []
        for thread, ns in seen.items():
            before = self._seen.get(thread)
            if before is None or elapsed_s < EVERY_S / 2:
                now = smooth[thread] = self._smooth.get(thread, 1.0)
            else:
                now = (ns - before) / 1e9 / elapsed_s
                was = self._smooth.get(thread, now)
                smooth[thread] = was + (now - was) * min(1.0, elapsed_s / WANTED_S)
            shares.append(min(1.0, max(now, smooth[thread])))
        self._share, self._smooth = np.array(shares), smooth
        if elapsed_s >= EVERY_S / 2 or not self._seen:
            self._seen, self._at_s = seen, now_s
        else:
            self._seen |= {thread: ns for thread, ns in seen.items() if thread not in self._seen}
        return self._share


def _wanted_ns(pid: int, tid: int) -> int:
    try:
        run, wait, _ = procfs.text(f"/proc/{pid}/task/{tid}/schedstat").split()
    except (OSError, ValueError):
        return 0
    return int(run) + int(wait)
