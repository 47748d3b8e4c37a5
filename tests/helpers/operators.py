"""For checks inside guests: threads that use the CPU, adopted by the BPF scheduler."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from burning import nothing

from sched_ctl.kernel.scheduler import Scheduler, thread_pidfd

SCHED_EXT = 7

__all__ = ["SCHED_EXT", "adopt", "against_reference", "busy", "cpu_s", "shares", "start"]


@contextlib.contextmanager
def start(count: int, body: Callable[[], object]) -> Iterator[list[int]]:
    """Processes that repeat `body`, killed at the end."""
    pids: list[int] = []
    try:
        for _ in range(count):
            pid = os.fork()
            if not pid:
                while True:
                    body()
            pids.append(pid)
        yield pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@contextlib.contextmanager
def busy(count: int) -> Iterator[list[int]]:
    """Processes that use all the CPU they get."""
    with start(count, nothing) as pids:
        yield pids


def adopt(scheduler: Scheduler, pids: Sequence[int], first_slot: int = 1) -> None:
    """One slot a process, active; what else is in the slots is for the caller to fill before."""
    for slot, pid in enumerate(pids, first_slot):
        scheduler.slots[slot]["flags"] |= scheduler.slot_flags["SLOT_ACTIVE"]
        fd = thread_pidfd(pid)
        scheduler.adopt(fd, slot)
        os.close(fd)
        os.sched_setscheduler(pid, SCHED_EXT, os.sched_param(0))


def cpu_s(pid: int) -> float:
    """CPU time used so far. proc(5), schedstat"""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) * 1e-9


def shares(pids: Sequence[int], seconds: float, settle_s: float = 0.3) -> list[float]:
    """Share of one CPU that each process gets in the next seconds."""
    time.sleep(settle_s)  # let what was just changed take hold; the figure is over what follows
    before, began = [cpu_s(pid) for pid in pids], time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    return [(cpu_s(pid) - used) / took for pid, used in zip(pids, before, strict=True)]


def guaranteed(found: Sequence[float]) -> bool:
    """Whether all that is no operator got the guaranteed 5%, and a hog what the others left of it.

    found: shares of two operators and a hog, all of which always want the CPU. The kernel's own
    threads and the guest's shell are no operators either.
    """
    return 0.04 < 1.0 - found[0] - found[1] < 0.08 and found[2] > 0.02


def against_reference(scheduler: Scheduler, *, one_queue: bool) -> tuple[int, int]:
    """Choices of one of several waiting threads that were not the most urgent one's, and all.

    By the trace, for policies that go by age. one_queue: also those from a single queue, which were
    made when the threads were queued.
    """
    names = scheduler.program.btf.enum("trace_event")
    slope = scheduler.control["queues"]["slope"].astype(float)[scheduler.slots["queue"]]
    waiting: dict[int, int] = {}  # slot -> origin
    lent = 0  # the slot whose short turn is nobody's choice
    wrong = choices = picked_ns = 0
    for record in scheduler.trace():
        slot = int(record["slot"])
        if record["event"] == names["TRACE_ENQUEUE"]:
            waiting[slot] = int(record["origin_ns"])
        elif record["event"] == names["TRACE_PICK"]:
            picked_ns = int(record["time_ns"])
        elif record["event"] == names["TRACE_LEND"]:
            lent = slot
        elif record["event"] == names["TRACE_RUN"] and slot in waiting:
            # A single queue needs no comparison: then there is no record of the choice.
            at_ns = picked_ns or int(record["time_ns"])
            if len(waiting) > 1 and (picked_ns or one_queue) and slot != lent:
                # As the scheduler counts: whole units of 1.024 us, keys of 256 ns.
                urgency = {s: slope[s] * (max(0, at_ns - o) >> 10) for s, o in waiting.items()}
                choices += 1
                wrong += urgency[slot] + slope[slot] + 1 < max(urgency.values())
            del waiting[slot]
            picked_ns = lent = 0
    return wrong, choices
