"""How many CPUs processes may use together."""

import os
from collections.abc import Iterable

from sched_ctl.kernel import psi

__all__ = ["cpus_of", "quota"]


def cpus_of(pids: Iterable[int]) -> float:
    """CPUs that these processes may use together: those that any of them may run on, and no more
    than their cgroups' limits (cpu.max) add up to. Without any process all CPUs of the machine.
    """
    allowed: set[int] = set()
    limits = 0.0
    for pid in pids:
        try:
            mine = os.sched_getaffinity(pid)
        except OSError:  # it has ended
            continue
        allowed |= mine
        limits += min(float(len(mine)), quota(pid))
    return min(float(len(allowed)), limits) if allowed else float(os.cpu_count() or 1)


def quota(pid: int) -> float:
    """CPUs that the process's cgroups let it have, infinite where nothing limits it.

    Source: Documentation/admin-guide/cgroup-v2.rst, cpu.max: "$MAX $PERIOD", "max" for no limit.
    """
    group, least = psi.group_of(pid), float("inf")
    while group is not None and (group / "cgroup.procs").exists():
        try:
            most, _, period = (group / "cpu.max").read_text().partition(" ")
            if most != "max":
                least = min(least, int(most) / int(period))
        except (OSError, ValueError, ZeroDivisionError):
            pass  # the root has none, and neither has a group without the controller
        group = group.parent
    return least
