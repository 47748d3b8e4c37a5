"""A job whose source reads from a TCP socket, and what waits there: no engine tells that."""

import contextlib
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from watching import observed, share

from sched_ctl.drivers import DriverKind, Target
from sched_ctl.drivers.threads import threads_of
from sched_ctl.model.topology import Edge, LogicalOperator, PhysicalOperator, Snapshot, Topology

pytestmark = [pytest.mark.host]

# Reads 1 KiB at a time, asks somebody else about it for so many ms, and hands it on.
PROGRAM = """
import ctypes, queue, socket, sys, threading, time
name = lambda text: ctypes.CDLL(None).prctl(15, text, 0, 0, 0)
peer = socket.socket()
peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
peer.connect(("127.0.0.1", int(sys.argv[1])))
pause_s = float(sys.argv[2]) / 1e3
handed = queue.SimpleQueue()
def read():
    name(b"read")
    while peer.recv(1024):
        time.sleep(pause_s)
        handed.put(1)
def work():
    name(b"work")
    while True:
        handed.get()
for target in (read, work):
    threading.Thread(target=target, daemon=True).start()
sys.stdin.read()
"""
WINDOWS = 5


class Told:
    """A driver that knows operators and threads, and no figure at all."""

    def __init__(self, target: Target) -> None:
        assert target.pid is not None
        self.target, self.provides = target, frozenset[str]()
        names = ("read", "work")
        threads = {thread.name: thread for thread in threads_of(target.pid)}
        operators = tuple(
            PhysicalOperator("job", name, (name,), threads=(threads[name],)) for name in names
        )
        logical = tuple(LogicalOperator("job", name) for name in names)
        edges = (Edge(0, 1),)
        self._topology = Topology(target.engine, operators, edges, logical, edges)

    def poll(self, timeout_s: float) -> Snapshot:
        return Snapshot(self._topology, time.monotonic(), {})

    def close(self) -> None: ...


@contextlib.contextmanager
def job(pause_ms: float) -> Iterator[tuple[Target, socket.socket]]:
    """The program, and the end of its connection that feeds it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
        server.settimeout(30)
        port = server.getsockname()[1]
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", PROGRAM, str(port), str(pause_ms)], stdin=subprocess.PIPE
        )
        try:
            peer, _ = server.accept()
            with peer:
                folder = Path(f"/proc/{child.pid}/task")
                while {"read", "work"} - {p.read_text().strip() for p in folder.glob("*/comm")}:
                    time.sleep(0.01)
                yield Target("told", str(child.pid), child.pid), peer
        finally:
            child.kill()
            child.communicate()


@contextlib.contextmanager
def fed(peer: socket.socket) -> Iterator[None]:
    """As much is sent meanwhile as there is room for."""
    stop = threading.Event()

    def feed() -> None:
        with contextlib.suppress(OSError):
            while not stop.is_set():
                peer.sendall(bytes(1024))

    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    try:
        yield
    finally:
        stop.set()
        peer.shutdown(socket.SHUT_RDWR)
        feeder.join(30)


def test_what_waits_before_a_source_that_sleeps_is_work_in_hand() -> None:
    with job(pause_ms=20) as (target, peer), fed(peer):
        seen = observed(target, DriverKind("told", lambda: [target], Told), WINDOWS)
    assert share(seen, "job/read", "io-bound") >= 0.8
    assert share(seen, "job", "io-bound") >= 0.8
    assert statistics.median(found["backlog"] or 0 for found in seen["job/read"]) >= 1024
