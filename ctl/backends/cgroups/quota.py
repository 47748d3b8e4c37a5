"""quota: shares as limits, `cpu.max` or `cpu.cfs_quota_us`. Only for who asks for it by name.

A query's group gets its share of the CPUs and no more, also when the others are idle: for who
sells, tests or fences, not for who wants speed. Threads that are in no query's group, the
collector and the heartbeats, have no limit. The groups are those of the cgroup backends, and with
them the limits go.

A query whose threads are found in several cgroups has a group in each, and its share is divided
among these by its threads there.
"""

import errno
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from sched_ctl.backends import Applied, Backend, BackendFailed, Probe
from sched_ctl.backends.cgroups.places import probe_mount
from sched_ctl.backends.cgroups.v1 import Cgroup1
from sched_ctl.backends.cgroups.v2 import Cgroup2
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.kernel import cgroup
from sched_ctl.model.options import QuotaOptions
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import Thread

__all__ = ["Quota", "probe"]

LEAST_US = 1000  # the kernel takes no smaller quota


class _TooLargeError(Exception):
    """The group has no limit of its own: what it says is for `Applied.problems`."""


class Quota(Backend):
    """The backend; see `backends.Backend`."""

    name: ClassVar[str] = "quota"

    def __init__(self, journal: Journal, options: QuotaOptions | None = None) -> None:
        self.options = options or QuotaOptions()
        version = 2 if probe_mount(2).can else 1
        self._groups = (Cgroup2 if version == 2 else Cgroup1)(journal, self.options, self.name)
        self._version = version
        self._limits: dict[Path, int] = {}  # us a period, as we wrote them
        self._used: dict[str, set[Path]] = {}  # which of these each scope has

    def apply(self, schedule: Schedule) -> Applied:
        """See `Backend.apply`. Raises BackendFailed for a schedule without shares."""
        if not schedule.groups and schedule.threads:
            raise BackendFailed(
                "a quota is a share of the CPU, and the schedule has no shares",
                "give some: --share 'etl*=4' --share 'reports*=1'",
            )
        done = self._groups.apply(schedule)
        total = sum(group.share for group in schedule.groups.values())
        writes, problems = 0, list(done.problems)
        if done.writes:  # a group that is made anew has no limit, whatever was written before
            for folder in self._used.get(schedule.scope, ()):
                self._limits.pop(folder, None)
        used = self._used[schedule.scope] = set()
        for group in schedule.groups.values():
            limit_us = self.options.period * 1e3 * self.options.cpus * group.share / total
            found = (self._folder(schedule.threads[row]) for row in group.rows)
            threads = Counter(folder for folder in found if folder is not None)
            for folder, count in threads.items():
                used.add(folder)
                part_us = limit_us * count / threads.total()
                try:
                    writes += self._limit(folder, max(LEAST_US, round(part_us)))
                except _TooLargeError as error:
                    problems.append(str(error))
        if not used:
            del self._used[schedule.scope]
        needed = set[Path]().union(*self._used.values())
        self._limits = {folder: us for folder, us in self._limits.items() if folder in needed}
        return replace(done, writes=done.writes + writes, problems=tuple(problems))

    def _folder(self, thread: Thread) -> Path | None:
        found = self._groups.applied(thread).get("cgroup")
        return None if found is None else Path(str(found))

    def _limit(self, folder: Path, limit_us: int) -> bool:
        """Whether it was written. Version 1 refuses more than a cgroup above has."""
        if self._limits.get(folder) == limit_us:
            return False
        period_us = round(self.options.period * 1e3)
        try:
            if self._version == 2:
                cgroup.write(folder / "cpu.max", f"{limit_us} {period_us}")
            else:
                cgroup.write(folder / "cpu.cfs_period_us", str(period_us))
                cgroup.write(folder / "cpu.cfs_quota_us", str(limit_us))
        except OSError as error:
            if not folder.is_dir():  # somebody removed it: the groups are made anew
                self._limits.pop(folder, None)
                return False
            if error.errno == errno.EINVAL:
                raise _TooLargeError(
                    f"{folder}: the kernel refuses {limit_us / period_us:.3g} CPUs: a cgroup above "
                    "has a lower limit, which holds instead"
                ) from error
            raise BackendFailed(f"{error.filename}: {error.strerror}") from error
        self._limits[folder] = limit_us
        return True

    def applied(self, thread: Thread) -> Mapping[str, str | float]:
        found = dict(self._groups.applied(thread))
        folder = found.get("cgroup")
        if folder is not None and (limit_us := self._limits.get(Path(str(folder)))) is not None:
            found["limit"] = round(limit_us / self.options.period / 1e3, 4)
        return found

    def rest(self) -> tuple[str, ...]:
        return self._groups.rest()

    def restore(self) -> tuple[str, ...]:
        self._limits.clear()
        self._used.clear()
        return self._groups.restore()


def probe() -> Probe:
    """Where the cpu controller is, limits are, unless the kernel was built without them."""
    found = probe_mount(2)
    return found if found.can else probe_mount(1)
