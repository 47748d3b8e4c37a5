"""The way down the ladder of backends, and up again."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest

from sched_ctl.backends import Applied, Backend, Probe, ladder
from sched_ctl.backends.in_use import Backends
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.cli import check as machine
from sched_ctl.errors import UserError
from sched_ctl.model.policy import Spacing, form
from sched_ctl.model.schedule import Group, Schedule
from sched_ctl.model.topology import Thread, UserThread
from sched_ctl.service.session import _choose


class Fake(Backend):
    name: ClassVar[str] = ""

    def __init__(self) -> None:
        self.restored = 0
        self.given: list[Schedule] = []

    def apply(self, schedule: Schedule) -> Applied:
        self.given.append(schedule)
        return Applied()

    def applied(self, thread: Thread) -> Mapping[str, str | float]:
        return {}

    def restore(self) -> tuple[str, ...]:
        self.restored += 1
        return ()


class Best(Fake):
    name = "best"


class Second(Fake):
    name = "second"


class Third(Fake):
    name = "third"


class OfPools(Fake):
    name = "pools"
    user_level = True


class Ladder:
    def __init__(self) -> None:
        self.best_works = True

    def __call__(
        self, name: str, options: Mapping[str, msgspec.Struct], failed: Collection[str] = ()
    ) -> tuple[Backend, list[tuple[str, Probe]]]:
        if self.best_works and "best" not in failed:
            return Best(), []
        return Second(), [("best", Probe(False, "broken"))]


class Lifting(Best):
    lifts = True


class Taken:
    """The best one is for one user alone, and its first user is ourselves."""

    def __init__(self) -> None:
        self.taken = False

    def __call__(
        self, name: str, options: Mapping[str, msgspec.Struct], failed: Collection[str] = ()
    ) -> tuple[Backend, list[tuple[str, Probe]]]:
        steps = []
        if name == "best" or "best" not in failed:
            if not self.taken:
                self.taken = True
                return Lifting(), []
            if name == "best":
                raise UserError("ours is attached")
            steps.append(("best", Probe(False, "ours is attached")))
        return (Third() if "second" in failed else Second()), steps


def test_each_backend_in_use_may_rest_once_a_pass() -> None:
    class Tired(Best):
        def rest(self) -> tuple[str, ...]:
            return ("a file is gone",)

    backends = Backends(lambda *_: (Tired(), []), {})
    assert backends.rest() == ()
    backends.get("auto")
    assert backends.rest() == ("a file is gone",)


def test_a_backend_that_failed_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("sched_ctl.backends.in_use.time.monotonic", lambda: now[0])
    fake = Ladder()
    backends = Backends(fake, {})
    lost: list[str] = []
    backends.on_lost = lost.append
    best = backends.get("auto")
    assert isinstance(best, Best)
    assert best.on_lost is not None
    best.on_lost("the kernel said no")
    assert lost == ["best"]

    def fall_and_wait() -> float:
        """Give the best one up; how long until it is back."""
        assert backends.get("auto").name == "best"
        backends.give_up("best", "no")
        assert backends.get("auto").name == "second"
        fell = now[0]
        while backends.climb() is None:
            now[0] += 0.5
        assert backends.get("auto").name == "best"
        return now[0] - fell

    pauses = [fall_and_wait() for _ in range(3)]
    assert pauses == [5.0, 10.0, 20.0]  # backs off
    assert best.restored == 1

    fake.best_works = False
    backends.give_up("best", "no")
    now[0] += 10_000
    assert backends.climb() is None  # its time has come, but it does not work
    assert backends.get("auto").name == "second"
    fake.best_works = True
    now[0] += 10_000
    assert backends.climb() == "best"
    now[0] += 3600
    assert fall_and_wait() == 5.0  # it ran well for an hour


def test_who_fails_at_each_try_is_told_of_once() -> None:
    passed = [("best", Probe(False, "it is not there"))]
    backends = Backends(lambda *_: (Second(), passed), {})
    for turn in range(3):
        assert backends.get("auto").name == "second"
        backends.give_up("second", f"it failed: {turn}")
    assert backends.steps == [("best", "it is not there"), ("second", "it failed: 2")]


def test_what_was_asked_for_by_name_stays() -> None:
    backends = Backends(Ladder(), {})
    backends.get("best")
    backends.give_up("best", "no")
    assert backends.climb() is None


def test_what_failed_below_the_best_one_does_not_take_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One user's engine cannot be enforced by the second: all others stay with the best."""
    now = [100.0]
    monkeypatch.setattr("sched_ctl.backends.in_use.time.monotonic", lambda: now[0])
    backends = Backends(Taken(), {})
    assert backends.get("auto").name == "best"
    for pause_s in (5.0, 10.0):
        assert backends.fair("best").name == "second"
        backends.give_up("second", "a process is in its way")
        assert backends.fair("best").name == "third"
        now[0] += pause_s - 0.5
        assert backends.climb() is None
        assert backends.fair("best").name == "third"  # it is not tried at once again
        now[0] += 1.0
        assert backends.climb() is None
        assert backends.get("auto").name == "best"


def test_what_failed_by_its_name_does_not_take_the_place_of_the_best_one() -> None:
    backends = Backends(Taken(), {})
    assert backends.get("auto").name == "best"
    backends.get("second")
    backends.give_up("second", "no")
    backends._retries["second"].at_s = 0.0  # as later
    assert backends.climb() is None
    assert backends.get("auto").name == "best"


def test_what_auto_has_can_be_had_by_its_name() -> None:
    """Its probe finds that it is taken: by ourselves."""
    backends = Backends(Taken(), {})
    assert backends.get("auto") is backends.get("best")


def test_auto_comes_back_after_all_have_failed(
    everything_works: tuple[str, ...], tmp_path: Path
) -> None:
    backends = Backends(partial(_choose, journal=Journal(tmp_path / "journal")), {})
    for name in everything_works:
        assert backends.get("auto").name == name
        backends.give_up(name, "no")
    assert backends.climb() is None
    with pytest.raises(UserError, match="no backend works"):
        backends.get("auto")
    backends._retries["nice"].at_s = 0.0  # as later
    backends.climb()
    assert backends.get("auto").name == "nice"
    backends._retries["scx"].at_s = 0.0
    assert backends.climb() == "scx"


EXPLICIT = {"cgroup2", "cgroup1", "slice", "realtime", "quota", "pool"}


@pytest.fixture
def everything_works(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """The real ladder on a machine where each backend works; names of those that auto may take."""

    def maker(name: str) -> Callable[[Journal, Any], Any]:
        return lambda journal, options: SimpleNamespace(name=name, restore=lambda: ())

    kinds = tuple(
        replace(kind, probe=lambda: Probe(True, "works"), make=maker(kind.name))
        for kind in ladder.KINDS
    )
    monkeypatch.setattr(ladder, "KINDS", kinds)
    return tuple(kind.name for kind in kinds if kind.name not in EXPLICIT)


def test_what_must_be_named_is_never_taken_by_itself(
    everything_works: tuple[str, ...], tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "journal")
    backends = Backends(partial(_choose, journal=journal), {})
    taken = []
    for _ in everything_works:
        taken.append(backends.get("auto").name)
        backends.give_up(taken[-1], "no")
    assert tuple(taken) == everything_works
    with pytest.raises(UserError, match="nice: failed while it ran"):
        backends.get("auto")
    assert backends.get("cgroup1").name == "cgroup1"  # but who asks for it has it


def test_check_marks_the_one_that_auto_takes(
    everything_works: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def marked() -> list[str]:
        return [f.topic for f in machine.check() if "auto takes" in f.what]

    assert marked() == [f"backend {everything_works[0]}"]
    broken = tuple(
        replace(kind, probe=lambda: Probe(False, "broken")) if kind.name not in EXPLICIT else kind
        for kind in ladder.KINDS
    )
    monkeypatch.setattr(ladder, "KINDS", broken)
    assert marked() == []


@pytest.mark.parametrize("kind", [Best, OfPools])
def test_user_level_threads_go_to_a_backend_that_can_order_them_alone(kind: type[Fake]) -> None:
    """A pool's operators have no thread of the kernel: any other backend would stumble on them."""
    backend = kind()
    backends = Backends(lambda *_: (backend, []), {})
    backends.get("auto")
    threads = (Thread(9, 10, 1), UserThread(9, 1, row=0), UserThread(9, 1, row=1))
    columns = np.arange(3.0)
    labels = ("lab:9: sink", "q/a", "q/b")
    groups = {"lab:9/q": Group(2.0, (1, 2)), "rest": Group(1.0, (0,))}
    urgency = form(3, static=columns)
    whole = Schedule("s", "hr", Spacing.LINEAR, threads, labels, urgency, columns, columns, groups)
    applied = backends.apply(kind.name, whole)
    if kind.user_level:
        assert backend.given == [whole] and applied.problems == ()
    else:
        [given] = backend.given
        assert given.threads == threads[:1] and given.operators == labels[:1]
        assert dict(given.groups) == {"rest": Group(1.0, (0,))}
        [problem] = applied.problems
        assert problem.startswith("q/a and 1 more: ") and "--backend pool" in problem
