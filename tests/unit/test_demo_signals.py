"""Ctrl-C ends a demo wherever it strikes."""

import asyncio
import signal
from collections.abc import Callable

import pytest

from sched_ctl.demo.run import _signals_wait, signals_raise
from sched_ctl.errors import UserError


def interrupted() -> None:
    """As the controller guards its steps: one engine's trouble must not end it."""
    try:
        signal.raise_signal(signal.SIGINT)
    except Exception:
        pytest.fail("taken for a failure of the step")


def in_a_task() -> None:
    async def step() -> None:
        interrupted()

    asyncio.run(step())


def in_a_callback_of_the_loop() -> None:
    async def wait() -> None:
        asyncio.get_running_loop().call_soon(interrupted)
        await asyncio.sleep(60)

    asyncio.run(wait())


@pytest.mark.parametrize("where", [interrupted, in_a_task, in_a_callback_of_the_loop])
def test_a_signal_is_never_swallowed(where: Callable[[], None]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(UserError, match="stopped by SIGINT"), signals_raise():
        where()
    assert signal.getsignal(signal.SIGINT) is before


def test_but_not_in_the_middle_of_making_a_loop() -> None:
    made = False
    with pytest.raises(UserError, match="SIGINT"), signals_raise():
        with _signals_wait():
            signal.raise_signal(signal.SIGINT)
            made = True
        pytest.fail("the signal was lost")
    assert made
