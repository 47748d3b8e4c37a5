"""What a trace says of each thread: how long it waits for a CPU, behind whom, woken by whom."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Waits", "quantile_s", "waits_of"]

Pairs = Mapping[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class Waits:
    """Of one thread. median_s, long_s: half, and 99%, of its waits were shorter than these.

    behind: (who ran meanwhile, share of the time waited), most first; of long waits only the end is
    known, so the shares may add up to less than 1. woken_by: (who, how often); 0 stands for
    somebody of another process, or an interrupt.
    """

    tid: int
    waits: int
    wait_s: float
    median_s: float
    long_s: float
    behind: tuple[tuple[int, float], ...]
    woken_by: tuple[tuple[int, int], ...]


def waits_of(
    tid: int, slots: Sequence[int], wait_ns: int, occupants: Pairs, wakings: Pairs
) -> Waits:
    """slots: how many waits were shorter than 1, 2, 4 ... us and not than half of that."""
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
    )


def quantile_s(slots: Sequence[int], share: float) -> float:
    """Upper bound of the slot in which this share of all waits is reached; NaN without any."""
    wanted, seen = share * sum(slots), 0
    for slot, count in enumerate(slots):
        seen += count
        if count and seen >= wanted:
            return 2.0**slot * 1e-6
    return float("nan")
