"""Whose connections to a port of ours are, closed before we could ask (bpf/senders.bpf.c)."""

import socket
import struct
import time
from pathlib import Path
from typing import Self

from sched_ctl.kernel import tracing
from sched_ctl.kernel.libbpf import Object, library

__all__ = ["OBJECT", "Senders"]

OBJECT = Path(__file__).resolve().parents[1] / "bin" / "senders.bpf.o"
SENDER = struct.Struct("=4sI")  # struct sender
OF_USER = struct.Struct("=QII")  # struct of_user
RECENT_NS = 10_000_000_000  # that a connection waits to be accepted, at the most


class Senders:
    """Notes who connects to a port of 127.0.0.1, from now until it is closed.

    space: inode number of the port's network namespace. Raises `tracing.Unavailable`.
    """

    def __init__(self, space: int, port: int) -> None:
        if (why := tracing.obstacle()) is not None:
            raise tracing.Unavailable(why)
        try:
            self._object = Object.open(OBJECT, library())
        except OSError as error:
            raise tracing.Unavailable(f"{OBJECT.name}: {error.strerror}") from None
        try:
            self._object.load()
            listener = self._object.array(".bss.listener", "listener")
            listener["space"], listener["port"] = space, socket.htons(port)
            self._object.attach("connected")
        except OSError as error:
            self.close()
            raise tracing.Unavailable(f"the kernel refuses: {error.strerror}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def of(self, end: socket.socket) -> int | None:
        """User id of who made this connection, which we accepted; told once. None: not known.

        A connection that was reset does not own its address any more, and somebody else may connect
        from there; while ours has its other end, nobody can.
        """
        try:
            address, port = end.getpeername()
            key = SENDER.pack(socket.inet_aton(address), port)
            found = self._object.lookup("senders", key)
            end.getpeername()
            if found is None:
                return None
            self._object.delete("senders", key)
        except OSError:
            return None
        since_ns, uid, _ = OF_USER.unpack(found)
        age_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - since_ns
        return int(uid) if 0 <= age_ns < RECENT_NS else None

    def close(self) -> None:
        self._object.close()
