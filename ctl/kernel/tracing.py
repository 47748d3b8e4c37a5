"""Our tracing program, loaded: waits of threads, who ran meanwhile, who woke whom.

What each part means is written in bpf/trace.h and bpf/trace.bpf.c. Loading takes CAP_BPF and
CAP_PERFMON (or root) and a kernel with BTF; it changes nothing on the machine, and ends with this
process. Set SCHED_CTL_TRACING=0 to do without.
"""

import os
from pathlib import Path
from typing import Any, Self

from numpy.typing import NDArray

from sched_ctl.kernel import schedext
from sched_ctl.kernel.btf import VMLINUX
from sched_ctl.kernel.libbpf import BpfError, Object, library

__all__ = ["OBJECT", "Tracer", "Unavailable", "obstacle"]

OBJECT = Path(__file__).resolve().parents[1] / "bin" / "trace.bpf.o"
SWITCH = "SCHED_CTL_TRACING"
PID_NAMESPACE = "pid:[4026531836]"  # that of the machine: PROC_PID_INIT_INO, linux/proc_ns.h
LOCKDOWN = Path("/sys/kernel/security/lockdown")
PROGRAMS = ("trace_waking", "trace_switch")
Table = NDArray[Any]


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
        return str(error.filename)
    return None


class Tracer:
    """Loaded and attached, for the threads of one process. Close it, or use it as a context.

    Raises Unavailable.
    """

    def __init__(self, pid: int) -> None:
        if (why := obstacle()) is not None:
            raise Unavailable(why)
        try:
            self._object = Object.open(OBJECT, library())
        except OSError as error:
            raise Unavailable(f"cannot open {OBJECT}: {error.strerror}") from None
        try:
            self._object.set("process", pid)
            self._object.load()
            for program in PROGRAMS:
                self._object.attach(program)
        except OSError as error:
            self._object.close()
            said = getattr(error, "log", "").strip().splitlines()
            detail = f" ({said[-1].strip()})" if said else ""
            raise Unavailable(f"the kernel refuses: {error.strerror}{detail}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def threads(self) -> dict[int, Table]:
        """Thread id -> its `struct waits`, of all that were ever seen."""
        keys, values = self._object.table("threads", "waits")
        return dict(zip(keys.view("<u4")[:, 0].tolist(), values, strict=True))

    def wakings(self) -> dict[tuple[int, int], int]:
        """(who wakes, who is woken) -> how often; 0 = somebody else."""
        return self._pairs("wakings")

    def occupants(self) -> dict[tuple[int, int], int]:
        """(who ran, who waited for him) -> ns; 0 = the idle task."""
        return self._pairs("occupants")

    def _pairs(self, name: str) -> dict[tuple[int, int], int]:
        keys, values = self._object.table(name, None)
        pairs = keys.view("<u4").reshape(-1, 2).tolist()
        return {(a, b): much for (a, b), much in zip(pairs, values.tolist(), strict=True)}

    def close(self) -> None:
        self._object.close()
