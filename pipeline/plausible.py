"""Which lines cannot be true, whatever the gateway that wrote them meant.

One counter that wrapped round would be the sum of all others, and one node whose clock was never
set would stretch a week into 56 years: so such lines are set aside, with the reason, before
anything is summed. The bounds are wide: they tell nonsense from readings, not good from bad ones.
"""

from collections.abc import Sequence
from typing import Any

from sched_ctl.telemetry import records

__all__ = ["EARLIEST_MS", "LATEST_MS", "implausible", "misplaced"]

EARLIEST_MS = 1_577_836_800_000  # 2020: no earlier record can be; such a clock was never set
LATEST_MS = 4_102_444_800_000  # 2100
LONGEST_MS = 86_400_000  # of a record
LONGEST_NAME = 120  # bytes of a node's name: it becomes a folder's
SLACK = 10  # times what can be: counters are read at other moments than clocks
SLACK_MS = 60_000
MOST_PER_MS = 1_000_000  # tuples of one operator
MOST_WAITING = 10**12  # tuples in a queue
LONGEST_AGE_MS = 10 * 365 * 86_400_000
WHOLE = 10_000  # of the time, in the unit of `psi`
MOST_CODE = 255  # of a verdict: later versions may have more of them than this one


def implausible(line: records.Line, threads: Sequence[int]) -> str | None:
    """Why a line cannot be true, in words; None if it can.

    threads: (n,) of each operator, of the topology that a record belongs to; empty = one each.
    """
    why = misplaced(line)
    if why is not None or not isinstance(line, records.Record):
        return why
    return "longer than a day" if line.d > LONGEST_MS else _array(line, threads)


def misplaced(line: records.Line) -> str | None:
    """Why a line can be of no node, or of no time."""
    if not line.node:
        return "no node"
    if len(line.node.encode()) > LONGEST_NAME:
        return f"a node's name of more than {LONGEST_NAME} bytes"
    if line.t < EARLIEST_MS:
        return f"time {line.t}: the node's clock was not set"
    if line.t > LATEST_MS:
        return f"time {line.t} is none"
    return None


def _array(record: records.Record, threads: Sequence[int]) -> str | None:
    """The first array with an entry that cannot be."""
    most_ms = SLACK * record.d + SLACK_MS  # of one thread
    tuples = SLACK * MOST_PER_MS * (record.d + 1000)
    for name, limit, by_thread in (
        ("cpu", most_ms * 1000, True),
        ("wait", most_ms * 1000, True),
        ("busy", most_ms, True),
        ("idle", most_ms, True),
        ("full", most_ms, True),
        ("tuples_in", tuples, False),
        ("tuples_out", tuples, False),
        ("q", MOST_WAITING, False),
        ("qmax", MOST_WAITING, False),
        ("age", LONGEST_AGE_MS, False),
        ("lat", LONGEST_AGE_MS * 1000, False),
        ("psi", WHOLE, False),
        ("verdict", MOST_CODE, False),
    ):
        values: list[Any] | None = getattr(record, name)
        if not values or (None not in values and max(values) <= limit):
            continue
        for row, value in enumerate(values):
            if value is None or value <= limit:
                continue
            most = limit * (max(1, threads[row]) if by_thread and row < len(threads) else 1)
            if value > most:
                return f"{name} {value} in {record.d} ms"
    return None
