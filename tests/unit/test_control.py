import asyncio
import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from sched_ctl.errors import UserError
from sched_ctl.runfolder import RunFolder
from sched_ctl.service import looking
from sched_ctl.service import socket as control

# The server is, by its verb "hold up", until what it may miss was sent
held_up, sent = threading.Event(), threading.Event()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a real controller runs on this machine is not asked."""
    monkeypatch.setattr(control, "others", list)


@contextmanager
def serving(folder: Path) -> Iterator[Callable[[bytes], bytes]]:
    """A server with the verbs echo, refuse and break; yields a function that talks raw bytes."""
    stop: list[Callable[[], object]] = []
    ready = threading.Event()

    async def echo(arguments: Mapping[str, Any]) -> object:
        return dict(arguments)

    async def refuse(arguments: Mapping[str, Any]) -> object:
        raise UserError("no", "because")

    async def fail(arguments: Mapping[str, Any]) -> object:
        raise ZeroDivisionError("boo")

    async def be_late(arguments: Mapping[str, Any]) -> object:
        raise TimeoutError("too late")

    async def hold_up(arguments: Mapping[str, Any]) -> object:
        held_up.set()
        assert sent.wait(30)
        loop = asyncio.get_running_loop()
        real = loop.time
        loop.time = lambda: real() + 3600.0  # type: ignore[method-assign]
        return None

    verbs = {"echo": echo, "refuse": refuse, "fail": fail, "be late": be_late, "hold up": hold_up}

    async def main() -> None:
        loop, end = asyncio.get_running_loop(), asyncio.Event()
        stop.append(lambda: loop.call_soon_threadsafe(end.set))
        async with control.serve(folder, verbs):
            ready.set()
            await end.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert ready.wait(10)

    def talk(data: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(10)
            peer.connect(str(RunFolder(folder).socket))
            answer = b""
            with suppress(BrokenPipeError, ConnectionResetError):  # it had heard enough
                peer.sendall(data)
                peer.shutdown(socket.SHUT_WR)
                while part := peer.recv(65536):
                    answer += part
            return answer

    try:
        yield talk
    finally:
        stop[0]()
        thread.join(10)
        assert not thread.is_alive()


def test_requests_and_refusals(tmp_path: Path) -> None:
    with serving(tmp_path):
        assert control.request(tmp_path, "echo", {"a": [1, None]}) == {"a": [1, None]}
        with pytest.raises(UserError, match="no") as caught:
            control.request(tmp_path, "refuse")
        assert caught.value.hint == "because"
        with pytest.raises(UserError, match="ZeroDivisionError: boo"):
            control.request(tmp_path, "fail")
        with pytest.raises(UserError, match="TimeoutError: too late"):
            control.request(tmp_path, "be late")
        with pytest.raises(UserError, match="no verb 'dance'"):
            control.request(tmp_path, "dance")
    with pytest.raises(UserError, match="no controller runs"):
        control.request(tmp_path, "echo")


def test_what_cannot_be_removed_from_its_place_is_named_and_left_at_the_end(tmp_path: Path) -> None:
    async def serve() -> None:
        async with control.serve(tmp_path, {}):
            RunFolder(tmp_path).socket.unlink()
            RunFolder(tmp_path).socket.mkdir()

    asyncio.run(serve())
    with pytest.raises(UserError, match=r"cannot make .*: Is a directory"):
        asyncio.run(serve())


@pytest.mark.parametrize(
    "garbage",
    [
        b"hello\n",
        b"\xff\xfe\x00\n",
        b"[]\n",
        b'{"verb": 3}\n',
        b'{"verb": "echo", "arguments": []}\n',
        b'{"verb": "echo", "more": 1}\n',
        b'{"verb": "' + b"x" * 10_000 + b'"}\n',
        b"[" * 60_000 + b"\n",
        b"x" * (1 << 20) + b"\n",
    ],
)
def test_garbage_is_refused_and_the_server_lives(tmp_path: Path, garbage: bytes) -> None:
    with serving(tmp_path) as talk:
        answer = talk(garbage)
        assert answer == b"" or answer.startswith(b'{"ok":false')
        assert control.request(tmp_path, "echo", {"x": 1}) == {"x": 1}


def test_a_silent_client_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "REQUEST_S", 2.0)
    with serving(tmp_path), socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(RunFolder(tmp_path).socket))
        assert control.request(tmp_path, "echo", {"x": 1}) == {"x": 1}
        silent.settimeout(30)
        assert silent.recv(1) == b""  # cut off


def test_who_asked_while_the_server_was_held_up_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "REQUEST_S", 60.0)  # which is over when it goes on
    with serving(tmp_path), socket.socket(socket.AF_UNIX) as slow:
        slow.settimeout(30)
        slow.connect(str(RunFolder(tmp_path).socket))
        control.request(tmp_path, "echo")  # by now it waits for the line of the first
        other = threading.Thread(target=control.request, args=(tmp_path, "hold up"))
        other.start()
        assert held_up.wait(30)
        slow.sendall(b'{"verb": "echo"')
        slow.sendall(b"}\n")
        sent.set()
        assert slow.recv(100) == b'{"ok":true,"result":{}}\n'
        other.join(10)


def test_for_root_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path) as talk:
        mode = RunFolder(tmp_path).socket.stat().st_mode
        assert stat.S_IMODE(mode) == 0o600

        # A peer of another user, as the kernel would report it: the socket's mode alone does not
        # decide.
        real = struct.unpack
        monkeypatch.setattr(struct, "unpack", lambda *_: (1, 4711, 4711))
        assert talk(b'{"verb": "echo"}\n') == b""
        monkeypatch.setattr(struct, "unpack", real)
        assert talk(b'{"verb": "echo"}\n') == b'{"ok":true,"result":{}}\n'
    assert not RunFolder(tmp_path).socket.exists()


def test_a_socket_left_by_a_killed_controller_is_replaced(tmp_path: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(RunFolder(tmp_path).socket))
    left.close()
    with pytest.raises(UserError, match="no controller runs"):
        control.request(tmp_path, "echo")
    with pytest.raises(UserError, match="no controller runs") as caught:
        control.request(tmp_path, "unload")
    assert caught.value.hint is not None and "sched-ctl restore" in caught.value.hint
    with serving(tmp_path):
        assert control.request(tmp_path, "echo") == {}


def test_who_is_patient_meets_a_controller_that_is_about_to_start(tmp_path: Path) -> None:
    answers: list[object] = []
    asked = threading.Event()

    def ask() -> None:
        asked.set()
        answers.append(control.request(tmp_path, "echo", {"x": 1}, patience_s=30))

    asking = threading.Thread(target=ask)
    asking.start()
    assert asked.wait(10)
    with pytest.raises(UserError, match="no controller runs"):
        control.request(tmp_path, "echo", patience_s=3 * control.RETRY_S)  # nobody came
    assert asking.is_alive() and not answers
    with serving(tmp_path):
        asking.join(20)
        assert answers == [{"x": 1}]


def test_a_pattern_without_end_does_not_hold_up_the_loop() -> None:
    with pytest.raises(UserError, match="longer than 4096"):
        looking.text({"what": "*?[" * 10_000}, "what")
    assert looking.text({"what": "*?["}, "what") == "*?["
