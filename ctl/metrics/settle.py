"""What is said to hold a query: by several horizons, so that no single window decides.

A query's verdict is that of about the last half minute. Another one takes its place once the last
seconds say so, too, or have said nothing else for half a minute. That nothing arrives is said once
nothing has for as long as anybody looked, up to five minutes. Where the half minute cannot tell, as
it begins before all was read, the last seconds are said. What was said before nobody looked for a
while counts no more. Pure functions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sched_ctl.metrics.verdicts import Verdict

__all__ = ["FIRST_S", "Reading", "Said", "settle"]

FIRST_S = 3.0  # that are looked at before anything is said for sure
PATIENCE_S = 30.0  # for horizons that do not agree
FORGOTTEN_S = 90.0  # after it was said last; Prometheus asks each minute at the least


@dataclass(frozen=True, slots=True)
class Reading:
    """What one horizon says of a query. about: its operator."""

    seconds: float
    verdict: Verdict
    about: str
    confidence: float


@dataclass(frozen=True, slots=True)
class Said:
    """What is said of a query, since when, and when last (CLOCK_MONOTONIC).

    settled: not by one window. other_s: since when the half minute says something else; None: it
    does not.
    """

    verdict: Verdict
    about: str
    confidence: float
    since_s: float
    last_s: float
    settled: bool
    other_s: float | None = None


def settle(before: Said | None, now_s: float, readings: Sequence[Reading]) -> Said:
    """What to say now. readings: from the shortest horizon to the longest, one at least."""
    if before is not None and now_s - before.last_s > FORGOTTEN_S:
        before = None
    return replace(_said(before, now_s, readings), last_s=now_s)


def _said(before: Said | None, now_s: float, readings: Sequence[Reading]) -> Said:
    last, longest = readings[0], readings[-1]
    half = readings[1] if len(readings) > 1 else last
    agree = last.verdict is half.verdict
    if half.verdict is Verdict.UNKNOWN:
        half = last  # it begins before all was read
    settled = agree and half.seconds >= FIRST_S
    said = Said(half.verdict, half.about, half.confidence, now_s, now_s, settled)
    if before is None:
        return said
    if before.verdict is said.verdict:
        about = said.about if last.about == half.about else before.about
        settled = before.settled or said.settled
        return replace(said, about=about, since_s=before.since_s, settled=settled)
    if not before.settled:
        return said
    if said.verdict is Verdict.IDLE and longest.verdict is not Verdict.IDLE:
        return replace(before, other_s=None)
    other_s = now_s if before.other_s is None else before.other_s
    if agree or now_s - other_s > PATIENCE_S:
        return replace(said, settled=True)
    return replace(before, other_s=other_s)
