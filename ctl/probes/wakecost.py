"""What a tuple costs where nobody counts tuples, by wake-ups.

A thread that keeps up is woken for each tuple. One with a backlog takes many before it sleeps
again, so CPU time a wake-up grows with the backlog; and who then goes last for its cost gets more
of it. So what counts is the cheapest of the last seconds with many wake-ups: one brings a tuple or
more. What an operator has taken in meanwhile is its CPU time by that cost. A second in which it
used next to no CPU does not count, for there a timer woke it. Where no second has counted, all
wake-ups lately do. No cost is forgotten for its age alone: who is behind has no other, and would
look dear for it. Replicas have one cost, as a wake-up may find that another one was faster.
"""

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sched_ctl.model.graph import Array
from sched_ctl.model.topology import Thread

__all__ = ["LEAST", "WakeCosts"]

SPAN_S = 1.0  # of a span, at least
LEAST = 20  # wake-ups of one that tells what a tuple costs
SPANS = 8  # that count
ENOUGH = 3  # to be sure: in a first one there may have been a backlog for most of it
NOTABLE = 0.01  # of a CPU: a span with less tells of no cost, and is not waited for
PATIENCE = 10  # such spans after which an operator may never tell: one without a pause
MOST = 10_000  # operators that are remembered


@dataclass
class _Of:
    """An operator: CPU seconds and wake-ups of its open span, of the last ones and of all, and the
    cost in those with enough of them."""

    began_s: float
    cpu_s: float = 0.0
    wakeups: float = 0.0
    all_cpu_s: float = 0.0
    all_wakeups: float = 0.0
    worked: int = 0  # spans with a notable share of a CPU
    rested: int = SPANS  # spans since the last of these
    lately: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=SPANS))
    costs: deque[float] = field(default_factory=lambda: deque(maxlen=SPANS))

    def add(self, now_s: float, cpu_s: float, wakeups: float) -> None:
        self.cpu_s += cpu_s
        self.wakeups += wakeups
        self.all_cpu_s += cpu_s
        self.all_wakeups += wakeups
        lasted_s = now_s - self.began_s
        if lasted_s < SPAN_S:
            return
        self.rested += 1
        if self.cpu_s > NOTABLE * lasted_s:
            self.worked, self.rested = self.worked + 1, 0
            if self.wakeups >= LEAST:
                self.costs.append(self.cpu_s / self.wakeups)
        self.lately.append((self.cpu_s, self.wakeups))
        self.began_s, self.cpu_s, self.wakeups = now_s, 0.0, 0.0

    @property
    def settled(self) -> bool:
        """Whether its cost is known, or may never be."""
        return len(self.costs) >= ENOUGH or self.worked >= PATIENCE

    @property
    def cost_s(self) -> float:
        """NaN where it has not run, or not been woken."""
        if self.costs:
            return min(self.costs)
        cpu_s = self.cpu_s + sum(spent_s for spent_s, _ in self.lately)
        wakeups = self.wakeups + sum(woken for _, woken in self.lately)
        if not (cpu_s and wakeups):
            cpu_s, wakeups = self.all_cpu_s, self.all_wakeups
        return cpu_s / wakeups if cpu_s and wakeups else float("nan")


class WakeCosts:
    """Of one program."""

    def __init__(self) -> None:
        self._seen: dict[Thread, tuple[float, float]] = {}  # CPU time and wake-ups at the last look
        self._tuples: dict[Thread, float] = {}
        self._of: dict[Hashable, _Of] = {}
        # Until one is settled, and all who work; then never again, so that no order is taken away.
        self.unsure = True

    def update(
        self,
        now_s: float,
        threads: Sequence[Thread],
        who: Sequence[Hashable],
        cpu_s: Array,
        wakeups: Array,
    ) -> tuple[Array, Array]:
        """(n,) tuples since the first look, and (n,) CPU seconds a tuple, NaN where unknown.

        threads, who: (n,) of each row, and its operator, which replicas have in common. cpu_s,
        wakeups: (n,) counters; what they had at a thread's first look is left out.
        """
        if len(self._of) > MOST:
            self._of = {one: self._of[one] for one in who if one in self._of}
        now = [*zip(np.nan_to_num(cpu_s).tolist(), np.nan_to_num(wakeups).tolist(), strict=True)]
        grown = []
        for thread, (spent_s, woken) in zip(threads, now, strict=True):
            before_s, before = self._seen.get(thread, (spent_s, woken))
            grown.append((max(0.0, spent_s - before_s), max(0.0, woken - before)))
        self._seen = dict(zip(threads, now, strict=True))
        together: dict[Hashable, tuple[float, float]] = {}
        for one, (spent_s, woken) in zip(who, grown, strict=True):
            others_s, others = together.get(one, (0.0, 0.0))
            together[one] = others_s + spent_s, others + woken
        for one, both in together.items():
            self._of.setdefault(one, _Of(now_s)).add(now_s, *both)
        before_all, self._tuples = self._tuples, {}
        for thread, one, (spent_s, woken) in zip(threads, who, grown, strict=True):
            of = self._of[one]
            taken = spent_s / of.cost_s if of.costs else woken
            self._tuples[thread] = before_all.get(thread, 0.0) + taken
        here = [self._of[one] for one in together]
        working = (of for of in here if of.rested < SPANS)
        if any(of.settled for of in here) and all(of.settled for of in working):
            self.unsure = False
        cost_s = np.array([self._of[one].cost_s for one in who], dtype=np.float64)
        return np.array([self._tuples[thread] for thread in threads]), cost_s
