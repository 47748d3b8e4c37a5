"""How often a query kept its target: tuples that did, by the minute, for an hour."""

import math
from dataclasses import dataclass, replace

__all__ = ["HOUR_S", "Hits", "counted", "share"]

MINUTE_S = 60.0
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Hits:
    """minutes: (number of the minute, tuples, of which met), one after the other.

    tuples, met: since the first. now: share of the last span that told any, NaN before.
    """

    minutes: tuple[tuple[int, float, float], ...] = ()
    tuples: float = 0.0
    met: float = 0.0
    now: float = math.nan


def counted(hits: Hits, at_s: float, tuples: float, within: float) -> Hits:
    """With a span that ended at at_s (of any clock that does not jump), of so many tuples. within:
    the share of them that kept the target; NaN or no tuples tell nothing.
    """
    if not (tuples > 0 and 0 <= within <= 1):
        return hits
    minute = int(at_s // MINUTE_S)
    known = [m for m in hits.minutes if minute - m[0] <= HOUR_S / MINUTE_S]
    before = (minute, 0.0, 0.0)
    if known and known[-1][0] == minute:
        before = known.pop()
    known.append((minute, before[1] + tuples, before[2] + within * tuples))
    met = hits.met + within * tuples
    return replace(
        hits, minutes=tuple(known), tuples=hits.tuples + tuples, met=met, now=float(within)
    )


def share(hits: Hits, now_s: float) -> float:
    """Of the tuples of the last hour, to the minute; NaN where there were none."""
    first = int(now_s // MINUTE_S) - HOUR_S / MINUTE_S
    some = [m for m in hits.minutes if m[0] >= first]
    tuples = sum(m[1] for m in some)
    return sum(m[2] for m in some) / tuples if tuples > 0 else math.nan
