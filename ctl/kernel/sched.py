"""Scheduling parameters of single threads: nice, policy, slice.

Every call takes a thread id and raises OSError that names it. Whether the id still means the
thread that was meant is for the caller to know, see `identity`.
"""

import ctypes
import errno
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache

__all__ = [
    "BATCH",
    "DEADLINE",
    "EXT",
    "FIFO",
    "IDLE",
    "OTHER",
    "POLICY_NAMES",
    "RESET_ON_FORK",
    "RR",
    "Attributes",
    "brief",
    "explain",
    "get_attributes",
    "get_nice",
    "get_policy",
    "own_slice_ns",
    "set_attributes",
    "set_nice",
    "set_policy",
    "usual_slice_ns",
]

# include/uapi/linux/sched.h
OTHER, FIFO, RR, BATCH, IDLE, DEADLINE, EXT = 0, 1, 2, 3, 5, 6, 7
RESET_ON_FORK = 0x40000000  # or'ed into the policy by sched_getscheduler(2)
POLICY_NAMES = {
    OTHER: "SCHED_OTHER",
    FIFO: "SCHED_FIFO",
    RR: "SCHED_RR",
    BATCH: "SCHED_BATCH",
    IDLE: "SCHED_IDLE",
    DEADLINE: "SCHED_DEADLINE",
    EXT: "SCHED_EXT",
}
BRIEF_NS = 100_000  # the shortest slice that a kernel gives
FLAG_RESET_ON_FORK = 0x01
FLAG_KEEP_POLICY = 0x08
FLAG_KEEP_PARAMS = 0x10

# The libc of Debian 12 has no wrapper. arch/x86/entry/syscalls/syscall_64.tbl, and for all newer
# architectures include/uapi/asm-generic/unistd.h.
_SCHED_SETATTR, _SCHED_GETATTR = {
    "x86_64": (314, 315),
    "i386": (351, 352),
    "i686": (351, 352),
    "armv7l": (380, 381),
    "ppc64le": (355, 356),
    "s390x": (345, 346),
}.get(platform.machine(), (274, 275))

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _SchedAttr(ctypes.Structure):
    """struct sched_attr of include/uapi/linux/sched/types.h, first published version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("sched_policy", ctypes.c_uint32),
        ("sched_flags", ctypes.c_uint64),
        ("sched_nice", ctypes.c_int32),
        ("sched_priority", ctypes.c_uint32),
        ("sched_runtime", ctypes.c_uint64),
        ("sched_deadline", ctypes.c_uint64),
        ("sched_period", ctypes.c_uint64),
    )


@dataclass(frozen=True, slots=True)
class Attributes:
    """What sched_getattr(2) says of a thread.

    slice_ns: time slice of a fair thread since Linux 6.12 (0 before); run time of a deadline one.
    """

    policy: int
    reset_on_fork: bool
    nice: int
    priority: int
    slice_ns: int


def explain(number: int) -> str:
    """What an errno of these calls means, in words for the user."""
    return {
        errno.EPERM: "not permitted: needs root or CAP_SYS_NICE",
        errno.EACCES: "not permitted: a lower nice value needs root or CAP_SYS_NICE",
        errno.ENOSYS: "this kernel does not have the call, or a seccomp filter hides it",
        errno.ESRCH: "no such thread",
        errno.EINVAL: "the kernel does not take this value",
    }.get(number, os.strerror(number))


@contextmanager
def _of(what: str, tid: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        number = error.errno or 0
        raise OSError(number, explain(number), f"{what} of thread {tid}") from None


def get_nice(tid: int) -> int:
    with _of("nice", tid):
        return os.getpriority(os.PRIO_PROCESS, tid)


def set_nice(tid: int, nice: int) -> None:
    """Linux sets it for the single thread, whatever POSIX says: setpriority(2), BUGS."""
    with _of("nice", tid):
        os.setpriority(os.PRIO_PROCESS, tid, nice)


def get_policy(tid: int) -> tuple[int, bool]:
    """Policy, and whether it is reset in children."""
    with _of("policy", tid):
        policy = os.sched_getscheduler(tid)
    return policy & ~RESET_ON_FORK, bool(policy & RESET_ON_FORK)


def set_policy(tid: int, policy: int, *, reset_on_fork: bool = False, priority: int = 0) -> None:
    """Nice and slice stay as they are among OTHER, BATCH, IDLE and EXT."""
    with _of("policy", tid):
        os.sched_setscheduler(
            tid, policy | (RESET_ON_FORK if reset_on_fork else 0), os.sched_param(priority)
        )


def get_attributes(tid: int) -> Attributes:
    attr = _SchedAttr()
    arguments = (ctypes.c_int(tid), ctypes.byref(attr), ctypes.c_uint(ctypes.sizeof(attr)))
    _syscall(_SCHED_GETATTR, *arguments, ctypes.c_uint(0), what="attributes", tid=tid)
    return Attributes(
        policy=attr.sched_policy,
        reset_on_fork=bool(attr.sched_flags & FLAG_RESET_ON_FORK),
        nice=attr.sched_nice,
        priority=attr.sched_priority,
        slice_ns=attr.sched_runtime,
    )


@cache
def usual_slice_ns() -> int:
    """The time slice that this process was started with, which is the kernel's; 0 before 6.12."""
    return get_attributes(0).slice_ns


def own_slice_ns(tid: int) -> int:
    """Time slice that somebody gave the thread; 0 where it has the kernel's, as we had."""
    found = get_attributes(tid).slice_ns
    return 0 if found == usual_slice_ns() else found


@contextmanager
def brief() -> Iterator[None]:
    """Run in short slices: this thread, and those that it starts. Nothing changes before 6.12.

    As much as before, but whoever wakes up meanwhile does not wait for the end of a long one.
    """
    _set_own_slice(BRIEF_NS)
    try:
        yield
    finally:
        _set_own_slice(0)


def _set_own_slice(slice_ns: int) -> None:
    with suppress(OSError):  # a filter of system calls
        own = get_attributes(0)
        # Of other policies the same field is none, or what a deadline is for.
        if own.policy in (OTHER, BATCH) and usual_slice_ns():
            set_attributes(0, replace(own, slice_ns=slice_ns))


def set_attributes(tid: int, attributes: Attributes) -> None:
    """Set all of them at once, which sets the slice too (0: back to the kernel's default)."""
    attr = _SchedAttr(
        size=ctypes.sizeof(_SchedAttr),
        sched_policy=attributes.policy,
        sched_flags=FLAG_RESET_ON_FORK if attributes.reset_on_fork else 0,
        sched_nice=attributes.nice,
        sched_priority=attributes.priority,
        sched_runtime=attributes.slice_ns,
    )
    arguments = (ctypes.c_int(tid), ctypes.byref(attr), ctypes.c_uint(0))
    _syscall(_SCHED_SETATTR, *arguments, what="attributes", tid=tid)


def _syscall(number: int, *arguments: object, what: str, tid: int) -> None:
    if _libc.syscall(ctypes.c_long(number), *arguments) < 0:
        code = ctypes.get_errno()
        raise OSError(code, explain(code), f"{what} of thread {tid}")
