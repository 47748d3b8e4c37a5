"""What engines know of their own queues, for the BPF scheduler to read where they write it.

An engine that offers it (`model.LiveOffer`) is handed a map of its own, in which it can touch its
own rows and nothing of the hints. Nothing is copied on the way, and we need not run.

Only an engine whose sign of life is young counts; of others, ages are inherited and lengths are
those that the controller asked for. An engine that closes the connection has the memory no more,
and is offered it again after a while.
"""

import contextlib
import logging
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_ctl.backends.scx.room import Room
from sched_ctl.kernel import netns
from sched_ctl.kernel.libbpf import BpfError, InnerArray
from sched_ctl.kernel.scheduler import Scheduler
from sched_ctl.model.graph import distinct
from sched_ctl.model.topology import LiveOffer, Thread

__all__ = ["LiveRows", "hand_over"]

log = logging.getLogger(__name__)

STALE_S = 1.0
RETRY_S = 5.0
_PEER = struct.Struct("3i")  # struct ucred: pid, uid, gid
_OFFER = struct.Struct("=2Q")


def hand_over(offer: LiveOffer, fd: int) -> socket.socket:
    """Give an engine memory for its rows; it has it until the connection is closed.

    Never waits. Raises OSError: nobody listens there, or it is not the engine.
    """
    with netns.entered(offer.pid):  # abstract names are those of a socket's network namespace
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.setblocking(False)
        connection.connect(f"\0{offer.socket}")
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        if _PEER.unpack(peer)[0] != offer.pid:
            raise PermissionError(f"socket {offer.socket} is not of process {offer.pid}")
        socket.send_fds(connection, [_OFFER.pack(offer.rows, offer.row.itemsize)], [fd])
    except BaseException:
        connection.close()
        raise
    return connection


def _layout(row: np.dtype[Any]) -> str:
    """Members with type and place, as "head_ns <u8 at 0"."""
    members = (f"{name} {kind.str} at {at}" for name, (kind, at, *_) in (row.fields or {}).items())
    return f"{', '.join(members) or row.str} in {row.itemsize} bytes"


@dataclass
class _Engine:
    offer: LiveOffer
    index: int
    array: InnerArray
    domain: str = ""
    connection: socket.socket | None = None
    tried_s: float = field(default_factory=lambda: -RETRY_S)

    def try_again(self, now_s: float) -> None:
        self.tried_s = now_s
        self.array.rows["head_ns"][0] = 0
        try:
            self.connection = hand_over(self.offer, self.array.fd)
        except OSError as error:
            log.debug("process %d takes no memory for live rows: %s", self.offer.pid, error)

    def hang_up(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def counts(self, now_s: float) -> bool:
        """Whether it writes its rows. Hands it the memory, where it has it no more."""
        if self.connection is not None:
            with contextlib.suppress(BlockingIOError):
                try:
                    if not self.connection.recv(16):
                        self.hang_up()
                except ConnectionError:
                    self.hang_up()
        if self.connection is None:
            if now_s - self.tried_s >= RETRY_S:
                self.try_again(now_s)
            return False
        silent_s = now_s - int(self.array.rows["head_ns"][0]) * 1e-9
        return abs(silent_s) < STALE_S


class LiveRows:
    """The rows of all engines of one scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._row = scheduler.live_row
        self._engines: dict[LiveOffer, _Engine] = {}
        self._free = deque(range(1, scheduler.limits["MAX_ENGINES"]))
        self._room = Room(len(self._free))
        self._counts = np.zeros(scheduler.limits["MAX_ENGINES"], dtype=np.bool_)

    def indices(self, threads: Sequence[Thread], domain: str = "") -> NDArray[np.uint32]:
        """(m,) `slot.live` of each thread; 0 where its engine offers nothing, or there is no room.

        domain: whose threads these are, see `Room`.
        """
        found = np.zeros(len(threads), dtype=np.uint32)
        for at, thread in enumerate(threads):
            if thread.live is None:
                continue
            if (engine := self._engine(thread.live[0], domain)) is not None:
                found[at] = self._scheduler.live_index(engine.index, thread.live[1])
        return found

    def refused(self, threads: Sequence[Thread], domain: str) -> tuple[str, ...]:
        """Engines that offer rows and got no memory because there is no room, in words."""
        offers = {thread.live[0] for thread in threads if thread.live is not None}
        pids = sorted(o.pid for o in offers if o.row == self._row and o not in self._engines)
        if not pids or self.has_room(domain):
            return ()
        return (f"no room for live rows of {len(pids)} engines, from process {pids[0]} on",)

    def has_room(self, domain: str) -> bool:
        """Whether one more engine of the domain could have memory."""
        return bool(self._free) and self._room.has(domain)

    def strangers(self, threads: Sequence[Thread]) -> tuple[str, ...]:
        """Engines whose rows are laid out otherwise than the scheduler reads them, in words."""
        offers = {thread.live[0] for thread in threads if thread.live is not None}
        return tuple(
            f"process {offer.pid} declares the rows that it writes as {_layout(offer.row)}, but "
            f"the scheduler reads {_layout(self._row)}: nothing that it tells counts; use an "
            "engine and a sched-ctl of one version"
            for offer in sorted(offers, key=lambda offer: offer.pid)
            if offer.row != self._row
        )

    def _engine(self, offer: LiveOffer, domain: str) -> _Engine | None:
        engine = self._engines.get(offer)
        if engine is None and offer.row == self._row and self.has_room(domain):
            index = self._free.popleft()
            try:
                array = self._scheduler.live_rows(index, offer.rows)
            except (BpfError, OSError) as error:
                log.warning("no memory for live rows of process %d: %s", offer.pid, error)
                self._free.append(index)
                return None
            engine = self._engines[offer] = _Engine(offer, index, array, domain)
            self._room.take(domain)
        return engine

    def look(self) -> None:
        """Which engines write their rows now?"""
        now_s = time.monotonic()
        for engine in self._engines.values():
            counts = engine.counts(now_s)
            if counts != self._counts[engine.index]:
                says = "tells" if counts else "no longer tells"
                log.info("process %d %s what waits for its threads", engine.offer.pid, says)
            self._counts[engine.index] = counts

    def counting(self, indices: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """(m,) whether what these rows say counts, as of the last look."""
        if not self._engines:
            return np.zeros(len(indices), dtype=np.bool_)
        return self._counts[indices >> self._scheduler.limits["LIVE_ROW_BITS"]]  # type: ignore[no-any-return]

    def row(self, thread: Thread) -> Any:
        """What the thread's engine says of it: head_ns, queue_tuples; None if it does not.

        It shows the present as long as the engine counts.
        """
        engine = self._engines.get(thread.live[0]) if thread.live is not None else None
        if thread.live is None or engine is None or not self._counts[engine.index]:
            return None
        return engine.array.rows[thread.live[1]]

    def keep(self, used: Iterable[NDArray[np.uint32]]) -> None:
        """Take back the memory of engines of which no thread is left."""
        bits = self._scheduler.limits["LIVE_ROW_BITS"]
        left = {int(index) for indices in used for index in distinct(indices >> bits)}
        for offer, engine in list(self._engines.items()):
            if engine.index not in left:
                self._drop(offer)

    def _drop(self, offer: LiveOffer) -> None:
        engine = self._engines.pop(offer)
        engine.hang_up()
        self._scheduler.drop_live_rows(engine.index)
        engine.array.close()
        self._counts[engine.index] = False
        self._free.append(engine.index)
        self._room.give_back(engine.domain)

    def close(self) -> None:
        for offer in list(self._engines):
            self._drop(offer)
