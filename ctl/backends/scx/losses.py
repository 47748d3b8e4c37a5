"""Does partial mode keep operators from the CPU?

The fair class ranks above sched_ext there, and the deadline server does not keep latency beside
threads that use all CPUs.
"""

import time
from collections.abc import Mapping

__all__ = ["Losses"]

LOOK_S = 0.5
MOST_LOST = 0.05  # of the CPU time that operators wanted: others may have it without a reaction ...
LEAST_LOST = 0.01  # ... and this much of one CPU, however little operators want
LOSSES = 2  # looks in a row that find more


class Losses:
    """Looks at the scheduler's counters now and then."""

    def __init__(self) -> None:
        self._counters: Mapping[str, int] = {}
        self._read_s = time.monotonic()
        self._losing = 0  # looks in a row that found losses

    def look(self, counters: Mapping[str, int]) -> float | None:
        """The share of the wanted CPU time that others had, if it was too much for too long."""
        now_s = time.monotonic()
        passed_s = now_s - self._read_s
        if passed_s < LOOK_S:
            return None
        seen, self._counters, self._read_s = self._counters, counters, now_s
        lost_s, ran_s = (
            (counters[name] - seen.get(name, 0)) / 1e9 for name in ("lost_ns", "operator_ns")
        )
        share = lost_s / max(lost_s + ran_s, 1e-9)
        loses = share > MOST_LOST and lost_s > LEAST_LOST * passed_s
        self._losing = self._losing + 1 if loses else 0
        return share if self._losing >= LOSSES else None
