"""Any multi-threaded program, of which nothing is known but what the kernel sees of its threads.

Named as `--engine kernel:PID` or `kernel:NAME`, never found by itself: whoever names a program
says that its threads may be ordered. Each thread is an operator, and threads of one name but for a
number are replicas of one logical operator. What a thread takes in is not tuples but turns on a
CPU, so cost is CPU time a turn. Who wakes whom nobody tells without tracing, so there are no edges,
no selectivity and no queues: policies that need them refuse, and say what is missing.
"""

import os
import re
import time
from collections import Counter
from collections.abc import Iterable

from sched_ctl.drivers import DriverKind, Target
from sched_ctl.drivers.threads import thread_of
from sched_ctl.errors import EngineError
from sched_ctl.kernel import procfs
from sched_ctl.model.topology import LogicalOperator, PhysicalOperator, Snapshot, Thread, Topology
from sched_ctl.probes.threads import ThreadTimes

__all__ = ["KernelDriver", "connect", "kind", "operators_of"]

RENAMED_S = 5.0  # so often a thread is looked at again, which may have got its name late
MOST_THREADS = 10_000
_known: dict[int, int] = {}  # process id that was named -> start time of the process that had it
NUMBER = re.compile(r"\d+")


def operators_of(query: str, threads: Iterable[Thread]) -> tuple[PhysicalOperator, ...]:
    """One operator a thread. Threads whose names differ in numbers alone are replicas.

    A name belongs to whoever sets it: of several threads with one name each keeps its id in it.
    """
    threads = sorted(threads, key=lambda thread: (thread.start_time, thread.tid))
    patterns = [NUMBER.sub("#", thread.name) or "#" for thread in threads]
    times = Counter(thread.name for thread in threads)
    total, replica = Counter(patterns), Counter[str]()
    operators = []
    taken = {""}
    for thread, pattern in zip(threads, patterns, strict=True):
        name = f"{thread.name}.{thread.tid}" if times[thread.name] > 1 else thread.name
        while name in taken:
            name += f".{thread.tid}"
        taken.add(name)
        operators.append(
            PhysicalOperator(
                query,
                name,
                logical=(pattern,),
                replica=replica[pattern],
                replicas=total[pattern],
                threads=(thread,),
            )
        )
        replica[pattern] += 1
    return tuple(operators)


class KernelDriver:
    """One program; see `sched_ctl.drivers.Driver`."""

    provides = frozenset({"tuples_in", "thread_cpu_time", "run_delay"})

    def __init__(self, target: Target, pid: int) -> None:
        found = procfs.stat(pid)
        if found is None:
            raise EngineError(f"there is no process {pid}")
        self.target = Target(target.kind, target.address, pid)
        self.derived = {"tuples_in": "turns of its thread on a CPU, as schedstat counts them"}
        self.start_time = found.start_time
        self._threads: dict[int, Thread] = {}
        self._named_s = time.monotonic()
        self._topology = self._made()
        self._times = ThreadTimes()

    def poll(self, timeout_s: float) -> Snapshot:
        """Read it once. Raises EngineError if it has ended."""
        pid = self.target.pid
        assert pid is not None
        found = procfs.stat(pid)
        if found is None or found.start_time != self.start_time or found.state in "ZX":
            raise EngineError("it has ended")
        if self._changed(pid):
            self._topology = self._made()
        columns = self._times.read(self._topology)
        columns["tuples_in"] = self._times.turns
        return Snapshot(self._topology, time.monotonic(), columns)

    def close(self) -> None:
        self._times.close()

    def _changed(self, pid: int) -> bool:
        """Whether threads came, went, or were given another name."""
        now_s = time.monotonic()
        tids = set(procfs.tids(pid))
        if tids != self._threads.keys():
            return True
        if now_s - self._named_s < RENAMED_S:
            return False
        self._named_s = now_s
        return any(
            (now := thread_of(pid, tid)) != thread or now is None or now.name != thread.name
            for tid, thread in self._threads.items()
        )

    def _made(self) -> Topology:
        pid = self.target.pid
        assert pid is not None
        tids = procfs.tids(pid)
        found = [thread for tid in tids[:MOST_THREADS] if (thread := thread_of(pid, tid))]
        self._threads = {thread.tid: thread for thread in found}
        query = next((thread.name for thread in found if thread.tid == pid), self.target.address)
        operators = operators_of(query, found)
        patterns = dict.fromkeys(name for operator in operators for name in operator.logical)
        notes = ["its threads are its operators; nothing is known of streams between them"]
        if len(tids) > MOST_THREADS:
            notes.append(f"{len(tids) - MOST_THREADS} threads beyond {MOST_THREADS} are left alone")
        return Topology(
            engine=self.target.engine,
            operators=operators,
            edges=(),
            logical=tuple(LogicalOperator(query, name) for name in patterns),
            logical_edges=(),
            notes=tuple(notes),
        )


def find() -> list[Target]:
    """None: a program has to be named."""
    return []


def connect(target: Target) -> KernelDriver:
    """`target.address` is a process id, or the name of exactly one process."""
    pid = int(target.address) if target.address.isdecimal() else _named(target)
    if pid <= 1 or pid == os.getpid() or not procfs.command_line(pid):
        raise EngineError("it is no program that could be scheduled")
    driver = KernelDriver(target, pid)
    # Connected anew after it ended, the id may be another program's, which nobody named.
    if (
        target.address.isdecimal()
        and _known.setdefault(pid, driver.start_time) != driver.start_time
    ):
        raise EngineError(f"{target.engine} has ended, and another process has its id")
    return driver


def _named(target: Target) -> int:
    name = target.address[:15]  # TASK_COMM_LEN
    pids = [
        pid
        for pid in procfs.pids()
        if (found := procfs.stat(pid)) is not None and found.name == name
    ]
    if len(pids) != 1:
        several = f": {', '.join(map(str, pids[:8]))}" if pids else ""
        raise EngineError(
            f"{len(pids) or 'no'} processes have this name{several}",
            "name one by its id: --engine kernel:PID",
        )
    return pids[0]


kind = DriverKind("kernel", find, connect)
