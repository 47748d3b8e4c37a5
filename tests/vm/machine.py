"""Loads for checks in a guest: processes that spin, threads by the thousand, and their progress."""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from burning import spin
from vm.inside import look_until

from sched_ctl.backends.undo.journal import Journal
from sched_ctl.drivers import threads
from sched_ctl.kernel import procfs, schedext
from sched_ctl.kernel.scheduler import Scheduler
from sched_ctl.model.options import ScxOptions
from sched_ctl.model.policy import Spacing, form
from sched_ctl.model.schedule import Group, Schedule
from sched_ctl.model.topology import Thread

__all__ = [
    "above_all",
    "alive",
    "cpu_s",
    "everybody_runs",
    "journal",
    "loaded",
    "native_threads",
    "no_cpu_idles",
    "progress",
    "schedule",
    "spinning",
    "standing_still",
    "steady",
    "thread_of",
    "wait_for",
]

STATE = Path("/sys/kernel/sched_ext/state")
DEADLINE_S = 20.0  # of guest time


def above_all() -> None:
    """Let this thread run whenever it wants to; what it starts later is normal again.

    An emulated guest is slow: beside loads that take all CPUs a check would not get on.
    """
    policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
    os.sched_setscheduler(0, policy, os.sched_param(1))


@contextlib.contextmanager
def spinning(count: int) -> Iterator[list[Thread]]:
    """So many forked processes that use all CPU time they get."""
    pids = []
    try:
        for _ in range(count):
            pid = os.fork()
            if pid == 0:
                spin()
            pids.append(pid)
        above_all()
        yield [thread_of(pid) for pid in pids]
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@contextlib.contextmanager
def standing_still(pids: Iterable[int]) -> Iterator[None]:
    """Stops these processes meanwhile: of CPUs that take turns, each busy one costs as much."""
    stopped = list(pids)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def loaded(pids: Iterable[int], **options: Any) -> Scheduler:
    """A scheduler, not yet attached. These processes stand still while it is verified."""
    with standing_still(pids):
        return Scheduler(**options)


def thread_of(pid: int, tid: int | None = None) -> Thread:
    found = threads.thread_of(pid, tid if tid is not None else pid)
    assert found is not None, f"no thread {tid or pid}"
    return found


@contextlib.contextmanager
def native_threads(count: int) -> Iterator[list[Thread]]:
    """So many sleeping threads of one new process."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        libc = ctypes.CDLL(None)
        attributes = (ctypes.c_char * 64)()
        libc.pthread_attr_init(attributes)
        libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(32768))
        handle = ctypes.c_void_p()
        for _ in range(count - 1):
            failed = libc.pthread_create(ctypes.byref(handle), attributes, libc.pause, None)
            if failed:
                os._exit(1)
        os.write(writer, b"x")
        while True:
            signal.pause()
    os.close(writer)
    try:
        assert os.read(reader, 1) == b"x", "the process could not make its threads"
        above_all()
        yield [thread_of(pid, tid) for tid in procfs.tids(pid)]
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def cpu_s(thread: Thread) -> float:
    """CPU time so far."""
    line = Path(f"/proc/{thread.pid}/task/{thread.tid}/schedstat").read_text()
    return int(line.split()[0]) / 1e9


def progress(threads: Sequence[Thread], seconds: float) -> list[float]:
    """CPU time that each gets within so many seconds, as a share of one CPU."""
    before, began = [cpu_s(thread) for thread in threads], time.monotonic()
    time.sleep(seconds)
    after, took = [cpu_s(thread) for thread in threads], time.monotonic() - began
    return [round((b - a) / took, 3) for a, b in zip(before, after, strict=True)]


def everybody_runs(threads: Sequence[Thread], least_s: float = 0.2) -> None:
    """Wait until each has used that much CPU time from now on."""
    before, began = [cpu_s(thread) for thread in threads], time.monotonic()
    while True:
        got = [cpu_s(thread) - used for thread, used in zip(threads, before, strict=True)]
        if min(got) >= least_s:
            return
        # With nothing but its rescues a thread would need several times as long.
        assert time.monotonic() - began < DEADLINE_S, f"not everybody runs: {got} s"
        time.sleep(0.1)


def schedule(
    threads: Sequence[Thread],
    static: Sequence[float] | float = 0.0,
    *,
    per_second: Sequence[float] | float = 0.0,
    per_tuple: float = 0.0,
    scope: str = "test",
    shares: Sequence[float] | None = None,
) -> Schedule:
    """A schedule of these threads; with shares, each is a group of its own."""
    n = len(threads)
    return Schedule(
        scope=scope,
        policy="test",
        spacing=Spacing.LINEAR,
        threads=tuple(threads),
        operators=tuple(f"q/{i}" for i in range(n)),
        form=form(
            n,
            static=np.asarray(static),
            per_second=np.asarray(per_second),
            per_tuple=per_tuple,
        ),
        head_age_s=np.zeros(n),
        queue_size=np.zeros(n),
        groups={str(i): Group(share, (i,)) for i, share in enumerate(shares or ())},
    )


def journal() -> Journal:
    return Journal(Path("/run/sched-ctl/journal"))


def wait_for(state: str, deadline_s: float = 60.0) -> float:
    """Wait until sched_ext is in this state; returns how long that took."""
    began = time.monotonic()
    while STATE.read_text().strip() != state:
        took = time.monotonic() - began
        assert took < deadline_s, f"still {STATE.read_text().strip()} after {took:.1f} s"
        time.sleep(0.01)
    return time.monotonic() - began


def steady(**options: Any) -> ScxOptions:
    """Options with which scx stays in the mode that "auto" begins with.

    By itself it leaves partial mode when others keep operators from the CPU, and a check that goes
    before everybody else (`above_all`) does. Operators go first unless told otherwise.
    """
    mode = "partial" if schedext.server_files() else "full"
    return ScxOptions(**{"mode": mode, "precedence": "engine", **options})


def idle_share(seconds: float) -> list[float]:
    """Share of the next seconds in which each CPU has nothing to do. proc(5), /proc/stat"""
    before = ticks()
    time.sleep(seconds)
    passed = [
        [b - a for a, b in zip(*both, strict=True)] for both in zip(before, ticks(), strict=True)
    ]
    return [cpu[3] / max(1, sum(cpu)) for cpu in passed]


def ticks() -> list[list[int]]:
    lines = Path("/proc/stat").read_text().splitlines()
    return [
        [int(word) for word in line.split()[1:9]] for line in lines[1 : (os.cpu_count() or 1) + 1]
    ]


def no_cpu_idles() -> None:
    look_until(lambda: idle_share(1.0), lambda idle: max(idle) < 0.1)


def alive(scheduler: Scheduler) -> None:
    assert scheduler.exit() is None, scheduler.exit()
