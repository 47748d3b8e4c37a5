"""What the kernel knows of an engine's threads: CPU time and time waited for a CPU.

From /proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats.rst in the kernel tree),
whose file descriptors are kept: reading one again costs a tenth of opening it.
"""

import errno
import functools
import os
import resource
from contextlib import suppress

import numpy as np

from sched_ctl.model.graph import Array, Index
from sched_ctl.model.topology import Thread, Topology

__all__ = ["PROVIDES", "ThreadTimes", "available", "open_times", "read_times"]

PROVIDES = frozenset({"thread_cpu_time", "run_delay"})
UNKNOWN = b"-1 -1 -1\n"


@functools.cache
def available() -> bool:
    """Whether this kernel counts (CONFIG_SCHED_INFO)."""
    return os.path.exists("/proc/self/schedstat")  # noqa: PTH110 - a probe, no path handling


class ThreadTimes:
    """Reads the times of all operator threads of one engine. For one thread at a time."""

    def __init__(self) -> None:
        self._topology: Topology | None = None
        self._fds: dict[Thread, int] = {}
        self._row: Index = np.empty(0, dtype=np.intp)
        self._order: list[int] = []
        self._single = False  # whether each operator has one thread
        self.turns: Array = np.empty(0)  # (n,) on a CPU, at the last reading; NaN where unknown
        _raise_file_limit()

    def read(self, topology: Topology) -> dict[str, Array]:
        """`thread_cpu_time` and `run_delay`, (n,) s over the operators; NaN where unknown.

        An operator with several threads has their sum; NaN if one of them is gone.
        """
        if topology is not self._topology:
            self._follow(topology)
        try:
            parts = [os.pread(fd, 96, 0) for fd in self._order]
        except OSError:  # of one of them
            parts = [read_times(fd) for fd in self._order]
        n = len(topology.operators)
        if not parts:
            self.turns = np.full(n, np.nan)
            return {name: np.full(n, np.nan) for name in sorted(PROVIDES)}
        numbers = np.fromstring(b"".join(parts).decode("ascii"), dtype=np.int64, sep=" ")
        times = numbers.reshape(-1, 3) * (1e-9, 1e-9, 1.0)
        times[times < 0] = np.nan
        if self._single:
            cpu_time, delay, self.turns = times.T.copy()
            return {"thread_cpu_time": cpu_time, "run_delay": delay}
        threads = np.bincount(self._row, minlength=n)

        def column(index: int) -> Array:
            total = np.bincount(self._row, weights=times[:, index], minlength=n)
            return np.where(threads > 0, total, np.nan)

        self.turns = column(2)
        return {"thread_cpu_time": column(0), "run_delay": column(1)}

    def close(self) -> None:
        for fd in self._fds.values():
            if fd >= 0:
                os.close(fd)
        self._fds, self._order, self._topology = {}, [], None

    def _follow(self, topology: Topology) -> None:
        wanted = [
            (row, thread)
            for row, operator in enumerate(topology.operators)
            for thread in operator.threads
        ]
        old, self._fds = self._fds, {}
        for _, thread in wanted:
            fd = old.pop(thread, None)
            self._fds[thread] = open_times(thread) if fd is None else fd
        for fd in old.values():
            if fd >= 0:
                os.close(fd)
        self._row = np.array([row for row, _ in wanted], dtype=np.intp)
        self._order = [self._fds[thread] for _, thread in wanted]
        self._single = np.array_equal(self._row, np.arange(len(topology.operators)))
        self._topology = topology


def open_times(thread: Thread) -> int:
    """A descriptor, or -1: the thread is gone, or there are no descriptors left."""
    try:
        return os.open(f"/proc/{thread.pid}/task/{thread.tid}/schedstat", os.O_RDONLY)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESRCH, errno.EMFILE, errno.ENFILE):
            raise
        return -1


def read_times(fd: int) -> bytes:
    """CPU time and time waited, ns, and turns; `UNKNOWN` if the thread is gone."""
    try:
        return os.pread(fd, 96, 0)
    except OSError:  # ESRCH: the thread ended; EBADF: it had ended before we opened
        return UNKNOWN


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
