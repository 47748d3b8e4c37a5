"""Who ends the waits of operators: what a trace of the kernel's scheduler says of inversions.

An operator that waits for a lock is woken by whoever held it. If that thread is one of another
query, no data went between the two, so it was a lock (or a safepoint); and the time in which the
waker itself wanted a CPU and had none is what a scheduler that knew of the lock could have saved.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Wait", "Waits", "read", "tracing"]

TRACEFS = Path("/sys/kernel/tracing")
EVENTS = ("sched/sched_switch", "sched/sched_waking")
LINE = re.compile(
    r".*?-(?P<pid>\d+)\s+\[\d+\]\s+\S+\s+(?P<at>\d+\.\d+): (?P<event>\w+): (?P<rest>.*)"
)
SWITCH = re.compile(
    r"prev_comm=.* prev_pid=(?P<was>\d+) prev_prio=-?\d+ prev_state=(?P<state>\S+) ==> "
    r"next_comm=.* next_pid=(?P<next>\d+) next_prio=-?\d+"
)
WAKING = re.compile(r"comm=.* pid=(?P<pid>\d+) prio=-?\d+ target_cpu=\d+")


@dataclass(frozen=True)
class Wait:
    """A sleep of `tid` that `waker` ended. held_up_s: the waker wanted a CPU meanwhile."""

    tid: int
    waker: int
    length_s: float
    held_up_s: float


@dataclass
class _Thread:
    slept_s: float | None = None
    ready_s: float | None = None  # since then it wants a CPU and has none
    held_up: list[tuple[float, float]] = field(default_factory=list)


@dataclass
class Waits:
    """Sums over the waits of one kind."""

    count: int = 0
    length_s: float = 0.0
    held_up_s: float = 0.0

    def add(self, wait: Wait) -> None:
        self.count += 1
        self.length_s += wait.length_s
        self.held_up_s += wait.held_up_s


def read(lines: Iterable[str]) -> Iterator[Wait]:
    """Every wait that begins and ends in this text of /sys/kernel/tracing/trace."""
    threads: dict[int, _Thread] = {}
    for line in lines:
        found = LINE.match(line)
        if found is None:
            continue
        at, rest = float(found["at"]), found["rest"]
        if found["event"] == "sched_switch" and (switch := SWITCH.match(rest)):
            was = threads.setdefault(int(switch["was"]), _Thread())
            if switch["state"].startswith("R"):
                was.ready_s = at
            else:
                was.slept_s, was.ready_s = at, None
            runs = threads.setdefault(int(switch["next"]), _Thread())
            if runs.ready_s is not None:
                runs.held_up = [*runs.held_up[-63:], (runs.ready_s, at)]
            runs.ready_s = runs.slept_s = None
        elif found["event"] == "sched_waking" and (waking := WAKING.match(rest)):
            tid, waker = int(waking["pid"]), int(found["pid"])
            woken = threads.setdefault(tid, _Thread())
            if woken.slept_s is not None:
                by = threads.setdefault(waker, _Thread())
                held = sum(
                    min(end, at) - max(begin, woken.slept_s)
                    for begin, end in by.held_up
                    if end > woken.slept_s
                )
                yield Wait(tid, waker, at - woken.slept_s, held)
                woken.slept_s, woken.ready_s = None, at


def sums(waits: Iterable[Wait], kind: Callable[[int, int], str | None]) -> Mapping[str, Waits]:
    """By what `kind` says of thread and waker; None: not counted."""
    found: dict[str, Waits] = {}
    for wait in waits:
        name = kind(wait.tid, wait.waker)
        if name is not None:
            found.setdefault(name, Waits()).add(wait)
    return found


@contextmanager
def tracing(pages_kib: int = 16384) -> Iterator[None]:
    """Switches and wake-ups are traced meanwhile. Root; nobody else may trace."""
    (TRACEFS / "tracing_on").write_text("0")
    (TRACEFS / "trace").write_text("")
    (TRACEFS / "buffer_size_kb").write_text(str(pages_kib))
    for event in EVENTS:
        (TRACEFS / "events" / event / "enable").write_text("1")
    (TRACEFS / "tracing_on").write_text("1")
    try:
        yield
    finally:
        (TRACEFS / "tracing_on").write_text("0")
        for event in EVENTS:
            (TRACEFS / "events" / event / "enable").write_text("0")
