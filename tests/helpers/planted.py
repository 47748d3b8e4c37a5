"""Causes that are planted in the lab engine, and what takes a CPU away from it."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import labengine
from labs import SOON_S

from sched_ctl.drivers import Target
from sched_ctl.kernel import cgroup

__all__ = ["causes", "hogs", "limited"]

CAUSES = Path(__file__).parents[1] / "host" / "causes.graph"
# CPU seconds a second that the sources of each query ask for, as the file has them
DEMAND = 400 * 4.3e-3 + 150 * 0.3e-3 + 100 * 1.2e-3


@contextlib.contextmanager
def causes(
    *, nice: int, cpus: Collection[int] | None = None, scale: float = 1.0
) -> Iterator[Target]:
    """The engine. Before everybody else (nice -20), what it does is its own doing.

    cpus: on these alone. scale: so many times the rates of the file.
    """

    def prepare() -> None:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
        with contextlib.suppress(OSError):  # where sessions share the CPU first, that of ours too
            Path("/proc/self/autogroup").write_text(str(nice))
        if cpus is not None:
            os.sched_setaffinity(0, cpus)

    load = ("--cpus", 1, "--utilisation", scale * DEMAND, "--bounded", 16)
    with labengine.started(CAUSES, *load, start_new_session=True, preexec_fn=prepare) as target:
        yield target


@contextlib.contextmanager
def hogs(count: int, cpu: int) -> Iterator[None]:
    """So many processes that want a CPU for themselves, for a minute at most."""
    program = f"import os, time; os.sched_setaffinity(0, {{{cpu}}}); end = time.monotonic() + 60"
    program += "\nwhile time.monotonic() < end: pass"
    running = [subprocess.Popen([sys.executable, "-S", "-c", program]) for _ in range(count)]
    try:
        yield
    finally:
        for hog in running:
            hog.kill()
            hog.wait()


@contextlib.contextmanager
def limited(pid: int, cpus: float) -> Iterator[None]:
    """The process in a cgroup that may use so many CPUs, and comes before all others in that; moved
    out again at the end.
    """
    tree = next(found for found in cgroup.hierarchies() if cgroup.has_cpu(found))
    outside = next(iter(cgroup.with_cpu(pid)), tree.mount)
    folder = tree.mount / f"limited-{pid}"
    folder.mkdir()
    try:
        quota = f"{cpus * 1e5:.0f}"
        if tree.version == 1:
            cgroup.write(folder / "cpu.cfs_quota_us", quota)
        else:
            cgroup.write(folder / "cpu.max", f"{quota} 100000")
        cgroup.write(folder / tree.weight, str(tree.weights[1]))
        cgroup.write(folder / "cgroup.procs", str(pid))
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            cgroup.write(outside / "cgroup.procs", str(pid))
        tree.remove(folder, outside, time.monotonic() + SOON_S)
