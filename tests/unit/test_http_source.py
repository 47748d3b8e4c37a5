"""The HTTP client, against servers that misbehave."""

import fcntl
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from sched_ctl.drivers.flink import local
from sched_ctl.drivers.sources import http
from sched_ctl.drivers.sources.http import Endpoint
from sched_ctl.errors import EngineError

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@contextmanager
def server(answer: Callable[[socket.socket], None]) -> Iterator[tuple[int, list[int]]]:
    """Its port, and a list that grows by one with every connection."""
    connections: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    connections.append(1)
                    with suppress(OSError), connection:
                        while connection.recv(65536):
                            answer(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1], connections
        listening.shutdown(socket.SHUT_RDWR)


def test_one_connection_for_all_requests() -> None:
    with server(lambda c: c.sendall(OK)) as (port, connections):
        endpoint = Endpoint("127.0.0.1", port)
        assert [endpoint.get("/x", 5) for _ in range(20)] == [b"ok"] * 20
        assert len(connections) == 1
        endpoint.close()


def test_a_connection_with_a_high_number_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 2,000 threads whose files are open comes first: select(2) ends at 1,023."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= limits[1] < 4096:
        pytest.skip("needs a higher limit of open files")
    connect = socket.create_connection

    def moved(address: tuple[str, int], timeout_s: float) -> socket.socket:
        with connect(address, timeout_s) as near:
            return socket.socket(fileno=fcntl.fcntl(near, fcntl.F_DUPFD_CLOEXEC, 2000))

    monkeypatch.setattr(socket, "create_connection", moved)
    with server(lambda c: c.sendall(OK)) as (port, connections):
        endpoint = Endpoint("127.0.0.1", port)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(4096, limits[0]), limits[1]))
            assert [endpoint.get("/x", 5) for _ in range(3)] == [b"ok"] * 3
        finally:
            endpoint.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert len(connections) == 1


def test_connects_again_after_the_server_closed() -> None:
    ended = threading.Semaphore(0)

    def answer(connection: socket.socket) -> None:
        connection.sendall(OK)
        connection.shutdown(socket.SHUT_RDWR)
        ended.release()

    with server(answer) as (port, connections):
        endpoint = Endpoint("127.0.0.1", port)
        for _ in range(3):
            assert endpoint.get("/", 5) == b"ok"
            assert ended.acquire(timeout=30)
        assert len(connections) == 3


def test_a_trickle_ends_at_the_deadline() -> None:
    over = threading.Event()

    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        for _ in range(200):
            connection.sendall(b"X-More: 1\r\n")
            time.sleep(0.02)
        over.set()

    with server(answer) as (port, _):
        with pytest.raises(EngineError, match="did not answer within"):
            Endpoint("127.0.0.1", port).get("/", 0.3)
        assert not over.is_set()


def test_the_next_request_works_after_a_timeout() -> None:
    silent = True
    with server(lambda c: c.sendall(b"" if silent else OK)) as (port, _):
        endpoint = Endpoint("127.0.0.1", port)
        with pytest.raises(EngineError):
            endpoint.get("/", 0.1)
        silent = False
        assert endpoint.get("/", 5) == b"ok"


def test_a_flood_ends_at_the_limit() -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            connection.sendall(b"10000\r\n" + bytes(65536) + b"\r\n")

    with server(answer) as (port, _), pytest.raises(EngineError, match="more than 1000000 bytes"):
        Endpoint("127.0.0.1", port).get("/", 10, limit=1_000_000)


@pytest.mark.parametrize(
    "text",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n[1, 2",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff\xfe",
        b"HTTP/1.1 200 OK\r\nContent-Length: 40000\r\n\r\n" + b"[" * 40000,
    ],
)
def test_nonsense_is_an_engine_error(text: bytes) -> None:
    with server(lambda c: c.sendall(text)) as (port, _), pytest.raises(EngineError):
        Endpoint("127.0.0.1", port).json("/", 2)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(EngineError, match="cannot be reached"):
        Endpoint("127.0.0.1", port).get("/", 1)


def test_the_process_that_is_meant_must_listen_there() -> None:
    """Another user's may have taken the port when the engine left it."""
    code = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""
    arguments = [sys.executable, "-c", code]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        endpoint = Endpoint("127.0.0.1", port, os.getpid())
        with pytest.raises(EngineError, match="no longer listens"):
            endpoint.get("/", 5.0)
        endpoint.close()
        other.kill()
    with server(lambda connection: connection.sendall(OK)) as (port, _):
        endpoint = Endpoint("127.0.0.1", port, os.getpid())
        assert endpoint.get("/", 5.0) == b"ok"
        endpoint.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize(
    ("uid", "meant", "good"),
    [(20001, 20001, True), (0, 20001, True), (20001, 0, False), (20001, 20002, False)],
)
def test_a_process_of_the_user_that_is_meant_or_of_roots_must_listen_there(
    uid: int, meant: int, good: bool
) -> None:
    with ExitStack() as stack:
        os.seteuid(uid)
        try:
            port, _ = stack.enter_context(server(lambda connection: connection.sendall(OK)))
        finally:
            os.seteuid(0)
        endpoint = Endpoint("127.0.0.1", port, os.getpid(), listens=False, uid=meant)
        stack.callback(endpoint.close)
        if not good:
            stack.enter_context(pytest.raises(EngineError, match=f"not user {meant}, nor root"))
        assert endpoint.get("/", 5.0) == b"ok"


@pytest.mark.parametrize("value", [b"{},", b"[],", b"1,", b'"",'])
def test_so_many_values_are_not_even_taken_apart(value: bytes) -> None:
    """16 MB of {} became 368 MB of objects."""
    body = b"[" + value * (http.MOST_VALUES + 1) + b"1]"
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    with server(lambda c: c.sendall(head + body)) as (port, _):
        endpoint = Endpoint("127.0.0.1", port)
        with pytest.raises(EngineError, match=f"more than {http.MOST_VALUES} values"):
            endpoint.json("/", 30)
        endpoint.close()


def test_a_probe_reads_little() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
    with server(lambda c: c.sendall(head + bytes(100000))) as (port, _):
        endpoint = Endpoint("127.0.0.1", port)
        with pytest.raises(EngineError, match=f"more than {http.PROBE_LIMIT} bytes"):
            local._is_rest(endpoint, 30)
        endpoint.close()


def test_messages_are_short_and_name_no_leftover_of_a_timeout() -> None:
    told = threading.Event()

    def silent(_: socket.socket) -> None:
        told.wait(30)

    with server(silent) as (port, _):
        endpoint = Endpoint("127.0.0.1", port)
        with pytest.raises(EngineError) as error:
            endpoint.get("/metrics?get=" + "0.numRecordsIn," * 100, 0.0531)
        told.set()
        assert "did not answer in time" in str(error.value) and len(str(error.value)) < 200
        endpoint.close()
