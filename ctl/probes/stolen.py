"""How much of this machine's CPUs its hypervisor had, where it is a virtual one.

The kernel takes that time out of a thread's run time (CONFIG_PARAVIRT_TIME_ACCOUNTING), and counts
it as no wait either: it seems to sleep meanwhile. proc_stat(5) tells it of all CPUs together.
"""

from pathlib import Path

import numpy as np

from sched_ctl.kernel.procfs import TICKS_PER_S
from sched_ctl.model.graph import Array
from sched_ctl.model.topology import Topology

__all__ = ["PROVIDES", "StolenTime"]

PROVIDES = frozenset({"cpu_steal", "cpu_busy"})
EVERY_S = 0.5
NEVER_YET_S = 60.0  # a look where nothing was ever stolen: the page has a line for each interrupt


class StolenTime:
    """Reads for one engine; 20 us a look on a machine with two CPUs."""

    def __init__(self, path: Path = Path("/proc/stat")) -> None:
        self._path = path
        self._next_s = float("-inf")
        self._seconds: tuple[float, float] | None = None

    def read(self, topology: Topology, time_s: float) -> dict[str, Array]:
        """`cpu_steal` and `cpu_busy`, (n,) s, the same for all operators; none if none was stolen.

        time_s: CLOCK_MONOTONIC of the snapshot that they are to join.
        """
        if time_s >= self._next_s:
            self._seconds = _seconds(self._path)
            self._next_s = time_s + (NEVER_YET_S if self._seconds is None else EVERY_S)
        if self._seconds is None:
            return {}
        steal_s, busy_s = self._seconds
        n = len(topology.operators)
        return {"cpu_steal": np.full(n, steal_s), "cpu_busy": np.full(n, busy_s)}


def _seconds(path: Path) -> tuple[float, float] | None:
    """Stolen, and used by whatever ran, since boot; None if nothing was, or nobody tells."""
    try:
        with path.open("rb") as file:
            words = file.readline().split()
        user, nice, system, _, _, irq, softirq, steal = map(int, words[1:9])
    except (OSError, ValueError):
        return None
    if words[0] != b"cpu" or steal <= 0:
        return None
    return steal / TICKS_PER_S, (user + nice + system + irq + softirq) / TICKS_PER_S
