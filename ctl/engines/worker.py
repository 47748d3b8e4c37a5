"""Where the calls of a driver are made: in a thread of its own, or in the loop if none waits."""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from sched_ctl.kernel.threadname import be_called

__all__ = ["Here", "Worker"]

log = logging.getLogger(__name__)
T = TypeVar("T")
Calls = queue.SimpleQueue[tuple[Callable[[], Any], Callable[..., None]] | None]


class Worker(Generic[T]):
    """A daemon thread that runs one call at a time and never keeps the process from ending."""

    def __init__(self, name: str) -> None:
        self._calls: Calls = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._run, args=(name, self._calls), name=name, daemon=True
        )
        self._thread.start()

    def call(self, function: Callable[[], T], brief_s: float = 0.0) -> "asyncio.Future[T]":
        """Run it there; the result arrives in the running event loop.

        brief_s: first wait here so long, blocking the loop. An engine that answers within a tenth
        of a millisecond costs half as much CPU time this way as by waking the loop.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        answered, guard = threading.Lock(), threading.Lock()
        answered.acquire()
        answers: list[tuple[T | None, BaseException | None]] = []
        waiting = brief_s > 0

        def settle() -> None:
            result, error = answers[0]
            if future.done():  # given up, or the answer came just when the wait ended
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        def deliver(result: T | None, error: BaseException | None) -> None:
            with guard:
                answers.append((result, error))
                wake = not waiting
            answered.release()
            if wake:
                with suppress(RuntimeError):  # the loop has ended: nobody waits any more
                    loop.call_soon_threadsafe(settle)

        self._calls.put((function, deliver))
        if waiting:
            answered.acquire(timeout=brief_s)
            with guard:
                waiting = False
            if answers:
                settle()
        return future

    def tell(self, function: Callable[[], None]) -> None:
        """Run it there; nobody waits for it."""
        self._calls.put((function, _nobody))

    def stop(self) -> None:
        self._calls.put(None)

    @staticmethod
    def _run(name: str, calls: Calls) -> None:
        be_called(name)
        while (call := calls.get()) is not None:
            function, deliver = call
            try:
                result = function()
            except BaseException as error:  # sys.exit() in a plug-in, too, is its own problem
                if not isinstance(error, Exception):
                    error = RuntimeError(f"{type(error).__name__}: {error}")
                deliver(None, error)
            else:
                deliver(result, None)
            del call, function, deliver


class Here:
    """In place of a `Worker` for drivers that never wait: the calls are made in the loop."""

    def call(self, function: Callable[[], T], brief_s: float = 0.0) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(function())
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            if not isinstance(error, Exception):
                error = RuntimeError(f"{type(error).__name__}: {error}")
            future.set_exception(error)
        return future

    def tell(self, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as error:
            _nobody(None, error)

    def stop(self) -> None: ...


def _nobody(result: object, error: BaseException | None) -> None:
    if error is not None:
        log.debug("after the end", exc_info=error)
