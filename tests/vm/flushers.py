"""Operators in a row, as processes, and between two of them a flusher with a timer of its own."""

import contextlib
import functools
import mmap
import os
import random
import signal
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from operators import adopt
from vm.inside import look_until

from sched_ctl.kernel.scheduler import Scheduler, thread_pidfd

__all__ = ["busy_operator", "deaths", "left_alone", "one_timer", "one_timer_seldom"]

TIMEOUT_S = 0.1
HOPS = 3
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


def spin(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


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
            spin(cost_s)
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
    with Scheduler(full=True) as scheduler:
        scheduler.control["hold_us"] = hold_us
        scheduler.slots[1 : len(found.operators) + 1]["query"] = 1
        adopt(scheduler, found.operators)
        for slot, pid in enumerate(found.flushers, 1):
            fd = thread_pidfd(pid)
            scheduler.adopt(fd, 0, flushes=slot)
            os.close(fd)
        scheduler.attach()
        yield scheduler
        assert scheduler.exit() is None


# Soon after each other, the last one first: a tuple just misses each of them. And at other times.
TOGETHER = [0.015 * (HOPS - at) for at in range(HOPS)]
APART = [(0.0, 0.055, 0.020), (0.0, 0.030, 0.090)]
SELDOM_S = 0.25  # between two tuples: of five flushes three or four have nothing to hand on


def one_timer() -> None:
    with row(TOGETHER) as found, scheduled(found, hold_us=0) as scheduler:
        # Where nobody is held, half a timeout and then a whole one at each hop, for good.
        look_until(lambda: found.delay_s(1.0), lambda got: got > 2 * TIMEOUT_S)
        scheduler.control["hold_us"] = HOLD_US
        time.sleep(3)
        look_until(lambda: found.delay_s(1.0), lambda got: got < 0.7 * TIMEOUT_S)
        print(scheduler.counter("held"), scheduler.counter("held_in_vain"))
    for begins_s in APART:
        with row(begins_s) as found, scheduled(found):
            time.sleep(4)
            look_until(lambda row=found: row.delay_s(1.0), lambda got: got < 0.7 * TIMEOUT_S)  # type: ignore[misc]


def one_timer_seldom() -> None:
    """Where tuples are rare, and come at any time, most flushes have nothing to hand on."""
    any_time = random.Random(2)
    with (
        row(TOGETHER, lambda: any_time.expovariate(1 / SELDOM_S)) as found,
        scheduled(found, hold_us=0) as scheduler,
    ):
        scheduler.slots[1]["depth"] = 1  # the source has no clock
        look_until(lambda: found.delay_s(4.0), lambda got: got > 2 * TIMEOUT_S)
        scheduler.control["hold_us"] = HOLD_US
        time.sleep(6)
        look_until(lambda: found.delay_s(8.0), lambda got: got < 0.8 * TIMEOUT_S)
        print(scheduler.counter("held"), scheduler.counter("held_in_vain"))


def left_alone() -> None:
    """Who works by no clock loses little by it, and who does not work is left alone."""
    any_time = random.Random(1)
    for rate in (6, 2):
        with (
            row([0.0], functools.partial(any_time.expovariate, rate)) as found,
            scheduled(found) as scheduler,
        ):
            # It is the source's own flusher that is meant here; of an ingress it would be let be.
            scheduler.slots[1]["depth"] = 1
            time.sleep(2)
            assert scheduler.counter("held") == 0
            scheduler.slots[1]["depth"] = 2
            look_until(lambda row=found: row.delay_s(8.0), lambda got: got < 0.65 * TIMEOUT_S)  # type: ignore[misc]
            print("held", scheduler.counter("held"), "in vain", scheduler.counter("held_in_vain"))
            assert rate == 2 or scheduler.counter("held") > 0
    with row([0.0], lambda: 60.0) as found, scheduled(found) as scheduler:
        time.sleep(4)
        assert scheduler.counter("held") == 0


def busy_operator() -> None:
    """Who never sleeps has no end of a batch to wait for."""
    operator, flusher = forked(lambda: spin(0.01)), forked(lambda: time.sleep(TIMEOUT_S))
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


def deaths() -> None:
    """Flushers and operators that end while one waits for the other."""
    caught = 0
    for victim in ("flushers", "operators"):
        for _ in range(8):
            with row(APART[0], cost_s=0.0001) as found, scheduled(found) as scheduler:
                time.sleep(0.5)
                held = scheduler.counter("held")
                pids = getattr(found, victim)
                until_s = time.monotonic() + 2
                while scheduler.counter("held") == held and time.monotonic() < until_s:
                    time.sleep(0.001)
                caught += scheduler.counter("held") > held
                os.kill(pids[1], signal.SIGKILL)
                os.waitpid(pids[1], 0)
                time.sleep(0.3)
                assert scheduler.exit() is None
                # Whose operator is gone, still has its turn.
                for pid in found.flushers:
                    if pid != pids[1]:
                        runs = _runs(pid)
                        time.sleep(3 * TIMEOUT_S)
                        assert _runs(pid) > runs
    assert caught >= 8  # of 16: else nobody was held when somebody died


def _runs(pid: int) -> int:
    """Times it got a CPU. proc(5), schedstat"""
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[2])
