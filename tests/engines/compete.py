"""Queries that compete for one CPU of a real Flink cluster, with and without sched-ctl.

Both kinds of phases alternate (ABBA), so that a slow drift of the machine hits both alike. The
TaskManager is pinned to one CPU: with as many CPUs as busy threads nobody would compete.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from still import still

from engines.cluster import Cluster
from sched_ctl.kernel import procfs
from sched_ctl.kernel.crowd import slowness
from support import wait_until

__all__ = ["Phase", "State", "finished", "following", "loaded", "phases", "states"]

State = dict[tuple[int, int], tuple[int, int, str]]
SETTLE_S = 1.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def states(pid: int) -> State:
    """(tid, start time) -> (nice, policy, cgroups) of each thread of a process."""
    found = {}
    for tid in procfs.tids(pid):
        stat = procfs.stat(pid, tid)
        try:
            groups = Path(f"/proc/{pid}/task/{tid}/cgroup").read_text()
        except OSError:
            continue
        if stat is not None:
            found[tid, stat.start_time] = (stat.nice, stat.policy, groups)
    return found


@contextmanager
def loaded(
    cluster: Cluster, folder: Path, arguments: Sequence[str], threads: int
) -> Iterator[None]:
    """`sched-ctl load` on the cluster's engine; the block runs once `threads` threads changed.

    Ends it by SIGINT, as a user would, and checks that it ended well.
    """
    pids = [process.pid for process in cluster.task_managers]
    with following(pids, "flink", folder, arguments, threads):
        yield


@contextmanager
def following(
    pids: Sequence[int], engine: str, folder: Path, arguments: Sequence[str], threads: int
) -> Iterator[None]:
    """The same for the processes of any engine."""
    before = [states(pid) for pid in pids]
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        *(str(Path(sys.executable).with_name("sched-ctl")), "load", "--engine", engine),
        *("--run-dir", str(folder / "run"), "--config", os.devnull, "--poll-timeout", "5"),
        *("--race", "0"),
        *arguments,
    ]
    with (folder / "load.log").open("ab") as log:
        process = subprocess.Popen(
            # TERM, so that it puts everything back when the test run is killed.
            ["setpriv", "--pdeathsig", "TERM", "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )

    def changed() -> bool:
        assert process.poll() is None, (folder / "load.log").read_text()
        count = 0
        for pid, old in zip(pids, before, strict=True):
            now = states(pid)
            count += sum(now[key] != old[key] for key in now.keys() & old.keys())
        return count >= threads

    try:
        try:
            wait_until(changed, 60 * min(5.0, slowness()), f"{threads} threads scheduled")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{(folder / 'load.log').read_text()}") from error
        yield
    finally:
        process.send_signal(signal.SIGINT)
        try:
            code = process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert code in (0, 130), (folder / "load.log").read_text()


def finished(out: Path, begin: float, end: float) -> npt.NDArray[np.float64]:
    """End-to-end latencies (s) of the tuples that left the job between two moments."""
    text = out.read_bytes()
    lines = text[: text.rfind(b"\n") + 1]
    if not lines:
        return np.zeros(0)
    table = np.array(lines.split(), dtype=np.int64).reshape(-1, 2)
    left = table[:, 0] / 1e9
    chosen = table[(left >= begin) & (left < end)]
    return (chosen[:, 0] - chosen[:, 1]) / 1e9


@dataclass(frozen=True)
class Phase:
    """One stretch of measuring, time.monotonic().

    cpus: CPUs that the TaskManagers had on average; fewer than they may use mean that somebody
    else was on them.
    """

    scheduled: bool
    begin: float
    end: float
    cpus: float

    @property
    def undisturbed(self) -> bool:
        """True if an overloaded TaskManager on one CPU had it to itself."""
        return self.cpus > 0.95


def phases(
    cluster: Cluster,
    folder: Path,
    arguments: Sequence[str],
    threads: int,
    *,
    order: str = "ABBA",
    seconds: float = 5.0,
) -> list[Phase]:
    """A: the system's own scheduling, B: `sched-ctl load ARGUMENTS`."""
    found = []
    for letter in order:
        if letter == "B":
            with loaded(cluster, folder, arguments, threads):
                found.append(_measure(cluster, scheduled=True, seconds=seconds))
        else:
            found.append(_measure(cluster, scheduled=False, seconds=seconds))
    return found


def _measure(cluster: Cluster, *, scheduled: bool, seconds: float) -> Phase:
    with still():
        time.sleep(SETTLE_S)  # what was queued under the other regime has gone
        begin, used = time.monotonic(), _cpu_time(cluster)
        time.sleep(seconds)
        end, used_then = time.monotonic(), _cpu_time(cluster)
    return Phase(scheduled, begin, end, (used_then - used) / (end - begin))


def _cpu_time(cluster: Cluster) -> float:
    total = 0
    for process in cluster.task_managers:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS_PER_S
