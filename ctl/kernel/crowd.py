"""How crowded the CPUs are: a bound in seconds means little where twenty threads want each CPU.

What waits for somebody else to answer multiplies its patience by `slowness`, so that an engine
that gets no CPU is not taken for one that has hung.
"""

import os
from pathlib import Path

__all__ = ["MOST", "lasting", "slowness"]

LOADAVG = Path("/proc/loadavg")
MOST = 30.0  # a patience has an end, whatever the load


def slowness(path: Path = LOADAVG) -> float:
    """Threads that want a CPU, for each CPU that there is: 1 to `MOST`.

    The larger of now (runnable threads) and of the last minute, proc_loadavg(5): a burst counts at
    once, and a moment of calm in a crowd does not end our patience. 1 where it cannot be read. A
    thread that sleeps in the disk counts in the latter, too: who waits for it is as slow.
    """
    try:
        minute, _, _, now, *_ = path.read_bytes().split()
        wanting = max(float(minute), float(now.partition(b"/")[0]))
    except (OSError, ValueError):
        return 1.0
    return min(MOST, max(1.0, wanting / (os.cpu_count() or 1)))


def lasting(path: Path = LOADAVG) -> float:
    """The same over the last minute alone, whatever is so for a moment, for each CPU that we may
    use; 0 where nobody wants one, or it cannot be read.
    """
    try:
        return float(path.read_bytes().split()[0]) / len(os.sched_getaffinity(0))
    except (OSError, ValueError, IndexError):
        return 0.0
