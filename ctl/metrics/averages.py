"""What growth over a window gave, kept until the window has moved on.

A rate, or a cost, is a mean over seconds: a tenth of a second later it is all but the same, and to
work it out again is most of what a pass costs. So it is kept until a fifth of its window has gone
by, and for a little less than a second at most. Whatever tells of now (queues, ages) is never kept.
"""

from dataclasses import dataclass, field

from sched_ctl.metrics.catalogue import Resolution
from sched_ctl.metrics.window import Window
from sched_ctl.model.graph import Array
from sched_ctl.model.policy import Level
from sched_ctl.model.topology import Snapshot

__all__ = ["LONGEST_S", "PARTS", "Averages", "window"]

PARTS = 5  # of a window, in one of which an average is not worked out again
LONGEST_S = 0.9


@dataclass(frozen=True, eq=False)
class Averages:
    """Columns of one engine for one policy, as `evaluate` found them at `window`."""

    window: Window
    resolution: Resolution
    columns: dict[str, Array] = field(default_factory=dict)

    @property
    def until_s(self) -> float:
        """CLOCK_MONOTONIC at which they are to be worked out again; NaN without a window."""
        return self.window.now.time_s + min(self.window.seconds / PARTS, LONGEST_S)

    def hold(self, later: Window, resolution: Resolution) -> bool:
        """Whether what was found is still good at a later window."""
        mine = self.window
        if mine.base is None or later.base is None or resolution is not self.resolution:
            return False
        return (
            mine.now.time_s <= later.now.time_s < self.until_s
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
    lately: tuple[Snapshot, ...] = (),
) -> tuple[Window, Averages]:
    """A window, with the averages of one before it if they hold."""
    if before is not None:
        made = Window(now, then, level, recent, before.columns, lately)
        if before.hold(made, resolution):
            return made, before
    made = Window(now, then, level, recent, lately=lately)
    return made, Averages(made, resolution, made.averages)
