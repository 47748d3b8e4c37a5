"""Pressure stall information: how long work waited for a CPU, for I/O, for memory.

Documentation/accounting/psi.rst in the kernel tree. `some` is the time in which at least one task
waited, `full` that in which all that were not idle did, so that nothing was done at all. There is
one file a resource for the machine (/proc/pressure) and one for each cgroup of the unified
hierarchy, where the cpu controller need not be: it may be held by version 1.

A trigger makes a descriptor ready when the stalls in a window exceed a threshold. One must not be
made while a sched_ext scheduler attaches: kernels from 7.1-rc2 until a fix of 2026 can hang then.
"""

import asyncio
import errno
import os
import re
import select
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sched_ctl.kernel import cgroup

__all__ = [
    "RESOURCES",
    "SYSTEM",
    "Pressure",
    "Stall",
    "Trigger",
    "group_of",
    "parse",
    "path_of",
    "read",
]

SYSTEM = Path("/proc/pressure")
RESOURCES = ("cpu", "io", "memory")
FILE_BYTES = 512
LINE = re.compile(r"(\w+) avg10=([\d.]+) avg60=([\d.]+) avg300=([\d.]+) total=(\d+)\b.*")
UNPRIVILEGED_S = 2.0  # without CAP_SYS_RESOURCE a window is a multiple of this, kernel >= 6.5


@dataclass(frozen=True, slots=True)
class Stall:
    """avg10_share .. avg300_share: of the last 10, 60, 300 s. total_s: since boot, exact."""

    avg10_share: float
    avg60_share: float
    avg300_share: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Pressure:
    """One resource. full: None where the kernel tells none (the CPU before 5.13)."""

    some: Stall
    full: Stall | None


def parse(text: str) -> Pressure:
    """The content of a pressure file. Raises ValueError if it is none."""
    stalls: dict[str, Stall] = {}
    for line in text.splitlines():
        found = LINE.fullmatch(line)
        if found is None:
            raise ValueError(f"not a line of a pressure file: {line[:80]!r}")
        kind, short, middle, long, total = found.groups()
        stalls[kind] = Stall(
            float(short) / 100, float(middle) / 100, float(long) / 100, int(total) / 1e6
        )
    if "some" not in stalls:
        raise ValueError(f"not a pressure file: {text[:80]!r}")
    return Pressure(stalls["some"], stalls.get("full"))


def path_of(resource: str, group: Path | None = None) -> Path:
    """The pressure file of the machine, or of a cgroup of the unified hierarchy."""
    return SYSTEM / resource if group is None else group / f"{resource}.pressure"


def group_of(pid: int) -> Path | None:
    """The cgroup of a process in the unified hierarchy, if it tells pressure of its own.

    It is that of all its threads, also of those that we give cgroups of their own inside. None for
    the root, whose pressure is that of the machine, and where there is no such hierarchy.
    """
    return cgroup.of_process(pid, ours=False)


def read(path: Path) -> Pressure | None:
    """What the file says now; None where the kernel has none, or has PSI switched off."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return parse(os.read(fd, FILE_BYTES).decode("ascii", errors="replace"))
    except (OSError, ValueError):  # EOPNOTSUPP: the kernel was booted without psi=1
        return None
    finally:
        os.close(fd)


class Trigger:
    """Calls back from the running event loop when stalls exceed a share of a window.

    share: of the window, 0..1. window_s: 0.5 to 10 s; without CAP_SYS_RESOURCE it becomes the next
    multiple of 2 s, see `window_s` for what it is. The kernel fires once a window at most.
    callback: gets True at each event, and False once if the cgroup is gone.
    Raises OSError where the kernel refuses, or has no PSI: then poll.
    """

    def __init__(
        self,
        path: Path,
        callback: Callable[[bool], None],
        *,
        kind: str = "some",
        share: float = 0.05,
        window_s: float = 1.0,
    ) -> None:
        self._callback = callback
        self._fd, self.window_s = _armed(path, kind, share, window_s)
        # asyncio's selectors cannot ask for EPOLLPRI: an inner epoll does. The event is given out
        # once, to the outer epoll, which looks at the inner one to see whether it is ready; asking
        # the inner one again would find nothing. So that it is ready is the event.
        self._inner = select.epoll(flags=select.EPOLL_CLOEXEC)
        self._inner.register(self._fd, select.EPOLLPRI | select.EPOLLERR)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._inner.fileno(), self._ready)

    def _ready(self) -> None:
        gone = any(event & select.EPOLLERR for _, event in self._inner.poll(0))
        if gone:
            self.close()
        self._callback(not gone)

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._inner.fileno())
            self._inner.close()
            os.close(self._fd)
            self._fd = -1


def _armed(path: Path, kind: str, share: float, window_s: float) -> tuple[int, float]:
    """The descriptor with the trigger, and the window that the kernel accepted. Raises OSError."""
    coarse_s = -(-window_s // UNPRIVILEGED_S) * UNPRIVILEGED_S
    windows = list(dict.fromkeys((window_s, coarse_s)))
    for window in windows:
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.write(fd, f"{kind} {round(share * window * 1e6)} {round(window * 1e6)}\0".encode())
            return fd, window
        except OSError as error:
            os.close(fd)
            if error.errno != errno.EINVAL or window is windows[-1]:
                raise OSError(error.errno, error.strerror, str(path)) from None
    raise AssertionError("there is always a last window")
