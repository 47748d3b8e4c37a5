"""Old data out of a fleet: rows of records after some days, roll-ups after some more.

What is out counts no more from the moment that an entry of the manifest says so; its files go a
day later, for those who read them. A rule is kept in the manifest, too: each ingest follows it.
Which files were read stays as long as roll-ups do, so none is taken in twice meanwhile. What comes
late, of days whose rows are out, is rolled up, but for numbers that a file of the same run had
before, or one of the node where runs are not known; of days whose roll-ups are out it counts as
little as they do.
"""

import time
from datetime import UTC, datetime

from sched_ctl.errors import UserError
from sched_ctl.pipeline.store import LAYOUT, Batch, Fleet, Keep, Taken

__all__ = ["by_rule", "expire"]

TRIES = 20
ROWS = ("operator", "event", "bad")
HOURS = ("hour", "span", "turn", "file", "topology")


def expire(
    fleet: Fleet, keep: Keep, *, rule: bool = False, now_s: float | None = None
) -> dict[str, str]:
    """Let rows and roll-ups go that are older, rows with their roll-ups at last. rule: and from now
    on, too.

    Returns table -> first date that counts, of those that this has moved. Raises UserError.
    """
    if keep.hours and keep.rows > keep.hours:
        raise UserError(
            "rows cannot stay longer than roll-ups", "--hours as large as --rows, or larger"
        )
    for _ in range(TRIES):
        now = time.time() if now_s is None else now_s
        moved: dict[str, str] = {}
        for tables, days in ((ROWS, keep.rows or keep.hours), (HOURS, keep.hours)):
            if days:
                first = datetime.fromtimestamp(now - days * 86400, UTC).strftime("%Y-%m-%d")
                moved |= {kind: first for kind in tables if (fleet.since(kind) or "") < first}
        if not moved and not (rule and keep != fleet.keep):
            return {}
        entry = Batch(
            folder=fleet.new_folder(), layout=LAYOUT, since=moved, keep=keep if rule else None
        )
        try:
            fleet.commit(entry)
        except Taken:
            fleet.refresh()
            continue
        return moved
    raise UserError("others commit all the time: try again later")


def by_rule(fleet: Fleet) -> None:
    """What each ingest does at its end."""
    if fleet.keep != Keep():
        expire(fleet, fleet.keep)
