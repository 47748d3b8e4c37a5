"""Whose engines a switch and the guard go by, and for whom what they find there is."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from fakes import QUICK, USER, FakeBackend, FakeEngine, backends, drive, of_user

from sched_ctl.config.settings import Section, Switch
from sched_ctl.controller import races
from sched_ctl.controller.loop import Controller
from sched_ctl.controller.rule import Rule
from sched_ctl.service import views
from sched_ctl.service.reload import reload

SWITCH = Switch(policy="qs", metric="queue_size", above=1e4, back=10.0, lasting=0.0)
ROOT, THEIRS, OTHERS = "", str(USER), str(USER + 1)


class Case:
    """Engines of root's and of two users, none of which is there at first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, switch: Switch | None = None) -> None:
        self.made = {ROOT: FakeEngine("root"), THEIRS: FakeEngine("a"), OTHERS: FakeEngine("b")}
        for domain in (THEIRS, OTHERS):
            of_user(self.made[domain], monkeypatch, int(domain))
        for engine in self.made.values():
            engine.queue = np.zeros(3)
        self.present: list[str] = []
        kind = FakeEngine.kind(*self.made.values())["fake"]
        find = replace(kind, find=lambda: [self.made[domain].target for domain in self.present])
        section = Section(policy="hr", switch=() if switch is None else (switch,))
        self.settings = msgspec.structs.replace(
            QUICK, policy=(section,), guard=60.0, discover=0.01, poll_timeout=5.0
        )
        self.controller = Controller(self.settings, {"fake": find}, backends(FakeBackend()))

    @property
    def rule(self) -> Rule:
        [rule] = self.controller.rules
        return rule

    async def here(self, *domains: str) -> None:
        """Until these are there, and no others, and passes with them were run."""
        self.present[:] = domains

        def settled() -> bool:
            engines = self.controller.engines
            for engine in [e for e in engines.values() if e.domain not in domains]:
                engines.pop(engine.name).close()
            self.rule.urgent = True
            return sorted(self.rule.windows) == sorted(
                self.made[domain].target.engine for domain in domains
            )

        await until(settled)
        await self.passes()

    async def passes(self) -> None:
        before = self.rule.passes
        await until(lambda: self.rule.passes > before + 3)

    def policies(self) -> dict[str, str]:
        """In force, by domain."""
        own = self.rule.instead.own_in
        return {
            domain: "" if own(domain) else self.rule.policy_of(domain).name
            for domain in sorted(e.domain for e in self.controller.engines.values())
        }


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_a_user_moves_the_switch_of_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """His queue of 1e9 brought root's queries under another policy."""
    case = Case(monkeypatch, SWITCH)

    async def script() -> None:
        case.made[THEIRS].queue = np.full(3, 1e9)
        await case.here(ROOT, THEIRS)
        assert case.policies() == {ROOT: "hr", THEIRS: "hr"}
        await case.here(THEIRS)
        assert case.policies() == {THEIRS: "qs"}
        await case.here(THEIRS, OTHERS)
        assert case.policies() == {THEIRS: "qs", OTHERS: "hr"}
        await case.here(ROOT, THEIRS)
        assert case.policies() == {ROOT: "hr", THEIRS: "hr"}
        case.made[ROOT].queue = np.full(3, 1e5)
        await until(lambda: case.policies() == {ROOT: "qs", THEIRS: "qs"})

    drive(case.controller, script)


def test_roots_guessing_engine_is_not_refused_for_what_the_guard_found_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It had given up on a user's engine, and so nobody seemed to watch."""
    case = Case(monkeypatch)
    vars(case.made[ROOT])["guesses"] = frozenset({"tuples_in", "tuples_out"})

    async def script() -> None:
        await case.here(THEIRS)
        case.rule.step_back("tuples wait longer")
        case.rule.step_back("tuples wait longer still")
        await case.here(ROOT, THEIRS)
        assert case.policies() == {ROOT: "hr", THEIRS: "hr"}

    drive(case.controller, script)


def test_what_pressure_has_switched_stays_when_others_are_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is the machine's: an engine that restarts beside a user's makes no difference."""
    case = Case(monkeypatch, Switch(policy="qs", metric="pressure", above=0.3, lasting=3600.0))

    async def script() -> None:
        await case.here(ROOT, THEIRS)
        [watch] = case.rule.instead.watch(case.rule.section.switch)
        watch.on = True
        await case.passes()
        assert case.policies() == {ROOT: "qs", THEIRS: "qs"}
        await case.here(THEIRS)
        assert case.policies() == {THEIRS: "qs"}

    drive(case.controller, script)


def test_an_engine_that_cannot_be_ruled_is_not_met_once_others_are_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The policy was the same object as before, so nobody looked: no engine had any order."""
    fine, poor = FakeEngine("a"), FakeEngine("b", provides=frozenset({"tuples_in"}))
    kinds = FakeEngine.kind(*(of_user(engine, monkeypatch) for engine in (fine, poor)))
    settings = msgspec.structs.replace(QUICK, policy=(Section(policy="qs"),), poll_timeout=5.0)
    controller = Controller(settings, kinds, backends(FakeBackend()))
    [rule] = controller.rules

    async def passes() -> None:
        try:
            await controller.start(strict=False)
            for _ in range(3):
                await controller.step(controller.rules)
                assert rule.problem is None
        finally:
            controller.close()

    asyncio.run(passes())
    assert rule.instead.whose == THEIRS and [*rule.windows] == ["fake:a"]
    assert controller.engines["fake:b"].refused


def test_what_a_switch_saw_before_the_guard_stepped_back_does_not_count_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody looked meanwhile: the first look took all of that time for pressure."""
    case = Case(monkeypatch, Switch(policy="qs", metric="pressure", above=0.3, lasting=60.0))

    def look(now_s: float) -> str | None:
        return case.rule.look(now_s, {}, {}, case.controller.claims, 0.9)

    assert look(0.0) is None
    case.rule.step_back("tuples wait longer")
    case.rule.hear(THEIRS, None)
    assert look(3600.0) is None
    assert "qs instead of hr" in (look(3660.0) or "")
    case.controller.close()


def test_what_the_guard_found_at_a_users_engines_is_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It put the policy out of force for root's engines as well, and for good."""
    case = Case(monkeypatch)

    async def script() -> None:
        await case.here(THEIRS)
        case.rule.step_back("tuples wait longer")
        assert case.policies() == {THEIRS: "constant"}
        await case.here(THEIRS, OTHERS)
        assert case.policies() == {THEIRS: "constant", OTHERS: "hr"}
        case.rule.step_back("tuples wait longer still")
        await case.passes()
        assert case.policies() == {THEIRS: "", OTHERS: "hr"}
        reload(case.controller, msgspec.structs.replace(case.settings, window=0.2))
        await case.passes()
        assert case.policies() == {THEIRS: "", OTHERS: "hr"}
        notes = str(views.status(case.controller)["notes"])
        assert f"nothing is enforced for user {USER}, until policy set" in notes
        await case.here(ROOT, THEIRS)
        assert case.policies() == {ROOT: "hr", THEIRS: "hr"}
        assert case.rule.instead.guard is not None and not case.rule.instead.stepped_back

    drive(case.controller, script)


def test_what_it_found_at_roots_is_for_all_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch)

    async def script() -> None:
        await case.here(ROOT)
        case.rule.step_back("tuples wait longer")
        for domains in ((ROOT, THEIRS), (THEIRS,), (THEIRS, OTHERS), (ROOT,)):
            await case.here(*domains)
            assert case.policies() == dict.fromkeys(domains, "constant")
            heard = races.compared(case.rule, case.controller.engines)
            assert list(heard) == (["fake:root"] if ROOT in domains else [])
        case.rule.step_back("tuples wait longer still")
        await case.here(THEIRS)
        assert case.policies() == {THEIRS: ""}
        case.controller.set_policy(case.rule, "qs", {})
        assert case.policies() == {THEIRS: "qs"}

    drive(case.controller, script)
