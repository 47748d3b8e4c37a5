"""Which part of a fleet a verb looks at: a span of time, some nodes, some queries.

Spans are of whole hours, as the roll-ups are: the hour in which a moment lies counts as a whole.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sched_ctl.errors import UserError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["DAY_MS", "HOUR_MS", "Choice", "chosen", "days_of", "moment"]

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
UNITS = {"h": HOUR_MS, "d": DAY_MS, "w": 7 * DAY_MS}


@dataclass(frozen=True)
class Choice:
    """since_ms, until_ms: Unix time, None = without end. nodes, queries: names or patterns with
    * and ?; one that begins with ! excludes; none = all."""

    since_ms: int | None = None
    until_ms: int | None = None
    nodes: tuple[str, ...] = ()
    queries: tuple[str, ...] = ()

    def nodes_of(self, frame: "DataFrame") -> "DataFrame":
        return _named(frame, "node", self.nodes)

    def queries_of(self, frame: "DataFrame") -> "DataFrame":
        return _named(frame, "query", self.queries)

    def times_of(self, frame: "DataFrame", column: str) -> "DataFrame":
        """Rows whose moment (Unix ms) lies in the span; by their date first, which is a folder."""
        if self.since_ms is not None:
            frame = frame.where(f"date >= '{_date(self.since_ms)}' AND {column} >= {self.since_ms}")
        if self.until_ms is not None:
            frame = frame.where(f"date <= '{_date(self.until_ms)}' AND {column} < {self.until_ms}")
        return frame


def chosen(
    since: str | None, until: str | None, nodes: Sequence[str], queries: Sequence[str]
) -> Choice:
    """As a user says it. Raises UserError if that is no span."""
    begin = None if since is None else moment(since) // HOUR_MS * HOUR_MS
    end = None if until is None else -(-moment(until) // HOUR_MS) * HOUR_MS
    if begin is not None and end is not None and begin >= end:
        raise UserError(f"--until {until} is not after --since {since}", "times are UTC")
    return Choice(begin, end, tuple(nodes), tuple(queries))


def moment(text: str, now_s: float | None = None) -> int:
    """Unix time (ms) of 2026-11-22, 2026-11-22T03:00, or so long ago: 12h, 7d, 2w."""
    ago = re.fullmatch(r"(\d{1,5})([hdw])", text)
    if ago:
        return round((time.time() if now_s is None else now_s) * 1e3) - int(ago[1]) * UNITS[ago[2]]
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(
            f"{text!r} is no time", "2026-11-22, 2026-11-22T03:00 (UTC), or so long ago: 12h, 7d"
        ) from None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1e3)


def days_of(text: str) -> int:
    """30d or 8w, in days, at least one. Raises UserError."""
    match = re.fullmatch(r"(\d{1,5})([dw])", text)
    if match is None or not int(match[1]):
        raise UserError(f"{text!r} is no number of days", "as 30d, or 8w")
    return int(match[1]) * UNITS[match[2]] // DAY_MS


def _date(t_ms: int) -> str:
    return datetime.fromtimestamp(min(max(t_ms, 0), 4_102_444_800_000) / 1e3, UTC).strftime(
        "%Y-%m-%d"
    )


def _named(frame: "DataFrame", column: str, names: Sequence[str]) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812

    def any_of(names: Sequence[str]) -> Any:
        plain = [name for name in names if not set(name) & {"*", "?"}]
        fits: Any = F.col(column).isin(plain)
        for name in names:
            if name not in plain:
                parts = (".*" if c == "*" else "." if c == "?" else re.escape(c) for c in name)
                fits = fits | F.col(column).rlike(f"^{''.join(parts)}$")
        return fits

    wanted = [name for name in names if not name.startswith("!")]
    without = [name[1:] for name in names if name.startswith("!")]
    if wanted:
        frame = frame.where(any_of(wanted))
    return frame.where(~any_of(without)) if without else frame
