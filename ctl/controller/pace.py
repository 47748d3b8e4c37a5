"""When a rule whose turn it is may rest, or runs early: by the pressure on the CPUs.

While no thread waits for a CPU, whatever order we set changes nothing. So each period begins with
a look at the pressure (two microseconds), and the pass is left out if nearly nothing waited since
the last look; for `calm_period` at most. A pass that is needed is never later than without this:
the look comes when the pass would have. Under pressure `pressed_period`, if it is set, makes the
passes more frequent. Without PSI, or while somebody looks at verdicts, every pass is run, but for
those that would find what the one before did: a policy that goes by averages alone decides anew
when these have moved on, some times a second at most.

While a race or the guard has left all to the system nothing depends on a pass, and on a slow CPU it
costs the engine more than it tells: passes are rare under pressure as well, but not so rare that
another load, for which the race opens again, would be seen late. Threads that come may be those of
a query for which there is an order: they call for a pass at once, but for one between two rare ones
alone, as those of a Java machine come and go all the time.

Nor do passes take more of a CPU than `cpu_limit`: on a slow machine they are further apart. What
engines' answers cost does not count here: see `engines.budget`.
"""

import logging
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

from sched_ctl.controller.rule import Rule
from sched_ctl.kernel import psi
from sched_ctl.probes.pressure import Gauge

__all__ = ["CALM_SHARE", "PRESSED_SHARE", "Pace", "tick_s"]

log = logging.getLogger(__name__)

CALM_SHARE = 0.01  # of the time since the last look: less is no pressure
PRESSED_SHARE = 0.10  # so much is
# The kernel looks ten times a window, and allows none below half a second.
TRIGGER_WINDOW_S = 0.5
TRIGGER_SHARE = 0.02  # what is stalled for so much of a window is no calm any more
LEFT_S = 5.0  # between passes while all is left to the system, at most
COSTS = 5  # passes whose median counts: one that met a new engine costs much, once
REMARKABLE = 1.5  # periods between two passes


def tick_s(period_s: float, pressed_period_s: float) -> float:
    """How often a rule of this period is looked at."""
    return min(period_s, pressed_period_s or period_s)


def _is_timely(since_s: float, wanted_s: float, tick_s: float) -> bool:
    return wanted_s <= tick_s or since_s >= wanted_s - tick_s / 2


class Pace:
    """Filters the rules that are due.

    calm_period_s, pressed_period_s, cpu_limit: see the settings of these names. longest_s: so far
    apart are passes at most for what they cost. gauge: None = of the machine.
    """

    def __init__(
        self,
        calm_period_s: float,
        pressed_period_s: float,
        gauge: Gauge | None = None,
        *,
        cpu_limit: float = 0.0,
        longest_s: float = 0.0,
    ) -> None:
        self._calm_s, self._pressed_s = calm_period_s, pressed_period_s
        self._limit, self.longest_s = cpu_limit, longest_s
        self._costs_s: deque[float] = deque(maxlen=COSTS)
        self._charged_s = float("nan")
        self._gauge = Gauge("cpu") if gauge is None else gauge
        self._ran_s: dict[str, float] = {}
        self._stirred: set[str] = set()
        self._early: set[str] = set()  # rules whose last pass was run for threads that came or went
        self._trigger: psi.Trigger | None = None
        self.some_share = float("nan")  # of the time between the last two looks
        self._read_s = float("nan")
        self._seen_s, self._pressed_for_s = 0.0, 0.0  # over all looks that told
        self._at_pass: dict[str, tuple[float, float]] = {}  # the same by then
        self._since: dict[str, float] = {}
        self.rested = 0  # passes left out
        self.woken = 0  # by the trigger
        self.watched_until_s = 0.0  # CLOCK_MONOTONIC
        self.source: Literal["none", "polled", "trigger"] = "none"

    def due(self, rules: Sequence[Rule], now_s: float, *, all_seen: bool = False) -> list[Rule]:
        """Those whose pass is to be run now. The timers of those that rest are moved on.

        all_seen: no pass is left out because it would find what the one before did, or because
        all is left to the system.
        """
        ticking = [rule for rule in rules if not rule.urgent and rule.timer.is_due(now_s)]
        due = [rule for rule in rules if rule.urgent]
        needless = {
            rule.name
            for rule in ticking
            if rule.name in self._ran_s
            and rule.name not in self._stirred
            and rule.holds(now_s)
            and not (all_seen or now_s < self.watched_until_s)
        }
        if len(needless) < len(ticking):
            self._read(now_s)
        for rule in due:
            self._ran_s[rule.name] = now_s
        for rule in ticking:
            # By its deadline: one that the loop comes late for does not shift those that follow.
            due_s, tick_s = rule.timer.due_s, rule.timer.period_s
            left = rule.leaves_all and not all_seen
            wanted_s = self._wanted_s(rule.section.period or 1.0, now_s, left=left)
            since_s = due_s - self._ran_s.get(rule.name, float("-inf"))
            early = not _is_timely(since_s, wanted_s, tick_s)
            if rule.name in self._stirred and not (left and rule.name in self._early):
                wanted_s = min(wanted_s, max(tick_s, self.least_s))
            if _is_timely(since_s, wanted_s, tick_s) and rule.name not in needless:
                due.append(rule)
                self._ran_s[rule.name] = due_s
                self._stirred.discard(rule.name)
                self._early.discard(rule.name)
                if early:
                    self._early.add(rule.name)
            else:
                self.rested += 1
                rule.timer.done(now_s)
        for rule in due:
            self._since[rule.name] = self._share_since_pass(rule)
            self._at_pass[rule.name] = self._seen_s, self._pressed_for_s
        return due

    def share_before(self, rule: Rule) -> float:
        """Of the time between this pass of the rule and the one before it threads waited. The last
        look alone would miss each burst of those that come as regularly as passes do.
        """
        return self._since.get(rule.name, self.some_share)

    def charge(self, total_s: float) -> None:
        """A pass has ended. total_s: CPU time of all that is done for passes alone, so far."""
        spent_s, self._charged_s = total_s - self._charged_s, total_s
        if spent_s >= 0:  # NaN at first
            self._costs_s.append(spent_s)

    @property
    def pass_s(self) -> float:
        """CPU time of a pass, with all that was done since the one before; 0 until it is known."""
        return statistics.median(self._costs_s) if len(self._costs_s) == COSTS else 0.0

    @property
    def least_s(self) -> float:
        """Passes are not closer than this, for what they cost."""
        return min(self.pass_s / self._limit, self.longest_s) if self._limit else 0.0

    def rarest_s(self, rules: Sequence[Rule]) -> float:
        """Passes of these are at most so far apart."""
        return max(self._calm_s, self.longest_s, *(rule.section.period or 1.0 for rule in rules))

    def remarkable_s(self, rules: Sequence[Rule]) -> float:
        """So long a rest of an engine is worth a remark."""
        return REMARKABLE * min((rule.section.period or 1.0 for rule in rules), default=1.0)

    def note(self, period_s: float) -> str | None:
        """That a rule of this period has fewer passes, in words."""
        least_s = self.least_s
        if least_s < REMARKABLE * period_s:
            return None
        return (
            f"a pass each {least_s:.2g} s, not each {period_s:.2g} s: it takes {self.pass_s:.2g} s "
            f"of CPU time, and cpu_limit is {self._limit:.2g} of a CPU"
        )

    def stir(self, rule: Rule) -> None:
        """Its engines' threads have changed: do not leave out its next pass; while all is left to
        the system, once between two that are rare.

        Within the limit: compilers of a Java machine come and go all the time.
        """
        self._stirred.add(rule.name)

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` when pressure begins. Raises OSError: then looks must do.

        Call it in the running loop, and not while a scheduler attaches (see `kernel.psi`).
        """

        def fired(there: bool) -> None:
            if not there:
                self.source = "polled"
                return
            if self.some_share < CALM_SHARE:  # it fires each second for as long as there is some
                self.some_share = float("nan")
                self.woken += 1
                wake()

        self._trigger = psi.Trigger(
            psi.path_of("cpu"), fired, share=TRIGGER_SHARE, window_s=TRIGGER_WINDOW_S
        )
        self.source = "trigger"
        log.info("PSI trigger on the CPUs: windows of %g s", self._trigger.window_s)

    def look(self, seconds: float) -> None:
        """Somebody wants to see what is new: do not rest for so long."""
        self.watched_until_s = time.monotonic() + seconds

    def close(self) -> None:
        self._gauge.close()
        if self._trigger is not None:
            self._trigger.close()

    def _read(self, now_s: float) -> None:
        level = self._gauge.read()
        self.some_share = float("nan") if level is None else level.some_share
        if self.source != "trigger":
            self.source = "none" if level is None else "polled"
        passed_s, self._read_s = now_s - self._read_s, now_s
        if passed_s > 0 and math.isfinite(self.some_share):
            self._seen_s += passed_s
            self._pressed_for_s += passed_s * self.some_share

    def _share_since_pass(self, rule: Rule) -> float:
        seen_s, pressed_for_s = self._at_pass.get(rule.name, (0.0, 0.0))
        seen_s = self._seen_s - seen_s
        return (self._pressed_for_s - pressed_for_s) / seen_s if seen_s > 0 else self.some_share

    def _wanted_s(self, period_s: float, now_s: float, *, left: bool) -> float:
        """left: all is left to the system."""
        share = self.some_share
        if self._pressed_s and share >= PRESSED_SHARE:
            period_s = min(period_s, self._pressed_s)
        if now_s < self.watched_until_s:
            return period_s
        if share < CALM_SHARE:
            period_s = max(period_s, self._calm_s)
        elif left and not self._pressed_s:
            period_s = max(period_s, min(self._calm_s, LEFT_S))
        return max(period_s, self.least_s)
