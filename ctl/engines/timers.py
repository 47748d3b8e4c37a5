"""When each policy is due, on a clock that does not drift.

Deadlines are start + k * period: a pass that comes late does not shift those that follow. A
period that ended while the pass before it still ran is skipped and counted, not caught up with.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Timer", "earliest"]


@dataclass
class Timer:
    """A period, the next deadline (CLOCK_MONOTONIC, s), and how many were skipped."""

    period_s: float
    start_s: float
    _next: int = 0
    missed: int = 0

    @property
    def due_s(self) -> float:
        return self.start_s + self._next * self.period_s

    def is_due(self, now_s: float) -> bool:
        # Timers of the event loop may fire up to a clock tick early; do not go round again for it.
        return now_s >= self.due_s - 1e-4

    def done(self, now_s: float) -> None:
        """A pass has run. If it was due, the next deadline is the first that lies ahead; one that
        came before its time leaves the deadline where it is.
        """
        if not self.is_due(now_s):
            return
        following = max(self._next + 1, int((now_s - self.start_s) // self.period_s) + 1)
        self.missed += following - self._next - 1
        self._next = following


def earliest(timers: Sequence[Timer], now_s: float) -> float:
    """Seconds until the first deadline, 0 if one has passed; infinite without timers."""
    return max(0.0, min((timer.due_s for timer in timers), default=float("inf")) - now_s)
