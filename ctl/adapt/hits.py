"""How often a query kept its target: tuples that did, by the minute, for an hour."""

import math
from dataclasses import dataclass, replace

__all__ = ["HOUR_S", "Hits", "counted", "share", "silent"]

MINUTE_S = 60.0
HOUR_S = 3600.0
IDLE_S = 15.0  # without any tuple, after which nothing is known of now
STUCK_S = 60.0  # engines report at least as often: until then it may only be the last report


@dataclass(frozen=True, slots=True)
class Hits:
    """minutes: (number of the minute, tuples, of which met), one after the other.

    tuples, met: since the first. now: share of the last span that told any, NaN before, and where
    none has come for a while; 0 where those that wait are late already. idle_s: for how long none
    came or waited. stuck_s: for how long the same ones have waited, at least; NaN: none do.
    """

    minutes: tuple[tuple[int, float, float], ...] = ()
    tuples: float = 0.0
    met: float = 0.0
    now: float = math.nan
    idle_s: float = 0.0
    stuck_s: float = math.nan


def counted(hits: Hits, at_s: float, tuples: float, within: float) -> Hits:
    """With a span that ended at at_s (of any clock that does not jump), of so many tuples. within:
    the share of them that kept the target; NaN or no tuples tell nothing, but that some left.
    """
    if not (tuples > 0 and 0 <= within <= 1):
        stood = tuples > 0 and (hits.idle_s > 0 or not math.isnan(hits.stuck_s))
        return replace(hits, now=math.nan, idle_s=0.0, stuck_s=math.nan) if stood else hits
    minute = int(at_s // MINUTE_S)
    known = [m for m in hits.minutes if minute - m[0] <= HOUR_S / MINUTE_S]
    before = (minute, 0.0, 0.0)
    if known and known[-1][0] == minute:
        before = known.pop()
    known.append((minute, before[1] + tuples, before[2] + within * tuples))
    met = hits.met + within * tuples
    return Hits(tuple(known), hits.tuples + tuples, met, now=float(within))


def silent(
    hits: Hits, at_s: float, seconds: float, latency_s: float, *, came: bool, stuck: bool
) -> Hits:
    """With a span that ended at at_s, of so many seconds, in which no tuple left, or nobody tells.

    came: some came in, and none left. stuck: some wait that nobody has taken in all that time.
    Beyond the target's latency_s they are late, whenever they leave. Of what comes in all may be
    dropped, or kept for a window: it tells nothing, and what was last known stays for an hour.
    """
    stuck_s = math.nan
    if stuck:  # in the first such span they may have come at its end
        stuck_s = 0.0 if math.isnan(hits.stuck_s) else hits.stuck_s + seconds
    idle_s = 0.0 if came or stuck else hits.idle_s + seconds
    now = hits.now
    if stuck_s > max(latency_s, STUCK_S):
        now = 0.0
    elif idle_s > IDLE_S or math.isnan(share(hits, at_s)):
        now = math.nan
    return replace(hits, now=now, idle_s=idle_s, stuck_s=stuck_s)


def share(hits: Hits, now_s: float) -> float:
    """Of the tuples of the last hour, to the minute; NaN where there were none."""
    first = int(now_s // MINUTE_S) - HOUR_S / MINUTE_S
    some = [m for m in hits.minutes if m[0] >= first]
    tuples = sum(m[1] for m in some)
    return sum(m[2] for m in some) / tuples if tuples > 0 else math.nan
