"""What an engine's answers cost it, and that passes are further apart for it."""

import asyncio
import os
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from fakes import FakeBackend, FakeEngine, backends, drive

from sched_ctl.config.settings import Section, Settings
from sched_ctl.controller.loop import Controller
from sched_ctl.drivers.threads import thread_of
from sched_ctl.kernel import descriptors
from sched_ctl.model.topology import HelperThread, Snapshot, Thread
from sched_ctl.probes.answering import AnsweringTime
from sched_ctl.service import views
from support import wait_until


@pytest.fixture(autouse=True)
def _descriptors_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was put back in this process before."""
    monkeypatch.setattr(descriptors, "_putting_back", False)


class Server:
    """A thread that takes CPU time when it is asked to."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def thread(self) -> Thread:
        found = thread_of(os.getpid(), self._thread.native_id or 0)
        assert found is not None
        return found

    def work(self, seconds: float) -> float:
        """Returns what it took, s of CPU time."""
        self._asked.put(seconds)
        return self._done.get(timeout=30)

    def end(self) -> None:
        self._asked.put(-1.0)
        self._thread.join(30)

    def _serve(self) -> None:
        while (seconds := self._asked.get()) >= 0:
            began_s = time.thread_time()
            while time.thread_time() - began_s < seconds:
                pass
            self._done.put(time.thread_time() - began_s)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.end()


@pytest.fixture
def engine(server: Server) -> FakeEngine:
    """Its metrics are served by a thread of this process."""
    made = FakeEngine()
    helper = HelperThread(server.thread, "metrics")
    made.topology = replace(made.topology, helpers=(helper,))
    return made


def test_what_the_serving_threads_ran_counts(server: Server, engine: FakeEngine) -> None:
    probe = AnsweringTime()
    assert probe.read(None) == 0.0
    before_s = probe.read(engine.topology)
    ran_s = server.work(0.05)
    assert probe.read(engine.topology) - before_s == pytest.approx(ran_s, rel=0.1, abs=2e-3)


def test_other_threads_and_those_that_ended_do_not_count(
    server: Server, engine: FakeEngine
) -> None:
    probe = AnsweringTime()
    flusher = HelperThread(server.thread, "flusher")
    server.work(0.02)
    assert probe.read(replace(engine.topology, helpers=(flusher,))) == 0.0
    assert probe.read(engine.topology) > 0.015
    server.end()  # Python's thread; the kernel's ends a moment later
    wait_until(lambda: probe.read(engine.topology) == 0.0)
    probe.close()
    assert probe.read(engine.topology) == 0.0


def test_passes_whose_answers_cost_the_engine_much_are_further_apart(
    server: Server, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 ms of each answer, and a fifth of a CPU for all: ten a second at most, not fifty."""
    asked = 0
    answer = engine.poll

    def poll(timeout_s: float) -> Snapshot:
        nonlocal asked
        asked += 1
        server.work(0.02)
        return answer(timeout_s)

    monkeypatch.setattr(engine, "poll", poll)
    settings = Settings(
        policy=(Section(policy="qs"),), period=0.02, calm_period=0, cpu_limit=0.2, discover=5
    )
    controller = Controller(settings, FakeEngine.kind(engine), backends(FakeBackend()))

    async def script() -> None:
        def said() -> bool:
            (told,) = views.status(controller)["engines"]
            return any("cpu_limit" in note and "at most" in note for note in told["notes"])

        while not said() or time.monotonic() < began_s + 2.0:  # `drive` has a deadline
            await asyncio.sleep(0.01)

    began_s = time.monotonic()
    drive(controller, script)
    # Eight before it is known what they cost. A slow machine has fewer; without the limit it is 50.
    assert asked <= 8 + 15 * (time.monotonic() - began_s)
