"""Operators in a row, as processes, and between two of them a flusher with a timer of its own."""

import contextlib
import mmap
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from burning import burn
from operators import adopt
from vm.machine import loaded

from sched_ctl.kernel.scheduler import Scheduler, thread_pidfd
from support import wait_until

__all__ = ["busy_operator", "deaths", "no_timers", "woken_by_others"]

TIMEOUT_S = 0.1
TUPLES = 1 << 14  # the last ones, whose delays are kept
HOLD_US = 250_000


@dataclass
class Row:
    """A source, operators, a sink: each but the last with a flusher."""

    operators: list[int]
    flushers: list[int]
    delays: "np.ndarray[tuple[int], np.dtype[np.float64]]"  # how many, then each tuple's

    def delay_s(self, seconds: float) -> float:
        """Mean of the tuples that leave in the next seconds."""
        first = int(self.delays[0])
        time.sleep(seconds)
        last = int(self.delays[0])
        assert first < last
        return float(self.delays[places(first, last)].mean())


def places(first: int, last: int) -> "np.ndarray[tuple[int], np.dtype[np.intp]]":
    return np.arange(first, last) % (TUPLES - 1) + 1


def forked(body: Callable[[], None]) -> int:
    pid = os.fork()
    if not pid:
        while True:
            body()
    return pid


@contextlib.contextmanager
def row(
    begins_s: Sequence[float], pause_s: Callable[[], float] = lambda: 0.004, cost_s: float = 0.0005
) -> Iterator[Row]:
    """begins_s: when the timer of each flusher is first set, from the source on.

    pause_s: of the source, between two tuples. cost_s: of a batch, in each operator.
    """
    memory = mmap.mmap(-1, 8 * TUPLES)
    delays = np.frombuffer(memory, dtype=np.float64)
    made = [os.pipe() for _ in begins_s]  # the buffers of each operator
    handed = [os.pipe() for _ in begins_s]  # what its flusher has handed on
    for end, _ in made:
        os.set_blocking(end, False)
    began_s = time.monotonic() + 0.2

    def source() -> None:
        time.sleep(pause_s())
        os.write(made[0][1], struct.pack("d", time.monotonic()))

    def operator(at: int) -> Callable[[], None]:
        def work() -> None:
            batch = os.read(handed[at - 1][0], 65536)
            burn(cost_s)
            if at < len(made):
                os.write(made[at][1], batch)
                return
            born = np.frombuffer(batch, dtype=np.float64)
            count = int(delays[0])
            delays[places(count, count + len(born))] = time.monotonic() - born
            delays[0] = count + len(born)

        return work

    def flusher(at: int) -> Callable[[], None]:
        due_s = began_s + begins_s[at]

        def flush() -> None:
            nonlocal due_s
            time.sleep(max(0.0, due_s - time.monotonic()) if due_s else TIMEOUT_S)
            due_s = 0.0
            with contextlib.suppress(BlockingIOError):
                os.write(handed[at][1], os.read(made[at][0], 65536))

        return flush

    found = Row([], [], delays)
    try:
        found.operators.append(forked(source))
        found.operators += [forked(operator(at)) for at in range(1, len(begins_s) + 1)]
        found.flushers += [forked(flusher(at)) for at in range(len(begins_s))]
        yield found
    finally:
        for pid in (*found.operators, *found.flushers):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


@contextlib.contextmanager
def scheduled(found: Row, hold_us: int = HOLD_US) -> Iterator[Scheduler]:
    with loaded([*found.operators, *found.flushers], full=True) as scheduler:
        scheduler.control["hold_us"] = hold_us
        tie(scheduler, found)
        scheduler.attach()
        yield scheduler
        assert scheduler.exit() is None


def tie(scheduler: Scheduler, found: Row, first_slot: int = 1) -> None:
    """Its operators to slots from there on, and its flushers to these."""
    scheduler.slots[first_slot : first_slot + len(found.operators)]["query"] = 1
    adopt(scheduler, found.operators, first_slot)
    for slot, pid in enumerate(found.flushers, first_slot):
        fd = thread_pidfd(pid)
        scheduler.adopt(fd, 0, flushes=slot)
        os.close(fd)


def batches() -> None:
    burn(0.02)
    time.sleep(0.02)


@contextlib.contextmanager
def rings(*flush: Callable[[], None]) -> Iterator[Row]:
    """An operator that works in batches, and its flushers."""
    pids = [forked(batches), *(forked(one) for one in flush)]
    try:
        yield Row(pids[:1], pids[1:], np.empty(0))
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def by_its_timer() -> None:
    time.sleep(0.05)


def woken_by_others() -> None:
    """Held is whom its own timer has woken; not whom a thread has, nor that of an ingress."""
    reader, writer = os.pipe()

    def wakes() -> None:
        time.sleep(0.05)
        os.write(writer, b"x")

    waker = forked(wakes)
    try:
        with rings(lambda: bytes_of(reader)) as found, scheduled(found) as scheduler:
            runs = _runs(found.flushers[0])
            time.sleep(3)
            assert _runs(found.flushers[0]) > runs + 20
            assert scheduler.counter("held") == 0
    finally:
        os.kill(waker, signal.SIGKILL)
        os.waitpid(waker, 0)
    with rings(by_its_timer) as found, scheduled(found) as scheduler:
        scheduler.slots[1]["depth"] = 1
        time.sleep(1)
        assert scheduler.counter("held") == 0
        scheduler.slots[1]["depth"] = 2
        wait_until(lambda: scheduler.counter("held") > 5, 20)


def bytes_of(reader: int) -> None:
    os.read(reader, 64)


def no_timers() -> None:
    """Where the kernel starts no timer nobody is held, and who was goes on."""
    with rings(by_its_timer, by_its_timer, by_its_timer) as found, scheduled(found) as scheduler:
        fault = scheduler.program.btf.enum("fault")["FAULT_TIMERS"]
        wait_until(lambda: scheduler.counter("held") > 5, 20)
        scheduler.control["fault"] = fault
        wait_until(lambda: scheduler.counter("no_timers") > 0, 20)
        for pid in found.flushers:
            runs = _runs(pid)
            wait_until(lambda pid=pid, runs=runs: _runs(pid) > runs + 10, 20)  # type: ignore[misc]


def busy_operator() -> None:
    """Who never sleeps has no end of a batch to wait for."""
    operator, flusher = forked(lambda: burn(0.01)), forked(lambda: time.sleep(TIMEOUT_S))
    try:
        with scheduled(Row([operator], [flusher], np.empty(0))) as scheduler:
            time.sleep(1)
            held, runs = scheduler.counter("held"), _runs(flusher)
            time.sleep(3)
            more = scheduler.counter("held") - held
            print("held", held, "and then", more)
            assert more <= 2 and _runs(flusher) - runs > 15  # of 29
    finally:
        for pid in (operator, flusher):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def deaths(rounds: int) -> None:
    """Flushers and operators that end while one waits for the other.

    All under one scheduler: to verify it anew takes longer than a round.
    """
    with Scheduler(full=True) as scheduler:
        scheduler.control["hold_us"] = HOLD_US
        scheduler.attach()
        for number in range(2 * rounds):
            with rings(by_its_timer, by_its_timer) as found:
                one_dies(scheduler, found, ("flushers", "operators")[number % 2], 1 + 2 * number)
        assert scheduler.exit() is None


def one_dies(scheduler: Scheduler, found: Row, victim: str, first_slot: int) -> None:
    held = scheduler.counter("held")
    tie(scheduler, found, first_slot)
    wait_until(lambda: scheduler.counter("held") > held, 20)
    pid = getattr(found, victim)[0]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    # Whose operator is gone, still has its turn.
    for other in found.flushers:
        if other != pid:
            runs = _runs(other)
            wait_until(lambda other=other, runs=runs: _runs(other) > runs + 2, 20)  # type: ignore[misc]
    assert scheduler.exit() is None


def _runs(pid: int) -> int:
    """Times it got a CPU. proc(5), schedstat"""
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[2])
