"""One user's word never moves another user's threads."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from fakes import QUICK, FakeBackend, FakeEngine, backends, drive, sleeping_threads

from sched_ctl.backends import Backend, Probe
from sched_ctl.backends.in_use import Backends
from sched_ctl.config.settings import Section, SettingError, Settings
from sched_ctl.controller.loop import Controller
from sched_ctl.decide import decision
from sched_ctl.drivers import DriverKind, Target
from sched_ctl.drivers.believed import Believed
from sched_ctl.drivers.flink import local
from sched_ctl.drivers.sources import search
from sched_ctl.engines import owners
from sched_ctl.engines.engine import Engine
from sched_ctl.engines.owners import Owners, belonging, first_user
from sched_ctl.engines.roster import wanted_kinds
from sched_ctl.kernel import containers, procfs
from sched_ctl.kernel.containers import Container
from sched_ctl.model.topology import Thread
from sched_ctl.service import views
from sched_ctl.service.reload import reload
from support import wait_until

ANN, BOB = 20001, 20002


class Lifting(FakeBackend):
    name: ClassVar[str] = "scx"
    lifts: ClassVar[bool] = True


def ladder(lifting: Backend, fair: Backend) -> Backends:
    def choose(
        name: str, options: Mapping[str, object], failed: Collection[str] = ()
    ) -> tuple[Backend, list[tuple[str, Probe]]]:
        return (fair if lifting.name in failed else lifting), []

    return Backends(choose, {})


def of(name: str, uid: int, queries: dict[str, int] | None = None) -> FakeEngine:
    first = 10_000_000 + 100 * uid
    threads = lambda row: (Thread(first, first + row, 1, f"op{row}"),)  # noqa: E731
    engine = FakeEngine(name, queries, threads=threads)
    engine.target = Target("fake", name, uid=uid)
    return engine


def test_each_users_engines_are_ordered_among_themselves() -> None:
    engines = [of("root", 0), of("flink", 101), of("ann", ANN), of("bob", BOB)]
    backend = FakeBackend()
    controller = Controller(QUICK, FakeEngine.kind(*engines), backends(backend))

    async def script() -> None:
        while len({s.scope for s in backend.schedules}) < 3:
            await asyncio.sleep(0.01)
        shown = {e["engine"]: e["ordered"] for e in views.engines(controller)}
        assert "among user 20001's own alone" in shown["fake:ann"]
        assert shown["fake:flink"] == "with all: a system user's"
        [row] = views.explain(controller, str(of("bob", BOB).topology.operators[0].threads[0].tid))
        assert "20002" in row["ordered"]

    drive(controller, script)
    pids = {s.scope: {t.pid for t in s.threads} for s in backend.schedules if s.threads}
    first = {e.target.address: e.topology.operators[0].threads[0].pid for e in engines}
    assert pids == {
        "hr": {first["root"], first["flink"]},
        f"hr@{ANN}": {first["ann"]},
        f"hr@{BOB}": {first["bob"]},
    }


def test_users_that_are_named_are_ordered_with_all() -> None:
    engines, backend = [of("root", 0), of("ann", ANN)], FakeBackend()
    settings = msgspec.structs.replace(QUICK, users=(str(ANN),))
    controller = Controller(settings, FakeEngine.kind(*engines), backends(backend))

    async def script() -> None:
        while not any(len({t.pid for t in s.threads}) == 2 for s in backend.schedules):
            await asyncio.sleep(0.01)

    drive(controller, script)
    assert {s.scope for s in backend.schedules} == {"hr"}


def test_a_user_whose_engine_ends_is_released() -> None:
    ann, backend = of("ann", ANN), FakeBackend()
    settings = msgspec.structs.replace(QUICK, stale_after=0.1)
    controller = Controller(settings, FakeEngine.kind(of("root", 0), ann), backends(backend))

    async def script() -> None:
        while f"hr@{ANN}" not in {s.scope for s in backend.schedules}:
            await asyncio.sleep(0.01)
        ann.fail = "no more"
        while backend.threads(f"hr@{ANN}"):
            await asyncio.sleep(0.01)

    drive(controller, script)


def test_what_spoils_one_users_pass_spoils_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def decide(scope: str, *rest: Any) -> Any:
        if scope == f"hr@{ANN}":
            raise ValueError("what ann's engine says")
        return decided(scope, *rest)

    decided = decision.decide
    monkeypatch.setattr("sched_ctl.controller.rule.decide", decide)
    backend = FakeBackend()
    controller = Controller(
        QUICK, FakeEngine.kind(of("root", 0), of("ann", ANN)), backends(backend)
    )

    async def script() -> None:
        while len(backend.schedules) < 3:
            await asyncio.sleep(0.01)
        assert any("ann's engine" in problem for problem in views.problems(controller))

    drive(controller, script)
    assert {s.scope for s in backend.schedules} == {"hr"}


@pytest.mark.parametrize("first", ["hr", "constant"])
def test_what_a_users_engine_does_not_tell_refuses_nobody_a_configuration(first: str) -> None:
    """Neither at the start nor later; no more does an engine in which the rule has no query."""
    root, ann, other = of("root", 0), of("ann", ANN), of("other", 0, {"x": 1})
    ann.provides = other.provides = frozenset({"tuples_out"})
    section = Section(name="one", policy=first, queries=("q*",))
    settings = msgspec.structs.replace(QUICK, policy=(section,))
    backend = FakeBackend()
    controller = Controller(settings, FakeEngine.kind(root, ann, other), backends(backend))

    async def script() -> None:
        while not backend.threads("one"):
            await asyncio.sleep(0.01)
        controller.set_policy(controller.rules[0], "qs", {})
        assert controller.rules[0].problem is None
        assert "queue_size" in controller.engines["fake:ann"].refused["one"]
        new = msgspec.structs.replace(section, policy="qs")
        reload(controller, msgspec.structs.replace(settings, policy=(new,)))
        passes = controller.rules[0].passes
        while controller.rules[0].passes == passes:
            await asyncio.sleep(0.01)
        assert controller.rules[0].problem is None
        assert controller.engines["fake:ann"].refused

    drive(controller, script)
    assert backend.threads("one") and not backend.threads(f"one@{ANN}")


def test_what_is_left_out_already_keeps_no_reload_from_working() -> None:
    root, late = of("root", 0), of("late", 0)
    late.provides = frozenset({"tuples_out"})
    kinds, present = FakeEngine.kind(root, late), [root.target]
    kinds = {"fake": replace(kinds["fake"], find=lambda: list(present))}
    controller = Controller(QUICK, kinds, backends(FakeBackend()))

    async def script() -> None:
        present.append(late.target)
        while not (known := controller.engines.get("fake:late")) or not known.refused:
            await asyncio.sleep(0.01)
        reload(controller, msgspec.structs.replace(QUICK, window=0.2))

    drive(controller, script)


def test_one_users_queries_do_not_choose_another_users_policy() -> None:
    backend = Lifting()
    settings = msgspec.structs.replace(QUICK, policy=(Section(policy="auto"),))
    engines = FakeEngine.kind(of("root", 0), of("ann", ANN, {"a": 2, "b": 2}))
    controller = Controller(settings, engines, ladder(backend, FakeBackend()))

    async def script() -> None:
        while len(backend.schedules) < 5:
            await asyncio.sleep(0.01)
        [rule] = controller.rules
        assert rule.queries == {"": 1, str(ANN): 2}
        assert (rule.chosen or "").startswith("a single query")

    drive(controller, script)
    assert {s.policy for s in backend.schedules if s.scope == "auto"} == {"balanced"}


def test_a_backend_that_puts_threads_first_does_so_for_the_common_ones_alone() -> None:
    lifting, fair = Lifting(), FakeBackend()

    engines = FakeEngine.kind(of("root", 0), of("ann", ANN))
    controller = Controller(QUICK, engines, ladder(lifting, fair))

    async def script() -> None:
        while not (lifting.schedules and fair.schedules):
            await asyncio.sleep(0.01)
        tid = of("ann", ANN).topology.operators[0].threads[0].tid
        [row] = views.explain(controller, str(tid))
        assert row["backend"] == "nice" and row["applied"] == {"nice": 3}

    drive(controller, script)
    assert {s.scope for s in lifting.schedules} == {"hr"}
    assert {s.scope for s in fair.schedules} == {f"hr@{ANN}"}
    assert lifting.restored == fair.restored == 1


def test_what_failed_for_a_user_is_tried_again_and_moves_nobody_else() -> None:
    class Second(FakeBackend):
        name = "second"

    lifting, second, third = Lifting(), Second(fail="in its way"), FakeBackend()

    def choose(
        name: str, options: Mapping[str, object], failed: Collection[str] = ()
    ) -> tuple[Backend, list[tuple[str, Probe]]]:
        if "scx" not in failed and not lifting.tried:
            return lifting, []
        steps = [] if "scx" in failed else [("scx", Probe(False, "ours is attached"))]
        return (third if "second" in failed else second), steps

    engines = FakeEngine.kind(of("root", 0), of("ann", ANN))
    in_use = Backends(choose, {})
    controller = Controller(QUICK, engines, in_use)

    async def script() -> None:
        while not third.threads(f"hr@{ANN}"):
            await asyncio.sleep(0.01)
        second.fail = None
        in_use._retries["second"].at_s = 0.0  # as later
        while not second.threads(f"hr@{ANN}"):
            await asyncio.sleep(0.01)
        assert third.schedules[-1].scope == f"hr@{ANN}" and not third.threads()
        assert controller.rules[0].backend == "scx" and not lifting.restored

    drive(controller, script)


def test_threads_of_other_users_are_left_out() -> None:
    engine = FakeEngine(queries={"q": 2}, threads=sleeping_threads(2))
    whole = engine.topology
    assert belonging(whole, os.getuid()) is whole
    foreign = belonging(whole, ANN, lambda pid: 0)
    assert not any(o.threads for o in foreign.operators)
    assert "2 threads are left alone" in foreign.notes[0] and "root's" in foreign.notes[0]


def test_nobody_names_the_first_process() -> None:
    init = FakeEngine(queries={"q": 1}, threads=lambda _: (Thread(1, 1, 1),)).topology
    assert not belonging(init, 0).operators[0].threads


def test_an_engine_counts_for_threads_of_its_own_user_alone() -> None:
    fake = FakeEngine(queries={"q": 2}, threads=sleeping_threads(2))
    fake.target = Target("fake", "a", uid=os.getuid() + 1)

    async def ask() -> Engine:
        engine = Engine(fake.target, FakeEngine.kind(fake)["fake"], 1.0)
        await asyncio.wait_for(engine.ask(0.0, 1.0) or asyncio.sleep(0), 10)
        engine.close()
        return engine

    snapshot = asyncio.run(ask()).snapshot
    assert snapshot is not None
    assert not any(o.threads for o in snapshot.topology.operators)


def test_an_engine_of_a_named_address_is_theirs_whose_it_is_as_long_as_one_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A user's process that was alone for a while does not keep the engine for good, and gives
    it back to who had it first."""
    first, second, third = (10_000_000 + row for row in range(3))
    whose = {first: BOB, second: ANN, third: BOB}
    pods = {third: Container(pod="x", namespace="ingest")}
    mine = sleeping_threads(1)
    owner = procfs.owner
    monkeypatch.setattr(procfs, "owner", lambda pid: whose.get(pid) or owner(pid))
    monkeypatch.setattr(containers, "of", pods.get)
    monkeypatch.setattr(
        containers, "namespace_of", lambda pid: pods[pid].namespace if pid in pods else ""
    )
    fake = FakeEngine()

    async def ask(engine: Engine, *pids: int) -> tuple[int | None, str, int]:
        """Whose it is when these processes run its operators, and how many threads it has then."""
        made = [(Thread(pid, pid, 1),) if pid in whose else mine(0) for pid in pids] or [()]
        fake.topology = FakeEngine(queries={"q": len(made)}, threads=made.__getitem__).topology
        await asyncio.wait_for(engine.ask(1e6 * (fake.polls + 1), 1.0) or asyncio.sleep(0), 10)
        assert engine.snapshot is not None
        threads = sum(len(o.threads) for o in engine.snapshot.topology.operators)
        return engine.uid, engine.domain, threads

    async def one_after_the_other() -> None:
        engine = Engine(fake.target, FakeEngine.kind(fake)["fake"], 1.0)
        try:
            assert await ask(engine) == (None, "", 0)
            assert await ask(engine, first) == (BOB, str(BOB), 1)
            assert await ask(engine) == (BOB, str(BOB), 0)
            assert (await ask(engine, first, second))[:2] == (BOB, str(BOB))
            assert (await ask(engine, second, third))[:2] == (ANN, str(ANN))
            assert (await ask(engine, first, second))[:2] == (BOB, str(BOB))
            assert (await ask(engine, third))[:2] == (BOB, "pod:ingest")
            assert (await ask(engine, first))[:2] == (BOB, str(BOB))
            assert (await ask(engine, os.getpid()))[::2] == (os.getuid(), 1)
        finally:
            engine.close()

    asyncio.run(one_after_the_other())


def test_a_job_manager_speaks_of_its_own_users_task_managers() -> None:
    name = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()", name], stdin=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        wait_until(lambda: process.pid in local.task_managers())
        assert process.pid in local.task_managers(os.getuid())
        assert process.pid not in local.task_managers(os.getuid() + 1)
        process.stdin.close()


def test_a_socket_tells_whose_it_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert search.listening_user("127.0.0.1", port) == os.getuid()
        assert search.listening_user("192.0.2.1", port) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_of_several_at_one_port_the_address_tells_whose_it_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        os.seteuid(20001)
        try:
            other = socket.create_server(("127.0.0.2", port))
        finally:
            os.seteuid(0)
        with other:
            asked = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
            assert [search.listening_user(host, port) for host in asked] == [0, 20001, None]
    with socket.create_server(("0.0.0.0", 0)) as server:
        assert search.listening_user("127.0.0.3", server.getsockname()[1]) == 0


def test_owner_is_the_real_user() -> None:
    assert procfs.owner(os.getpid()) == os.getuid()
    assert procfs.owner(2**22 + 1) is None


def test_users_have_names_and_numbers(tmp_path: Path) -> None:
    assert Owners(["root", "20001"]).domain(ANN) == owners.COMMON
    assert Owners().domain(ANN) == str(ANN)
    with pytest.raises(SettingError, match="no user 'nobody-of-this-name'"):
        Owners(["nobody-of-this-name"])
    defs = tmp_path / "login.defs"
    defs.write_text("# UID_MIN 5\nUID_MIN\t\t  500\nSYS_UID_MIN 101\n")
    assert owners.first_user(defs) == 500
    assert owners.first_user(tmp_path / "none") == 1000


def test_a_kind_is_told_whom_the_administrator_believes() -> None:
    told: list[Believed] = []

    def declared(_: object, believed: Believed) -> DriverKind:
        told.append(believed)
        return kind

    kind = DriverKind("fake", list, lambda _: pytest.fail("asked"), declared=declared)
    first = first_user()
    wanted_kinds(Settings(users=(str(first + 1),)), {"fake": kind})
    assert [told[0](uid) for uid in (0, first - 1, first, first + 1)] == [True, True, False, True]
