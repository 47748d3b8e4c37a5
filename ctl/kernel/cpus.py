"""How many CPUs processes may use together, which of them are slower, and what sets their clock."""

import os
from collections.abc import Iterable
from pathlib import Path

from sched_ctl.kernel import cgroup

__all__ = ["cpus_of", "governors", "limit", "slower"]

DEVICES = Path("/sys/devices")


def cpus_of(pids: Iterable[int]) -> float:
    """CPUs that these processes may use together: those that any of them may run on, and no more
    than their cgroups' limits let through, each of which is for all that is below it.
    Without any process all CPUs of the machine.
    """
    allowed: set[int] = set()
    free = 0.0  # what no cgroup limits
    wanted: dict[Path, float] = {}
    for pid in pids:
        try:
            mine = os.sched_getaffinity(pid)
        except OSError:  # it has ended
            continue
        allowed |= mine
        groups = cgroup.with_cpu(pid, ours=False)
        if groups:
            wanted[groups[0]] = wanted.get(groups[0], 0.0) + len(mine)
        else:
            free += len(mine)
    if not allowed:
        return float(os.cpu_count() or 1)
    return min(float(len(allowed)), free + _let_through(wanted))


def _let_through(wanted: dict[Path, float]) -> float:
    """What is wanted in each cgroup, cut down to the limits from below, all together."""
    through, left = 0.0, dict(wanted)
    while left:
        group = max(left, key=lambda one: len(one.parts))
        many = min(left.pop(group), limit(group))
        above = group.parent
        if (above / "cgroup.procs").exists():
            left[above] = left.get(above, 0.0) + many
        else:
            through += many
    return through


def limit(group: Path) -> float:
    """CPUs that a cgroup lets its processes have together, infinite where it does not limit them.

    Sources: Documentation/admin-guide/cgroup-v2.rst, cpu.max: "$MAX $PERIOD", "max" for no limit;
    Documentation/scheduler/sched-bwc.rst for version 1, where -1 is no limit.
    """
    try:
        if (group / "cpu.max").exists():
            most, _, period = (group / "cpu.max").read_text().partition(" ")
        else:
            most, period = (
                (group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")
            )
        return float("inf") if most.strip() in ("max", "-1") else int(most) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return float("inf")  # the root has none, and neither has a group without the controller


def slower(devices: Path = DEVICES) -> str | None:
    """Which CPUs can do less than the fastest ones, in words; None where all are alike.

    Source: Documentation/ABI/testing/sysfs-devices-system-cpu, cpu_capacity (arm64, RISC-V; 1024:
    the fastest); perf's device cpu_atom on x86 with cores of two kinds.
    """
    told = {
        int(path.parent.name.removeprefix("cpu")): text
        for path in devices.glob("system/cpu/cpu[0-9]*/cpu_capacity")
        if (text := _text(path)).isdecimal()
    }
    most = max(map(int, told.values()), default=0)
    less = sorted(cpu for cpu, text in told.items() if int(text) < most)
    if less:
        least = min(int(told[cpu]) for cpu in less)
        return f"CPUs {_ranges(less)} do {least / most:.0%} of what the fastest do"
    small = _text(devices / "cpu_atom" / "cpus")
    return f"CPUs {small} are efficiency cores" if small else None


def governors(devices: Path = DEVICES) -> list[str]:
    """What sets the clock of the CPUs: names of cpufreq governors, none twice.

    Source: Documentation/admin-guide/pm/cpufreq.rst, scaling_governor.
    """
    paths = devices.glob("system/cpu/cpufreq/policy*/scaling_governor")
    return sorted({text for path in paths if (text := _text(path))})


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # a CPU that went off line, or a machine without it
        return ""


def _ranges(numbers: Iterable[int]) -> str:
    """0-2,5 of 0, 1, 2, 5; numbers ascend."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in found)
