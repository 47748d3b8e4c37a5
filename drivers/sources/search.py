"""Which port of a process is the one that we look for? Asked of several at the same time.

A process may listen on any number of ports in silence, and anybody may start such processes, so
the search ends by a deadline, and each user's first process is asked before anybody's second.
"""

import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from sched_ctl.drivers import Target
from sched_ctl.drivers.sources.http import Endpoint
from sched_ctl.errors import EngineError
from sched_ctl.kernel import procfs
from sched_ctl.kernel.crowd import slowness
from sched_ctl.kernel.netns import Listener, entered, listeners, listening_uid, same_network

__all__ = [
    "PROBE_S",
    "SEARCH_S",
    "checked",
    "connected",
    "endpoint",
    "endpoints",
    "listening",
    "listening_user",
    "secured",
]

# [HOST:]PORT[@PID]: an address, as process PID sees it.
ADDRESS = re.compile(r"(?:(?P<host>\[[0-9a-fA-F:.]+\]|[^:@\s/]+):)?(?P<port>\d+)(?:@(?P<pid>\d+))?")
PROBE_S = 0.5  # how long a port may take to say what it is, on an idle machine
MOST_PORTS = 12  # asked of one process
SEARCH_S = 3.0  # for all processes together, likewise
SEARCHERS = 16  # asked at the same time
OURSELVES = ("127.0.0.1", "localhost", "::1")

T = TypeVar("T")
Asked = Callable[[Endpoint, float], bool]  # whether it is the one; within so many seconds


def listening(pid: int) -> tuple[Listener, ...]:
    """TCP sockets on which the process listens; none if it is gone, or not ours to look at."""
    try:
        return listeners(pid)
    except OSError:
        return ()


def endpoint(
    pid: int,
    likely: Callable[[int], bool],
    is_it: Asked,
    end: float = math.inf,
    unlike: Collection[int | None] = (),
    probe_s: float = PROBE_S,
) -> Endpoint | None:
    """The first port of the process that `is_it`; those that are `likely` are asked first.

    unlike: ports that are known to be something else. None while the process is starting, and
    when `end` (time.monotonic) has passed. Where nothing may be asked, because we may not enter
    the process's network namespace, the first likely port counts: whoever asks there learns why.
    """
    ports = [listener for listener in listening(pid) if listener.port not in unlike]
    found = sorted(ports, key=lambda listener: not likely(listener.port))
    if not _may_enter(pid):
        first = next((port for port in found if likely(port.port)), None)
        return None if first is None else Endpoint(first.host, first.port, pid)
    for listener in found[:MOST_PORTS]:
        left = end - time.monotonic()
        if left <= 0:
            break
        asked = Endpoint(listener.host, listener.port, pid)
        with suppress(EngineError):
            if is_it(asked, min(probe_s * slowness(), left)):
                return asked
        asked.close()
    return None


def _may_enter(pid: int) -> bool:
    try:
        with entered(pid):
            return True
    except PermissionError:
        return False
    except OSError:  # it is gone
        return True


def secured(pid: int, likely: Callable[[int], bool], end: float = math.inf) -> Endpoint | None:
    """The first likely port of the process that speaks TLS.

    Behind TLS nothing is told before the configuration names certificates. Other ports of an
    engine may speak it, too, so only a likely one counts.
    """
    for listener in listening(pid):
        left = end - time.monotonic()
        if likely(listener.port) and left > 0:
            asked = Endpoint(listener.host, listener.port, pid)
            if asked.speaks_tls(min(PROBE_S * slowness(), left)):
                return asked
            asked.close()
    return None


def endpoints(
    pids: Iterable[int], look: Callable[[int, float], Endpoint | None]
) -> Mapping[int, Endpoint]:
    """What `look(pid, end)` found, as far as it can be told within `SEARCH_S` times the slowness.

    All are asked at the same time, and each user's first one before anybody's second: who
    starts many that stay silent delays himself.
    """
    of_user: dict[int | None, list[int]] = {}
    for pid in pids:
        of_user.setdefault(procfs.owner(pid), []).append(pid)
    ranked = sorted((rank, pid) for own in of_user.values() for rank, pid in enumerate(own))
    end = time.monotonic() + SEARCH_S * slowness()
    with ThreadPoolExecutor(SEARCHERS, "find engines") as pool:
        asked = {pid: pool.submit(look, pid, end) for _, pid in ranked}
    return {pid: found for pid, future in asked.items() if (found := future.result())}


def targets(
    kind: str,
    mains: Iterable[int],
    endpoints_of: Callable[[list[int]], Mapping[int, Endpoint]],
    known: dict[tuple[int, int], Target],
) -> list[Target]:
    """Engines of this machine, in whatever network namespace.

    mains: processes that they may be. known: those that were found, by process and its start
    time; only others are asked, by `endpoints_of`, and who no longer listens where it was found.
    It is brought up to date.
    """
    born = {pid: stat.start_time for pid in mains if (stat := procfs.stat(pid))}
    for (pid, start_time), target in list(known.items()):
        match = ADDRESS.fullmatch(target.address)
        if born.get(pid) != start_time or not (match and _listens_at(pid, int(match["port"]))):
            del known[pid, start_time]
    new = [pid for pid, start_time in born.items() if (pid, start_time) not in known]
    for pid, endpoint in endpoints_of(new).items():
        with suppress(OSError):
            where = endpoint.address if same_network(pid) else f"{endpoint.address}@{pid}"
            known[pid, born[pid]] = Target(kind, where, pid)
        endpoint.close()
    return list(known.values())


def connected(
    target: Target,
    mains: Callable[[], Iterable[int]],
    what: str,
    make: Callable[[Target, Endpoint], T],
) -> T:
    """What `make` makes of the engine at `[HOST:]PORT[@PID]`, as process PID sees that address.

    mains: processes of this machine that it may be. what: it is, in words. Raises UserError for
    another form of address, EngineError if `make` does, with a word of TLS if that is why.
    """
    match = _parts(target.address, what)
    host = (match["host"] or "127.0.0.1").strip("[]")
    port = int(match["port"])
    holder = int(match["pid"]) if match["pid"] else None
    pid, uid = target.pid or holder, target.uid
    if holder is not None and not _listens_at(holder, port):
        # It only holds the namespace, as the first process of a pod does: who listens there is it.
        pid = _main_at("127.0.0.1", port, mains, holder)
        with suppress(OSError), entered(holder):
            found = listening_uid(port)
            uid = uid if found is None else found
    elif pid is None:
        pid = _main_at(host, port, mains)
        uid = listening_user(host, port) if pid is None and uid is None else uid
    rest = Endpoint(host, port, pid or holder, target.access, listens=pid is not None)
    try:
        return make(replace(target, pid=pid, uid=uid), rest)
    except EngineError as error:
        unnamed = target.access is None and rest.speaks_tls(PROBE_S * slowness())
        rest.close()
        if unnamed:
            raise EngineError(
                f"{rest.address} speaks TLS: the configuration is to name its certificates "
                f'([access."{target.engine}"])'
            ) from None
        raise error


def _parts(address: str, what: str) -> re.Match[str]:
    match = ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match["port"]) < 65536:
        raise EngineError(
            f"{address!r} is no address of {what}",
            "give that of its web interface: HOST:PORT",
        )
    return match


def checked(what: str) -> Callable[[str], object]:
    """Of a `DriverKind`: what refuses anything but `[HOST:]PORT[@PID]`."""
    return lambda address: _parts(address, what)


def _main_at(
    host: str, port: int, mains: Callable[[], Iterable[int]], holder: int | None = None
) -> int | None:
    """The process in our own network namespace, or in that of `holder`, that listens there."""
    if host not in OURSELVES:
        return None
    for pid in mains():
        with suppress(OSError):
            beside = same_network(pid) if holder is None else same_network(pid, holder)
            if beside and _listens_at(pid, port):
                return pid
    return None


def _listens_at(pid: int, port: int) -> bool:
    return any(found.port == port for found in listening(pid))


def listening_user(host: str, port: int) -> int | None:
    """Who listens at this port of our own machine; None where it is another machine's."""
    if host != "localhost" and not host.startswith("127.") and host != "::1":
        return None
    return listening_uid(port, None if host == "localhost" else host)
