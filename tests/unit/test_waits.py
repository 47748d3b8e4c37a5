"""Traced waits over time: differences, sums that never fall, and who was in the way."""

from typing import Any

import numpy as np
import pytest

from sched_ctl.kernel import libbpf, tracing
from sched_ctl.model.topology import Thread
from sched_ctl.probes import waits
from sched_ctl.probes.waits import SLOTS, WaitTimes

MINE, OTHER = Thread(7, 70, 1, "mine"), Thread(7, 71, 1, "other")


class Trace:
    """Stands for the tracing program. tables: thread id -> (slot -> waits), and ns in all."""

    def __init__(self) -> None:
        self.tables: dict[int, tuple[dict[int, int], int]] = {}
        self.behind: dict[tuple[int, int], int] = {}

    def follow(self, pids: Any) -> None: ...

    def close(self) -> None: ...

    def threads(self) -> dict[int, Any]:
        found = {}
        for tid, (slots, ns) in self.tables.items():
            row = np.zeros((), [("slots", "<u8", SLOTS), ("wait_ns", "<u8")])
            for slot, count in slots.items():
                row["slots"][slot] = count
            row["wait_ns"] = ns
            found[tid] = row
        return found

    def occupants(self) -> dict[tuple[int, int], int]:
        return dict(self.behind)


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> Trace:
    made = Trace()
    monkeypatch.setattr(tracing, "Tracer", lambda: made)
    monkeypatch.setattr(waits, "LEAST_S", 0.0)
    return made


def looked(times: WaitTimes, trace: Trace, counts: dict[int, tuple[dict[int, int], int]]) -> None:
    trace.tables = counts
    times.look()


def test_of_late_is_what_came_since_the_oldest_reading(trace: Trace) -> None:
    times = WaitTimes()
    times.follow({7})
    assert times.lately([MINE]) is None
    trace.behind = {(99, 70): 900, (98, 70): 100, (99, 71): 5}
    looked(times, trace, {70: ({3: 9, 10: 1}, 1000)})
    found = times.lately([MINE], behind=True)
    assert found is not None and found.waits == 10
    assert found.shorter_than_s(0.5) == 8 * tracing.SLOT_S
    assert found.shorter_than_s(0.99) == 1024 * tracing.SLOT_S
    assert found.behind == ((99, 0.9), (98, 0.1))
    assert times.lately([OTHER]) is None  # not seen


def test_old_readings_go(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "LATE_S", 0.0)
    times = WaitTimes()
    times.follow({7})
    for waited in (5, 8, 20):
        looked(times, trace, {70: ({0: waited}, waited)})
    found = times.lately([MINE])
    assert found is not None and found.waits == 12


def test_sums_never_fall(trace: Trace) -> None:
    times = WaitTimes()
    times.follow({7})

    def total(*threads: Thread) -> tuple[int, int]:
        counts = times.totals({"q": threads})["q"].tolist()
        return sum(counts[:SLOTS]), counts[SLOTS]

    looked(times, trace, {70: ({1: 4}, 40), 71: ({1: 2}, 20)})
    assert total(MINE, OTHER) == (6, 60)
    assert total(MINE, OTHER) == (6, 60)  # told twice, counted once
    looked(times, trace, {70: ({1: 5}, 50)})
    assert total(MINE) == (7, 70)  # one that ended has waited all the same
    looked(times, trace, {70: ({1: 1}, 10)})
    assert total(MINE) == (8, 80)  # the program lost sight of it, and saw it anew
    assert times.totals({}) == {}


def test_what_cannot_be_traced_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tracing.SWITCH, "0")
    times = WaitTimes()
    times.follow({7})
    times.follow({7, 8})
    assert times.problem is not None and tracing.SWITCH in times.problem
    times.look()
    assert times.lately([MINE]) is None and times.totals({"q": [MINE]}) == {}


def test_without_a_libbpf_that_is_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    if (why := tracing.obstacle()) is not None and "libbpf" not in why:
        pytest.skip(f"needs to trace: {why}")
    monkeypatch.setattr(libbpf, "_found", None)
    monkeypatch.setattr(libbpf, "_candidates", lambda: iter(()))
    assert "no libbpf" in (tracing.obstacle() or "")
