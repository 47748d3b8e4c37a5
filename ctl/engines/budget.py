"""What one engine's answers, or one owner's order, may take of a CPU: each pays for itself alone.

What costs much is done less often. Whoever else is on the machine, with however long answers, has
his own budget, so nobody's file, thread names or graph makes anybody else wait.
"""

import statistics
from collections import deque

__all__ = ["Allowance", "Budget"]

BURST_S = 0.1  # CPU time that an owner who took nothing for a while may take at once
COSTS = 5  # whose median counts: the first answer of an engine costs much, once


class Budget:
    """Of something that is done again and again."""

    def __init__(self) -> None:
        self._costs_s: deque[float] = deque(maxlen=COSTS)
        self.rests_until_s = 0.0  # CLOCK_MONOTONIC

    @property
    def cost_s(self) -> float:
        """CPU time of doing it once; 0 until it is known."""
        return statistics.median(self._costs_s) if len(self._costs_s) == COSTS else 0.0

    def charge(
        self, spent_s: float, began_s: float, share: float, longest_s: float = float("inf")
    ) -> float:
        """It was begun then, and took so much CPU time. Returns the time until it is due again.

        share: of a CPU that it may take; 0: as much as it needs. longest_s: it is never put off
        for longer.
        """
        self._costs_s.append(max(0.0, spent_s))
        pause_s = min(self.cost_s / share, longest_s) if share else 0.0
        self.rests_until_s = began_s + pause_s
        return pause_s


class Allowance:
    """Of an owner: what all of his engines take together, those that came and went as well."""

    def __init__(self) -> None:
        self._paid_s = 0.0  # CLOCK_MONOTONIC: until then what was taken counts

    def spend(self, spent_s: float, now_s: float, share: float) -> None:
        """Of the CPU time that is there with this share of a CPU."""
        self._paid_s = max(self._paid_s, now_s - BURST_S / share) + spent_s / share

    def rests(self, now_s: float) -> bool:
        return now_s < self._paid_s
