"""Calls of any function by thread: how many and how long, by bcc, where that is installed.

bcc compiles a program at run time, so whatever somebody names can be counted: a function of the
program or of a library (uprobe), of the kernel (kprobe), or a static probe (USDT), such as
HotSpot's. It takes 2 s and 120 MB, and is never loaded by a controller. The program uses no type of
the kernel, so empty files stand for the kernel's headers, which few machines have.

bcc is Debian's python3-bpfcc (PyPI's package of that name is something else). It reads the symbols
of the process's own files: look at programs that you trust.
"""

import atexit
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from sched_ctl.errors import UserError
from sched_ctl.kernel import procfs, schedext

__all__ = ["Calls", "calls", "obstacle"]

DEBIAN = Path("/usr/lib/python3/dist-packages/bcc/__init__.py")
KERNEL, STATIC = "kernel:", "usdt:"

PROGRAM = r"""
struct calls { u64 times, ns; };
/* Calls that have not ended, each within the one before it: when, where, and for how long calls
   within it have taken so far. */
struct call { u64 ns, stack, within; };
struct open { struct call at[LEVELS]; };
BPF_HASH(open, u32, struct open, 16384);
BPF_HASH(calls, u32, struct calls, 16384);
/* So many ns more, of calls that ended within the one that is open above this level. */
static __always_inline void took(struct open *its, int level, u32 tid, u64 ns)
{
    struct calls *sum;
    if (level > 0) {
        its->at[level - 1].within += ns;
        return;
    }
    sum = calls.lookup(&tid);
    if (sum)
        sum->ns += ns;
}
int enters(struct pt_regs *ctx)
{
    u64 id = bpf_get_current_pid_tgid(), stack = BEGINS, lost = 0;
    u32 tid = id, pid = id >> 32;
    struct open none = {}, *its;
    if (pid != FOLLOWED)
        return 0;
    its = open.lookup_or_try_init(&tid, &none);
    if (!its)
        return 0;
    /* Those that are not above it on the stack were left without a return: longjmp. What ended
       within them was within no call that ended. One that lies on another stack, and never ends,
       is taken for one above it. */
#pragma unroll
    for (int level = 0; level < LEVELS; level++) {
        if (its->at[level].ns && stack < its->at[level].stack)
            continue;
#pragma unroll
        for (int below = 0; below < LEVELS; below++) {
            if (below < level)
                continue;
            lost += its->at[below].within;
            its->at[below].ns = its->at[below].within = 0;
        }
        took(its, level, tid, lost);
        its->at[level].ns = bpf_ktime_get_ns();
        its->at[level].stack = stack;
        return 0;
    }
    return 0;
}
int leaves(struct pt_regs *ctx)
{
    u32 tid = bpf_get_current_pid_tgid();
    u64 stack = ENDS;
    struct calls zero = {}, *sum;
    struct open *its = open.lookup(&tid);
    if (!its)
        return 0;
    sum = calls.lookup_or_try_init(&tid, &zero);
    if (!sum)
        return 0;
#pragma unroll
    for (int level = 0; level < LEVELS; level++) {
        if (!its->at[level].ns || stack < its->at[level].stack)
            continue;
        sum->times++;
        took(its, level, tid, bpf_ktime_get_ns() - its->at[level].ns);
#pragma unroll
        for (int below = 0; below < LEVELS; below++)
            if (below >= level)
                its->at[below].ns = its->at[below].within = 0;
        return 0;
    }
    /* Deeper than there are levels, or begun before anybody looked */
    if (its->at[0].ns)
        sum->times++;
    return 0;
}
int rings(void *ctx)
{
    u64 id = bpf_get_current_pid_tgid();
    u32 tid = id, pid = id >> 32;
    struct calls zero = {}, *sum;
    if (pid != FOLLOWED)
        return 0;
    sum = calls.lookup_or_try_init(&tid, &zero);
    if (sum)
        sum->times++;
    return 0;
}
"""

# What bcc includes by itself before any program; registers are for arguments of static probes.
EMPTY = (
    "arch/x/include/x",
    *(f"include/{name}.h" for name in ("asm/page", "generated/autoconf", "uapi/asm/x")),
    *(
        f"include/linux/{n}.h"
        for n in ("bpf_common", "compiler", "fs", "ptrace", "sched", "stddef")
    ),
    *(f"include/uapi/linux/{n}.h" for n in ("bpf", "bpf_common", "if_packet", "ptrace")),
)
FILES = {
    "kconfig": "",
    "include/linux/kconfig.h": "#define CONFIG_BPF_SYSCALL 1\n",
    "include/linux/log2.h": "#define roundup_pow_of_two(n) (n)\n",
    "include/linux/version.h": "#define LINUX_VERSION_CODE 0\n"
    "#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))\n",
    "include/linux/types.h": """#pragma once
typedef unsigned char __u8, u8; typedef signed char __s8, s8;
typedef unsigned short __u16, u16, __be16, __le16, __sum16; typedef short __s16, s16;
typedef unsigned int __u32, u32, __be32, __le32, __wsum; typedef int __s32, s32;
typedef unsigned long long __u64, u64, __be64, __le64; typedef long long __s64, s64;
typedef unsigned long uintptr_t, size_t; typedef _Bool bool; typedef int pid_t;
typedef u8 uint8_t; typedef u16 uint16_t; typedef u32 uint32_t; typedef u64 uint64_t;
typedef s8 int8_t; typedef s16 int16_t; typedef s32 int32_t; typedef s64 int64_t;
#define __aligned_u64 __u64 __attribute__((aligned(8)))
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
#define NULL ((void *)0)
#ifdef __aarch64__
struct pt_regs { unsigned long regs[31], sp, pc, pstate; };
#else
struct pt_regs { unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di,
    orig_ax, ip, cs, flags, sp, ss; };
#endif
""",
}


@dataclass(frozen=True, slots=True)
class Calls:
    """Of one thread. times: calls that ended, or began where ends are not looked at. seconds: in
    all of these, those within another one not once more; None without ends, as of static probes.
    """

    tid: int
    times: int
    seconds: float | None


def obstacle() -> str | None:
    """What is known to stand in the way, in words; None if nothing is. Loads nothing."""
    if missing := schedext.missing_capabilities():
        return f"not permitted: needs {', '.join(missing)}"
    if importlib.util.find_spec("bcc") is None and not DEBIAN.exists():
        return "bcc is not installed (apt install python3-bpfcc)"
    return None


def calls(pid: int, function: str, seconds: float, *, timed: bool = False) -> list[Calls]:
    """Calls by threads of a process while it looks, most time first.

    function: NAME or LIBRARY:NAME, kernel:NAME, usdt:PROVIDER:PROBE. timed: also how long those of
    the process's functions take, for which their return addresses are changed: that ends one that
    goes on with another stack before they return (coroutines, Go), or throws an exception of C++
    through them. Functions of the kernel always are. Raises UserError.
    """
    if (why := obstacle()) is not None:
        raise UserError(f"no function can be probed: {why}", "see sched-ctl check")
    bcc = _bcc()
    with _headers():
        try:
            program, timed = _attached(bcc, pid, function, timed)
        except Exception as error:  # bcc raises nothing more special
            said = str(error).strip().splitlines() or [type(error).__name__]
            raise UserError(f"{function} cannot be probed: {said[0]}", HINT) from None
    # It would write to a tracefs that need not be there; the kernel detaches what we leave.
    atexit.unregister(program.cleanup)
    time.sleep(seconds)
    # What ended within calls that have not: those may never do.
    within = {
        int(tid.value): sum(int(call.within) for call in its.at)
        for tid, its in (program["open"].items() if timed else ())
    }
    found = [
        Calls(
            int(tid.value),
            int(sum_.times),
            (sum_.ns + within.get(int(tid.value), 0)) * 1e-9 if timed else None,
        )
        for tid, sum_ in program["calls"].items()
    ]
    return sorted(found, key=lambda one: (-(one.seconds or 0.0), -one.times))


# The stack pointer of a call at its begin and at its end, where registers lie as in FILES: a return
# takes its address off the stack of x86. Not of the kernel's own functions, of which no kernel
# promises it: one that calls itself is counted only where it does so no more.
STACKS = {"x86_64": ("ctx->sp", "ctx->sp - 8"), "aarch64": ("ctx->sp", "ctx->sp")}
NO_STACK = ("0", "0")
LEVELS = 4

HINT = (
    "NAME of the program or a library, as LIBRARY:NAME; kernel:NAME (needs CONFIG_KPROBES); "
    "usdt:PROVIDER:PROBE; methods that a JVM compiles cannot be probed"
)


def _attached(bcc: ModuleType, pid: int, function: str, timed: bool) -> tuple[Any, bool]:
    """The program, attached, and whether it tells times. timed: as for `calls`."""
    of_kernel = function.startswith(KERNEL)
    begins, ends = NO_STACK if of_kernel else STACKS.get(os.uname().machine, NO_STACK)
    text = PROGRAM.replace("FOLLOWED", str(pid)).replace("LEVELS", str(LEVELS))
    text = text.replace("BEGINS", begins).replace("ENDS", ends)
    if function.startswith(STATIC):
        probes = bcc.USDT(pid=pid)
        probes.enable_probe(probe=function.removeprefix(STATIC), fn_name="rings")
        return bcc.BPF(text=text, usdt_contexts=[probes]), False
    program = bcc.BPF(text=text)
    if of_kernel:
        name = function.removeprefix(KERNEL)
        program.attach_kprobe(event=name, fn_name="enters")
        program.attach_kretprobe(event=name, fn_name="leaves")
        return program, True
    library, _, name = function.rpartition(":")
    errors: list[str] = []
    for path in _files(pid, library):
        begin = "enters" if timed else "rings"
        try:
            program.attach_uprobe(name=path, sym=name, fn_name=begin, pid=pid)
        except Exception as error:  # it has no such function
            errors.append(str(error))
            continue
        if timed:
            program.attach_uretprobe(name=path, sym=name, fn_name="leaves", pid=pid)
        return program, timed
    where = f"a mapped file called {library!r}" if library else "its program or libraries"
    raise LookupError(f"{where} has no function {name!r}")


def _files(pid: int, library: str) -> Iterator[str]:
    """Mapped files with code, the program first; where a library is given, those called so."""
    seen = set()
    for line in procfs.lines(f"/proc/{pid}/maps"):
        words = line.split(maxsplit=5)
        if len(words) < 6 or "x" not in words[1] or not words[5].startswith("/"):
            continue
        name = words[5].rpartition("/")[2]
        if words[5] not in seen and name.startswith(library):
            seen.add(words[5])
            yield f"/proc/{pid}/root{words[5]}"


def _bcc() -> ModuleType:
    """bcc, also Debian's from an environment that does not see it. Raises UserError."""
    try:
        if importlib.util.find_spec("bcc") is None:
            spec = importlib.util.spec_from_file_location(
                "bcc", DEBIAN, submodule_search_locations=[str(DEBIAN.parent)]
            )
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules["bcc"] = module
            spec.loader.exec_module(module)
        return importlib.import_module("bcc")
    except (ImportError, OSError) as error:
        sys.modules.pop("bcc", None)
        raise UserError(f"bcc cannot be loaded: {error}", "apt install python3-bpfcc") from None


@contextmanager
def _headers() -> Iterator[None]:
    """Empty files where bcc looks for the kernel's headers (BCC_KERNEL_SOURCE)."""
    with tempfile.TemporaryDirectory(prefix="sched-ctl-bcc-") as folder:
        _write(Path(folder), EMPTY)
        for name, text in FILES.items():
            (Path(folder) / name).write_text(text)
        before = os.environ.get("BCC_KERNEL_SOURCE")
        os.environ["BCC_KERNEL_SOURCE"] = folder
        try:
            yield
        finally:
            os.environ.pop("BCC_KERNEL_SOURCE")
            if before is not None:
                os.environ["BCC_KERNEL_SOURCE"] = before


def _write(folder: Path, names: Sequence[str]) -> None:
    machine = {"x86_64": "x86", "aarch64": "arm64", "riscv64": "riscv"}.get(os.uname().machine, "x")
    for name in names:
        path = folder / name.replace("arch/x/", f"arch/{machine}/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
