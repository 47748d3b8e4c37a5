"""One call of a daemon that speaks Thrift: its binary protocol in frames, a connection a call.

Written after thrift.apache.org's description of the binary protocol. What comes back needs no
description of its types: a structure is a mapping by the numbers of its fields. The peer may be
slow or hostile: a call ends by its deadline, and its answer has a bounded size and depth.
"""

import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

from sched_ctl.drivers.sources.http import ANSWER_LIMIT, MOST_VALUES
from sched_ctl.errors import EngineError
from sched_ctl.kernel.netns import entered

__all__ = ["Fields", "called", "fields", "integer", "numbers", "taken_apart", "text"]

Fields = Mapping[int, Any]

VERSION = 0x8001_0000
CALL, REPLY = 1, 2
STOP, BOOL, BYTE, DOUBLE, I16, I32, I64 = 0, 2, 3, 4, 6, 8, 10
STRING, STRUCT, MAP, SET, LIST = 11, 12, 13, 14, 15
PLAIN = {BOOL: ">?", BYTE: ">b", DOUBLE: ">d", I16: ">h", I32: ">i", I64: ">q"}
DEEPEST = 16  # structures within structures

Encoded = tuple[int, bytes]  # type, value


def integer(value: int) -> Encoded:
    return I32, struct.pack(">i", value)


def text(value: str) -> Encoded:
    return STRING, _counted(value.encode())


def numbers(values: Mapping[str, int]) -> Encoded:
    """A map of names to numbers."""
    pairs = b"".join(_counted(k.encode()) + struct.pack(">i", v) for k, v in values.items())
    return MAP, struct.pack(">bbi", STRING, I32, len(values)) + pairs


def fields(values: Mapping[int, Encoded]) -> Encoded:
    """A structure, by the numbers of its fields."""
    parts = [struct.pack(">bh", kind, number) + value for number, (kind, value) in values.items()]
    return STRUCT, b"".join(parts) + bytes([STOP])


def called(
    host: str,
    port: int,
    pid: int | None,
    method: str,
    arguments: Mapping[int, Encoded],
    timeout_s: float,
) -> Fields:
    """The answer's fields: 0 is what the method gives, others are what it refuses with.

    pid: in whose network namespace host and port are meant. Raises EngineError.
    """
    deadline = time.monotonic() + timeout_s
    message = struct.pack(">I", VERSION | CALL) + text(method)[1] + struct.pack(">i", 0)
    message += fields(arguments)[1]
    try:
        with entered(pid):
            connection = socket.create_connection((host, port), timeout_s)
        with connection:
            connection.settimeout(timeout_s)
            connection.sendall(_counted(message))
            (size,) = struct.unpack(">I", _read(connection, 4, deadline))
            if size > ANSWER_LIMIT:
                raise EngineError(f"{host}:{port} does not answer in Thrift's frames")
            answer = _read(connection, size, deadline)
    except TimeoutError:
        raise EngineError(f"{host}:{port} did not answer within {timeout_s:g} s") from None
    except OSError as error:
        raise EngineError(f"{host}:{port}: {error.strerror or error}") from None
    try:
        return taken_apart(answer)
    except (struct.error, ValueError) as error:
        raise EngineError(f"{host}:{port} answered oddly: {error}") from None


def taken_apart(answer: bytes) -> Fields:
    """The fields of a reply. Raises ValueError or struct.error for anything else."""
    reader = _Reader(answer)
    kind = reader.plain(">I")
    if kind & 0xFFFF_0000 != VERSION:
        raise ValueError("it is no message")
    reader.value(STRING)
    reader.plain(">i")
    result: Fields = reader.value(STRUCT)
    if kind & 0xFF != REPLY:
        raise ValueError(str(result.get(1, "it does not know the call"))[:200])
    return result


class _Reader:
    """Values one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at, self._left = data, 0, MOST_VALUES

    def plain(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return value

    def value(self, kind: int, depth: int = 0) -> Any:
        self._left -= 1
        if self._left < 0 or depth > DEEPEST:
            raise ValueError("too large an answer")
        if kind in PLAIN:
            return self.plain(PLAIN[kind])
        if kind == STRING:
            size = self.plain(">i")
            if not 0 <= size <= len(self._data) - self._at:
                raise ValueError("a text is longer than its message")
            self._at += size
            return self._data[self._at - size : self._at].decode(errors="replace")
        if kind == STRUCT:
            found = {}
            while (part := self.plain(">b")) != STOP:
                number = self.plain(">h")
                found[number] = self.value(part, depth + 1)
            return found
        if kind == MAP:
            key, item, count = self.plain(">b"), self.plain(">b"), self._count()
            return [(self.value(key, depth + 1), self.value(item, depth + 1)) for _ in range(count)]
        if kind in (LIST, SET):
            item, count = self.plain(">b"), self._count()
            return [self.value(item, depth + 1) for _ in range(count)]
        raise ValueError(f"a value of unknown type {kind}")

    def _count(self) -> int:
        count: int = self.plain(">i")
        if not 0 <= count <= len(self._data) - self._at:
            raise ValueError("a list is longer than its message")
        return count


def _counted(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _read(connection: socket.socket, size: int, deadline: float) -> bytes:
    """So many bytes. Raises OSError; TimeoutError after the deadline."""
    data = bytearray()
    while len(data) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        part = connection.recv(min(size - len(data), 1 << 16))
        if not part:
            raise OSError("it ended the connection")
        data += part
    return bytes(data)
