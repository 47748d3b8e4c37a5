"""Guests stand still while a test compares what it measures.

For all of a test that is marked `quiet`; of one marked `quiet(whole=False)` for what it does within
`still()`. While its engine starts, and is ended, they go on.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["BESIDE", "Stops", "still"]


class Stops(Protocol):
    """What may run beside tests."""

    def pause(self, *, paused: bool) -> None: ...


BESIDE: list[Stops] = []  # whatever runs beside the test and is to stop


@contextmanager
def still() -> Iterator[None]:
    """Within another one it does nothing."""
    others, BESIDE[:] = BESIDE[:], []
    for other in others:
        other.pause(paused=True)
    try:
        yield
    finally:
        for other in others:
            other.pause(paused=False)
        BESIDE[:] = others
