"""Reports of senders that have closed before anybody could ask whose they were."""

import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sched_ctl.drivers.sources.graphite import Inbox
from sched_ctl.kernel import tracing
from sched_ctl.kernel.senders import Senders
from sched_ctl.kernel.sockdiag import SocketOwners
from support import wait_until

pytestmark = [pytest.mark.host, pytest.mark.needs("root")]
USER = 12345
SPACE = Path("/proc/self/ns/net").stat().st_ino
REPORT = """
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
connection.sendall(sys.argv[3].encode())
connection.close()
"""


def report(port: int, text: str = "", user: int | None = None, host: str = "127.0.0.1") -> None:
    """All at once, from a process that has ended by now."""
    words = ["-S", "-c", REPORT, host, str(port), text]
    subprocess.run(["/usr/bin/python3", *words], check=True, timeout=30, cwd="/", user=user)


def port_of(server: socket.socket) -> int:
    port: int = server.getsockname()[1]
    return port


@pytest.fixture
def nobody_asks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if each sender had gone by the time that somebody asks for it."""
    if (why := tracing.obstacle()) is not None:
        pytest.skip(f"tracing: {why}")
    monkeypatch.setattr(SocketOwners, "of_peer", lambda *_: None)
    yield


@pytest.mark.parametrize("host", ["127.0.0.1", "::ffff:127.0.0.1"])
def test_who_has_gone_is_known_once(nobody_asks: None, host: str) -> None:
    if ":" in host and not Path("/proc/net/if_inet6").exists():
        pytest.skip("needs IPv6")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = port_of(server)
        report(port)
        with Senders(SPACE, port) as senders, Senders(SPACE + 1, port) as elsewhere:
            with closing(server.accept()[0]) as end:
                assert senders.of(end) is None  # before we looked
            for user in (USER, None):
                report(port, user=user, host=host)
                with closing(server.accept()[0]) as end:
                    assert elsewhere.of(end) is None
                    assert senders.of(end) == (user or os.geteuid())
                    assert senders.of(end) is None


def test_who_leaves_its_address_to_another_is_not_taken_for_that(nobody_asks: None) -> None:
    """Reset before it was accepted, its data is still there; its address is the next one's."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        Senders(SPACE, port_of(server)) as senders,
    ):
        with socket.socket() as first:
            first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            first.connect(server.getsockname())
            first.sendall(b"forged 1 1\n")
            address = first.getsockname()
        with socket.socket() as second:
            second.bind(address)
            second.connect(server.getsockname())
        with closing(server.accept()[0]) as forged, closing(server.accept()[0]) as own:
            assert forged.recv(99) == b"forged 1 1\n"
            assert senders.of(forged) is None
            assert senders.of(own) == os.geteuid()
            assert own.getpeername() == address


def test_their_reports_are_heard_and_nobody_else_s(nobody_asks: None) -> None:
    with closing(Inbox(os.geteuid(), port=0)) as inbox, closing(Inbox(USER, inbox.port)) as theirs:

        def heard(box: Inbox, name: str, user: int | None = None) -> bool:
            report(inbox.port, f"{name} 1 1\n", user)
            return name in box.series()

        wait_until(lambda: heard(inbox, "ours"))  # the first is lost: it was not looked for
        wait_until(lambda: heard(theirs, "theirs", USER))
        report(inbox.port, "forged 1 1\n", USER + 1)
        wait_until(lambda: heard(inbox, "last"))
        assert set(inbox.series()) == {"ours", "last"} and set(theirs.series()) == {"theirs"}
        assert not inbox.untold


def test_where_nothing_can_be_traced_that_is_said(
    nobody_asks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tracing.SWITCH, "0")
    with closing(Inbox(os.geteuid(), port=0)) as inbox:
        assert not inbox.untold
        report(inbox.port, "ours 1 1\n")
        wait_until(lambda: bool(inbox.untold))
        assert tracing.SWITCH in inbox.untold and not inbox.series()
