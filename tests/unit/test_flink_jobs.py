"""What the JobManager says of a job may come from its cache, from before a change."""

import os
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sched_ctl.drivers import Target, jvm
from sched_ctl.drivers.flink import driver, local, stale
from sched_ctl.drivers.flink.driver import FlinkDriver
from sched_ctl.drivers.flink.metrics import Reading
from sched_ctl.drivers.flink.plan import TaskManager
from sched_ctl.errors import EngineError
from sched_ctl.kernel import hotspot
from support import running

CACHE_S = 3.0
PERIOD_S = 1.0


@dataclass
class JobManager:
    """Jobs whose parallelism becomes 2 at some moment; somebody else asks for them all the time.

    So at any moment the cache holds an answer whose age is up to CACHE_S.
    """

    changes_s: dict[str, float]
    counts: bool  # whether its list says how many tasks run
    now: float = 100.0
    _cache: dict[str, tuple[float, object, object]] = field(default_factory=dict)

    def parallelism(self, jid: str) -> int:
        return 1 + (self.now >= self.changes_s[jid])

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now += 0.05
            for jid in self.changes_s:
                self.job(jid)

    def job(self, jid: str) -> tuple[object, object]:
        """What the cache has of a job and of its vertex."""
        if self.now - self._cache.get(jid, (-1e9,))[0] >= CACHE_S:
            count = self.parallelism(jid)
            vertex = {"id": "v", "name": "work", "parallelism": count}
            # All tasks of a job that was rescaled are yet to run.
            task = {"attempt": 0, "status": "RUNNING" if count == 1 else "DEPLOYING"}
            self._cache[jid] = (
                self.now,
                {"jid": jid, "name": jid, "vertices": [vertex]},
                {"subtasks": [{"subtask": i, **task} for i in range(count)]},
            )
        return self._cache[jid][1:]

    def answer(self, path: str) -> object:
        match path.strip("/").split("/"):
            case ["config"]:
                return {"flink-version": "2.1", "refresh-interval": int(1000 * CACHE_S)}
            case ["jobmanager", "config"]:
                return []
            case ["taskmanagers"]:
                return {"taskmanagers": []}
            case ["jobs", "overview"]:
                return {"jobs": [self.overview(jid) for jid in self.changes_s]}
            case ["jobs", jid]:
                return self.job(jid)[0]
            case ["jobs", jid, "vertices", _]:
                return self.job(jid)[1]
        raise AssertionError(path)

    def overview(self, jid: str) -> dict[str, object]:
        count = self.parallelism(jid)
        tasks = {"running": 1} if count == 1 else {"running": 0, "deploying": count}
        job = {"jid": jid, "name": jid, "state": "RUNNING", "last-modification": count}
        return {**job, "tasks": tasks} if self.counts else job

    def json(self, path: str, timeout_s: float, kind: Any) -> Any:
        return msgspec.convert(self.answer(path), kind)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("counts", "within_s"), [(True, CACHE_S + 1.5), (False, CACHE_S + 3)])
@pytest.mark.parametrize("phase", [0.0, 0.35, 0.95])
def test_no_change_stays_unseen_whenever_it_comes(
    phase: float, counts: bool, within_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = []
    for step in range(100):  # around all that is read again because of the first answer
        first = 100 + phase + step * 0.05
        manager = JobManager({"one": first, "two": first + 2.6}, counts)
        clock = SimpleNamespace(monotonic=lambda m=manager: m.now)
        monkeypatch.setattr(driver, "time", clock)
        monkeypatch.setattr(stale, "time", clock)
        monkeypatch.setattr(local, "task_managers", lambda uid: {})
        monkeypatch.setattr(Reading, "ask", lambda *_: None)  # of metrics
        manager.pass_time(phase)
        flink = FlinkDriver(Target("flink", "here:8081"), manager)  # type: ignore[arg-type]
        seen: dict[str, float] = {}
        while len(seen) < 2 and manager.now < 130:
            topology = flink.poll(1.0).topology
            for jid in manager.changes_s:
                replicas = {o.replicas for o in topology.operators if o.query == jid}
                if replicas == {2}:
                    seen.setdefault(jid, manager.now)
            manager.pass_time(PERIOD_S)
        late += [seen.get(jid, 1e9) - at for jid, at in manager.changes_s.items()]
    assert max(late) < within_s


def test_a_page_that_fails_is_looked_for_later_and_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sched_ctl.drivers.flink.driver.time.monotonic", lambda: 1000.0)
    first, most = driver.PROBE_AGAIN_S
    retry = driver.Retry()
    pauses = []
    for _ in range(8):
        retry.later()
        pauses.append(retry.at_s - 1000.0)
    assert pauses == [min(first * 2**i, most) for i in range(8)]
    assert pauses[-1] == most


class Here(JobManager):
    """Its TaskManager is this process; a vertex is called so. Counts what it is asked for."""

    def __init__(self, name: str, threads: list[str] | None) -> None:
        super().__init__({"one": 1e9}, counts=True)
        self.name, self.threads = name, threads
        self.asked: Counter[str] = Counter()
        self.dumps = 0

    def answer(self, path: str) -> object:
        self.asked[path.split("/")[-2]] += 1
        return super().answer(path)

    def job(self, jid: str) -> tuple[object, object]:
        name = self.name if jid == "one" else "of another"
        vertex = {"id": "v", "name": name, "parallelism": 1}
        task = {"subtask": 0, "attempt": 0, "status": "RUNNING", "taskmanager-id": "tm"}
        return {"jid": jid, "name": jid, "vertices": [vertex]}, {"subtasks": [task]}

    def dump(self, pid: int, timeout_s: float) -> list[hotspot.JavaThread]:
        self.dumps += 1
        if self.threads is None:
            raise hotspot.AttachError("does not allow to be asked")
        return [hotspot.JavaThread(name, os.getpid()) for name in self.threads]

    def driver(self, monkeypatch: pytest.MonkeyPatch) -> FlinkDriver:
        clock = SimpleNamespace(monotonic=lambda: self.now)
        for module in (driver, stale, local, jvm):
            monkeypatch.setattr(module, "time", clock)
        known = TaskManager("tm", "pekko.tcp://flink@localhost:1/user/x", 2)
        monkeypatch.setattr(local, "task_managers", lambda uid: [os.getpid()])
        monkeypatch.setattr(local, "match", lambda *_: ({os.getpid(): known}, [], set()))
        monkeypatch.setattr(local, "metrics_endpoint", lambda *_: None)
        monkeypatch.setattr(hotspot, "threads", self.dump)
        monkeypatch.setattr(Reading, "ask", lambda *_: None)  # of metrics
        return FlinkDriver(Target("flink", "here:8081"), self)  # type: ignore[arg-type]

    def look(self, flink: FlinkDriver, seconds: int) -> Counter[str]:
        """What was asked for, in so many polls a second apart."""
        before = self.asked.copy()
        for _ in range(seconds):
            self.now += PERIOD_S
            flink.poll(1.0)
        return self.asked - before


def test_a_machine_that_tells_no_threads_is_not_asked_about_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager = Here("work", None)
    flink = manager.driver(monkeypatch)
    assert manager.look(flink, 60)["vertices"] <= 6
    assert manager.dumps <= 7  # once in ten seconds
    manager.threads = ["work (1/1)#0"]
    manager.look(flink, 11)
    [operator] = flink.poll(1.0).topology.operators
    assert operator.threads


def test_a_thread_that_cannot_be_told_is_looked_for_more_and_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = 5000 * "x"
    manager = Here(name, [f"{name} (1/1)#0"])
    flink = manager.driver(monkeypatch)
    first = manager.look(flink, 60)["vertices"]
    assert 3 <= first <= 8 and manager.dumps <= 8
    dumps = manager.dumps
    assert manager.look(flink, 600)["vertices"] <= 11 and manager.dumps - dumps <= 11
    # Something else has happened: it is looked for soon again.
    manager.changes_s["two"] = 1e9
    assert manager.look(flink, 10)["vertices"] >= 4


def test_a_cluster_elsewhere_may_have_task_managers_of_users_that_come_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager = Here("work", [])
    flink = manager.driver(monkeypatch)
    asked: list[int | None] = []

    def task_managers(uid: int | None) -> list[int]:
        asked.append(uid)
        return [os.getpid()]

    monkeypatch.setattr(local, "task_managers", task_managers)
    for _ in range(2):
        flink._look_for_processes(1e9)
    assert asked == [None, None]


@pytest.mark.parametrize("sure", [False, True])
def test_who_was_alone_when_it_was_found_is_let_go_of(
    sure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once other users' processes may be the TaskManager, too, or another one is for sure."""
    manager, closed = Here("work", ["work (1/1)#0"]), []
    flink = manager.driver(monkeypatch)
    [operator] = flink.poll(1.0).topology.operators
    assert operator.threads
    [known] = [process.known for process in flink._processes.values()]
    flink._pages[os.getpid()] = SimpleNamespace(close=lambda: closed.append("page"))  # type: ignore[assignment]
    older = {"tm": [os.getpid(), os.getppid()]}
    told = ({os.getppid(): known}, [], {}) if sure else ({}, ["left alone"], older)
    monkeypatch.setattr(local, "match", lambda *_: told)
    flink._look_for_processes(1e9)
    assert (list(flink._processes), closed) == ([os.getppid()] if sure else [], ["page"])
    topology = flink.poll(1.0).topology
    assert not any(thread.pid == os.getpid() for o in topology.operators for thread in o.threads)
    assert ("left alone" in topology.notes) is not sure


def test_who_comes_later_takes_nobodys_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user can start a process that looks like a TaskManager which is in use."""
    flink = Here("work", ["work (1/1)#0"]).driver(monkeypatch)
    flink.poll(1.0)
    with running("sh", "-c", "echo; read _") as later:
        for disputed in ({"tm": [os.getpid(), later.pid]}, {}):  # {}: two of one user's, or none
            monkeypatch.setattr(local, "match", lambda *_, now=disputed: ({}, ["disputed"], now))
            flink._look_for_processes(1e9)
            [operator] = flink.poll(1.0).topology.operators
            assert operator.threads


class Talker(JobManager):
    """All its jobs are new ones at each look, and it has much to say of each."""

    looks, count, text = 0, 100, "x" * 1000

    def answer(self, path: str) -> object:
        match path.strip("/").split("/"):
            case ["jobs", "overview"]:
                self.looks += 1
                jids = [f"{self.looks}-{number}" for number in range(self.count)]
                return {"jobs": [{"jid": jid, "name": jid, "state": "RUNNING"} for jid in jids]}
            case ["jobs", jid]:
                return {"jid": jid, "name": jid + self.text, "vertices": []}
        return super().answer(path)


def test_what_is_kept_of_jobs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "task_managers", lambda uid: [])
    monkeypatch.setattr(driver, "MOST_JOBS", 200)
    monkeypatch.setattr(driver, "KEPT_LIMIT", 200_000)
    manager = Talker({}, counts=False)
    flink = FlinkDriver(Target("flink", "here:8081"), manager)  # type: ignore[arg-type]
    assert flink.poll(1.0).topology.operators == ()
    for count, text, words in ((201, "x", "at most 200"), (100, "x" * 3000, "tells more than")):
        manager.count, manager.text = count, text
        for _ in range(5):
            with pytest.raises(EngineError, match=words):
                flink._look_for_jobs(1e9)
                flink._read_jobs(1e9)
            assert len(flink._jobs) <= 100 and len(flink._known) <= 100
            assert sum(read.size for read in flink._jobs.values()) <= 200_000


def test_jobs_that_are_listed_no_more_go_though_others_do_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager = Talker({}, counts=False)
    flink = FlinkDriver(Target("flink", "here:8081"), manager)  # type: ignore[arg-type]
    answer = manager.answer

    def half(path: str) -> object:
        if path.endswith("-50"):
            raise EngineError("late")
        return answer(path)

    monkeypatch.setattr(manager, "answer", half)
    for _ in range(5):
        flink._look_for_jobs(1e9)
        with pytest.raises(EngineError, match="late"):
            flink._read_jobs(1e9)
        assert len(flink._jobs) <= 100 and len(flink._known) <= 100
