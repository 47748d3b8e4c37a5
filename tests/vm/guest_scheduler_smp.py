"""The BPF scheduler on two CPUs: shares and caps of groups, and how fast each CPU is to be."""

import os
import signal
import time
from dataclasses import replace

from burning import burn
from operators import adopt, busy, shares, start
from vm.inside import enough_on, look_until, only_on
from vm.machine import above_all, journal, loaded, schedule, standing_still, thread_of

from sched_ctl.backends.scx.backend import Scx
from sched_ctl.kernel import schedext
from sched_ctl.kernel.scheduler import Scheduler
from sched_ctl.model.options import ScxOptions

KERNELS = ("6.18", "7.3")
CPUS = 2
ICOUNT = True
ICOUNT_SHIFT = 2
TIMEOUT_S = 180

MOST_LEAD_US = 1 << 30  # sched_ctl.h

schedext.kernel_types()  # read once, before the checks are forked


def give_groups(scheduler: Scheduler, weights: list[int], caps: list[int]) -> None:
    """A queue and a group for each slot, from slot 1 on."""
    one = scheduler.limits["SHARE_ONE"]
    for index, (weight, cap) in enumerate(zip(weights, caps, strict=True)):
        scheduler.slots[index + 1]["queue"] = index
        queue = scheduler.control["queues"][index]
        queue["slope"], queue["group"] = 1024, index
        scheduler.control["groups"][index]["share"] = weight * one
        scheduler.control["groups"][index]["cap"] = cap
    scheduler.control["nr_queues"] = len(weights)
    scheduler.control["nr_groups"] = len(weights)


def assert_divided(pids: list[int], wanted: list[float], within: float) -> None:
    def parts() -> list[float]:
        found = shares(pids, 2)
        return [round(share / sum(found), 3) for share in found]

    look_until(
        parts,
        lambda found: all(abs(f - w) < within for f, w in zip(found, wanted, strict=True)),
    )


@only_on("7.3")
def check_shares_of_groups() -> None:
    """4:2:1:1 within 3% of the whole; changed while they run; even after detaching."""
    above_all()
    with busy(4) as pids, loaded(pids, full=False) as scheduler:
        give_groups(scheduler, [4, 2, 1, 1], [0] * 4)
        adopt(scheduler, pids)
        scheduler.attach()
        assert_divided(pids, [0.5, 0.25, 0.125, 0.125], 0.03)
        give_groups(scheduler, [1, 1, 2, 4], [0] * 4)
        assert_divided(pids, [0.125, 0.125, 0.25, 0.5], 0.03)
        scheduler.detach()
        assert_divided(pids, [0.25] * 4, 0.05)


@enough_on("6.18")  # our arithmetic
def check_who_has_a_cpu_alone_makes_nobody_wait_on_another() -> None:
    """Each of two on the other CPU has half, though one of them slept once."""
    above_all()
    with busy(3) as pids, loaded(pids, full=False) as scheduler:
        give_groups(scheduler, [1, 1, 1], [0] * 3)
        adopt(scheduler, pids)
        for pid, cpu in zip(pids, (0, 1, 1), strict=True):
            os.sched_setaffinity(pid, {cpu})
        scheduler.attach()
        time.sleep(2)
        os.kill(pids[1], signal.SIGSTOP)
        time.sleep(0.1)
        os.kill(pids[1], signal.SIGCONT)
        found = shares(pids, 0.5, settle_s=0.0)
        print([round(share, 3) for share in found])
        assert min(found[1:]) > 0.4, found


@enough_on("6.18")  # our marks
def check_a_lent_turn_ends_when_its_thread_sleeps() -> None:
    """Who then wakes up on an idle CPU has a turn of its own."""
    with Scheduler(full=False) as scheduler, start(1, lambda: time.sleep(0.2)) as pids:
        adopt(scheduler, pids)
        scheduler.attach()
        time.sleep(0.5)
        runs = int(scheduler.threads["runs"][1])
        scheduler.threads["lent"][1] = scheduler.threads["rescued"][1] = 1
        time.sleep(0.5)
        print(scheduler.stats())
        assert scheduler.threads["runs"][1] > runs
        assert scheduler.threads[["lent", "rescued"]][1].tolist() == (0, 0)


@enough_on("6.18")  # our count; 7.3 has the cap of one that sleeps
def check_concurrency_cap() -> None:
    """Of one group with a cap of one three threads use one CPU, in order; others the other."""
    above_all()
    with busy(4) as pids, loaded(pids, full=False) as scheduler:
        give_groups(scheduler, [1, 1], [1, 0])
        scheduler.slots[1:4]["queue"] = 0
        scheduler.slots[4]["queue"] = 1
        adopt(scheduler, pids)
        scheduler.attach()
        look_until(
            lambda: shares(pids, 2),
            # FCFS among the three
            lambda got: 0.8 < sum(got[:3]) < 1.05 and got[3] > 0.8 and min(got[:3]) > 0.1,
        )
        for first in (0, 1):
            scheduler.slots[1:4]["lead_us"] = 0
            scheduler.slots[1 + first]["lead_us"] = MOST_LEAD_US
            look_until(
                lambda: shares(pids, 2),
                lambda got, first=first: got[first] > 0.8 and sum(got[:3]) < 1.05,  # type: ignore[misc]
            )


@enough_on("6.18")  # our count
def check_a_wake_up_keeps_to_the_cap() -> None:
    """Above who runs beside it by any measure, but of a query that runs on the other CPU."""
    above_all()
    with busy(2) as hogs, start(1, burn_a_little) as sleepers:
        pids = [*hogs, *sleepers]
        with loaded(pids, full=False) as scheduler:
            give_groups(scheduler, [1, 1], [1, 0])
            scheduler.slots[3]["lead_us"] = MOST_LEAD_US
            scheduler.control["preempt_times"] = 2
            for pid, cpu in zip(pids, (0, 1, 1), strict=True):
                os.sched_setaffinity(pid, {cpu})
            adopt(scheduler, pids)
            scheduler.attach()
            look_until(lambda: shares(pids, 2), lambda got: min(got[:2]) > 0.8 and got[2] < 0.1)


@enough_on("6.18")  # our average
def check_the_governor_is_asked_for_no_more_than_is_used() -> None:
    """Of a CPU that no operator runs on any more, beside one that is busy, in partial mode."""
    above_all()
    with busy(2) as pids, loaded(pids, full=False) as scheduler:
        usages = scheduler.program.array(".bss", "usages")
        adopt(scheduler, pids)
        for cpu, pid in enumerate(pids):
            os.sched_setaffinity(pid, {cpu})
        scheduler.attach()

        def asked() -> list[float]:
            time.sleep(1)
            return [round(int(seen) / 1024, 2) for seen in usages["target"][:CPUS]]

        look_until(asked, lambda found: min(found) > 0.9)
        os.kill(pids[1], signal.SIGSTOP)
        look_until(asked, lambda found: found[0] > 0.9 and found[1] < 0.05)
        os.kill(pids[1], signal.SIGCONT)
        look_until(asked, lambda found: min(found) > 0.9)


@only_on("7.3")
def check_cap_of_a_query_that_sleeps() -> None:
    """Woken threads of a capped query leave an idle CPU alone; without the cap they take it."""
    with start(3, burn_and_sleep) as pids:
        above_all()
        threads = [thread_of(pid) for pid in pids]
        for caps, good in (({}, more_than_one), ({"q": 1}, one_cpu)):
            backend = Scx(journal(), ScxOptions(mode="full", caps=caps))
            wanted = replace(schedule(threads, [1.0, 2.0, 3.0]), queries=(("e", "q"),) * 3)
            with standing_still(pids):
                backend.apply(wanted)
            look_until(lambda: shares(pids, 2), good)
            print(backend.statistics())
            backend.restore()


def burn_and_sleep() -> None:
    burn(0.02)
    time.sleep(0.01)


def burn_a_little() -> None:  # less than a slice: a cap is exceeded for no longer
    burn(0.002)
    time.sleep(0.003)


def more_than_one(found: list[float]) -> bool:
    return sum(found) > 1.2


def one_cpu(found: list[float]) -> bool:
    return 0.6 < sum(found) < 1.06 and min(found) > 0.02  # in order: the last has what is left
