"""At what clock the threads that are always at work run, and whether something holds it down.

A governor, a limit or heat may keep a CPU far below what it can do; then a thread that has it all
the time is slow, and no priority helps. Asked are the CPUs that such threads ran on last. A clock
is low if it is below three quarters of what the CPU does without a turbo (`base_frequency`,
`acpi_cppc/nominal_freq`); where nobody tells that, below six tenths of its fastest one, which few
reach with all cores at work. Virtual machines have no such files. A CPU without ticks may have no
fresh sample of its clock; the kernel then tells its lowest one, so such CPUs are not asked.

Sources: Documentation/admin-guide/pm/cpufreq.rst (scaling_cur_freq, scaling_max_freq,
cpuinfo_max_freq: kHz), pm/intel_pstate.rst (base_frequency: kHz), acpi/cppc_sysfs.rst
(nominal_freq: MHz).
"""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sched_ctl.kernel import procfs
from sched_ctl.model.topology import Thread

__all__ = ["Clock", "Clocks"]

CPUS = Path("/sys/devices/system/cpu")
EVERY_S = 1.0
LATE_S = 12.0  # looks are kept for so long, times the looks that it takes to see every thread
LEAST = 2  # looks, all of which have to agree
MOST = 8  # threads at a look, of which each takes three small reads
LOW, LOW_OF_FASTEST = 0.75, 0.6


@dataclass(frozen=True, slots=True)
class Clock:
    """What holds a CPU's clock down. ghz: at the last look. of_ghz: what it can do."""

    ghz: float
    of_ghz: float
    by: str


class Clocks:
    """Looks at the CPUs of some threads of one engine, while somebody wants to know."""

    def __init__(self, cpus: Path = CPUS) -> None:
        self._cpus = cpus
        self._seen: deque[tuple[float, dict[Thread, Clock | None]]] = deque()
        self._next = 0

    def look(self, threads: Iterable[Thread], now_s: float | None = None) -> None:
        """At a few of these, in turn, unless that was done just now."""
        now_s = time.monotonic() if now_s is None else now_s
        if self._seen and now_s - self._seen[-1][0] < EVERY_S:
            return
        threads = list(threads)
        late_s = LATE_S * max(1, -(-len(threads) // MOST))
        while self._seen and now_s - self._seen[0][0] > late_s:
            self._seen.popleft()
        first = self._next % max(1, len(threads))
        self._next = first + MOST
        tickless = _listed(self._cpus / "nohz_full")
        found = {}
        for thread in [*threads[first:], *threads[:first]][:MOST]:
            cpu = procfs.last_cpu(thread.pid, thread.tid)
            if cpu is not None and cpu not in tickless:
                found[thread] = _held_down(self._cpus / f"cpu{cpu}")
        self._seen.append((now_s, found))

    def of(self, threads: Sequence[Thread]) -> Clock | None:
        """The slowest of these; None if none is held down, or too few looks saw it."""
        held = []
        for thread in threads:
            seen = [found[thread] for _, found in self._seen if thread in found]
            if len(seen) >= LEAST and all(seen):
                held.append(seen[-1])
        return min((clock for clock in held if clock), key=_speed, default=None)


def _speed(clock: Clock) -> float:
    return clock.ghz / clock.of_ghz


def _held_down(cpu: Path) -> Clock | None:
    """None also where the kernel does not tell."""
    now, fastest = (_number(cpu / "cpufreq" / f) for f in ("scaling_cur_freq", "cpuinfo_max_freq"))
    if not now or now >= LOW * fastest:
        return None
    usual = _number(cpu / "cpufreq" / "base_frequency")
    usual = usual or 1000 * _number(cpu / "acpi_cppc" / "nominal_freq")
    if usual and now >= LOW * usual:
        return None
    most = _number(cpu / "cpufreq" / "scaling_max_freq")
    if 0 < most < LOW * fastest:
        return Clock(now / 1e6, fastest / 1e6, "scaling_max_freq: a setting, or heat")
    if not usual and now >= LOW_OF_FASTEST * fastest:
        return None
    governor = _text(cpu / "cpufreq" / "scaling_governor") or "unknown"
    if governor == "performance" and now <= _number(cpu / "cpufreq" / "scaling_min_freq"):
        return None  # it asks for the most: nobody measured this
    return Clock(now / 1e6, fastest / 1e6, f"governor {governor}, power or heat")


def _number(path: Path) -> int:
    """0 where there is none."""
    text = _text(path)
    return int(text) if text.isdecimal() else 0


def _listed(path: Path) -> frozenset[int]:
    """CPUs of a list as the kernel writes it (`2-5,8`); none where there is no such list."""
    try:
        spans = [part.partition("-") for part in procfs.text(path, 4096).strip().split(",")]
        return frozenset(n for a, _, b in spans for n in range(int(a), int(b or a) + 1))
    except (OSError, ValueError):  # also an empty one, or "(null)"
        return frozenset()


def _text(path: Path) -> str:
    try:
        return procfs.text(path, 20).strip()
    except OSError:  # a machine without it, or a CPU that went off line
        return ""
