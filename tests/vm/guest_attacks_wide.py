"""Attacks on four CPUs in two last-level caches, which take turns: time is exact."""

import os
import time

from operators import adopt, busy
from vm import attacks

from sched_ctl.kernel import schedext
from sched_ctl.kernel.scheduler import Scheduler

KERNELS = ("6.18",)
CPUS = 4
SOCKETS = 2
ICOUNT = True
ICOUNT_SHIFT = 3
TIMEOUT_S = 240

schedext.kernel_types()  # read once, before the checks are forked


def check_a_fork_bomb() -> None:
    attacks.fork_bomb()


def check_changing_affinity() -> None:
    attacks.changing_affinity()


def check_changing_cpus() -> None:
    attacks.changing_cpus()


def check_whom_another_cpu_keeps_waiting() -> None:
    """An operator that waits for CPUs with hogs of a higher class hides nobody from a third CPU.

    There one is more urgent than the other, which is lent a short turn now and then.
    """
    with Scheduler(full=False) as scheduler, busy(3) as pids, busy(2) as hogs:
        for cpu, hog in enumerate(hogs, 1):
            os.sched_setaffinity(hog, {cpu})
        for pid in pids[:2]:
            os.sched_setaffinity(pid, {0})
        os.sched_setaffinity(pids[2], {1})
        time.sleep(0.1)
        os.sched_setaffinity(pids[2], {1, 2})
        scheduler.slots["lead_us"][1:4] = (300_000_000, 0, 0)
        scheduler.control["starvation_ms"] = 10_000
        adopt(scheduler, pids)
        scheduler.attach()
        time.sleep(0.5)
        before = scheduler.threads["runs"][1:4].copy()
        time.sleep(1)
        runs = scheduler.threads["runs"][1:4] - before
        print(runs, scheduler.threads[["set", "cpu", "only_cpu"]][1:4], scheduler.stats()["lent"])
        assert runs[1] >= 10, runs
