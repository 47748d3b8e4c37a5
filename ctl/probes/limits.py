"""How often limits on CPU time stop an engine's processes: cpu.max of a cgroup, or its quota.

A cgroup that has used up what it may have of a period (.1 s, as a rule) stands still until the next
one begins. To the kernel its threads wait for a CPU meanwhile, so they look starved; but no
priority makes that wait shorter. Sources: Documentation/admin-guide/cgroup-v2.rst, cpu.stat;
Documentation/scheduler/sched-bwc.rst, which has the same for version 1.
"""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from sched_ctl.kernel import cgroup, cpus, procfs

__all__ = ["Limit", "Limits"]

WINDOW_S = 2.0  # as verdicts of operators are of
KEPT_S = 16.0  # readings: who asks now and then compares with those of the last time
EVERY_S = 0.5
MOST_PIDS = 50  # of an engine, .2 ms each
LEAST = 3  # periods, for a share of them: up to a second each

Counts = tuple[int, int]  # periods in which a cgroup ran, and those in which it was stopped


@dataclass(frozen=True, slots=True)
class Limit:
    """cpus: that a cgroup may use. stopped: share of its periods in which it had used them up."""

    cpus: float
    stopped: float


@dataclass(frozen=True, slots=True)
class _Reading:
    """most: CPUs that each cgroup may use. counts: of those that tell."""

    time_s: float
    most: dict[Path, float]
    counts: dict[Path, Counts]


class Limits:
    """Readings of the cgroups of one engine's processes, while somebody looks."""

    def __init__(self) -> None:
        self._read: deque[_Reading] = deque()  # the newest is the last
        self._stop: dict[int, Limit] = {}  # by process

    @property
    def ready(self) -> bool:
        """Whether there are readings to compare of all cgroups with a limit, if there are any."""
        if not self._read:
            return False
        *before, now = self._read
        return all(any(group in then.most for then in before) for group in now.most)

    def look(self, pids: Iterable[int], now_s: float | None = None) -> None:
        """At these processes, unless that was done just now."""
        now_s = time.monotonic() if now_s is None else now_s
        if self._read and now_s - self._read[-1].time_s < EVERY_S:
            return
        while self._read and now_s - self._read[0].time_s > KEPT_S:
            self._read.popleft()
        limits = {pid: _limits(pid) for pid in islice(pids, MOST_PIDS)}
        most = {group: cpus for mine in limits.values() for group, cpus in mine.items()}
        counts = {group: found for group in most if (found := _counts(group)) is not None}
        self._read.append(_Reading(now_s, most, counts))
        self._stop = {
            pid: max(
                (Limit(cpus, self._share(group)) for group, cpus in mine.items()), key=_stopped
            )
            for pid, mine in limits.items()
            if mine
        }

    def _share(self, group: Path) -> float:
        """Of a cgroup's periods lately, in how many it was stopped; 0 where too few are known.

        Of the last `WINDOW_S`, or of more where that has too few: only while its limit was that of
        now, and as long as it is the same cgroup.
        """
        *before, now = self._read
        share = 0.0
        for then in reversed(before):
            known = group in then.counts and group in now.counts
            if not known or then.most[group] != now.most[group]:
                break
            (ran, stopped), (ran_then, stopped_then) = now.counts[group], then.counts[group]
            ran, stopped = ran - ran_then, stopped - stopped_then
            if not 0 <= stopped <= ran:  # another of this name
                break
            share = stopped / ran if ran >= LEAST else 0.0
            if ran >= LEAST and now.time_s - then.time_s >= WINDOW_S:
                break
        return share

    def of(self, pids: Iterable[int]) -> Limit | None:
        """The limit that stopped any of these processes most often of late; None: none did."""
        found = [self._stop[pid] for pid in pids if pid in self._stop]
        worst = max(found, key=_stopped, default=None)
        return worst if worst and worst.stopped > 0 else None


def _stopped(limit: Limit) -> float:
    return limit.stopped


def _limits(pid: int) -> dict[Path, float]:
    """CPUs that each cgroup with a limit that a process is in may use."""
    known = {group: cpus.limit(group) for group in cgroup.with_cpu(pid)}
    return {group: most for group, most in known.items() if most < float("inf")}


def _counts(group: Path) -> Counts | None:
    """None where nobody tells."""
    try:
        told = dict(line.split() for line in procfs.lines(str(group / "cpu.stat")) if line)
        return int(told["nr_periods"]), int(told["nr_throttled"])
    except (OSError, KeyError, ValueError):
        return None
