"""Flink's processes on this machine: which they are, where they listen, what their threads do."""

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from sched_ctl.drivers.flink.plan import TaskManager
from sched_ctl.drivers.flink.workers import Worker, workers
from sched_ctl.drivers.jvm import JavaProcess
from sched_ctl.drivers.sources import search
from sched_ctl.drivers.sources.http import PAGE_LIMIT, PROBE_LIMIT, Endpoint
from sched_ctl.kernel import procfs
from sched_ctl.kernel.netns import same_network

__all__ = [
    "Process",
    "job_managers",
    "match",
    "metrics_endpoint",
    "rest_endpoint",
    "rest_endpoints",
    "task_managers",
]

# Main classes of all the ways to deploy Flink: standalone, YARN, Kubernetes; 1.x and 2.x.
JOB_MANAGER = re.compile(r"org\.apache\.flink\.\S*ClusterEntry[pP]oint")
TASK_MANAGER = re.compile(r"org\.apache\.flink\.\S*(TaskManagerRunner|TaskExecutorRunner)")
REST_PORT = 8081  # Flink's defaults
METRICS_PORTS = range(9249, 9261)
WORKERS_EVERY_S = 5.0  # how often Python processes are looked for where there may be some
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


def rest_endpoint(pid: int, end: float = math.inf) -> Endpoint | None:
    """Where the JobManager's REST interface listens, as the process itself sees it.

    None while it is starting. `end`: time.monotonic().
    """
    likely = {_property(pid, "rest.port"), _property(pid, "rest.bind-port"), str(REST_PORT)}
    found = search.endpoint(pid, lambda port: str(port) in likely, _is_rest, end)
    return found or search.secured(pid, lambda port: str(port) in likely, end)


def _is_rest(endpoint: Endpoint, timeout_s: float) -> bool:
    answer = endpoint.json("/config", timeout_s, limit=PROBE_LIMIT)
    return isinstance(answer, dict) and "flink-version" in answer


def rest_endpoints(pids: Iterable[int]) -> Mapping[int, Endpoint]:
    """Where these JobManagers listen, as far as it can be told in time."""
    return search.endpoints(pids, rest_endpoint)


def metrics_endpoint(pid: int, known: TaskManager) -> Endpoint | None:
    """Where the TaskManager's Prometheus reporter listens, or None if it has none."""
    own = (known.data_port, known.rpc_port)
    return search.endpoint(pid, lambda port: port in METRICS_PORTS, _is_metrics_page, unlike=own)


def _is_metrics_page(endpoint: Endpoint, timeout_s: float) -> bool:
    return PROBE_FAMILY.encode() in endpoint.get(
        f"/metrics?name[]={PROBE_FAMILY}", timeout_s, PAGE_LIMIT
    )


def match(
    pids: Iterable[int], known: Sequence[TaskManager], manager: int | None = None
) -> tuple[dict[int, TaskManager], list[str], dict[str, list[int]]]:
    """Local TaskManager processes -> what the JobManager calls them; what could not be told, in
    words; and which several users' processes may be which id: it is nobody's.

    A process is recognised by the ports it listens on. Another cluster's, in a network namespace of
    its own, may use the same ones, while the one that is listed is dead or elsewhere. So of several
    the one with the right name or address goes first, and who has a single port needs either.

    manager: in whose network namespace the JobManager is; None: in ours. 127.0.0.1 is there.
    """
    ranked: dict[str, dict[int, tuple[bool, bool, int]]] = {one.id: {} for one in known}
    for pid in pids:
        ports = {listener.port for listener in search.listening(pid)}
        called = _property(pid, "taskmanager.resource-id")
        for one in known:
            count = (one.data_port in ports) + (one.rpc_port in ports)
            named = called == one.id
            if not count or (called and not named):
                continue
            there = _is_at(pid, one.rpc_host, manager)
            if count == 2 or named or there:
                ranked[one.id][pid] = named, there, count
    found = {}
    notes = []
    disputed = {}
    for one in known:
        ranks = ranked[one.id]
        if len(_users(ranks)) > 1:
            # Names, and addresses in a network of one's own, are of anybody's choice.
            meets = {pid: _meets(pid, one) for pid in ranks}
            ranks = {pid: rank for pid, rank in ranks.items() if meets[pid] == max(meets.values())}
        first = [pid for pid, rank in ranks.items() if rank == max(ranks.values())]
        users = _users(ranks)
        if len(users) > 1:
            disputed[one.id] = first
            notes.append(
                f"processes of several users ({', '.join(sorted(map(str, users)))}) may be "
                f"TaskManager {one.id}: none of them is taken for it"
            )
        elif len(first) == 1:
            found[first[0]] = one
        elif first:
            notes.append(f"several processes of this machine may be TaskManager {one.id}")
    return found, notes, disputed


def _users(pids: Iterable[int]) -> set[int]:
    return {uid for pid in pids if (uid := procfs.owner(pid)) is not None}


def _meets(pid: int, known: TaskManager) -> int:
    """Whether who connects to the TaskManager's address from our own network meets this process:
    2 for sure, 1 if it listens at all addresses (or at loopback, which looks the same), else 0.

    Processes of two users cannot both listen there. A loopback address is the JobManager's own, and
    nobody has several users to choose from who knows where that is.
    """
    if _is_loopback(known.rpc_host):
        return 0
    with suppress(OSError):
        if same_network(pid) and _is_at(pid, known.rpc_host, None):
            found = search.listening(pid)
            hosts = {listener.host for listener in found if listener.port == known.rpc_port}
            return 2 if known.rpc_host in hosts else int("127.0.0.1" in hosts)
    return 0


def _is_at(pid: int, address: str, manager: int | None) -> bool:
    """True if the address is one of the process's network namespace.

    Loopback is in each: the JobManager means its own.
    """
    with suppress(OSError):
        if _is_loopback(address):
            return same_network(pid, manager)
        return f"|-- {address}\n" in procfs.text(f"/proc/{pid}/net/fib_trie")
    return False


def _is_loopback(address: str) -> bool:
    return address in ("localhost", "::1") or address.startswith("127.")


@dataclass(eq=False)
class Process(JavaProcess):
    """A TaskManager of this machine and what is known of its threads."""

    known: TaskManager = field(kw_only=True)
    workers: tuple[Worker, ...] = ()
    _next_workers: float = 0.0

    def before_all(self, rivals: Iterable[int]) -> bool:
        """Whether it is older than each of these processes that is there."""
        born = [
            found.start_time for pid in rivals if pid != self.pid and (found := procfs.stat(pid))
        ]
        return all(self.start_time < one for one in born)

    def look_for_workers(self) -> bool:
        """Python processes of its operators; whether they are others now."""
        now_s = time.monotonic()
        if now_s < self._next_workers:
            return False
        self._next_workers = now_s + WORKERS_EVERY_S
        found = workers(self.pid) if self.starts_processes else ()
        changed = found != self.workers
        self.workers = found
        return changed
