"""Through the JobManager Flink's counters stand still between two renewals; rates must not."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import numpy as np
import pytest

from sched_ctl.adapt.guard import Guard
from sched_ctl.adapt.race import opened
from sched_ctl.controller.trial import Trial
from sched_ctl.drivers import DriverKind, Target
from sched_ctl.drivers.flink import driver, local, metrics, stale
from sched_ctl.drivers.flink.driver import FlinkDriver
from sched_ctl.engines.boundary import checked
from sched_ctl.engines.engine import Engine
from sched_ctl.metrics.catalogue import evaluate, resolve
from sched_ctl.metrics.window import Window

EVERY_S = 11.0
RATE = 1000.0  # tuples/s
IDLE = 0.6
LATE_S = 0.5  # after the others, by which one TaskManager's values come


@dataclass
class JobManager:
    """A source and an operator, whose values it fetches when it is asked and they are old."""

    now: float = 1000.0
    attempt: int = 0
    late: str = ""  # the vertex whose TaskManager is
    _fetched_s: list[float] = field(default_factory=lambda: [-math.inf, -math.inf])

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def get(self, path: str, timeout_s: float) -> bytes:
        if self.now - self._fetched_s[-1] >= EVERY_S - 1e-6:
            self._fetched_s = [self._fetched_s[-1], self.now]
        return b""

    def json(self, path: str, timeout_s: float, kind: Any) -> Any:
        return msgspec.convert(self._answer(path), kind)

    def close(self) -> None:
        pass

    def _answer(self, path: str) -> object:
        task = {"subtask": 0, "attempt": self.attempt, "status": "RUNNING"}
        match urlsplit(path).path.strip("/").split("/"):
            case ["config"]:
                return {"flink-version": "2.1"}
            case ["jobmanager", "config"]:
                return []
            case ["taskmanagers"]:
                return {"taskmanagers": []}
            case ["jobs", "overview"]:
                job = {"jid": "j", "name": "j", "state": "RUNNING", "tasks": {"running": 2}}
                return {"jobs": [{**job, "last-modification": self.attempt}]}
            case ["jobs", _]:
                names = {"v0": "Source: s", "v1": "work"}
                vertices = [{"id": v, "name": n, "parallelism": 1} for v, n in names.items()]
                source = {"id": "v0", "ship_strategy": "HASH"}
                nodes = [{"id": "v0"}, {"id": "v1", "inputs": [source]}]
                return {"jid": "j", "name": "j", "vertices": vertices, "plan": {"nodes": nodes}}
            case ["jobs", _, "vertices", _]:
                return {"subtasks": [task]}
            case ["jobs", _, "vertices", vertex, "metrics"]:
                wanted = parse_qs(urlsplit(path).query)["get"][0].split(",")
                return [{"id": n, "value": str(self._value(vertex, n))} for n in wanted]
        raise AssertionError(path)

    def _value(self, vertex: str, name: str) -> float:
        before_s, at_s = self._fetched_s
        if vertex == self.late and self.now < at_s + LATE_S:
            at_s = before_s
        if name.endswith("accumulateIdleTimeMs"):
            return int(IDLE * 1000 * at_s) if math.isfinite(at_s) else math.nan
        if "numRecords" in name and math.isfinite(at_s):
            return int(RATE * at_s) + (100 if vertex == "v0" else 0)
        return math.nan


@pytest.fixture(params=["", "v1"])
def cluster(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[JobManager, FlinkDriver, Engine]]:
    manager = JobManager(late=request.param)
    clock = SimpleNamespace(monotonic=manager.monotonic, sleep=manager.sleep)
    for module in (driver, stale, metrics):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(local, "task_managers", lambda uid: [])
    target = Target("flink", "here:8081")
    flink = FlinkDriver(target, manager)  # type: ignore[arg-type]
    engine = Engine(target, DriverKind("flink", tuple, lambda _: flink), 5.0)
    engine.state = "ok"
    yield manager, flink, engine
    engine.close()


def look(cluster: tuple[JobManager, FlinkDriver, Engine]) -> Window:
    """What a pass sees, a second later."""
    manager, flink, engine = cluster
    manager.now = math.floor(manager.now + 1e-6) + 1.0
    engine._remember(engine._probed(checked(flink.poll(1.0), flink, None), probing=True))
    assert engine.snapshot is not None
    return Window(engine.snapshot, engine.then())


def test_rates_are_between_renewals(cluster: tuple[JobManager, FlinkDriver, Engine]) -> None:
    wanted = resolve({"input_rate", "utilisation"}, FlinkDriver.provides, policy="p", engine="e")
    begin_s, told = cluster[0].now, set()
    for _ in range(60):
        window = look(cluster)
        found = evaluate(wanted, window)
        told.add(window.now.time_s)
        assert not (found["utilisation"] >= 0.95).any()
        if cluster[0].now - begin_s > 2 * EVERY_S + 2:
            assert found["input_rate"] == pytest.approx(RATE, rel=0.2)
            assert found["utilisation"][1] == pytest.approx(1 - IDLE, abs=0.1)
    assert 5 <= len(told) <= 8


def test_a_restart_is_told_at_once(cluster: tuple[JobManager, FlinkDriver, Engine]) -> None:
    for _ in range(15):
        window = look(cluster)
    before, cluster[0].attempt = window.now, 1
    later = [look(cluster).now for _ in range(3)]
    assert later[-1].time_s > before.time_s


def test_a_topology_that_changes_in_between_keeps_what_was_counted(
    cluster: tuple[JobManager, FlinkDriver, Engine],
) -> None:
    _, flink, engine = cluster
    for _ in range(40):
        window = look(cluster)
    rate = window.rate("tuples_in")
    assert flink._topology is not None
    flink._topology = replace(flink._topology, notes=("another",))
    again = look(cluster)
    assert again.now.topology.notes == ("another",)
    assert again.now.time_s == window.now.time_s
    assert again.rate("tuples_in") == pytest.approx(rate)
    assert engine.history[-1] is again.now


def test_a_race_of_equals_strikes_nobody(cluster: tuple[JobManager, FlinkDriver, Engine]) -> None:
    trial = Trial(opened(("qs", "hr")), "qs", 10.0)
    for _ in range(900):
        window = look(cluster)
        trial.look(cluster[0].now, {"flink:here:8081": window}, 0.5)
        assert not any(arm.strikes or arm.out for arm in trial.race.arms)
    assert all(len(arm.scores) >= 2 for arm in trial.race.arms[1:])
    lost = [score.lost for arm in trial.race.arms for score in arm.scores.values()]
    assert np.abs(lost).max() < 0.1


def test_a_guard_compares_phases_that_tell_of_something(
    cluster: tuple[JobManager, FlinkDriver, Engine],
) -> None:
    guard = Guard(every_s=60, phase_s=6)
    for _ in range(600):
        window = look(cluster)
        assert guard.look(cluster[0].now, {"flink:here:8081": window}) is None
    assert len(guard.ratios["throughput"]) >= 2
    assert guard.ratios["throughput"] == pytest.approx([1] * len(guard.ratios["throughput"]), 0.1)
