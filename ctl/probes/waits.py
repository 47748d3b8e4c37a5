"""What a trace says of each thread: how long it waits for a CPU, behind whom, woken by whom."""

import logging
import math
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sched_ctl.kernel import tracing
from sched_ctl.kernel.tracing import SLOT_S
from sched_ctl.model.topology import Thread

__all__ = ["LATE_S", "SLOT_S", "Lately", "WaitTimes", "Waits", "quantile_s", "waits_of"]

log = logging.getLogger(__name__)

LATE_S = 10.0  # what is told of single operators is of so long
LEAST_S = 1.0  # from one reading to the next
SLOTS = 32  # TRACE_SLOTS in bpf/trace.h
K = TypeVar("K")
Counts = NDArray[np.int64]  # (SLOTS + 1,): waits by length, and ns waited in all of them
Row = tuple[int, Counts]  # when the thread was born, ns: another one may get its id

Pairs = Mapping[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class Waits:
    """Of one thread. median_s, long_s: half, and 99%, of its waits were shorter than these.

    behind: (who ran meanwhile, share of the time waited), most first; of long waits only the end is
    known, so the shares may add up to less than 1. woken_by: (who, how often); 0 stands for
    somebody of another process, or an interrupt. goes_on_s: of a wait that has not ended, which is
    one of them; 0: there is none.
    """

    tid: int
    waits: int
    wait_s: float
    median_s: float
    long_s: float
    behind: tuple[tuple[int, float], ...]
    woken_by: tuple[tuple[int, int], ...]
    goes_on_s: float = 0.0


def waits_of(
    tid: int,
    slots: Sequence[int],
    wait_ns: int,
    occupants: Pairs,
    wakings: Pairs,
    goes_on_s: float = 0.0,
) -> Waits:
    """slots: how many waits were shorter than 1, 2, 4 ... times `SLOT_S`; each in one slot only.

    goes_on_s: of a wait that is in none of them, as it has not ended.
    """
    goes_on_ns = round(goes_on_s * 1e9)  # as exact as those that have ended
    if goes_on_ns > 0:
        of = min(SLOTS - 1, max(0, math.frexp(goes_on_s / SLOT_S)[1]))
        slots = [count + (slot == of) for slot, count in enumerate(slots)]
        wait_ns += goes_on_ns
    behind = [(who, ns / wait_ns) for (who, of), ns in occupants.items() if of == tid and wait_ns]
    woken = [(who, times) for (who, of), times in wakings.items() if of == tid]
    return Waits(
        tid,
        sum(slots),
        wait_ns * 1e-9,
        quantile_s(slots, 0.5),
        quantile_s(slots, 0.99),
        tuple(sorted(behind, key=lambda pair: -pair[1])),
        tuple(sorted(woken, key=lambda pair: -pair[1])),
        goes_on_ns * 1e-9,
    )


def quantile_s(slots: Sequence[int], share: float) -> float:
    """Upper bound of the slot in which this share of all waits is reached; NaN without any."""
    wanted, seen = share * sum(slots), 0
    for slot, count in enumerate(slots):
        seen += count
        if count and seen >= wanted:
            return 2.0**slot * SLOT_S
    return float("nan")


@dataclass(frozen=True, slots=True)
class Lately:
    """Of some threads together, over the last `seconds`. behind: as in `Waits`."""

    seconds: float
    counts: Counts
    behind: tuple[tuple[int, float], ...]

    @property
    def waits(self) -> int:
        return int(self.counts[:SLOTS].sum())

    def shorter_than_s(self, share: float) -> float:
        return quantile_s(self.counts[:SLOTS].tolist(), share)


@dataclass(frozen=True, slots=True)
class _Reading:
    time_s: float
    counts: Mapping[int, Row]  # by thread id
    occupants: Pairs


class WaitTimes:
    """Traces the processes of all engines, while it is told to follow any."""

    def __init__(self) -> None:
        self._tracer: tracing.Tracer | None = None
        self._readings: deque[_Reading] = deque()
        self._told: dict[Thread, Row] = {}
        self._sums: dict[Any, Counts] = {}
        self.problem: str | None = None  # why nothing is traced, in words

    @property
    def active(self) -> bool:
        return self._tracer is not None

    def follow(self, pids: Collection[int]) -> None:
        """These processes from now on. The first ones have the program loaded: 0.1 s."""
        if self._tracer is None and pids and self.problem is None:
            try:
                self._tracer = tracing.Tracer()
            except tracing.Unavailable as error:
                self.problem = f"waits are not traced: {error}"
                log.warning("%s", self.problem)
            else:
                self._readings.append(_Reading(time.monotonic(), {}, {}))
        if self._tracer is not None:
            self._tracer.follow(pids)

    def look(self) -> None:
        """Read the kernel's tables, if that was not done just now: about 3 ms."""
        now_s = time.monotonic()
        if self._tracer is None or now_s - self._readings[-1].time_s < LEAST_S:
            return
        counts = {
            tid: (
                int(row["born_ns"]),
                np.append(row["slots"], row["wait_ns"]).astype(np.int64),
            )
            for tid, row in self._tracer.threads().items()
        }
        self._readings.append(_Reading(now_s, counts, self._tracer.occupants()))
        while len(self._readings) > 2 and now_s - self._readings[1].time_s >= LATE_S:
            self._readings.popleft()

    def lately(self, threads: Iterable[Thread], *, behind: bool = False) -> Lately | None:
        """Waits between the readings; None if there are no two, or none of these was seen."""
        if len(self._readings) < 2:
            return None
        then, now = self._readings[0], self._readings[-1]
        tids = {thread.tid for thread in threads} & now.counts.keys()
        if not tids:
            return None
        counts = np.sum([_grown(now.counts[tid], then.counts.get(tid)) for tid in tids], axis=0)
        sums: dict[int, int] = {}
        for (who, of), ns in now.occupants.items() if behind else ():
            if of in tids:
                grown = ns - then.occupants.get((who, of), 0)
                sums[who] = sums.get(who, 0) + max(0, grown)
        most = sorted(sums.items(), key=lambda pair: -pair[1])
        waited = int(counts[SLOTS])
        shares = tuple((who, ns / waited) for who, ns in most if ns and waited)
        return Lately(now.time_s - then.time_s, counts, shares)

    def totals(self, threads: Mapping[K, Iterable[Thread]]) -> dict[K, Counts]:
        """Waits of all that ever were threads of each key, since they are followed.

        Never fewer than before, unless a key was left out meanwhile.
        """
        if len(self._readings) < 2:
            return {}
        now, told, before = self._readings[-1].counts, self._told, self._sums
        self._told, self._sums = {}, {}
        found: dict[K, Counts] = {}
        for key, mine in threads.items():
            sums = before.get(key, np.zeros(SLOTS + 1, dtype=np.int64))
            for thread in mine:
                if (counts := now.get(thread.tid)) is not None:
                    sums = sums + _grown(counts, told.get(thread))
                    self._told[thread] = counts
            found[key] = self._sums[key] = sums
        return found

    def close(self) -> None:
        if self._tracer is not None:
            self._tracer.close()
        self._tracer, self.problem = None, None
        self._readings.clear()


def _grown(now: Row, then: Row | None) -> Counts:
    """One of which the program had lost sight begins anew, and so does another of the same id."""
    (born_ns, counts), (before_ns, before) = now, then or now
    lost = then is None or born_ns != before_ns or (counts < before).any()
    return counts if lost else counts - before
