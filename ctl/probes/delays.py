"""How long operators' threads waited for block I/O and for memory, by taskstats.

At most `AT_ONCE` threads are read a second, in turn, beside the loop. Between two readings of a
thread its counters go on as they did between the last two: their rates are right over windows of
any length, one reading late.
"""

import time
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from sched_ctl.kernel import taskstats
from sched_ctl.kernel.taskstats import Delays
from sched_ctl.model.graph import Array
from sched_ctl.model.topology import Thread, Topology
from sched_ctl.probes.aside import Aside

__all__ = ["AT_ONCE", "EVERY_S", "PROVIDES", "ThreadDelays"]

PROVIDES = frozenset({"io_delay", "memory_delay", "irq_delay"})
EVERY_S = 1.0
AT_ONCE = 64  # threads: 10 to 20 ms of CPU time
AHEAD_S = 60.0  # for so long at most: until its turn comes again, in an engine of 4,000 threads
Read = Callable[[Iterable[int]], Mapping[int, Delays]]
Readings = tuple[float, tuple[Thread, ...], Mapping[int, Delays]]


class _Account:
    """What one thread had lost when it was read last, and at which rates: (3,) s and 1."""

    def __init__(self, time_s: float, lost: Array) -> None:
        self.time_s, self.lost = time_s, lost
        self.rate = np.zeros(3)
        self.said = lost

    def add(self, time_s: float, lost: Array) -> None:
        self.rate = np.clip((lost - self.lost) / (time_s - self.time_s), 0.0, 1.0)
        self.time_s, self.lost = time_s, lost

    def at(self, time_s: float) -> Array:
        # What went on too fast stands still until the counter has caught up: it never falls.
        ahead_s = min(max(0.0, time_s - self.time_s), AHEAD_S)
        self.said = np.maximum(self.said, self.lost + self.rate * ahead_s)
        return self.said


class ThreadDelays:
    """Reads for one engine. read: asks the kernel for some threads; None = taskstats."""

    def __init__(self, read: Read | None = None, every_s: float = EVERY_S) -> None:
        self._aside: Aside[Readings] = Aside("taskstats", every_s)
        self._socket: taskstats.TaskStats | None = None
        self._read = read or self._ask
        self._accounts: dict[Thread, _Account] = {}
        self._counted: set[int] = set()  # processes of which some delay was counted
        self._turn = 0
        self._topology: Topology | None = None
        self._threads: list[Thread] = []
        self._off = read is None and taskstats.accounting() is False

    def read(self, topology: Topology, time_s: float) -> dict[str, Array]:
        """`io_delay`, `memory_delay` and `irq_delay`, (n,) s over the operators; NaN: unknown.

        An operator with several threads has their sum; unknown while one of them was never read,
        and for processes that are older than the accounting.
        """
        found = self._aside.take()
        if self._off:
            return {}
        if found is not None:
            self._take(*found)
        if topology is not self._topology:
            self._topology = topology
            # One may run several operators: it is read once, or no time would pass in between
            threads = dict.fromkeys(t for o in topology.operators for t in o.threads if t.tid)
            self._threads = list(threads)
        if self._threads:
            self._begin(self._threads)
        unknown = np.full(3, np.nan)
        table = np.full((len(topology.operators), 3), np.nan)
        for row, operator in enumerate(topology.operators if self._counted else ()):
            accounts = [
                self._accounts.get(t) if t.pid in self._counted else None for t in operator.threads
            ]
            if accounts:
                table[row] = sum(unknown if a is None else a.at(time_s) for a in accounts)
        return dict(zip(("io_delay", "memory_delay", "irq_delay"), table.T, strict=True))

    def close(self) -> None:
        self._aside.close(self._disconnect)

    def _begin(self, threads: list[Thread]) -> None:
        turn = self._turn % len(threads)
        asked = threads[turn : turn + AT_ONCE]
        asked += threads[: min(turn, AT_ONCE - len(asked))]

        def reading() -> Readings:
            self._turn = turn + len(asked)
            found = self._read(thread.tid for thread in asked)
            return time.monotonic(), tuple(asked), found

        self._aside.begin(reading)
        if len(self._accounts) > 2 * len(threads):  # of topologies gone by
            alive = set(threads)
            self._accounts = {t: a for t, a in self._accounts.items() if t in alive}

    def _take(self, time_s: float, asked: tuple[Thread, ...], found: Mapping[int, Delays]) -> None:
        for thread in asked:
            delays = found.get(thread.tid)
            if delays is None or delays.pid != thread.pid:  # gone, and its id is another's
                self._accounts.pop(thread, None)
                continue
            if delays.counted:
                self._counted.add(thread.pid)
            lost = np.array((delays.io_s, delays.memory_s, delays.irq_s))
            known = self._accounts.get(thread)
            if known is None:
                self._accounts[thread] = _Account(time_s, lost)
            else:
                known.add(time_s, lost)

    # In the probe's own thread, where pyroute2 may run an event loop.

    def _ask(self, tids: Iterable[int]) -> Mapping[int, Delays]:
        if self._socket is None:
            try:
                self._socket = taskstats.TaskStats()
            except taskstats.Unavailable:
                self._off = True  # which no later try would change
                raise
        return self._socket.all_of(tids)

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
