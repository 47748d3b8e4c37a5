"""What a tuple costs by wake-ups: a backlog makes it no dearer."""

import numpy as np
import pytest

from sched_ctl.model.topology import Thread
from sched_ctl.probes.wakecost import ENOUGH, LEAST, PATIENCE, SPANS, WakeCosts

ALARMS, *ARCHIVE = (Thread(1, tid, tid, "x") for tid in range(1, 5))


class Program:
    """Three replicas of one operator and another operator, looked at each second."""

    def __init__(self) -> None:
        self.costs = WakeCosts()
        self.threads = [ALARMS, *ARCHIVE]
        self.cpu_s = dict.fromkeys(self.threads, 3.0)
        self.wakeups = dict.fromkeys(self.threads, 7.0)
        self.now_s = 100.0
        self.look()

    def look(self) -> tuple[dict[Thread, float], dict[Thread, float]]:
        who = ["alarms" if one is ALARMS else "archive" for one in self.threads]
        columns = (np.array([of[t] for t in self.threads]) for of in (self.cpu_s, self.wakeups))
        found = self.costs.update(self.now_s, self.threads, who, *columns)
        tuples, cost_s = (dict(zip(self.threads, of.tolist(), strict=True)) for of in found)
        return tuples, cost_s

    def second(self, **grown: tuple[float, float]) -> tuple[dict[Thread, float], float, float]:
        """CPU seconds and wake-ups of a, and of the replicas b, c and d."""
        self.now_s += 1.0
        for thread, name in zip([ALARMS, *ARCHIVE], "abcd", strict=True):
            cpu_s, wakeups = grown.get(name, (0.0, 0.0))
            self.cpu_s[thread] += cpu_s
            self.wakeups[thread] += wakeups
        tuples, cost_s = self.look()
        assert len({cost_s[one] for one in ARCHIVE if one in cost_s and cost_s[one] > 0}) <= 1
        return tuples, cost_s[ALARMS], cost_s[ARCHIVE[0]]


def test_who_has_a_backlog_costs_what_it_did_without() -> None:
    program = Program()
    tuples, alarms_s, _ = program.second(a=(0.1, 50))
    assert alarms_s == pytest.approx(0.002) and tuples[ALARMS] == pytest.approx(50)
    for _ in range(30):  # it is behind, and hardly ever sleeps
        tuples, alarms_s, _ = program.second(a=(0.5, 1))
        assert alarms_s == pytest.approx(0.002)
    assert tuples[ALARMS] == pytest.approx(50 + 30 * 250), "what its CPU time took in"


def test_a_tuple_that_became_dearer_is_noticed_after_some_spans() -> None:
    program = Program()
    program.second(a=(0.1, 50))
    found = [program.second(a=(0.5, 50))[1] for _ in range(SPANS)]
    assert found == pytest.approx([0.002] * (SPANS - 1) + [0.01])


def test_replicas_have_one_cost_whoever_was_woken_for_nothing() -> None:
    program = Program()
    tuples, _, archive_s = program.second(b=(0.4, 10), c=(0.2, 2), d=(0.0, 18))
    assert archive_s == pytest.approx(0.02)
    assert [tuples[one] for one in ARCHIVE] == pytest.approx([20, 10, 0])


def test_without_enough_wake_ups_those_of_late_count() -> None:
    program = Program()
    tuples, alarms_s, archive_s = program.second(a=(0.4, 2), d=(0.001, 1))
    assert (tuples[ALARMS], alarms_s) == pytest.approx((2, 0.2))
    assert archive_s == pytest.approx(0.001)
    for _ in range(SPANS):
        tuples, alarms_s, _ = program.second(a=(0.4, 4))
    assert (tuples[ALARMS], alarms_s) == pytest.approx((2 + 4 * SPANS, 0.1))
    for _ in range(SPANS + 1):
        alarms_s = program.second(a=(0.5, 0))[1]
    assert alarms_s == pytest.approx((0.4 * (SPANS + 1) + 0.5 * (SPANS + 1)) / (2 + 4 * SPANS))


def test_it_is_unsure_until_all_who_work_have_kept_up_some_times() -> None:
    program = Program()
    for _ in range(ENOUGH - 1):
        program.second(a=(0.4, LEAST), d=(0.001, 1))
        assert program.costs.unsure
    program.second(a=(0.4, LEAST - 1), d=(0.001, 1))
    assert program.costs.unsure
    program.second(a=(0.4, LEAST))
    assert not program.costs.unsure, "the other uses next to nothing"
    program.second(d=(0.9, 1))
    assert not program.costs.unsure, "once sure it stays so"


def test_of_a_program_that_rests_nothing_is_known() -> None:
    program = Program()
    for _ in range(30):
        program.second(a=(0.001, 100))
        assert program.costs.unsure
    for _ in range(ENOUGH):
        assert program.costs.unsure
        program.second(a=(0.1, 50))
    assert not program.costs.unsure


def test_who_has_no_pause_is_not_waited_for_for_ever() -> None:
    program = Program()
    for _ in range(PATIENCE):
        assert program.costs.unsure
        program.second(a=(0.1, 50), b=(0.5, 1))
    assert not program.costs.unsure


def test_who_worked_long_ago_is_not_waited_for() -> None:
    program = Program()
    program.second(b=(0.5, 1))
    for _ in range(SPANS - 1):
        assert program.costs.unsure
        program.second(a=(0.1, 50))
    program.second(a=(0.1, 50))
    assert not program.costs.unsure


def test_what_a_timer_wakes_is_no_tuple() -> None:
    """It polls at rest, and takes 50 ms a tuple."""
    program = Program()
    for _ in range(20):
        tuples, alarms_s, _ = program.second(a=(0.0005, 100))
    assert alarms_s == pytest.approx(5e-6), "nothing better is known"
    before = tuples[ALARMS]
    for _ in range(SPANS):
        tuples, alarms_s, _ = program.second(a=(1.0, 20))
    assert alarms_s == pytest.approx(0.05)
    assert tuples[ALARMS] - before == pytest.approx(20 * SPANS)
    before = tuples[ALARMS]
    for _ in range(20):
        tuples, alarms_s, _ = program.second(a=(0.0005, 100))
    assert alarms_s == pytest.approx(0.05)
    assert tuples[ALARMS] - before == pytest.approx(0.2)


def test_what_has_never_run_costs_nobody_knows_what() -> None:
    program = Program()
    _, alarms_s, archive_s = program.second(a=(0.0, 60), b=(0.4, 0))
    assert np.isnan([alarms_s, archive_s]).all()


def test_threads_come_and_go() -> None:
    program = Program()
    program.second(b=(0.4, 40))
    last = program.threads.pop()
    assert program.second(b=(0.4, 40))[2] == pytest.approx(0.01)
    program.threads.append(last)
    program.cpu_s[last] += 50.0
    tuples, _, archive_s = program.second(b=(0.4, 40))
    assert tuples[last] == 0.0 and archive_s == pytest.approx(0.01), "it begins anew"
