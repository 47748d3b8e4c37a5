"""Flink's processes on this machine: which they are, where they listen, what their threads do."""

import math
import re
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sched_ctl.drivers.flink.plan import TaskManager
from sched_ctl.drivers.jvm import JavaProcess
from sched_ctl.drivers.sources.http import Endpoint
from sched_ctl.errors import EngineError
from sched_ctl.kernel import procfs
from sched_ctl.kernel.netns import Listener, listeners, listening_uid, same_network

__all__ = [
    "Process",
    "job_managers",
    "listening_user",
    "match",
    "metrics_endpoint",
    "owner_of",
    "rest_endpoint",
    "rest_endpoints",
    "task_managers",
]

# Main classes of all the ways to deploy Flink: standalone, YARN, Kubernetes; 1.x and 2.x.
JOB_MANAGER = re.compile(r"org\.apache\.flink\.\S*ClusterEntry[pP]oint")
TASK_MANAGER = re.compile(r"org\.apache\.flink\.\S*(TaskManagerRunner|TaskExecutorRunner)")
REST_PORT = 8081  # Flink's defaults
METRICS_PORTS = range(9249, 9261)
PROBE_S = 0.5  # how long a port may take to say what it is
MOST_PORTS = 12  # asked of one process
SEARCH_S = 3.0  # for all JobManagers together
SEARCHERS = 16  # asked at the same time
PROBE_FAMILY = "flink_taskmanager_Status_JVM_CPU_Load"


def job_managers() -> list[int]:
    return _processes(JOB_MANAGER)


def task_managers(uid: int | None = None) -> list[int]:
    """TaskManagers of this user; None: of all.

    A TaskManager is recognised by ports and words that any process may have, so a cluster's word
    counts only for processes of its own user.
    """
    found = _processes(TASK_MANAGER)
    return found if uid is None else [pid for pid in found if procfs.owner(pid) == uid]


def _processes(main: re.Pattern[str]) -> list[int]:
    return [
        pid
        for pid in procfs.pids()
        if any(main.fullmatch(word) for word in procfs.command_line(pid))
    ]


def _property(pid: int, name: str) -> str | None:
    """A setting given on the command line: -D name=value, or -Dname=value."""
    for word in procfs.command_line(pid):
        key, _, value = word.removeprefix("-D").partition("=")
        if key == name and value:
            return value
    return None


def _listeners(pid: int) -> tuple[Listener, ...]:
    try:
        return listeners(pid)
    except OSError:
        return ()  # gone, or not ours to look at


def rest_endpoint(pid: int, end: float = math.inf) -> Endpoint | None:
    """Where the JobManager's REST interface listens, as the process itself sees it.

    None while it is starting. Other ports are asked only if the likely ones are not it, not more
    than a few, and until `end` (time.monotonic): a process may listen on any number in silence.
    """
    likely = {_property(pid, "rest.port"), _property(pid, "rest.bind-port"), str(REST_PORT)}
    found = sorted(_listeners(pid), key=lambda listener: str(listener.port) not in likely)
    for listener in found[:MOST_PORTS]:
        left = end - time.monotonic()
        if left <= 0:
            break
        endpoint = Endpoint(listener.host, listener.port, pid)
        with suppress(EngineError):
            answer = endpoint.json("/config", min(PROBE_S, left))
            if isinstance(answer, dict) and "flink-version" in answer:
                return endpoint
        endpoint.close()
    return None


def rest_endpoints(pids: Iterable[int]) -> dict[int, Endpoint]:
    """Where these JobManagers listen, as far as it can be told within `SEARCH_S`.

    All are asked at the same time, and each user's first one before anybody's second: who
    starts many that stay silent delays himself.
    """
    of_user: dict[int | None, list[int]] = {}
    for pid in pids:
        of_user.setdefault(procfs.owner(pid), []).append(pid)
    ranked = sorted((rank, pid) for own in of_user.values() for rank, pid in enumerate(own))
    end = time.monotonic() + SEARCH_S
    with ThreadPoolExecutor(SEARCHERS, "find flink") as pool:
        asked = {pid: pool.submit(rest_endpoint, pid, end) for _, pid in ranked}
    return {pid: found for pid, future in asked.items() if (found := future.result())}


def owner_of(host: str, port: int) -> int | None:
    """The JobManager of this machine, in our network namespace, that listens there."""
    for pid in job_managers():
        with suppress(OSError):
            if same_network(pid) and any(found.port == port for found in listeners(pid)):
                return pid if host in ("127.0.0.1", "localhost", "::1") else None
    return None


def listening_user(host: str, port: int) -> int | None:
    """Who listens at this port of our own machine; None where it is another machine's."""
    if host != "localhost" and not host.startswith("127.") and host != "::1":
        return None
    return listening_uid(port)


def metrics_endpoint(pid: int, known: TaskManager) -> Endpoint | None:
    """Where the TaskManager's Prometheus reporter listens, or None if it has none."""
    ports = [x for x in _listeners(pid) if x.port not in (known.data_port, known.rpc_port)]
    ports.sort(key=lambda listener: listener.port not in METRICS_PORTS)
    for listener in ports[:MOST_PORTS]:
        endpoint = Endpoint(listener.host, listener.port, pid)
        with suppress(EngineError):
            if PROBE_FAMILY.encode() in endpoint.get(f"/metrics?name[]={PROBE_FAMILY}", PROBE_S):
                return endpoint
        endpoint.close()
    return None


def match(
    pids: Iterable[int], known: Sequence[TaskManager]
) -> tuple[dict[int, TaskManager], list[str]]:
    """Local TaskManager processes -> what the JobManager calls them, and what could not be told.

    A process is recognised by the ports it listens on. Two containers may use the same ones:
    then its name on the command line or its network address decides, or nothing.
    """
    candidates: dict[str, list[int]] = {}
    by_id = {one.id: one for one in known}
    for pid in pids:
        ports = {listener.port for listener in _listeners(pid)}
        for one in known:
            if one.data_port in ports or one.rpc_port in ports:
                candidates.setdefault(one.id, []).append(pid)
    found = {}
    notes = []
    for name, owners in candidates.items():
        if len(owners) > 1:
            named = [pid for pid in owners if _property(pid, "taskmanager.resource-id") == name]
            owners = named or [pid for pid in owners if _has_address(pid, by_id[name].rpc_host)]
        if len(owners) == 1:
            found[owners[0]] = by_id[name]
        else:
            notes.append(f"several processes of this machine may be TaskManager {name}")
    return found, notes


def _has_address(pid: int, address: str) -> bool:
    """True if the address is one of the process's network namespace."""
    with suppress(OSError):
        return f"|-- {address}\n" in Path(f"/proc/{pid}/net/fib_trie").read_text()
    return False


@dataclass(eq=False)
class Process(JavaProcess):
    """A TaskManager of this machine and what is known of its threads."""

    known: TaskManager = field(kw_only=True)
