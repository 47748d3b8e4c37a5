import pytest

from sched_ctl.engines.timers import Timer, earliest


def test_late_passes_do_not_shift_those_that_follow() -> None:
    timer = Timer(period_s=0.1, start_s=1000.0)
    at = []
    now = 1000.0
    for late in (0.0, 0.03, 0.09, 0.0, 0.05, 0.01):
        now = timer.due_s + late
        assert timer.is_due(now)
        at.append(timer.due_s)
        timer.done(now)
    assert at == pytest.approx([1000.0 + 0.1 * k for k in range(6)])
    assert timer.missed == 0


def test_no_drift_after_a_million_periods() -> None:
    timer = Timer(period_s=0.1, start_s=5.0)
    for _ in range(1_000_000):
        timer.done(timer.due_s)
    assert timer.due_s == pytest.approx(5.0 + 0.1 * 1_000_000, abs=1e-6)


@pytest.mark.parametrize(("late", "missed", "due"), [(0.9, 0, 1.0), (1.0, 1, 2.0), (3.5, 3, 4.0)])
def test_missed_periods_are_counted_and_not_caught_up(late: float, missed: int, due: float) -> None:
    timer = Timer(period_s=1.0, start_s=0.0)
    timer.done(late)
    assert (timer.missed, timer.due_s) == (missed, due)


def test_a_timer_that_fires_a_little_early_counts_as_due_and_goes_on() -> None:
    timer = Timer(period_s=1.0, start_s=0.0)
    timer.done(0.0)
    early = timer.due_s - 5e-5
    assert timer.is_due(early)
    timer.done(early)
    assert timer.due_s == 2.0
    assert not timer.is_due(1.5)


def test_passes_before_their_time_leave_the_deadline_where_it_is() -> None:
    """Engines that came one after the other put off all passes by a period each."""
    timer = Timer(period_s=1.0, start_s=0.0)
    for now_s in (0.0, 0.2, 0.4, 0.6):
        timer.done(now_s)
        assert (timer.due_s, timer.missed) == (1.0, 0)
    timer.done(1.1)
    assert (timer.due_s, timer.missed) == (2.0, 0)


def test_earliest_of_several() -> None:
    timers = [Timer(1.0, 10.0), Timer(0.3, 10.2)]
    assert earliest(timers, 9.0) == 1.0
    timers[0].done(10.0)
    assert earliest(timers, 10.0) == pytest.approx(0.2)
    assert earliest(timers, 99.0) == 0.0
    assert earliest([], 0.0) == float("inf")
