"""Another policy while a metric is beyond a threshold: when it takes over, and when it goes.

A metric has to be beyond the threshold, without a break, for as long as the switch says; and the
same time at a second threshold, nearer to what is usual, or on its other side, before the switch
goes off. While the metric is unknown nothing changes, and the time begins anew.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sched_ctl.config.settings import Switch
from sched_ctl.model.graph import Array

__all__ = ["PRESSURE", "Watch", "fault", "joined"]

PRESSURE = "pressure"


@dataclass
class Watch:
    """A switch at work. on: whether its policy takes over."""

    switch: Switch
    on: bool = False
    value: float = math.nan
    _since_s: float | None = None  # since when the other state is called for

    @property
    def why(self) -> str:
        switch = self.switch
        what = PRESSURE if switch.metric == PRESSURE else f"{switch.of} of {switch.metric}"
        side, threshold = (
            ("above", switch.above) if switch.above is not None else ("below", switch.below)
        )
        return f"{what} was {side} {threshold:g} for {switch.lasting:g} s"

    def look(self, value: float, now_s: float) -> None:
        """value: of the metric now, NaN = unknown."""
        self.value = value
        if self._calls_for_change(value):
            if self._since_s is None:
                self._since_s = now_s
            if now_s - self._since_s >= self.switch.lasting:
                self.on, self._since_s = not self.on, None
        else:
            self._since_s = None

    def _calls_for_change(self, value: float) -> bool:
        switch = self.switch
        if switch.above is not None:
            return value <= back(switch) if self.on else value > switch.above
        assert switch.below is not None
        return value >= back(switch) if self.on else value < switch.below


def back(switch: Switch) -> float:
    """The threshold of the way back."""
    if switch.back is not None:
        return switch.back
    if switch.above is not None:
        return switch.above - 0.2 * abs(switch.above)
    assert switch.below is not None
    return switch.below + 0.25 * abs(switch.below)


def fault(switch: Switch) -> str | None:
    """What is wrong with the thresholds, in words."""
    if (switch.above is None) == (switch.below is None):
        return "a switch needs one of above and below"
    if switch.above is not None and back(switch) > switch.above:
        return f"back {switch.back:g} must not be above {switch.above:g}, where the policy comes"
    if switch.below is not None and back(switch) < switch.below:
        return f"back {switch.back:g} must not be below {switch.below:g}, where the policy comes"
    return None


def joined(watch: Watch, columns: Sequence[Array]) -> float:
    """One value of the metric's columns, a column an engine; NaN where nothing is known."""
    values = np.concatenate([np.empty(0), *columns])
    known = values[np.isfinite(values)]
    if not len(known):
        return math.nan
    if watch.switch.of == "max":
        return float(known.max())
    return float(known.mean() if watch.switch.of == "mean" else known.sum())
