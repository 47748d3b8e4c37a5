"""Times by which an answer must be there, by time.monotonic(), and between looks that cost much."""

import time

__all__ = ["rest_s", "time_left"]

SELDOM = 100  # times what a look took, before which there is no other: 1% of a CPU at most
SELDOM_S = 60.0


def rest_s(spent_s: float, least_s: float) -> float:
    """Seconds after a look through all processes, of which any user may start thousands."""
    return min(max(least_s, SELDOM * spent_s), SELDOM_S)


def time_left(deadline: float) -> float:
    """Seconds until then; at least a moment, as a socket with a limit of 0 does not wait at all."""
    return max(0.001, deadline - time.monotonic())
