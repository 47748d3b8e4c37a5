"""A scheduler that is not loaded: the memory that the scx backend shares with one, and no more."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from sched_ctl.backends.scx.backend import Scx
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.kernel import schedext
from sched_ctl.kernel.libbpf import InnerArray
from sched_ctl.model.options import ScxOptions

__all__ = ["Memory", "unloaded"]

SLOT = [("lead_us", "u4"), ("queue", "u1"), ("flags", "u1"), ("query", "u2"), ("slice_us", "u2")]
SLOT += [("depth", "u2"), ("slope", "u4"), ("base", "u8"), ("per_tuple", "u4"), ("live", "u4")]
THREAD = [("run_ns", "u8"), ("wait_ns", "u8"), ("queued_ns", "u8"), ("weight", "u4")]
QUEUE = [("base", "u8"), ("slope", "u4"), ("group", "u2"), ("flags", "u2")]
GROUP = [("share", "u4"), ("cap", "u4")]
NUMBERS = (
    *("ttl_ms", "slice_us", "starvation_ms", "preempt_times", "floor_us", "least_us"),
    *("hold_us", "weight_part", "nr_queues", "nr_groups"),
)


class Memory:
    """As `Scheduler`, of so many slots. What its threads run and weigh a test says in `threads`."""

    slot_flags = {  # noqa: RUF012
        "SLOT_ACTIVE": 1,
        "SLOT_UNTIL_BLOCK": 2,
        "SLOT_LIVE_AGE": 4,
        "SLOT_LIVE_LENGTH": 8,
        "SLOT_RIVALS": 16,
    }
    queue_flags = {"QUEUE_EXACT": 1}  # noqa: RUF012
    live_row = np.dtype([("head_ns", "u8"), ("queue_tuples", "u8")])
    cleared = ()

    def __init__(self, slots: int = 512) -> None:
        self.limits = {
            "MAX_SLOTS": slots,
            "MAX_QUEUES": 64,
            "MAX_GROUPS": 64,
            "MAX_SLOPE": 1 << 20,
            "MAX_LEAD_US": 1 << 30,
            "MAX_TUPLES": 1 << 20,
            "RANK_SHIFT": 56,
            "SHARE_ONE": 1024,
            "WEIGHT_ONE": 1024,
            "MAX_QUERIES": 4096,
            "MAX_ENGINES": 64,
            "LIVE_ROW_BITS": 16,
        }
        numbers = [(name, "u4") for name in NUMBERS]
        arrays: Any = [("queues", QUEUE, 64), ("groups", GROUP, 64)]
        self.control = np.zeros((), dtype=numbers + arrays)
        self.slots = np.zeros(slots, dtype=SLOT)
        self.threads = np.zeros(slots, dtype=THREAD)
        self.heads = np.zeros(slots, dtype="u8")
        self.arrivals = np.zeros(slots, dtype="u4")
        self.weights = np.zeros(4096, dtype="u4")

    def exit(self) -> None:
        return None

    def close(self) -> None: ...

    def now_ns(self) -> int:
        return 0

    def counter(self, name: str) -> int:
        return int(self.threads["run_ns"].sum())

    def live_index(self, engine: int, row: int) -> int:
        return engine << self.limits["LIVE_ROW_BITS"] | row

    def live_rows(self, engine: int, rows: int) -> InnerArray:
        return mock.Mock(rows=np.zeros(rows, self.live_row), fd=-1)

    def drop_live_rows(self, engine: int) -> None: ...

    def groups(self) -> list[tuple[int, int]]:
        """Share and cap of each group in use."""
        count = int(self.control["nr_groups"])
        return [(int(one["share"]), int(one["cap"])) for one in self.control["groups"][:count]]


@contextmanager
def unloaded(folder: Path, memory: Memory, **options: Any) -> Iterator[Scx]:
    """The backend, with this memory in place of a loaded scheduler's."""
    journal = Journal(folder / "journal")
    made = Scx(journal, ScxOptions(**options))
    with (
        mock.patch.object(schedext, "taken", lambda: None),
        mock.patch.object(made, "_load", lambda: memory),
        mock.patch.object(made, "_attach", lambda loaded: setattr(loaded, "attached", True)),
    ):
        yield made
    made.restore()
    journal.close()
