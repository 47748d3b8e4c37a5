"""A listener for Graphite's plaintext protocol: engines' reporters push, nothing is stored.

One line a value: `NAME VALUE TIME`. Storm, Liebre, Flink, Spark and whatever else uses Dropwizard
Metrics send it, most of them over a new connection for each report. Values are stamped when they
arrive, as the time in a line has whole seconds only. There is one listener for each port and
network namespace, however many engines send to it; it hears the loopback interface alone.

Whatever a sender says is hostile:

* A sender is known by its user, whom the kernel names (`kernel.sockdiag`; `kernel.senders`, from
  the first report on whose sender has closed by then). Only users whose engine a driver follows are
  heard, and what one says is never seen by the driver of another's engine.
* Connections, bytes a second, names and the length of a line are bounded for each user, so that
  one who floods the port delays nobody else; a connection that is silent for long is closed.
* Bytes that are not text end a connection. Graphite's other protocol, pickle, which runs code of
  the sender, is therefore refused: a frame of it begins with a zero byte.
"""

import math
import os
import re
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sched_ctl.errors import EngineError
from sched_ctl.kernel import tracing
from sched_ctl.kernel.netns import entered
from sched_ctl.kernel.senders import Senders
from sched_ctl.kernel.sockdiag import SocketOwners
from sched_ctl.kernel.threadname import be_called

__all__ = ["DEFAULT_PORT", "Inbox", "Series", "as_sent"]

# Graphite's own, 2003, is carbon's on machines that have one.
DEFAULT_PORT = int(os.environ.get("SCHED_CTL_GRAPHITE_PORT", "2013"))

LINE_LIMIT = 1024  # bytes
SERIES_LIMIT = 20_000  # a user; a series is dropped when it was silent for long and space is short
SILENT_S = 120.0
SWEEP_S = 10.0
RETRY_S = 600.0  # from one attempt at what the kernel refused to the next: any connection may ask
CONNECTION_LIMIT = 32  # a user; beyond it the one that was silent for longest is closed
BYTES_PER_S = 2 << 20  # a user; a second's worth may come at once
LINE_COST = 64  # bytes that a line counts for at least, as a short one takes as long as a long one
ACCEPTS_PER_S = 400  # of all users
TICK_S = 0.05  # what comes within it is read at once: a report is sent in pieces, over some ms
CHUNK = 1 << 16
CHUNKS = 4  # of one connection, at once
Wanted = Callable[[str], bool]
SPACES = re.compile(r"\s+", re.ASCII)
TEXT = bytes({9, 10, 13} | set(range(32, 127)) | set(range(128, 256)))


def as_sent(part: str) -> str:
    """A part of a name as Dropwizard Metrics sends it (GraphiteSanitize)."""
    return SPACES.sub("-", part)


class Series:
    """What came under one name.

    value: the last one, NaN if it was no finite number. received_s: when, time.monotonic(). total:
    sum of all that were finite and not negative, for counters that start anew at each report.
    reports: how many came.
    """

    __slots__ = ("received_s", "reports", "total", "value")

    def __init__(self) -> None:
        self.value = math.nan
        self.received_s = -math.inf
        self.total = 0.0
        self.reports = 0

    def take(self, value: float, now_s: float) -> None:
        finite = math.isfinite(value)
        self.value = value if finite else math.nan
        self.received_s = now_s
        self.reports += 1
        if finite and value > 0:
            self.total += value


@dataclass(eq=False)
class _User:
    """All that one user sent, and what it may still send."""

    series: dict[str, Series] = field(default_factory=dict)
    needless: set[str] = field(default_factory=set)  # names that nobody reads
    wanted: list[Wanted | None] = field(default_factory=list)  # by each inbox; None: all
    generation: int = 0  # counts changes of the set of names
    refused: int = 0  # lines that were not of the format, or one series too many
    allowance: float = BYTES_PER_S
    refilled_s: float = 0.0
    swept_s: float = -math.inf

    def may_send(self, now_s: float) -> bool:
        self.allowance = min(BYTES_PER_S, self.allowance + (now_s - self.refilled_s) * BYTES_PER_S)
        self.refilled_s = now_s
        return self.allowance > 0

    @property
    def names(self) -> int:
        return len(self.series) + len(self.needless)

    def add(self, name: str, now_s: float) -> Series | None:
        """A new series, or None: nobody reads it, or there are too many."""
        if self.names >= SERIES_LIMIT and now_s - self.swept_s > SWEEP_S:
            self.swept_s = now_s
            self.generation += 1
            self.needless.clear()
            old = [n for n, s in self.series.items() if now_s - s.received_s > SILENT_S]
            for silent in old:
                del self.series[silent]
        if self.names >= SERIES_LIMIT:
            self.refused += 1
            return None
        if not any(wanted is None or wanted(name) for wanted in self.wanted):
            self.needless.add(name)
            return None
        self.generation += 1
        found = self.series[name] = Series()
        return found


@dataclass(eq=False)
class _Connection:
    socket: socket.socket
    user: _User
    heard_s: float
    rest: bytes = b""  # the beginning of a line


class _Listener:
    """The socket and the thread that reads it. Ends when the last inbox is closed."""

    def __init__(self, space: int, port: int, pid: int | None) -> None:
        self.lock = threading.Lock()  # over `users` and the sets of names in them
        self.users: dict[int, _User] = {}
        with entered(pid):
            self._server = socket.create_server(("127.0.0.1", port), backlog=128)
            self._owners = SocketOwners()
        self._server.setblocking(False)
        self.port: int = self._server.getsockname()[1]
        self.key = space, self.port
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ, self._server)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._connections: list[_Connection] = []  # touched by the thread only
        self._deaf: list[object] = []  # connections and the server, not read until the next tick
        self._accepts = 0
        self._senders: Senders | None = None  # from the first one on that was gone
        self._retry_s = -math.inf
        self.untold = ""  # why those are not heard; empty: they are, or there were none
        self._tick_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="graphite", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._wake.close()  # the other end becomes readable
        self._thread.join(5)

    def _run(self) -> None:
        be_called(self._thread.name)
        try:
            while self._pass():
                pass
        finally:
            for connection in self._connections:
                connection.socket.close()
            if self._senders is not None:
                self._senders.close()
            for end in (self._server, self._woken, self._selector, self._owners):
                end.close()

    def _pass(self) -> bool:
        """Wait for something to read and read it. False: stop."""
        ready = self._selector.select(TICK_S if self._deaf else SWEEP_S)
        now_s = time.monotonic()
        if now_s - self._tick_s > TICK_S:
            self._tick_s = now_s
            self._accepts = 0
            self._listen_again(now_s)
            for connection in self._connections[:]:
                if now_s - connection.heard_s > SILENT_S or not connection.user.wanted:
                    self._close(connection)
        for key, _ in ready:
            if key.data is None:
                return False
            if key.data is self._server:
                self._accept(now_s)
            elif key.data.socket.fileno() >= 0:  # else closed in this very pass
                self._ignore(key.data.socket, key.data)
        return True

    def _ignore(self, end: socket.socket, data: object) -> None:
        """Nothing of it before the next tick: its bytes wait in the kernel, then the sender."""
        self._selector.unregister(end)
        self._deaf.append(data)

    def _listen_again(self, now_s: float) -> None:
        deaf, self._deaf = self._deaf, []
        for data in deaf:
            if not isinstance(data, _Connection):
                self._selector.register(self._server, selectors.EVENT_READ, data)
            elif data.socket.fileno() >= 0 and not data.user.may_send(now_s):
                self._deaf.append(data)
            elif data.socket.fileno() >= 0 and self._read(data, now_s):
                self._selector.register(data.socket, selectors.EVENT_READ, data)

    def _accept(self, now_s: float) -> None:
        self._accepts += 1
        if self._accepts > ACCEPTS_PER_S * TICK_S:
            self._ignore(self._server, self._server)
            return
        try:
            end, _ = self._server.accept()
        except OSError:  # gone already, or no descriptors left
            return
        uid = self._owners.of_peer(end)
        if uid is None:
            uid = self._of_gone(end)
        with self.lock:
            user = None if uid is None else self.users.get(uid)
        if user is None:
            end.close()
            return
        of_user = [connection for connection in self._connections if connection.user is user]
        if len(of_user) >= CONNECTION_LIMIT:
            self._close(min(of_user, key=lambda connection: connection.heard_s))
        end.setblocking(False)
        connection = _Connection(end, user, now_s)
        self._connections.append(connection)
        self._deaf.append(connection)

    def _of_gone(self, end: socket.socket) -> int | None:
        """The user of a sender that has closed already."""
        now_s = time.monotonic()
        if self._senders is None and now_s >= self._retry_s:
            self._retry_s = now_s + RETRY_S
            try:
                self._senders = Senders(*self.key)
                self.untold = ""
            except tracing.Unavailable as error:
                self.untold = str(error)
        return None if self._senders is None else self._senders.of(end)

    def _read(self, connection: _Connection, now_s: float) -> bool:
        """What has come, to its end if that has. False: the connection is closed."""
        for _ in range(CHUNKS):
            try:
                part = connection.socket.recv(CHUNK)
            except BlockingIOError:
                return True
            except OSError:
                part = b""
            if not part or not self._understood(connection, part, now_s):
                self._close(connection)
                return False
            if not connection.user.may_send(now_s):
                break
        return True

    def _understood(self, connection: _Connection, part: bytes, now_s: float) -> bool:
        connection.heard_s = now_s
        connection.user.allowance -= max(len(part), LINE_COST * part.count(b"\n"))
        if part.translate(None, TEXT):
            connection.user.refused += 1
            return False
        lines, newline, rest = (connection.rest + part).rpartition(b"\n")
        if len(rest) > LINE_LIMIT:
            connection.user.refused += 1
            return False
        connection.rest = rest
        if newline:
            self._take(connection.user, lines.decode(errors="replace"), now_s)
        return True

    def _take(self, user: _User, text: str, now_s: float) -> None:
        known, needless = user.series, user.needless
        for line in text.split("\n"):
            if line.partition(" ")[0] in needless:
                continue
            try:
                name, number, _ = line.split()
                value = float(number)
            except ValueError:
                user.refused += bool(line.strip())
                continue
            series = known.get(name)
            if series is None and len(line) > LINE_LIMIT:
                user.refused += 1
            elif series is None:
                with self.lock:
                    series = user.add(name, now_s)
            if series is not None:
                series.take(value, now_s)

    def _close(self, connection: _Connection) -> None:
        with suppress(KeyError, ValueError):  # while it is not listened to
            self._selector.unregister(connection.socket)
        connection.socket.close()
        self._connections.remove(connection)


_listeners: dict[tuple[int, int], _Listener] = {}
_listeners_lock = threading.Lock()


class Inbox:
    """What the processes of user `uid` send to a port, in the network namespace of process `pid`.

    wanted: whether anybody reads what comes under a name; others may be there as well. Raises
    EngineError if the port cannot be had.
    """

    def __init__(
        self,
        uid: int,
        port: int = DEFAULT_PORT,
        pid: int | None = None,
        wanted: Wanted | None = None,
    ) -> None:
        self._uid, self._wanted = uid, wanted
        self._seen = -1
        self._names: dict[str, Series] = {}
        space = Path("/proc/thread-self" if pid is None else f"/proc/{pid}", "ns/net")
        with _listeners_lock:
            try:
                number = space.stat().st_ino
                listener = _listeners.get((number, port))
                if listener is None:
                    listener = _Listener(number, port, pid)
                    _listeners[listener.key] = listener
            except OSError as error:
                raise EngineError(
                    f"cannot listen for metrics on 127.0.0.1:{port}: {error.strerror}",
                    "another sched-ctl may run, or a Graphite; SCHED_CTL_GRAPHITE_PORT and the "
                    "engine's graphite.port name another one",
                ) from None
            self._listener = listener
            with listener.lock:
                self._user = listener.users.setdefault(uid, _User())
                self._user.wanted.append(wanted)
                self._user.needless = set()  # by those who were here before
        self.port = listener.port

    @property
    def refused(self) -> int:
        """How many lines or connections of this user were not understood, or too many."""
        return self._user.refused

    @property
    def untold(self) -> str:
        """That reports whose sender closes at once are not heard, if any came, whoever's."""
        why = self._listener.untold
        return why and f"reports whose sender closes at once may not be heard: {why}"

    @property
    def changed(self) -> bool:
        """Whether `series` would have other names than when it was last called."""
        return self._user.generation != self._seen

    def series(self) -> dict[str, Series]:
        """What came so far, by name. The objects go on to be filled."""
        if self.changed:
            with self._listener.lock:
                self._seen = self._user.generation
                self._names = dict(self._user.series)
        return self._names

    def close(self) -> None:
        listener = self._listener
        with _listeners_lock:
            with listener.lock:
                self._user.wanted.remove(self._wanted)
                if not self._user.wanted:
                    del listener.users[self._uid]
                left = len(listener.users)
            if not left:
                _listeners.pop(listener.key, None)
                listener.stop()
