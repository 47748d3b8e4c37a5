"""Urgencies in the file of a lab engine, which is its user's (backends/pool.py)."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from sched_ctl.backends.pool import Pool, _Engine
from sched_ctl.kernel import procfs
from sched_ctl.model.policy import Spacing, form
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import UserThread

SIZE = 4096
ROOM = 4 * 8  # bytes of one operator's urgencies


class File:
    """In the place of a `LabFile` of one operator. fields: as the engine says."""

    operators = (0,)
    size = SIZE
    alive = True
    pid = os.getpid()

    def __init__(self, fields: Mapping[str, int]) -> None:
        self.fields = fields

    def __getitem__(self, field: str) -> int:
        return self.fields[field]

    def offset(self, field: str) -> int:
        return {"urgency_until_ns": 0, "urgency_epoch": 8}[field]

    def refresh(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("offset", "fits"), [(64, True), (SIZE - 2 * ROOM, True), (SIZE, False), (1 << 63, False)]
)
def test_nothing_is_written_outside_of_the_file(offset: int, fits: bool, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(SIZE))
    me = procfs.stat(os.getpid())
    assert me is not None
    file = File({"urgency_offset": offset, "urgency_epoch": 0})
    pool = Pool()
    key = os.getpid(), me.start_time
    pool._pools[key] = _Engine(cast("Any", file), os.open(path, os.O_RDWR))
    thread = UserThread(*key, row=0)
    zero = np.zeros(1)
    applied = pool.apply(
        Schedule("s", "p", Spacing.LINEAR, (thread,), ("q/a",), form(1, static=7.0), zero, zero)
    )
    assert (applied.problems == ()) == fits
    assert path.stat().st_size == SIZE
    assert (path.read_bytes() == b"\0" * SIZE) != fits
    pool.restore()
