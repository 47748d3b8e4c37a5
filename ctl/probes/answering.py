"""What an engine's answers cost it: CPU time of its threads that serve metrics.

From schedstat, as in `threads`. Read before and after a question, so that what else asks the engine
for its metrics does not count.
"""

import os

from sched_ctl.model.topology import Thread, Topology
from sched_ctl.probes.threads import open_times, read_times

__all__ = ["AnsweringTime"]

ROLE = "metrics"  # in drivers/threadnames.py


class AnsweringTime:
    """Of one engine. For one thread at a time."""

    def __init__(self) -> None:
        self._topology: Topology | None = None
        self._fds: dict[Thread, int] = {}

    def read(self, topology: Topology | None) -> float:
        """CPU time so far, s, of the threads that the topology has; 0 where nothing is known."""
        if topology is None:
            return 0.0
        if topology is not self._topology:
            self._follow(topology)
        times = (int(read_times(fd).split()[0]) for fd in self._fds.values())
        return sum(ns for ns in times if ns > 0) * 1e-9

    def close(self) -> None:
        for fd in self._fds.values():
            if fd >= 0:
                os.close(fd)
        self._fds, self._topology = {}, None

    def _follow(self, topology: Topology) -> None:
        serving = [helper.thread for helper in topology.helpers if helper.role == ROLE]
        self.close()
        self._fds = {thread: open_times(thread) for thread in serving}
        self._topology = topology
