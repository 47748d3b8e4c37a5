"""slice: the more urgent a thread, the shorter its time slice, sched_setattr(2), Linux 6.12.

The kernel's fair class runs first who must first be done with a slice, so a short one means an
earlier turn and not more CPU time: shares stay as they are. On Flink that gave a favoured query
what ten nice levels gave it. For engines whose nice values must not change.
"""

import contextlib
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from sched_ctl.backends import Applied, Backend, Probe
from sched_ctl.backends.threads.parameters import Parameters, Target, slices
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.kernel import sched
from sched_ctl.model.normalise import places
from sched_ctl.model.options import SliceOptions
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import Thread

__all__ = ["Slices", "probe"]

TRIAL_NS = 700_000


class Slices(Backend):
    """The backend; see `backends.Backend`."""

    name: ClassVar[str] = "slice"

    def __init__(self, journal: Journal, options: SliceOptions | None = None) -> None:
        self.options = options or SliceOptions()
        self._parameters = Parameters(journal, self.options.recheck, slices())
        self._usual_us = sched.usual_slice_ns() // 1000

    def apply(self, schedule: Schedule) -> Applied:
        """See `Backend.apply`. Shares are not had here: groups count for nothing."""
        place = places(schedule)
        short, long = self.options.short * 1e3, self.options.long * 1e3
        wanted = long * (short / long) ** np.nan_to_num(place)
        # Steps of a fifth: a slice that is nearly right is left alone
        stepped = 1.2 ** np.rint(np.log(wanted) / np.log(1.2))
        values = np.clip(np.rint(stepped), 100, 100_000)
        values[np.isnan(place)] = self._usual_us
        return self._parameters.apply(Target(schedule.scope, schedule.threads, values))

    def applied(self, thread: Thread) -> Mapping[str, str | float]:
        return self._parameters.applied(thread)

    def restore(self) -> tuple[str, ...]:
        return self._parameters.restore()

    def rest(self) -> tuple[str, ...]:
        return self._parameters.rest()


def probe() -> Probe:
    """Try it on ourselves; nothing is left changed."""
    try:
        usual_ns, before = sched.usual_slice_ns(), sched.get_attributes(0)
        own_ns = 0 if before.slice_ns == usual_ns else before.slice_ns
        sched.set_attributes(0, _with_slice(before, TRIAL_NS))
        try:
            took = sched.get_attributes(0).slice_ns == TRIAL_NS
        finally:
            with contextlib.suppress(OSError):
                sched.set_attributes(0, _with_slice(before, own_ns))
    except OSError as error:
        return Probe(False, f"slices cannot be set: {error.strerror}")
    if not took:
        return Probe(False, "the kernel has no slices of single threads", "Linux 6.12 or newer has")
    return Probe(True, "a slice can be set for single threads")


def _with_slice(now: sched.Attributes, slice_ns: int) -> sched.Attributes:
    return sched.Attributes(now.policy, now.reset_on_fork, now.nice, now.priority, slice_ns)
