"""Opening files that other users choose. To open a device or a pipe may do something already: arm a
watchdog, rewind a tape, let go a writer that waits. So what it is is looked at first.
"""

import os
import stat

__all__ = ["NotRegular", "open_regular"]


class NotRegular(OSError):
    """There is something, but no regular file."""


def open_regular(path: str, folder: int | None = None, *, follow: bool = True) -> int:
    """A descriptor to read a regular file by; nothing else is opened. Raises OSError.

    folder: a descriptor that a relative path starts from. follow: symbolic links at its end.
    """
    flags = os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    found = os.open(path, flags, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            raise NotRegular(f"{path} is no regular file")
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return os.open(f"/proc/self/fd/{found}", flags)
    finally:
        os.close(found)
