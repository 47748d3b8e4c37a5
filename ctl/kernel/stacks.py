"""Our program that keeps stacks of sleeps, loaded: who sleeps where, how long, woken from where.

What each part means is written in bpf/stacks.h and bpf/stacks.bpf.c. It takes 8 MB of the kernel's
memory for stacks, and is for a look of some seconds: nothing that runs all the time loads it.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from sched_ctl.kernel import procfs, tracing
from sched_ctl.kernel.libbpf import Object

__all__ = ["OBJECT", "Sleeps", "Stacks"]

OBJECT = Path(__file__).resolve().parents[1] / "bin" / "stacks.bpf.o"
# The second where data has no symbols, as for waits (kernel/tracing.py).
_WAKING = ("stacks_waking", "stacks_waking_noted")
Addresses = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sleeps:
    """Sleeps of one thread at one place. seconds: in all of them. waker: thread id, 0 = an
    interrupt, -1 = it still sleeps. Stacks: innermost address first, empty where none is known.
    """

    tid: int
    times: int
    seconds: float
    kernel: Addresses
    user: Addresses
    waker: int
    waker_kernel: Addresses
    waker_user: Addresses


class Stacks:
    """Follows these processes until it is closed. Raises `tracing.Unavailable`."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = tuple(pids)
        self._object = tracing.look_at(self._pids, OBJECT, _WAKING, "stacks_switch")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def program(self) -> Object:
        """For what is not offered here: tests."""
        return self._object

    def close(self) -> None:
        self._object.close()

    def read(self) -> list[Sleeps]:
        """All sleeps so far, also those that last; the longest first."""
        stack = cache(self._stack)
        found = [*self._ended(stack), *self._lasting(stack)]
        return sorted(found, key=lambda one: -one.seconds)

    def _ended(self, stack: Callable[[int], Addresses]) -> Iterable[Sleeps]:
        keys, sums = self._object.table("sleeps", "sleep_sum")
        kinds = keys.view(self._object.btf.dtype("sleep_kind")).reshape(-1)
        for kind, total in zip(kinds, sums, strict=True):
            yield Sleeps(
                int(kind["tid"]),
                int(total["times"]),
                int(total["ns"]) * 1e-9,
                stack(int(kind["kernel"])),
                stack(int(kind["user"])),
                int(kind["waker"]),
                stack(int(kind["waker_kernel"])),
                stack(int(kind["waker_user"])),
            )

    def _lasting(self, stack: Callable[[int], Addresses]) -> Iterable[Sleeps]:
        """A kernel may hide what happens while some threads have the CPU (seen where a supervisor's
        were hidden): a thread that was woken and switched in meanwhile, and has ended, is left out.
        """
        keys, begun = self._object.table("sleepers", "asleep")
        there = {tid for pid in self._pids for tid in procfs.tids(pid)}
        now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        for tid, one in zip(keys.view("<u4").reshape(-1).tolist(), begun, strict=True):
            if tid not in there:
                continue
            seconds = max(0, now_ns - int(one["since_ns"])) * 1e-9
            places = stack(int(one["kernel"])), stack(int(one["user"]))
            yield Sleeps(tid, 1, seconds, *places, -1, (), ())

    def _stack(self, number: int) -> Addresses:
        """Empty: there was none, or no room for it."""
        if number < 0:
            return ()
        raw: Any = self._object.lookup("stacks", number.to_bytes(4, "little"))
        return () if raw is None else tuple(x for x in np.frombuffer(raw, "<u8").tolist() if x)
