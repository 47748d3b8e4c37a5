"""What helper threads that do an operator's work in another process used of the CPU: its cost, too.

A process in Python has dozens of threads, which come and go. So what counts is what each used from
one look to the next, added up by operator: the sum only grows.
"""

from collections.abc import Mapping

from sched_ctl.kernel import procfs
from sched_ctl.model.graph import Array
from sched_ctl.model.topology import PYTHON, PhysicalOperator, Thread, Topology

__all__ = ["WorkerTimes"]

COLUMNS = ("thread_cpu_time", "run_delay")
Times = tuple[float, float]


class WorkerTimes:
    """For one engine: 15 us a thread, nothing where there are none."""

    def __init__(self) -> None:
        self._topology: Topology | None = None
        self._threads: list[tuple[Thread, int]] = []
        self._last: dict[Thread, Times] = {}
        self._used: dict[PhysicalOperator, Times] = {}

    def added(self, topology: Topology, columns: Mapping[str, Array]) -> dict[str, Array]:
        """The columns of `threads`, (n,) s, with what workers used since they are known."""
        if topology is not self._topology:
            self._follow(topology)
        for thread, row in self._threads:
            now = procfs.times(thread.pid, thread.tid)
            before = self._last.get(thread)
            if now is None:
                continue
            self._last[thread] = now
            if before is not None:
                operator = topology.operators[row]
                cpu, delay = self._used.get(operator, (0.0, 0.0))
                self._used[operator] = cpu + now[0] - before[0], delay + now[1] - before[1]
        made = dict(columns)
        if self._used:
            used = [self._used.get(operator, (0.0, 0.0)) for operator in topology.operators]
            for name, more in zip(COLUMNS, zip(*used, strict=True), strict=True):
                made[name] = made[name] + more
        return made

    def _follow(self, topology: Topology) -> None:
        self._topology = topology
        self._threads = [
            (helper.thread, helper.serves)
            for helper in topology.helpers
            if helper.role == PYTHON and helper.serves is not None
        ]
        known = {thread for thread, _ in self._threads}
        self._last = {thread: last for thread, last in self._last.items() if thread in known}
        if self._used:
            here = set(topology.operators)
            self._used = {one: used for one, used in self._used.items() if one in here}
