"""The control socket of a running controller.

`RUN_DIR/control.sock`, for root alone: the file's mode says so, and so do the peer's credentials
(SO_PEERCRED, unix(7)). One request and one answer on a connection, each a line of JSON:

    {"verb": "status"}
    {"ok": true, "result": {...}}

    {"verb": "explain", "arguments": {"what": "etl/Join"}}
    {"ok": false, "error": "no operator or thread ...", "hint": "..."}
"""

import asyncio
import logging
import os
import select
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from sched_ctl.errors import UserError
from sched_ctl.kernel import procfs
from sched_ctl.kernel.crowd import slowness
from sched_ctl.runfolder import RunFolder
from sched_ctl.service.lock import Holder, holder, others

__all__ = ["MOST_EXPLAINED", "Handler", "NoController", "answers", "is_stopped", "request", "serve"]

log = logging.getLogger(__name__)

REQUEST_BYTES = 1 << 16
ANSWER_BYTES = 1 << 26
MOST_EXPLAINED = 100  # threads of a rule that one answer to `explain` tells of
REQUEST_S = 5.0  # to send the request, and to take the answer
CLIENTS = 16
RETRY_S = 0.1
SOON_S = 2.0  # without a sign of life: then it is said
LOOK_S = 0.5
LOOKS = frozenset({"status", "dispatch", "explain", "threads", "bottlenecks", "top"})
# What to do instead, where none runs.
ABSENT = {"unload": "nothing is left to end; what one that was killed has left: sched-ctl restore"}
PING = "ping"  # answered by one of an earlier version, too: that it knows no such verb

Handler = Callable[[Mapping[str, Any]], Awaitable[Any]]


class NoController(UserError):
    """None runs on this machine."""


class _Request(msgspec.Struct, forbid_unknown_fields=True):
    verb: str
    arguments: dict[str, Any] = {}


@asynccontextmanager
async def serve(
    run_dir: Path, handlers: Mapping[str, Handler]
) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Answer requests in the running loop, in the `async with` body. The folder must exist.

    Yields what listens anew if somebody has removed the socket; raises UserError if it cannot.
    """
    path = RunFolder(run_dir).socket
    try:
        path.unlink(missing_ok=True)  # of a controller that was killed: we hold the lock
    except OSError as error:
        raise UserError(
            f"cannot make {path}: {error.strerror}", "look what it is, and remove it"
        ) from error
    clients = 0

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal clients
        clients += 1
        try:
            if clients <= CLIENTS and _is_us(writer):
                peer = writer.get_extra_info("socket")
                writer.write(await _answer(reader, handlers, lambda: _has_gone(peer)) + b"\n")
                await asyncio.wait_for(writer.drain(), REQUEST_S)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client went away, or never said anything
        finally:
            clients -= 1
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def listen() -> asyncio.Server:
        mask = os.umask(0o177)
        try:
            return await asyncio.start_unix_server(client, path, limit=REQUEST_BYTES)
        except OSError as error:
            raise UserError(f"cannot make {path}: {error}", "give another --run-dir") from error
        finally:
            os.umask(mask)

    server = await listen()

    async def again() -> None:
        nonlocal server
        if not path.is_socket():
            server.close()
            server = await listen()

    try:
        yield again
    finally:
        server.close()
        # An answer that is under way (to `unload`) still goes out.
        with suppress(TimeoutError):
            async with asyncio.timeout(REQUEST_S):
                while clients:
                    await asyncio.sleep(0.005)
        with suppress(OSError):  # somebody has put something else in its place
            path.unlink()


def _is_us(writer: asyncio.StreamWriter) -> bool:
    peer = writer.get_extra_info("socket")
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return uid in (0, os.geteuid())


def _has_gone(peer: socket.socket) -> bool:
    """Whether the other side has closed, and so waits for no answer; poll(2)."""
    poll = select.poll()
    poll.register(peer, 0)
    return any(found & select.POLLHUP for _, found in poll.poll(0))


async def _answer(
    reader: asyncio.StreamReader,
    handlers: Mapping[str, Handler],
    has_gone: Callable[[], bool] = lambda: False,
) -> bytes:
    try:
        line = await _line(reader)
    except asyncio.LimitOverrunError:
        return _refusal(f"the request is longer than {REQUEST_BYTES} bytes")
    if has_gone():  # we were stopped meanwhile: it was told so, and that nothing came of it
        return _refusal("nobody waits for the answer")
    try:
        request = msgspec.json.decode(line, type=_Request)
        if request.verb == PING:
            return msgspec.json.encode({"ok": True, "result": None})
        handler = handlers.get(request.verb)
        if handler is None:
            raise UserError(
                f"the controller knows no verb {request.verb[:40]!r}",
                f"verbs: {', '.join(sorted(handlers))}",
            )
        return msgspec.json.encode({"ok": True, "result": await handler(request.arguments)})
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _refusal(f"this is no request: {error}")
    except UserError as error:
        return _refusal(error.message, error.hint)
    except Exception as error:  # a fault of ours must not end the controller
        log.exception("control socket")
        return _refusal(f"{type(error).__name__}: {error}")


async def _line(reader: asyncio.StreamReader) -> bytes:
    """The request. Raises TimeoutError, or IncompleteReadError or LimitOverrunError of asyncio."""
    try:
        return await asyncio.wait_for(reader.readuntil(b"\n"), REQUEST_S)
    except TimeoutError:  # or we were held up: then it is there by now
        return await asyncio.wait_for(reader.readuntil(b"\n"), RETRY_S)


def _refusal(message: str, hint: str | None = None) -> bytes:
    return msgspec.json.encode({"ok": False, "error": message, "hint": hint})


def _connected(path: Path, timeout_s: float, end_s: float) -> socket.socket:
    """A connection; tried until CLOCK_MONOTONIC is `end_s`, then raises OSError."""
    while True:
        peer = socket.socket(socket.AF_UNIX)
        try:
            peer.settimeout(timeout_s)
            peer.connect(str(path))
            return peer
        except BlockingIOError:  # its queue is full: nobody takes anything out
            peer.close()
            raise TimeoutError from None
        except (FileNotFoundError, ConnectionRefusedError):
            peer.close()
            if time.monotonic() >= end_s:
                raise
            time.sleep(RETRY_S)
        except BaseException:
            peer.close()
            raise


def request(
    run_dir: Path,
    verb: str,
    arguments: Mapping[str, Any] | None = None,
    timeout_s: float = 30.0,
    patience_s: float = 0.0,
) -> Any:
    """Ask the running controller. Raises NoController if there is none, else UserError with why it
    does not answer, or what it refused.

    Where none runs, one that only looks is asked what it can tell; not instead of one that is
    stopped, or hangs, whose order stays in force.
    patience_s: wait so long for one that is about to start. One that is stopped, or hangs, is not
    waited for.
    """
    watched = RunFolder(run_dir).watched
    path = RunFolder(run_dir).socket
    none = (holder(run_dir) is None and not answers(run_dir)) or not path.exists()
    if verb in LOOKS and none and answers(watched):
        run_dir, path = watched, RunFolder(watched).socket
    end_s = time.monotonic() + patience_s
    try:
        with _connected(path, timeout_s, end_s) as peer:
            peer.sendall(msgspec.json.encode({"verb": verb, "arguments": arguments or {}}) + b"\n")
            answer = _received(peer, run_dir, timeout_s)
    except TimeoutError:
        raise UserError(
            f"the controller does not answer: {holder(run_dir) or path}",
            "if it hangs, end it with: sched-ctl unload --force",
        ) from None
    except PermissionError:
        raise UserError(f"{path} is for root", "run this command as root") from None
    except (FileNotFoundError, ConnectionError):
        if found := others():
            raise UserError(
                f"no controller answers at {path}; one with another run folder is running: pid "
                f"{found[0]}",
                "name the folder that load was given: --run-dir",
            ) from None
        raise NoController(
            f"no controller runs on this machine: none answers at {path}",
            ABSENT.get(verb, "start one with: sched-ctl load; or only look: sched-ctl watch"),
        ) from None
    except OSError as error:  # a way through a file, or too long for a socket
        raise UserError(
            f"no controller can be asked at {path}: {error.strerror or error}",
            "name the folder that load was given: --run-dir",
        ) from None
    try:
        decoded = msgspec.json.decode(answer)
        if decoded["ok"]:
            return decoded["result"]
    except (msgspec.DecodeError, KeyError, TypeError):
        raise UserError(
            f"the controller's answer cannot be read ({len(answer)} bytes)",
            "are the controller and this command of the same version?",
        ) from None
    raise UserError(decoded["error"], decoded.get("hint"))


def answers(run_dir: Path, timeout_s: float = SOON_S) -> bool:
    """Whether a controller shows any sign of life at its socket; not asked if it is stopped."""
    found = holder(run_dir)
    if found is not None and is_stopped(found):
        return False
    try:
        with _connected(RunFolder(run_dir).socket, timeout_s, 0.0) as peer:
            peer.sendall(msgspec.json.encode({"verb": PING}) + b"\n")
            return bool(peer.recv(1 << 16))
    except OSError:
        return False


def _received(peer: socket.socket, run_dir: Path, timeout_s: float) -> bytes:
    """The answer. Raises TimeoutError; UserError if it will not come, because of ..."""
    answer = bytearray()
    found = holder(run_dir)
    began_s = said_s = time.monotonic()
    while True:
        now_s = time.monotonic()
        if now_s - began_s >= timeout_s:
            raise TimeoutError
        peer.settimeout(min(LOOK_S, timeout_s - (now_s - began_s)))
        try:
            part = peer.recv(1 << 18)
        except TimeoutError:
            patient_s = time.monotonic() - said_s
            if found is not None and is_stopped(found):
                raise _stopped(found) from None
            if found is not None and patient_s >= SOON_S - LOOK_S:
                _look(found, run_dir, said=said_s > began_s)
                said_s = time.monotonic()
            continue
        if not part:
            return bytes(answer)
        answer += part
        if len(answer) > ANSWER_BYTES:
            raise UserError("the controller's answer has no end")


def is_stopped(found: Holder) -> bool:
    """Whether it does not run until somebody lets it: nothing will come, however long one waits."""
    how = procfs.stat(found.pid)
    return how is not None and how.state in "Tt"


def _stopped(found: Holder) -> UserError:
    return UserError(
        f"the controller is stopped, and answers nobody: {found}",
        f"let it go on: kill -CONT {found.pid}; or end it: sched-ctl unload --force",
    )


def _look(found: Holder, run_dir: Path, *, said: bool) -> None:
    """Nothing came for a while. Raises UserError if nothing will; else says it, once."""
    how = procfs.stat(found.pid)
    if how is None:
        raise ConnectionResetError  # it has ended
    if how.state in "Tt":
        raise _stopped(found)
    if how.state == "S" and not answers(run_dir, LOOK_S * slowness()):
        now = procfs.stat(found.pid)
        if now is not None and now.state in "STt":
            raise UserError(
                f"the controller does not answer, and does nothing else: {found}",
                "it hangs: end it, and put back what it changed: sched-ctl unload --force",
            )
    if not said:
        doing = {"R": "works, or waits for a CPU", "D": "waits in the kernel"}.get(how.state)
        log.warning(
            "no answer yet: the controller (pid %d) %s",
            found.pid,
            doing or "is still at it",
        )
