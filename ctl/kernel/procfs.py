"""Processes and threads as /proc shows them, proc(5).

Everything here may be gone by the next line: readers return None, or leave out, what died.

Names are bytes, of anybody's choice, cut anywhere: the kernel escapes line feeds and backslashes
in them and nothing else. So no file of /proc is opened as text, and lines end at line feeds alone:
to str.splitlines(), and even to that of bytes, a name such as "\\rUid: 0" would be two lines.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

__all__ = [
    "TICKS_PER_S",
    "Families",
    "Stat",
    "below",
    "boot_id",
    "boot_ticks",
    "children",
    "command_line",
    "cpu_ns",
    "descendants",
    "effective_uid",
    "families",
    "field",
    "last_cpu",
    "lines",
    "memory",
    "name_of",
    "open_files",
    "owner",
    "parse_stat",
    "pids",
    "process_of",
    "stat",
    "text",
    "tids",
    "times",
]

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Of a command line that are looked at. A single argument, such as a class path, has 128 kB at most
# (MAX_ARG_STRLEN, linux/binfmts.h), all of them 2 MB, and anybody may start hundreds of such.
COMMAND_BYTES = 256 << 10
COMMAND_WORDS = 1000
MOST_FILES = 10_000  # of a process that are looked at, 8 us each: anybody may have half a million


Families = Mapping[int, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of /proc/PID/task/TID/stat that we use.

    state: one letter, "Z" a zombie. start_time: clock ticks since boot. policy: SCHED_OTHER is 0;
    the reset-on-fork bit is not shown here.
    """

    tid: int
    name: str
    state: str
    ppid: int
    nice: int
    start_time: int
    policy: int


def parse_stat(line: bytes) -> Stat:
    """Parse one stat line. The name may hold spaces, parentheses and newlines: split at the last.

    Raises ValueError if the line is not one.
    """
    head, closed, tail = line.rpartition(b")")
    tid, opened, name = head.partition(b" (")
    fields = tail.split()
    if not (closed and opened and len(fields) >= 39):
        raise ValueError(f"not a line of /proc/PID/stat: {line[:80]!r}")
    # fields[0] is field 3 of proc(5)
    return Stat(
        tid=int(tid),
        name=name.decode(errors="replace"),
        state=fields[0].decode(),
        ppid=int(fields[1]),
        nice=int(fields[16]),
        start_time=int(fields[19]),
        policy=int(fields[38]),
    )


def stat(pid: int, tid: int | None = None) -> Stat | None:
    """State of a thread (of the process's first, if no tid is given); None if it is gone."""
    line = _read(f"/proc/{pid}/task/{pid if tid is None else tid}/stat")
    return parse_stat(line) if line else None


def last_cpu(pid: int, tid: int) -> int | None:
    """The CPU that a thread runs on, or ran on last; None if it is gone."""
    fields = (_read(f"/proc/{pid}/task/{tid}/stat") or b"").rpartition(b")")[2].split()
    return int(fields[36]) if len(fields) > 36 else None  # field 39 of proc(5)


def cpu_ns(pid: int) -> int:
    """CPU time of a process so far, in steps of clock ticks; 0 if it is gone."""
    fields = (_read(f"/proc/{pid}/stat") or b"").rpartition(b")")[2].split()
    ticks = sum(int(field) for field in fields[11:13])
    return ticks * (1_000_000_000 // TICKS_PER_S)


def times(pid: int, tid: int) -> tuple[float, float] | None:
    """CPU time and time waited for a CPU, s, of a thread; None if it is gone, or nobody counts."""
    fields = (_read(f"/proc/{pid}/task/{tid}/schedstat") or b"").split()
    return (int(fields[0]) * 1e-9, int(fields[1]) * 1e-9) if fields else None


def turns(pid: int, tid: int) -> tuple[int, int] | None:
    """CPU time, ns, of a thread, and how often it was given a CPU; None as for `times`."""
    fields = (_read(f"/proc/{pid}/task/{tid}/schedstat") or b"").split()
    return (int(fields[0]), int(fields[2])) if fields else None


def tids(pid: int) -> list[int]:
    """Threads of a process; empty if it is gone. One readdir: 0.1 us a thread."""
    try:
        with os.scandir(f"/proc/{pid}/task") as entries:
            return [int(entry.name) for entry in entries]
    except (FileNotFoundError, ProcessLookupError):
        return []


def pids() -> list[int]:
    """All processes."""
    with os.scandir("/proc") as entries:
        return [int(entry.name) for entry in entries if entry.name.isdigit()]


def process_of(tid: int) -> int | None:
    """Process that a thread belongs to, or None if it is gone."""
    found = field(f"/proc/{tid}/status", "Tgid")
    return int(found[0]) if found else None


def name_of(tid: int) -> str:
    """Of a thread of any process; its id, if it is gone."""
    owner = process_of(tid)
    found = None if owner is None else stat(owner, tid)
    return str(tid) if found is None else found.name


def effective_uid(pid: int) -> int | None:
    """User that a process acts as, or None if it is gone."""
    found = field(f"/proc/{pid}/status", "Uid")
    return int(found[1]) if found else None


def owner(pid: int) -> int | None:
    """The uid of whoever started the process; None if it is gone.

    The real one: /proc/PID belongs to root where a process asked not to be dumped (prctl(2)), and
    the effective one is root's where a user runs a program of root's with the set-user-id bit.
    """
    found = field(f"/proc/{pid}/status", "Uid")
    return int(found[0]) if found else None


def families() -> Families:
    """The child processes of each process of the machine, by its parent; 15 us a process."""
    found: dict[int, list[int]] = {}
    for pid in pids():
        if its := stat(pid):
            found.setdefault(its.ppid, []).append(pid)
    return found


def below(pid: int, families: Families) -> list[int]:
    """Processes below `pid`, parents first. One that a dead parent left to init is not found."""
    found: dict[int, None] = {}
    left = [pid]
    while left:  # somebody's processes may be nested as deep as there are ids
        parent = left.pop()
        if parent not in found:
            found[parent] = None
            left += reversed(families.get(parent, []))
    return [*found][1:]


def descendants(pid: int) -> list[int]:
    """Processes below `pid`, as they are now."""
    return below(pid, families())


def children(pid: int, tid: int) -> list[int]:
    """Processes that this thread has started; empty where the kernel keeps no CONFIG_PROC_CHILDREN.

    When the thread ends they become another one's.
    """
    return [int(word) for word in (_read(f"/proc/{pid}/task/{tid}/children") or b"").split()]


def command_line(pid: int) -> list[str]:
    """The first arguments of a process; empty for a kernel thread, or if it is gone."""
    line = (_read(f"/proc/{pid}/cmdline", COMMAND_BYTES) or b"").rstrip(b"\0")
    # All at once: a zero ends what is no text as the end of a word does.
    return line.decode(errors="replace").split("\0", COMMAND_WORDS)[:COMMAND_WORDS] if line else []


def open_files(pid: int, most: int = MOST_FILES) -> Iterator[tuple[int, str]]:
    """Descriptors of a process, lowest first, and what each of them is open at.

    No more than `most` are looked at, whatever they are. Raises OSError if it is gone, or closed to
    us.
    """
    with os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in islice(entries, most):
            with suppress(OSError):  # closed meanwhile
                yield int(entry.name), os.readlink(entry.path)  # noqa: PTH115  many of them


def memory(pid: int, address: int, size: int) -> bytes | None:
    """From the memory of a process of root's or of our own user; None if that may not be read.

    Nothing of another user's is read: what lies there may be a page of a file system that this user
    serves (FUSE), and whoever reads it sleeps for as long as he likes, whatever signal comes.
    """
    with suppress(OSError, OverflowError):
        fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            uids = {int(uid) for uid in field(f"/proc/{pid}/status", "Uid")}
            if uids and uids <= {0, os.geteuid()}:
                return os.pread(fd, size, address)
        finally:
            os.close(fd)
    return None


def boot_id() -> str:
    """Identity of this boot of the machine."""
    return text("/proc/sys/kernel/random/boot_id").strip()


def boot_ticks() -> int:
    """Now, on the scale of `Stat.start_time`."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_S)


def text(path: str | Path, limit: int = -1) -> str:
    """A file of /proc as text; bytes that are none come as surrogates, as os.fsdecode has them.

    Raises OSError. limit: bytes that are read at most.
    """
    with open(path, "rb") as file:
        return file.read(limit).decode("utf-8", errors="surrogateescape")


def lines(path: str | Path, limit: int = -1) -> list[str]:
    """Its lines, none of which somebody's name can add to. Raises OSError."""
    return text(path, limit).removesuffix("\n").split("\n")


def field(path: str, key: str) -> list[str]:
    """The words after "KEY:" in a file such as /proc/PID/status; empty if there are none."""
    try:
        found = lines(path)
    except (FileNotFoundError, ProcessLookupError):
        return []
    start = key + ":"
    return next((line[len(start) :].split() for line in found if line.startswith(start)), [])


def _read(path: str, limit: int = 1 << 20) -> bytes | None:
    """Content of a file of /proc; None if its process is gone, or went while we read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        content = b""
        while len(content) < limit and (part := os.read(fd, min(1 << 16, limit - len(content)))):
            content += part
        return content
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)
