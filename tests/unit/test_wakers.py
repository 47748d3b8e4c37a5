"""What bench/guest/wakers.py makes of a trace of the scheduler."""

import pytest

from bench.guest import wakers


def switch(at: float, was: tuple[str, int], state: str, runs: tuple[str, int]) -> str:
    return (
        f"{was[0]:>16}-{was[1]:<7} [000] d..2. {at:12.6f}: sched_switch: prev_comm={was[0]} "
        f"prev_pid={was[1]} prev_prio=120 prev_state={state} ==> next_comm={runs[0]} "
        f"next_pid={runs[1]} next_prio=120"
    )


def waking(at: float, waker: tuple[str, int], woken: tuple[str, int]) -> str:
    return (
        f"{waker[0]:>16}-{waker[1]:<7} [000] d..3. {at:12.6f}: sched_waking: comm={woken[0]} "
        f"pid={woken[1]} prio=120 target_cpu=000"
    )


IDLE, HOG = ("swapper/0", 0), ("hog", 9)
HEAVY, LIGHT = ("heavy-work (1/1", 7), ("Source: light-s", 5)
TRACE = [
    "# tracer: nop",
    switch(10.000, IDLE, "R", HEAVY),
    switch(10.001, HEAVY, "R+", LIGHT),
    switch(10.002, LIGHT, "S", HOG),
    switch(10.005, HOG, "R", HEAVY),
    waking(10.006, HEAVY, LIGHT),
    waking(10.007, HEAVY, LIGHT),  # it is awake
]


def test_the_waker_was_held_up() -> None:
    """Of the 4 ms that light slept, heavy, which ended it, wanted a CPU for 3 and had none."""
    (wait,) = wakers.read(TRACE)
    assert (wait.tid, wait.waker) == (5, 7)
    assert wait.length_s == pytest.approx(0.004)
    assert wait.held_up_s == pytest.approx(0.003)


def test_sums_by_kind() -> None:
    waits = list(wakers.read(TRACE))
    found = wakers.sums(waits, lambda tid, waker: f"{tid} by {waker}" if tid == 5 else None)
    assert found["5 by 7"].count == 1
    assert not wakers.sums(waits, lambda tid, waker: None)
