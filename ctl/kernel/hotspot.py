"""What a Java process tells by HotSpot's attach protocol: names and kernel ids of its threads, whom
each waits for, and where compiled methods are.

The kernel keeps 15 characters of a thread's name; the virtual machine knows all of it. A client
puts a file `.attach_pidN` into the machine's /tmp and sends SIGQUIT; the machine then listens on
the socket `/tmp/.java_pidN`, takes one request a connection, `VERSION\\0COMMAND\\0` and three
arguments, and answers with a result code, a line feed and text (src/hotspot/os/posix/
attachListener_posix.cpp in OpenJDK). No JDK and no process of ours are needed, and the listener
stays, so only the first request signals.

A thread dump stops all Java threads for some milliseconds: ask when the set of threads has
changed, and keep the answer.

The machine may be hostile, or live in a container, so: no path below /proc/PID/root is followed
through a symbolic link, the peer of the socket must be the machine itself, all times and sizes
are bounded, and everything is done with the ids of the machine's user, which older versions
insist on (newer ones let root in, JDK-8197387).
"""

import ctypes
import os
import re
import signal
import socket
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from sched_ctl.errors import UserError
from sched_ctl.kernel import procfs
from sched_ctl.kernel.regular import NotRegular, open_regular

__all__ = [
    "HEADER",
    "AttachError",
    "JavaThread",
    "Method",
    "NotInTime",
    "dump",
    "host_tids",
    "is_hotspot",
    "methods",
    "parse_dump",
    "threads",
]

ANSWER_LIMIT = 32 << 20  # bytes; a thread with a deep stack takes some 10 KB
PROTOCOL = b"1"
MAP_LIMIT = 64 << 20  # bytes of a perf map; a method takes some 80
MOST_METHODS = 1_000_000  # lines of it
LATE_S = 2.0  # for what a machine writes that has not answered in time
FILE_LIMIT = 1 << 22  # bytes of /proc/PID/maps: the libraries come with the first mappings

# A header line of a dump. After the name come, depending on version and kind of thread, a Java
# number, the native id in brackets (JDK 21), daemon, priorities, times; `nid` is hexadecimal up
# to JDK 18 and decimal after it (JDK-8268425).
HEADER = re.compile(
    r'^"(.*)"(?: [^"\n]*)? tid=0x[0-9a-f]+ nid=(0x[0-9a-f]{1,8}|\d{1,10}) ', re.MULTILINE
)

# asm/unistd.h: glibc's own wrappers change the ids of all threads, the system calls of one.
SET_RES_IDS = {"x86_64": (117, 119), "aarch64": (147, 149), "riscv64": (147, 149)}
_libc = ctypes.CDLL(None, use_errno=True)


class AttachError(UserError):
    """The process is no HotSpot machine, does not let us in, or did not answer."""


class NotInTime(AttachError):
    """The machine did not answer in time. It may still do what it was asked."""


@dataclass(frozen=True, slots=True)
class JavaThread:
    """name: in full, as Java code set it. tid: as this process sees it."""

    name: str
    tid: int


@dataclass(frozen=True, slots=True)
class _Status:
    """The lines of /proc/PID/status that the protocol needs."""

    uid: int  # effective ones
    gid: int
    inner_pid: int  # in the process's own pid namespace
    same_namespace: bool
    catches_sigquit: bool


@dataclass(frozen=True, slots=True)
class Method:
    """A method as it was compiled, or a part of the machine: from start to end, as addresses."""

    start: int
    end: int
    name: str


def threads(pid: int, timeout_s: float = 5.0) -> tuple[JavaThread, ...]:
    """All threads that the Java process knows, in the order of its dump.

    Threads that native libraries started on their own (RocksDB's, say) are not among them.
    Raises AttachError.
    """
    text, tids = dump(pid, timeout_s)
    # A nid that is not mapped belongs to a thread that ended meanwhile.
    return tuple(
        JavaThread(name, nid if tids is None else tids[nid])
        for name, nid in parse_dump(text)
        if tids is None or nid in tids
    )


def dump(
    pid: int, timeout_s: float = 5.0, *, locks: bool = False
) -> tuple[str, dict[int, int] | None]:
    """A thread dump, which stops all Java threads for milliseconds; and ids in the process's own
    pid namespace -> those in ours, None where they are the same.

    locks: with those of java.util.concurrent, for which the machine looks through its heap. Raises
    AttachError.
    """
    command = (b"threaddump", b"-l") if locks else (b"threaddump",)
    with _attached(pid) as (process, status):
        text = _command(pid, process, status, command, time.monotonic() + timeout_s)
        return text, None if status.same_namespace else host_tids(pid)


def methods(pid: int, timeout_s: float = 5.0) -> list[Method]:
    """Where compiled methods are, by the machine's perf map (version 17 and newer).

    The machine writes it into its own /tmp, from where it is taken away again unless it was there
    before. Raises AttachError.
    """
    with _attached(pid) as (process, status), _tmp_of(pid) as folder:
        name = f"perf-{status.inner_pid}.map"
        was_there = _exists(name, folder)
        ask = (b"jcmd", b"Compiler.perfmap")
        try:
            _command(pid, process, status, ask, time.monotonic() + timeout_s)
            return _parse_map(_own_file(name, folder, status.uid))
        except NotInTime:
            end_s = time.monotonic() + LATE_S
            while not _exists(name, folder) and time.monotonic() < end_s:
                time.sleep(0.05)
            raise
        finally:
            if not was_there:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)


def _exists(name: str, folder: int) -> bool:
    with suppress(FileNotFoundError):
        os.stat(name, dir_fd=folder, follow_symlinks=False)
        return True
    return False


def _own_file(name: str, folder: int, uid: int) -> bytes:
    """What a plain file of that user has, at most as much as may be. Raises OSError."""
    try:
        with open(open_regular(name, folder, follow=False), "rb") as file:
            if os.fstat(file.fileno()).st_uid == uid:
                return file.read(MAP_LIMIT)
    except NotRegular:
        pass
    raise AttachError(f"/tmp/{name} is not a file of the Java process")


def _parse_map(text: bytes) -> list[Method]:
    """START SIZE NAME, in hexadecimal: tools/perf/Documentation/jit-interface.txt of the kernel."""
    found = []
    for line in text.split(b"\n", MOST_METHODS)[:MOST_METHODS]:
        start, _, rest = line.partition(b" ")
        size, _, name = rest.partition(b" ")
        with suppress(ValueError):
            at = int(start, 16)
            found.append(Method(at, at + int(size, 16), name.decode(errors="replace")))
    return found


def parse_dump(text: str) -> list[tuple[str, int]]:
    """(name, native id) of each thread in a thread dump of any JDK from 8 on."""
    return [
        (match[1], int(match[2], 16 if match[2].startswith("0x") else 10))
        for match in HEADER.finditer(text)
    ]


def is_hotspot(pid: int) -> bool:
    """True if the process has HotSpot's library mapped (OpenJ9 brings one of the same name)."""
    with suppress(OSError), open(f"/proc/{pid}/maps", "rb") as maps:
        head = maps.read(FILE_LIMIT)
        return b"/libjvm.so" in head and b"/libj9" not in head
    return False


def _status(pid: int) -> _Status:
    fields = dict(line.split(":", 1) for line in procfs.lines(f"/proc/{pid}/status"))
    inner = fields.get("NSpid", str(pid)).split()
    return _Status(
        uid=int(fields["Uid"].split()[1]),
        gid=int(fields["Gid"].split()[1]),
        inner_pid=int(inner[-1]),
        same_namespace=len(inner) == 1,
        catches_sigquit=bool(int(fields["SigCgt"], 16) >> (signal.SIGQUIT - 1) & 1),
    )


def host_tids(pid: int) -> dict[int, int]:
    """Ids of the process's threads in its own pid namespace -> those in ours."""
    found = {}
    for tid in procfs.tids(pid):
        with suppress(OSError):
            if inner := procfs.field(f"/proc/{pid}/task/{tid}/status", "NSpid"):
                found[int(inner[-1])] = tid
    return found


@contextmanager
def _attached(pid: int) -> Iterator[tuple[int, _Status]]:
    """A descriptor that stands for the process, and what its status says. Raises AttachError."""
    try:
        process = os.pidfd_open(pid)
    except OSError as error:
        raise AttachError(f"process {pid} cannot be attached to: {error.strerror}") from None
    try:
        yield process, _status(pid)
    except OSError as error:
        raise AttachError(
            f"cannot attach to Java process {pid}: {error.strerror or error}",
            "sched-ctl must run as root, or as the user of the Java process",
        ) from error
    finally:
        os.close(process)


@contextmanager
def _tmp_of(pid: int) -> Iterator[int]:
    """A descriptor of the process's own /tmp. Raises OSError."""
    root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        folder = os.open(
            "tmp", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root
        )
    finally:
        os.close(root)
    try:
        yield folder
    finally:
        os.close(folder)


def _command(
    pid: int, process: int, status: _Status, command: tuple[bytes, ...], end: float
) -> str:
    """command: with its arguments, three at most."""
    if not is_hotspot(pid):
        raise AttachError(f"process {pid} is not a HotSpot Java virtual machine")
    words = (PROTOCOL, *command, b"", b"", b"")[:5]
    try:
        with (
            _tmp_of(pid) as folder,
            _as_user(status),
            _connected(pid, process, status, folder, end) as connection,
        ):
            connection.sendall(b"".join(word + b"\0" for word in words))
            answer = _receive(connection, end)
    except TimeoutError:
        how = procfs.stat(pid)
        raise NotInTime(
            f"Java process {pid} did not answer in time",
            f"it is stopped; let it go on: kill -CONT {pid}"
            if how is not None and how.state in "Tt"
            else "it gets little CPU, or collects garbage: it is asked again",
        ) from None
    code, _, text = answer.partition(b"\n")
    if code != b"0":
        raise AttachError(
            f"Java process {pid} refused {command[-1].decode()}: "
            f"{answer[:100].decode(errors='replace')!r}"
        )
    return text.decode(errors="replace")


@contextmanager
def _connected(
    pid: int, process: int, status: _Status, folder: int, end: float
) -> Iterator[socket.socket]:
    """A connection to the machine's attach socket, which is made if it is not there."""
    name = f".java_pid{status.inner_pid}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        if not _connect(connection, folder, name, status, end):
            _call_listener(pid, process, folder, status)
            while not _connect(connection, folder, name, status, end):
                if time.monotonic() > end:
                    raise TimeoutError
                time.sleep(0.005)
        credentials = connection.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
        )
        if struct.unpack("3i", credentials)[0] != pid:
            raise AttachError(f"another process listens on the attach socket of {pid}")
        yield connection


def _connect(
    connection: socket.socket, folder: int, name: str, status: _Status, end: float
) -> bool:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != status.uid:
        raise AttachError(f"/tmp/{name} is not the attach socket of its process")
    connection.settimeout(max(0.001, end - time.monotonic()))
    try:
        # Through our own descriptor: short enough for a socket address, no link on the way.
        connection.connect(f"/proc/self/fd/{folder}/{name}")
    except (ConnectionRefusedError, FileNotFoundError):
        return False  # left by an earlier process; this one makes its own
    return True


def _call_listener(pid: int, process: int, folder: int, status: _Status) -> None:
    """Make the machine open its attach socket."""
    if not status.catches_sigquit:
        # The signal would kill it.
        raise AttachError(
            f"Java process {pid} does not listen to SIGQUIT",
            "it was started only just now, or with -Xrs and lost its attach socket",
        )
    if "-XX:+DisableAttachMechanism" in procfs.command_line(pid):
        raise AttachError(
            f"Java process {pid} does not let anybody attach",
            "start it without -XX:+DisableAttachMechanism",
        )
    trigger = f".attach_pid{status.inner_pid}"
    with suppress(FileNotFoundError):
        os.unlink(trigger, dir_fd=folder)  # left by a client that was killed
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    os.close(os.open(trigger, flags, 0o600, dir_fd=folder))
    try:
        signal.pidfd_send_signal(process, signal.SIGQUIT)
        # The machine looks for the file when it handles the signal, and it may be busy.
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            with suppress(FileNotFoundError):
                os.stat(f".java_pid{status.inner_pid}", dir_fd=folder, follow_symlinks=False)
                break
            time.sleep(0.005)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(trigger, dir_fd=folder)


def _receive(connection: socket.socket, end: float) -> bytes:
    """All that comes until the peer closes."""
    parts: list[bytes] = []
    size = 0
    while True:
        connection.settimeout(max(0.001, end - time.monotonic()))
        part = connection.recv(1 << 16)
        if not part:
            return b"".join(parts)
        if time.monotonic() > end:
            raise TimeoutError
        size += len(part)
        if size > ANSWER_LIMIT:
            raise AttachError(f"a thread dump of more than {ANSWER_LIMIT >> 20} MiB")
        parts.append(part)


@contextmanager
def _as_user(status: _Status) -> Iterator[None]:
    """The calling thread, and no other, has the process's effective ids in the block, if it may."""
    ours = (os.geteuid(), os.getegid())
    numbers = SET_RES_IDS.get(os.uname().machine)
    if ours == (status.uid, status.gid) or numbers is None:
        yield
        return
    set_uid, set_gid = numbers
    try:
        _set_effective(set_gid, status.gid)
    except (
        PermissionError
    ):  # no CAP_SETGID: machines of version 12 and newer listen to root as well
        yield
        return
    try:
        _set_effective(set_uid, status.uid)
        try:
            yield
        finally:
            _set_effective(set_uid, ours[0])
    finally:
        _set_effective(set_gid, ours[1])


def _set_effective(call: int, number: int) -> None:
    unchanged = ctypes.c_uint(-1)
    if _libc.syscall(ctypes.c_long(call), unchanged, ctypes.c_uint(number), unchanged) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"changing to user or group {number}: {os.strerror(error)}")
