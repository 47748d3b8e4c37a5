"""The Graphite listener, against senders that mean well and such that do not."""

import math
import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from sched_ctl.drivers.sources import graphite
from sched_ctl.drivers.sources.graphite import Inbox, Series
from sched_ctl.errors import EngineError
from sched_ctl.kernel import sockdiag
from support import wait_until


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    """What this process sends to a free port."""
    made = Inbox(os.geteuid(), port=0)
    yield made
    made.close()


def connect(inbox: Inbox) -> socket.socket:
    return socket.create_connection(("127.0.0.1", inbox.port), 5)


def send(inbox: Inbox, text: str | bytes) -> None:
    """As Dropwizard's reporter does: a connection for each report.

    It is held until the listener hangs up or has read all, as a sender that has gone has no name.
    """
    with connect(inbox) as connection:
        before = inbox.series().get("end", Series()).reports
        connection.sendall(text.encode() if isinstance(text, str) else text)
        connection.sendall(b"end 1 1\n")
        wait_until(lambda: inbox.series().get("end", Series()).reports > before)


def test_values_are_stamped_on_receipt(inbox: Inbox) -> None:
    begin = time.monotonic()
    send(inbox, "storm.worker.a 3 1700000000\nother.prefix.b -1.5 1\r\n  spaced \t 2e3  9 \n")
    series = inbox.series()
    assert {name: s.value for name, s in series.items()} == {
        "storm.worker.a": 3.0,
        "other.prefix.b": -1.5,
        "spaced": 2000.0,
        "end": 1.0,
    }
    assert all(begin <= s.received_s <= time.monotonic() for s in series.values())
    assert inbox.refused == 0


def test_what_is_no_number_is_unknown(inbox: Inbox) -> None:
    send(inbox, "a 1 1\nb 1 1\nc 1 1\n")
    send(inbox, "a NaN 1\nb Infinity 1\nc -inf 1\nd 1e999 1\n")
    series = inbox.series()
    assert all(math.isnan(series[name].value) for name in "abcd")
    assert [series[name].total for name in "abcd"] == [1, 1, 1, 0]


def test_counters_that_start_anew_are_summed(inbox: Inbox) -> None:
    for value in (5, 0, 7, -1):
        send(inbox, f"a {value} 1\n")
    assert (inbox.series()["a"].total, inbox.series()["a"].reports) == (12, 4)


def test_lines_of_another_format_are_left_out(inbox: Inbox) -> None:
    send(inbox, "a 1\nb 1 1 1\nc x 1\n\n\nd 1 1\n")
    assert set(inbox.series()) == {"d", "end"}
    assert inbox.refused == 3


def test_a_line_may_come_in_pieces(inbox: Inbox) -> None:
    with connect(inbox) as connection:
        for piece in (b"a.na", b"me 4", b"2 1700", b"000000\nb 1"):
            connection.sendall(piece)
            time.sleep(0.01)
        wait_until(lambda: "a.name" in inbox.series())
    send(inbox, "")
    # The half line of the sender that went away is nothing.
    assert {name: s.value for name, s in inbox.series().items()} == {"a.name": 42, "end": 1}


def hung_up(connection: socket.socket) -> bool:
    connection.settimeout(10)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


class Evil:
    """Leaves a trace where a receiver unpickles it."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.trace),)


def test_a_report_that_comes_in_pieces_is_read_once(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, taken = threading.Event(), list[str]()
    listener, again, take = inbox._listener, inbox._listener._listen_again, inbox._listener._take

    def listen_again(now_s: float) -> None:
        if gate.is_set():
            again(now_s)

    def noted(user: graphite._User, text: str, now_s: float) -> None:
        taken.append(text)
        take(user, text, now_s)

    monkeypatch.setattr(listener, "_listen_again", listen_again)
    monkeypatch.setattr(listener, "_take", noted)
    with connect(inbox) as connection:
        for name in ("a", "b", "c"):
            connection.sendall(f"{name} 1 1\n".encode())
        wait_until(lambda: listener._deaf)  # it was accepted, while its sender had a name
    gate.set()
    wait_until(lambda: not listener._connections)
    assert taken == ["a 1 1\nb 1 1\nc 1 1"] and {*inbox.series()} == {"a", "b", "c"}


def test_what_nobody_reads_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor looked at closely, until somebody comes who reads all."""
    monkeypatch.setattr(graphite, "SERIES_LIMIT", 3)
    text = "a 1 1\nb 2 1\nb no 1\n"
    with closing(Inbox(os.geteuid(), 0, None, lambda name: name != "b")) as one:
        send(one, text)
        assert {*one.series()} == {"a", "end"} and one.refused == 0
        with closing(Inbox(os.geteuid(), one.port)) as other:
            send(other, text)
            assert other.series()["b"].value == 2.0 and other.refused == 1
            send(other, "c 3 1\n")
            assert "c" not in other.series() and other.refused == 2


def test_names_that_nobody_reads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphite, "SERIES_LIMIT", 3)
    with closing(Inbox(os.geteuid(), 0, None, lambda name: name == "end")) as one:
        send(one, "")
        send(one, "".join(f"n{number} 1 1\n" for number in range(9)))
        assert one._user.names == 3 and one.refused == 5  # room was made once


def test_pickle_is_refused(inbox: Inbox, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    for protocol in (0, 2):
        body = pickle.dumps([("a", (1, 1)), Evil(trace)], protocol=protocol)
        with connect(inbox) as connection:
            connection.sendall(struct.pack("!L", len(body)) + body)
            assert hung_up(connection)
    assert not trace.exists()
    assert not inbox.series()
    assert inbox.refused == 2


@pytest.mark.parametrize("garbage", [b"x" * 5000, b"\xff\x00\xfe", b"GET / HTTP/1.1\r\n\x00\r\n"])
def test_garbage_ends_its_connection_alone(inbox: Inbox, garbage: bytes) -> None:
    with connect(inbox) as other, connect(inbox) as connection:
        connection.sendall(garbage)
        assert hung_up(connection)
        other.sendall(b"fine 1 1\n")
        wait_until(lambda: "fine" in inbox.series())


def test_too_many_series(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphite, "SERIES_LIMIT", 3)
    send(inbox, "".join(f"s{i} 1 1\n" for i in range(2)))
    send(inbox, "".join(f"t{i} 1 1\n" for i in range(100)))
    assert set(inbox.series()) == {"s0", "s1", "end"}
    assert inbox.refused == 100
    # Old ones make room: a worker that was started again has other names.
    monkeypatch.setattr(graphite, "SILENT_S", 0.0)
    monkeypatch.setattr(graphite, "SWEEP_S", 0.0)
    with ExitStack() as open_ones:

        def is_taken() -> bool:
            # On a busy machine a connection is closed as silent before it is read.
            with suppress(OSError):
                open_ones.enter_context(connect(inbox)).sendall(b"new 1 1\n")
            return "new" in inbox.series()

        wait_until(is_taken)
    assert "s0" not in inbox.series()


def test_idle_connections_make_room(inbox: Inbox) -> None:
    idle = [connect(inbox) for _ in range(graphite.CONNECTION_LIMIT + 5)]
    send(inbox, "a 1 1\n")
    assert inbox.series()["a"].value == 1
    closed = sum(_is_closed(connection) for connection in idle)
    assert closed == 6
    for connection in idle:
        connection.close()


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False


def test_a_flood_is_held_back(inbox: Inbox) -> None:
    """One connection sends as fast as it can; the other's line still comes through."""
    begin = time.monotonic()
    with connect(inbox) as flood, connect(inbox) as other:
        flood.settimeout(0.2)
        block = b"f 1 1\n" * 10_000
        with pytest.raises(TimeoutError):  # its bytes fill the kernel's buffers, and then it waits
            while time.monotonic() < begin + 30:
                flood.sendall(block)
        other.sendall(b"late 1 1\n")
        wait_until(lambda: "late" in inbox.series(), 30)
    seconds = time.monotonic() - begin
    taken = inbox.series()["f"].reports
    bound = graphite.BYTES_PER_S * (seconds + 1) + graphite.CHUNK * graphite.LINE_COST
    assert taken * graphite.LINE_COST <= bound


@pytest.mark.needs("root")
def test_other_users_are_not_heard(inbox: Inbox) -> None:
    """A user whose engines nobody follows cannot say anything, and cannot for somebody else."""
    code = (
        "import socket, sys\n"
        "c = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5)\n"
        "try:\n c.sendall(b'a 666 1\\n')\n c.recv(1)\nexcept OSError:\n pass\n"
    )
    command = ["setpriv", "--reuid=12345", "--clear-groups", "/usr/bin/python3", "-c", code]
    subprocess.run([*command, str(inbox.port)], check=True, timeout=30, cwd="/")
    send(inbox, "b 1 1\n")
    assert "a" not in inbox.series()
    theirs = Inbox(12345, inbox.port)
    sender = subprocess.Popen([*command, str(inbox.port)], cwd="/")
    try:
        wait_until(lambda: "a" in theirs.series())
        assert "a" not in inbox.series()
        assert "b" not in theirs.series()
    finally:
        theirs.close()  # hangs up on the sender
        sender.wait(10)


@pytest.mark.parametrize("host", ["127.0.0.1", "::ffff:127.0.0.1"])
def test_senders_are_known_where_the_kernel_has_no_tcp_diag(
    host: str, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it says ENOENT, as to a question about a protocol that it does not know."""
    if ":" in host and not Path("/proc/net/if_inet6").exists():
        pytest.skip("needs IPv6")
    monkeypatch.setattr(sockdiag, "PROTOCOL", 254)
    with socket.create_connection((host, inbox.port), 5) as connection:
        connection.sendall(b"a 1 1\n")
        wait_until(lambda: "a" in inbox.series())


@pytest.mark.parametrize("protocol", [sockdiag.PROTOCOL, 254])  # asked for, and looked up
def test_who_has_gone_does_not_pass_for_root(
    protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket is nobody's, and has user 0."""
    monkeypatch.setattr(sockdiag, "PROTOCOL", protocol)
    monkeypatch.setattr(sockdiag, "TABLES_SHARE", 1e9)
    owners = sockdiag.SocketOwners()
    with (
        closing(owners),
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), 5) as connection,
        server.accept()[0] as end,
    ):
        ends = end.family, end.getsockname(), end.getpeername()
        assert owners.of_peer(end) == os.geteuid()
        assert owners._look_up(*ends) == (os.geteuid(), os.fstat(connection.fileno()).st_ino)
        connection.close()
        wait_until(lambda: owners._look_up(*ends) == (0, 0))
        assert owners.of_peer(end) is None


def test_tables_are_read_no_more_than_they_may_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockdiag, "TABLES_SHARE", 1e-9)
    monkeypatch.setattr(sockdiag, "TABLES_BURST_S", 0.0)
    owners = sockdiag.SocketOwners()
    with (
        closing(owners),
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), 5),
        server.accept()[0] as end,
    ):
        ends = end.family, end.getsockname(), end.getpeername()
        assert owners._look_up(*ends) is not None
        assert owners._look_up(*ends) is None


def test_inboxes_share_a_port_and_leave_nothing() -> None:
    first = Inbox(os.geteuid(), port=0)
    second = Inbox(os.geteuid(), port=first.port)
    send(first, "a 1 1\n")
    assert second.series()["a"].value == 1
    first.close()
    send(second, "b 1 1\n")
    assert second.changed is False
    open_one = connect(second)
    port = second.port
    second.close()
    assert hung_up(open_one)
    again = Inbox(os.geteuid(), port=port)
    assert not again.series()
    again.close()


def test_a_port_that_is_taken() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(EngineError, match="cannot listen for metrics"),
    ):
        Inbox(os.geteuid(), port=taken.getsockname()[1])


def test_only_loopback_is_listened_on(inbox: Inbox) -> None:
    table = Path("/proc/self/net/tcp").read_text()
    assert f"0100007F:{inbox.port:04X}" in table or sys.byteorder == "big"
    assert f"00000000:{inbox.port:04X}" not in table
