"""Guards of several rules: whose queries count for which, and who tries when."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from fakes import QUICK, FakeBackend, FakeEngine, backends, chains

from sched_ctl.adapt.race import opened
from sched_ctl.config.settings import Section
from sched_ctl.controller import races
from sched_ctl.controller.loop import Controller
from sched_ctl.controller.rule import Rule
from sched_ctl.controller.trial import Trial
from sched_ctl.metrics.window import Window
from sched_ctl.model.targets import Target
from sched_ctl.model.topology import Snapshot

ENGINE = "fake:a"
TOPOLOGY = chains(ENGINE, {"a": 2, "b": 2}, lambda _: ())
Queues = Mapping[str, tuple[float, float]]  # query -> tuples that wait, under ours and the OS's


class Machine:
    """Rules over one engine with two queries, on a clock that the test moves."""

    def __init__(self, queues: Queues, *sections: Section) -> None:
        settings = msgspec.structs.replace(QUICK, policy=sections, guard=60.0)
        engine = FakeEngine(queries={"a": 2, "b": 2})
        self.controller = Controller(settings, FakeEngine.kind(engine), backends(FakeBackend()))
        self.rules: Sequence[Rule] = self.controller.rules
        self.queues, self.second = queues, 0

    def tick(self) -> dict[str, str | None]:
        """A pass of each rule, a second later. What its guard finds."""
        self.second += 1
        claims, waiting = self.controller.claims, []
        for query, (ours, system) in self.queues.items():
            [rule] = [r for r in self.rules if query in claims.of(r, ENGINE, TOPOLOGY)]
            guard = rule.instead.guard
            waiting += [0.0, system if guard is not None and guard.own else ours]
        columns = {
            "tuples_in": np.full(4, 100.0 * self.second),
            "tuples_out": np.full(4, 100.0 * self.second),
            "queue_size": np.array(waiting),
        }
        now = Snapshot(TOPOLOGY, float(self.second), columns)
        one = SimpleNamespace(name=ENGINE, domain="", snapshot=now, refused={})
        engines: Any = {ENGINE: one}
        found: dict[str, str | None] = {}
        for rule in self.rules:
            rule.windows = {ENGINE: Window(now)}
            others = [other for other in self.rules if other is not rule]
            now_s = float(self.second)
            if rule.instead.trial is not None:
                races.look(rule, others, engines, claims, now_s, 0.5)
            found[rule.name] = races.guarded(rule, others, engines, claims, now_s)
        return found

    def own(self) -> list[str]:
        guards = {rule.name: rule.instead.guard for rule in self.rules}
        return [name for name, guard in guards.items() if guard is not None and guard.own]


def of(name: str, query: str, **more: Any) -> Section:
    return Section(name=name, policy="qs", queries=(query,), **more)


def test_a_rule_is_judged_by_its_own_queries_alone() -> None:
    """Both were found to do harm, as both were looked at together: 1.2 times as long."""
    machine = Machine({"a": (5, 10), "b": (30, 10)}, of("good", "a"), of("bad", "b"))
    found: set[str] = set()
    for _ in range(15 * 60):
        found |= {name for name, said in machine.tick().items() if said}
        assert len(machine.own()) <= 1, "the other's order is in force while one is compared"
    assert found == {"bad"}
    told = {rule.name: rule.instead.guard for rule in machine.rules}
    for name, times in (("good", 0.5), ("bad", 3.0)):
        guard = told[name]
        assert guard is not None
        assert len(guard.ratios["wait"]) >= 10, "neither keeps the other from looking"
        assert guard.ratios["wait"] == pytest.approx([times] * len(guard.ratios["wait"]))


def test_a_guard_and_a_race_of_another_rule_wait_for_each_other() -> None:
    machine = Machine({"a": (5, 10), "b": (30, 10)}, of("guarded", "a"), of("raced", "b"))
    guarded, raced = machine.rules
    trial = Trial(opened(("qs", "hr")), "qs", 10.0)
    raced.instead.trial, guard = trial, guarded.instead.guard
    assert guard is not None
    for _ in range(300):
        machine.tick()
        assert not (guard.own and trial.trying)
    assert trial.trying and not guard.ratios["wait"], "the race goes first, once it has begun"
    trial.race = replace(trial.race, mode="kept", kept=1, turn=1, check_in=400, reopen_after=4000)
    for _ in range(300):
        machine.tick()
        assert not (guard.own and trial.trying)
    assert len(guard.ratios["wait"]) >= 3
    seen = len(guard.ratios["wait"])
    for _ in range(900):
        trial.race = replace(trial.race, check_in=1)  # the system's own in every other phase
        machine.tick()
        assert not (guard.own and trial.trying)
    assert len(guard.ratios["wait"]) > seen and trial.race.checks


@pytest.mark.parametrize(("target", "found"), [(True, False), (False, True)])
def test_a_policy_that_keeps_a_target_is_not_blamed_for_who_has_none(
    target: bool, found: bool
) -> None:
    """From 100 to 10 ms with a target of 50, for which the other query waits 13 times as long."""
    targets = (Target(queries=("a",), latency="50ms"),) if target else ()
    section = Section(name="one", policy="deadline", target=targets, objective="mean")
    machine = Machine({"a": (1, 10), "b": (200, 15)}, section)
    assert any(machine.tick()["one"] for _ in range(20 * 60)) == found
