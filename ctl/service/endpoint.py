"""The page for Prometheus: GET /metrics over HTTP, on a loopback address or a UNIX socket.

Off unless an address is set. It tells the names of queries and operators to whoever may connect:
every user of the machine on a loopback address, root alone on a socket.
"""

import asyncio
import contextlib
import ipaddress
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from sched_ctl.config.settings import SettingError
from sched_ctl.errors import UserError
from sched_ctl.telemetry.exposition import OPEN, TEXT

__all__ = ["parsed", "serve"]

REQUEST_BYTES = 8192
REQUEST_S = 5.0
CLIENTS = 8
HINT = "metrics = 127.0.0.1:9464, [::1]:9464, or the path of a socket"


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
    """Answer in the running loop, in the `async with` body. An empty address: nothing."""
    if not address:
        yield
        return
    clients = 0

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal clients
        clients += 1
        try:
            if clients <= CLIENTS:
                writer.write(await asyncio.wait_for(_answer(reader, page), REQUEST_S))
                await asyncio.wait_for(writer.drain(), REQUEST_S)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # it went away, said nothing, or too much
        finally:
            clients -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    place = parsed(address)
    mask = os.umask(0o177)
    try:
        if isinstance(place, Path):
            if place.is_socket():
                place.unlink()  # of a controller that was killed
            server = await asyncio.start_unix_server(client, place, limit=REQUEST_BYTES)
        else:
            server = await asyncio.start_server(client, *place, limit=REQUEST_BYTES)
    except OSError as error:
        raise UserError(f"metrics: cannot listen at {address}: {error.strerror}", HINT) from error
    finally:
        os.umask(mask)
    try:
        yield
    finally:
        server.close()
        if isinstance(place, Path):
            place.unlink(missing_ok=True)


async def _answer(reader: asyncio.StreamReader, page: Page) -> bytes:
    request = await reader.readuntil(b"\r\n\r\n")
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
