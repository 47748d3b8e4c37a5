"""How hard the machine and the engines' cgroups were pressed since we last looked.

The kernel's averages lag by their windows; the difference of two totals is exact. Files of the
machine are kept open: a reading costs two microseconds.
"""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sched_ctl.kernel import psi

__all__ = ["Gauge", "Level", "levels"]


@dataclass(frozen=True, slots=True)
class Level:
    """Pressure on one resource. NaN: unknown, such as `full` of the CPU on older kernels.

    some_share, full_share: of the time since the reading before, exact; the first reading of a
    gauge has the kernel's average of 10 s. some_total_s: since boot.
    """

    resource: str
    some_share: float
    full_share: float
    some_total_s: float
    full_total_s: float


class Gauge:
    """Readings of one resource, of the machine or of a cgroup, one after the other."""

    def __init__(self, resource: str, group: Path | None = None) -> None:
        self.resource = resource
        self._fd = _open(psi.path_of(resource, group))
        self._then: tuple[float, psi.Pressure] | None = None

    def read(self) -> Level | None:
        """None where the kernel tells none, or the cgroup is gone."""
        try:
            text = os.pread(self._fd, psi.FILE_BYTES, 0) if self._fd >= 0 else b""
            now = psi.parse(text.decode("ascii", errors="replace"))
        except (OSError, ValueError):
            return None
        now_s = time.monotonic()
        then, self._then = self._then, (now_s, now)
        nan = float("nan")

        def share(stall: psi.Stall | None, before: psi.Stall | None) -> float:
            if stall is None:
                return nan
            if then is None or before is None or now_s <= then[0]:
                return stall.avg10_share
            return min(1.0, max(0.0, (stall.total_s - before.total_s) / (now_s - then[0])))

        some_before = None if then is None else then[1].some
        full_before = None if then is None else then[1].full
        return Level(
            self.resource,
            share(now.some, some_before),
            share(now.full, full_before),
            now.some.total_s,
            nan if now.full is None else now.full.total_s,
        )

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def levels(gauges: Iterable[Gauge]) -> dict[str, Level]:
    """Resource -> its level now; without those that cannot be read."""
    found = {gauge.resource: gauge.read() for gauge in gauges}
    return {resource: level for resource, level in found.items() if level is not None}


def _open(path: Path) -> int:
    """A descriptor, or -1 where there is no such file or it may not be read."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return -1
