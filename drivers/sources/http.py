"""HTTP from an engine that may be slow, hostile, or in another network namespace.

One connection is kept open and used again. A request ends by its deadline whatever the peer does
(httpx's time limits are per read: a peer that sends a byte now and then would never exceed
them), and its answer has a bounded size.
"""

import socket
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import httpcore
import msgspec

from sched_ctl.drivers.deadlines import time_left
from sched_ctl.drivers.sources import tls
from sched_ctl.errors import EngineError
from sched_ctl.kernel.descriptors import readable
from sched_ctl.kernel.netns import entered, listeners, listening_uid
from sched_ctl.model.access import Access

__all__ = ["ANSWER_LIMIT", "PAGE_LIMIT", "PROBE_LIMIT", "Endpoint"]

ANSWER_LIMIT = 16 << 20  # bytes
PROBE_LIMIT = 64 << 10  # bytes of an answer that only tells what somebody is
PAGE_LIMIT = 1 << 20  # likewise, of a page of metrics
# Commas and brackets of an answer, before it is taken apart: each becomes an object of 50 to 500
# bytes. An engine of 10,000 operators is asked by vertex, and answers with some ten thousand.
MOST_VALUES = 400_000
URL_SHOWN = 120  # characters of an address in a message


@dataclass(eq=False)
class _Stream(httpcore.NetworkStream):
    """A TCP stream of which no read or write goes beyond the deadline, time.monotonic()."""

    connection: socket.socket
    clock: "_Network"

    def _wait(self) -> None:
        left = self.clock.deadline - time.monotonic()
        if left <= 0:
            raise httpcore.ReadTimeout("deadline")
        self.connection.settimeout(left)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self._wait()
        try:
            # Java's own HTTP server writes an answer in two parts, and Nagle's algorithm holds the
            # second back until the first is acknowledged: 40 ms, unless we do so at once.
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            return self.connection.recv(max_bytes)
        except TimeoutError as error:
            raise httpcore.ReadTimeout(error) from error
        except OSError as error:
            raise httpcore.ReadError(_refusal(error)) from error

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._wait()
        try:
            self.connection.sendall(buffer)
        except TimeoutError as error:
            raise httpcore.WriteTimeout(error) from error
        except OSError as error:
            raise httpcore.WriteError(error) from error

    def close(self) -> None:
        self.connection.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        self._wait()
        try:
            secured = ssl_context.wrap_socket(self.connection, server_hostname=server_hostname)
        except TimeoutError as error:
            self.close()
            raise httpcore.ConnectTimeout(error) from error
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            self.close()
            raise httpcore.ConnectError(_refusal(error)) from error
        return _Stream(secured, self.clock)

    def get_extra_info(self, info: str) -> Any:
        # The pool asks before it uses an idle connection again: then nothing is to be read, but the
        # end. Asked of the descriptor, as TLS knows no peeking.
        if info == "is_readable":
            return readable(self.connection.fileno())
        return None


def _refusal(error: Exception) -> str:
    """Why TLS did not come about, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return f"TLS: {error.reason.lower().replace('_', ' ')}"
    return str(error)


@dataclass(eq=False)
class _Network(httpcore.NetworkBackend):
    """Makes connections inside the network namespace of process `pid`."""

    pid: int | None
    listens: bool  # whether it is that process which must listen there
    uid: int | None  # whose process, or else root's, must listen there if that is loopback
    deadline: float = 0.0

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        try:
            with entered(self.pid):
                connection = socket.create_connection((host, port), time_left(self.deadline))
                if refused := self._refused(connection, port):
                    connection.close()
                    raise httpcore.ConnectError(refused)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(error) from error
        except OSError as error:
            raise httpcore.ConnectError(error) from error
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return _Stream(connection, self)

    def _refused(self, connection: socket.socket, port: int) -> str:
        """Why who listens there is not who should, in words, or ""."""
        if self.pid is not None and self.listens and not _listens(self.pid, port):
            return f"process {self.pid} no longer listens there"
        host = connection.getpeername()[0].removeprefix("::ffff:")
        if self.uid is None or not ip_address(host).is_loopback:
            return ""
        uid = listening_uid(port, host)
        known = uid in (0, self.uid)
        return "" if known else f"it is not user {self.uid}, nor root, who listens there"


def _shown(url: str) -> str:
    """An address in a message: of a query with a hundred names, the beginning."""
    return url if len(url) <= URL_SHOWN else f"{url[:URL_SHOWN]}..."


def _in_words(timeout_s: float) -> str:
    """What was left of a question's time tells nobody anything."""
    return f"within {timeout_s:.2g} s" if timeout_s >= 0.1 else "in time"


def _listens(pid: int, port: int) -> bool:
    """Whether the port is the process's still: another user's may have taken it meanwhile."""
    try:
        return any(listener.port == port for listener in listeners(pid))
    except PermissionError:
        return True  # not ours to see


class Endpoint:
    """A server that one thread asks: host and port as process `pid` sees them (None: as we do).

    With a pid, it is that process that must listen there, at each new connection, unless `listens`
    is False: then it only holds the network namespace. With a uid, a process of this user or of
    root's must, if the address is loopback. With an access, TLS is spoken, and what the access
    names is read here: raises UserError.
    """

    def __init__(
        self,
        host: str,
        port: int,
        pid: int | None = None,
        access: Access | None = None,
        *,
        listens: bool = True,
        uid: int | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self._network = _Network(pid, listens, uid)
        self._scheme = "http" if access is None else "https"
        self._headers = []
        self._name = {}
        secured = None
        if access is not None:
            secured = tls.context(access)
            if (known := tls.authorization(access)) is not None:
                self._headers.append((b"Authorization", known))
            if access.name:
                self._name = {"sni_hostname": access.name}
        self._pool = httpcore.ConnectionPool(
            max_connections=1,
            keepalive_expiry=None,
            network_backend=self._network,
            ssl_context=secured,
        )

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def get(self, path: str, timeout_s: float, limit: int = ANSWER_LIMIT) -> bytes:
        """The body at this path.

        Raises EngineError if there is none within `timeout_s`, if it is longer than `limit`
        bytes, or if the answer is not 200.
        """
        status, body = self.send("GET", path, None, timeout_s, limit)
        if status != 200:
            raise EngineError(f"{_shown(self._url(path))} answered with status {status}")
        return body

    def send(
        self,
        method: str,
        path: str,
        body: object,
        timeout_s: float,
        limit: int = ANSWER_LIMIT,
    ) -> tuple[int, bytes]:
        """Status and body of the answer. body: of the request, becomes JSON; None: there is none.

        Raises EngineError if there is no answer within `timeout_s`, or a longer one.
        """
        url = self._url(path)
        shown = _shown(url)
        headers, content = self._headers, None
        if body is not None:
            headers = [*headers, (b"Content-Type", b"application/json")]
            content = msgspec.json.encode(body)
        self._network.deadline = time.monotonic() + timeout_s
        try:
            with self._pool.stream(
                method, url, headers=headers, content=content, extensions=self._name
            ) as response:
                answer = bytearray()
                for part in response.iter_stream():
                    answer += part
                    if len(answer) > limit:
                        raise EngineError(f"{shown} answered with more than {limit} bytes")
                return response.status, bytes(answer)
        except httpcore.TimeoutException:
            raise EngineError(f"{shown} did not answer {_in_words(timeout_s)}") from None
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            why = error or type(error).__name__
            raise EngineError(f"{shown} cannot be reached: {why}") from None

    def json(self, path: str, timeout_s: float, kind: Any = Any, limit: int = ANSWER_LIMIT) -> Any:
        """The body at this path, decoded from JSON and checked against the type `kind`.

        Raises EngineError, also for more than `MOST_VALUES` values.
        """
        body = self.get(path, timeout_s, limit)
        if sum(map(body.count, (b",", b"{", b"["))) > MOST_VALUES:
            where = _shown(self._url(path))
            raise EngineError(f"{where} answered with more than {MOST_VALUES} values")
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise EngineError(f"{_shown(self._url(path))} answered oddly: {error}") from None

    def speaks_tls(self, timeout_s: float) -> bool:
        """Whether somebody there answers a TLS greeting, with whatever certificate."""
        self._network.deadline = time.monotonic() + timeout_s
        try:
            stream = self._network.connect_tcp(self.host, self.port)
            stream.start_tls(tls.stranger()).close()
        except httpcore.ConnectError as error:
            # One who wants a certificate of ours may say so in TLS; all else is no TLS.
            cause = error.__cause__
            return isinstance(cause, ssl.SSLError) and "ALERT" in (cause.reason or "")
        except httpcore.TimeoutException:
            return False
        return True

    def _url(self, path: str) -> str:
        return f"{self._scheme}://{self.address}{path}"

    def close(self) -> None:
        self._pool.close()
