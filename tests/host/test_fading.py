"""A controller whose loop hangs, and real threads: they have what they had, until it goes on."""

import asyncio
import threading
from collections.abc import Collection, Mapping
from dataclasses import replace

import msgspec
import pytest
from fakes import FakeEngine, drive
from victims import Victim

from sched_ctl.backends import Backend, Probe
from sched_ctl.backends.in_use import Backends
from sched_ctl.backends.threads.nice import Nice
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.config.settings import Section, Settings
from sched_ctl.controller import loop
from sched_ctl.controller.loop import Controller
from sched_ctl.kernel import sched
from support import wait_until

pytestmark = [pytest.mark.host, pytest.mark.needs("root")]

SETTINGS = Settings(
    policy=(Section(policy="qs"),), period=0.05, calm_period=0, cpu_limit=0, window=0.1
)


def test_nice_values_fade_when_the_loop_hangs(
    victim: Victim, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "LATE_S", 0.5)
    threads = victim.threads(3)
    before = victim.everything()
    engine = FakeEngine(threads=lambda row: (threads[row],))
    kinds = {name: replace(kind, prompt=True) for name, kind in FakeEngine.kind(engine).items()}

    def choose(
        name: str, options: Mapping[str, msgspec.Struct], failed: Collection[str] = ()
    ) -> tuple[Backend, list[tuple[str, Probe]]]:
        return Nice(journal), []

    controller = Controller(SETTINGS, kinds, Backends(choose, {}))
    faded: list[bool] = []

    def ordered() -> bool:
        return len({sched.get_nice(thread.tid) for thread in threads}) > 1

    def hang() -> None:
        try:
            wait_until(lambda: victim.everything() == before, 30)
            faded.append(not journal.state)
        finally:
            engine.hold.set()

    async def until_ordered() -> None:
        async with asyncio.timeout(30):
            while not ordered():
                await asyncio.sleep(0.01)

    async def script() -> None:
        await until_ordered()
        watching = threading.Thread(target=hang)
        engine.hold.clear()
        watching.start()
        while not engine.hold.is_set():
            await asyncio.sleep(0.01)
        watching.join()
        await until_ordered()

    drive(controller, script)
    assert faded == [True], "the journal has nothing left to put back"
    assert victim.everything() == before
