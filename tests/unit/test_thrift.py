"""Calls in Thrift's binary protocol, of a daemon that answers well, slowly, oddly or not at all."""

import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from sched_ctl.drivers import Target
from sched_ctl.drivers.sources import thrift
from sched_ctl.drivers.storm.scaling import StormScaler, hosts, sizes
from sched_ctl.errors import EngineError

REPLY, REFUSED = 0x8001_0002, 0x8001_0003


def message(kind: int, values: dict[int, thrift.Encoded]) -> bytes:
    return struct.pack(">I", kind) + thrift.text("m")[1] + bytes(4) + thrift.fields(values)[1]


def listed(*structures: thrift.Encoded) -> thrift.Encoded:
    head = struct.pack(">bi", thrift.STRUCT, len(structures))
    return thrift.LIST, head + b"".join(value for _, value in structures)


@contextmanager
def daemon(answer: Callable[[bytes], bytes]) -> Iterator[int]:
    """Answers one call with these bytes; the port. b"": it says nothing until it is left."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server.accept()[0] as peer:
            (size,) = struct.unpack(">I", peer.recv(4, socket.MSG_WAITALL))
            told = answer(peer.recv(size, socket.MSG_WAITALL))
            if told:
                peer.sendall(told)
            else:
                peer.recv(1)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.close()
        thread.join(10)


def ask(port: int, timeout_s: float = 10.0) -> thrift.Fields:
    wanted = {1: thrift.text("topology"), 2: thrift.fields({3: thrift.numbers({"d": 3})})}
    return thrift.called("127.0.0.1", port, None, "rebalance", wanted, timeout_s)


def framed(data: bytes) -> Callable[[bytes], bytes]:
    return lambda _: struct.pack(">I", len(data)) + data


def test_what_was_asked_arrives_and_what_is_answered_comes_back() -> None:
    heard = []

    def answer(asked: bytes) -> bytes:
        heard.append(asked)
        told = {0: thrift.fields({1: thrift.text("é"), 2: thrift.numbers({"a": 1})})}
        return framed(message(REPLY, told))(asked)

    with daemon(answer) as port:
        assert ask(port) == {0: {1: "é", 2: [("a", 1)]}}
    # As Apache's own library writes it: version and kind, name, number, fields, stop.
    assert heard[0] == (
        b"\x80\x01\x00\x01\x00\x00\x00\x09rebalance\x00\x00\x00\x00"
        b"\x0b\x00\x01\x00\x00\x00\x08topology"
        b"\x0c\x00\x02\x0d\x00\x03\x0b\x08\x00\x00\x00\x01\x00\x00\x00\x01d\x00\x00\x00\x03\x00\x00"
    )


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (framed(message(REFUSED, {1: thrift.text("unknown call")})), "unknown call"),
        (framed(b"HTTP/1.1 400 Bad Request"), "answered oddly"),
        (framed(b""), "answered oddly"),
        (lambda _: b"HTTP/1.1 400 Bad Request", "frames"),
        (lambda _: struct.pack(">I", 100) + b"short", "ended the connection"),
        (lambda _: b"\xff\xff\xff\xff", "frames"),
    ],
)
def test_an_odd_answer_is_an_error(answer: Callable[[bytes], bytes], words: str) -> None:
    with daemon(answer) as port, pytest.raises(EngineError, match=words):
        ask(port)


def test_who_says_nothing_is_left_in_time() -> None:
    with daemon(lambda _: b"") as port, pytest.raises(EngineError, match="did not answer within"):
        ask(port, 0.2)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(EngineError, match="refused"):
        ask(port)


def test_any_bytes_are_understood_or_refused() -> None:
    """Of a whole answer, and with bytes exchanged, cut off and put behind."""
    pick = random.Random(5)
    told = {0: thrift.fields({1: thrift.text("a"), 2: thrift.numbers({"b": 1, "c": 2})})}
    whole = message(REPLY, told)
    refused = 0
    for _ in range(3000):
        data = bytearray(whole[: pick.randint(1, len(whole))])
        for _ in range(pick.randint(0, 4)):
            data[pick.randrange(len(data))] = pick.randrange(256)
        try:
            thrift.taken_apart(bytes(data) + pick.randbytes(pick.randint(0, 20)))
        except (ValueError, struct.error):
            refused += 1
    assert refused > 1000


def test_structures_within_structures_have_an_end() -> None:
    deep: thrift.Encoded = thrift.fields({})
    for _ in range(1000):
        deep = thrift.fields({1: deep})
    with pytest.raises(ValueError, match="too large"):
        thrift.taken_apart(message(REPLY, {0: deep}))


def executor(component: str, first: int, last: int) -> dict[int, Any]:
    return {1: {1: first, 2: last}, 2: component}


def test_nodes_of_executors() -> None:
    told = [executor("d", 1, 2) | {3: "a"}, executor("e", 3, 3) | {3: "a"}]
    assert hosts([*told, executor("__acker", 4, 4) | {3: "b"}, executor("d", 5, 5), 7]) == {"a"}
    assert hosts([*told, executor("d", 5, 5) | {3: "b"}]) == {"a", "b"}
    assert hosts(None) == set()


@pytest.mark.parametrize(("others", "refused"), [("a", False), ("b", True)])
def test_a_topology_on_several_nodes_is_left_alone(
    others: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [executor("d", 1, 2) | {3: "a"}, executor("e", 3, 3) | {3: others}]
    monkeypatch.setattr(StormScaler, "info", lambda _: {4: told, 5: "ACTIVE"})
    scaler = StormScaler(Target("storm", "t"), "t-1-1", 1, ("127.0.0.1", 1))
    with pytest.raises(EngineError, match="runs on 2 nodes") if refused else nullcontext():
        scaler.secure("t", 1.0)


def test_executors_and_tasks_of_components() -> None:
    told = [executor("d", 1, 2), executor("d", 3, 3), executor("__acker", 4, 4)]
    odd = [{1: {1: 5}, 2: "x"}, {2: "y"}, {1: {1: 9, 2: 8}, 2: "z"}, {1: 7, 2: 7}]
    assert sizes([*told, *odd]) == {("d",): (2, 3)}
    assert sizes(None) == {}
    whole = [thrift.fields({2: thrift.text("d"), 1: thrift.fields({1: thrift.integer(4)})})]
    assert thrift.taken_apart(message(REPLY, {0: listed(*whole)})) == {0: [{2: "d", 1: {1: 4}}]}
