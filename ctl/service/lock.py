"""One controller a machine: the lock in the run folder, the lock of the kernel, and who holds them.

Two controllers with different run folders, such as a container's and its host's, would take each
other's nice values for what the threads had before, and give those back. A file that all
containers of a machine see is the one that stands for a namespace which they share with it: of
time, which hardly anybody unshares, or of users (namespaces(7)). A flock(2) on it holds across
mount, network and pid namespaces, and ends with the process.

For tests, of which many run controllers at the same time, SCHED_CTL_MACHINE_LOCK=no leaves the
run folder's lock as the only one. Never set it where a controller is to be trusted.
"""

import fcntl
import logging
import os
import shlex
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from sched_ctl.errors import UserError
from sched_ctl.kernel import procfs
from sched_ctl.runfolder import RunFolder

__all__ = ["Holder", "hold", "holder", "run_folder"]

log = logging.getLogger(__name__)


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
        _check_way(path)
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


def _check_way(path: Path) -> None:
    """Raises UserError if another user could lead the path elsewhere, by a link or by renaming."""
    trusted = (0, os.geteuid())
    way = path.absolute()
    for step in (*reversed(way.parents), way, *reversed(Path(os.path.realpath(way)).parents)):
        try:
            info = step.lstat()
        except FileNotFoundError:
            return
        whose = info.st_uid
        shared = stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_IWOTH
        if whose not in trusted or (shared and not info.st_mode & stat.S_ISVTX):
            what = "is a link of" if stat.S_ISLNK(info.st_mode) else "belongs to"
            who = f"{what} user {whose}" if whose not in trusted else "can be changed by everybody"
            raise UserError(
                f"{path} is not safe: {step} {who}, who could put another folder there",
                "give another folder with --run-dir",
            )


@contextmanager
def hold(folder: Path, why: str = "another controller is running") -> Iterator[None]:
    """Hold the locks. Raises UserError, naming who holds one, if it is taken."""
    with ExitStack() as held:
        held.enter_context(_folder_lock(folder, why))
        if os.environ.get("SCHED_CTL_MACHINE_LOCK") != "no":
            held.enter_context(_machine_lock(why))
        yield


@contextmanager
def _machine_lock(why: str) -> Iterator[None]:
    try:
        fd = os.open(_shared_namespace(), os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        log.warning("cannot see whether another controller runs: %s", error)
        yield
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = _lock_holder(os.fstat(fd).st_ino)
            uid = None if pid is None else procfs.owner(pid)
            if pid is None or uid in (None, 0, os.geteuid()):
                who = "in another container or on the host" if pid is None else f"pid {pid}"
                raise UserError(
                    f"{why}: {who}, with another run folder",
                    "there is one for a machine: end it, or let it schedule these engines as well",
                ) from None
            # Anybody may lock a file that all can read. He is seen, and not obeyed.
            log.warning("pid %d of user %s holds the lock of controllers: ignored", pid, uid)
        yield
    finally:
        os.close(fd)


def _shared_namespace() -> str:
    time_ = "/proc/self/ns/time"  # Linux 5.6
    return time_ if Path(time_).exists() else "/proc/self/ns/user"


def _lock_holder(inode: int) -> int | None:
    """The process that holds a flock on this inode, if we can see it (proc_locks(5))."""
    for line in procfs.lines("/proc/locks"):
        fields = line.split()
        if len(fields) >= 6 and fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
            return int(fields[4]) if int(fields[4]) > 0 else None
    return None


@contextmanager
def _folder_lock(folder: Path, why: str) -> Iterator[None]:
    path = RunFolder(run_folder(folder)).lock
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise UserError(
            f"cannot open {path}: {error.strerror}", "look what it is, and remove it"
        ) from error
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
        with suppress(OSError):  # a full disk: the lock holds all the same, only without a name
            os.pwrite(fd, msgspec.json.encode(me), 0)
        yield
        os.ftruncate(fd, 0)
    finally:
        os.close(fd)


def holder(folder: Path) -> Holder | None:
    """Who wrote the lock file last, if that process still runs."""
    try:
        found = msgspec.json.decode(RunFolder(folder).lock.read_bytes()[:65536], type=Holder)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if Path(f"/proc/{found.pid}").exists() else None
