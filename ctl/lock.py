"""One controller a machine: the lock in the run folder, and who holds it."""

import fcntl
import os
import shlex
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from sched_ctl.errors import UserError

__all__ = ["Holder", "hold", "holder", "run_folder"]


class Holder(msgspec.Struct, frozen=True):
    """The controller that holds the lock. since: seconds since the epoch."""

    pid: int
    since: float
    command: str

    def __str__(self) -> str:
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"pid {self.pid}, since {clock}: {self.command}"


def run_folder(path: Path) -> Path:
    """Make the folder, for us alone. Raises UserError if somebody else could write to it."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = path.stat()
    except OSError as error:
        raise UserError(
            f"cannot make {path}: {error.strerror}",
            "run as root, or give another folder with --run-dir",
        ) from error
    if info.st_uid != os.geteuid() != 0:
        raise UserError(
            f"{path} belongs to another user", "run as root, or give another folder with --run-dir"
        )
    if info.st_uid != os.geteuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UserError(
            f"{path} belongs to, or can be written by, another user",
            f"check what is in it, then: chown {os.geteuid()} {path}; chmod 700 {path}",
        )
    return path


@contextmanager
def hold(folder: Path, why: str = "another controller is running") -> Iterator[None]:
    """Hold the lock of the run folder. Raises UserError, naming who holds it, if it is taken."""
    path = run_folder(folder) / "lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{why}: {holder(folder) or 'its lock names nobody'}",
                "sched-ctl status shows what it does, sched-ctl unload ends it",
            ) from None
        me = Holder(os.getpid(), time.time(), shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]))
        os.ftruncate(fd, 0)
        os.pwrite(fd, msgspec.json.encode(me), 0)
        yield
        os.ftruncate(fd, 0)
    finally:
        os.close(fd)


def holder(folder: Path) -> Holder | None:
    """Who wrote the lock file last, if that process still runs."""
    try:
        found = msgspec.json.decode((folder / "lock").read_bytes()[:65536], type=Holder)
    except (OSError, msgspec.DecodeError):
        return None
    return found if Path(f"/proc/{found.pid}").exists() else None
