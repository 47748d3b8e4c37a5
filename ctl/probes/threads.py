"""What the kernel knows of an engine's threads: CPU time and time waited for a CPU.

From /proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats.rst in the kernel tree),
whose file descriptors are kept: reading one again costs a tenth of opening it. Of a process with
more threads than may keep one, the others are read by turns, and have their last times meanwhile.
"""

import errno
import functools
import os
from collections import deque

import numpy as np

from sched_ctl.kernel import descriptors, procfs
from sched_ctl.model.graph import Array, Index
from sched_ctl.model.topology import Thread, Topology

__all__ = ["PROVIDES", "ThreadTimes", "available", "open_times", "read_times"]

PROVIDES = frozenset({"thread_cpu_time", "run_delay"})
UNKNOWN = b"-1 -1 -1\n"
GONE, BY_TURNS = -1, -2  # in place of a descriptor
SHARE = 1 / 8  # of all descriptors, which one engine may keep open here
TURNS = 1024  # threads without a descriptor that are read at a time, 10 us each
KEPT = 10_000  # threads, those of now among them, whose first reading is kept


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
        self._waiting: deque[Thread] = deque()  # whose turn it is, of those without a descriptor
        self._last: dict[Thread, bytes] = {}  # what those had when they were read
        self._threads: list[Thread] = []  # in the order of _order
        self._single = False  # whether each operator has one thread
        self._since = procfs.boot_ticks()
        # In the order of _threads: CPU time of each when it was first read, s; NaN: not read yet;
        # 0 of one that was born since. And the same of those that may come again.
        self._first: Array = np.empty(0)
        self._firsts: dict[Thread, float] = {}
        self.turns: Array = np.empty(0)  # (n,) on a CPU, at the last reading; NaN where unknown
        descriptors.raise_limit()

    def read(self, topology: Topology, *, afresh: bool = False) -> dict[str, Array]:
        """`thread_cpu_time` and `run_delay`, (n,) s over the operators; NaN where unknown.

        An operator with several threads has their sum; NaN if one of them is gone. afresh: see
        `Driver.counts_afresh`.
        """
        if topology is not self._topology:
            self._follow(topology)
        if self._waiting:
            parts = self._by_turns()
        else:
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
        self._first = np.where(np.isnan(self._first), times[:, 0], self._first)
        if afresh:
            times[:, 0] -= self._first
        if self._single:
            cpu_time, delay, self.turns = times.T.copy()
            return {"thread_cpu_time": cpu_time, "run_delay": delay}
        threads = np.bincount(self._row, minlength=n)

        def column(index: int) -> Array:
            total = np.bincount(self._row, weights=times[:, index], minlength=n)
            return np.where(threads > 0, total, np.nan)

        self.turns = column(2)
        return {"thread_cpu_time": column(0), "run_delay": column(1)}

    def _by_turns(self) -> list[bytes]:
        for _ in range(min(TURNS, len(self._waiting))):
            thread = self._waiting[0]
            fd = _opened(thread)
            if fd == BY_TURNS:  # not even for a moment: they keep what they had
                break
            self._last[thread] = read_times(fd)
            if fd >= 0:
                os.close(fd)
            self._waiting.rotate(-1)
        return [
            self._last.get(thread, UNKNOWN) if fd == BY_TURNS else read_times(fd)
            for thread, fd in zip(self._threads, self._order, strict=True)
        ]

    def close(self) -> None:
        for fd in self._fds.values():
            if fd >= 0:
                os.close(fd)
        self._fds, self._order, self._topology = {}, [], None
        self._waiting.clear()

    def _follow(self, topology: Topology) -> None:
        wanted = [
            (row, thread)
            for row, operator in enumerate(topology.operators)
            for thread in operator.threads
        ]
        old, self._fds = self._fds, {}
        few = False
        for thread in dict.fromkeys(thread for _, thread in wanted):  # one may run several
            fd = old.pop(thread, None)
            if fd is None:
                fd = BY_TURNS if few else open_times(thread, SHARE)
            few = few or fd == BY_TURNS
            self._fds[thread] = fd
        for fd in old.values():
            if fd >= 0:
                os.close(fd)
        self._row = np.array([row for row, _ in wanted], dtype=np.intp)
        self._firsts.update(zip(self._threads, self._first.tolist(), strict=True))
        self._threads = [thread for _, thread in wanted]
        unread = (0.0 if thread.start_time >= self._since else np.nan for thread in self._threads)
        firsts = [self._firsts.get(t, new) for t, new in zip(self._threads, unread, strict=True)]
        self._first = np.array(firsts, dtype=np.float64)
        if len(self._firsts) > KEPT:
            self._firsts.clear()
        self._order = [self._fds[thread] for thread in self._threads]
        self._waiting = deque(t for t, fd in self._fds.items() if fd == BY_TURNS)
        self._last = {t: self._last[t] for t in self._waiting if t in self._last}
        self._single = np.array_equal(self._row, np.arange(len(topology.operators)))
        self._topology = topology


def open_times(thread: Thread, share: float = 1.0) -> int:
    """A descriptor; GONE with its thread, or BY_TURNS: there are none left to be kept.

    share: see `kernel.descriptors.keeps`.
    """
    fd = _opened(thread)
    if fd >= 0 and not descriptors.keeps(fd, share):
        os.close(fd)
        return BY_TURNS
    return fd


def _opened(thread: Thread) -> int:
    try:
        path = f"/proc/{thread.pid}/task/{thread.tid}/schedstat"
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in descriptors.EXHAUSTED:
            return BY_TURNS
        if error.errno not in (errno.ENOENT, errno.ESRCH):
            raise
        return GONE


def read_times(fd: int) -> bytes:
    """CPU time and time waited, ns, and turns; `UNKNOWN` if the thread is gone."""
    try:
        return os.pread(fd, 96, 0)
    except OSError:  # ESRCH: the thread ended; EBADF: it had ended before we opened
        return UNKNOWN
