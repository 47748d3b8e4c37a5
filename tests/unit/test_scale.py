"""Other replicas for a query: what pays, what Flink answers, and what is done about the outcome."""

import asyncio
import errno
import itertools
import json
import math
import shlex
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from fakes import QUICK, FakeEngine
from shares import of, replicated
from typer.testing import CliRunner

from plans import array
from sched_ctl import cli
from sched_ctl.adapt.parallelism import Wanted
from sched_ctl.adapt.rescale import (
    Change,
    Done,
    Step,
    boundless,
    changed,
    cost_s,
    is_worse,
    refusal,
    tried,
)
from sched_ctl.cli import scale as cli_scale
from sched_ctl.config.files import load
from sched_ctl.config.settings import ConfigError, Elastic, Settings
from sched_ctl.controller.loop import Controller
from sched_ctl.drivers import DriverKind, Target
from sched_ctl.drivers.flink import scaling as flink_scaling
from sched_ctl.drivers.flink.scaling import FlinkScaler
from sched_ctl.drivers.sources.http import Endpoint
from sched_ctl.engines.worker import Worker
from sched_ctl.errors import EngineError, UserError
from sched_ctl.model.topology import PhysicalOperator, Snapshot, Thread, Topology
from sched_ctl.service import elastic, scaling
from sched_ctl.service.elastic import agreed, section_of
from sched_ctl.service.scaling import Memory

LIMITS: dict[tuple[str, ...], tuple[int, int]] = {(name,): (1, 100) for name in "abc"}
TARGET = Target("fake", "x")


def three(full: float = 0.0, run: float = 1.0) -> Wanted:
    """a > b > c: b can do 200/s, and a emits 400."""
    return of(
        replicated(1, 1, 1),
        [400, 200, 200],
        [400, 200, 200],
        [0.1, run, 0.3],
        full=[full, 0, 0],
    )


def test_one_step_for_all_operators() -> None:
    change = changed(three(), "e", "q", 8.0, LIMITS)
    assert [(s.operator, s.now, s.to) for s in change.steps] == [("b", 1, 2)]
    assert (change.held, change.holds, change.gain) == pytest.approx((0.5, 1.0, 2.0))
    assert change.pays_after_s(3.0) == pytest.approx(3.0)


def test_no_more_than_the_cpus_can_feed() -> None:
    change = changed(three(), "e", "q", 1.0, LIMITS)  # 2.6 CPUs for all of it
    assert change.steps == ()
    assert change.held < 0.5


@pytest.mark.parametrize("needed", np.arange(0.5, 1.3, 0.02).tolist())
def test_fewer_replicas_are_not_filled_by_what_one_more_would_be_refused_for(needed: float) -> None:
    """With .94 of a replica to do two became one, and with 1.06 one stayed alone."""
    run = [0.1, needed / 2, needed / 2, 0.1]
    two = of(replicated(1, 2, 1), [200, 100, 100, 200], [200, 100, 100, 200], run)
    fewer = changed(two, "e", "q", 8.0, {**LIMITS, ("b",): (2, 9)})
    assert [s.to for s in fewer.steps] == ([1] if needed < 0.85 else [])
    done = 200 / needed  # by one, which always runs
    share = [0.1, 1.0, 0.1]
    one = of(replicated(1, 1, 1), [200, done, done], [200, done, done], share)
    more = changed(one, "e", "q", 8.0, LIMITS)
    if needed > 1.06:
        assert more.replicas == {("b",): 2}
        assert refusal(more, 1.0, 600) is None


def test_what_a_held_source_wants_is_only_a_bound() -> None:
    held = of(replicated(1, 1), [0, 10], [10, 10], [0.02, 1.0], full=[0.98, 0])
    change = changed(held, "e", "q", 64.0, LIMITS)
    assert change.source_held
    assert [(s.operator, s.to) for s in change.steps] == [("b", 3)]  # not 10


def test_what_the_user_says_goes_before_what_is_worked_out() -> None:
    change = changed(three(), "e", "q", 8.0, LIMITS, told={("c",): 5})
    assert [(s.operator, s.now, s.to) for s in change.steps] == [("c", 1, 5)]
    limited = changed(three(), "e", "q", 8.0, {("b",): (1, 1), ("c",): (1, 9)})
    assert limited.steps == ()


def test_replicas_elsewhere_are_not_taken_for_too_many() -> None:
    """Of four on two nodes two are told of here: what they need is no number of all four."""
    half = of(replicated(1, 2, 1), [400, 200, 200, 400], [400, 200, 200, 400], [0.1, 0.9, 0.9, 0.1])
    limits = {**LIMITS, ("b",): (4, 8)}
    change = changed(half, "e", "q", 8.0, limits)
    assert change.steps == () and change.unseen == ("b",)
    assert refusal(change, 1.0, 600) == "not all replicas of b are told of here"
    assert change.held == 1.0
    told = changed(half, "e", "q", 8.0, limits, told={("b",): 6})
    assert told.replicas == {("b",): 6}
    assert changed(three(), "e", "q", 0.5, LIMITS).unchanged == "as many replicas as it needs"


def test_a_replica_on_another_node_is_one() -> None:
    here = PhysicalOperator("q", "b 1", ("b",), threads=(Thread(1, 1, 1),))
    there = PhysicalOperator("q", "b 2", ("b",), away=True)
    yet_to_come = PhysicalOperator("q", "b 3", ("b",))
    topology = Topology("e", (here, there, yet_to_come), (), (), ())
    assert scaling._has(topology, "q", {("b",): 2})


def asked(*to: int) -> Change | None:
    return agreed([replace(change_of(3, n, 0.5, 0.9), source_held=False) for n in to])


def test_only_what_three_looks_agree_on_is_done_by_itself() -> None:
    assert asked(5, 5) is None
    assert asked(5, 2, 5) is None  # one wants fewer
    more, fewer = asked(6, 4, 5), asked(1, 2, 1)
    assert more is not None
    assert more.replicas == {("b",): 4}
    assert fewer is not None
    assert fewer.replicas == {("b",): 2}
    none = replace(change_of(3, 4, 0.5, 0.9), steps=())
    assert agreed([none, change_of(3, 4, 0.5, 0.9), change_of(3, 4, 0.5, 0.9)]) is None


def test_the_first_section_that_means_a_query_counts(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        '[[elastic]]\nqueries = ["etl*"]\nengines = ["flink"]\nreplicas = 4\n'
        "[[elastic]]\npause = 20\n"
    )
    sections = load(file).elastic
    first, second = (section_of(sections, engine, "etl1") for engine in ("flink:1", "storm:t"))
    assert first is not None
    assert first.replicas == 4
    assert second is not None
    assert second.pause == 20
    assert section_of(sections[:1], "flink:1", "other") is None
    file.write_text("[[elastic]]\npaus = 20\n")
    with pytest.raises(UserError, match=r"elastic\[0\].paus") as raised:
        load(file)
    assert "pause" in (raised.value.hint or "")
    assert load(None, {"elastic": [{"queries": ["a"]}]}).elastic[0].within == 600


def done(silent_s: float | None, engine: str = "flink:1", query: str = "q") -> Done:
    return Done(at_s=1, engine=engine, query=query, was=[], became=[], silent_s=silent_s)


def test_a_restart_is_judged_by_earlier_ones() -> None:
    assert math.isnan(cost_s([], "flink:1", "q"))
    assert math.isnan(cost_s([done(None), done(5, "storm:a")], "flink:1", "q"))
    assert cost_s([done(9, "flink:2"), done(5, query="other")], "flink:1", "q") == 7
    assert cost_s([done(9), *[done(2)] * 5, done(50, query="other")], "flink:1", "q") == 2


def change_of(now: int, to: int, held: float, holds: float, source_held: bool = False) -> Change:
    step = Step(("b",), "b", now, to, 1.0, 1.0)
    return Change("flink:1", "q", (step,), held, holds, source_held, 2.0, 1.0)


def test_nothing_is_done_that_does_not_pay() -> None:
    assert refusal(change_of(1, 3, 0.4, 1.0), 5.0, 600) is None
    assert "pay after" in (refusal(change_of(1, 3, 0.8, 0.9), 100.0, 600) or "")
    assert "bring 3%" in (refusal(change_of(1, 2, 0.97, 1.0), 1.0, 600) or "")
    assert refusal(change_of(8, 1, 1.0, 1.0), 5.0, 600) is None
    assert "costs 100 s" in (refusal(change_of(8, 1, 1.0, 1.0), 100.0, 600) or "")
    assert "held" in (refusal(change_of(8, 1, 1.0, 1.0, source_held=True), 1.0, 600) or "")
    assert "held" in (refusal(change_of(8, 2, 1.0, 0.8), 1.0, 600) or "")
    assert refusal(change_of(1, 3, 0.9, 1.0), math.nan, 600) is None  # a minute, 9 minutes
    assert [is_worse(100, x) for x in (0, 89, 91, 200, math.nan)] == [True, True, *[False] * 3]
    assert [is_worse(100, x, 10) for x in (0, 69, 71, 89)] == [True, True, False, False]


def failed(at_s: float, outcome: str = "back", to: int = 3, was: int = 1) -> Done:
    return Done(
        at_s=at_s,
        engine="flink:1",
        query="q",
        was=[(["b"], was)],
        became=[(["b"], to)],
        outcome=outcome,
        before=100.0,
    )


def test_what_failed_waits_for_longer_each_time() -> None:
    more, fewer = change_of(1, 3, 0.4, 1.0), change_of(8, 3, 1.0, 1.0)

    def words(before: list[Done], now_s: float, change: Change = more, rate: float = 100.0) -> str:
        return tried(before, change, rate, 300.0, now_s) or ""

    assert "and was worse" in words([failed(1000)], 1599)
    assert words([failed(1000)], 1600) == ""
    assert words([failed(10**9)], 1600) == ""  # before the clock was set back
    twice = [failed(0), failed(300, to=4), failed(1000, "lost"), failed(1100, "asked")]
    assert "no output came" in words(twice, 2199)
    assert words(twice, 2200) == ""
    assert "refused" in words([failed(0), failed(500, "kept"), failed(1000, "refused")], 1599)
    assert words([failed(0), failed(1000, "kept")], 1001) == ""
    # Going farther is the same; less far, with other operators, or the other way is not
    assert words([failed(1000)], 1001, change_of(2, 9, 0.4, 1.0))
    assert words([failed(1000, to=4)], 1001) == ""
    assert words([failed(1000)], 1001, replace(more, steps=(Step(("c",), "c", 1, 3, 1, 1),))) == ""
    assert words([failed(1000, was=8)], 1001) == ""
    assert words([failed(1000)], 1001, replace(more, query="other")) == ""
    assert words([failed(1000, was=8)], 1001, fewer)
    # Another demand
    rates = (149.0, 151.0, 10.0, math.nan)
    assert [bool(words([failed(1000)], 1001, rate=rate)) for rate in rates] == [
        True,
        False,
        *2 * [True],
    ]
    less = [bool(words([failed(1000, was=8)], 1001, fewer, rate)) for rate in (500.0, 70.0, 60.0)]
    assert less == [True, True, False]


def test_what_was_done_is_remembered(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "run" / "rescaled")
    assert memory.last("flink:1", "q") is None
    memory.note(done(None))
    memory.note(done(2.5))  # the same change
    memory.note(done(1, query="other"))
    memory.note(done(3.5))  # once more, after another's
    assert [d.silent_s for d in memory.read()] == [3.5, 1]
    later = Done(at_s=2, engine="flink:1", query="q", was=[(["b"], 1)], became=[(["b"], 3)])
    memory.note(later)
    memory.path.write_bytes(b"{{{\nnull\n" + memory.path.read_bytes() + b'{"at_s": 1')
    assert memory.last("flink:1", "q") == later


def test_nothing_is_done_that_cannot_be_written_down(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="nothing was changed"):
        Memory(tmp_path / "file" / "rescaled").note(done(None))


# --- Flink ---

VERTICES = [("v0", "Source: q-src"), ("v1", "q-work")]
JOB = {
    "jid": "j",
    "name": "q",
    "vertices": [
        {"id": v, "name": name, "parallelism": 1, "maxParallelism": 128} for v, name in VERTICES
    ],
}
NOT_ADAPTIVE = {
    "errors": [
        "Internal server error.",
        "<Exception on server side:\njava.lang.UnsupportedOperationException: no\n\tat x>",
    ]
}


@dataclass
class JobManager:
    """What it answers, by method and path; and what it was asked to change."""

    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    put: list[Any] = field(default_factory=list)


@contextmanager
def job_manager(**changes: tuple[int, Any]) -> Iterator[tuple[JobManager, FlinkScaler]]:
    bounds = {v: {"parallelism": {"lowerBound": 1, "upperBound": 1}} for v, _ in VERTICES}
    known = JobManager(
        {
            "GET /jobs/overview": (200, {"jobs": [{"jid": "j", "name": "q", "state": "RUNNING"}]}),
            "GET /jobs/j": (200, JOB),
            "GET /overview": (200, {"slots-total": 4, "slots-available": 0}),
            "GET /jobs/j/resource-requirements": (200, bounds),
            "PUT /jobs/j/resource-requirements": (200, {}),
            "POST /jobs/j/checkpoints": (202, {"request-id": "r"}),
            "GET /jobs/j/checkpoints/r": (200, {"status": {"id": "COMPLETED"}, "operation": {}}),
        }
    )
    named = {
        "wishes": "GET /jobs/j/resource-requirements",
        "put": "PUT /jobs/j/resource-requirements",
        "trigger": "POST /jobs/j/checkpoints",
        "checkpoint": "GET /jobs/j/checkpoints/r",
        "jobs": "GET /jobs/overview",
    }
    known.answers |= {named[name]: answer for name, answer in changes.items()}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, told = known.answers.get(f"{self.command} {self.path}", (404, {}))
            if self.command == "PUT":
                known.put.append(json.loads(body))
            text = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_PUT = do_POST = answer  # noqa: N815  as the library calls them

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    port = server.server_address[1]
    scaler = FlinkScaler(Target("flink", f"127.0.0.1:{port}"), Endpoint("127.0.0.1", port))
    try:
        yield known, scaler
    finally:
        scaler.close()
        server.shutdown()
        server.server_close()


def test_flink_is_asked_for_all_vertices_at_once() -> None:
    with job_manager() as (manager, flink):
        assert flink.current("q") == {("Source: q-src",): (1, 4), ("q-work",): (1, 4)}
        flink.secure("q", 5)
        flink.rescale("q", {("q-work",): 3})
    (asked,) = manager.put
    assert {v: one["parallelism"]["upperBound"] for v, one in asked.items()} == {"v0": 1, "v1": 3}


def test_jobs_without_end_are_not_waited_for_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that answers late had ten seconds of its own."""
    now_s, asked = [0.0], []
    jobs = [{"jid": f"j{n}", "name": "q", "state": "RUNNING"} for n in range(100)]

    class Late:
        def json(self, path: str, timeout_s: float, kind: Any) -> Any:
            asked.append(path)
            if timeout_s <= 9.0:
                raise EngineError("it did not answer in time")
            now_s[0] += 9.0
            told = {"jobs": jobs} if path == "/jobs/overview" else {**JOB, "jid": path[6:]}
            return msgspec.convert(told, kind)

    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    monkeypatch.setattr("sched_ctl.drivers.flink.scaling.slowness", lambda: 1.0)
    scaler = FlinkScaler(TARGET, Late())  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="in time"):
        scaler.current("q")
    assert len(asked) == 2


def test_a_change_has_all_the_time_that_an_answer_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was left after the questions before it was too short for Flink, which did it."""
    now_s, left_s = [0.0], {}
    with job_manager() as (_, flink):
        send = flink._rest.send

        def late(method: str, path: str, body: object, timeout_s: float, *rest: Any) -> Any:
            left_s[method] = timeout_s
            now_s[0] += 3.0
            return send(method, path, body, 60.0, *rest)

        clock = SimpleNamespace(monotonic=lambda: now_s[0])
        monkeypatch.setattr("sched_ctl.drivers.flink.scaling.time", clock)
        monkeypatch.setattr("sched_ctl.drivers.flink.scaling.slowness", lambda: 1.0)
        monkeypatch.setattr(flink._rest, "send", late)
        flink.secure("q", 60.0)
        flink.rescale("q", {("q-work",): 3})
    assert left_s["POST"] == left_s["PUT"] == flink_scaling.ASK_S > left_s["GET"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"wishes": (500, NOT_ADAPTIVE)}, "its scheduler is not the adaptive one"),
        ({"wishes": (404, {"errors": ["Not found: x"]})}, "this Flink cannot rescale"),
        ({"wishes": (200, [1])}, "oddly"),
        ({"put": (403, {})}, "refuses: status 403"),
        ({"put": (400, {"errors": ["a.b.RestHandlerException: too many\n\tat x"]})}, "too many"),
        ({"trigger": (400, {"errors": ["x.Exception: no coordinator"]})}, "lose its state"),
        ({"checkpoint": (200, {"status": {"id": "IN_PROGRESS"}})}, "not complete after 0 s"),
        (
            {
                "checkpoint": (
                    200,
                    {"status": {"id": "COMPLETED"}, "operation": {"failure-cause": 1}},
                )
            },
            "its checkpoint failed",
        ),
        ({"jobs": (200, {"jobs": []})}, "runs no job 'q' any more"),
    ],
)
def test_what_flink_refuses_is_told_in_words(answer: Mapping[str, Any], words: str) -> None:
    with job_manager(**answer) as (_, flink), pytest.raises(EngineError, match=words) as raised:
        flink.secure("q", 0)
        flink.rescale("q", {("q-work",): 3})
    if "put" in answer and answer["put"][0] == 403:
        assert "[access]" in (raised.value.hint or "")


# --- what came of it ---


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return 1e9 + self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class Restarting:
    """Driver and scaler of one query a > b > c that gives so many tuples/s by b's replicas."""

    rates: Mapping[int, float]
    replicas: int = 1
    pause_s: float = 0.2
    keeps: bool = True  # its state
    asked: list[int] = field(default_factory=list)
    since_s: float = field(default_factory=time.monotonic)
    base: float = 0.0
    target: Target = TARGET
    provides: frozenset[str] = frozenset({"tuples_in", "tuples_out"})
    topology: Topology | None = None
    loses: str = ""
    waited: float = 0.0  # tuples that leave in the first tenth of a second
    clock: Any = time

    def poll(self, timeout_s: float) -> Snapshot:
        now_s = self.clock.monotonic()
        if now_s < self.since_s:
            raise EngineError("it restarts")
        if self.topology is None:
            made = replicated(1, self.replicas, 1)
            self.topology = Topology(
                "fake:x",
                tuple(
                    PhysicalOperator(o.query, o.name, o.logical, o.replica, o.replicas, (thread,))
                    for o, thread in zip(
                        made.operators, map(thread_of, range(len(made.operators))), strict=True
                    )
                ),
                made.edges,
                made.logical,
                made.logical_edges,
            )
        given = self.base + self.rates[self.replicas] * (now_s - self.since_s)
        given += self.waited * min(1.0, 10 * (now_s - self.since_s))
        column = array(*[given] * len(self.topology.operators))
        return Snapshot(self.topology, now_s, {"tuples_in": column, "tuples_out": column})

    def current(self, query: str) -> dict[tuple[str, ...], tuple[int, int]]:
        return {("b",): (self.replicas, 100)}

    def secure(self, query: str, timeout_s: float) -> None:
        if not self.keeps:
            raise EngineError("no checkpoint")

    def rescale(self, query: str, replicas: Mapping[tuple[str, ...], int]) -> None:
        self.replicas = replicas["b",]
        self.asked.append(self.replicas)
        self.topology, self.base, self.waited = None, 0.0, 0.0
        self.since_s = self.clock.monotonic() + self.pause_s

    def close(self) -> None: ...


def thread_of(row: int) -> Thread:
    return Thread(1, 100 + row, 7)


def made(engine: Restarting, to: int, folder: Path, patience_s: float = 20.0) -> Done:
    """By a clock of its own, so that nobody waits."""
    if engine.clock is time:
        engine.clock = Clock()
        engine.since_s = engine.clock.now_s
    kind = DriverKind("fake", list, lambda _: engine, scaler=lambda _: engine)
    change = Change("fake:x", "q", (Step(("b",), "b", 1, to, 1, 1),), 0.5, 1.0, False, 2.0, 1.0)
    memory = Memory(folder / "rescaled")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scaling, "time", engine.clock)
            return scaling.carried_out(
                engine.target, kind, change, memory, patience_s=patience_s, say=lambda _: None
            )
    finally:
        last = memory.last("fake:x", "q")
        engine.asked.append(-1 if last is None else {"kept": 0, "back": 1}.get(last.outcome, 2))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MEASURE_S": 0.4, "SETTLE_S": 0.1, "WHILE_S": 0.2, "LOOK_S": 0.01}.items():
        monkeypatch.setattr(scaling, name, value)
    monkeypatch.setattr(scaling, "slowness", lambda: 1.0)


def test_nobody_waits_for_queries_where_no_engine_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(_: Controller) -> None:
        raise AssertionError

    monkeypatch.setattr(Controller, "run", run)
    monkeypatch.setattr(scaling, "NO_QUERY_S", 0.1)
    kind = DriverKind("fake", list, lambda _: Restarting({}))
    assert asyncio.run(scaling.looked(Settings(), {"fake": kind}, 1.0)) == []


@pytest.mark.parametrize("found_late", [True, False])
def test_an_engine_that_may_be_here_is_waited_for(
    found_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose search takes its time, or a process that looks like one."""
    ran = threading.Event()

    async def run(_: Controller) -> None:
        ran.set()

    def find() -> list[Target]:
        ran.wait(600)
        return []

    monkeypatch.setattr(Controller, "run", run)
    monkeypatch.setattr(scaling, "NO_QUERY_S", 0.1)
    kind = DriverKind("fake", find if found_late else list, lambda _: Restarting({}))
    kind = kind if found_late else replace(kind, mains=lambda: [1])
    assert asyncio.run(scaling.looked(Settings(), {"fake": kind}, 1.0)) == []
    assert ran.is_set()


def test_rates_are_told_without_exponents() -> None:
    done = msgspec.structs.replace(failed(0), before=12345.6, after=987.654)
    assert "took in 12.35k tuples/s, takes in 987.7;" in cli_scale._outcome(done)


def running_on(engine: str, *queries: str) -> Any:
    topology = SimpleNamespace(queries=queries, pids=())
    window = SimpleNamespace(now=SimpleNamespace(topology=topology))
    return SimpleNamespace(engine=SimpleNamespace(name=engine), window=window)


QUOTED = "Bob's; touch /tmp/x #"


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        ([], [["fake:x/both"], [QUOTED], ["fake:y/both"]]),
        ([QUOTED, "--to", "b=2", "--to", "c=3"], [[QUOTED, "--to", "b=2", "--to", "c=3"]]),
        (["fake:y/both", "--back"], [["fake:y/both", "--back"]]),
    ],
)
def test_what_is_to_be_typed_makes_so_what_was_shown(
    words: list[str],
    typed: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Of a query that two engines run, with the engine; whatever one is called, it is a word. With
    the same settings: the file, and the folder in which changes are remembered, are others else.
    """
    found = [running_on("fake:x", "both", QUOTED), running_on("fake:y", "both")]

    async def looked(*_: object) -> list[Any]:
        return found

    def planned(one: Any, name: str, *_: object) -> tuple[object, ...]:
        steps = (Step(("b",), "b", 1, 2, 1, 1),)
        change = Change(one.engine.name, name, steps, 0.5, 1.0, False, 2.0, 1.0)
        return one, name, change, None, ""

    monkeypatch.setattr(scaling, "looked", looked)
    monkeypatch.setattr(cli_scale, "_plan", planned)
    monkeypatch.setattr(cli_scale, "_was", lambda *_: {})
    (tmp_path / "none.toml").touch()
    flags = ["--config", str(tmp_path / "none.toml"), "--exclude", "x y", "--exclude", "z"]
    flags += ["--window", "4.0", "--no-trace", "--run-dir", str(tmp_path)]
    told = CliRunner().invoke(
        cli.make_app("scale"), ["scale", *words, *flags], catch_exceptions=False
    )
    lines = [line for line in told.stdout.splitlines() if "make it so" in line]
    assert [shlex.split(line)[5:] for line in lines] == [
        [query, *flags, *asked, "--apply"] for query, *asked in typed
    ]


def test_how_many_is_said_in_one_way() -> None:
    words = ["scale", "q", "--to", "2", "--back"]
    told = CliRunner().invoke(cli.make_app("scale"), words)
    assert isinstance(told.exception, ConfigError) and "--back" in told.exception.message


@pytest.mark.parametrize("asked", [False, True])
def test_an_interrupt_says_whether_anything_was_asked_for(
    asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = Memory(tmp_path / "rescaled")
    earlier = Done(at_s=1.0, engine="fake:x", query="q", was=[(["b"], 4)], became=[(["b"], 2)])
    memory.note(earlier)

    def interrupted(*_: object, **__: object) -> Done:
        if asked:
            memory.note(msgspec.structs.replace(earlier, at_s=2.0))
        raise KeyboardInterrupt

    monkeypatch.setattr(scaling, "carried_out", interrupted)
    change = Change("fake:x", "q", (Step(("b",), "b", 2, 4, 1, 1),), 0.5, 1.0, False, 2.0, 1.0)
    target = SimpleNamespace(kind="fake")
    one = SimpleNamespace(engine=SimpleNamespace(name="fake:x", target=target))
    with pytest.raises(KeyboardInterrupt):
        cli_scale._apply((one, "q", change, None, ""), {"fake": None}, memory, 1.0, False, "it")  # type: ignore[arg-type]
    assert ("take it back: it" in capsys.readouterr().out) is asked


def test_a_change_that_is_better_stays(tmp_path: Path) -> None:
    engine = Restarting({1: 100, 3: 300}, pause_s=0.5)
    told = made(engine, 3, tmp_path)
    assert engine.asked == [3, 0]
    assert told.was == [(["b"], 1)]
    assert told.silent_s is not None
    assert told.silent_s > 0.4
    assert told.after is not None
    assert told.before is not None
    assert told.after > 2 * told.before


def test_a_change_that_is_worse_is_taken_back(tmp_path: Path) -> None:
    engine = Restarting({1: 100, 3: 30})
    assert made(engine, 3, tmp_path).outcome == "back"
    assert engine.asked == [3, 1, 1]


@dataclass
class Crashing(Restarting):
    """With other replicas it runs for a while, fails, and is started again, on and on."""

    up_s: float = 3.0
    every_s: float = 20.0
    mute: bool = False  # it only does not answer, and goes on

    def poll(self, timeout_s: float) -> Snapshot:
        age_s = max(0.0, self.clock.monotonic() - self.since_s)
        if self.replicas > 1 and age_s % self.every_s > self.up_s:
            raise EngineError("it failed")
        if self.replicas > 1 and age_s > self.every_s and not self.mute:
            self.since_s += self.every_s  # with new counters
        return super().poll(timeout_s)


@pytest.mark.parametrize(
    ("rate", "up_s", "every_s", "mute", "outcome"),
    [
        (300, 3.0, 20.0, False, "back"),
        (300, 4.0, 16.0, False, "back"),
        (300, 3.0, 1e6, False, "back"),
        (300, 8.0, 12.0, False, "kept"),  # 200 a second in the mean
        (100, 0.9, 1.0, True, "kept"),
        (100, 5.0, 7.0, True, "kept"),
        (70, 3.0, 7.0, True, "back"),
    ],
)
def test_a_query_that_fails_again_and_again_is_judged_by_all_of_the_time(
    rate: float,
    up_s: float,
    every_s: float,
    mute: bool,
    outcome: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does well while it runs, and was kept for that; nobody told of the time in between."""
    clock = Clock()
    for name, value in {"MEASURE_S": 5.0, "SETTLE_S": 5.0, "WHILE_S": 2.0, "LOOK_S": 0.1}.items():
        monkeypatch.setattr(scaling, name, value)
    engine = Crashing({1: 100, 3: rate}, clock=clock, since_s=clock.now_s)
    engine.up_s, engine.every_s, engine.mute = up_s, every_s, mute
    assert made(engine, 3, tmp_path).outcome == outcome
    assert engine.asked[:-1] == ([3, 1] if outcome == "back" else [3])


def test_what_had_waited_before_a_change_is_no_rate_of_its_query(tmp_path: Path) -> None:
    """A query that had stood for a moment took in more when it was first looked at."""
    assert made(Restarting({1: 100, 3: 100}, waited=30.0), 3, tmp_path).outcome == "kept"


def test_a_change_without_output_is_taken_back(tmp_path: Path) -> None:
    engine = Restarting({1: 100, 3: 0})
    with pytest.raises(EngineError, match="it was taken back, and there is output again"):
        made(engine, 3, tmp_path, patience_s=3.0)
    assert engine.asked == [3, 1, 2]


@pytest.mark.parametrize("after", [0, 30])
def test_a_full_disk_keeps_no_change_from_being_taken_back(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Restarting({1: 100, 3: after})
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if engine.asked:
            raise OSError(errno.ENOSPC, "full")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with suppress(EngineError):
        made(engine, 3, tmp_path, patience_s=3.0)
    assert engine.asked == [3, 1, 2]  # the last: asked for, as far as the disk tells


@pytest.mark.parametrize(("after", "outcome"), [(0, "lost"), (30, "back")])
def test_what_cannot_be_taken_back_is_told_and_remembered(
    after: int, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Restarting({1: 100, 3: after})
    rescale = engine.rescale

    def once(query: str, replicas: Mapping[tuple[str, ...], int]) -> None:
        if engine.asked:
            raise EngineError("no more")
        rescale(query, replicas)

    monkeypatch.setattr(engine, "rescale", once)
    with pytest.raises(EngineError, match="cannot be taken back: no more") as raised:
        made(engine, 3, tmp_path, patience_s=3.0)
    assert "--back --apply" in (raised.value.hint or "")
    last = Memory(tmp_path / "rescaled").last("fake:x", "q")
    assert last is not None and last.outcome == outcome


class Silent(Restarting):
    """It does what it is asked for first, or does not, and answers neither that nor what it did."""

    does: bool = True
    tells: bool = True
    lost: bool = False

    def rescale(self, query: str, replicas: Mapping[tuple[str, ...], int]) -> None:
        if self.does or self.lost:
            super().rescale(query, replicas)
        if not self.lost:
            self.lost = True
            raise EngineError("did not answer")

    def current(self, query: str) -> dict[tuple[str, ...], tuple[int, int]]:
        if self.lost and not self.tells:
            self.tells = True
            raise EngineError("does not tell")
        return super().current(query)


@pytest.mark.parametrize(
    ("does", "tells", "outcome", "asked"),
    [
        (True, True, "back", [3, 1]),
        (False, True, "refused", []),
        (True, False, "asked", [3]),
        (False, False, "asked", []),
    ],
)
def test_a_change_that_is_not_answered_is_no_refusal(
    does: bool, tells: bool, outcome: str, asked: list[int], tmp_path: Path
) -> None:
    engine = Silent({1: 100, 3: 30})
    engine.does, engine.tells = does, tells
    if outcome == "back":
        made(engine, 3, tmp_path)
    else:
        with pytest.raises(EngineError, match="did not answer") as raised:
            made(engine, 3, tmp_path)
        assert "--back --apply" in (raised.value.hint or "")
    last = Memory(tmp_path / "rescaled").last("fake:x", "q")
    assert last is not None and (last.outcome, engine.asked[:-1]) == (outcome, asked)


def test_a_change_that_was_not_answered_is_judged_in_the_next_round(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    owned, engine = Owned(monkeypatch, tmp_path), Silent({1: 100, 2: 30})
    engine.tells = False
    owned.add("ours", "", engine)
    owned.controller.engines["ours:x"] = owned.found[0].engine

    async def rounds() -> list[str]:
        told = []
        for _ in range(2):
            await elastic._round(owned.state)
            await owned.state.rounds[""]
            last = owned.state.memory.last("ours:x", "q")
            told.append("" if last is None else last.outcome)
        return told

    assert asyncio.run(asyncio.wait_for(rounds(), 60)) == ["asked", "back"]
    assert (engine.asked, owned.state.late) == ([2, 1], [])


@pytest.mark.parametrize("outcome", ["back", "lost", "refused"])
def test_what_failed_is_not_done_by_itself_again_at_once(
    outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, memory = Restarting({1: 100, 3: 300}), Memory(tmp_path / "rescaled")
    asks = Change("fake:x", "q", (Step(("b",), "b", 1, 3, 1, 1),), 0.4, 1.0, False, 2.0, 1.0)
    monkeypatch.setattr(elastic, "changed", lambda *_, **__: asks)
    monkeypatch.setattr("sched_ctl.adapt.parallelism.wanted", lambda *_: three())
    monkeypatch.setattr(elastic, "cpus_of", lambda _: 2.0)
    window = SimpleNamespace(
        now=SimpleNamespace(topology=replicated(1, 1, 1)), rate=lambda _: array(100, 100, 100)
    )
    one: Any = SimpleNamespace(engine=engine, window=window, assessment=None)
    kinds = {"fake": DriverKind("fake", list, lambda _: engine, scaler=lambda _: engine)}
    monkeypatch.setattr(Restarting, "name", "fake:x", raising=False)
    section, seen, controller = Elastic(pause=10), elastic._Seen(), Controller(QUICK, {}, None)
    done = msgspec.structs.replace(failed(time.time() - 15, outcome), engine="fake:x")
    memory.note(done)

    async def looks(hand: Worker[Any]) -> list[str]:
        state = elastic._State(controller, kinds, memory)
        return [
            await elastic._one(state, one, "q", section, hand, seen) for _ in range(elastic.AGREE)
        ]

    hand: Worker[Any] = Worker("replicas")
    assert "not again before" in asyncio.run(looks(hand))[-1]
    assert engine.asked == []
    memory.path.unlink()
    memory.note(msgspec.structs.replace(done, at_s=done.at_s - 5))  # 20 s ago: the pause, doubled
    assert "kept" in asyncio.run(looks(hand))[0]
    assert engine.asked == [3]
    hand.stop()


class Owned:
    """Engines of which each has a query that needs more replicas, and whose scaler a test makes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        settings = msgspec.structs.replace(QUICK, elastic=(Elastic(),))
        self.controller = Controller(settings, {}, None)
        self.scalers: dict[str, Any] = {}
        self.found: list[Any] = []
        self.state = elastic._State(self.controller, {}, Memory(folder / "rescaled"))
        monkeypatch.setattr(elastic, "AGREE", 1)
        monkeypatch.setattr(elastic, "_taken", lambda *_: 100.0)
        monkeypatch.setattr(elastic, "cpus_of", lambda _: 8.0)
        monkeypatch.setattr("sched_ctl.adapt.parallelism.wanted", lambda *_: three())

        async def look(*_: object, **__: object) -> list[Any]:
            return self.found

        monkeypatch.setattr("sched_ctl.service.bottlenecks.look", look)

    def add(self, name: str, owner: str, scaler: Any, queries: tuple[str, ...] = ("q",)) -> None:
        topology = SimpleNamespace(queries=queries, pids=())
        target, kind = Target(name, "x"), DriverKind(name, list, lambda _: scaler)
        self.state.kinds = {**self.state.kinds, name: replace(kind, scaler=lambda _: scaler)}
        self.found.append(
            SimpleNamespace(
                engine=SimpleNamespace(name=f"{name}:x", domain=owner, target=target),
                window=SimpleNamespace(now=SimpleNamespace(topology=topology)),
                assessment=None,
            )
        )


def test_who_never_answers_keeps_no_other_owner_waiting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    owned, forever = Owned(monkeypatch, tmp_path), threading.Event()
    hung = SimpleNamespace(current=lambda _: forever.wait(600), close=lambda: None)
    limits = SimpleNamespace(current=lambda _: {("b",): (1, 1)}, close=lambda: None)
    owned.add("theirs", "1000", hung)
    owned.add("ours", "", limits)

    async def rounds() -> None:
        for _ in range(2):
            await elastic._round(owned.state)
            await owned.state.rounds[""]
        assert not owned.state.rounds["1000"].done()
        forever.set()
        await owned.state.rounds["1000"]

    asyncio.run(asyncio.wait_for(rounds(), 60))
    assert owned.controller.replicas["ours:x", "q"] == "as many replicas as it needs"


def test_after_a_change_other_queries_are_looked_at_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    owned, made = Owned(monkeypatch, tmp_path), []
    limits = SimpleNamespace(current=lambda _: {("b",): (1, 9)}, close=lambda: None)
    owned.add("ours", "", limits, ("q", "q2"))
    named, bounds = changed, boundless
    monkeypatch.setattr(elastic, "boundless", lambda wanted, _: bounds(wanted, "q"))
    monkeypatch.setattr(
        elastic,
        "changed",
        lambda wanted, engine, query, *rest, **of: replace(
            named(wanted, engine, "q", *rest, **of), query=query
        ),
    )

    def carried_out(_: object, __: object, change: Change, *___: object, **____: object) -> Done:
        made.append(change.query)
        return msgspec.structs.replace(failed(time.time(), "kept"), query=change.query)

    monkeypatch.setattr(scaling, "carried_out", carried_out)

    async def rounds() -> list[list[str]]:
        told = []
        for _ in range(3):
            await elastic._round(owned.state)
            await owned.state.rounds[""]
            told.append(list(made))
        return told

    assert asyncio.run(rounds()) == [["q"], ["q", "q2"], ["q", "q2"]]


@pytest.mark.parametrize(
    ("rate", "now", "outcome", "asked"),
    [
        (300, 3, "kept", []),
        (30, 3, "back", [1]),
        (0, 3, "lost", [1]),
        (300, 1, "refused", []),  # it has what it had
        (300, 2, "other", []),
    ],
)
def test_what_an_ended_controller_asked_for_is_judged_by_the_next(
    rate: int,
    now: int,
    outcome: str,
    asked: list[int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(elastic, "PATIENCE_S", 3.0)
    owned = Owned(monkeypatch, tmp_path)
    engine: Any = Restarting({1: 100, 3: rate}, replicas=now)
    owned.state.kinds = {
        "ours": DriverKind("ours", list, lambda _: engine, scaler=lambda _: engine)
    }
    known: Any = SimpleNamespace(domain="", target=Target("ours", "x"))
    owned.controller.engines["ours:x"] = known
    done = msgspec.structs.replace(
        failed(time.time() - 60, "asked"), engine="ours:x", before=100.0, by_itself=True
    )
    old = msgspec.structs.replace(done, at_s=time.time() - elastic.LATE_S - 60)
    by_hand = msgspec.structs.replace(done, by_itself=False)
    assert elastic.unjudged([old, by_hand, done], time.time()) == [done]
    owned.state.memory.note(done)
    owned.state.late = [done]

    async def rounds() -> None:
        await elastic._round(owned.state)
        await owned.state.rounds[""]

    asyncio.run(asyncio.wait_for(rounds(), 60))
    last = owned.state.memory.last("ours:x", "q")
    assert last is not None
    assert (last.outcome, engine.asked, owned.state.late) == (outcome, asked, [])


def test_a_late_judgement_that_fails_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    owned, asked = Owned(monkeypatch, tmp_path), []
    engine: Any = Restarting({1: 100, 3: 300}, replicas=3)
    owned.add("ours", "", engine)
    owned.controller.engines["ours:x"] = owned.found[0].engine
    done = msgspec.structs.replace(
        failed(time.time() - 1000, "asked"), engine="ours:x", before=100.0, by_itself=True
    )
    owned.state.memory.note(done)
    owned.state.late = [done]
    current = engine.current

    def first_not(query: str) -> Mapping[tuple[str, ...], tuple[int, int]]:
        asked.append(query)
        if len(asked) == 1:
            raise RuntimeError
        return current(query)  # type: ignore[no-any-return]

    monkeypatch.setattr(engine, "current", first_not)
    looks: list[str] = []

    async def one(_: object, __: object, query: str, *___: object) -> str:
        looks.append(query)
        return "looked at"

    monkeypatch.setattr(elastic, "_one", one)

    async def rounds() -> list[tuple[int, int, int]]:
        told = []
        for at in range(4):
            if at == 2:
                owned.state.later_s.clear()  # three minutes later
            await elastic._round(owned.state)
            await owned.state.rounds[""]
            told.append((len(owned.state.late), len(asked), len(looks)))
        return told

    # Not again at once, which would keep others waiting. In the round of the judgement nothing else
    # is looked at, and after it the query has its pause.
    told = asyncio.run(asyncio.wait_for(rounds(), 60))
    assert told == [(1, 1, 1), (1, 1, 2), (0, 2, 2), (0, 2, 2)]
    last = owned.state.memory.last("ours:x", "q")
    assert last is not None and last.outcome == "kept"


def test_who_waits_for_another_process_goes_on_right_after_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    owned = Owned(monkeypatch, tmp_path)
    engine: Any = Restarting({1: 100, 3: 300})
    owned.add("ours", "", engine)
    asks = Change("ours:x", "q", (Step(("b",), "b", 1, 3, 1, 1),), 0.4, 1.0, False, 2.0, 1.0)
    monkeypatch.setattr(elastic, "changed", lambda *_, **__: asks)

    async def rounds() -> str:
        with owned.state.memory.alone():
            await elastic._round(owned.state)
            await owned.state.rounds[""]
        waits = owned.controller.replicas["ours:x", "q"]
        await elastic._round(owned.state)
        await owned.state.rounds[""]
        return waits

    waits = asyncio.run(asyncio.wait_for(rounds(), 60))
    assert waits.endswith("when no other query is being changed")
    assert engine.asked == [3]


def test_what_was_changed_since_is_left_alone(tmp_path: Path) -> None:
    """Even if the later change ended at the same numbers."""
    engine, memory = Restarting({1: 100, 3: 30}, replicas=3), Memory(tmp_path / "rescaled")
    kind = DriverKind("fake", list, lambda _: engine, scaler=lambda _: engine)
    asked = msgspec.structs.replace(
        failed(time.time() - 60, "asked"), engine="fake:x", before=100.0, by_itself=True
    )
    later = msgspec.structs.replace(asked, at_s=asked.at_s + 20, outcome="kept", by_itself=False)
    for one in (asked, later):
        memory.note(one)
    assert elastic.unjudged(memory.read(), time.time()) == []
    told = scaling.judged_late(engine.target, kind, asked, memory, patience_s=3.0)
    assert (told.outcome, engine.asked) == ("other", [])
    assert memory.read() == [asked, later]


def test_what_was_changed_by_hand_is_paused_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    owned = Owned(monkeypatch, tmp_path)
    limits = SimpleNamespace(current=lambda _: {("b",): (1, 1)}, close=lambda: None)
    owned.add("ours", "", limits, ("q", "older"))
    for query, ago_s in (("older", 400.0), ("q", 100.0)):
        changed_s = time.time() - ago_s
        owned.state.memory.note(
            msgspec.structs.replace(failed(changed_s, "kept"), engine="ours:x", query=query)
        )

    async def rounds() -> None:
        await elastic._round(owned.state)
        await owned.state.rounds[""]

    owned.state.seen["ours:x", "q"] = elastic._Seen([change_of(1, 3, 0.4, 1.0)])
    asyncio.run(rounds())
    assert owned.controller.replicas.keys() == {("ours:x", "older")}
    assert not owned.state.seen["ours:x", "q"].changes  # looks after the pause are none in a row


def test_two_changes_are_not_made_at_once(tmp_path: Path) -> None:
    engine = Restarting({1: 100, 3: 300})
    with (
        Memory(tmp_path / "rescaled").alone(),
        pytest.raises(UserError, match="just now; nothing was changed"),
    ):
        made(engine, 3, tmp_path)
    assert engine.asked == [-1]
    with Memory(tmp_path / "rescaled").alone():
        pass


def test_who_looks_for_ever_leaves_limits_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sched_ctl.service.bottlenecks.PATIENCE_S", 0.0)

    async def rounds() -> list[bool]:
        controller = Controller(QUICK, FakeEngine.kind(FakeEngine("a")), None)
        await controller.start()
        running = asyncio.create_task(controller.run())
        await elastic._round(elastic._State(controller, {}, Memory(Path("none"))))
        now_s = time.monotonic()
        told = [now_s < controller.pace.watched_until_s, now_s < controller._probe_until_s]
        controller.stop("seen")
        await running
        controller.close()
        return told

    assert asyncio.run(rounds()) == [False, True]


def test_a_query_that_restarts_keeps_its_pause() -> None:
    controller: Any = SimpleNamespace(engines={"fake:x": None})
    now_s = time.monotonic()
    change = change_of(1, 3, 0.4, 1.0)
    seen = {
        ("fake:x", "q"): elastic._Seen([change], now_s),
        ("fake:x", "never"): elastic._Seen([change]),
        ("fake:gone", "q"): elastic._Seen([change], now_s),
    }
    elastic._forget(seen, set(seen), controller)
    assert seen == {("fake:x", "q"): elastic._Seen([], now_s)}


def test_what_was_before_the_restart_is_no_part_of_it() -> None:
    engine = Restarting({1: 100})
    output = scaling.Output(lambda: engine, "q")
    output.look()
    output._gave_s = time.monotonic() - 1000  # it kept its state for so long
    silent_s = output.silence({("b",): 1}, 20.0)
    assert silent_s is not None
    assert silent_s < 500


def test_reports_that_come_late_do_not_make_a_restart_shorter() -> None:
    output = scaling.Output(lambda: Restarting({1: 100}), "q")
    assert output.rate(0.3) == pytest.approx(100, rel=0.2)
    # Of 300 tuples, 3 s at its rate; that only five more were told of since is the reports' doing.
    output._anew = scaling._Counts(10.0, 0.0, 300.0)
    output._before = scaling._Counts(12.0, 0.0, 305.0)
    assert output._unseen_s() == pytest.approx(3.0, rel=0.2)


def test_what_had_waited_leaves_at_once_and_makes_no_restart_shorter() -> None:
    """Of 13 s of silence 12.9 were said to be of output: 2,600 tuples at 200 a second."""
    output = scaling.Output(lambda: Restarting({1: 200}), "q")
    output._anew = scaling._Counts(50.0, 0.0, 2600.0)
    output._before = scaling._Counts(52.0, 0.0, 3000.0)
    assert output._unseen_s() == pytest.approx(13.0)
    output._blank_s = 49.7  # nothing had left by then
    assert output._unseen_s() == pytest.approx(0.3)


def test_an_estimate_that_falls_a_little_is_no_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storm's counts between two reports are estimates; 9 s of silence were told as none."""
    counts = [(60, 9304), (69, 160), (70, 521.5), (70.1, 520), (70.2, 560), (71, 900)]
    output = scaling.Output(lambda: Restarting({1: 200}), "q")
    output._gave_s = 60.0
    told = (scaling._Counts(at_s, count, count) for at_s, count in counts)
    monkeypatch.setattr(scaling, "_counts", lambda *_: next(told))
    for _ in counts:
        output.look()
    assert output._anew == scaling._Counts(69, 160, 160)
    assert output._silent_s == pytest.approx(9.0)


def test_what_an_estimate_had_too_much_is_no_intake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10 tuples/s that are estimated 2 too many at each other look, 20/s were told."""
    clock, output = itertools.count(), scaling.Output(lambda: Restarting({1: 200}), "q")

    def told(*_: object) -> scaling._Counts:
        at_s = next(clock)
        count = 1000.0 + 10 * at_s + 20 * (at_s % 2)
        return scaling._Counts(float(at_s), count, count)

    monkeypatch.setattr(scaling, "_counts", told)
    for _ in range(101):
        output.look()
    assert output.taken == output.given == 1000.0


def test_how_sure_a_rate_is_shows_in_its_parts() -> None:
    assert scaling._error([150.0, 250.0, 150.0, 250.0]) == pytest.approx(28.9, abs=0.1)
    assert scaling._error([200.0] * 5) == scaling._error([1.0, 2.0]) == 0.0


def test_a_query_whose_tuples_nobody_counts_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling, "FIRST_S", 0.1)
    engine = Restarting({1: math.nan, 3: 300})
    with pytest.raises(UserError, match="its tuples are not counted"):
        made(engine, 3, tmp_path)
    assert engine.asked == [-1]


def test_a_query_that_cannot_keep_its_state_is_left_alone(tmp_path: Path) -> None:
    engine = Restarting({1: 100, 3: 300}, keeps=False)
    with pytest.raises(EngineError, match="no checkpoint"):
        made(engine, 3, tmp_path)
    assert engine.asked == [-1]


def test_an_engine_without_a_way_is_told_so() -> None:
    kind = DriverKind("fake", list, lambda _: Restarting({}))
    with pytest.raises(UserError, match="cannot be changed there"):
        scaling.scaler_of(Target("fake", "x"), kind)
