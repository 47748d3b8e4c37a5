"""Who holds the lock that a thread waits for, and where both are.

Of C and all else: a thread that sleeps in futex(2) tells the address by its system call
(proc_pid_syscall(5)), and glibc keeps the owner of a mutex eight bytes behind it (struct
__pthread_mutex_s, sysdeps/nptl/bits/struct_mutex.h). Of Java: a thread dump with `-l` tells
monitors and locks of java.util.concurrent, and stops all Java threads for milliseconds. So this is
for who asks, and nothing that is done each second. Memory and dump are the process's: both may lie.
"""

import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from sched_ctl.kernel import hotspot, procfs, sleeping

__all__ = ["Held", "JavaStack", "java_stacks", "mutex", "who_holds"]

FRAMES = 64  # of one thread, in a dump
LOCKS = 64
LINE = 2048  # letters that are looked at
_WAITS = re.compile(
    r"\t- (?:waiting to (?:re-)?lock(?: in wait\(\))?|parking to wait for) +"
    r"<(0x[0-9a-f]+)> \(a ([^)]{1,300})\)"
)
_HAS = re.compile(r"\t- (?:locked )?<(0x[0-9a-f]+)> \(a ")
# A line fits this in one way at most: many slashes, in a name of anybody's choice, are read once.
_FRAME = re.compile(r"\tat (?:[^(]*/)?([^/(]+)\((?:[^/)]*/)?([^)]{0,300})\)")
_OWNER = struct.Struct("=iIi")  # __lock, __count, __owner


@dataclass(slots=True)
class JavaStack:
    """Of one Java thread. frames: innermost first, "package.Class.method (File.java:12)". waits:
    number of the lock that it waits for. lock: its class. has: numbers of those that it holds.
    """

    name: str
    frames: list[str] = field(default_factory=list)
    waits: str | None = None
    lock: str = ""
    has: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Held:
    """A lock that somebody waits for. holder: thread id. at: where that is, innermost first."""

    lock: str
    holder: int
    name: str
    at: tuple[str, ...] = ()


def java_stacks(pid: int) -> dict[int, JavaStack]:
    """By thread id. Stops the process's Java threads for milliseconds. Raises AttachError."""
    text, tids = hotspot.dump(pid, locks=True)
    found = {}
    for nid, stack in _stacks(text):
        tid = nid if tids is None else tids.get(nid)
        if tid is not None:
            found[tid] = stack
    return found


def _stacks(text: str) -> Iterator[tuple[int, JavaStack]]:
    """(native id, what the thread does), of each in a dump."""
    heads = list(hotspot.HEADER.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    for head, end in zip(heads, ends, strict=True):
        stack = JavaStack(head[1])
        for whole in text[head.end() : end].splitlines():
            line = whole[:LINE]
            if (at := _FRAME.match(line)) and len(stack.frames) < FRAMES:
                stack.frames.append(f"{at[1]} ({at[2]})")
            elif waits := _WAITS.match(line):
                stack.waits, stack.lock = waits[1], waits[2]
            elif (has := _HAS.match(line)) and len(stack.has) < LOCKS:
                stack.has.add(has[1])
        # A monitor that it gave up to wait for a signal is told as locked and as waited for.
        stack.has.discard(stack.waits or "")
        yield int(head[2], 16 if head[2].startswith("0x") else 10), stack


def who_holds(stacks: dict[int, JavaStack]) -> dict[int, Held]:
    """Of each thread that waits for a lock that another one has, by thread id."""
    owners = {lock: tid for tid, stack in stacks.items() for lock in stack.has}
    found = {}
    for tid, stack in stacks.items():
        owner = owners.get(stack.waits) if stack.waits else None
        if owner is not None and owner != tid:
            of = stacks[owner]
            found[tid] = Held(stack.lock, owner, of.name, tuple(of.frames))
    return found


def mutex(pid: int, tid: int) -> Held | None:
    """Whom a thread waits for at a mutex of glibc; None if it does not, or that is not told."""
    address = sleeping.futex_of(pid, tid)
    if address is None:
        return None
    with suppress(OSError, struct.error):
        word, _, owner = _OWNER.unpack(procfs.memory(pid, address, _OWNER.size) or b"")
        inside = _inside(pid)
        holder = inside.get(owner)
        if word and holder is not None and holder != tid:
            return Held("a mutex", holder, procfs.name_of(holder))
    return None


def _inside(pid: int) -> dict[int, int]:
    """Thread ids as the process itself has them -> ours. Raises OSError."""
    status = procfs.field(f"/proc/{pid}/status", "NSpid") or []
    if len(status) <= 1:
        return {tid: tid for tid in procfs.tids(pid)}
    return hotspot.host_tids(pid)
