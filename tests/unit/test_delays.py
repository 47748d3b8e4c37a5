"""What threads lost to disks and memory, and what waits in sockets."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from plans import plan
from sched_ctl.kernel import sockdiag, taskstats
from sched_ctl.kernel.taskstats import Delays
from sched_ctl.model.topology import Thread, Topology
from sched_ctl.probes.aside import Aside
from sched_ctl.probes.backlog import Backlogs, waiting
from sched_ctl.probes.delays import AT_ONCE, ThreadDelays
from support import wait_until

PID = 100


def topology(*names: str) -> Topology:
    """A chain; thread 1, 2, ... of process PID runs each."""
    made = plan({"q": list(names)})
    operators = tuple(
        replace(operator, threads=(Thread(PID, row + 1, 5),))
        for row, operator in enumerate(made.operators)
    )
    return replace(made, operators=operators)


def delays(io_s: float, memory_s: float = 0.0, *, counted: bool = True, pid: int = PID) -> Delays:
    return Delays(16, pid, 0.0, io_s, memory_s, 0.0, counted)


class Kernel:
    """Answers with what the test set, and notes who was asked for."""

    def __init__(self) -> None:
        self.now: dict[int, Delays] = {}
        self.asked: list[tuple[int, ...]] = []

    def __call__(self, tids: Iterable[int]) -> Mapping[int, Delays]:
        self.asked.append(tuple(tids))
        return {tid: self.now[tid] for tid in self.asked[-1] if tid in self.now}


def looked(probe: ThreadDelays, kernel: Kernel, of: Topology, time_s: float) -> np.ndarray:
    """`io_delay` after one more reading."""
    before = len(kernel.asked)
    probe.read(of, time_s)
    wait_until(lambda: len(kernel.asked) > before)
    return wait_until_read(probe, of, time_s)


def wait_until_read(probe: ThreadDelays, of: Topology, time_s: float) -> np.ndarray:
    running = probe._aside._running
    assert running is not None
    running.result(5)
    return probe.read(of, time_s)["io_delay"]


def test_counters_go_on_between_readings_and_never_fall() -> None:
    kernel, of = Kernel(), topology("a")
    probe = ThreadDelays(kernel, every_s=0.0)
    try:
        kernel.now[1] = delays(10.0)
        begin = time.monotonic()
        assert looked(probe, kernel, of, begin)[0] == 10.0
        kernel.now[1] = delays(10.0 + 1e-9)  # hardly anything since
        wait_until_read(probe, of, begin)
        kernel.now[1] = delays(1e6)  # as fast as a thread can lose time: one second a second
        wait_until_read(probe, of, begin)
        values = [wait_until_read(probe, of, begin + ahead)[0] for ahead in (0, 5, 9, 8, 20)]
        assert values == sorted(values)
    finally:
        probe.close()


def test_unknown_until_a_delay_was_counted_in_the_process() -> None:
    kernel, of = Kernel(), topology("a", "b")
    probe = ThreadDelays(kernel, every_s=0.0)
    try:
        kernel.now = {1: delays(0.0, counted=False), 2: delays(0.0, counted=False)}
        assert np.isnan(looked(probe, kernel, of, 1.0)).all()
        kernel.now[2] = delays(0.5)
        wait_until_read(probe, of, 1.0)
        assert wait_until_read(probe, of, 1.0).tolist() == [0.0, 0.5]
    finally:
        probe.close()


def test_a_thread_of_another_process_with_the_same_id_is_not_taken_for_ours() -> None:
    kernel, of = Kernel(), topology("a", "b")
    probe = ThreadDelays(kernel, every_s=0.0)
    try:
        kernel.now = {1: delays(3.0, pid=PID + 1), 2: delays(4.0)}
        assert np.isnan(looked(probe, kernel, of, 1.0)[0])
        assert wait_until_read(probe, of, 1.0)[1] == 4.0
    finally:
        probe.close()


def test_a_thread_that_runs_several_operators_is_read_once() -> None:
    kernel, of = Kernel(), topology("a", "b", "c")
    first, second, _ = of.operators
    shared = replace(second, threads=first.threads)
    of = replace(of, operators=(first, shared, of.operators[2]))
    probe = ThreadDelays(kernel, every_s=0.0)
    try:
        kernel.now = {1: delays(3.0), 3: delays(4.0)}
        looked(probe, kernel, of, 1.0)
        assert looked(probe, kernel, of, 1.0).tolist() == [3.0, 3.0, 4.0]
    finally:
        probe.close()
    assert all(sorted(tids) == [1, 3] for tids in kernel.asked)


def test_large_engines_are_read_in_turn() -> None:
    kernel, of = Kernel(), topology(*map(str, range(2 * AT_ONCE + 10)))
    probe = ThreadDelays(kernel, every_s=0.0)
    try:
        for _ in range(3):
            looked(probe, kernel, of, 1.0)
    finally:
        probe.close()
    assert all(len(tids) == AT_ONCE for tids in kernel.asked)
    assert {tid for tids in kernel.asked[:3] for tid in tids} == set(
        range(1, len(of.operators) + 1)
    )


def test_a_reading_that_fails_says_why_once_and_is_tried_again() -> None:
    aside: Aside[int] = Aside("test", 0.0)

    def fails() -> int:
        raise taskstats.Unavailable("no such thing")

    for reading, problem in ((fails, "no such thing"), (lambda: 3, None)):
        aside.begin(reading)
        assert aside._running is not None
        with suppress(taskstats.Unavailable):
            aside._running.result(5)
        aside.take()
        assert aside.problem == problem
    aside.close()


def test_a_kernel_without_it_is_asked_once_and_no_socket_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each try left a socket open, once a second for each engine."""

    class Socket:
        def __init__(self) -> None:
            self.closed = False
            made.append(self)

        def bind(self) -> None:
            raise OSError("no such family")

        def close(self) -> None:
            self.closed = True

    made: list[Socket] = []
    monkeypatch.setattr(taskstats, "_socket_class", lambda: Socket)
    monkeypatch.setattr(taskstats, "accounting", lambda: None)
    probe, of = ThreadDelays(every_s=0.0), topology("a")
    try:
        for _ in range(5):
            probe.read(of, time.monotonic())
            if (running := probe._aside._running) is not None:
                assert isinstance(running.exception(5), taskstats.Unavailable)
        assert probe._aside.problem == "the kernel has no taskstats: no such family"
    finally:
        probe.close()
    assert [one.closed for one in made] == [True]


def test_the_kernel_tells_what_schedstat_tells() -> None:
    if (why := taskstats.obstacle()) is not None:
        pytest.skip(f"needs taskstats: {why}")
    ready, done = threading.Event(), threading.Event()
    tids = []

    def work() -> None:
        tids.append(threading.get_native_id())
        ready.set()
        done.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(10)
    try:
        with taskstats.TaskStats() as stats:
            found = stats.all_of([*tids, 2**22 + 1])
        told = Path(f"/proc/self/task/{tids[0]}/schedstat").read_text().split()
    finally:
        done.set()
        thread.join()
    assert found.keys() == set(tids)
    assert found[tids[0]].cpu_s == pytest.approx(int(told[1]) * 1e-9, abs=1.0)
    assert found[tids[0]].pid == os.getpid()  # from behind what the library knows


def told_alike() -> tuple[set[sockdiag.Connection], set[sockdiag.Connection]]:
    """Both ends of two connections with something unread, as they are answered and tabled."""
    with contextlib.ExitStack() as stack:
        for host, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)):
            server = stack.enter_context(socket.create_server((host, 0), family=family))
            ours = stack.enter_context(socket.create_connection(server.getsockname()[:2]))
            its = stack.enter_context(server.accept()[0])
            ours.sendall(bytes(77))
            wait_until(lambda its=its: len(its.recv(100, socket.MSG_PEEK)) == 77)  # type: ignore[misc]
        mine = sockdiag.inodes(os.getpid())
        asked, tabled = sockdiag._asked(mine) or (), sockdiag._tabled(os.getpid(), mine)
        return set(asked), set(tabled)


def test_of_a_crowd_of_connections_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be anybody's, and each costs; only a process's own are kept."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        with ours, server.accept()[0]:
            inode = os.fstat(ours.fileno()).st_ino
            (one,) = sockdiag.connections(os.getpid(), {inode})
            assert one.here == ours.getsockname()
            if sockdiag._asked({inode}) is None:
                pytest.skip("needs tcp_diag")
            monkeypatch.setattr(sockdiag, "MOST", 1)
            with pytest.raises(sockdiag.Crowded):
                sockdiag.connections(os.getpid(), {inode})


def test_the_kernel_answers_what_its_tables_say() -> None:
    asked, tabled = told_alike()
    assert sorted(one.waiting for one in tabled) == [0, 0, 77, 77]
    if not asked:
        pytest.skip("needs tcp_diag")
    assert asked == tabled


@pytest.fixture(params=["asked", "tables"])
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "tables":
        monkeypatch.setattr(sockdiag, "_asked", lambda _: None)
    elif not told_alike()[0]:
        pytest.skip("needs tcp_diag")
    return str(request.param)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_bytes_that_a_process_does_not_read_are_its_backlog(source: str, family: int) -> None:
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    program = (  # takes a connection, and one to itself that is none of a source's; reads neither
        "import socket, sys, time\n"
        f"s = socket.create_server(('{host}', 0), family={family})\n"
        "port = s.getsockname()[1]\n"
        f"a = socket.create_connection(('{host}', port)); b = s.accept()[0]\n"
        "a.sendall(bytes(999)); print(port, flush=True)\n"
        "c = s.accept()[0]; print('taken', flush=True); time.sleep(60)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", program], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        with socket.create_connection((host, port)) as connection:
            child.stdout.readline()
            assert waiting([child.pid]) == {child.pid: 0}
            connection.sendall(bytes(5000))
            wait_until(lambda: waiting([child.pid]) == {child.pid: 5000})
            # Between two processes of one engine nothing waits before a source.
            assert child.pid not in waiting([child.pid, os.getpid()])
    finally:
        child.kill()
        child.wait()
    assert waiting([child.pid]) == {}


def column(of: Topology, found: Callable[[], dict[int, int]]) -> list[float]:
    probe = Backlogs(lambda pids: found(), every_s=0.0)
    try:
        probe.read(of, time.monotonic())
        running = probe._aside._running
        assert running is not None
        running.result(5)
        return list(map(float, probe.read(of, time.monotonic())["backlog"]))
    finally:
        probe.close()


def test_a_backlog_is_that_of_the_only_ingress() -> None:
    chain = topology("in", "work", "out")
    np.testing.assert_equal(column(chain, lambda: {PID: 77}), [77, np.nan, np.nan])
    np.testing.assert_equal(column(chain, dict), [np.nan] * 3)
    two = replace(chain, edges=chain.edges[1:])  # the first and the second are ingresses
    np.testing.assert_equal(column(two, lambda: {PID: 77}), [np.nan] * 3)


def test_an_answer_that_is_no_socket_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error, a part that is cut off, a socket's message without its fields; then silence."""
    head = sockdiag.HEADER
    parts = [
        head.pack(head.size + 4, sockdiag.NLMSG_ERROR, 0, socket.AF_INET, 0) + bytes(4),
        head.pack(4096, sockdiag.SOCK_DIAG_BY_FAMILY, 0, socket.AF_INET6, 0) + bytes(100),
        head.pack(head.size, sockdiag.SOCK_DIAG_BY_FAMILY, 0, socket.AF_INET, 0)
        + head.pack(head.size, sockdiag.NLMSG_DONE, 0, socket.AF_INET, 0),
    ]

    class Kernel(socket.socket):
        def send(self, *_: object) -> int:
            return 0

        def recv(self, *_: object) -> bytes:
            if not parts:
                raise TimeoutError
            return parts.pop(0)

    monkeypatch.setattr(socket, "socket", Kernel)
    assert sockdiag._asked({0}) is None
    assert len(parts) == 1  # the first two end the question of a family each
    assert sockdiag._asked({0}) is None
    assert not parts


def test_the_end_of_a_stream_is_no_backlog(source: str) -> None:
    """A peer that closed its half of a connection, which the kernel counts as a byte."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        its = server.accept()[0]

    def left() -> list[int]:
        inode = os.fstat(its.fileno()).st_ino
        return [one.waiting for one in sockdiag.connections(os.getpid(), {inode})]

    with ours, its:
        ours.sendall(bytes(77))
        ours.shutdown(socket.SHUT_WR)
        wait_until(
            lambda: its.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == sockdiag.CLOSE_WAIT
        )
        assert left() == [77]
        for expected in (77, 0):
            assert len(its.recv(100)) == expected
            assert left() == [0]
