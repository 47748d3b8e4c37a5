"""File descriptors are few: who may keep how many, and what is left for putting back.

The soft limit is 1,024 by default, for the sake of select(2), which we do not use: it is raised to
the hard one (getrlimit(2)). What is kept for long, such as a file for each thread, leaves `RESERVE`
to all that is opened for a moment; what makes reading cheaper only (`keeps` of a share) stays below
what is needed to know threads again. Some are held back (`hold_back`) until the machine is put
back: who does that needs two or three at a time, whatever the others have taken (`let_go`).
"""

import errno
import os
import resource
import select
from contextlib import suppress

__all__ = ["EXHAUSTED", "RESERVE", "hold_back", "keeps", "let_go", "raise_limit", "readable"]

RESERVE = 64  # left for what is opened for a moment, such as a thread's stat
HELD_BACK = 16
EXHAUSTED = (errno.EMFILE, errno.ENFILE)

_held: list[int] = []
_putting_back = False


def raise_limit() -> bool:
    """Raise the soft limit to the hard one. Returns whether that made it larger."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= hard:
        return False
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return True
    return False


def keeps(fd: int, share: float = 1.0) -> bool:
    """Whether a descriptor may be kept: if its number is in that share of those to be given out.

    The kernel gives the lowest that is free: a high one tells that there are few left.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return not _putting_back and fd < share * (soft - RESERVE)


def hold_back() -> None:
    """Take some descriptors now, for `let_go`."""
    global _putting_back
    _putting_back = False
    with suppress(OSError):
        while len(_held) < HELD_BACK:
            _held.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))


def let_go() -> None:
    """The machine is being put back: give free what was held back; from now on nobody keeps any."""
    global _putting_back
    _putting_back = True
    while _held:
        os.close(_held.pop())


def readable(fd: int, timeout_s: float = 0.0) -> bool:
    """Whether it can be read without a wait, or has ended; waits for that so long."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(1000 * timeout_s))
