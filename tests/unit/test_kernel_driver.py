"""The driver for programs of which nothing is known, against a program whose threads we know."""

import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from fakes import Wakes

from sched_ctl.adapt.guard import Guard
from sched_ctl.config.settings import Section
from sched_ctl.controller.instead import Instead
from sched_ctl.controller.rule import Rule
from sched_ctl.drivers import Target, kernel
from sched_ctl.drivers.kernel import connect, operators_of
from sched_ctl.drivers.threads import thread_of
from sched_ctl.engines.engine import Engine
from sched_ctl.engines.timers import Timer
from sched_ctl.errors import EngineError
from sched_ctl.kernel import procfs, tracing
from sched_ctl.metrics.catalogue import MissingMetric, evaluate, resolve
from sched_ctl.metrics.window import Window
from sched_ctl.model.topology import Snapshot, Thread
from sched_ctl.plugins import registry
from support import running, wait_until

# Threads that work for about so many milliseconds of CPU time a turn, and one more on request.
# They work without the interpreter's lock, for who waits for that has many turns that are no work,
# and in real time where they may: a busy machine takes the CPU away each 0.3 ms.
PROGRAM = """
import ctypes, os, sys, threading, time
from contextlib import suppress
from hashlib import pbkdf2_hmac
with suppress(PermissionError): os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
libc = ctypes.CDLL(None)
ready = threading.Barrier(4)
def run(name, ms):
    libc.prctl(15, name.encode(), 0, 0, 0)
    if name != "late": ready.wait()
    while True:
        pbkdf2_hmac("sha256", b"", b"", 1500 * ms)
        time.sleep(0.03)
for name, ms in (("cheap 1/2", 1), ("cheap 2/2", 1), ("dear", 6)):
    threading.Thread(target=run, args=(name, ms), daemon=True).start()
ready.wait()
print("runs", flush=True)
for line in sys.stdin:
    threading.Thread(target=run, args=("late", 1), daemon=True).start()
"""


@pytest.fixture(autouse=True)
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on machines that refuse it; guests check it with tracing."""
    monkeypatch.setenv(tracing.SWITCH, "0")


@pytest.fixture
def program() -> Iterator["subprocess.Popen[str]"]:
    with running(sys.executable, "-S", "-c", PROGRAM) as child:
        yield child


def target(pid: int) -> Target:
    return Target("kernel", str(pid))


def test_threads_are_operators_and_numbers_in_names_make_replicas() -> None:
    names = ("main", "map (1/2)", "map (2/2)", "sink", "sink")
    operators = operators_of("q", [Thread(1, 10 + i, i, name) for i, name in enumerate(names)])
    assert [o.logical[0] for o in operators] == ["main", "map (#/#)", "map (#/#)", "sink", "sink"]
    assert [(o.replica, o.replicas) for o in operators] == [(0, 1), (0, 2), (1, 2), (0, 2), (1, 2)]
    assert [o.name for o in operators][3:] == ["sink.13", "sink.14"]
    assert len({o.name for o in operators}) == len(names)


def test_a_thread_that_takes_anothers_name_keeps_its_own_identity() -> None:
    operators = operators_of(
        "q", [Thread(1, 5, 1, "a.6"), Thread(1, 6, 2, "a"), Thread(1, 7, 3, "a")]
    )
    assert len({operator.name for operator in operators}) == 3


def test_cost_is_the_cpu_time_of_a_turn(program: "subprocess.Popen[str]") -> None:
    driver = connect(target(program.pid))
    try:
        then = driver.poll(1.0)

        def differs() -> bool:
            now = driver.poll(1.0)
            # That there are 20 turns of each to look at, however busy this machine is.
            if (
                now.topology is not then.topology
                or np.nanmin((now.columns["tuples_in"] - then.columns["tuples_in"])[1:]) < 20
            ):
                return False
            steps = resolve(["cost"], driver.provides, policy="p", engine="e")
            values = evaluate(steps, Window(now, then))["cost"]
            costs = {o.name: c for o, c in zip(now.topology.operators, values, strict=True)}
            return bool(costs["dear"] > 3 * max(costs["cheap 1/2"], costs["cheap 2/2"]))

        wait_until(differs, 30)
        logical = {o.logical for o in driver.poll(1.0).topology.operators}
        assert ("cheap #/#",) in logical
    finally:
        driver.close()


def test_policies_that_need_queues_or_selectivities_say_so(
    program: "subprocess.Popen[str]",
) -> None:
    driver = connect(target(program.pid))
    assert any(tracing.SWITCH in note for note in driver.poll(1.0).topology.notes)
    for policy, missing in (("qs", "queue_size"), ("hr", "global_cost"), ("fcfs", "head_age")):
        needs = registry.policy(policy, {}).needs
        with pytest.raises(MissingMetric, match=missing) as caught:
            resolve(needs, driver.provides, policy=policy, engine="kernel:1")
        assert caught.value.hint is not None and "less" in caught.value.hint
    driver.close()
    for policy in ("min-cost", "constant", "random"):
        resolve(registry.policy(policy, {}).needs, driver.provides, policy=policy, engine="e")


def test_threads_that_come_and_a_program_that_ends(program: "subprocess.Popen[str]") -> None:
    driver = connect(target(program.pid))
    try:
        before = driver.poll(1.0).topology
        assert driver.poll(1.0).topology is before
        assert program.stdin is not None
        program.stdin.write("one more\n")
        program.stdin.flush()
        wait_until(lambda: len(driver.poll(1.0).topology.operators) == len(before.operators) + 1)
        program.kill()
        program.wait()
        with pytest.raises(EngineError, match="ended"):
            driver.poll(1.0)
    finally:
        driver.close()
    with pytest.raises(EngineError, match="no program"):
        connect(target(program.pid))


def test_threads_beyond_the_limit_are_no_news(
    program: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "MOST_THREADS", 2)
    driver = connect(target(program.pid))
    try:
        before = driver.poll(1.0).topology
        assert "2 threads beyond 2 are left alone" in before.notes
        assert driver.poll(1.0).topology is before
    finally:
        driver.close()


def test_a_late_name_is_seen(
    program: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "RENAMED_S", 0.0)
    driver = connect(target(program.pid))
    try:
        assert program.stdin is not None
        program.stdin.write("one more\n")
        program.stdin.flush()
        wait_until(lambda: "late" in {o.name for o in driver.poll(1.0).topology.operators})
    finally:
        driver.close()


def test_an_id_that_is_used_again_is_not_what_was_named(
    program: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "_known", {program.pid: 1})
    with pytest.raises(EngineError, match="another process"):
        connect(target(program.pid))


@pytest.mark.parametrize("address", ["0", "1", "no such program", "", "../1", "4194305"])
def test_what_is_no_program_is_refused(address: str) -> None:
    with pytest.raises(EngineError):
        connect(Target("kernel", address))


def test_a_name_must_mean_one_process_of_roots_or_of_all(
    program: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    del program
    name = "python-twice"
    code = f"import ctypes, time; ctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0); time.sleep(60)"
    children = [subprocess.Popen([sys.executable, "-S", "-c", code]) for _ in range(2)]
    try:
        deadline = time.monotonic() + 20

        def complaint() -> str:
            assert time.monotonic() < deadline
            try:
                connect(Target("kernel", name)).close()
            except EngineError as error:
                return error.message
            return ""

        wait_until(lambda: complaint().startswith("2 processes"), 20)
        with monkeypatch.context() as patched:
            for uid in (0, 900):
                theirs = {children[1].pid: uid}
                patched.setattr(procfs, "owner", lambda pid, of=theirs: of.get(pid, 1001))
                driver = connect(Target("kernel", name), lambda uid: uid == 900)
                assert driver.target.pid == children[1].pid
                driver.close()
        children[0].kill()
        children[0].wait()
        driver = connect(Target("kernel", name))
        assert driver.target.pid == children[1].pid
        driver.close()
    finally:
        for child in children:
            child.kill()
            child.wait()


def ruled(policy: str, guard: Guard | None = None, without: str = "") -> None:
    """Resolve the metrics of a policy that rules a program of which nothing is known."""
    provides = {"tuples_in", "thread_cpu_time", "run_delay", "tuples_out"}
    provides |= {"queue_size_estimate", "head_age_estimate"}
    engine = SimpleNamespace(
        name="kernel:1",
        domain="",
        provides=frozenset(provides - {without}),
        derived={},
        guesses=frozenset({"tuples_out"}),
        snapshot=None,
    )
    section, name = Section(policy=policy), "balanced" if policy == "auto" else policy
    rule = Rule(section, registry.policy(name, {}), "scx", Timer(1.0, 0.0), instead=Instead(guard))
    rule.resolve(cast(Engine, engine))


def test_who_goes_by_a_guess_is_watched_or_refused() -> None:
    for policy in ("hr", "balanced"):
        ruled(policy, Guard(60, 6))
        with pytest.raises(MissingMetric, match="tuples_out, which kernel:1 can only") as found:
            ruled(policy)
        assert "--guard 60" in str(found.value.hint)
    for policy in ("auto", "min-cost", "light-first", "qs", "fcfs", "random"):
        ruled(policy)
    with pytest.raises(MissingMetric, match="which kernel:1 does not report"):
        ruled("hr", without="tuples_in")


def test_the_driver_says_that_it_guesses(program: "subprocess.Popen[str]") -> None:
    driver = connect(target(program.pid))
    assert driver.guesses == {"tuples_out"}
    driver.close()


def test_a_wake_up_costs_what_was_used_since_we_look(
    program: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wake-ups are counted from then on, and a window may have none: an alarm's, say."""

    def used() -> dict[str, float]:
        tids = procfs.tids(program.pid)
        found = {thread_of(program.pid, tid): procfs.times(program.pid, tid) for tid in tids}
        return {thread.name: times[0] for thread, times in found.items() if thread and times}

    wait_until(lambda: used()["dear"] > 0.3, 60)
    before = used()["dear"]
    driver = connect(target(program.pid))
    wakes = Wakes(program.pid, [(1, 2)])
    counts = {tid: {"wakeups": 100, "wakes": 100, "awake_ns": 0} for tid in wakes.tids}
    monkeypatch.setattr(wakes, "threads", lambda: counts)
    driver._tracer = cast(Any, wakes)

    def cost(then: Snapshot | None) -> float:
        steps = resolve(["cost"], driver.provides, policy="p", engine="e")
        now = driver.poll(1.0)
        costs = evaluate(steps, Window(now, then))["cost"]
        return float(costs[[o.name for o in now.topology.operators].index("dear")])

    try:
        assert np.isnan(cost(None)), "nothing is known yet"
        then = driver.poll(1.0)
        looked = used()["dear"]  # to connect may take as long as it runs before
        wait_until(lambda: used()["dear"] > looked + 0.05, 60)
        found = cost(then)
        assert 0 < found * 100 <= used()["dear"] - before + 1e-9  # both are rounded
    finally:
        driver.close()


ONE = """
import time
print("runs", flush=True)
while input() == "spin":
    end = time.monotonic() + 60
    while time.monotonic() < end: pass
"""


def test_who_sleeps_is_not_awake_whatever_was_seen_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel may hide that a thread fell asleep, which would be awake for ever."""
    with running(sys.executable, "-S", "-c", ONE) as program:
        driver = connect(target(program.pid))
        driver._tracer = wakes = cast(Any, Wakes(program.pid, [(1, 2)]))
        wakes.pairs = []
        rows = {program.pid: {"wakeups": 9, "wakes": 9, "awake_ns": 1}}
        monkeypatch.setattr(wakes, "threads", lambda: rows)

        def awake_s() -> float:
            return float(driver.poll(1.0).columns["head_age_estimate"][0])

        try:
            wait_until(lambda: awake_s() == 0, 60)
            with monkeypatch.context() as patch:  # not yet awake for long
                patch.setattr(kernel, "LONG_NS", 10**18)
                assert awake_s() > 0
            rows[program.pid]["awake_ns"] = 1
            assert program.stdin is not None
            program.stdin.write("spin\n")
            program.stdin.flush()
            wait_until(lambda: awake_s() > 1, 60)
        finally:
            driver.close()


def test_parts_of_a_program_are_queries_once_that_is_sure(
    program: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "WOKEN_S", 0.0)
    driver = connect(target(program.pid))
    driver._tracer = wakes = cast(Any, Wakes(program.pid, [(1, 2)]))

    def queries() -> list[str]:
        return [operator.query for operator in driver.poll(1.0).topology.operators]

    try:
        [name] = set(queries())
        wakes.pairs = [(0, 1), (2, 3)]
        assert set(queries()) == {name}, "other edges may still come"
        monkeypatch.setattr(kernel, "APART_S", 0.0)
        found = queries()
        assert found[0] == found[1] != found[2] == found[3]
        assert all(query.startswith(f"{name}#") for query in found)
        topology = driver.poll(1.0).topology
        assert driver.poll(1.0).topology is topology
        assert [(o.replica, o.replicas) for o in topology.operators] == [(0, 1)] * 4
        monkeypatch.setattr(kernel, "MOST_PARTS", 1)  # as where there are clients
        wakes.pairs = [(0, 1), (3, 2)]
        wait_until(lambda: set(queries()) == {name}, what="too many parts")
        monkeypatch.setattr(kernel, "MOST_PARTS", 8)
        wakes.pairs = [(0, 1), (2, 3)]
        wait_until(lambda: len(set(queries())) == 2, what="two again")
        wakes.pairs.append((1, 2))
        wait_until(lambda: set(queries()) == {name}, what="one query again")
    finally:
        driver.close()
