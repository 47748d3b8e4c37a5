"""The page for Prometheus: GET /metrics over HTTP, on a loopback address or a UNIX socket.

Off unless an address is set. It tells the names of queries and operators to whoever may connect:
every user of the machine on a loopback address, root alone on a socket. However often they ask, it
is made anew only seldom.
"""

import asyncio
import contextlib
import errno
import ipaddress
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from sched_ctl.config.settings import SettingError
from sched_ctl.errors import UserError
from sched_ctl.telemetry.exposition import OPEN, TEXT

__all__ = ["Taken", "parsed", "serve"]

REQUEST_BYTES = 8192
REQUEST_S = 5.0
CLIENTS = 8
KEPT_S = 1.0  # one page serves all who ask within this time
SELDOM = 20  # ... or within so many times the CPU time that it took to make
SOON_S = 1.0  # until somebody who listens is connected to
HINT = "metrics = 127.0.0.1:9464, [::1]:9464, or the path of a socket"


class Taken(UserError):
    """Somebody serves a page at that address already."""


class Page(Protocol):
    """The text of one scrape. openly: as OpenMetrics."""

    def __call__(self, *, openly: bool = False) -> str: ...


def parsed(address: str) -> tuple[str, int] | Path:
    """A loopback address with its port, or the path of a socket. Raises SettingError."""
    if address.startswith("/"):
        return Path(address)
    host, _, port = address.rpartition(":")
    try:
        loopback = ipaddress.ip_address(host.strip("[]")).is_loopback
        number = int(port)
    except ValueError:
        raise SettingError(("metrics",), f"{address!r} is no address", HINT) from None
    if not loopback or not 0 < number < 65536:
        raise SettingError(("metrics",), f"{address!r} is not a port of this machine alone", HINT)
    return host.strip("[]"), number


@asynccontextmanager
async def serve(address: str, page: Page) -> AsyncIterator[None]:
    """Answer in the running loop, in the `async with` body. An empty address: nothing.

    Raises Taken where somebody else answers; UserError if nobody can.
    """
    if not address:
        yield
        return
    has_asked: dict[asyncio.StreamWriter, bool] = {}  # by client, the oldest first
    told = _kept(page)

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(has_asked) >= CLIENTS:  # anybody can come and say nothing, or read nothing
            idlest = min(has_asked, key=lambda one: has_asked[one])
            del has_asked[idlest]
            idlest.transport.abort()
        has_asked[writer] = False
        try:
            writer.transport.set_write_buffer_limits(0)  # all of it is to leave in time
            request = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), REQUEST_S)
            if writer in has_asked:
                has_asked[writer] = True
                writer.write(_answer(request, told))
                await asyncio.wait_for(writer.drain(), REQUEST_S)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            # It went away, said nothing or too much, or does not read: nothing is kept for it
            writer.transport.abort()
        finally:
            has_asked.pop(writer, None)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    place, mine = parsed(address), None
    mask = os.umask(0o177)
    try:
        if isinstance(place, Path):
            _clear(place)
            server = await asyncio.start_unix_server(client, place, limit=REQUEST_BYTES)
            mine = place.lstat()
        else:
            server = await asyncio.start_server(client, *place, limit=REQUEST_BYTES)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Taken(
                f"metrics: somebody listens at {address} already",
                "a controller that runs, as a rule, which has that page; or give another --metrics",
            ) from error
        why = error.strerror or error  # of a path that is too long, it has words alone
        raise UserError(f"metrics: cannot listen at {address}: {why}", HINT) from error
    finally:
        os.umask(mask)
    try:
        yield
    finally:
        server.close()
        if isinstance(place, Path) and mine is not None:
            with contextlib.suppress(OSError):
                if os.path.samestat(mine, place.lstat()):
                    place.unlink()


def _kept(page: Page) -> Page:
    """The page, or the last one while that is new."""
    kept: dict[bool, tuple[float, str]] = {}

    def told(*, openly: bool = False) -> str:
        until_s, text = kept.get(openly, (0.0, ""))
        if time.monotonic() >= until_s:
            before_s = time.thread_time()
            text = page(openly=openly)
            cost_s = time.thread_time() - before_s
            kept[openly] = time.monotonic() + max(KEPT_S, SELDOM * cost_s), text
        return text

    return told


def _clear(place: Path) -> None:
    """Remove the socket of a controller that was killed. Raises OSError if somebody answers, or
    something else lies there, of which bind(2) says the same.
    """
    if not place.is_socket():
        if os.path.lexists(place):
            raise OSError(errno.EEXIST, "what lies there is no socket")
        return
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(SOON_S)
        try:
            peer.connect(str(place))
        except ConnectionRefusedError:
            place.unlink()
            return
        except (TimeoutError, BlockingIOError):  # it has more to do than it can
            pass
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _answer(request: bytes, page: Page) -> bytes:
    method, _, rest = request.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if method not in (b"GET", b"HEAD"):
        return _response("405 Method Not Allowed", "GET /metrics\n", body=True)
    if path != b"/metrics":
        return _response("404 Not Found", "GET /metrics\n", body=method == b"GET")
    openly = _accepts_open(request)
    kind = OPEN if openly else TEXT
    return _response("200 OK", page(openly=openly), body=method == b"GET", kind=kind)


def _accepts_open(request: bytes) -> bool:
    """Whether it asks for OpenMetrics, as Prometheus does before all else."""
    for line in request.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"accept":
            return b"application/openmetrics-text" in value
    return False


def _response(status: str, text: str, *, body: bool, kind: str = TEXT) -> bytes:
    content = text.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (content if body else b"")
