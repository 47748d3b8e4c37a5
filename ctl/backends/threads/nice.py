"""nice: the more urgent a thread, the lower its nice value.

A nice level is worth a factor of 1.25 in CPU time against competitors (kernel: sched-nice-design),
so ten levels span a factor of 9.3: a favoured query gained no more from a wider range. Where they
lie follows from the weights (`normalise.with_weight_kept`): all below 0, and the engine's operators
would push aside its own garbage collector and heartbeats; all above, and they would yield to these
and to every other program (a pipeline beside one hog: 4.3 -> 9.0 ms). The scheduling policy stays
what it is: a favoured thread that is SCHED_BATCH waits for its turn whenever it wakes up.

Nice counts among threads of one cgroup only (or of one session, with autogroup). The shares of
groups cannot be had here; see `inside_groups` for what comes near.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar

import msgspec
import numpy as np

from sched_ctl.backends import Applied, Backend, Probe
from sched_ctl.backends.threads import neighbours
from sched_ctl.backends.threads.neighbours import Rivals
from sched_ctl.backends.threads.parameters import Parameters, Target, at_first
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.kernel import procfs, sched
from sched_ctl.model.graph import Array, Index
from sched_ctl.model.normalise import NICE_STEP, nice_levels
from sched_ctl.model.options import NiceOptions
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import Thread

__all__ = [
    "NOTHING_HAD",
    "Nice",
    "inside_groups",
    "may_lower",
    "of_schedule",
    "planned",
    "probe",
    "with_shares",
]

NOTHING_HAD: Mapping[tuple[int, int], int] = MappingProxyType({})


class Nice(Backend):
    """The backend; see `backends.Backend`."""

    name: ClassVar[str] = "nice"

    def __init__(self, journal: Journal, options: NiceOptions | None = None) -> None:
        self.options = options or NiceOptions()
        self._parameters = Parameters(journal, self.options.recheck)
        self._rivals: dict[str, Rivals] = {}  # by scope
        self._demand: dict[str, neighbours.Wanted] = {}  # by scope
        self._last: dict[str, tuple[Schedule, Target]] = {}  # by scope

    def apply(self, schedule: Schedule) -> Applied:
        last = self._last.get(schedule.scope)
        options = of_schedule(schedule, self.options)
        demand = self._look(schedule, options)
        if last is None or last[0] is not schedule or last[1].demand is not demand:
            target = _target(schedule, wanted(schedule, options), options, demand)
            last = self._last[schedule.scope] = schedule, target
        return self._write(last[1])

    def write(self, schedule: Schedule, levels: Array) -> Applied:
        """Enforce levels that somebody else made: (m,) over the schedule's threads."""
        options = of_schedule(schedule, self.options)
        return self._write(_target(schedule, levels, options, self._look(schedule, options)))

    def _look(self, schedule: Schedule, options: NiceOptions) -> Array | None:
        """(m,) the threads' demand; None where it does not matter."""
        if not options.keeps_weight:
            return None
        return self._demand.setdefault(schedule.scope, neighbours.Wanted()).look(schedule.threads)

    def _write(self, target: Target) -> Applied:
        applied = self._parameters.apply(target)
        if target.demand is not None or not np.any(target.values >= 0.5):
            return applied
        rivals = self._rivals.setdefault(target.scope, Rivals())
        problem = rivals.look(lambda: {thread.pid for thread in target.threads})
        return applied + Applied(problems=(problem,)) if problem else applied

    def applied(self, thread: Thread) -> Mapping[str, str | float]:
        return self._parameters.applied(thread)

    def restore(self) -> tuple[str, ...]:
        return self._parameters.restore()

    def rest(self) -> tuple[str, ...]:
        return self._parameters.rest()


def probe() -> Probe:
    """Whether nice values can be put back to what they were, which takes a privilege."""
    if not may_lower():
        return Probe(
            False,
            "not permitted to lower a nice value, so no change could be undone",
            "run as root, or give the process CAP_SYS_NICE",
        )
    return Probe(True, "nice works on every kernel" + _autogroup())


def of_schedule(schedule: Schedule, options: NiceOptions) -> NiceOptions:
    """The options, bounded by what the threads had where none of them may come to be above it."""
    if schedule.lifts or options.best >= 0:
        return options
    worst = max(options.worst, 0)
    return msgspec.structs.replace(options, best=0, worst=worst, levels=worst)


def wanted(schedule: Schedule, options: NiceOptions) -> Array:
    """(m,) nice levels, not rounded, for threads that had 0; see `NiceOptions.range`."""
    return with_shares(schedule, options) if schedule.groups else _levels(schedule, options)


def _levels(schedule: Schedule, options: NiceOptions) -> Array:
    neutral = float("nan") if options.keeps_weight else None
    return nice_levels(schedule, *options.range, neutral)


def planned(
    schedule: Schedule,
    options: NiceOptions,
    had: Mapping[tuple[int, int], int] = NOTHING_HAD,
    levels: Array | None = None,
) -> dict[str, list[object]]:
    """What `apply` would set in these threads as they are now; levels: see `Nice.write`.

    had: nice values before a controller changed them, by tid and start time.
    """
    options = of_schedule(schedule, options)
    levels = wanted(schedule, options) if levels is None else levels
    found = [procfs.stat(thread.pid, thread.tid) for thread in schedule.threads]
    own = np.array(
        [
            had.get((thread.tid, thread.start_time), 0 if stat is None else stat.nice)
            for thread, stat in zip(schedule.threads, found, strict=True)
        ],
        dtype=np.intp,
    )
    demand = np.ones(len(own)) if options.keeps_weight else None
    return {"nice": at_first(_target(schedule, levels, options, demand), own).tolist()}


def _target(
    schedule: Schedule, levels: Array, options: NiceOptions, demand: Array | None
) -> Target:
    return Target(
        schedule.scope,
        schedule.threads,
        levels,
        options.dead_band,
        options.best,
        options.worst,
        demand,
    )


def inside_groups(schedule: Schedule, options: NiceOptions) -> Array:
    """(m,) nice levels for threads that only compete with those of their own group."""
    levels = _levels(schedule, options)
    for group in schedule.groups.values():
        rows = np.asarray(group.rows, dtype=np.intp)
        levels[rows] = _levels(_part(schedule, rows), options)
    return levels


def _part(schedule: Schedule, rows: Index) -> Schedule:
    """The urgencies of some rows; who they belong to does not count here."""
    return replace(
        schedule,
        threads=(),
        operators=(),
        form=schedule.form.take(rows),
        head_age_s=schedule.head_age_s[rows],
        queue_size=schedule.queue_size[rows],
        depth=schedule.depth[rows] if len(schedule.depth) else schedule.depth,
        groups={},
    )


def with_shares(schedule: Schedule, options: NiceOptions) -> Array:
    """Nice levels moved so that a group's weight, summed over its threads, comes near its share.

    Near, because the kernel divides the CPU among the threads that can run: a group whose threads
    are mostly idle gets less than its share here, and all of it with cgroups.
    """
    wanted = np.nan_to_num(inside_groups(schedule, options))
    total = len(schedule.threads)
    shares = sum(group.share for group in schedule.groups.values())
    for group in schedule.groups.values():
        rows = np.asarray(group.rows, dtype=np.intp)
        if not len(rows) or not shares > 0:
            continue
        weight = (NICE_STEP ** -wanted[rows]).sum() / total
        wanted[rows] += np.log(weight / (group.share / shares)) / np.log(NICE_STEP)
    best, worst = options.range
    wanted += best - wanted.min(initial=np.inf)
    return wanted if options.keeps_weight else np.clip(wanted, best, worst)


def may_lower() -> bool:
    """Try it on ourselves; nothing is left changed."""
    try:
        nice = sched.get_nice(0)
        sched.set_nice(0, max(nice - 1, -20))
        sched.set_nice(0, nice)
    except OSError:
        return False
    return True


def _autogroup() -> str:
    """A warning, where nice values do not count between engines."""
    with contextlib.suppress(OSError):
        if procfs.text("/proc/sys/kernel/sched_autogroup_enabled").strip() == "1":
            return "; autogroup is on: it counts inside one session or cgroup only, not between"
    return ""
