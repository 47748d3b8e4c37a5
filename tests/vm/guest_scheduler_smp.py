"""The BPF scheduler on two CPUs: shares and caps of groups."""

from operators import adopt, busy, shares
from vm.inside import look_until

from sched_ctl.kernel.scheduler import Scheduler

KERNELS = ("6.18", "7.3")
CPUS = 2
TIMEOUT_S = 180


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


def check_shares_of_groups() -> None:
    """4:2:1:1 within 3% of the whole; changed while they run; even after detaching."""
    with busy(4) as pids, Scheduler(full=False) as scheduler:
        give_groups(scheduler, [4, 2, 1, 1], [0] * 4)
        adopt(scheduler, pids)
        scheduler.attach()
        assert_divided(pids, [0.5, 0.25, 0.125, 0.125], 0.03)
        give_groups(scheduler, [1, 1, 2, 4], [0] * 4)
        assert_divided(pids, [0.125, 0.125, 0.25, 0.5], 0.03)
        scheduler.detach()
        assert_divided(pids, [0.25] * 4, 0.05)


def check_concurrency_cap() -> None:
    """Three threads of one group with a cap of one use one CPU; the other is for others."""
    with busy(4) as pids, Scheduler(full=False) as scheduler:
        give_groups(scheduler, [1, 1], [1, 0])
        scheduler.slots[1:4]["queue"] = 0
        scheduler.slots[4]["queue"] = 1
        adopt(scheduler, pids)
        scheduler.attach()
        look_until(
            lambda: shares(pids, 2),
            # FCFS among the three
            lambda got: 0.8 < sum(got[:3]) < 1.05 and got[3] > 0.8 and min(got[:3]) > 0.2,
        )
