"""Flink's processes on this machine: which they are, where they listen, what their threads do."""

import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sched_ctl.drivers import EngineError, threadnames
from sched_ctl.drivers.flink_plan import TaskManager
from sched_ctl.drivers.sources.http import Endpoint
from sched_ctl.drivers.threadnames import ThreadName
from sched_ctl.kernel import hotspot, procfs
from sched_ctl.kernel.netns import Listener, listeners, same_network
from sched_ctl.model import Thread

__all__ = [
    "Process",
    "job_managers",
    "match",
    "metrics_endpoint",
    "owner_of",
    "rest_endpoint",
    "task_managers",
]

# Main classes of all the ways to deploy Flink: standalone, YARN, Kubernetes; 1.x and 2.x.
JOB_MANAGER = re.compile(r"org\.apache\.flink\.\S*ClusterEntry[pP]oint")
TASK_MANAGER = re.compile(r"org\.apache\.flink\.\S*(TaskManagerRunner|TaskExecutorRunner)")
REST_PORT = 8081  # Flink's defaults
METRICS_PORTS = range(9249, 9261)
PROBE_S = 0.5  # how long a port may take to say what it is
PROBE_FAMILY = "flink_taskmanager_Status_JVM_CPU_Load"
# A dump stops the virtual machine for milliseconds, so a process that keeps starting threads of
# unknown purpose gets one a second at most.
DUMP_EVERY_S = 1.0
RETRY_S = 10.0  # after a dump that failed


def job_managers() -> list[int]:
    return _processes(JOB_MANAGER)


def task_managers() -> list[int]:
    return _processes(TASK_MANAGER)


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


def rest_endpoint(pid: int) -> Endpoint | None:
    """Where the JobManager's REST interface listens, as the process itself sees it.

    None while it is starting. Other ports are asked only if the likely ones are not it.
    """
    likely = {_property(pid, "rest.port"), _property(pid, "rest.bind-port"), str(REST_PORT)}
    found = sorted(_listeners(pid), key=lambda listener: str(listener.port) not in likely)
    for listener in found:
        endpoint = Endpoint(listener.host, listener.port, pid)
        with suppress(EngineError):
            answer = endpoint.json("/config", PROBE_S)
            if isinstance(answer, dict) and "flink-version" in answer:
                return endpoint
        endpoint.close()
    return None


def owner_of(host: str, port: int) -> int | None:
    """The JobManager of this machine, in our network namespace, that listens there."""
    for pid in job_managers():
        with suppress(OSError):
            if same_network(pid) and any(found.port == port for found in listeners(pid)):
                return pid if host in ("127.0.0.1", "localhost", "::1") else None
    return None


def metrics_endpoint(pid: int, known: TaskManager) -> Endpoint | None:
    """Where the TaskManager's Prometheus reporter listens, or None if it has none."""
    ports = [x for x in _listeners(pid) if x.port not in (known.data_port, known.rpc_port)]
    for listener in sorted(ports, key=lambda listener: listener.port not in METRICS_PORTS):
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
class Process:
    """A TaskManager of this machine and what is known of its threads."""

    pid: int
    start_time: int
    known: TaskManager
    names: dict[Thread, ThreadName] = field(default_factory=dict)
    trouble: str = ""
    _seen: dict[int, str] = field(default_factory=dict)  # tid -> comm at the last look
    _next_dump: float = 0.0
    _due: bool = True

    @property
    def alive(self) -> bool:
        now = procfs.stat(self.pid)
        return now is not None and now.start_time == self.start_time and now.state != "Z"

    def changed(self, *, wanted: bool) -> bool:
        """Look whether threads came or went that may be operators'; some 0.1 ms.

        wanted: some operator's thread is missing, so look again whatever came.
        """
        tids = set(procfs.tids(self.pid))
        went = self._seen.keys() - tids
        lost = went and any(thread.tid in went for thread in self.names)
        for tid in went:
            del self._seen[tid]
        for tid in tids - self._seen.keys():
            if (thread := procfs.thread(self.pid, tid)) is not None:
                self._seen[tid] = thread.name
                # A thread just born still has its parent's name: that counts as unknown.
                if not threadnames.certainly_helper("flink", thread.name):
                    self._due = True
        if wanted or lost:
            self._due = True
        return self._due and time.monotonic() >= self._next_dump

    def look(self, timeout_s: float) -> None:
        """Ask the virtual machine for the names of its threads. Failures end up in `trouble`."""
        try:
            threads = hotspot.threads(self.pid, timeout_s)
        except hotspot.AttachError as error:
            self.trouble = error.message + (f" ({error.hint})" if error.hint else "")
            self._next_dump = time.monotonic() + RETRY_S
            return
        self.trouble = ""
        self._due = False
        self._next_dump = time.monotonic() + DUMP_EVERY_S
        before = {thread.tid: thread for thread in self.names}
        names = {}
        for java in threads:
            said = threadnames.read("flink", java.name)
            start = procfs.thread(self.pid, java.tid) if said else None
            if said is None or start is None:
                continue
            thread = Thread(self.pid, java.tid, start.start_time, java.name)
            # The same object as before, where it is the same thread.
            names[before[java.tid] if before.get(java.tid) == thread else thread] = said
        self.names = names
