"""CPU time that costs an emulator next to nothing: instructions that do nothing.

The clock of a guest with exact time counts instructions. A second of it in a loop of Python, whose
jumps have to be looked up, takes a machine two; a second of NOPs some milliseconds, for they are
counted, and translated to nothing.
"""

import ctypes
import functools
import mmap
import platform
import time
from collections.abc import Callable

__all__ = ["burn", "nothing", "spin"]

NOPS = 120  # in a round
FOR_EVER = 2**62  # rounds
SOME = 4000  # rounds: 2 ms at 4 ns an instruction


def _x86_64() -> bytes:
    body = b"\x90" * NOPS + b"\x48\xff\xcf"  # dec rdi
    back = -(len(body) + 6)
    return body + b"\x0f\x85" + back.to_bytes(4, "little", signed=True) + b"\xc3"  # jnz; ret


def _aarch64() -> bytes:
    words = [0xD503201F] * NOPS  # nop
    words += [0xF1000400]  # subs x0, x0, #1
    words += [0x54000001 | (-len(words) & 0x7FFFF) << 5, 0xD65F03C0]  # b.ne; ret
    return b"".join(word.to_bytes(4, "little") for word in words)


@functools.cache
def _code() -> Callable[[int], None]:
    code = {"x86_64": _x86_64, "aarch64": _aarch64}[platform.machine()]()
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page[: len(code)] = code
    call = ctypes.CFUNCTYPE(None, ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    call.page = page  # type: ignore[attr-defined]  # lives as long
    return call


@functools.cache
def _rounds_a_second() -> float:
    began = time.thread_time()
    nothing(SOME // 10)
    return SOME / 10 / max(1e-6, time.thread_time() - began)


def nothing(rounds: int = SOME) -> None:
    """So many rounds of NOPs, at least one."""
    _code()(max(1, rounds))


def burn(seconds: float) -> None:
    """Use so much CPU time, of this thread."""
    until = time.thread_time() + seconds
    while (left_s := until - time.thread_time()) > 0:
        nothing(int(left_s * _rounds_a_second()))


def spin() -> None:
    """Never return. Handlers of signals written in Python do not run."""
    nothing(FOR_EVER)
