"""Spark's processes on this machine: drivers, executors, and the Python workers of these."""

import itertools
import math
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sched_ctl.drivers.jvm import JavaProcess
from sched_ctl.drivers.sources import search
from sched_ctl.drivers.sources.http import PAGE_LIMIT, Endpoint
from sched_ctl.drivers.threads import threads_of
from sched_ctl.kernel import hotspot, procfs
from sched_ctl.model.topology import Thread

__all__ = ["Process", "drivers", "executors", "interface", "interfaces"]

# Main classes of all the ways to start a driver. A program that brings Spark along and starts it
# by itself has any other: it has to be named.
DRIVER = re.compile(
    r"org\.apache\.spark\.deploy\.(SparkSubmit|worker\.DriverWrapper|yarn\.ApplicationMaster)"
)
WITHOUT = "spark.ui.enabled=false"
EXECUTOR = re.compile(r"org\.apache\.spark\.\S*ExecutorBackend")  # standalone, YARN, Kubernetes
PORTS = range(4040, 4057)  # Spark tries these one after the other
PYTHON = ("pyspark.daemon", "pyspark.worker", "pyspark/daemon.py", "pyspark/worker.py")
DAEMON_EVERY_S = 5.0  # how often a process's Python daemon is looked for
PROBE_S = 2.0  # its first answer takes long: Spark loads what makes it only then
MOST_WORKERS = 1000  # of one process


def drivers() -> list[int]:
    """Those that have a web interface, as far as their command line tells.

    Each port of one without would be asked for it, and its RPC service logs what it does not
    understand as an error, with a stack trace. Batch jobs are often run without, our own too.
    """
    return [pid for pid in procfs.pids() if _is_driver(procfs.command_line(pid))]


def _is_driver(words: list[str]) -> bool:
    return any(map(DRIVER.fullmatch, words)) and WITHOUT not in words


def executors(application: str, uid: int | None) -> Mapping[int, str]:
    """Executors of the application that this user runs here (None: any user), by process.

    The id of an application is no secret, and any process may have these words in its command
    line: an application's word counts only for processes of its own user.
    """
    found = {}
    for pid in procfs.pids():
        words = procfs.command_line(pid)
        if not any(map(EXECUTOR.fullmatch, words)) or _after("--app-id", words) != application:
            continue
        if (uid is None or procfs.owner(pid) == uid) and hotspot.is_hotspot(pid):
            found[pid] = _after("--executor-id", words) or str(pid)
    return found


def _after(option: str, words: list[str]) -> str | None:
    for word, following in itertools.pairwise(words):
        if word == option:
            return following
    return None


def interface(pid: int, end: float = math.inf) -> Endpoint | None:
    """Where the driver's web interface listens, as the process itself sees it, if it has one."""
    return search.endpoint(pid, lambda port: port in PORTS, _is_interface, end, probe_s=PROBE_S)


def _is_interface(endpoint: Endpoint, timeout_s: float) -> bool:
    # Not /api: its first answer takes seconds, for Spark loads that part only then.
    return b".driver." in endpoint.get("/metrics/json/", timeout_s, PAGE_LIMIT)


def interfaces(pids: Iterable[int]) -> Mapping[int, Endpoint]:
    """Where these drivers' web interfaces listen, as far as it can be told in time."""
    return search.endpoints(pids, interface)


@dataclass(eq=False)
class Process(JavaProcess):
    """A driver or an executor. executor: its id; "" for a driver whose executors are elsewhere."""

    executor: str = field(kw_only=True)
    workers: tuple[Thread, ...] = ()  # threads of its Python workers
    _daemons: tuple[int, ...] = ()
    _next_daemon: float = 0.0

    def look_for_workers(self) -> bool:
        """Python processes that run its tasks' Python code; whether they are others now."""
        now_s = time.monotonic()
        if now_s >= self._next_daemon:
            self._next_daemon = now_s + DAEMON_EVERY_S
            self._daemons = tuple(
                pid
                for pid in procfs.descendants(self.pid)
                if any(word.endswith(PYTHON) for word in procfs.command_line(pid))
                and _parent(pid) == self.pid
            )
        # The daemon's first thread starts them: it has no other that does.
        pids = [
            pid for daemon in self._daemons for pid in (daemon, *procfs.children(daemon, daemon))
        ]
        found = tuple(thread for pid in pids[:MOST_WORKERS] for thread in threads_of(pid))
        changed = found != self.workers
        self.workers = found
        return changed


def _parent(pid: int) -> int | None:
    found = procfs.stat(pid)
    return None if found is None else found.ppid
