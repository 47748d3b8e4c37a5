"""What waits before an ingress in the sockets that its process reads from.

No engine tells that: its sources have taken in what they count. A connection inside the engine,
between two of its processes or to itself, is none of its sources'. A process with one ingress reads
for that; which of several a socket belongs to nobody tells, so then nothing is known of any.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from sched_ctl.kernel import sockdiag
from sched_ctl.model.graph import Array
from sched_ctl.model.topology import Topology
from sched_ctl.probes.aside import Aside

__all__ = ["EVERY_S", "PROVIDES", "Backlogs", "waiting"]

PROVIDES = frozenset({"backlog"})
EVERY_S = 1.0
PART = 0.02  # of a CPU: a machine has many connections, of which an engine has few
Waiting = Mapping[int, int]  # process -> bytes


def waiting(pids: Collection[int]) -> dict[int, int]:
    """Bytes that wait for each process in connections from outside of all of them.

    A process without such a connection is left out, and one that is gone. About 1 ms, 5 us for each
    descriptor of the processes, and 1 us for each connection of their network namespaces; in a
    thread without an event loop. Raises sockdiag.Crowded.
    """
    held: dict[int, set[int]] = {}
    networks: defaultdict[int, set[int]] = defaultdict(set)
    for pid in pids:
        with suppress(OSError):
            held[pid], network = sockdiag.inodes(pid), Path(f"/proc/{pid}/ns/net").stat().st_ino
            networks[network].add(pid)
    found: dict[int, sockdiag.Connection] = {}
    for inside in networks.values():
        own = set().union(*(held[pid] for pid in inside))
        for pid in inside:  # the first that is still there tells of all
            with suppress(OSError):
                found |= {one.inode: one for one in sockdiag.connections(pid, own)}
                break
    here = {one.here for one in found.values()}
    return {
        pid: sum(one.waiting for one in outside)
        for pid, sockets in held.items()
        if (outside := [found[i] for i in sockets if i in found and found[i].there not in here])
    }


class Backlogs:
    """Reads for one engine, now and then."""

    def __init__(
        self,
        read: Callable[[Collection[int]], Waiting] = waiting,
        every_s: float = EVERY_S,
    ) -> None:
        self._aside: Aside[tuple[float, Waiting]] = Aside("backlog", every_s, PART)
        self._read = read
        self._known: Waiting = {}
        self._known_s = float("-inf")
        self._topology: Topology | None = None
        self._rows: dict[int, int] = {}

    def read(self, topology: Topology, time_s: float) -> dict[str, Array]:
        """`backlog`, (n,) bytes over the operators: of those ingresses for which it is known."""
        found = self._aside.take()
        if found is not None:
            self._known_s, self._known = found
        if topology is not self._topology:
            self._topology, self._rows = topology, _only_ingress(topology)
        if pids := topology.pids:
            self._aside.begin(lambda: (time.monotonic(), self._read(pids)))
        column = np.full(len(topology.operators), np.nan)
        if time_s - self._known_s <= max(3 * EVERY_S, 2 * self._aside.pause_s):
            for pid, row in self._rows.items():
                column[row] = self._known.get(pid, np.nan)
        return {"backlog": column}

    def close(self) -> None:
        self._aside.close()


def _only_ingress(topology: Topology) -> dict[int, int]:
    """Process -> the row of its ingress, if it has exactly one."""
    fed = set(topology.graph.target.tolist())
    rows: dict[int, int] = {}
    several = set()
    for row, operator in enumerate(topology.operators):
        if row not in fed:
            for pid in {thread.pid for thread in operator.threads}:
                several |= {pid} if pid in rows else set()
                rows[pid] = row
    return {pid: row for pid, row in rows.items() if pid not in several}
