"""realtime: SCHED_RR or SCHED_FIFO, a priority by urgency. Only for who asks for it by name.

A real-time thread runs before all ordinary ones, the collector and the heartbeats of its own
engine among them, and before what else is on the machine. Two bounds keep that from being for
ever: the kernel's throttling, which must be on (sched(7), sched_rt_runtime_us), and ours: a
thread that used more than `bound` of a CPU since the last pass is an ordinary one until it uses
half of that. What real-time threads start is ordinary.

Two kinds of threads are refused: those that use a CPU while they have nothing to do, which as
real-time ones are throttled together and starve their engine's heartbeats and metrics (on Storm a
mean latency of 6 s instead of 4 ms), and those of a cgroup that has no real-time runtime.
"""

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np

from sched_ctl.backends import Applied, Backend, Probe
from sched_ctl.backends.threads.nice import may_lower
from sched_ctl.backends.threads.parameters import Parameters, Target, real_time
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.kernel import cgroup, procfs, sched
from sched_ctl.model.graph import Array
from sched_ctl.model.normalise import places
from sched_ctl.model.options import RealTimeOptions
from sched_ctl.model.schedule import Schedule, without
from sched_ctl.model.topology import Thread

__all__ = ["RealTime", "probe"]

THROTTLE = Path("/proc/sys/kernel/sched_rt_runtime_us")
LEAST_S = 0.1  # from one look at what a thread used to the next
POLICIES = {"rr": sched.RR, "fifo": sched.FIFO}


class RealTime(Backend):
    """The backend; see `backends.Backend`."""

    name: ClassVar[str] = "realtime"
    lifts: ClassVar[bool] = True

    def __init__(self, journal: Journal, options: RealTimeOptions | None = None) -> None:
        self.options = options or RealTimeOptions()
        self._policy = POLICIES[self.options.policy]
        kind = real_time(self._policy)
        self._parameters = Parameters(journal, self.options.recheck, kind)
        self._used: dict[Thread, tuple[float, float]] = {}  # when (s), CPU time until then (s)
        self._greedy: set[Thread] = set()
        self._threads: dict[str, frozenset[Thread]] = {}  # by scope, of the last pass

    def apply(self, schedule: Schedule) -> Applied:
        """See `Backend.apply`. Shares are not had here: groups count for nothing."""
        schedule, problems = _permitted(schedule)
        place = places(schedule)
        levels = 1 + np.nan_to_num(place) * (self.options.highest - 1)
        levels[np.isnan(place)] = 0  # nothing to say: ordinary
        self._forget(schedule.scope, schedule.threads)
        levels[self._bounded(schedule.threads)] = 0
        done = self._parameters.apply(Target(schedule.scope, schedule.threads, np.rint(levels)))
        return done + Applied(problems=problems) if problems else done

    def _forget(self, scope: str, threads: tuple[Thread, ...]) -> None:
        """Those that are in the scope no more."""
        now = frozenset(threads)
        for thread in self._threads.pop(scope, now) - now:
            self._used.pop(thread, None)
            self._greedy.discard(thread)
        if now:
            self._threads[scope] = now

    def _bounded(self, threads: tuple[Thread, ...]) -> Array:
        """(m,) whether each thread has used too much since it was last looked at."""
        now_s = time.monotonic()
        for thread in threads:
            if (times := procfs.times(thread.pid, thread.tid)) is None:
                continue  # it is gone
            cpu_s = times[0]
            at_s, before_s = self._used.setdefault(thread, (now_s, cpu_s))
            if now_s - at_s < LEAST_S:
                continue  # another scope that has it asked just now
            use = (cpu_s - before_s) / (now_s - at_s)
            if use > self.options.bound:
                self._greedy.add(thread)
            elif use < self.options.bound / 2:
                self._greedy.discard(thread)
            self._used[thread] = now_s, cpu_s
        return np.array([thread in self._greedy for thread in threads], dtype=np.bool_)

    def applied(self, thread: Thread) -> Mapping[str, str | float]:
        found = dict(self._parameters.applied(thread))
        if found.get("priority"):
            found["policy"] = sched.POLICY_NAMES[self._policy]
        elif found:
            found["bounded"] = "yes" if thread in self._greedy else "no"
        return found

    def restore(self) -> tuple[str, ...]:
        self._used.clear()
        self._greedy.clear()
        self._threads.clear()
        return self._parameters.restore()

    def rest(self) -> tuple[str, ...]:
        return self._parameters.rest()


def _permitted(schedule: Schedule) -> tuple[Schedule, tuple[str, ...]]:
    """The schedule of those that may be real-time ones, and why others may not, in words."""
    problems = [
        f"{engine}: no real-time priorities: its threads use a CPU while they wait for input, and "
        "would starve its heartbeats and metrics; another backend orders them"
        for engine in sorted(schedule.spinning)
    ]
    spared = {
        thread
        for thread, query in zip(schedule.threads, schedule.queries, strict=False)  # or () there
        if schedule.spinning and (query is None or query[0] in schedule.spinning)
    }
    for pid in sorted({thread.pid for thread in schedule.threads if thread not in spared}):
        folder = _without_runtime(pid)
        if folder is not None:
            spared |= {thread for thread in schedule.threads if thread.pid == pid}
            problems.append(
                f"process {pid}: no real-time priorities: its cgroup {folder} has no real-time "
                "runtime (cpu.rt_runtime_us)"
            )
    return without(schedule, spared), tuple(problems)


def _without_runtime(pid: int | str) -> Path | None:
    """The cgroup of a process, if it permits no real-time threads (version 1 only)."""
    for tree in cgroup.hierarchies():
        if tree.version == 1 and cgroup.has_cpu(tree):
            folder = tree.folder_of(int(pid), int(pid))
            with contextlib.suppress(OSError, ValueError):
                if folder and int((folder / "cpu.rt_runtime_us").read_text()) == 0:
                    return folder
    return None


def probe() -> Probe:
    try:
        runtime_us = int(procfs.text(THROTTLE))
    except (OSError, ValueError):
        return Probe(False, f"{THROTTLE} cannot be read, so nothing would bound real-time threads")
    if runtime_us < 0:
        return Probe(
            False,
            "real-time threads are not throttled: one that spins would take its CPU for good",
            "sysctl kernel.sched_rt_runtime_us=950000",
        )
    if not any(procfs.times(os.getpid(), os.getpid()) or ()):
        return Probe(
            False,
            "this kernel does not count what a thread uses (schedstat), so nothing of ours would "
            "bound one",
        )
    if not may_lower():
        return Probe(False, "not permitted to raise priorities", "run as root")
    if (folder := _without_runtime(os.getpid())) is not None:
        return Probe(
            False,
            f"{folder} has no real-time runtime",
            f"give it some, and each engine's cgroup: {folder}/cpu.rt_runtime_us",
        )
    return Probe(True, f"real-time threads are throttled to {runtime_us / 1e4:.0f}% by the kernel")
