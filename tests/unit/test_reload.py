"""Another configuration for a controller that runs: all of it, or none."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
from fakes import FakeBackend, FakeEngine, backends, drive, sleeping_threads

from sched_ctl.config.settings import Section, SettingError, Settings, Switch
from sched_ctl.controller.loop import Controller
from sched_ctl.drivers import DriverKind
from sched_ctl.errors import UserError
from sched_ctl.metrics.catalogue import MissingMetric
from sched_ctl.model.access import Access
from sched_ctl.model.options import BackendOptions, NiceOptions
from sched_ctl.model.policy import OperatorFrame, Policy, UrgencyForm, form
from sched_ctl.model.schedule import Schedule
from sched_ctl.service import views
from sched_ctl.service.reload import ReadAgain, reload, reloaded
from sched_ctl.telemetry import profiles

QUICK = Settings(
    policy=(Section(policy="hr"),),
    period=0.02,
    calm_period=0,
    cpu_limit=0,
    poll_timeout=0.1,
    discover=0.1,
    window=0.1,
)


def but(settings: Settings, **changes: Any) -> Settings:
    return msgspec.structs.replace(settings, **changes)


def use(settings: Settings) -> ReadAgain:
    return lambda apply: apply(settings)


@dataclass
class Case:
    """A controller over fake engines, and what its backend was last told, by scope."""

    engines: tuple[FakeEngine, ...]
    backend: FakeBackend = field(default_factory=FakeBackend)
    settings: Settings = QUICK

    def run(self, script: Callable[[Controller], Coroutine[Any, Any, None]]) -> Controller:
        controller = Controller(
            self.settings, FakeEngine.kind(*self.engines), backends(self.backend)
        )

        async def both() -> None:
            try:
                await controller.start()
                loop = asyncio.create_task(controller.run())
                try:
                    await script(controller)
                finally:
                    controller.stop("the script ended")
                    await loop
            finally:
                controller.close()

        asyncio.run(both())
        return controller

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.005)

    def last(self) -> dict[str, tuple[str, set[str]]]:
        """Scope -> policy and operators of the last schedule."""
        return {s.scope: (s.policy, set(s.operators)) for s in self.backend.schedules}


def test_other_policies_rules_and_exclusions_are_in_force() -> None:
    case = Case((FakeEngine(queries={"etl": 1, "stats": 1, "secret": 1}),))
    new = but(
        QUICK,
        policy=(Section(name="one", policy="qs", queries=("etl",)), Section(policy="hr")),
        exclude=("secret",),
        period=0.03,
    )

    async def script(controller: Controller) -> None:
        await case.until(lambda: case.backend.schedules)
        assert case.last() == {"hr": ("hr", {"etl/op0", "stats/op0", "secret/op0"})}
        at = len(case.backend.schedules)
        assert reloaded(controller, use(new)) == ["policy", "exclude", "period"]
        # Nobody's threads are left from before, and what follows is by the new one alone.
        assert not case.backend.schedules[at].threads
        await case.until(lambda: {"one", "hr"} <= {s.scope for s in case.backend.schedules[at:]})

    controller = case.run(script)
    assert case.last() == {"one": ("qs", {"etl/op0"}), "hr": ("hr", {"stats/op0"})}
    assert [rule.timer.period_s for rule in controller.rules] == [0.03, 0.03]


def test_what_rules_are_made_by_is_that_of_the_new_one() -> None:
    case = Case((FakeEngine(),))

    async def script(controller: Controller) -> None:
        reload(controller, but(QUICK, guard=60.0, pressed_period=0.005))
        [rule] = controller.rules
        assert rule.instead.guard is not None and rule.timer.period_s == 0.005
        reload(controller, QUICK)
        [rule] = controller.rules
        assert rule.instead.guard is None and rule.timer.period_s == 0.02

    case.run(script)


def test_what_the_guard_found_harmful_stays_out_of_force() -> None:
    case = Case((FakeEngine(),), settings=but(QUICK, guard=60.0))
    wider = but(QUICK, guard=60.0, window=0.2)

    async def script(controller: Controller) -> None:
        await case.until(lambda: case.backend.schedules)
        controller.rules[0].step_back("tuples wait longer")
        reload(controller, wider)
        [rule] = controller.rules
        assert rule.policy.name == "constant" and rule.instead.stepped_back
        rule.step_back("tuples wait longer still")
        reload(controller, but(wider, window=0.3))
        [rule] = controller.rules
        assert rule.instead.resting and len(rule.instead.stepped_back) == 2
        # What the user says anew counts: another policy, or no guard.
        for new in (but(wider, policy=(Section(policy="qs"),)), but(wider, guard=0.0)):
            reload(controller, new)
            [rule] = controller.rules
            assert rule.policy.name == new.policy[0].policy and not rule.instead.resting

    case.run(script)


def test_a_policy_that_was_set_gives_way_to_the_configured_one_and_that_is_said() -> None:
    case = Case((FakeEngine(),))

    async def script(controller: Controller) -> None:
        controller.set_policy(controller.rules[0], "qs", {})
        assert reload(controller, QUICK) == ["policy"]
        assert controller.rules[0].policy.name == "hr"
        assert reload(controller, QUICK) == []

    case.run(script)


def test_a_switch_that_is_on_stays_on() -> None:
    engine = FakeEngine(queries={"q": 1})
    engine.queue = np.array([150.0])
    switch = Switch(policy="qs", metric="queue_size", above=100, back=50, lasting=0.1)
    section = Section(policy="hr", switch=(switch,))
    case = Case((engine,), settings=but(QUICK, policy=(section,)))

    async def script(controller: Controller) -> None:
        await case.until(lambda: case.backend.schedules and case.last()["hr"][0] == "qs")
        engine.queue = np.array([60.0])  # between the two thresholds
        reload(controller, but(case.settings, window=0.2))
        at, passes = len(case.backend.schedules), controller.rules[0].passes
        await case.until(lambda: controller.rules[0].passes > passes + 2)
        assert {s.policy for s in case.backend.schedules[at:]} == {"qs"}
        other = msgspec.structs.replace(section, switch=())
        reload(controller, but(case.settings, policy=(other,)))
        assert controller.rules[0].policy.name == "hr"

    case.run(script)


def test_a_rule_that_stays_keeps_its_threads() -> None:
    case = Case((FakeEngine(),))

    async def script(controller: Controller) -> None:
        await case.until(lambda: len(case.backend.schedules) > 2)
        passes = controller.rules[0].passes
        new = Section(name="hr", policy="qs")
        reload(controller, but(QUICK, policy=(new,), window=0.2))
        await case.until(lambda: controller.rules[0].passes > passes)
        assert case.backend.schedules[-1].policy == "qs"

    case.run(script)
    assert all(schedule.threads for schedule in case.backend.schedules)


@pytest.mark.parametrize(
    ("new", "error"),
    [
        (but(QUICK, policy=(Section(policy="nonsense"),)), SettingError),
        (but(QUICK, policy=(Section(policy="hr", options={"none": 1}),)), SettingError),
        (but(QUICK, users=("nobody-of-that-name",)), SettingError),
        (but(QUICK, engine=("nonsense:1",)), UserError),
        (but(QUICK, run_dir="/nowhere"), UserError),
        (but(QUICK, metrics="127.0.0.1:1"), UserError),
        (QUICK, MissingMetric),
    ],
)
def test_a_bad_one_changes_nothing(new: Settings, error: type[UserError]) -> None:
    old = but(QUICK, policy=(Section(policy="qs"),))
    case = Case((FakeEngine(provides=frozenset({"queue_size"})),), settings=old)

    async def script(controller: Controller) -> None:
        await case.until(lambda: case.backend.schedules)
        rules, claims = list(controller.rules), controller.claims
        with pytest.raises(error) as caught:
            reloaded(controller, use(new))
        assert controller.settings is old and controller.claims is claims
        assert all(a is b for a, b in zip(controller.rules, rules, strict=True))
        assert caught.value.message in "".join(views.problems(controller))
        at = len(case.backend.schedules)
        await case.until(lambda: len(case.backend.schedules) > at + 2)
        assert case.backend.schedules[-1].policy == "qs"
        assert reloaded(controller, use(old)) == []
        assert not views.problems(controller)

    case.run(script)
    assert all(schedule.threads for schedule in case.backend.schedules)


def test_what_is_read_at_the_start_alone_keeps_no_reload_from_working(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    profiles.write(path, profiles.Profile(queries=[]))
    old = but(QUICK, profiles=str(path))
    case = Case((FakeEngine(),), settings=old)

    async def script(controller: Controller) -> None:
        path.unlink()
        assert reload(controller, but(old, window=0.2)) == ["window"]

    case.run(script)


def test_a_file_that_cannot_be_read_changes_nothing() -> None:
    case = Case((FakeEngine(),))

    def unreadable(use: Callable[[Settings], Any]) -> Any:
        raise UserError("sched-ctl.toml: not UTF-8 at byte 3")

    async def script(controller: Controller) -> None:
        with pytest.raises(UserError, match="byte 3"):
            reloaded(controller, unreadable)
        with pytest.raises(UserError, match="not started from a configuration"):
            reloaded(controller, None)
        assert controller.settings is QUICK

    case.run(script)


def test_engines_come_and_go_with_the_setting() -> None:
    one, two = FakeEngine("one"), FakeEngine("two")
    case = Case((one, two))

    async def script(controller: Controller) -> None:
        await case.until(lambda: case.backend.schedules)
        reload(controller, but(QUICK, engine=("fake:two",)))
        assert list(controller.engines) == ["fake:two"]
        await case.until(
            lambda: (
                {t.pid for t in case.backend.schedules[-1].threads}
                == {t.pid for o in two.topology.operators for t in o.threads}
            )
        )
        await case.until(lambda: one.closed)
        reload(controller, QUICK)
        await case.until(lambda: len(controller.rules[0].windows) == 2)

    case.run(script)


async def decided_late(
    case: Case, controller: Controller, meanwhile: Callable[[Policy], object]
) -> list[Schedule]:
    """What is ordered since this was done, while this policy of somebody else was deciding."""
    asked, answer = threading.Event(), threading.Event()

    def slow(frame: OperatorFrame) -> UrgencyForm:
        asked.set()
        answer.wait(10)
        return form(len(frame), static=1.0)

    policy = Policy("slow", slow, frozenset(), "nothing")
    controller.rules[0].policy = policy
    await case.until(asked.is_set)
    meanwhile(policy)
    at = len(case.backend.schedules)
    answer.set()
    await case.until(lambda: len(case.backend.schedules) > at + 3)
    return case.backend.schedules[at:]


def test_what_is_being_decided_by_the_old_rules_is_dropped() -> None:
    """It has threads that are excluded by now."""
    case = Case((FakeEngine(queries={"etl": 1, "secret": 1}),))
    without = but(QUICK, exclude=("secret",))

    async def script(controller: Controller) -> None:
        def again(policy: Policy) -> None:
            reload(controller, without)
            controller.rules[0].policy = policy

        later = [set(s.operators) for s in await decided_late(case, controller, again)]
        assert {"etl/op0"} in later and {"etl/op0", "secret/op0"} not in later

    case.run(script)


def test_what_another_policy_is_deciding_is_dropped() -> None:
    case = Case((FakeEngine(),))
    quick = Policy("quick", lambda frame: form(len(frame), static=2.0), frozenset(), "nothing")

    async def script(controller: Controller) -> None:
        def another(_: Policy) -> None:
            controller.rules[0].policy = quick

        assert {s.policy for s in await decided_late(case, controller, another)} == {"quick"}

    case.run(script)


class OtherOptions(FakeBackend):
    name: ClassVar[str] = "nice"


def test_a_backend_with_other_options_is_made_anew() -> None:
    backend = OtherOptions()
    case = Case((FakeEngine(),), backend)

    async def script(controller: Controller) -> None:
        await case.until(lambda: backend.schedules)
        reload(controller, but(QUICK, backends=BackendOptions(nice=NiceOptions(worst=5))))
        assert backend.restored == 1
        at = len(backend.schedules)
        await case.until(lambda: len(backend.schedules) > at)
        assert controller.backends is not None
        assert controller.backends._options["nice"] == NiceOptions(worst=5)

    case.run(script)


def test_an_engine_is_reached_in_another_way() -> None:
    """By the first table whose pattern fits; one whose table stays keeps its connection."""
    one, other = FakeEngine("a"), FakeEngine("b", queries={"r": 2})
    case = Case((one, other), settings=but(QUICK, access={"fake:b": Access(name="b")}))

    async def script(controller: Controller) -> None:
        await case.until(lambda: one.reached and other.reached)
        reload(controller, but(QUICK, access={"fake:b": Access(name="b"), "fake": Access()}))
        await case.until(lambda: len(one.reached) == 2)

    case.run(script)
    assert one.reached == [None, Access()]
    assert other.reached == [Access(name="b")]


def test_an_engine_that_is_named_and_found_under_another_name_is_one() -> None:
    """Its threads would have two orders at a time."""
    threads = sleeping_threads(3)
    found, named = FakeEngine("a-1", threads=threads), FakeEngine("a", threads=threads)
    found.target = replace(found.target, pid=os.getpid())
    present = {engine.target.engine: engine for engine in (found, named)}
    kind = DriverKind("fake", lambda: [found.target], lambda target: present[target.engine])
    settings = but(QUICK, engine=("fake", "fake:a"), stale_after=0.1)
    controller = Controller(settings, {"fake": kind}, backends(FakeBackend()))

    async def script() -> None:
        async with asyncio.timeout(30):
            while not (named.closed and found.polls > 3):
                await asyncio.sleep(0.005)
        await controller.roster.discover(patience_s=10)
        assert list(controller.engines) == ["fake:a-1"]
        found.fail = "it hangs"  # as a leader at whose place another one goes on
        async with asyncio.timeout(30):
            while "fake:a" not in controller.engines:
                await asyncio.sleep(0.005)
        found.fail = None
        reload(controller, but(settings, engine=("fake:a",)))
        await controller.roster.discover(patience_s=10)
        assert list(controller.engines) == ["fake:a"]

    drive(controller, script)
