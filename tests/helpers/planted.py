"""Causes that are planted in the lab engine, and what takes a CPU away from it."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import labengine

from sched_ctl.drivers import Target

__all__ = ["causes", "hogs"]

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
