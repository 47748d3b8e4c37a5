"""What one user's processes may take of everybody's time and places."""

import asyncio
import os
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from fakes import FakeBackend, FakeEngine, backends
from stress import fuzz

from sched_ctl.config.settings import Section, Settings
from sched_ctl.controller.loop import Controller
from sched_ctl.controller.pace import Pace
from sched_ctl.controller.rule import Rule
from sched_ctl.controller.targets import TargetWatch
from sched_ctl.controller.trial import Outcomes, Targets
from sched_ctl.drivers import DriverKind, Target
from sched_ctl.drivers.flink import local
from sched_ctl.drivers.liebre import counts
from sched_ctl.drivers.sources import search
from sched_ctl.drivers.sources.http import Endpoint
from sched_ctl.engines import roster
from sched_ctl.engines.budget import Allowance, Budget
from sched_ctl.engines.engine import Engine
from sched_ctl.engines.owners import Owners
from sched_ctl.engines.remarks import Remarks
from sched_ctl.engines.roster import Roster
from sched_ctl.errors import EngineError
from sched_ctl.kernel import procfs, sockdiag
from sched_ctl.kernel.netns import listeners
from sched_ctl.lab import file as lab_file
from sched_ctl.metrics.window import Window
from sched_ctl.model import topology as model
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.targets import Target as Wanted
from sched_ctl.model.topology import Snapshot

ONE, OTHER = 20001, 20002


def found(targets: list[Target]) -> tuple[list[str], Remarks]:
    """Names of the engines that have a place, of all that are there."""
    kind = DriverKind("fake", lambda: targets, lambda target: FakeEngine(), prompt=True)
    remarks = Remarks()

    async def look() -> list[str]:
        arrived: list[Engine] = []
        engines = Roster(Settings(), {"fake": kind}, Owners(), remarks, arrived.append)
        await engines.discover(patience_s=10)
        engines.close()
        return [engine.name for engine in arrived]

    return asyncio.run(look()), remarks


@pytest.mark.parametrize(("stem", "engines"), [("a", 1), ("b", 2)])
def test_what_an_engine_goes_on_in_is_no_second_one(stem: str, engines: int) -> None:
    """The first user with an id has it without his number, until his eldest process ends."""
    mine = os.getpid()
    targets = [Target("fake", "a", mine, 0), Target("fake", f"{stem}@0", mine, 0)]
    kind = DriverKind(
        "fake", lambda: targets, lambda target: FakeEngine(), prompt=True, of_several=True
    )

    async def look() -> list[str]:
        arrived: list[Engine] = []
        found = Roster(Settings(), {"fake": kind}, Owners(), Remarks(), arrived.append)
        await found.discover(patience_s=10)
        found.close()
        return [engine.name for engine in arrived]

    assert len(asyncio.run(look())) == engines


def of(uid: int, count: int) -> list[Target]:
    return [Target("fake", f"{uid}-{number}", uid=uid) for number in range(count)]


def test_a_user_has_so_many_engines_and_no_more() -> None:
    """And leaves the places of others alone, root's and those of other users."""
    names, remarks = found([*of(ONE, 40), *of(OTHER, 3), *of(0, 5)])
    assert [sum(name.startswith(f"fake:{uid}-") for name in names) for uid in (ONE, OTHER, 0)] == [
        roster.MOST_OF_USER,
        3,
        5,
    ]
    assert any(f"more than {roster.MOST_OF_USER} engines of user" in t for t in remarks._said)


def test_all_users_together_leave_places_for_root(monkeypatch: pytest.MonkeyPatch) -> None:
    assert roster.MOST_OF_USERS < roster.MOST_ENGINES
    monkeypatch.setattr(roster, "MOST_OF_USER", 4)
    monkeypatch.setattr(roster, "MOST_OF_USERS", 10)
    crowd = [target for uid in range(ONE, ONE + 8) for target in of(uid, 4)]
    names, _ = found([*crowd, *of(0, 3)])
    assert len(names) == 10 + 3


@contextmanager
def silent(count: int) -> Iterator[None]:
    """Ports of this process at which nobody answers."""
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        yield


class Rest(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answer = b'{"flink-version": "2.0"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None: ...


def test_silent_ports_do_not_hide_an_honest_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other they would take longer than all of them together may."""
    with silent(8), HTTPServer(("127.0.0.1", 0), Rest) as honest:
        Thread(target=honest.serve_forever, daemon=True).start()
        own = listeners(os.getpid())
        port = honest.server_address[1]
        dumb = tuple(listener for listener in own if listener.port != port)[:8]
        good = tuple(listener for listener in own if listener.port == port)
        assert len(dumb) == 8 and len(good) == 1
        # Ten JobManagers of one user that never answer, and then somebody else's that does.
        pids = list(range(10**7, 10**7 + 11))
        monkeypatch.setattr(search, "listening", lambda pid: good if pid == pids[-1] else dumb)
        monkeypatch.setattr(local, "_property", lambda pid, name: None)
        monkeypatch.setattr(procfs, "owner", lambda pid: ONE if pid < pids[-1] else OTHER)
        monkeypatch.setattr(search, "Endpoint", lambda host, port, pid: Endpoint(host, port))
        assert 10 * len(dumb) * search.PROBE_S > search.SEARCH_S
        answers = local.rest_endpoints(pids)
        honest.shutdown()
    assert list(answers) == [pids[-1]]
    answers[pids[-1]].close()


def test_so_many_files_of_a_user_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(lab_file.MOST_FILES + 20):
        (tmp_path / f"{lab_file.PREFIX}{number}").write_bytes(b"nothing")
    looked = []

    class Counted:
        def __init__(self, path: Path) -> None:
            looked.append(path)
            raise OSError

    monkeypatch.setattr(lab_file, "LabFile", Counted)
    assert lab_file.pids(lambda: sorted(tmp_path.iterdir())) == []
    assert len(looked) == lab_file.MOST_FILES


@pytest.mark.parametrize("place", [b'"subtask": 0', b'"parallelism": 2', b'"attempt": 0'])
@pytest.mark.parametrize("number", [-1, 2**31, 2**63, 2**64, 10**40])
def test_numbers_that_no_machine_word_holds(
    place: bytes, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a JobManager's answers they are its own problem, in words, or none."""
    monkeypatch.setattr(local, "task_managers", lambda uid=None: [])
    name, _, _ = place.partition(b":")
    answers = fuzz.FLINK.replace(place, b"%s: %d" % (name, number))
    assert answers != fuzz.FLINK
    with suppress(EngineError):
        fuzz.flink_answers(answers)


def test_kinds_of_processes_are_looked_for_when_something_was_born(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    born = b"100"
    looks: list[str] = []
    monkeypatch.setattr(roster, "last_id", lambda: born)

    def kind(name: str, of_processes: bool) -> DriverKind:
        def find() -> list[Target]:
            looks.append(name)
            return []

        return DriverKind(name, find, lambda _: FakeEngine(), of_processes=of_processes)

    async def run() -> None:
        nonlocal born
        kinds = {"found": kind("found", True), "asked": kind("asked", False)}
        made = Roster(Settings(), kinds, Owners(), Remarks(), lambda _: None)

        async def looked() -> list[str]:
            looks.clear()
            await made.discover(patience_s=10.0)
            return sorted(looks)

        try:
            assert await looked() == ["asked", "found"]
            made._again = False  # no process that may not have been ready
            assert await looked() == ["asked"]
            born = b"101"
            assert await looked() == ["asked", "found"]
            assert await looked() == ["asked"]
            monkeypatch.setattr(roster, "QUIET_S", 0.0)
            assert await looked() == ["asked", "found"]
            monkeypatch.setattr(roster, "QUIET_S", 60.0)
            made._again = True
            assert await looked() == ["asked", "found"]
            born = b""  # where the kernel does not tell
            made._again = False
            assert await looked() == await looked() == ["asked", "found"]
        finally:
            made.close()

    asyncio.run(run())


def test_an_engine_of_several_processes_lasts_while_one_of_them_does() -> None:
    """Its others keep their order: the engine is known by the eldest of them from then on."""
    children = [subprocess.Popen(["sleep", "100"]) for _ in range(3)]
    threads = [model.Thread(child.pid, child.pid, 0) for child in children]
    operators = tuple(
        model.PhysicalOperator("q", str(thread.pid), (str(thread.pid),), threads=(thread,))
        for thread in threads
    )

    async def states(kind: DriverKind) -> list[tuple[str, int | None]]:
        engine = Engine(Target("found", "several", children[0].pid), kind, 1.0)
        engine._latest = Snapshot(model.Topology("e", operators, (), (), ()), 0.0, {})
        try:
            seen = []
            for child in children:
                child.kill()
                child.wait()
                engine.check(0.0, 1.0, 1.0)
                seen.append((engine.state, engine.target.pid))
            return seen
        finally:
            engine.close()

    kind = DriverKind("found", list, lambda _: FakeEngine(), of_several=True)
    try:
        assert asyncio.run(states(kind)) == [
            ("new", children[1].pid),
            ("new", children[2].pid),
            ("gone", children[2].pid),
        ]
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_an_engine_of_several_processes_is_found_again_when_its_eldest_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At once, though no process was born since."""
    monkeypatch.setattr(roster, "last_id", lambda: b"100")
    monkeypatch.setattr("sched_ctl.engines.roster.Young.due", lambda _: False)
    children = [subprocess.Popen(["sleep", "100"]) for _ in range(2)]

    def find() -> list[Target]:
        running = [child.pid for child in children if child.poll() is None]
        return [Target("found", "several", pid) for pid in running[:1]]

    async def run() -> list[int | None]:
        kind = DriverKind("found", find, lambda _: FakeEngine(), of_processes=True)
        pids = []
        made = Roster(
            Settings(), {"found": kind}, Owners(), Remarks(), lambda e: pids.append(e.target.pid)
        )
        try:
            made.is_due(0.0)
            await made.discover(patience_s=10.0)
            await made.discover(patience_s=10.0)
            children[0].kill()
            children[0].wait()
            assert [engine.state for engine in made.check()] == ["gone"]
            assert made.is_due(0.0) and not made.is_due(0.0)
            await made.discover(patience_s=10.0)
            await made.discover(patience_s=10.0)
        finally:
            made.close()
        return pids

    try:
        assert asyncio.run(run()) == [child.pid for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_what_costs_little_is_never_put_off_and_what_costs_much_is() -> None:
    """Simulated: each is begun as soon as it may be, and costs what it costs."""

    def begun(cost_s: float, share: float, longest_s: float = float("inf")) -> int:
        budget, now_s = Budget(), 0.0
        for step in range(1, 10**6):
            budget.charge(cost_s, now_s, share, longest_s)
            now_s = max(now_s + 0.1, budget.rests_until_s)  # a pass each 0.1 s
            if now_s > 100.0:
                return step
        return 0

    assert begun(0.001, 0.02) == begun(5.0, 0.0) == pytest.approx(1000, abs=2)
    assert begun(0.02, 0.02) == pytest.approx(100, abs=6)  # 2% of a CPU
    assert begun(2.0, 0.02) == 5  # all but the first five, which tell what it costs
    assert begun(2.0, 0.02, longest_s=5.0) == pytest.approx(24, abs=2)


def test_a_single_dear_answer_counts_for_little() -> None:
    budget = Budget()
    for cost_s in (3.0, 0.001, 0.001, 0.001, 0.001, 0.001):
        budget.charge(cost_s, 10.0, 0.02)
    assert budget.rests_until_s == pytest.approx(10.05)


def burn(cpu_s: float) -> None:
    end_s = time.thread_time() + cpu_s
    while time.thread_time() < end_s:
        pass


def passes_beside(
    monkeypatch: pytest.MonkeyPatch, *hogs: tuple[int, int], target: tuple[Wanted, ...] = ()
) -> tuple[Controller, float]:
    """A small engine of root's was asked 20 times, beside engines (uid, how many) of long answers.

    They are long in CPU time alone. Returns how many seconds it took as well: on a crowded machine
    others may cost more meanwhile, see `most`.
    """
    made = {0: [FakeEngine("small")]}
    for uid, count in hogs:
        made.setdefault(uid, []).extend(FakeEngine(f"{uid}-{n}") for n in range(count))

    class Long(FakeEngine):
        def poll(self, timeout_s: float) -> Snapshot:
            burn(0.05)
            return super().poll(timeout_s)

    targets, drivers = [], {}
    for uid, engines in made.items():
        for engine in engines:
            if engine.target.address != "small":
                engine.__class__ = Long
            targets.append(replace(engine.target, uid=uid))
            drivers[targets[-1].engine] = engine
    kind = DriverKind("fake", lambda: targets, lambda target: drivers[target.engine])
    monkeypatch.setattr(
        "sched_ctl.engines.engine.belonging", lambda topology, uid, namespace: topology
    )
    settings = Settings(
        policy=(Section(policy="qs"),),
        target=target,
        period=0.02,
        calm_period=0,
        cpu_limit=0.1,
        discover=5,
    )
    controller = Controller(settings, {"fake": kind}, backends(FakeBackend()))

    async def loop() -> None:
        try:
            await controller.start()
            running = asyncio.create_task(controller.run(30.0))
            while made[0][0].polls < 20 and not running.done():
                await asyncio.sleep(0.01)
            controller.stop("enough")
            await running
        finally:
            controller.close()

    began_s = time.monotonic()
    asyncio.run(loop())
    return controller, time.monotonic() - began_s


def most(seconds: float, free: int) -> float:
    """So often may 0.05 s of CPU time be spent meanwhile, at a tenth of a CPU; first for free."""
    return free + seconds * 0.1 / 0.05


@pytest.mark.parametrize("hogs", [((ONE, 1),), ((0, 1),), ((ONE, 3), (OTHER, 2))])
def test_roots_passes_pay_for_nobodys_long_answers(
    monkeypatch: pytest.MonkeyPatch, hogs: tuple[tuple[int, int], ...]
) -> None:
    """A pass costs what it costs without them, and who answers at length is asked rarely."""
    controller, seconds = passes_beside(monkeypatch, *hogs)
    engines = controller.engines.values()
    small = next(engine for engine in engines if engine.target.address == "small")
    others = [engine for engine in engines if engine is not small]
    assert len(others) == sum(count for _, count in hogs)
    assert max(engine.polls for engine in others) <= most(seconds, free=6)
    assert controller.pace.pass_s < 0.03  # a single long answer takes 0.05


def test_a_users_order_is_paid_for_by_that_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deciding takes long for his engines: they keep their order, and root's pass costs no more."""
    decide = Controller._decide

    def dear(
        self: Controller,
        rule: Rule,
        engines: Sequence[Engine],
        domain: str,
        seen: Mapping[str, Window],
    ) -> Schedule:
        decided[domain] += 1
        burn(0.05 if domain else 0.0)
        return decide(self, rule, engines, domain, seen)

    decided: Counter[str] = Counter()
    monkeypatch.setattr(Controller, "_decide", dear)
    controller, seconds = passes_beside(monkeypatch, (ONE, 1))
    assert 0 < decided[str(ONE)] <= most(seconds, free=6)
    assert controller.pace.pass_s < 0.03


def test_telling_what_came_of_a_users_engines_is_paid_for_by_that_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their graphs may be of thousands of queries: it is left out while he rests."""
    note = Outcomes.note

    def dear(self: Outcomes, snapshot: Snapshot, targets: Callable[[], Targets]) -> None:
        domain = snapshot.topology.engine.removeprefix("fake:").partition("-")[0]
        noted[domain] += 1
        burn(0.0 if domain == "small" else 0.05)
        note(self, snapshot, targets)

    noted: Counter[str] = Counter()
    monkeypatch.setattr(Outcomes, "note", dear)
    controller, seconds = passes_beside(monkeypatch, (ONE, 3))
    assert 0 < noted[str(ONE)] <= most(seconds, free=4)
    assert controller.pace.pass_s < 0.03


def test_counting_what_kept_its_target_is_paid_for_by_the_user_whose_queries_these_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def dear(watch: TargetWatch, engine: Engine, *rest: Any) -> None:
        counted[engine.domain] += 1
        burn(0.05 if engine.domain else 0.0)
        count(watch, engine, *rest)

    counted: Counter[str] = Counter()
    count = TargetWatch._count
    monkeypatch.setattr(TargetWatch, "_count", dear)
    stated = (Wanted(queries=("*",), latency="1s"),)
    controller, seconds = passes_beside(monkeypatch, (ONE, 3), target=stated)
    assert 0 < counted[str(ONE)] <= most(seconds, free=4)
    assert controller.pace.pass_s < 0.03


def test_an_engine_that_leaves_is_no_cost_of_the_next_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All that it had ever cost was: who ended engines again and again made passes rare."""
    staying, leaving = FakeEngine("a"), FakeEngine("b")
    settings = Settings(policy=(Section(policy="qs"),), period=0.02, calm_period=0)
    kinds = FakeEngine.kind(staying, leaving)
    controller = Controller(settings, kinds, backends(FakeBackend()))
    charged: list[float] = []
    monkeypatch.setattr(Pace, "charge", lambda pace, total_s: charged.append(total_s))

    async def passes() -> None:
        try:
            await controller.start()
            for engine in controller.engines.values():
                engine.in_loop_s += 3600.0
            await controller.step(controller.rules)
            controller.engines["fake:b"].state = "gone"
            await controller.step(controller.rules)
            assert [*controller.engines] == ["fake:a"]
            wanted = msgspec.structs.replace(settings, engine=("none",))
            controller.use(wanted, kinds, [*controller.rules])
            assert not controller.engines
            await controller.step(controller.rules)
        finally:
            controller.close()

    asyncio.run(passes())
    assert max(charged) - min(charged) < 60.0


def test_who_is_looked_at_is_asked_though_it_costs_much() -> None:
    """One of root's; a user's pays whoever looks."""

    async def rests(uid: int) -> list[bool]:
        fake = FakeEngine()
        fake.target = replace(fake.target, uid=uid)
        engine = Engine(fake.target, FakeEngine.kind(fake)["fake"], 1.0)
        engine.share = 0.02
        for _ in range(5):
            engine._charge(1.0)
        found = [engine.ask(10.0, 1.0) is None]
        engine.share = 0.0
        found.append(engine.ask(5.0, 1.0) is None and not engine.busy)
        engine.close()
        return found

    assert asyncio.run(rests(0)) == [True, False]
    assert asyncio.run(rests(ONE)) == [True, True]


def test_an_answer_that_is_refused_is_paid_for_too() -> None:
    """Each second one may be right, so that silence alone would not keep us from asking."""

    class Refused(FakeEngine):
        def poll(self, timeout_s: float) -> Snapshot:
            burn(0.05)
            raise EngineError("answered with more than 400000 values")

    async def rest_s() -> float:
        fake = Refused()
        engine = Engine(replace(fake.target, uid=ONE), FakeEngine.kind(fake)["fake"], 1.0)
        question = engine.ask(time.monotonic(), 1.0)
        assert question is not None
        await asyncio.wait([question])
        await asyncio.sleep(0)
        engine.close()
        assert engine.failures == 1
        return engine._rests_until_s - engine._asked_s

    assert asyncio.run(rest_s()) >= 0.5  # a tenth of a CPU


def test_who_starts_ever_new_engines_has_one_allowance() -> None:
    """Each that is new has cost nothing so far. Simulated: one in each 0.1 s, 0.3 s an answer."""
    allowance, now_s, spent_s = Allowance(), 100.0, 0.0
    while now_s < 200.0:
        if not allowance.rests(now_s):
            allowance.spend(0.3, now_s, 0.1)
            spent_s += 0.3
        now_s += 0.1
    assert 9.0 <= spent_s <= 10.5
    small = Allowance()
    for _ in range(9):  # at once, and it does not rest
        small.spend(0.01, 100.0, 0.1)
        assert not small.rests(100.0)


def test_engines_of_a_user_are_met_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of none it is known what its answers cost; root's are asked at once."""
    controller, _ = passes_beside(monkeypatch, (ONE, 3), (OTHER, 2))
    for engine in controller.engines.values():
        engine.polls, engine._asked = 0, None
    engines = list(controller.engines.values())
    asked = list(controller._known_or_next(engines))
    assert sorted(engine.uid or 0 for engine in asked) == [0, ONE, OTHER]
    engines[1].polls = 1
    assert len(list(controller._known_or_next(engines))) == 4


@pytest.mark.parametrize("read", [listeners, sockdiag.inodes, counts.open_files])
def test_however_many_files_a_process_has_open_only_some_are_looked_at(
    read: Callable[[int], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may have half a million, and be looked at by each search."""
    looked = []

    def link(path: str) -> str:
        looked.append(path)
        return f"pipe:[{path}]"

    with monkeypatch.context() as patched:
        entries = [SimpleNamespace(name=str(fd), path=f"{fd}") for fd in range(20_000)]
        patched.setattr(os, "scandir", lambda _: nullcontext(entries))
        patched.setattr(os, "readlink", link)
        assert not read(os.getpid())
    assert len(looked) == procfs.MOST_FILES < len(entries)
