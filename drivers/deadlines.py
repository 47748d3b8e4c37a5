"""Times by which an answer must be there, by time.monotonic()."""

import time

__all__ = ["time_left"]


def time_left(deadline: float) -> float:
    """Seconds until then; at least a moment, as a socket with a limit of 0 does not wait at all."""
    return max(0.001, deadline - time.monotonic())
