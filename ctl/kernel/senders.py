"""Whose connections to our ports are that were closed before we could ask (bpf/senders.bpf.c)."""

import socket
import struct
import time
from pathlib import Path
from typing import Self

from sched_ctl.kernel import tracing
from sched_ctl.kernel.libbpf import Object, library

__all__ = ["OBJECT", "Senders"]

OBJECT = Path(__file__).resolve().parents[1] / "bin" / "senders.bpf.o"
SENDER = struct.Struct("=I4sHH")  # struct sender
OF_USER = struct.Struct("=QII")  # struct of_user
RECENT_NS = 10_000_000_000  # that a connection waits to be accepted, at the most


class Senders:
    """Notes who connects to these ports of 127.0.0.1, from now until it is closed.

    Raises `tracing.Unavailable`.
    """

    def __init__(self, *ports: int) -> None:
        if (why := tracing.obstacle()) is not None:
            raise tracing.Unavailable(why)
        try:
            self._object = Object.open(OBJECT, library())
        except OSError as error:
            raise tracing.Unavailable(f"{OBJECT.name}: {error.strerror}") from None
        try:
            self._object.load()
            self._object.array(".bss.wanted", "wanted")[list(ports)] = 1
            self._object.attach("connected")
        except OSError as error:
            self.close()
            raise tracing.Unavailable(f"the kernel refuses: {error.strerror}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def of(self, space: int, peer: tuple[str, int], port: int) -> int | None:
        """User id of who connected from there to a port, once; None: nobody lately.

        space: inode number of the network namespace.
        """
        key = SENDER.pack(space, socket.inet_aton(peer[0]), peer[1], port)
        found = self._object.lookup("senders", key)
        if found is None:
            return None
        since_ns, uid, _ = OF_USER.unpack(found)
        self._object.update("senders", key, bytes(OF_USER.size))  # nobody else is taken for it
        age_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - since_ns
        return int(uid) if age_ns < RECENT_NS else None

    def close(self) -> None:
        self._object.close()
