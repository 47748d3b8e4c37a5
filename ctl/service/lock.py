"""One controller a machine: who runs, and what keeps a second one from starting.

Two controllers would take each other's nice values for what the threads had before, and give
those back. What keeps a second one away, each of which only root can hold:

1. the lock in the run folder, which is for root alone;
2. the lock in the usual run folder, whichever is in use: all of the host's root shares it, and so
   do containers that have the host's /run. It tells which folder is in use: the configuration may
   name another by now;
3. a mark: a memory file (memfd_create(2)) that the controller keeps open, with its id inside. Who
   sees the process finds it in /proc/PID/fd, from any mount namespace, and what another user made
   belongs to that user. A child that inherits it has another id, and does not count.

A container sees no mark of its host's controller. For it there is a hint: a flock(2) on the file
that stands for a namespace which nearly all containers share (namespaces(7)). Anybody can hold
that one, so it is told, and not obeyed. A lock that something keeps which is no controller (a
child of one that was killed) is replaced, unless it was taken in another pid namespace, whose
processes cannot be told from here. But for that, none of them stops `restore`.

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
from sched_ctl.kernel.identity import born
from sched_ctl.runfolder import RunFolder

__all__ = [
    "Holder",
    "Running",
    "again",
    "check_way",
    "hold",
    "hold_if_free",
    "holder",
    "others",
    "run_folder",
    "used_instead",
]

log = logging.getLogger(__name__)

USUAL = RunFolder().path
MARK = "sched-ctl controller"
NAME_S = 2.0  # that a controller which is just starting may take to write its name into the lock
LOCK_BYTES = 1 << 16
FIRST_PIDS = "pid:[4026531836]"  # PROC_PID_INIT_INO, linux/proc_ns.h


class Holder(msgspec.Struct, frozen=True):
    """The controller that holds the lock. since: seconds since the epoch.

    start_time: clock ticks since boot. namespace: the inode of that of its process ids. folder: its
    run folder. They are 0 or empty where an earlier version did not write them down.
    """

    pid: int
    since: float
    command: str
    start_time: int = 0
    namespace: int = 0
    folder: str = ""

    def __str__(self) -> str:
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"pid {self.pid}, since {clock}: {self.command}"

    @property
    def hidden(self) -> bool:
        """Whether its id means nothing here, or another process."""
        return self.namespace not in (0, _namespace())

    @property
    def runs(self) -> bool:
        """Whether it can be seen to."""
        now = None if self.hidden else born(self.pid)
        return now is not None and self.start_time in (0, now)


def _namespace() -> int:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def run_folder(path: Path) -> Path:
    """Make the folder, for us alone. Raises UserError if somebody else could write to it."""
    try:
        check_way(path, "--run-dir")
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


def check_way(path: Path, option: str) -> None:
    """Raises UserError if another user could lead the path elsewhere, by a link or by renaming, or
    has made what is there. option: names another path.
    """
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
                "run it outside of this user namespace, as the machine's root"
                if step == Path("/")
                else f"give another folder with {option}",
            )


class Running(UserError):
    """There is a controller already. holder: which one, if its lock tells."""

    def __init__(self, message: str, hint: str, found: Holder | None = None) -> None:
        super().__init__(message, hint)
        self.holder = found


@contextmanager
def hold(folder: Path, why: str = "another controller is running") -> Iterator[Holder | None]:
    """Hold the locks. Raises UserError, naming who runs, if there is a controller already.

    Yields who held the lock of the folder before and was killed, if anybody was.
    """
    with ExitStack() as held:
        killed = held.enter_context(_lock(run_folder(folder), why))
        if _of_machine():
            held.enter_context(_marked())
            if found := others():
                raise Running(
                    f"{why}: pid {found[0]}, with another run folder",
                    "there is one for a machine: end it, or let it schedule these engines as well",
                )
            held.enter_context(_machine_lock(folder, why))
        yield killed


def _of_machine() -> bool:
    return os.environ.get("SCHED_CTL_MACHINE_LOCK") != "no"


@contextmanager
def hold_if_free(folder: Path) -> Iterator[Holder | None]:
    """Hold the folder's lock if it can be had, and go on without it if not.

    Raises Running if a controller has it, by its process; else UserError only if another user
    could lead the way to the folder elsewhere.
    """
    run_folder(folder)
    with ExitStack() as held:
        killed = None
        try:
            killed = held.enter_context(_lock(folder, "a controller is running"))
        except Running:
            raise
        except UserError as error:
            log.warning("%s: done without it", error.message)
        yield killed


@contextmanager
def again(folder: Path) -> Iterator[None]:
    """Lock the folder once more, where somebody has removed it or the lock that we hold."""
    with _lock(run_folder(folder), "another controller is running"):
        yield


def others() -> list[int]:
    """Controllers of root's, and of ours, that we can see, whatever they have mounted where."""
    return [pid for pid in procfs.pids() if pid != os.getpid() and _has_mark(pid)]


def _has_mark(pid: int) -> bool:
    trusted = {0, os.geteuid()}
    if procfs.owner(pid) not in trusted:
        return False
    inner = (procfs.field(f"/proc/{pid}/status", "NSpid") or [str(pid)])[-1]
    try:
        for fd in os.scandir(f"/proc/{pid}/fd"):
            if os.readlink(fd.path) != f"/memfd:{MARK} (deleted)":  # noqa: PTH115  many of them
                continue
            # A process of root's may have been handed one; it is its maker's.
            with open(fd.path, "rb") as mark:
                whose = os.fstat(mark.fileno()).st_uid
                if whose in trusted and mark.read(32) == inner.encode():
                    return True
    except OSError:  # it has ended, or we may not look
        pass
    return False


@contextmanager
def _marked() -> Iterator[None]:
    """Bear the mark: first, so that of two who start at once at least one sees the other."""
    try:
        fd = os.memfd_create(MARK, os.MFD_CLOEXEC)
    except OSError as error:
        log.warning("controllers with another run folder will not see this one: %s", error)
        yield
        return
    try:
        os.write(fd, str(os.getpid()).encode())
        yield
    finally:
        os.close(fd)


@contextmanager
def _machine_lock(folder: Path, why: str) -> Iterator[None]:
    with ExitStack() as held:
        if os.geteuid() == 0 and folder.absolute() != USUAL:
            try:
                usual = run_folder(USUAL)
            except UserError as error:  # /run may be read-only for a service that is shut in
                log.debug("no lock for the whole machine: %s", error.message)
            else:
                held.enter_context(_lock(usual, why, of=folder))
        fd = _hint()
        if fd is not None:
            held.callback(os.close, fd)
        yield


def _hint() -> int | None:
    """Take the lock that all containers see, and anybody may hold; None if it cannot be had."""
    try:
        fd = os.open(_shared_namespace(), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fd
    except OSError:
        os.close(fd)
    if str(Path("/proc/self/ns/pid").readlink()) == FIRST_PIDS:  # then we see all processes
        log.warning("somebody who is no controller holds the lock that controllers use: ignored")
    else:
        log.warning(
            "a controller may be running outside this container: what it sets would be taken for "
            "what the threads had before. Only run two if they have engines of their own."
        )
    return None


def _shared_namespace() -> str:
    time_ = "/proc/self/ns/time"  # Linux 5.6
    return time_ if Path(time_).exists() else "/proc/self/ns/user"


@contextmanager
def _lock(folder: Path, why: str, of: Path | None = None) -> Iterator[Holder | None]:
    """Hold a folder's lock with our name in it. Yields who held it before and was killed.

    of: the run folder in use, if it is another.
    """
    path = RunFolder(folder).lock
    fd, left = _locked(path, folder, why)
    try:
        before = _read(fd) or left
        me = Holder(
            os.getpid(),
            time.time(),
            shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            born(os.getpid()) or 0,
            _namespace(),
            str((of or folder).absolute()),
        )
        os.ftruncate(fd, 0)
        with suppress(OSError):  # a full disk: the lock holds all the same, only without a name
            os.pwrite(fd, msgspec.json.encode(me), 0)
        try:
            yield before
        finally:
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)


def _locked(path: Path, folder: Path, why: str) -> tuple[int, Holder | None]:
    """A descriptor that holds the lock; who stood in one that was replaced.

    Raises Running if a controller has it.
    """
    left = None
    for _ in range(8):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise UserError(
                f"cannot open {path}: {error.strerror}", "look what it is, and remove it"
            ) from error
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise UserError(f"{path} is no file", "look what it is, and remove it")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(fd, path):
                return fd, left
        except BlockingIOError:
            if (running := _named(folder, fd)) is not None:
                os.close(fd)
                hint = "sched-ctl status shows what it does, sched-ctl unload ends it"
                if running.hidden:
                    hint += (
                        "; it is in another container, or outside of this one, and cannot be seen "
                        f"from here: if it has ended there, remove {path}"
                    )
                raise Running(f"{why}: {running}", hint, running) from None
            # A child that a controller left behind: it would keep the lock for as long as it lives.
            log.warning("%s is held by what is no controller: replaced", path)
            if _is_at(fd, path):
                left = _read(fd) or left
                path.unlink(missing_ok=True)
        os.close(fd)
    raise UserError(f"{why}: {path} is taken again and again", "try again")


def _named(folder: Path, fd: int) -> Holder | None:
    """Who holds the lock, by what it says; None if that is no process (any more). One that cannot
    be seen from here is taken to run.

    One that was started only just now has not written its name yet.
    """
    end_s = time.monotonic() + NAME_S
    while True:
        if (found := holder(folder)) is not None:
            return found
        if (found := _read(fd)) is not None or time.monotonic() > end_s:
            return found if found is not None and found.hidden else None
        time.sleep(0.02)


def _is_at(fd: int, path: Path) -> bool:
    """Whether the open file is the one at the path: it may have been replaced since."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(fd), path.lstat())
    return False


def holder(folder: Path) -> Holder | None:
    """Who wrote the lock file last, if that process still runs."""
    found = _last(folder)
    return found if found is not None and found.runs else None


def used_instead(folder: Path) -> Path | None:
    """Another run folder, of a controller that runs, or was killed and nothing was put back yet."""
    last = _last(USUAL) if _of_machine() else None
    if last is None or last.folder in ("", str(folder.absolute())):
        return None
    used = Path(last.folder)
    # Whoever has put back there leaves no name; what could not be put back stays in the journal.
    return None if _last(used) is None and not _changes_left(used) else used


def _changes_left(folder: Path) -> bool:
    """Whether its journal has more than the two lines that it begins with."""
    with suppress(OSError):
        return bool(RunFolder(folder).journal.read_bytes().split(b"\n", 2)[2:] > [b""])
    return False


def _last(folder: Path) -> Holder | None:
    """Who wrote the lock file last, and did not end in an orderly way."""
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(RunFolder(folder).lock, flags)
    except OSError:
        return None
    try:
        return _read(fd)
    finally:
        os.close(fd)


def _read(fd: int) -> Holder | None:
    try:
        return msgspec.json.decode(os.pread(fd, LOCK_BYTES, 0), type=Holder)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
