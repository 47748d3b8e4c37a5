"""Kills a controller at random moments, restores, and looks whether all is as it was.

    ./dev run python -m stress.kills [--rounds 500] [--seed N]

A controller writes nice values of two lab engines a hundred times a second. It gets SIGKILL at some
moment of its first 0.8 s; so does, in every third round, the `restore` that follows, and then there
is another one. Every thread of both engines is compared with what it was before.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sched_ctl.config.settings import Section, Settings
from sched_ctl.drivers import DriverKind, Target
from sched_ctl.drivers.lab import driver
from sched_ctl.kernel import procfs
from sched_ctl.lab import engine as lab
from sched_ctl.service import session

WORKLOADS = Path(__file__).parents[2] / "bench" / "workloads"
OPTIONS = ("--utilisation", "0.05", "--cpus", "1", "--duration", "86400")
LONGEST_S = 0.8


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("--rounds", type=int, default=500)
    arguments.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = arguments.parse_args()
    os.environ["SCHED_CTL_MACHINE_LOCK"] = "no"  # others' controllers are not ours to stop
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended
    chance = random.Random(given.seed)
    wrong = changed = 0
    with two_engines() as (settings, kind, pids):
        before = states(pids)
        for number in range(given.rounds):
            killed_after(chance.uniform(0, LONGEST_S), lambda: session.run(settings, {"lab": kind}))
            changed += states(pids) != before
            if number % 3 == 0:
                killed_after(
                    chance.uniform(0, 0.02), lambda: session.put_back(Path(settings.run_dir))
                )
            problems = in_child(lambda: session.put_back(Path(settings.run_dir)))
            after = states(pids)
            if after != before or problems:
                wrong += 1
                different = {tid: (before.get(tid), after.get(tid)) for tid in before | after}
                print(number, {t: v for t, v in different.items() if v[0] != v[1]}, problems)
                before = after
            if number % 50 == 49:
                print(f"{number + 1} rounds, {changed} left something, {wrong} wrong", flush=True)
    print(f"seed {given.seed}: {given.rounds} rounds, {changed} left something, {wrong} wrong")
    sys.exit(bool(wrong) or not changed)


@contextmanager
def two_engines() -> Iterator[tuple[Settings, DriverKind, tuple[int, int]]]:
    """Lab engines, by their pids, and what a controller orders them by, each 10 ms."""
    with (
        tempfile.TemporaryDirectory() as folder,
        lab.running(WORKLOADS / "etl.graph", OPTIONS) as one,
        lab.running(WORKLOADS / "stats.graph", OPTIONS) as two,
    ):
        pids = (one.pid, two.pid)
        time.sleep(1)  # the last threads get their names
        settings = Settings(
            policy=(Section(policy="random", options={}),),
            run_dir=folder,
            backend="nice",
            period=0.01,
            calm_period=0,
            cpu_limit=0,
            discover=0.1,
        )
        targets = [Target("lab", str(pid), pid) for pid in pids]
        yield settings, DriverKind("lab", lambda: targets, driver.connect, prompt=True), pids


def killed_after(seconds: float, run: Callable[[], object]) -> None:
    """Run it in a child until then; the child has everything imported already."""
    child = child_of(run)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def in_child(run: Callable[[], object]) -> str:
    """Run it in a child; how that ended, in words; nothing if well."""
    _, status = os.waitpid(child_of(run), 0)
    return "" if status == 0 else f"restore ended with status {status}"


def child_of(run: Callable[[], object]) -> int:
    assert threading.active_count() == 1
    child = os.fork()
    if child:
        return child
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with suppress(KeyboardInterrupt):
            os._exit(bool(run()))
    finally:
        os._exit(3)


def states(pids: tuple[int, ...]) -> dict[int, tuple[int, int]]:
    """Nice value and policy by thread."""
    found = {tid: procfs.stat(pid, tid) for pid in pids for tid in procfs.tids(pid)}
    return {tid: (one.nice, one.policy) for tid, one in found.items() if one is not None}


if __name__ == "__main__":
    main()
