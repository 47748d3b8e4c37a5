"""Probes that are too slow for the loop: in a thread of their own, now and then.

A reading is begun when it is due, and what the last one found is there at once. So nobody waits,
and what it costs is bounded by how much is read at a time and how often.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from sched_ctl.kernel.threadname import be_called

__all__ = ["Aside"]

log = logging.getLogger(__name__)
T = TypeVar("T")


class Aside(Generic[T]):
    """One kind of reading. name: of its thread. every_s: from one begin to the next, at least.

    part: of a CPU that it may take; what costs more comes less often.
    """

    def __init__(self, name: str, every_s: float, part: float = 1.0) -> None:
        self._name, self._every_s, self._part = name, every_s, part
        self._executor: ThreadPoolExecutor | None = None
        self._running: Future[T] | None = None
        self._began_s = float("-inf")
        self._cost_s = 0.0  # CPU time of the last one
        self.problem: str | None = None  # why there is nothing, in words

    @property
    def pause_s(self) -> float:
        """From one begin to the next, at least."""
        return max(self._every_s, self._cost_s / self._part)

    def take(self) -> T | None:
        """What the last reading found, once; None while there is nothing new."""
        if self._running is None or not self._running.done():
            return None
        running, self._running = self._running, None
        error = running.exception()
        if error is None:
            self.problem = None
            return running.result()
        if self.problem != str(error):
            log.info("%s: %s", self._name, error)
        self.problem = str(error)
        return None

    def begin(self, reading: Callable[[], T]) -> None:
        """Begin a reading, if it is due and none is under way."""
        now_s = time.monotonic()
        if self._running is None and now_s - self._began_s >= self.pause_s:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, self._name, be_called, (self._name,))
            self._began_s = now_s
            self._running = self._executor.submit(self._counted, reading)

    def _counted(self, reading: Callable[[], T]) -> T:
        began_s = time.thread_time()
        try:
            return reading()
        finally:
            self._cost_s = time.thread_time() - began_s

    def close(self, last: Callable[[], None] | None = None) -> None:
        """Let the thread end, when it is done; `last` is called in it."""
        if self._executor is not None:
            if last is not None:
                self._executor.submit(last)
            self._executor.shutdown(wait=False)
            self._executor = None
