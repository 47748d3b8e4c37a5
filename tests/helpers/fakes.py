"""Engines and backends that do what a test tells them, for the controller."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest

from sched_ctl.backends import Applied, Backend, Probe
from sched_ctl.backends.in_use import Backends
from sched_ctl.config.settings import Section, Settings
from sched_ctl.controller.loop import Controller
from sched_ctl.drivers import DriverKind, Target
from sched_ctl.drivers.threads import thread_of
from sched_ctl.errors import EngineError
from sched_ctl.kernel import procfs
from sched_ctl.model.access import Access
from sched_ctl.model.graph import Array
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import (
    Edge,
    LogicalOperator,
    PhysicalOperator,
    Snapshot,
    Thread,
    Topology,
)

__all__ = [
    "QUICK",
    "USER",
    "FakeBackend",
    "FakeEngine",
    "backends",
    "chains",
    "drive",
    "of_user",
    "sleeping_threads",
]

USER = 4242  # whose engines are ordered alone

# Passes one after the other, whatever else runs on this machine.
QUICK = Settings(
    policy=(Section(policy="hr"),),
    period=0.02,
    calm_period=0,
    cpu_limit=0,
    poll_timeout=1,
    discover=0.1,
    window=0.1,
)

FIRST_IDS: dict[str, int] = {}  # by engine


def chains(
    engine: str, queries: Mapping[str, int], threads: Callable[[int], tuple[Thread, ...]]
) -> Topology:
    """Queries that are chains of so many operators; `threads` gives those of each row."""
    operators: list[PhysicalOperator] = []
    edges: list[Edge] = []
    for query, length in queries.items():
        for place in range(length):
            row = len(operators)
            name = f"op{place}"
            operators.append(PhysicalOperator(query, name, (name,), threads=threads(row)))
            if place:
                edges.append(Edge(row - 1, row))
    logical = tuple(LogicalOperator(o.query, o.name) for o in operators)
    return Topology(engine, tuple(operators), tuple(edges), logical, tuple(edges))


class FakeEngine:
    """One engine whose answers the test controls. Its threads are made up unless given."""

    def __init__(
        self,
        name: str = "a",
        queries: Mapping[str, int] | None = None,
        *,
        provides: frozenset[str] = frozenset({"tuples_in", "tuples_out", "cpu_time", "queue_size"}),
        threads: Callable[[int], tuple[Thread, ...]] | None = None,
    ) -> None:
        self.target = Target("fake", name)
        self.provides = provides
        self.polls = 0
        self.closed = 0
        self.reached: list[Access | None] = []  # with what, each time that we connected
        self.fail: str | None = None
        self.hold = threading.Event()  # cleared: polls hang
        self.hold.set()
        self.queue: Array | None = None
        # Its threads' ids: of another engine others, of the same engine made again the same.
        first = FIRST_IDS.setdefault(name, 1_000_000 + 10_000 * len(FIRST_IDS))
        self.topology = chains(
            self.target.engine,
            queries or {"q": 3},
            threads or (lambda row: (Thread(first, first + row, 1, f"op{row}"),)),
        )

    def poll(self, timeout_s: float) -> Snapshot:
        self.polls += 1
        self.hold.wait(60)
        if self.fail:
            raise EngineError(self.fail)
        n = len(self.topology.operators)
        now = time.monotonic()
        queue = np.arange(n, dtype=float) if self.queue is None else self.queue
        columns = {
            "tuples_in": np.full(n, 100.0 * now),
            "tuples_out": np.full(n, 50.0 * now),
            "cpu_time": np.arange(1.0, n + 1) * 1e-3 * now,
            "queue_size": queue,
        }
        return Snapshot(
            self.topology, now, {k: v for k, v in columns.items() if k in self.provides}
        )

    def close(self) -> None:
        self.closed += 1

    @staticmethod
    def kind(*engines: "FakeEngine") -> dict[str, DriverKind]:
        """A driver kind that finds these engines; the list may change later."""
        present = {engine.target.engine: engine for engine in engines}

        def connect(target: Target) -> FakeEngine:
            engine = present[target.engine]
            engine.reached.append(target.access)
            return engine

        return {
            "fake": DriverKind(
                "fake", lambda: [engine.target for engine in present.values()], connect
            )
        }


def of_user(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, uid: int = USER) -> FakeEngine:
    """The engine, as this user's."""
    engine.target = replace(engine.target, uid=uid)
    monkeypatch.setattr(
        "sched_ctl.engines.engine.belonging", lambda topology, uid, namespace: topology
    )
    return engine


@dataclass
class FakeBackend(Backend):
    """Remembers what it was told; fails when it is told to."""

    name: ClassVar[str] = "nice"
    schedules: list[Schedule] = field(default_factory=list)
    fail: str | Exception | None = None
    restored: int = 0
    tried: int = 0

    def apply(self, schedule: Schedule) -> Applied:
        self.tried += 1
        if isinstance(self.fail, Exception):
            raise self.fail
        if self.fail:
            raise OSError(self.fail)
        self.schedules.append(schedule)
        return Applied(writes=len(schedule.threads))

    def applied(self, thread: Thread) -> Mapping[str, str | float]:
        return {"nice": 3}

    def restore(self) -> tuple[str, ...]:
        self.restored += 1
        return ()

    def threads(self, scope: str | None = None) -> set[Thread]:
        """Of the last schedule (of a scope)."""
        mine = [s for s in self.schedules if scope is None or s.scope == scope]
        return set(mine[-1].threads) if mine else set()


def backends(backend: Backend) -> Backends:
    def choose(
        name: str, options: Mapping[str, msgspec.Struct], failed: Collection[str] = ()
    ) -> tuple[Backend, list[tuple[str, Probe]]]:
        return backend, [("better", Probe(False, "not here"))]

    return Backends(choose, {})


def sleeping_threads(count: int) -> Callable[[int], tuple[Thread, ...]]:
    """Real threads of this process that sleep until it ends; for the rows of a topology."""
    started = [threading.Thread(target=threading.Event().wait, daemon=True) for _ in range(count)]
    for thread in started:
        thread.start()
    found = [thread_of(os.getpid(), thread.native_id or 0) for thread in started]
    return lambda row: tuple(filter(None, [found[row]]))


class Wakes:
    """A tracer that has seen each of these wake-ups 1000 times; `pairs`: positions of a process's
    threads, by their ids.
    """

    def __init__(self, pid: int, pairs: Iterable[tuple[int, int]]) -> None:
        self.tids = sorted(procfs.tids(pid))
        self.pairs = [*pairs]

    def wakings(self) -> dict[tuple[int, int], int]:
        return {(self.tids[a], self.tids[b]): 1000 for a, b in self.pairs}

    def threads(self) -> dict[int, object]:
        return {}

    def follow(self, pids: object) -> None:
        pass

    def close(self) -> None:
        pass


def drive(controller: Controller, script: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Let it run until the script is over, which may take a minute."""

    async def both() -> None:
        try:
            await controller.start()
            loop = asyncio.create_task(controller.run())
            async with asyncio.timeout(60):
                await script()
            controller.stop("the script ended")
            await loop
        finally:
            controller.close()

    asyncio.run(both())
