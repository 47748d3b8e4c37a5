import asyncio
import gc
import logging
import os
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from fakes import FakeBackend, FakeEngine, backends, chains, drive, sleeping_threads

from sched_ctl.backends import Applied
from sched_ctl.backends.undo.journal import JournalError
from sched_ctl.cli import look, waits
from sched_ctl.config.settings import Section, Settings
from sched_ctl.controller.loop import Controller
from sched_ctl.decide import layout
from sched_ctl.drivers import Target
from sched_ctl.drivers.threads import thread_of
from sched_ctl.engines.engine import Engine, carry_over
from sched_ctl.errors import UserError
from sched_ctl.metrics.backlog import MEMORY
from sched_ctl.metrics.catalogue import MissingMetric
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import (
    Edge,
    HelperThread,
    LogicalOperator,
    PhysicalOperator,
    Snapshot,
    Thread,
    Topology,
)
from sched_ctl.probes.threads import ThreadTimes
from sched_ctl.service import bottlenecks, looking, session, socket, views
from support import wait_until

QUICK = Settings(
    period=0.02,
    calm_period=0,
    cpu_limit=0,
    poll_timeout=0.1,
    stale_after=0.6,
    discover=0.1,
    window=0.1,
)


def settings(*sections: Section, **changes: Any) -> Settings:
    return msgspec.structs.replace(QUICK, policy=sections or (Section(policy="hr"),), **changes)


@pytest.fixture(autouse=True)
def no_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines are let go of as on an idle machine, whatever runs beside the tests."""
    monkeypatch.setattr("sched_ctl.engines.roster.slowness", lambda: 1.0)


async def until(condition: Callable[[], object], deadline_s: float = 30.0) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.005)


def test_schedules_an_engine_and_gives_everything_back() -> None:
    engine, backend = FakeEngine(), FakeBackend()
    controller = Controller(settings(), FakeEngine.kind(engine), backends(backend))

    async def script() -> None:
        await until(lambda: len(backend.schedules) >= 5)

    drive(controller, script)
    schedule = backend.schedules[-1]
    assert schedule.operators == ("q/op0", "q/op1", "q/op2")
    assert schedule.policy == "hr"
    urgency = schedule.form.static
    assert urgency[2] > urgency[1] > urgency[0]  # nearer to the egress: more results per second
    assert backend.restored == 1


def test_who_looks_waits_for_metrics_that_are_still_on_their_way() -> None:
    """Else an engine that reports each second has never told anything."""

    class Reporting(FakeEngine):
        @property
        def waiting(self) -> bool:
            return self.polls < 3

        def poll(self, timeout_s: float) -> Snapshot:
            answer = super().poll(timeout_s)
            note = "waiting" if self.waiting else "told"
            return replace(answer, topology=replace(self.topology, notes=(note,)))

    [found] = asyncio.run(session.look(settings(), FakeEngine.kind(Reporting())))
    assert found["notes"] == ["told"]


def test_first_binding_wins_and_exclusions_always() -> None:
    engine, backend = FakeEngine(queries={"etl": 2, "stats": 2, "secret": 2}), FakeBackend()
    controller = Controller(
        settings(
            Section(name="one", policy="qs", queries=("e*", "secret")),
            Section(name="all", policy="hr"),
            exclude=("secret", "stats/op1"),
        ),
        FakeEngine.kind(engine),
        backends(backend),
    )

    async def script() -> None:
        await until(lambda: len(backend.schedules) >= 4)

    drive(controller, script)
    by_scope = {s.scope: set(s.operators) for s in backend.schedules}
    assert by_scope == {"one": {"etl/op0", "etl/op1"}, "all": {"stats/op0"}}


@pytest.mark.parametrize(
    ("pattern", "picked"),
    [("fake:b:*", {"fake:b"}), ("fake:b/q", {"fake:b"}), ("fake:q", {"fake:a", "fake:b"})],
)
def test_patterns_may_name_the_engine(pattern: str, picked: set[str]) -> None:
    one, two, backend = FakeEngine("a"), FakeEngine("b"), FakeBackend()
    controller = Controller(
        settings(Section(policy="hr", queries=(pattern,))),
        FakeEngine.kind(one, two),
        backends(backend),
    )

    async def script() -> None:
        await until(lambda: backend.schedules)

    drive(controller, script)
    assert set(controller.rules[0].windows) == picked


def test_a_missing_metric_is_an_error_before_anything_is_applied() -> None:
    engine = FakeEngine(provides=frozenset({"tuples_in"}))
    backend = FakeBackend()
    controller = Controller(
        settings(Section(policy="qs")), FakeEngine.kind(engine), backends(backend)
    )

    async def script() -> None: ...

    with pytest.raises(MissingMetric, match=r"qs.*queue_size.*fake:a"):
        drive(controller, script)
    assert not backend.schedules


def test_an_engine_that_joins_without_a_metric_is_a_problem_of_its_own() -> None:
    good, poor = FakeEngine("a"), FakeEngine("b", provides=frozenset({"tuples_in"}))
    backend = FakeBackend()
    kinds = FakeEngine.kind(good, poor)
    present = [good.target]
    kinds = {"fake": replace(kinds["fake"], find=lambda: list(present))}
    controller = Controller(settings(Section(policy="qs")), kinds, backends(backend))

    async def script() -> None:
        await until(lambda: backend.schedules)
        present.append(poor.target)
        await until(lambda: "fake:b" in controller.engines and controller.engines["fake:b"].refused)
        before = len(backend.schedules)
        await until(lambda: len(backend.schedules) > before + 3)
        assert any("queue_size" in problem for problem in views.problems(controller))

    drive(controller, script)
    assert {t.pid for t in backend.threads()} == {good.topology.operators[0].threads[0].pid}


def test_a_hung_engine_delays_nobody_and_is_released_in_time() -> None:
    good, hung = FakeEngine("a"), FakeEngine("b")
    backend = FakeBackend()
    controller = Controller(settings(), FakeEngine.kind(good, hung), backends(backend))
    of_hung = {t for o in hung.topology.operators for t in o.threads}

    async def script() -> None:
        await until(lambda: of_hung <= backend.threads())
        hung.hold.clear()
        asked = controller.engines["fake:b"]
        await until(lambda: asked.state == "silent")
        answered_s = asked.answered_s
        assert answered_s is not None
        assert of_hung <= backend.threads()  # it keeps its schedule for a while
        await until(lambda: not of_hung & backend.threads())
        assert time.monotonic() - answered_s >= QUICK.stale_after
        # The other engine's passes went on, and waited for this one once.
        passes = controller.rules[0].passes
        await until(lambda: controller.rules[0].passes > passes + 3)
        assert asked.late and asked.busy
        hung.hold.set()
        await until(lambda: of_hung <= backend.threads())

    drive(controller, script)


@pytest.mark.parametrize("prompt", [False, True])
def test_an_engine_that_fails_is_asked_less_often_and_comes_back(prompt: bool) -> None:
    engine, backend = FakeEngine(), FakeBackend()
    kinds = {name: replace(kind, prompt=prompt) for name, kind in FakeEngine.kind(engine).items()}
    controller = Controller(settings(), kinds, backends(backend))
    threads, asked_s = set(), list[float]()
    poll = engine.poll

    def polled(timeout_s: float) -> Snapshot:
        threads.add(threading.current_thread())
        asked_s.append(time.monotonic())
        return poll(timeout_s)

    engine.poll = polled  # type: ignore[method-assign]

    async def script() -> None:
        await until(lambda: backend.threads())
        engine.fail = "fake:a: connection refused"  # drivers say which, and are not quoted twice
        await until(lambda: not backend.threads())
        failed = len(asked_s) - 1  # at least once by then
        await until(lambda: len(asked_s) > failed + 1)
        assert asked_s[failed + 1] - asked_s[failed] > 0.4  # a period is 0.02 s
        assert "fake:a: released: connection refused" in views.problems(controller)
        assert not controller.outcomes.found and not controller.outcomes.spans
        engine.fail = None
        await until(lambda: backend.threads())
        assert not views.problems(controller)

    drive(controller, script)
    assert (threading.main_thread() in threads) == prompt
    assert len(threads) == 1


def test_an_engine_that_is_gone_leaves_no_memory_behind() -> None:
    backend = FakeBackend()
    kind = FakeEngine.kind()

    async def script() -> None:
        with subprocess.Popen(["sleep", "60"]) as process:
            engine = FakeEngine()
            engine.target = Target("fake", "a", process.pid)
            here.append(engine)
            await until(lambda: backend.schedules and backend.schedules[-1].threads)
            left.append(weakref.ref(engine.topology))
            polls = engine.polls
            engine.hold.clear()  # it dies while it is being asked
            await until(lambda: engine.polls > polls)
            here.clear()
            holds.append(engine.hold)
            process.kill()
        await until(lambda: not controller.engines and not backend.schedules[-1].threads)

    here: list[FakeEngine] = []
    left: list[weakref.ref[Topology]] = []
    holds: list[threading.Event] = []
    found = replace(
        kind["fake"], find=lambda: [e.target for e in here], connect=lambda target: here[0]
    )
    controller = Controller(settings(), {"fake": found}, backends(backend))
    drive(controller, script)
    backend.schedules.clear()
    layout.layout_of.cache_clear()  # which holds a few
    holds[0].set()
    wait_until(lambda: gc.collect() >= 0 and left[0]() is None)


def test_an_order_is_in_force_before_memory_is_looked_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That is a tenth of a second of a slow CPU."""
    backend, in_force = FakeBackend(), []
    monkeypatch.setattr(gc, "collect", lambda: in_force.append(len(backend.schedules)))
    monkeypatch.setattr(gc, "freeze", lambda: None)
    controller = Controller(settings(), FakeEngine.kind(FakeEngine()), backends(backend))

    async def as_loaded() -> None:
        try:
            await controller.start()
            await controller.step(controller.rules)
            await controller.run(0.0)
        finally:
            controller.close()

    asyncio.run(as_loaded())
    assert in_force == [1]


def test_a_policy_that_fails_stops_no_other() -> None:
    engine, backend = FakeEngine(queries={"x": 2, "y": 2}), FakeBackend()
    controller = Controller(
        settings(Section(name="bad", policy="qs", queries=("x",)), Section(policy="hr")),
        FakeEngine.kind(engine),
        backends(backend),
    )

    def broken(frame: object) -> Any:
        raise ZeroDivisionError("boo")

    controller.rules[0].policy = replace(controller.rules[0].policy, urgency=broken)

    async def script() -> None:
        await until(lambda: len([s for s in backend.schedules if s.scope == "hr"]) > 3)
        # On a busy machine a pass may end before the policy has failed: "still deciding"
        said = f"ZeroDivisionError: boo ({__file__}:"
        await until(lambda: (controller.rules[0].problem or "").startswith(said))

    drive(controller, script)


def test_a_named_backend_that_failed_is_not_tried_at_once_again() -> None:
    """Two policies of one backend: given up once, and the loop serves all others."""
    engine, backend = FakeEngine(queries={"a": 2, "b": 2}), FakeBackend(fail="no space left")
    controller = Controller(
        settings(
            Section(name="one", policy="hr", queries=("a",), backend="nice"),
            Section(name="two", policy="hr", queries=("b",), backend="nice"),
        ),
        FakeEngine.kind(engine),
        backends(backend),
    )

    async def script() -> None:
        await until(lambda: engine.polls > 20)
        assert backend.tried <= 2 and backend.restored >= 1
        assert any("no space left" in problem for problem in views.problems(controller))
        backend.fail = None
        assert controller.backends is not None
        controller.backends._retries["nice"].at_s = 0.0  # as later
        await until(lambda: {s.scope for s in backend.schedules} == {"one", "two"})
        assert not views.problems(controller)

    drive(controller, script)


def test_without_a_journal_nothing_is_changed_and_nothing_given_up() -> None:
    engine, backend = FakeEngine(), FakeBackend()
    controller = Controller(settings(), FakeEngine.kind(engine), backends(backend))

    async def script() -> None:
        await until(lambda: backend.schedules)
        backend.fail = JournalError("cannot write the journal: No space left on device")
        before, polls = backend.tried, engine.polls
        await until(lambda: engine.polls > polls + 10)
        assert 0 < backend.tried - before <= engine.polls - polls + 1  # once a pass
        assert backend.restored == 0
        assert any("No space left" in problem for problem in views.problems(controller))
        backend.fail, done = None, len(backend.schedules)
        await until(lambda: len(backend.schedules) > done)

    drive(controller, script)


def test_a_failing_backend_is_put_back_and_the_next_one_taken() -> None:
    first = FakeBackend()
    chosen: list[tuple[str, Collection[str]]] = []

    class Second(FakeBackend):
        name = "second"

    fallback = Second()
    controller = Controller(settings(), FakeEngine.kind(FakeEngine()), backends(first))

    def choose(name: str, options: object, failed: Collection[str] = ()) -> Any:
        chosen.append((name, failed))
        return fallback, []

    async def script() -> None:
        await until(lambda: first.schedules)
        assert controller.backends is not None
        controller.backends._choose = choose
        first.fail = "no such file"
        await until(lambda: fallback.schedules)

    drive(controller, script)
    assert chosen == [("auto", ("nice",))]
    assert first.restored == 1 and fallback.restored == 1
    assert controller.rules[0].backend == "second"


@pytest.mark.parametrize("fair", [True, False])
def test_helpers_are_left_to_a_backend_that_is_fair_to_all(fair: bool) -> None:
    engine, backend = FakeEngine(), FakeBackend()
    backend.fair = fair
    flusher = Thread(engine.topology.operators[0].threads[0].pid, 77, 1, "flusher")
    helper = HelperThread(flusher, "flusher", serves=0)
    engine.topology = replace(engine.topology, helpers=(helper,))
    kinds = {
        name: replace(kind, helpers={"flusher": "follow"})
        for name, kind in FakeEngine.kind(engine).items()
    }
    controller = Controller(settings(), kinds, backends(backend))

    shown: dict[str, str | None] = {}

    async def script() -> None:
        await until(lambda: backend.schedules)
        top = bottlenecks.screen(controller, [*bottlenecks.assessed(controller)])
        shown.update((row["operator"], row["serves"]) for row in top["rows"])

    drive(controller, script)
    assert (flusher in backend.schedules[0].threads) is not fair
    assert shown.get("fake:a: flusher") == (None if fair else "op0")
    assert shown["q/op0"] is None


def test_a_backend_that_is_lost_is_noticed_before_the_next_deadline() -> None:
    backend = FakeBackend()
    controller = Controller(
        settings(period=3600.0), FakeEngine.kind(FakeEngine()), backends(backend)
    )

    async def script() -> None:
        await until(lambda: backend.schedules)
        tried = backend.tried
        assert backend.on_lost is not None
        threading.Thread(target=backend.on_lost, args=("the kernel threw it out",)).start()
        await until(lambda: backend.tried > tried)

    drive(controller, script)


def test_set_policy_changes_all_or_nothing() -> None:
    engine, backend = FakeEngine(provides=frozenset({"queue_size"})), FakeBackend()
    controller = Controller(
        settings(Section(policy="qs")), FakeEngine.kind(engine), backends(backend)
    )

    async def script() -> None:
        await until(lambda: backend.schedules)
        rule = controller.rules[0]
        with pytest.raises(UserError, match="no policy 'qss'"):
            controller.set_policy(rule, "qss", {})
        with pytest.raises(MissingMetric, match="hr"):
            controller.set_policy(rule, "hr", {})
        assert rule.policy.name == rule.section.policy == "qs"
        assert rule.called == rule.name
        controller.set_policy(rule, "random", {"seed": 7})
        assert rule.called == "random"  # no word of the old one
        assert backend.schedules[-1].policy == "random"  # at once: it is acknowledged now
        assert rule.policy.options == {"seed": 7}

    drive(controller, script)


def test_a_rule_is_meant_by_its_own_name_before_another_that_is_called_so_by_now() -> None:
    names = ("qs", "hr", "fcfs")
    sections = [Section(name=name, policy=name, queries=(name,)) for name in names]
    kinds = FakeEngine.kind(FakeEngine())
    controller = Controller(settings(*sections), kinds, backends(FakeBackend()))
    qs, hr, fcfs = controller.rules
    controller.set_policy(qs, "hr", {})
    assert session._rule(controller, "hr") is hr and session._rule(controller, "qs") is qs
    controller.set_policy(hr, "random", {})
    assert session._rule(controller, "random") is hr
    controller.set_policy(fcfs, "random", {})
    with pytest.raises(UserError, match="2 rules are called 'random'") as error:
        session._rule(controller, "random")
    assert str(error.value.hint).endswith(": hr, fcfs")
    controller.close()


def test_explain_names_metrics_and_what_is_in_force() -> None:
    engine, backend = FakeEngine(), FakeBackend()
    controller = Controller(settings(), FakeEngine.kind(engine), backends(backend))

    async def script() -> None:
        await until(lambda: backend.schedules)
        [shown] = views.explain(controller, "q/op1")
        assert shown["applied"] == {"nice": 3}
        metrics = {m["metric"]: m for m in shown["metrics"]}
        assert metrics["cost"]["value"] == pytest.approx(2e-5)
        assert "CPU time" in metrics["cost"]["how"]
        assert len(views.explain(controller, "op?")) == 3
        with pytest.raises(UserError, match="nobody"):
            views.explain(controller, "nobody")
        with pytest.raises(UserError, match="did you mean 'q/op1'"):
            views.explain(controller, "q/opp1")
        msgspec.json.encode([views.status(controller), views.plans(controller), shown])

    drive(controller, script)


def test_all_threads_of_a_query_are_told_and_explain_says_how_many_it_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    engine, backend = FakeEngine(queries={"q": 130, "r": 2}), FakeBackend()
    controller = Controller(settings(), FakeEngine.kind(engine), backends(backend))

    async def script() -> None:
        await until(lambda: backend.schedules)
        handlers = looking.handlers(controller)
        mine = [t for o in engine.topology.operators if o.query == "q" for t in o.threads]
        told: Any = await handlers["threads"]({"what": "q"})
        assert told["tids"] == [thread.tid for thread in mine]
        assert told == {"pids": [mine[0].pid], "tids": told["tids"], "ordered": 130}
        answers = {"threads": told, "explain": [views.explain(controller, "q")[0]] * 100}
        monkeypatch.setattr(socket, "request", lambda _, verb, __: answers[verb])
        assert waits._meant("q", tmp_path) == (told["pids"], set(told["tids"]))
        look.explain("q", tmp_path, json=True)
        assert "100 of 130 threads are told of" in caplog.text
        with pytest.raises(UserError, match="no scheduled thread"):
            views.threads(controller, "qq")

    drive(controller, script)


def test_explain_takes_the_name_of_a_replica_and_of_all_of_them() -> None:
    engine = FakeEngine()
    some = [
        replace(operator, name=f"work ({at + 1}/3)")
        for at, operator in enumerate(engine.topology.operators)
    ]
    engine.topology = replace(engine.topology, operators=tuple(some))
    controller = Controller(settings(), FakeEngine.kind(engine), backends(FakeBackend()))

    async def script() -> None:
        await until(lambda: controller.rules[0].schedules)
        for what, found in (("q/work (1/3)", 1), ("work (2/3)", 1), ("q/work", 3), ("work", 3)):
            assert len(views.explain(controller, what)) == found, what
        with pytest.raises(UserError, match="did you mean 'q/work'"):
            views.explain(controller, "q/wrk")

    drive(controller, script)


def test_explain_shows_the_metrics_of_logical_operators() -> None:
    """a+b | c | d twice: what the user wrote has other rows than what the engine runs."""
    threads = [(Thread(4_000_000, 10 + row, 1),) for row in range(4)]
    engine, backend = FakeEngine(), FakeBackend()
    engine.topology = Topology(
        engine.target.engine,
        (
            PhysicalOperator("q", "a+b", ("a", "b"), threads=threads[0]),
            PhysicalOperator("q", "c", ("c",), threads=threads[1]),
            PhysicalOperator("q", "d-0", ("d",), 0, 2, threads=threads[2]),
            PhysicalOperator("q", "d-1", ("d",), 1, 2, threads=threads[3]),
        ),
        (Edge(0, 1), Edge(1, 2, 0.5), Edge(1, 3, 0.5)),
        tuple(LogicalOperator("q", name) for name in "abcd"),
        tuple(Edge(row, row + 1) for row in range(3)),
    )
    engine.queue = np.array([5.0, 70.0, 11.0, 30.0])
    rule = Section(policy="qs", level="logical")
    controller = Controller(settings(rule), FakeEngine.kind(engine), backends(backend))

    async def script() -> None:
        await until(lambda: backend.schedules)

        def queues(operator: str) -> dict[str, float]:
            [shown] = views.explain(controller, operator)
            metrics = shown["metrics"]
            return {m["operator"]: m["value"] for m in metrics if m["metric"] == "queue_size"}

        assert queues("q/c") == {"q/c": 70.0}
        assert queues("q/d-0") == queues("q/d-1") == {"q/d": 41.0}
        fused = queues("q/a+b")
        assert fused.keys() == {"q/a", "q/b"} and 70.0 not in fused.values()

    drive(controller, script)


def test_probes_agree_with_what_a_thread_did() -> None:
    ready, burn, end = threading.Event(), threading.Event(), threading.Event()
    ids: list[int] = []

    def work() -> None:
        ids.append(threading.get_native_id())
        ready.set()
        burn.wait()
        until_s = time.thread_time() + 0.2
        while time.thread_time() < until_s:
            pass
        end.wait()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    ready.wait()
    found = thread_of(os.getpid(), ids[0])
    assert found is not None
    topology = FakeEngine(queries={"q": 1}, threads=lambda _: (found,)).topology
    times = ThreadTimes()
    before = times.read(topology)["thread_cpu_time"][0]
    burn.set()

    wait_until(lambda: times.read(topology)["thread_cpu_time"][0] - before >= 0.2)
    assert times.read(topology)["thread_cpu_time"][0] - before < 0.3
    end.set()
    thread.join()
    wait_until(lambda: np.isnan(times.read(topology)["thread_cpu_time"][0]))
    times.close()


@pytest.mark.parametrize("afresh", [False, True])
def test_cpu_time_counts_from_when_the_driver_counts_tuples(afresh: bool) -> None:
    me = thread_of(os.getpid(), threading.get_native_id())
    assert me is not None
    fake = FakeEngine(queries={"q": 1}, threads=lambda _: (me,))
    fake.counts_afresh = afresh  # type: ignore[attr-defined]
    engine = Engine(fake.target, FakeEngine.kind(fake)["fake"], 5.0)
    engine._driver = fake
    used_s = engine._probed(fake.poll(1.0), probing=True).columns["thread_cpu_time"][0]
    assert (used_s == 0) == afresh
    engine.close()


def test_what_a_thread_used_before_we_came_is_left_out_once_and_for_all() -> None:
    """Of one that comes again, too; and nothing of one that was born since."""
    times, ids = ThreadTimes(), list[int]()
    born, end = threading.Event(), threading.Event()

    def work() -> None:
        ids.append(threading.get_native_id())
        burn(0.05)
        born.set()
        end.wait()

    def burn(seconds: float) -> None:
        until_s = time.thread_time() + seconds
        while time.thread_time() < until_s:
            pass

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    born.wait()
    old, young = (thread_of(os.getpid(), tid) for tid in (threading.get_native_id(), ids[0]))
    assert old is not None and young is not None

    def used(*threads: Thread) -> float:
        topology = FakeEngine(queries={"q": 1}, threads=lambda _: threads).topology
        return float(times.read(topology, afresh=True)["thread_cpu_time"][0])

    assert used(old) == 0
    assert used(young) >= 0.05
    burn(0.05)
    assert used(old, young) >= 0.1
    end.set()
    thread.join()
    times.close()


def test_probes_are_read_only_where_the_engine_has_no_cost() -> None:
    engine = FakeEngine(
        provides=frozenset({"tuples_in", "tuples_out"}), threads=sleeping_threads(3)
    )
    backend = FakeBackend()
    controller = Controller(settings(), FakeEngine.kind(engine), backends(backend))

    async def script() -> None:
        await until(lambda: backend.schedules)
        snapshot = controller.engines["fake:a"].snapshot
        assert snapshot is not None
        assert np.isfinite(snapshot.columns["thread_cpu_time"]).all()

    drive(controller, script)
    assert np.isfinite(backend.schedules[-1].form.static).any()


class Saturated(FakeEngine):
    """Its query "heavy" never waits for input and uses four times the CPU of "light"."""

    counted = True  # whether the CPU time of threads is among its answers
    last_s = float("inf")  # CLOCK_MONOTONIC: from then on "heavy" has a twentieth of that

    def poll(self, timeout_s: float) -> Snapshot:
        told = super().poll(timeout_s)
        heavy = np.array([o.query == "heavy" for o in self.topology.operators])
        columns = {**told.columns, "idle_time": np.where(heavy, 0.0, 0.8) * told.time_s}
        late_s = max(0.0, told.time_s - self.last_s)
        less = np.where(heavy, 0.95, 0.0) * late_s / told.time_s
        columns["cpu_time"] = told.columns["cpu_time"] * (1 - less)
        if self.counted:
            columns["thread_cpu_time"] = np.where(heavy, 0.8, 0.2) * told.time_s * (1 - less)
        return replace(told, columns=columns)


@pytest.mark.parametrize("late", ["query", "column"])
def test_a_heavy_query_is_known_long_before_a_window_has_passed(late: str) -> None:
    """What is new has rates of its own, however far back its engine's window reaches."""
    columns = {"tuples_in", "tuples_out", "cpu_time", "queue_size", "idle_time", "thread_cpu_time"}
    engine = Saturated(queries={"light": 1, "heavy": 1}, provides=frozenset(columns))
    topology = engine.topology
    if late == "query":
        engine.topology = Saturated(queries={"light": 1}).topology
    else:
        engine.counted = False
    backend = FakeBackend()
    controller = Controller(
        settings(window=60.0, poll_timeout=5.0), FakeEngine.kind(engine), backends(backend)
    )

    def ranks() -> dict[str, float]:
        last = backend.schedules[-1]
        queries = [query for _, query in filter(None, last.queries)]
        return dict(zip(queries, last.form.rank.tolist(), strict=True))

    async def script() -> None:
        await until(lambda: len(backend.schedules) > 2)
        engine.topology, engine.counted = topology, True
        await until(lambda: ranks().get("heavy", 1.0) < ranks()["light"])  # or it gives up

    drive(controller, script)


def test_who_was_heavy_stays_last_though_it_uses_little_there() -> None:
    """It is last in our own order, and still saturated: that it uses little says nothing."""
    columns = {"tuples_in", "tuples_out", "cpu_time", "queue_size", "idle_time", "thread_cpu_time"}
    engine = Saturated(queries={"light": 1, "heavy": 1}, provides=frozenset(columns))
    backend = FakeBackend()
    controller = Controller(settings(), FakeEngine.kind(engine), backends(backend))

    def ranks() -> list[float]:
        return list(map(float, backend.schedules[-1].form.rank))

    async def script() -> None:
        await until(lambda: backend.schedules and ranks() == [1, 0])
        engine.last_s = time.monotonic()
        await until(lambda: time.monotonic() > engine.last_s + 5 * QUICK.window)
        seen = len(backend.schedules)
        await until(lambda: len(backend.schedules) > seen + 5)
        assert ranks() == [1, 0]
        (seen_s,) = backend.schedules[-1].memory[MEMORY].values()
        assert seen_s < time.monotonic() - 2 * QUICK.window  # by what it used; since then by memory

    drive(controller, script)


def test_a_topology_change_keeps_what_is_known() -> None:
    old = FakeEngine(queries={"q": 3})
    new = FakeEngine(queries={"p": 1, "q": 2})
    snapshot = old.poll(1)
    moved = carry_over(snapshot, new.topology)
    # p/op0 is new; q/op0 and q/op1 moved one row down, but run on other threads
    assert np.isnan(moved.columns["tuples_in"]).all()
    same = FakeEngine(queries={"q": 3, "p": 1})
    kept = carry_over(snapshot, same.topology)
    assert (kept.columns["cpu_time"][:3] == snapshot.columns["cpu_time"]).all()
    assert np.isnan(kept.columns["cpu_time"][3])
    assert isinstance(kept, Snapshot) and kept.topology is same.topology


class DispatchingBackend(FakeBackend):
    name = "scx"


def test_auto_counts_the_queries(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    threads = sleeping_threads(6)
    engine = FakeEngine(queries={"one": 2}, threads=threads)
    other = FakeEngine("b", {"two": 2}, threads=lambda row: threads(row + 2))
    backend = DispatchingBackend()
    kinds = FakeEngine.kind(engine)
    present = [engine]
    kinds["fake"] = replace(kinds["fake"], find=lambda: [e.target for e in present])
    kinds["fake"] = replace(
        kinds["fake"],
        connect=lambda target: next(e for e in present if e.target == target),
    )
    controller = Controller(settings(Section()), kinds, backends(backend))

    def chosen() -> str:
        [shown] = views.status(controller)["policies"]
        if shown["chosen"]:
            assert shown["policy"] == "balanced"
        return str(shown["chosen"])

    async def script() -> None:
        await until(lambda: chosen() == "a single query, order at each dispatch")
        await until(lambda: backend.schedules)
        engine.topology = chains("fake:a", {"one": 2, "more": 2}, threads)  # a job comes
        await until(lambda: chosen().startswith("2 queries"))
        await until(lambda: "more/op0" in backend.schedules[-1].operators)
        assert "chosen by auto: 2 queries" in views.explain(controller, "more/op0")[0]["why"]
        engine.topology = chains("fake:a", {"more": 2}, threads)  # and one goes
        await until(lambda: chosen().startswith("a single query"))
        present.append(other)  # another engine
        await until(lambda: chosen().startswith("2 queries"))
        # A job whose operators run elsewhere asks for no CPU here.
        other.topology = chains("fake:b", {"two": 2}, lambda row: ())
        await until(lambda: chosen().startswith("a single query"))
        assert {schedule.policy for schedule in backend.schedules} == {"balanced"}

    drive(controller, script)
    said = [r.getMessage() for r in caplog.records if "order at each dispatch" in r.getMessage()]
    assert said[0] == "policy auto: balanced (a single query, order at each dispatch)"


@pytest.mark.parametrize(
    ("queries", "count"), [({"one": 2, "two": 2}, "2 queries"), ({"one": 2}, "a single query")]
)
def test_auto_is_static_where_order_is_written_now_and_then(
    queries: dict[str, int], count: str
) -> None:
    backend = FakeBackend()
    engine = FakeEngine(queries=queries)
    controller = Controller(settings(Section(), race=0), FakeEngine.kind(engine), backends(backend))

    async def script() -> None:
        await until(lambda: len(backend.schedules) > 3)

    drive(controller, script)
    assert {schedule.policy for schedule in backend.schedules} == {"light-first"}
    assert controller.rules[0].chosen == f"{count}, nice cannot follow waiting times"
    # A single query has nobody to go before: it is left as the OS has it.
    urgency = backend.schedules[-1].form
    if len(queries) == 1:
        assert len(set(urgency.rank.tolist())) == len(set(urgency.static.tolist())) == 1


def test_auto_counts_the_queries_that_a_policy_rules() -> None:
    backend = DispatchingBackend()
    controller = Controller(
        settings(
            Section(name="two", queries=("a*",)),
            Section(name="one", queries=("b", "secret")),
            Section(name="named", policy="fcfs"),
            exclude=("secret",),
        ),
        FakeEngine.kind(FakeEngine(queries={"a1": 2, "a2": 2, "b": 2, "secret": 2, "c": 1})),
        backends(backend),
    )

    async def script() -> None:
        await until(lambda: len(backend.schedules) > 5)

    drive(controller, script)
    last = {schedule.scope: schedule.policy for schedule in backend.schedules}
    assert last == {"two": "balanced", "one": "balanced", "named": "fcfs"}
    two, one, named = (rule.chosen for rule in controller.rules)
    assert (two or "").startswith("2 queries") and (one or "").startswith("a single query")
    assert named is None


def test_a_plan_is_what_the_expected_backend_would_get() -> None:
    controller = Controller(
        settings(Section()),
        FakeEngine.kind(FakeEngine(queries={"one": 2, "two": 2})),
        None,
        lambda asked: {"auto": "scx"}[asked],
    )

    async def script() -> None:
        await controller.start()
        await controller.step(controller.rules)
        controller.close()

    asyncio.run(script())
    schedule = controller.rules[0].schedules[""]
    assert schedule is not None and schedule.policy == "balanced"


def test_the_guard_steps_back_from_what_harms(caplog: pytest.LogCaptureFixture) -> None:
    """Queues are long whenever anything is enforced: first without an order, then not at all."""
    engine = FakeEngine()
    caplog.set_level(logging.INFO)

    class Harmful(FakeBackend):
        def apply(self, schedule: Schedule) -> Applied:
            engine.queue = np.full(3, 3000.0 if schedule.threads else 30.0)
            return super().apply(schedule)

    backend = Harmful()
    controller = Controller(settings(guard=0.4), FakeEngine.kind(engine), backends(backend))
    [rule] = controller.rules

    async def script() -> None:
        await until(lambda: rule.policy.name == "constant", 30)
        assert backend.threads() and "stepped back: tuples wait" in str(views.status(controller))
        await until(lambda: rule.instead.resting, 30)
        seen = len(backend.schedules)
        await until(lambda: not backend.threads())
        await asyncio.sleep(0.5)
        assert not any(schedule.threads for schedule in backend.schedules[seen + 1 :])
        assert "nothing is enforced" in str(views.status(controller)["notes"])
        controller.set_policy(rule, "hr", {})
        await until(backend.threads)

    drive(controller, script)
    assert len({len(schedule.threads) for schedule in backend.schedules}) == 2
    assert "guard: the system's own scheduling for 0." in caplog.text
    assert "guard: the policy's order again" in caplog.text
