"""The tracing program: waits against schedstat, who ran meanwhile, and the graph of wake-ups."""

import contextlib
import errno
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from unittest import mock

import numpy as np
from burning import burn, nothing, spin
from vm.inside import enough_on

from sched_ctl.drivers import Target, drafts
from sched_ctl.drivers.kernel import connect
from sched_ctl.drivers.threads import threads_of
from sched_ctl.kernel import symbols, tracing
from sched_ctl.kernel.libbpf import Object
from sched_ctl.kernel.runs import RunLog
from sched_ctl.kernel.senders import Senders
from sched_ctl.kernel.stacks import Sleeps, Stacks
from sched_ctl.metrics.catalogue import evaluate, resolve
from sched_ctl.metrics.verdicts import assess
from sched_ctl.metrics.window import Window
from sched_ctl.model.topology import Thread
from sched_ctl.plugins import registry
from sched_ctl.probes.waits import WaitTimes
from support import wait_until

KERNELS = ("6.16", "7.3")
CPUS = 1
ICOUNT = True
ICOUNT_SHIFT = 2
TIMEOUT_S = 180

TURNS = 100
AGES_S = 1e6

nothing(1)  # made ready before the checks are forked: a hog that reads files is woken for them


def named(name: str, work: Callable[[], None], ids: dict[str, int]) -> threading.Thread:
    def run() -> None:
        Path("/proc/thread-self/comm").write_text(name)
        ids[name] = threading.get_native_id()
        work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@contextlib.contextmanager
def hog() -> Iterator[int]:
    pid = os.fork()
    if pid == 0:
        spin()
    try:
        yield pid
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def delay_of(tid: int) -> float:
    """Run-queue wait of one of our threads by schedstat, s."""
    return int(Path(f"/proc/self/task/{tid}/schedstat").read_text().split()[1]) * 1e-9


def check_waits_agree_with_schedstat() -> None:
    ids: dict[str, int] = {}
    go, stop, leave = threading.Event(), threading.Event(), threading.Event()
    idle: list[str] = []

    def work() -> None:
        go.wait()
        while not stop.is_set():
            burn(0.005)
            time.sleep(0.01)
        idle.append("worker")
        leave.wait()

    thread = named("worker", work, ids)
    wait_until(lambda: "worker" in ids)
    with hog() as pid, tracing.Tracer([os.getpid()]) as tracer:
        before = delay_of(ids["worker"])
        go.set()
        wait_until(lambda: delay_of(ids["worker"]) - before > 0.5, 20)
        stop.set()
        wait_until(lambda: "worker" in idle)  # it sleeps, so that no wait is under way
        told_s = delay_of(ids["worker"]) - before
        waits = tracer.threads()[ids["worker"]]
        occupants = tracer.occupants()
    leave.set()
    thread.join()
    traced_s = waits["wait_ns"] * 1e-9
    print(f"schedstat {told_s:.4f} s, traced {traced_s:.4f} s", waits["slots"].tolist())
    assert abs(traced_s - told_s) < 0.05 * told_s
    assert int(waits["slots"].sum()) > 20
    behind = {who: ns for (who, of), ns in occupants.items() if of == ids["worker"]}
    print("behind", {who: f"{ns * 1e-9:.3f} s" for who, ns in behind.items()}, "hog", pid)
    assert max(behind, key=behind.__getitem__) == pid  # who held it up is known
    assert sum(behind.values()) <= waits["wait_ns"]


@enough_on("7.3")  # our bookkeeping
def check_a_controller_tells_waits_of_two_processes() -> None:
    """Two who follow share one program; what one of them follows ends with it."""
    with hog() as first, hog() as second, tracing.Tracer([second]) as other:
        threads = [Thread(pid, pid, 0, "hog") for pid in (first, second)]
        times = WaitTimes()
        times.follow([first])

        def told() -> bool:
            times.look()
            found = times.lately(threads[:1], behind=True)
            return found is not None and found.waits > 20 and found.behind[0][0] == second

        wait_until(told, 20)
        one, both = times.lately(threads[:1]), times.lately(threads)
        assert one is not None and both is not None and one.waits < both.waits
        assert 2e9 * one.seconds > one.counts[-1] > 0
        assert 1e-3 < both.shorter_than_s(0.99) < 5  # each waits for slices of the other
        assert times.totals({"q": threads})["q"][:-1].sum() >= both.waits
        other.close()
        assert int(other.threads()[second]["slots"].sum()) > 20
        times.close()
        assert times.lately(threads) is None and tracing._program is None


def check_a_timer_s_wake_ups_are_from_outside() -> None:
    """Though it interrupts one that is followed, which has the CPU for nearly all of the time."""

    def tick() -> None:
        while True:
            time.sleep(0.005)

    pid = os.fork()
    if pid == 0:
        tick()
    try:
        for load in tracing._loaded, without_symbols(tracing._loaded):
            with (
                mock.patch.object(tracing, "_loaded", load),
                hog() as busy,
                tracing.Tracer([busy, pid], wakings=True) as tracer,
            ):
                wait_until(lambda: tracer.wakings().get((0, pid), 0) > 50, 20)
                print(tracer.wakings())
                assert tracer.wakings().get((busy, pid), 0) <= 2
                assert tracer.threads()[busy]["wakes"] <= 2
                for looked in Stacks, RunLog:
                    with looked([pid]) as look:  # their programs are taken, either way
                        wait_until(lambda: len(look.read()) > 0)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def check_who_has_closed_is_known() -> None:
    space = Path("/proc/self/ns/net").stat().st_ino
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        Senders(space, server.getsockname()[1]) as senders,
    ):
        socket.create_connection(server.getsockname()).close()
        end, _ = server.accept()
        with end:
            assert senders.of(end) == os.geteuid()


def without_symbols(load: Callable[[Path, Iterable[str]], Object]) -> Callable[..., Object]:
    """The same on a kernel that refuses programs which look for its data."""

    def loaded(path: Path, without: Iterable[str]) -> Object:
        if not {"trace_waking", "stacks_waking", "runs_waking"}.intersection(without):
            raise OSError(errno.EINVAL, "no such symbol")
        return load(path, without)

    return loaded


@enough_on("7.3")  # our bookkeeping
def check_a_chain_of_threads_is_a_graph() -> None:
    ids: dict[str, int] = {}
    first: queue.SimpleQueue[int] = queue.SimpleQueue()
    second: queue.SimpleQueue[int] = queue.SimpleQueue()

    def source() -> None:
        while True:
            first.put(1)
            time.sleep(0.02)

    def middle() -> None:
        while True:
            second.put(first.get())

    def sink() -> None:
        while True:
            second.get()

    pid = os.fork()
    if pid == 0:
        for name, work in (("sink", sink), ("middle", middle), ("source", source)):
            named(name, work, ids)
        time.sleep(AGES_S)
        os._exit(0)
    try:
        driver = connect(Target("kernel", str(pid)))
        try:
            assert "tuples_out" in driver.provides
            then = driver.poll(1.0)

            def edges() -> set[tuple[str, str]]:
                topology = driver.poll(1.0).topology
                names = [operator.name for operator in topology.operators]
                return {(names[e.source], names[e.target]) for e in topology.edges}

            wait_until(lambda: edges() == {("source", "middle"), ("middle", "sink")}, 20)
            then = driver.poll(1.0)
            time.sleep(3)
            now = driver.poll(1.0)
            assert now.topology is then.topology  # it stays
            policy = registry.policy("hr", {})
            steps = resolve(policy.needs, driver.provides, policy="hr", engine="kernel")
            values = evaluate(steps, Window(now, then))
            made = resolve(["selectivity"], driver.provides, policy="hr", engine="kernel")
            selectivity = evaluate(made, Window(now, then))["selectivity"]
            names = [operator.name for operator in now.topology.operators]
            middle_row = names.index("middle")
            print(dict(zip(names, selectivity, strict=True)), values["global_cost"])
            assert 0.3 < selectivity[middle_row] < 3
        finally:
            driver.close()
        seen = {"source": ("middle",), "middle": ("sink",)}
        wait_until(lambda: drafts.edges_seen(pid, 2.0, threads_of(pid)) == seen, 60)
        assert "[program.edges]" in drafts.draft(pid, threads_of(pid), seen)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


@enough_on("7.3")  # our bookkeeping
def check_the_time_awake_stands_in_for_queues() -> None:
    ids: dict[str, int] = {}

    pid = os.fork()
    if pid == 0:
        named("spins", spin, ids)
        named("sleeps", lambda: time.sleep(AGES_S), ids)
        time.sleep(AGES_S)
        os._exit(0)
    try:
        driver = connect(Target("kernel", str(pid)))
        try:

            def seen() -> dict[str, float]:
                now = driver.poll(1.0)
                names = [operator.name for operator in now.topology.operators]
                steps = resolve({"queue_size"}, driver.provides, policy="qs", engine="kernel")
                queues = evaluate(steps, Window(now, now))["queue_size"]
                return dict(zip(names, queues.tolist(), strict=True))

            wait_until(lambda: seen().get("spins", 0.0) > 1500, 30)  # ms
            assert seen()["sleeps"] == 0
            then = driver.poll(1.0)
            time.sleep(1)
            found = assess(Window(driver.poll(1.0), then), np.ones(len(then.topology.operators)))
            assert np.isnan(found.queue).all()  # that somebody is awake does not mean input
        finally:
            driver.close()
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def check_stacks_of_sleeps_and_of_who_wakes() -> None:
    gate, ids = queue.SimpleQueue[int](), dict[str, int]()

    def naps() -> None:
        while True:
            time.sleep(0.01)

    with Stacks([os.getpid()]) as stacks:
        named("takes", lambda: [gate.get() for _ in range(TURNS)].clear(), ids)
        named("naps", naps, ids)

        def gives() -> None:
            for turn in range(TURNS):
                time.sleep(0.002)
                gate.put(turn)

        named("gives", gives, ids)
        wait_until(lambda: sum(one.times for one in stacks.read() if one.tid == ids["takes"]) > 50)
        wait_until(lambda: sum(one.times for one in stacks.read() if one.tid == ids["naps"]) > 20)
        found = stacks.read()
        name = symbols.kernel_functions().at

        def told(thread: str) -> tuple[Sleeps, set[str | None]]:
            most = max((one for one in found if one.tid == ids[thread]), key=lambda one: one.times)
            return most, {name(address) for address in most.kernel}

        takes, its = told("takes")
        assert takes.waker == ids["gives"] and takes.user and takes.waker_user
        assert any("futex" in str(frame) for frame in its)
        sleeps, its = told("naps")
        assert sleeps.waker == 0  # a timer's interrupt, whoever it cut short
        assert any("nanosleep" in str(frame) for frame in its)
        assert 0.005 < sleeps.seconds / sleeps.times < 0.2


@enough_on("7.3")  # our bookkeeping
def check_where_it_is_switched_off_it_says_so() -> None:
    os.environ[tracing.SWITCH] = "0"
    try:
        assert tracing.obstacle() == "SCHED_CTL_TRACING=0 is set"
        driver = connect(Target("kernel", str(os.getppid())))  # the one that runs the checks
        assert "tuples_out" not in driver.provides
        assert any("SCHED_CTL_TRACING" in note for note in driver.poll(1.0).topology.notes)
        driver.close()
    finally:
        del os.environ[tracing.SWITCH]
