"""When the loop that decides stands still: what it decided last fades, and comes back with it."""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from fakes import FakeBackend, FakeEngine, backends, drive
from victims import plan

from sched_ctl.backends import Applied
from sched_ctl.backends.in_use import Backends
from sched_ctl.backends.scx.monitor import Monitor
from sched_ctl.config.settings import Section, Settings
from sched_ctl.controller import loop
from sched_ctl.controller.loop import Controller
from sched_ctl.drivers import DriverKind
from sched_ctl.engines.engine import Engine
from sched_ctl.kernel.scheduler import Exit
from sched_ctl.metrics.window import REPORTS
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import Snapshot, Thread
from support import wait_until

SETTINGS = Settings(
    policy=(Section(policy="qs"),),
    period=0.02,
    calm_period=0,
    cpu_limit=0,
    discover=0.1,
    window=0.1,
)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


class Expiring(FakeBackend):
    expires = True


def in_loop(engine: FakeEngine) -> dict[str, DriverKind]:
    """A kind whose driver is asked from the main loop, and so can hold it up."""
    return {name: replace(kind, prompt=True) for name, kind in FakeEngine.kind(engine).items()}


@pytest.mark.parametrize("backend", [FakeBackend(), Expiring()])
def test_a_loop_that_hangs_in_a_driver_leaves_no_order_behind(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop, "LATE_S", 0.1)
    engine = FakeEngine()
    controller = Controller(SETTINGS, in_loop(engine), backends(backend))
    found: list[tuple[int, int]] = []  # restored and schedules, while it hung

    def hang() -> None:
        try:
            wait_until(lambda: "stands still" in caplog.text, 30)
            found.append((backend.restored, len(backend.schedules)))
        finally:
            engine.hold.set()

    async def script() -> None:
        await until(lambda: backend.schedules)
        watching = threading.Thread(target=hang)
        engine.hold.clear()
        watching.start()
        await until(lambda: engine.hold.is_set())
        watching.join()
        await until(lambda: "goes on" in caplog.text and len(backend.schedules) > found[0][1])

    drive(controller, script)
    ((restored, _),) = found
    # A scheduler that forgets hints by itself is not detached for it.
    assert restored == (0 if backend.expires else 1)
    assert backend.threads() and backend.restored == restored + 1  # at the end


def test_nothing_is_put_back_while_the_loop_changes_something_or_is_in_time() -> None:
    backend = FakeBackend()
    used = backends(backend)
    used.get("auto")
    assert not used.late and used.lapse(0.0) is None
    used.trust(time.monotonic() + 600)
    assert backend.good_until_s < math.inf
    assert not used.late and used.lapse(0.0) is None
    used.trust(time.monotonic() - 1)
    assert used.late
    assert _while_applying(used, backend, lambda: used.lapse(0.01)) is None
    assert backend.restored == 0
    assert used.lapse(0.01) == () and backend.restored == 1
    assert not used.late and used.lapse(0.01) is None  # once
    assert used.trust(time.monotonic() + 600)
    assert not used.trust(time.monotonic() + 600)


def _while_applying(used: Backends, backend: FakeBackend, what: Callable[[], object]) -> object:
    """What comes of it while another thread is inside `apply`."""
    inside, leave = threading.Event(), threading.Event()

    def apply(schedule: Schedule) -> Applied:
        inside.set()
        leave.wait(60)
        return Applied()

    backend.apply = apply  # type: ignore[method-assign]
    schedule = plan([Thread(1, 1, 1)], [1.0])
    applying = threading.Thread(target=used.apply, args=("nice", schedule))
    applying.start()
    try:
        assert inside.wait(30)
        return what()
    finally:
        leave.set()
        applying.join()


class Alive:
    """A scheduler that counts signs of life."""

    beats = looks = 0

    def beat(self) -> None:
        self.beats += 1

    def exit(self) -> Exit | None:
        self.looks += 1
        return None


def test_the_sign_of_life_is_that_of_who_decides() -> None:
    scheduler, until_s = Alive(), [time.monotonic() + 600]
    monitor = Monitor(scheduler, 0.001, lambda _: None, lambda: until_s[0])  # type: ignore[arg-type]
    monitor.start()
    try:
        wait_until(lambda: scheduler.beats > 3)
        until_s[0] = 0.0
        wait_until(lambda: scheduler.looks > 3 + scheduler.beats)
        beats, looks = scheduler.beats, scheduler.looks
        wait_until(lambda: scheduler.looks > looks + 5)
        assert scheduler.beats == beats
        until_s[0] = math.inf
        wait_until(lambda: scheduler.beats > beats)
    finally:
        monitor.stop()


@pytest.mark.parametrize(("gap_s", "kept"), [(1.0, REPORTS), (4.0, REPORTS), (5.0, 1), (600.0, 1)])
def test_means_are_over_reports_since_nobody_looked(gap_s: float, kept: int) -> None:
    """By reports a second apart, of a rule that looks once a second (remarkable: 1.5 s)."""
    fake = FakeEngine()
    engine = Engine(fake.target, FakeEngine.kind(fake)["fake"], 10.0)
    engine.remarkable_s = 1.5
    answer = fake.poll(0.0)
    times_s = [100.0 + report for report in range(REPORTS)]
    for time_s in [*times_s, times_s[-1] + gap_s]:
        engine._remember(_at(answer, time_s))
    assert len(engine.lately()) == kept
    assert engine.lately()[-1].time_s == times_s[-1] + gap_s


def test_an_engine_that_is_asked_rarely_keeps_its_means() -> None:
    fake = FakeEngine()
    engine = Engine(fake.target, FakeEngine.kind(fake)["fake"], 10.0)
    engine.remarkable_s = 0.15
    answer = fake.poll(0.0)
    for time_s in (0.0, 3.0, 6.0, 9.0, 12.0):  # it costs much
        engine._remember(_at(answer, time_s))
    assert len(engine.lately()) == 4  # the first gap could be anything


def _at(snapshot: Snapshot, time_s: float) -> Snapshot:
    return replace(snapshot, time_s=time_s)
