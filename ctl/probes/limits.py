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
EVERY_S = 0.5
MOST_PIDS = 50  # of an engine, .2 ms each
LEAST = 3  # periods, for a share of them

Counts = tuple[int, int]  # periods in which a cgroup ran, and those in which it was stopped


@dataclass(frozen=True, slots=True)
class Limit:
    """cpus: that a cgroup may use. stopped: share of its periods in which it had used them up."""

    cpus: float
    stopped: float


class Limits:
    """Readings of the cgroups of one engine's processes, while somebody looks."""

    def __init__(self) -> None:
        self._read: deque[tuple[float, dict[Path, Counts]]] = deque()  # the last, and those before
        self._stop: dict[int, Limit] = {}  # by process

    @property
    def ready(self) -> bool:
        """Whether there are readings to compare, or none to be made."""
        return len(self._read) > 1 or (len(self._read) == 1 and not self._stop)

    def look(self, pids: Iterable[int], now_s: float | None = None) -> None:
        """At these processes, unless that was done just now."""
        now_s = time.monotonic() if now_s is None else now_s
        if self._read and now_s - self._read[-1][0] < EVERY_S:
            return
        if self._read and now_s - self._read[-1][0] > WINDOW_S + EVERY_S:
            self._read.clear()  # nobody looked meanwhile
        limits = {pid: _limits(pid) for pid in islice(pids, MOST_PIDS)}
        groups = {group for mine in limits.values() for group in mine}
        counts = {group: found for group in groups if (found := _counts(group)) is not None}
        self._read.append((now_s, counts))
        while len(self._read) > 2 and now_s - self._read[1][0] >= WINDOW_S:
            self._read.popleft()
        then = self._read[0][1]
        share = {group: _share(then.get(group), now) for group, now in counts.items()}
        self._stop = {
            pid: max((Limit(mine[one], share.get(one, 0.0)) for one in mine), key=_stopped)
            for pid, mine in limits.items()
            if mine
        }

    def of(self, pids: Iterable[int]) -> Limit | None:
        """The limit that stopped any of these processes most often of late; None: none did."""
        found = [self._stop[pid] for pid in pids if pid in self._stop]
        worst = max(found, key=_stopped, default=None)
        return worst if worst and worst.stopped > 0 else None


def _stopped(limit: Limit) -> float:
    return limit.stopped


def _share(then: Counts | None, now: Counts) -> float:
    """Of the periods between two readings; 0 where too few are known, or the cgroup is another."""
    if then is None:
        return 0.0
    ran, stopped = now[0] - then[0], now[1] - then[1]
    return stopped / ran if ran >= LEAST and 0 <= stopped <= ran else 0.0


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
