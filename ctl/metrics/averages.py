"""What growth over a window gave, kept until the window has moved on.

A rate, or a cost, is a mean over seconds: a tenth of a second later it is all but the same, and to
work it out again is most of what a pass costs. So it is kept until an eighth of its window has
gone by, which is also how far apart the snapshots lie between which windows can choose; and for a
second at most. Whatever tells of now (queues, ages) is never kept.
"""

from dataclasses import dataclass, field

from sched_ctl.metrics.catalogue import Resolution
from sched_ctl.metrics.window import Window
from sched_ctl.model.graph import Array
from sched_ctl.model.policy import Level
from sched_ctl.model.topology import Snapshot

__all__ = ["LONGEST_S", "PARTS", "Averages", "window"]

PARTS = 8  # of a window, in one of which an average is not worked out again
LONGEST_S = 1.0


@dataclass(frozen=True, eq=False)
class Averages:
    """Columns of one engine for one policy, as `evaluate` found them at `window`."""

    window: Window
    resolution: Resolution
    columns: dict[str, Array] = field(default_factory=dict)

    def hold(self, later: Window, resolution: Resolution) -> bool:
        """Whether what was found is still good at a later window."""
        mine = self.window
        if mine.base is None or later.base is None or resolution is not self.resolution:
            return False
        age_s = later.now.time_s - mine.now.time_s
        return (
            0 <= age_s < min(mine.seconds / PARTS, LONGEST_S)
            and later.now.topology is mine.now.topology
            and later.level is mine.level
            and (later.now.priors is mine.now.priors or not (later.now.priors or mine.now.priors))
            and (later.recent is None) == (mine.recent is None)
            and later.now.columns.keys() == mine.now.columns.keys()
        )


def window(
    now: Snapshot,
    then: Snapshot | None,
    level: Level,
    recent: Snapshot | None,
    resolution: Resolution,
    before: Averages | None,
) -> tuple[Window, Averages]:
    """A window, with the averages of one before it if they hold."""
    if before is not None:
        made = Window(now, then, level, recent, before.columns)
        if before.hold(made, resolution):
            return made, before
    made = Window(now, then, level, recent)
    return made, Averages(made, resolution, made.averages)
