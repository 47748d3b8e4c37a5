"""What is in force where a backend, or the journal, fails for some of it."""

import time
from collections.abc import Collection, Mapping

import msgspec
import pytest
from fakes import QUICK, USER, FakeBackend, backends
from victims import plan

from sched_ctl.backends import Applied, Backend, BackendFailed, Probe
from sched_ctl.backends.in_use import Backends
from sched_ctl.backends.undo.journal import JournalError
from sched_ctl.config.settings import Section
from sched_ctl.controller.loop import Controller
from sched_ctl.engines.owners import scope
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import Thread

ROOT, THEIRS, OTHERS = "", str(USER), str(USER + 1)
UNFIT = BackendFailed("it has no cpu controller")
FULL = JournalError("cannot write the journal: No space left on device")


class Choosy(FakeBackend):
    """Fails for some scopes: where there are threads to order, or are none any more."""

    def __init__(self) -> None:
        super().__init__()
        self.ordering: dict[str, Exception] = {}
        self.releasing: dict[str, Exception] = {}
        self.asked = 0

    def apply(self, schedule: Schedule) -> Applied:
        self.asked += 1
        failing = self.ordering if schedule.threads else self.releasing
        if schedule.scope in failing:
            raise failing[schedule.scope]
        return super().apply(schedule)

    @property
    def in_force(self) -> set[str]:
        """Scopes that have threads."""
        return {s.scope for s in self.schedules if self.threads(s.scope)}


class Better(Choosy):
    name = "better"


class Case:
    """Rules whose passes decide what a test says."""

    def __init__(self, used: Backends, *names: str, **more: float) -> None:
        sections = tuple(Section(name=name, policy="hr") for name in names)
        settings = msgspec.structs.replace(QUICK, policy=sections, **more)
        self.controller = Controller(settings, {}, used)
        self.rules = self.controller.rules

    def decide(self, *domains: str, idle: Collection[str] = (), rule: int = 0) -> None:
        """A pass: there is a thread in each of these domains, and none in the idle ones."""
        one = self.rules[rule]
        threads = {domain: [Thread(9, 9, 9)] for domain in domains} | {d: [] for d in idle}
        one.schedules = {
            domain: plan(found, [1.0] * len(found), scope=scope(one.name, domain))
            for domain, found in threads.items()
        }
        one.urgent = False
        assert self.controller.enforcement is not None
        self.controller.enforcement.apply(one)


def test_what_fails_for_a_user_counts_for_that_user_alone() -> None:
    """His engine came first, and root's lost their order."""
    backend = Choosy()
    backend.ordering["a@" + THEIRS] = UNFIT
    case = Case(backends(backend), "a")
    for _ in range(3):
        case.decide(THEIRS, ROOT)
        assert backend.in_force == {"a"} and not backend.restored
    [problem] = case.rules[0].applied.problems
    assert problem.startswith("nice failed for engines of user ")
    assert problem.endswith(f": {UNFIT.message}")
    backend.ordering.clear()
    case.decide(THEIRS, ROOT)
    assert backend.in_force == {"a", "a@" + THEIRS} and not case.rules[0].applied.problems


def test_a_backend_that_holds_for_no_user_is_given_up() -> None:
    backend = Choosy()
    backend.ordering.update({"a@" + THEIRS: UNFIT, "a@" + OTHERS: UNFIT})
    case = Case(backends(backend), "a")
    restored = []
    for _ in range(2):  # at first nobody knows whether another rule has use for it
        case.decide(THEIRS, OTHERS)
        assert case.rules[0].urgent
        restored.append(backend.restored)
    assert restored == [0, 1]


def test_a_users_rule_that_comes_first_takes_no_backend_from_another_rule() -> None:
    backend = Choosy()
    backend.ordering["a@" + THEIRS] = UNFIT
    case = Case(backends(backend), "a", "b")
    for _ in range(3):
        case.decide(THEIRS, rule=0)
        case.decide(ROOT, rule=1)
    assert backend.in_force == {"b"} and not backend.restored


def test_what_failed_once_is_let_go_of_at_a_later_pass() -> None:
    """A full disk kept a user's threads at what they had, for as long as they lived."""
    backend = Choosy()
    case = Case(backends(backend), "a")
    case.decide(ROOT, THEIRS)
    backend.ordering["a"] = FULL
    case.decide(ROOT, idle=(THEIRS,))
    assert case.rules[0].problem == FULL.message
    assert backend.in_force == {"a"}
    backend.ordering.clear()
    backend.releasing["a"] = FULL
    case.decide(idle=(ROOT,))
    assert backend.in_force == {"a"}
    assert case.rules[0].applied.problems == (f"not released by nice: {FULL.message}",)
    backend.releasing.clear()
    case.decide()
    assert not backend.in_force and not case.rules[0].applied.problems


def test_what_no_rule_decides_any_more_is_let_go_of_without_a_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An engine that left at once, or a rule: no later pass speaks of them."""
    backend = Choosy()
    case = Case(backends(backend), "a", "b")
    case.decide(ROOT, THEIRS, rule=0)
    case.decide(ROOT, rule=1)
    enforcement = case.controller.enforcement
    assert enforcement is not None
    backend.releasing["a"] = backend.releasing["a@" + THEIRS] = FULL
    case.rules[0].schedules = {ROOT: case.rules[0].schedules[ROOT]}
    enforcement.rest()
    enforcement.release(case.rules.pop(0))
    enforcement.rest()
    asked = backend.asked
    enforcement.rest()
    assert backend.in_force == {"a", "a@" + THEIRS, "b"} and backend.asked == asked
    backend.releasing.clear()
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + 10.0)
    enforcement.rest()
    assert backend.in_force == {"b"}


def test_what_cannot_be_let_go_of_is_said_once_and_keeps_nothing_else_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend = Choosy()
    case = Case(backends(backend), "a")
    case.decide(ROOT, THEIRS)
    enforcement = case.controller.enforcement
    assert enforcement is not None
    backend.releasing["a@" + THEIRS] = FULL
    case.rules[0].schedules = {ROOT: case.rules[0].schedules[ROOT]}
    now_s = time.monotonic()
    for later_s in (0.0, 10.0, 20.0):
        monkeypatch.setattr(time, "monotonic", lambda later_s=later_s: now_s + later_s)
        asked = backend.asked
        enforcement.rest()
        assert backend.asked == asked + 1
    assert len([r for r in caplog.records if FULL.message in r.message]) == 1
    case.rules[0].schedules = {}
    enforcement.rest()
    assert backend.in_force == {"a@" + THEIRS}


@pytest.mark.parametrize("domain", [ROOT, THEIRS])
def test_a_backend_that_cannot_let_go_is_given_up_at_the_second_failure(domain: str) -> None:
    """As where the kernel has ended a scheduler while nobody was ordered."""
    backend = Choosy()
    case = Case(backends(backend), "a")
    case.decide(domain)
    backend.releasing[scope("a", domain)] = BackendFailed("the kernel ended it")
    restored = []
    for _ in range(2):
        case.decide(idle=(domain,))
        restored.append(backend.restored)
    assert restored == [0, 1]


def test_a_pass_counts_once_and_what_failed_long_ago_does_not() -> None:
    backend = Choosy()
    case = Case(backends(backend), "a")
    backend.ordering["a@" + THEIRS] = backend.releasing["a@" + THEIRS] = UNFIT
    case.decide(THEIRS)
    assert not backend.restored
    backend.ordering.clear()
    backend.releasing.clear()
    case.decide(idle=(THEIRS,))
    backend.ordering["a@" + THEIRS] = UNFIT
    case.decide(THEIRS)
    assert not backend.restored


def test_what_failed_to_order_and_was_let_go_of_is_forgotten() -> None:
    backend = Choosy()
    case = Case(backends(backend), "a")
    for _ in range(2):
        backend.ordering["a@" + THEIRS] = UNFIT
        case.decide(THEIRS)
        case.decide(idle=(THEIRS,))
    assert not backend.restored


@pytest.mark.parametrize(
    ("settings", "waits_s"),
    [({}, (30.0, 61.0)), ({"calm_period": 100.0, "stale_after": 400.0}, (590.0, 610.0))],
)
def test_a_rule_that_makes_no_passes_keeps_a_dead_backend_for_a_time_alone(
    settings: dict[str, float], waits_s: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer where it may rest for longer: then it has its turn first."""
    backend = Choosy()
    case = Case(backends(backend), "a", "b", **settings)
    case.decide(ROOT, rule=1)
    now_s = time.monotonic()
    backend.ordering["a@" + THEIRS] = BackendFailed("it is dead")
    restored = []
    for later_s in (0.0, *waits_s):
        monkeypatch.setattr(time, "monotonic", lambda later_s=later_s: now_s + later_s)
        case.decide(THEIRS, rule=0)
        restored.append(backend.restored)
    assert restored == [0, 0, 1]


def test_who_orders_nobody_for_a_phase_keeps_the_backend_until_its_next_pass() -> None:
    """The guard looked at the system's own order, and meanwhile a user's engine failed."""
    backend = Choosy()
    case = Case(backends(backend), "a", "b")
    enforcement = case.controller.enforcement
    assert enforcement is not None
    case.decide(ROOT, rule=1)
    case.decide(idle=(ROOT,), rule=1)
    dead = BackendFailed("it is dead")
    backend.ordering.update({"a@" + THEIRS: dead, "b": dead})
    for _ in range(3):
        case.decide(THEIRS, rule=0)
        enforcement.rest()
        assert not backend.restored
    case.decide(ROOT, rule=1)
    assert backend.restored == 1


def test_who_has_no_engine_any_more_keeps_no_dead_backend() -> None:
    backend = Choosy()
    case = Case(backends(backend), "a", "b")
    enforcement = case.controller.enforcement
    assert enforcement is not None
    case.decide(ROOT, rule=1)
    backend.ordering["a@" + THEIRS] = BackendFailed("it is dead")
    restored = []
    for domains in ((ROOT,), (), ()):
        case.decide(THEIRS, rule=0)
        restored.append(backend.restored)
        case.decide(idle=domains, rule=1)
        enforcement.rest()
    assert restored == [0, 0, 1]


def test_what_cannot_be_let_go_of_for_a_user_in_a_phase_counts_for_that_user_alone() -> None:
    backend = Choosy()
    case = Case(backends(backend), "a")
    case.decide(ROOT, THEIRS)
    backend.releasing["a@" + THEIRS] = UNFIT
    for _ in range(3):
        case.decide(idle=(ROOT, THEIRS))
        assert backend.in_force == {"a@" + THEIRS} and not backend.restored


def test_a_way_back_up_where_something_cannot_be_let_go_of() -> None:
    """The loop ended, and with it all order."""
    better, plain = Better(), Choosy()

    def choose(
        name: str, options: Mapping[str, msgspec.Struct], failed: Collection[str] = ()
    ) -> tuple[Backend, list[tuple[str, Probe]]]:
        return (plain if "better" in failed else better), []

    used = Backends(choose, {})
    case = Case(used, "a")
    better.ordering["a"] = OSError("no such file")
    case.decide(ROOT, THEIRS)
    case.decide(ROOT, THEIRS)
    assert plain.in_force == {"a", "a@" + THEIRS}
    better.ordering.clear()
    used._retries["better"].at_s = 0.0  # as later
    plain.releasing["a"] = FULL
    assert case.controller.enforcement is not None
    case.controller.enforcement.climb()
    case.decide(ROOT, THEIRS)
    assert better.in_force == {"a", "a@" + THEIRS} and plain.in_force == {"a"}
    plain.releasing.clear()
    case.decide(ROOT, THEIRS)
    assert not plain.in_force
