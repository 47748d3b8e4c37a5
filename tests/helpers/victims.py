"""Real threads whose priorities and cgroups may be changed, and a look at what they are."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sched_ctl.drivers.threads import thread_of
from sched_ctl.kernel import cgroup, procfs, sched
from sched_ctl.model.policy import Spacing, form
from sched_ctl.model.schedule import Group, Schedule
from sched_ctl.model.topology import Thread
from support import wait_until

__all__ = ["Victim", "plan", "state"]


class Victim:
    """A process with threads, see victim_process.py."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-S", str(Path(__file__).with_name("victim_process.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid

    def ask(self, command: str) -> str:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def threads(self, count: int) -> tuple[Thread, ...]:
        """Start that many."""
        return tuple(self.thread(int(tid)) for tid in self.ask(f"threads {count}").split())

    def thread(self, tid: int) -> Thread:
        found = thread_of(procfs.process_of(tid) or 0, tid)
        assert found is not None
        return found

    def everything(self) -> dict[int, tuple[object, ...]]:
        """What each of its threads and child processes has."""
        pids = (self.pid, *procfs.descendants(self.pid))
        return {tid: state(pid, tid) for pid in pids for tid in procfs.tids(pid)}

    def end(self, tid: int, nth: int) -> None:
        self.ask(f"end {nth}")
        wait_until(lambda: tid not in procfs.tids(self.pid), what="a thread to end")

    def close(self) -> None:
        if self.process.stdin:
            self.process.stdin.close()
        try:
            self.process.wait(10)
        finally:
            self.process.kill()
            self.process.wait()


def state(pid: int, tid: int) -> tuple[object, ...]:
    """Nice, policy with reset-on-fork, and the cgroups of a thread."""
    return (
        sched.get_nice(tid),
        sched.get_policy(tid),
        *(found.folder_of(pid, tid) for found in cgroup.hierarchies()),
    )


def plan(
    threads: Sequence[Thread],
    priorities: Sequence[float],
    groups: Mapping[str, tuple[float, tuple[int, ...]]] | None = None,
    scope: str = "test",
) -> Schedule:
    n = len(threads)
    return Schedule(
        scope=scope,
        policy="test",
        spacing=Spacing.LINEAR,
        threads=tuple(threads),
        operators=tuple(f"q/op{row}" for row in range(n)),
        form=form(n, static=np.asarray(priorities, dtype=np.float64)),
        head_age_s=np.zeros(n),
        queue_size=np.zeros(n),
        groups={name: Group(share, rows) for name, (share, rows) in (groups or {}).items()},
    )
