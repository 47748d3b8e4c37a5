"""Does scheduling help? Short phases of the system's own scheduling, compared with ours.

An order that helps one workload harms another, so whoever schedules should look at what comes of
it. Each phase of the system's own lies between two of ours, and their figures are compared as a
ratio, so that a load that rises or falls does not count. What is compared:

* *throughput*: tuples a second that the ingress operators take in;
* *wait*: tuples in all queues over that throughput, the mean time in queues by Little's law.

Ours is called worse only when the ratios say so beyond their own spread.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sched_ctl.metrics.window import Window
from sched_ctl.model.topology import Snapshot

__all__ = ["FEWEST", "Figures", "Guard", "figures", "worse"]

MARGIN = 0.05  # that much worse is not worth a step back
MOST = 8  # comparisons that count: the last ones
# Student's t at 99.5% by the number of comparisons: with these many errors of the mean, chance
# alone says "worse" at one look in two hundred, and there is a look at each comparison.
ERRORS = {4: 5.84, 5: 4.60, 6: 4.03, 7: 3.71, 8: 3.50}
FEWEST = min(ERRORS)  # comparisons before anything is said
SETTLE = 0.3  # of a phase, in which what was queued under the other regime goes
LEAST_WAIT_S = 1e-3  # below that, queues are as good as empty: whose are longer does not count


@dataclass(frozen=True)
class Figures:
    """What one phase gave. NaN where the engines do not tell."""

    throughput: float
    wait_s: float


def figures(windows: Sequence[Window], waiting: Sequence[float]) -> Figures:
    """windows: one an engine, from the beginning of the phase. waiting: samples of all queues."""
    rates = [window.rate("tuples_in")[window.graph.ingress] for window in windows]
    known = np.concatenate([*rates, np.empty(0)])
    throughput = float(np.nansum(known)) if np.isfinite(known).any() else math.nan
    waits = [value for value in waiting if math.isfinite(value)]
    if not waits or not throughput > 0:
        return Figures(throughput, math.nan)
    return Figures(throughput, statistics.fmean(waits) / throughput)


def worse(ratios: Sequence[float]) -> bool:
    """Whether these ratios (1: the same, above: worse) say worse beyond their spread.

    The mean of their logarithms, less so many of its standard errors, must exceed the margin.
    """
    logs = [math.log(ratio) for ratio in ratios if ratio > 0 and math.isfinite(ratio)][-MOST:]
    if len(logs) < FEWEST:
        return False
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    return statistics.fmean(logs) - ERRORS[len(logs)] * error > math.log1p(MARGIN)


@dataclass
class Guard:
    """The phases of one rule. every_s: from one phase of the system's own to the next."""

    every_s: float
    phase_s: float
    own: bool = False  # the system's own scheduling is on
    changes_s: float = math.nan
    ratios: dict[str, list[float]] = field(default_factory=lambda: {"throughput": [], "wait": []})
    _began_s: float = math.nan
    _first: Mapping[str, Snapshot] = field(default_factory=dict)
    _waiting: list[float] = field(default_factory=list)
    _kept: list[Figures] = field(default_factory=list)  # ours, the system's own

    def look(self, now_s: float, windows: Mapping[str, Window]) -> str | None:
        """To be called at each pass. Returns in what ours is worse, in words, or None."""
        if not windows:
            return None
        if math.isnan(self.changes_s):
            self._begin(now_s, own=False)
        length_s = self.changes_s - self._began_s
        if now_s < self._began_s + SETTLE * length_s and now_s < self.changes_s:
            return None
        now = {name: window.now for name, window in windows.items()}
        if not self._first:
            self._first = now
        self._waiting.append(sum(_waiting(window) for window in windows.values()))
        if now_s < self.changes_s:
            return None
        seen = figures(
            [
                Window(now[name], first, windows[name].level)
                for name, first in self._first.items()
                if name in now and first.topology is now[name].topology
            ],
            self._waiting,
        )
        found = self._compare(seen)
        self._begin(now_s, own=not self.own)
        return found

    def forget(self) -> None:
        """Something else is compared from now on."""
        self.own, self.changes_s = False, math.nan
        self.ratios = {"throughput": [], "wait": []}
        self._kept = []

    @property
    def words(self) -> str:
        """How ours compares so far, for `status`."""
        parts = [
            f"{name} {math.exp(statistics.fmean(map(math.log, ratios[-MOST:]))):.2f}"
            for name, ratios in self.ratios.items()
            if ratios
        ]
        count = max(map(len, self.ratios.values()))
        phase = "the system's own scheduling at the moment; " if self.own else ""
        if not parts:
            return f"{phase}nothing compared yet"
        return f"{phase}over the system's own in {count} comparisons: {', '.join(parts)}"

    def _begin(self, now_s: float, *, own: bool) -> None:
        self.own, self._began_s = own, now_s
        self.changes_s = now_s + (self.phase_s if own else self.every_s - self.phase_s)
        self._first, self._waiting = {}, []

    def _compare(self, seen: Figures) -> str | None:
        """A phase is over; if it was the second of ours, there is something to compare."""
        self._kept.append(seen)
        if self.own or len(self._kept) < 3:
            return None
        before, system, after = self._kept[-3:]
        self._kept = self._kept[-1:]
        throughput = (
            (before.throughput + after.throughput) / 2 / system.throughput
            if system.throughput > 0
            else math.nan
        )
        wait_s = (before.wait_s + after.wait_s) / 2
        wait = max(wait_s, LEAST_WAIT_S) / max(system.wait_s, LEAST_WAIT_S)
        for name, ratio in (("throughput", throughput), ("wait", wait)):
            if ratio > 0 and math.isfinite(ratio):
                self.ratios[name].append(ratio)
        if worse([1 / ratio for ratio in self.ratios["throughput"]]):
            return f"throughput is {1 - throughput:.0%} lower than by the system's own scheduling"
        if worse(self.ratios["wait"]):
            return f"tuples wait {wait:.2f} times as long as by the system's own scheduling"
        return None


def _waiting(window: Window) -> float:
    """Tuples in the queues of an engine, as far as it tells; NaN if it tells nothing."""
    queue = window.value("queue_size")
    return float(np.nansum(queue)) if np.isfinite(queue).any() else math.nan
