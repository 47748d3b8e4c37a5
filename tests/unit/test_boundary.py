"""What plug-ins get wrong is their own problem, told with file and line."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from fakes import QUICK, USER, FakeBackend, FakeEngine, backends, drive, of_user

from sched_ctl.adapt.guard import Guard
from sched_ctl.config.settings import Section
from sched_ctl.controller.loop import Controller
from sched_ctl.drivers import DriverKind, Target
from sched_ctl.engines.engine import Engine
from sched_ctl.metrics.window import Window
from sched_ctl.model.policy import OperatorFrame, Policy, UrgencyForm, form
from sched_ctl.model.topology import Snapshot
from sched_ctl.plugins import registry
from sched_ctl.service import views


def wrong_column(engine: FakeEngine) -> Snapshot:
    right = FakeEngine.poll(engine, 1.0)
    return replace(right, columns={**right.columns, "queue_size": np.zeros(7)})


def text_column(engine: FakeEngine) -> Snapshot:
    right = FakeEngine.poll(engine, 1.0)
    return replace(right, columns={**right.columns, "queue_size": np.array(["a", "b", "c"])})


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda engine: None, "returned NoneType, not a Snapshot"),
        (wrong_column, "'queue_size'] is (7,) for 3 operators"),
        (text_column, "'queue_size'] is (3,) for 3 operators"),
        (lambda engine: sys.exit("enough"), "SystemExit: enough"),
        (lambda engine: 1 / 0, "test_boundary.py:"),
    ],
)
@pytest.mark.parametrize("prompt", [False, True])
def test_a_drivers_fault_is_one_engines_problem(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[FakeEngine], Any], said: str, prompt: bool
) -> None:
    bad, good, backend = FakeEngine("bad"), FakeEngine("good"), FakeBackend()
    monkeypatch.setattr(bad, "poll", lambda timeout_s: answer(bad))
    kinds = FakeEngine.kind(bad, good)
    kinds = {"fake": replace(kinds["fake"], prompt=prompt)}
    controller = Controller(QUICK, kinds, backends(backend))

    async def script() -> None:
        while len(backend.schedules) < 3:
            await asyncio.sleep(0.01)
        assert said in (controller.engines["fake:bad"].problem or "")

    drive(controller, script)
    assert {t.pid for t in backend.threads()} == {good.topology.operators[0].threads[0].pid}


def short(frame: OperatorFrame) -> UrgencyForm:
    return replace(form(len(frame)), static=np.zeros(1))


def long(frame: OperatorFrame) -> UrgencyForm:
    return form(len(frame) + 5)


def leaves(frame: OperatorFrame) -> UrgencyForm:
    sys.exit("enough")


def nothing(frame: OperatorFrame) -> Any:
    return None


@pytest.mark.parametrize(
    ("urgency", "said"),
    [
        (short, "static of shape (1,) for 3 operators"),
        (long, "rank of shape (8,) for 3 operators"),
        (leaves, "SystemExit: enough"),
        (nothing, "returned NoneType"),
    ],
)
def test_a_policys_fault_is_its_own_problem(
    urgency: Callable[[OperatorFrame], UrgencyForm], said: str
) -> None:
    engine, backend = FakeEngine(queries={"a": 3, "b": 2}), FakeBackend()
    sections = (
        Section(name="bad", policy="hr", queries=("a",)),
        Section(name="good", policy="hr", queries=("b",)),
    )
    settings = msgspec.structs.replace(QUICK, policy=sections)
    controller = Controller(settings, FakeEngine.kind(engine), backends(backend))
    controller.rules[0].policy = Policy("bad", urgency, frozenset(), "nothing")

    async def script() -> None:
        problem = ""
        while len(backend.schedules) < 3 or said not in problem:
            await asyncio.sleep(0.01)  # it may also be that it is still deciding
            problem = next((p for p in views.problems(controller) if "policy bad" in p), "")
        if urgency is not leaves:
            assert "test_boundary.py:" in problem

    drive(controller, script)
    assert {s.scope for s in backend.schedules} == {"good"}


def test_what_is_infinite_is_unknown() -> None:
    def endless(frame: OperatorFrame) -> UrgencyForm:
        return replace(form(len(frame)), static=np.array([1.0, np.inf, -np.inf]))

    engine, backend = FakeEngine(), FakeBackend()
    controller = Controller(QUICK, FakeEngine.kind(engine), backends(backend))
    controller.rules[0].policy = Policy("endless", endless, frozenset(), "nothing")

    async def script() -> None:
        while not backend.schedules:
            await asyncio.sleep(0.01)

    drive(controller, script)
    static = backend.schedules[-1].form.static
    assert static[0] == 1.0 and np.isnan(static[1:]).all()


def test_a_policy_that_takes_long_delays_itself_alone() -> None:
    goes_on = threading.Event()

    def slow(frame: OperatorFrame) -> UrgencyForm:
        goes_on.wait(20)
        return form(len(frame), static=1.0)

    engine, backend = FakeEngine(queries={"a": 3, "b": 2}), FakeBackend()
    sections = (
        Section(name="slow", policy="hr", queries=("a",)),
        Section(name="quick", policy="hr", queries=("b",)),
    )
    settings = msgspec.structs.replace(QUICK, policy=sections)
    controller = Controller(settings, FakeEngine.kind(engine), backends(backend))
    controller.rules[0].policy = Policy("slow", slow, frozenset(), "nothing")

    async def script() -> None:
        while sum(s.scope == "quick" for s in backend.schedules) < 10:
            await asyncio.sleep(0.01)
        assert not any(s.scope == "slow" for s in backend.schedules)
        assert any("still deciding" in problem for problem in views.problems(controller))
        goes_on.set()
        while not any(s.scope == "slow" for s in backend.schedules):
            await asyncio.sleep(0.01)

    drive(controller, script)


def of_others(monkeypatch: pytest.MonkeyPatch, urgency: Callable[[OperatorFrame], Any]) -> None:
    """`fcfs` is a policy that is not ours, made anew whenever somebody asks for it."""
    named = registry.policy

    def made(name: str, options: Mapping[str, object]) -> Policy:
        policy = named(name, options)
        return replace(policy, urgency=urgency) if name == "fcfs" else policy

    monkeypatch.setattr(registry, "policy", made)


def test_one_that_takes_long_goes_on_while_a_users_queries_come_and_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It began anew each time, behind all that it had begun before, and never came to an end."""
    goes_on = threading.Event()

    def slow(frame: OperatorFrame) -> UrgencyForm:
        if len(frame):
            goes_on.wait(20)
        return form(len(frame), static=1.0)

    of_others(monkeypatch, slow)
    one = of_user(FakeEngine("one", queries={"a": 2}), monkeypatch)
    other = of_user(FakeEngine("other", queries={"b": 2}), monkeypatch, USER + 1)
    section = Section(policy="fcfs", queries=("a",))
    settings = msgspec.structs.replace(QUICK, policy=(section,))
    backend = FakeBackend()
    controller = Controller(settings, FakeEngine.kind(one, other), backends(backend))
    [rule] = controller.rules
    rule.instead.whose = str(USER)  # as by a switch

    async def script() -> None:
        while (rule.name, str(USER)) not in controller._deciding:
            await asyncio.sleep(0.005)
        deciding = controller._deciding[rule.name, str(USER)][1]
        for number in range(4):
            rule.count({str(USER): 1} if number % 2 else {str(USER): 1, str(USER + 1): 1})
            passes = rule.passes
            while rule.passes < passes + 2:
                await asyncio.sleep(0.005)
            assert controller._deciding[rule.name, str(USER)][1] is deciding
        goes_on.set()
        while not backend.schedules:
            await asyncio.sleep(0.005)

    drive(controller, script)


def test_a_policy_that_takes_long_for_a_user_keeps_nobody_else_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    goes_on, waited = threading.Event(), list[bool]()

    def slow(frame: OperatorFrame) -> UrgencyForm:
        if frame.operators[0].query == "theirs":
            waited.append(goes_on.wait(20))
        return form(len(frame), static=1.0)

    of_others(monkeypatch, slow)
    ours = FakeEngine("ours", queries={"ours": 2})
    theirs = of_user(FakeEngine("theirs", queries={"theirs": 2}), monkeypatch)
    settings = msgspec.structs.replace(QUICK, policy=(Section(policy="fcfs"),))
    backend = FakeBackend()
    controller = Controller(settings, FakeEngine.kind(theirs, ours), backends(backend))

    async def script() -> None:
        while (controller.rules[0].name, str(USER)) not in controller._deciding:
            await asyncio.sleep(0.005)
        before = len(backend.schedules)
        while len(backend.schedules) < before + 3:
            await asyncio.sleep(0.005)
        assert not waited, "the user's has come to an end"
        goes_on.set()
        while (controller.rules[0].name, str(USER)) in controller._thinkers:
            if (engine := controller.engines.pop("fake:theirs", None)) is not None:
                engine.close()  # it may have been found again meanwhile
            await asyncio.sleep(0.005)

    drive(controller, script)


def test_what_is_decided_at_once_asks_for_no_pass_while_another_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    goes_on = threading.Event()

    def slow(frame: OperatorFrame) -> UrgencyForm:
        if frame.operators[0].query == "theirs":
            goes_on.wait(20)
        return form(len(frame), static=1.0)

    of_others(monkeypatch, slow)
    ours = FakeEngine("ours", queries={"ours": 2})
    theirs = of_user(FakeEngine("theirs", queries={"theirs": 2}), monkeypatch)
    settings = msgspec.structs.replace(QUICK, policy=(Section(policy="fcfs"),), period=60.0)
    controller = Controller(settings, FakeEngine.kind(theirs, ours), backends(FakeBackend()))

    async def script() -> None:
        [rule] = controller.rules
        while (rule.name, str(USER)) not in controller._deciding:
            await asyncio.sleep(0.005)
        passes = rule.passes
        for _ in range(100):
            await asyncio.sleep(0.002)
        assert rule.passes <= passes + 3
        goes_on.set()

    drive(controller, script)


def test_the_guard_looks_at_what_a_policy_does_that_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pass that takes what was decided asks for nothing: it knew of no engine."""
    goes_on, seen = threading.Event(), list[set[str]]()

    def slow(frame: OperatorFrame) -> UrgencyForm:
        goes_on.clear()
        goes_on.wait(20)
        return form(len(frame), static=1.0)

    def look(
        guard: Guard, now_s: float, windows: Mapping[str, Window], *_: object, **__: object
    ) -> None:
        seen.append(set(windows))

    monkeypatch.setattr(Guard, "look", look)
    settings = msgspec.structs.replace(QUICK, guard=60.0)
    engine = FakeEngine()
    controller = Controller(settings, FakeEngine.kind(engine), backends(FakeBackend()))
    [rule] = controller.rules
    rule.policy = Policy("slow", slow, frozenset(), "nothing")

    async def script() -> None:
        while len(seen) < 3:
            if controller._deciding:
                goes_on.set()
            await asyncio.sleep(0.01)
        goes_on.set()

    drive(controller, script)
    assert seen[:3] == [{engine.target.engine}] * 3
    assert set(rule.windows) == {engine.target.engine}


def test_an_engine_that_died_before_it_was_noted_is_no_ghost() -> None:
    async def note() -> str | None:
        target = Target("fake", "gone", 2**22 + 1)
        engine = Engine(target, DriverKind("fake", lambda: [], lambda _: FakeEngine()), 1.0)
        change = engine.check(0.0, 1.0, 1.0)
        engine.close()
        return change

    assert asyncio.run(note()) == "its process ended"


def test_an_engine_that_costs_too_much_is_asked_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeEngine()
    fake.target = Target("fake", "a", uid=20001)

    async def ask() -> Engine:
        engine = Engine(fake.target, FakeEngine.kind(fake)["fake"], 1.0)
        monkeypatch.setattr(engine, "_charge", lambda spent_s: charge(engine))
        question = engine.ask(time.monotonic(), 1.0)
        assert question is not None
        await asyncio.wait_for(question, 10)
        await asyncio.sleep(0)
        engine.close()
        return engine

    def charge(engine: Engine) -> None:
        Engine._charge(engine, 2.0)  # as if it had taken two seconds
        rests.append(engine.ask(engine._asked_s + 5, 1.0) is None)

    rests: list[bool] = []
    engine = asyncio.run(ask())
    assert rests == [True]
    assert engine.costly is not None and "0.1 of a CPU" in engine.costly
