"""Our tracing program, loaded: waits of threads, who ran meanwhile, who woke whom.

What each part means is written in bpf/trace.h and bpf/trace.bpf.c. Loading takes CAP_BPF and
CAP_PERFMON (or root) and a kernel with BTF; it changes nothing on the machine, and ends with this
process. Set SCHED_CTL_TRACING=0 to do without.
"""

import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sched_ctl.kernel import schedext
from sched_ctl.kernel.btf import VMLINUX
from sched_ctl.kernel.libbpf import BpfError, Object, library

__all__ = ["OBJECT", "SLOT_S", "Tracer", "Unavailable", "look_at", "obstacle"]

OBJECT = Path(__file__).resolve().parents[1] / "bin" / "trace.bpf.o"
SWITCH = "SCHED_CTL_TRACING"
PID_NAMESPACE = "pid:[4026531836]"  # that of the machine: PROC_PID_INIT_INO, linux/proc_ns.h
LOCKDOWN = Path("/sys/kernel/security/lockdown")
MOST_IDS = 1 << 22  # TRACE_IDS in bpf/trace.h
SLOT_S = 1024e-9  # a wait in slot n was shorter than 2**n of it
Table = NDArray[Any]
# The second where data has no symbols: it goes by what others note of interrupts.
WAKING = ("trace_waking", "trace_waking_noted")
# Of bpf/interrupts.bpf.h, for the second.
NOTING = (  # in this order: what began is to end
    "device_ends",
    "timer_ends",
    "softirq_ends",
    "device_begins",
    "timer_begins",
    "softirq_begins",
)


class Unavailable(Exception):
    """Nothing can be traced: why, in words."""


def obstacle() -> str | None:
    """What is known to stand in the way, in words; None if nothing is. Loads nothing."""
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH}=0 is set"
    if not OBJECT.exists():
        return "the tracing program was not built (clang was missing)"
    if not VMLINUX.exists():
        return "the kernel does not publish its types (CONFIG_DEBUG_INFO_BTF)"
    if str(Path("/proc/self/ns/pid").readlink()) != PID_NAMESPACE:
        return "in this container processes have other ids than the kernel's"
    if missing := schedext.missing_capabilities():
        return f"not permitted: needs {', '.join(missing)}"
    try:
        if "[confidentiality]" in LOCKDOWN.read_text():
            return "the kernel is locked down (confidentiality)"
    except OSError:
        pass  # no lockdown, or no securityfs to tell
    try:
        library()
    except BpfError as error:
        return str(error.strerror)
    return None


class _Program:
    """The program, loaded and attached. Raises Unavailable."""

    def __init__(self) -> None:
        if (why := obstacle()) is not None:
            raise Unavailable(why)
        self.object, self._wakings = _load(OBJECT, WAKING)
        try:
            self.followed = self.object.array(".bss.followed", "followed")
            self.waits = self.object.array(".bss.waits", "waits")
            self._graph = self.object.array(".bss.followed", "graph")
            self.object.attach("trace_switch")
        except OSError as error:
            self.object.close()
            raise _refused(error) from None
        self.tracers: dict[Tracer, frozenset[int]] = {}
        self._pids: frozenset[int] = frozenset()

    def watch_wakings(self) -> None:
        """From now on, for all tracers. Raises Unavailable."""
        if self._graph:
            return
        try:
            for program in self._wakings:
                self.object.attach(program)
        except OSError as error:
            raise Unavailable(f"the kernel refuses: {error.strerror}") from None
        self._graph[...] = 1

    def follow(self) -> None:
        """Those that some tracer wants."""
        pids = frozenset[int]().union(*self.tracers.values())
        for pid in pids ^ self._pids:
            self.followed[pid // 64] ^= np.uint64(1 << pid % 64)
        self._pids = pids


def _load(path: Path, waking: tuple[str, str]) -> tuple[Object, tuple[str, ...]]:
    """An object with one of its two programs for wake-ups, and what is to be attached for these:
    the second, with what notes interrupts, where the kernel refuses the first. Raises Unavailable.
    """
    first, second = waking
    noted = (*NOTING, second)
    try:
        try:
            return _loaded(path, noted), (first,)
        except OSError:
            return _loaded(path, (first,)), noted
    except OSError as error:
        raise _refused(error) from None


def look_at(pids: Iterable[int], path: Path, waking: tuple[str, str], switch: str) -> Object:
    """An object that follows these processes, attached to switches and wake-ups, for a short look.
    Raises Unavailable.
    """
    if (why := obstacle()) is not None:
        raise Unavailable(why)
    if not path.exists():
        raise Unavailable(f"{path.name} was not built (clang was missing)")
    made, wakings = _load(path, waking)
    try:
        followed = made.array(".bss.followed", "followed")
        for pid in pids:
            followed[pid // 64] |= np.uint64(1 << pid % 64)
        for program in (*wakings, switch):
            made.attach(program)
    except OSError as error:
        made.close()
        raise _refused(error) from None
    return made


def _loaded(path: Path, without: Iterable[str]) -> Object:
    """Raises OSError."""
    made = Object.open(path, library())
    try:
        for program in without:
            made.leave_out(program)
        made.load()
    except BaseException:
        made.close()
        raise
    return made


def _refused(error: OSError) -> Unavailable:
    """The kernel's words, with the last line of its verifier's."""
    said = getattr(error, "log", "").strip().splitlines()
    detail = f" ({said[-1].strip()})" if said else ""
    return Unavailable(f"the kernel refuses: {error.strerror}{detail}")


_program: _Program | None = None
_lock = threading.Lock()


class Tracer:
    """Follows the threads of some processes. Close it, or use it as a context.

    The program is in the kernel once, however many tracers there are; each sees what all follow.
    wakings: also who wakes whom, and since when threads are awake, which costs as much again.
    Raises Unavailable.
    """

    def __init__(self, pids: Iterable[int] = (), *, wakings: bool = False) -> None:
        global _program
        with _lock:
            self._program = _program = _program or _Program()
            self._program.tracers[self] = frozenset()
        try:
            if wakings:
                with _lock:
                    self._program.watch_wakings()
            self.follow(pids)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def follow(self, pids: Iterable[int]) -> None:
        """These processes from now on, and none else."""
        wanted = frozenset(pid for pid in pids if 0 < pid < MOST_IDS)
        with _lock:
            if self._program.tracers.get(self) not in (None, wanted):
                self._program.tracers[self] = wanted
                self._program.follow()

    def threads(self) -> dict[int, Table]:
        """Thread id -> its `struct waits`, of all that were ever seen."""
        rows = self._rows()
        return dict(zip(rows["tid"].tolist(), rows, strict=True))

    def wakings(self) -> dict[tuple[int, int], int]:
        """(who wakes, who is woken) -> how often; 0 = somebody else. Empty if nobody asked."""
        return self._pairs("wakings", "waker", "woken")

    def occupants(self) -> dict[tuple[int, int], int]:
        """(who ran, who waited for him) -> ns; 0 = the idle task."""
        return self._pairs("occupants", "behind", "behind_ns")

    def _rows(self) -> Table:
        waits = self._program.waits
        found: Table = waits[waits["tid"] != 0]  # a copy
        return found

    def _pairs(self, name: str, who: str, much: str) -> dict[tuple[int, int], int]:
        """What the table has, and then what has not got there yet: nothing counts twice."""
        keys, values = self._program.object.table(name, None)
        pairs = keys.view("<u4").reshape(-1, 2).tolist()
        found = {(a, b): n for (a, b), n in zip(pairs, values.tolist(), strict=True)}
        rows = self._rows()
        for a, b, n in zip(*(rows[f].tolist() for f in (who, "tid", much)), strict=True):
            if n:
                found[a, b] = found.get((a, b), 0) + n
        return found

    def close(self) -> None:
        global _program
        with _lock:
            if self._program.tracers.pop(self, None) is None:
                return
            if self._program.tracers:
                self._program.follow()
            else:
                self._program.object.close()
                _program = None
