"""Where a thread sleeps: its system call and its wait channel, as /proc tells them.

proc(5): /proc/PID/task/TID/syscall has the number and the arguments of the call in which a thread
sleeps ("running" if it does not; -1 if it is in none, as in a page fault), wchan the function of
the kernel. The call tells more and changes less from kernel to kernel, but takes the right to trace
the process. Of arguments only numbers are taken, and of what lies behind a descriptor only its
kind: the process may belong to anybody, and then nobody reads its memory for the one that it polls.
All of these may change between two lines.
"""

import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sched_ctl.kernel import procfs

__all__ = [
    "CHILD",
    "EVENTS",
    "FILE",
    "LOCK",
    "MEMORY",
    "PIPE",
    "SOCKET",
    "TIMED",
    "TIMER",
    "UNKNOWN",
    "Sleep",
    "futex_of",
    "in_words",
    "told",
    "where",
]

LOCK = "lock"  # a lock or a condition: a futex
TIMED = "timed lock"  # the same with a time limit, which is what a sleep is in Java
SOCKET = "socket"
FILE = "file"
MEMORY = "memory"
TIMER = "timer"
CHILD = "child"
PIPE = "pipe"
EVENTS = "events"  # any of several descriptors: epoll, poll, select
UNKNOWN = "unknown"  # the kernel does not say

NAMED = 3  # places, in words
WORDS = {
    LOCK: "at a lock or condition",
    TIMED: "at a lock, condition or sleep with a time limit",
    SOCKET: "for a socket",
    FILE: "for a file",
    MEMORY: "for a page of memory",
    TIMER: "for a timer",
    CHILD: "for a child process",
    PIPE: "for a pipe",
    EVENTS: "for any of several descriptors",
    UNKNOWN: "where the kernel does not say",
}

BYTES = 256  # a line of syscall has 9 numbers of 18 digits at most
NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class Sleep:
    """What a thread waits for: one of the words above, or "kernel FUNCTION" for all else.

    inode: of a socket, if one is known.
    """

    what: str
    inode: int | None = None


def where(pid: int, tid: int, *, calls: bool = True) -> Sleep | None:
    """Where a thread sleeps; None if it does not, or is gone. 10 to 30 us.

    calls: whether to ask for its system call. Raises PermissionError if that may not be read.
    """
    folder = f"/proc/{pid}/task/{tid}"
    call: list[int] = []
    if calls:
        line = _read(f"{folder}/syscall")
        if line is not None:
            words = line.split()
            if not words or words[0] == b"running":
                return None
            with suppress(ValueError):
                call = [int(word, 0) for word in words]
    try:
        found = NAME.match(_read(f"{folder}/wchan") or b"")
    except PermissionError:
        found = None
    channel = "" if found is None else found[0].decode()
    if not call and not channel:
        # It runs, or it sleeps and the kernel does not say where.
        stat = procfs.stat(pid, tid)
        return Sleep(UNKNOWN) if stat is not None and stat.state in ("S", "D") else None
    return _judged(pid, call, channel)


def futex_of(pid: int, tid: int) -> int | None:
    """Address of the futex at which a thread sleeps; None if at none, or that is not told."""
    with suppress(PermissionError, ValueError):
        words = (_read(f"/proc/{pid}/task/{tid}/syscall") or b"").split()
        if len(words) > 1 and CALLS.get(int(words[0], 0)) in ("futex", "futex_wait"):
            return int(words[1], 0)
    return None


def told() -> bool:
    """Whether this kernel tells the system call in which a thread sleeps, of our own at least."""
    with suppress(PermissionError):
        return bool(_read("/proc/thread-self/syscall"))
    return False


def in_words(told: Mapping[str, Any] | None) -> str:
    """What `bottlenecks` tells of an operator's sleep; empty if that is nothing."""
    shown = [place for place in told["places"] if place["share"] >= 0.005] if told else []
    if [place["where"] for place in shown] == [UNKNOWN]:
        return ""

    def words(where: str, peer: str | None) -> str:
        return f"for {peer}" if peer else WORDS.get(where, f"in {where}")

    return ", ".join(
        f"{words(place['where'], place['peer'])} {place['share']:.0%}" for place in shown[:NAMED]
    )


def _judged(pid: int, call: list[int], channel: str) -> Sleep:
    """call: number and arguments, empty = not known. channel: empty = not known."""
    if _one_of(channel, RECLAIM):
        return Sleep(MEMORY)
    if call and call[0] < 0:  # in no call
        return Sleep(MEMORY) if _one_of(channel, FAULTS) else _by_channel(channel)
    kind = CALLS.get(call[0]) if call else None
    arguments = [*call[1:7], 0, 0, 0, 0, 0, 0][:6]
    if kind == "futex":
        return Sleep(TIMED if arguments[3] else LOCK)
    if kind == "futex_wait":
        return Sleep(TIMED if arguments[4] else LOCK)
    if kind == "poll":
        if arguments[1] == 0:
            return Sleep(TIMER)
        fd = _first_polled(pid, arguments[0]) if arguments[1] == 1 else None
        return Sleep(EVENTS) if fd is None else _behind(pid, fd, channel)
    if kind == "descriptor":
        return _behind(pid, arguments[0], channel)
    return _by_channel(channel) if kind is None else Sleep(kind)


def _behind(pid: int, fd: int, channel: str) -> Sleep:
    """A sleep on a descriptor. Nobody follows its link: that might wait for whoever owns it."""
    try:
        target = os.readlink(f"/proc/{pid}/fd/{fd & 0x7FFFFFFF}")  # noqa: PTH115  many of them
    except OSError:  # closed meanwhile
        return _by_channel(channel)
    kind, _, number = target.partition(":[")
    if kind == "socket":
        return Sleep(SOCKET, int(number[:-1]) if number[:-1].isdecimal() else None)
    if kind == "pipe" or "pipe" in channel:
        return Sleep(PIPE)
    if kind == "anon_inode":
        return Sleep(TIMER) if number == "timerfd]" else Sleep(EVENTS)
    return Sleep(FILE) if target.startswith("/") else _by_channel(channel)


def _first_polled(pid: int, address: int) -> int | None:
    """The descriptor of the first `struct pollfd` at an address of a process."""
    found = procfs.memory(pid, address, 4)
    fd = int.from_bytes(found, sys.byteorder, signed=True) if found else -1
    return fd if fd >= 0 else None


def _by_channel(channel: str) -> Sleep:
    if not channel:
        return Sleep(UNKNOWN)
    for what, names in CHANNELS.items():
        if _one_of(channel, names):
            return Sleep(what)
    return Sleep(f"kernel {channel}")


def _one_of(channel: str, parts: Iterable[str]) -> bool:
    return any(part in channel for part in parts)


def _read(path: str) -> bytes | None:
    """The begin of a file; None if its thread is gone, or the kernel has no such file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        return os.read(fd, BYTES)
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)


# Parts of the names of functions, as kernels from 5.10 to 6.18 have them. RECLAIM: in any call.
RECLAIM = ("reclaim", "shrink_", "compact", "mem_cgroup", "swap_", "_swap", "throttle_direct")
FAULTS = ("folio_", "page_", "fault", "rwsem", "io_schedule", "mmap_", "vma_")
CHANNELS: Mapping[str, tuple[str, ...]] = {
    LOCK: ("futex",),
    TIMER: ("nanosleep",),
    EVENTS: ("epoll_wait", "ep_poll", "poll_schedule_timeout", "do_select", "do_sys_poll"),
    PIPE: ("pipe_", "_pipe"),
    CHILD: ("do_wait", "kernel_wait"),
    SOCKET: ("unix_", "sk_", "inet_csk", "tcp_", "udp_", "skb_", "wait_woken", "sock_"),
    FILE: (
        *("folio_", "page_bit", "io_schedule", "blk", "bio_", "rq_qos", "jbd2_", "ext4_", "xfs_"),
        *("btrfs_", "nfs", "rpc_", "fuse_", "request_wait", "balance_dirty", "inode_", "flock"),
    ),
}

# System calls in which threads sleep, and what they sleep for; "descriptor": behind the first
# argument. Numbers: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h.
KINDS: Mapping[str, str] = {
    **dict.fromkeys(("futex", "futex_waitv"), "futex"),
    "futex_wait": "futex_wait",
    **dict.fromkeys(("nanosleep", "clock_nanosleep"), TIMER),
    **dict.fromkeys(("wait4", "waitid"), CHILD),
    **dict.fromkeys(("poll", "ppoll"), "poll"),
    **dict.fromkeys(("select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2"), EVENTS),
    **dict.fromkeys(("mmap", "munmap", "mremap", "mprotect", "madvise", "brk"), MEMORY),
    **dict.fromkeys(("open", "openat", "stat", "newfstatat", "statx", "unlink", "unlinkat"), FILE),
    **dict.fromkeys(("rename", "renameat2", "msync", "sync"), FILE),
    **dict.fromkeys(
        (
            *("read", "pread64", "readv", "preadv", "write", "pwrite64", "writev", "pwritev"),
            *("recvfrom", "recvmsg", "recvmmsg", "sendto", "sendmsg", "sendmmsg", "connect"),
            *("accept", "accept4", "fsync", "fdatasync", "fallocate", "ftruncate", "flock"),
            *("fcntl", "getdents64"),
        ),
        "descriptor",
    ),
}
X86_64 = """read 0 write 1 open 2 stat 4 poll 7 mmap 9 mprotect 10 munmap 11 brk 12 pread64 17
pwrite64 18 readv 19 writev 20 select 23 mremap 25 msync 26 madvise 28 nanosleep 35 connect 42
accept 43 sendto 44 recvfrom 45 sendmsg 46 recvmsg 47 wait4 61 fcntl 72 flock 73 fsync 74
fdatasync 75 ftruncate 77 rename 82 unlink 87 sync 162 futex 202 getdents64 217 clock_nanosleep 230
epoll_wait 232 waitid 247 openat 257 newfstatat 262 unlinkat 263 pselect6 270 ppoll 271
epoll_pwait 281 fallocate 285 accept4 288 preadv 295 pwritev 296 recvmmsg 299 sendmmsg 307
renameat2 316 statx 332 epoll_pwait2 441 futex_waitv 449 futex_wait 455"""
GENERIC = """epoll_pwait 22 fcntl 25 flock 32 unlinkat 35 ftruncate 46 fallocate 47 openat 56
getdents64 61 read 63 write 64 readv 65 writev 66 pread64 67 pwrite64 68 preadv 69 pwritev 70
pselect6 72 ppoll 73 newfstatat 79 sync 81 fsync 82 fdatasync 83 waitid 95 futex 98 nanosleep 101
clock_nanosleep 115 accept 202 connect 203 sendto 206 recvfrom 207 sendmsg 211 recvmsg 212 brk 214
munmap 215 mremap 216 mmap 222 mprotect 226 msync 227 madvise 233 accept4 242 recvmmsg 243
wait4 260 sendmmsg 269 renameat2 276 statx 291 epoll_pwait2 441 futex_waitv 449 futex_wait 455"""


def _numbers(table: str) -> dict[str, int]:
    words = table.split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


NUMBERS = {"x86_64": _numbers(X86_64), "aarch64": _numbers(GENERIC), "riscv64": _numbers(GENERIC)}
CALLS = {number: KINDS[name] for name, number in NUMBERS.get(platform.machine(), {}).items()}
