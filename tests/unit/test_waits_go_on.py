"""`sched-ctl waits` tells of waits that go on at its end, and of those that ended no more."""

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sched_ctl.cli import waits
from sched_ctl.kernel import procfs, tracing
from sched_ctl.model.topology import Thread
from sched_ctl.probes import unserved
from sched_ctl.probes.unserved import MOST, Turns
from sched_ctl.probes.waits import SLOTS

NEVER, ENDS = 1, 2  # no turn at all; a wait that ends just before the tables are read
PID = 7


class World:
    """A clock, threads that wait, and a tracer; the wait of ENDS ends as its tables are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.now_s, self.ended = 0.0, False
        monkeypatch.setattr(time, "sleep", self.sleep)
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(procfs, "tids", lambda pid: [*range(1, count + 1)])
        monkeypatch.setattr(procfs, "name_of", str)
        monkeypatch.setattr(
            procfs, "stat", lambda pid, tid: SimpleNamespace(start_time=0, name=str(tid))
        )
        monkeypatch.setattr(unserved, "_ready", self.ready)
        monkeypatch.setattr(tracing, "Tracer", lambda pids, wakings: self)

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def ready(self, thread: Thread) -> Turns | None:
        had = {NEVER: (5, 1), ENDS: (9, 2 if self.ended else 1)}
        return had.get(thread.tid)

    def threads(self) -> dict[int, Any]:
        self.ended = True
        return {ENDS: {"slots": np.eye(SLOTS, dtype=int)[20], "wait_ns": 10**9}}

    def occupants(self) -> dict[tuple[int, int], int]:
        return {}

    wakings = occupants


@pytest.mark.parametrize("count", [2, 3 * MOST])
def test_what_goes_on_is_told_and_what_ended_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    """However many threads there are; also of a thread that no table has."""
    World(monkeypatch, count)
    waits._waits([PID], None, 5.0, json=False)
    told = capsys.readouterr().out
    assert f"{NEVER} ({NEVER}) still waits, for 5.0 s so far" in told
    assert told.count("still waits") == 1
