"""Is it still the same thread? Thread ids are reused; a pinned folder of /proc is not.

A descriptor of /proc/PID/task/TID belongs to one thread for ever: once that has died nothing is
found in it any more, even when another thread has the id. Asking it takes 1.8 us, reading the
start time 15 to 20 us. There is no setpriority(2) by descriptor, so a thread may still die
between the question and the call; that its id is taken again in these two microseconds would need
the kernel to go once round all ids (4 million on 64-bit machines).
"""

import os
import select
from typing import Protocol

from sched_ctl.kernel import descriptors, procfs
from sched_ctl.kernel.procfs import Stat

__all__ = [
    "UNPINNED",
    "Identified",
    "Lifetime",
    "born",
    "is_alive",
    "pin",
    "runs",
    "same",
    "unpin",
]

UNPINNED = -1  # no descriptor was to be had: identity is read from the start time each time


class Identified(Protocol):
    """A thread as somebody saw it. start_time: clock ticks since boot, as `procfs.Stat` has it."""

    @property
    def pid(self) -> int: ...

    @property
    def tid(self) -> int: ...

    @property
    def start_time(self) -> int: ...


def same(thread: Identified) -> Stat | None:
    """What the thread is like now; None if it is gone, or its id means another thread."""
    found = procfs.stat(thread.pid, thread.tid)
    return found if found is not None and found.start_time == thread.start_time else None


def born(pid: int, tid: int | None = None) -> int | None:
    """When the thread (or process) started, in clock ticks since boot.

    None if there is none, or if it is dead and only waits to be noticed.
    """
    found = procfs.stat(pid, tid)
    return None if found is None or found.state in "ZX" else found.start_time


def runs(pid: int, start_time: int) -> bool:
    """Whether the process that was born then still runs."""
    return born(pid) == start_time


class Lifetime:
    """Whether the process that has this id now still runs: 1 us a look, by pidfd_open(2)."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._born = born(pid)
        self._poll: select.poll | None = None
        try:
            self._fd = os.pidfd_open(pid)
        except OSError:  # it is gone, or a filter of system calls hides it
            self._fd = -1
            return
        if runs(pid, self._born or -1):  # asked after the descriptor was opened, see `pin`
            self._poll = select.poll()
            self._poll.register(self._fd, select.POLLIN)

    def lasts(self) -> bool:
        """False for ever once it has ended, even before its parent has noticed."""
        if self._poll is not None:
            return not self._poll.poll(0)
        return self._born is not None and runs(self._pid, self._born)

    def close(self) -> None:
        self._poll = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def pin(thread: Identified) -> tuple[int, Stat] | None:
    """A descriptor for `is_alive`, and what the thread is like now.

    None if it is gone, or its id means another thread.
    """
    path = f"/proc/{thread.pid}/task/{thread.tid}"
    try:
        fd = _open_folder(path)
    except (FileNotFoundError, ProcessLookupError):
        return None
    # Asked after the folder was opened: if the start time is right now, it was right then.
    found = same(thread)
    if found is None:
        unpin(fd)
        return None
    return fd, found


def unpin(fd: int) -> None:
    if fd != UNPINNED:
        os.close(fd)


def is_alive(thread: Identified, fd: int) -> bool:
    """Whether the pinned thread still runs, and so its id still means it."""
    if fd == UNPINNED:
        return same(thread) is not None
    return os.access("comm", os.F_OK, dir_fd=fd)


def _open_folder(path: str) -> int:
    try:
        fd = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno not in descriptors.EXHAUSTED:
            raise
        fd = UNPINNED
    if fd != UNPINNED and descriptors.keeps(fd):
        return fd
    if descriptors.raise_limit():
        unpin(fd)
        return _open_folder(path)
    unpin(fd)
    return UNPINNED


_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
