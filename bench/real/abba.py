"""Ways of scheduling compared on a running engine, in phases that take turns.

A cycle is `OS a b ... OS ... b a`: each phase of ours has one of the system's own before and one
after it, and is compared with the mean of these two, a geometric one: below the arithmetic one
chance alone would look like a gain. A slow drift of the machine so hits both alike. What differs
between engines is how a phase is measured: that is handed in.
"""

import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench import results
from bench.results import Figure, Result, Row

__all__ = ["OS", "Phase", "Way", "above_others", "cpu_seconds", "ratios", "report", "take_turns"]

Figures = Mapping[str, float]  # name -> value, NaN where there is none
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Way:
    """arguments: of `sched-ctl load`; None = the system's own scheduling.

    learn_s: how long it learns before it is measured.
    """

    name: str
    arguments: tuple[str, ...] | None = None
    learn_s: float = 0.0


OS = Way("OS")


@dataclass(frozen=True)
class Phase:
    """cpus: how many the engine had on average. part: of a case that has several.

    said: by the way itself, of what it does.
    """

    way: str
    figures: Figures
    cpus: float
    part: str = ""
    said: str = ""


def take_turns(
    ways: Sequence[Way],
    cycles: int,
    load: Callable[[Way], AbstractContextManager[None]],
    measure: Callable[[], Figures],
    pids: Sequence[int],
    *,
    settle_s: float,
    seconds: float,
    end_s: float = math.inf,
) -> Iterator[Phase]:
    """The phases, one by one. measure: the figures of the `seconds` that it is called after.

    end_s: time.monotonic() after which only the pair that has begun is finished.
    """
    one_cycle = [part for way in ways for part in (OS, way)]
    one_cycle += [part for way in reversed(ways) for part in (OS, way)]
    for way in [*one_cycle * cycles, OS]:
        with nullcontext() if way is OS else load(way):
            time.sleep(settle_s)  # what was queued under the other way has gone
            began_s, used_s = time.monotonic(), cpu_seconds(pids)
            time.sleep(seconds)
            took_s = time.monotonic() - began_s
            phase = Phase(way.name, measure(), (cpu_seconds(pids) - used_s) / took_s)
        print(".", end="", file=sys.stderr, flush=True)
        yield phase
        if way is OS and time.monotonic() > end_s:
            break
    print(file=sys.stderr)


def cpu_seconds(pids: Sequence[int]) -> float:
    """CPU time of processes so far. Raises ProcessLookupError if one has ended."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            raise ProcessLookupError(f"process {pid} of the engine has ended") from None
        total += int(fields[11]) + int(fields[12])
    return total / TICKS_PER_S


def ratios(phases: Sequence[Phase], least_cpus: float = 0.0) -> dict[str, dict[str, list[float]]]:
    """way -> figure -> its ratio to the system's own before and after, for each of its phases.

    least_cpus: a phase in which the engine had less was disturbed: it and its ratios are left out.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for before, phase, after in zip(phases, phases[1:], phases[2:], strict=False):
        if phase.way == OS.name or before.way != OS.name:
            continue
        kept = found.setdefault(phase.way, {name: [] for name in phase.figures})
        if min(before.cpus, phase.cpus, after.cpus) < least_cpus:
            continue
        for name, value in phase.figures.items():
            base = results.middle((before.figures[name], after.figures[name]))
            if base > 0 and value == value:
                kept[name].append(value / base)
    return found


def report(name: str, title: str, phases: Sequence[Phase], least_cpus: float) -> Result:
    """Of each part, the OS's own figures, and below them ratios to its phases around each."""
    rows = []
    for part in dict.fromkeys(phase.part for phase in phases):
        own = [phase for phase in phases if phase.part == part]
        rows += [
            msgspec.structs.replace(row, name=f"{part}: {row.name}" if part else row.name)
            for row in _rows(own, least_cpus)
        ]
    return Result(
        title=f"{name}: {title}",
        columns=[
            *(figure.partition(" (")[0] for figure in phases[0].figures),
            *(["said"] if any(phase.said for phase in phases) else []),
        ],
        n=None,
        spread="median; smallest-largest over pairs of phases",
        seeds=None,
        kernel=platform.release(),
        rows=rows,
        **results.here(),
    )


def _rows(phases: Sequence[Phase], least_cpus: float) -> Iterator[Row]:
    base = [p for p in phases if p.way == OS.name and p.cpus >= least_cpus]
    own = {
        figure: [p.figures[figure] for p in base if p.figures[figure] > 0]
        for figure in phases[0].figures
    }
    units = {figure: figure.partition(" (")[2].rstrip(")") for figure in own}
    yield _row(OS.name, own, units)
    for way, ratio in ratios(phases, least_cpus).items():
        row = _row(way, ratio, {})
        said = "; ".join(phase.said for phase in phases if phase.way == way and phase.said)
        yield msgspec.structs.replace(row, figures=row.figures | {"said": said}) if said else row


def _row(name: str, found: Mapping[str, list[float]], units: Mapping[str, str]) -> Row:
    cells: dict[str, Figure | str] = {
        figure.partition(" (")[0]: results.median(values, units.get(figure, ""))
        for figure, values in found.items()
        if values
    }
    return Row(name, cells, max(map(len, found.values()), default=0))


def above_others() -> None:
    """Move this benchmark above all others of the machine, as far as autogroup goes.

    What is measured then has most of its CPU, and nothing inside it changes. Engines that are
    started from here are in the same session. No further above: at -15 the kernel's own workers on
    that CPU stood for 75 s, disks with them, and Storm killed its worker for late heartbeats.
    """
    if os.getsid(0) != os.getpid():
        os.setsid()
    Path("/proc/self/autogroup").write_text("-5")
