"""cgroup v1: `cpu.shares`, where the cpu controller is mounted the old way.

Threads are free to go anywhere there, so nothing but our own groups is changed.
"""

from typing import ClassVar

from sched_ctl.backends import Probe
from sched_ctl.backends.cgroups.groups import Groups
from sched_ctl.backends.cgroups.places import probe_mount

__all__ = ["Cgroup1", "Cgroup1Nice", "probe"]


class Cgroup1(Groups):
    name: ClassVar[str] = "cgroup1"
    version: ClassVar[int] = 1
    with_nice: ClassVar[bool] = False


class Cgroup1Nice(Cgroup1):
    name: ClassVar[str] = "cgroup1+nice"
    with_nice: ClassVar[bool] = True


def probe() -> Probe:
    return probe_mount(1)
