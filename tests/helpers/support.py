"""Helpers that tests share."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeVar

T = TypeVar("T")

__all__ = ["DISTURBED", "disturbed", "growth", "running", "wait_until"]

# Of who waits for what comes in a moment where the machine is idle, see `wait_until`
PATIENCE_S = 10.0 if "SCHED_CTL_GUEST" in os.environ else 30.0
DISTURBED = "disturbed: "  # begins the reason of a test that was not decided, see conftest.py


def disturbed(what: str) -> NoReturn:
    """End a test that decided nothing, since others used this machine: no capability is missing."""
    import pytest  # not in guests, where that takes seconds

    pytest.skip(DISTURBED + what)


@contextmanager
def running(*command: str) -> Iterator["subprocess.Popen[str]"]:
    """A child that has said its first line, and reads what it is told; killed at the end."""
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None and child.stdout.readline()
        yield child
    finally:
        child.kill()
        child.communicate()


def growth(work: Callable[[str], object], seed: str, characters: int = 20_000) -> float:
    """How many times longer `work` takes for four times as long a text of repeated seeds.

    4 for linear work, 16 for quadratic; the quickest of several goes, so that noise counts little.
    """

    def seconds(length: int) -> float:
        text = (seed * (length // len(seed) + 1))[:length]
        best = float("inf")
        for _ in range(5):
            began = time.thread_time()
            work(text)
            best = min(best, time.thread_time() - began)
        return best

    return seconds(4 * characters) / max(seconds(characters), 1e-6)


def wait_until(condition: Callable[[], T], deadline_s: float = PATIENCE_S, what: str = "") -> T:
    """Call `condition` until it returns something true, and return that.

    Fails the test when `deadline_s` seconds have passed, in a guest six times as many.
    """
    if "SCHED_CTL_GUEST" in os.environ:
        deadline_s *= 6  # emulated, on a machine that has other things to do
    end = time.monotonic() + deadline_s
    pause_s = 0.001
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s} s: {what or condition}")
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.1)
