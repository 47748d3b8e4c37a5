"""CPUs that go and come, threads that may use now this one and now that, and many that are born.

In real time, where two virtual CPUs do things at the very same moment: with exact time they take
turns.
"""

import os
import random
import time
from pathlib import Path

from operators import adopt, busy, cpu_s
from vm import attacks
from vm.inside import look_until, only_on
from vm.machine import (
    above_all,
    alive,
    everybody_runs,
    journal,
    loaded,
    no_cpu_idles,
    progress,
    schedule,
    spinning,
    standing_still,
    steady,
    wait_for,
)

from sched_ctl.backends.scx.backend import Scx
from sched_ctl.kernel import schedext

KERNELS = ("6.18", "7.3")
CPUS = 2
TIMEOUT_S = 180

# Order decides, and hints count, however long a slow guest takes between two steps.
PATIENT = steady(gap=30.0, ttl=20.0)

schedext.kernel_types()  # read once, before the checks are forked


def check_cpu_hotplug() -> None:
    """The kernel ends the scheduler when a CPU goes or comes; it is loaded again at once."""
    online = Path("/sys/devices/system/cpu/cpu1/online")
    with spinning(3) as threads:
        backend = Scx(journal(), PATIENT)
        with standing_still(thread.pid for thread in threads):
            backend.apply(schedule(threads, [3.0, 2.0, 1.0]))
        try:
            for value in ("0", "1"):
                online.write_text(value)
                wait_for("disabled")
                applied = backend.apply(schedule(threads, [3.0, 2.0, 1.0]))
                assert not applied.problems
                wait_for("enabled")
                look_until(
                    lambda: progress(threads, 1.0), lambda got: got[0] > 0.6 and got[2] < 0.3
                )
        finally:
            online.write_text("1")
        backend.restore()


@only_on("7.3")
def check_affinity_changes() -> None:
    with spinning(6) as threads:
        backend = Scx(journal(), PATIENT)
        with standing_still(thread.pid for thread in threads):
            backend.apply(schedule(threads, list(range(6))))
        rng = random.Random(1)
        end = time.monotonic() + 2
        while time.monotonic() < end:
            cpus = rng.choice([{0}, {1}, {0, 1}])
            os.sched_setaffinity(rng.choice(threads).tid, cpus)
            time.sleep(0.002)
        # The least urgent two, each alone on a CPU that the others may not use.
        for thread in threads:
            os.sched_setaffinity(thread.tid, {0})
        os.sched_setaffinity(threads[0].tid, {1})
        time.sleep(0.5)
        # On CPU 0 five share what is fairly 0.2 for each.
        look_until(lambda: progress(threads, 1.0), lambda got: min(got[0], got[5]) > 0.4)
        assert schedext.attached() == "sched_ctl"
        backend.restore()
        everybody_runs(threads)


def check_affinity_storm() -> None:
    """Affinity changes while threads run and wait: nobody runs where it may not, all get on."""
    above_all()
    with (
        busy(3) as operators,
        busy(5) as hogs,
        loaded([*operators, *hogs], full=True) as scheduler,
    ):
        adopt(scheduler, operators)
        scheduler.control["starvation_ms"] = 20  # rescues meet changes of affinity
        scheduler.control["rescue_ms"] = 1
        scheduler.slots["lead_us"][1:4] = (0, 300_000_000, 600_000_000)
        scheduler.attach()
        everybody = [*operators, *hogs]
        before = [cpu_s(pid) for pid in everybody]
        rng = random.Random(1)
        for _ in range(600):
            cpus = rng.choice([{0}, {1}, {0, 1}])
            pid = rng.choice(everybody)
            os.sched_setaffinity(pid, cpus)
            where = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[36])
            assert where in cpus or not running(pid), (where, cpus)
            alive(scheduler)
            if rng.random() < 0.2:
                time.sleep(0.001)
        for pid in everybody:
            os.sched_setaffinity(pid, {0, 1})
        end = time.monotonic() + 40
        while time.monotonic() < end:
            time.sleep(0.2)
            got = [cpu_s(pid) - b for pid, b in zip(everybody, before, strict=True)]
            if min(got) > 0.01:
                break
        print([f"{s:.3f}" for s in got], scheduler.stats())
        assert min(got) > 0.01, got
        no_cpu_idles()
        alive(scheduler)


@only_on("6.18")
def check_a_fork_bomb() -> None:
    attacks.fork_bomb()


@only_on("6.18")
def check_threads_born_and_dying() -> None:
    attacks.threads_without_end()


def running(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "R"
