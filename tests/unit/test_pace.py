"""When passes are left out, and when not."""

import itertools
import math
from dataclasses import dataclass

import pytest

from sched_ctl.config.settings import Section
from sched_ctl.controller.pace import Pace, tick_s
from sched_ctl.controller.rule import Rule, make_policy
from sched_ctl.engines.timers import Timer
from sched_ctl.probes.pressure import Gauge, Level


@dataclass
class FakeGauge(Gauge):
    """Pressure as the test wants it. None: no PSI."""

    share: float | None = 0.0

    def read(self) -> Level | None:
        return None if self.share is None else Level("cpu", self.share, 0.0, 0.0, 0.0)

    def close(self) -> None: ...


def passes(
    share: float | None,
    seconds: float,
    *,
    calm: float = 5.0,
    pressed: float = 0.0,
    kind: "type[Rule]" = Rule,
    all_seen: bool = False,
    **more: float,
) -> list[float]:
    """When a rule with a period of 1 s has its passes, if it is looked at when it asks for it."""
    gauge = FakeGauge(share)
    pace = Pace(calm, pressed, gauge)
    pace.watched_until_s = more.get("watched", 0.0)
    section = Section(name="r", policy="qs", period=1.0)
    rule = kind(section, make_policy(section, "nice"), "nice", Timer(tick_s(1.0, pressed), 0.0))
    rule.urgent = False
    ran = []
    late = itertools.cycle((more.get("late", 0.0), 0.0))
    while (now_s := rule.timer.due_s + next(late)) < seconds:
        if now_s >= more.get("pressed_from", float("inf")):
            gauge.share = 1.0
        if now_s >= more.get("stirred", float("inf")):
            pace.stir(rule)
            more["stirred"] = now_s + more.get("stirred_each", float("inf"))
        if pace.due([rule], now_s, all_seen=all_seen):
            ran.append(now_s)
            rule.timer.done(now_s)
    assert rule.timer.missed == 0
    return ran


def test_without_pressure_passes_are_rare_but_do_not_end() -> None:
    assert passes(0.0, 12) == [0, 5, 10]


def test_the_first_look_that_finds_pressure_runs_the_pass() -> None:
    assert passes(0.0, 12, pressed_from=7) == [0, 5, 7, 8, 9, 10, 11]


def test_threads_that_came_or_went_are_seen_to_at_the_next_tick() -> None:
    assert passes(0.0, 12, stirred=2) == [0, 2, 7]


class Left(Rule):
    """One that leaves all to the system."""

    @property
    def leaves_all(self) -> bool:
        return True


@pytest.mark.parametrize("share", [0.05, 1.0, None, float("nan")])
def test_where_all_is_left_to_the_system_passes_are_rare_under_pressure(
    share: float | None,
) -> None:
    assert passes(share, 12, kind=Left) == [0, 5, 10]
    assert passes(share, 12, kind=Left, calm=60.0) == [0, 5, 10], "else a step is seen late"
    assert passes(share, 12, kind=Left, watched=3.5) == [0, 1, 2, 3, 8]
    assert passes(share, 4, kind=Left, all_seen=True) == [0, 1, 2, 3], "it is recorded"
    assert passes(share, 4, kind=Left, calm=1.0) == [0, 1, 2, 3], "the user says so"


@pytest.mark.parametrize("every", [5, 10])
@pytest.mark.parametrize("kind", [Rule, Left])
def test_no_burst_is_missed_that_comes_as_regularly_as_passes(
    kind: "type[Rule]", every: int
) -> None:
    """Of one second, each five or ten, at whichever of them."""
    section = Section(name="r", policy="qs", period=1.0)
    for offset in range(every):
        gauge = FakeGauge(0.0)
        pace = Pace(5.0, 0.0, gauge)
        rule = kind(section, make_policy(section, "nice"), "nice", Timer(1.0, 0.0))
        rule.urgent, seen_s, ran_s = False, 0.0, 0.0
        for second in range(121):
            now_s = float(second)
            gauge.share = float(second % every == offset)
            if pace.due([rule], now_s):
                seen_s += pace.share_before(rule) * (now_s - ran_s)
                ran_s = now_s
                rule.timer.done(now_s)
        assert seen_s == pytest.approx(120 / every, abs=1), offset


def test_pressure_that_is_not_known_counts_for_no_time() -> None:
    gauge = FakeGauge(None)
    pace, section = Pace(5.0, 0.0, gauge), Section(name="r", policy="qs", period=1.0)
    rule = Left(section, make_policy(section, "nice"), "nice", Timer(1.0, 0.0))
    rule.urgent = False

    def shares(*told: float | None) -> float:
        for gauge.share in told:
            if pace.due([rule], rule.timer.due_s):
                rule.timer.done(rule.timer.due_s)
        return pace.share_before(rule)

    assert math.isnan(pace.share_before(rule)), "there was no pass"
    assert math.isnan(shares(None))
    assert math.isnan(shares(*[None] * 5))
    assert math.isnan(shares(*[math.nan] * 5))
    assert shares(0.5, None, 0.7, math.nan, 0.9) == pytest.approx(0.7)
    rule.urgent = True
    assert shares(0.2) == pytest.approx(0.9), "no look since the last one"


def test_threads_that_come_where_all_is_left_to_the_system_call_for_one_pass() -> None:
    """They may be a query's for which there is an order; or helpers of a Java machine."""
    for share in (0.0, 1.0):
        assert passes(share, 16, kind=Left, stirred=2) == [0, 2, 7, 12]
        assert passes(share, 16, kind=Left, stirred=5) == [0, 5, 10, 15]
        assert passes(share, 16, kind=Left, stirred=1, stirred_each=1) == [0, 1, 6, 7, 12, 13]
        assert passes(share, 16, kind=Left, stirred=2, stirred_each=7) == [0, 2, 7, 9, 14]


def test_who_wants_frequent_passes_under_pressure_has_them() -> None:
    assert passes(0.5, 1, kind=Left, pressed=0.25) == [0, 0.25, 0.5, 0.75]
    assert passes(0.0, 12, kind=Left, calm=10.0) == [0, 10], "nobody waits"


@pytest.mark.parametrize("share", [0.05, 1.0, None, float("nan")])
def test_with_pressure_or_without_knowing_every_pass_is_run(share: float | None) -> None:
    assert passes(share, 4) == [0, 1, 2, 3]


@pytest.mark.parametrize("calm", [0.0, 0.5, 1.0])
def test_a_calm_period_not_above_the_period_leaves_nothing_out(calm: float) -> None:
    assert passes(0.0, 4, calm=calm) == [0, 1, 2, 3]


def test_pressure_makes_passes_more_frequent_if_that_is_wanted() -> None:
    assert passes(0.5, 2, pressed=0.25) == pytest.approx([0.25 * i for i in range(8)])
    assert passes(0.05, 4, pressed=0.25) == [0, 1, 2, 3]
    assert passes(0.0, 12, pressed=0.25) == [0, 5, 10]


@pytest.mark.parametrize("late", [0.002, 0.3, 0.9])
def test_a_pass_that_came_late_does_not_cost_the_next_one(late: float) -> None:
    """The loop was busy; its deadlines stay where they were."""
    for calm, share in ((0.0, 0.0), (5.0, 0.5)):
        assert len(passes(share, 10, calm=calm, late=late)) == 10
    assert len(passes(0.0, 30, late=late)) == 6


def test_nothing_is_left_out_while_somebody_looks() -> None:
    assert passes(0.0, 12, watched=3.5) == [0, 1, 2, 3, 8]


def limited(limit: float, *costs_s: float, **more: float) -> list[float]:
    """When a rule with a period of 1 s has its passes under pressure, if each costs so much."""
    pace = Pace(5.0, 0.0, FakeGauge(1.0), cpu_limit=limit, longest_s=5.0)
    pace.watched_until_s = more.get("watched", 0.0)
    stirring_s = more.get("stirring", float("inf"))
    section = Section(name="r", policy="qs", period=1.0)
    rule = Rule(section, make_policy(section, "nice"), "nice", Timer(1.0, 0.0))
    rule.urgent = False
    ran, total_s = [], 3.0
    pace.charge(total_s)
    for cost_s in costs_s:
        while not pace.due([rule], now_s := rule.timer.due_s):
            if now_s >= stirring_s:
                pace.stir(rule)
        ran.append(now_s)
        rule.timer.done(now_s)
        total_s += cost_s
        pace.charge(total_s)
    return ran


def test_passes_that_cost_more_than_the_limit_are_further_apart() -> None:
    assert limited(0.02, *[0.02] * 9) == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert limited(0.02, *[0.06] * 8) == [0, 1, 2, 3, 4, 7, 10, 13]
    assert limited(0.02, *[0.6] * 7) == [0, 1, 2, 3, 4, 9, 14]  # not further than that
    assert limited(0.0, *[0.6] * 7) == [0, 1, 2, 3, 4, 5, 6]  # no limit


def test_a_single_dear_pass_changes_nothing_and_cheap_ones_end_it() -> None:
    assert limited(0.02, *[0.01] * 4, 0.9, *[0.01] * 4) == list(range(9))
    assert limited(0.02, *[0.06] * 5, *[0.01] * 6) == [0, 1, 2, 3, 4, 7, 10, 13, 14, 15, 16]


def test_threads_that_come_and_go_all_the_time_do_not_end_the_limit() -> None:
    assert limited(0.02, *[0.06] * 8, stirring=0.0) == [0, 1, 2, 3, 4, 7, 10, 13]


def test_the_limit_waits_while_somebody_looks() -> None:
    assert limited(0.02, *[0.06] * 10, watched=8.5) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 11]


def test_what_is_urgent_never_waits() -> None:
    pace = Pace(5.0, 0.0, FakeGauge(0.0))
    section = Section(name="r", policy="qs", period=1.0)
    rule = Rule(section, make_policy(section, "nice"), "nice", Timer(1.0, 0.0))
    for now_s in (0.0, 0.1, 0.2):
        rule.urgent = True
        assert pace.due([rule], now_s) == [rule]
    rule.urgent = False
    rule.timer.done(0.2)
    assert pace.due([rule], 1.0) == [] and pace.rested == 1


@dataclass
class FakeRule(Rule):
    """Decides as before until then."""

    until_s: float = float("inf")

    def holds(self, now_s: float) -> bool:
        return now_s < self.until_s


@pytest.mark.parametrize("share", [1.0, None])
def test_what_would_decide_as_before_is_left_out(share: float | None) -> None:
    pace, section = Pace(0.0, 0.0, FakeGauge(share)), Section(name="r", policy="hr", period=0.1)
    rule = FakeRule(section, make_policy(section, "nice"), "nice", Timer(0.1, 0.0), until_s=0.55)

    def runs(**more: bool) -> bool:
        rule.urgent = False
        due = pace.due([rule], rule.timer.due_s, **more)
        if due:
            rule.timer.done(rule.timer.due_s)
        return bool(due)

    assert runs()  # the first one
    assert [runs() for _ in range(5)] == [False] * 5 and pace.rested == 5
    assert runs()  # 0.6: what was decided has grown old
    rule.until_s = float("inf")
    assert not runs()
    pace.stir(rule)
    assert runs() and not runs()
    assert runs(all_seen=True) and not runs()
    pace.watched_until_s = rule.timer.due_s + 0.05
    assert runs() and not runs()
