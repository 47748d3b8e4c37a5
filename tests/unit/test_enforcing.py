"""The way down the ladder of backends, and up again."""

from collections.abc import Callable, Collection, Mapping
from typing import ClassVar

import pytest

from sched_ctl.backends import Applied, Backend, Probe
from sched_ctl.enforcing import Backends
from sched_ctl.model import Thread
from sched_ctl.schedule import Schedule


class Fake:
    name: ClassVar[str] = ""

    def __init__(self) -> None:
        self.on_lost: Callable[[str], None] | None = None
        self.restored = 0

    def apply(self, schedule: Schedule) -> Applied:
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


class Ladder:
    def __init__(self) -> None:
        self.best_works = True

    def __call__(
        self, name: str, options: Mapping[str, object], failed: Collection[str] = ()
    ) -> tuple[Backend, list[tuple[str, Probe]]]:
        if self.best_works and "best" not in failed:
            return Best(), []
        return Second(), [("best", Probe(False, "broken"))]


def test_a_backend_that_failed_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("sched_ctl.enforcing.time.monotonic", lambda: now[0])
    ladder = Ladder()
    backends = Backends(ladder, {})
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

    ladder.best_works = False
    backends.give_up("best", "no")
    now[0] += 10_000
    assert backends.climb() is None  # its time has come, but it does not work
    assert backends.get("auto").name == "second"
    ladder.best_works = True
    now[0] += 10_000
    assert backends.climb() == "best"
    now[0] += 3600
    assert fall_and_wait() == 5.0  # it ran well for an hour


def test_what_was_asked_for_by_name_stays() -> None:
    backends = Backends(Ladder(), {})
    backends.get("best")
    backends.give_up("best", "no")
    assert backends.climb() is None
