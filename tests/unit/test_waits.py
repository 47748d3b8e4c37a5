"""Traced waits over time: differences, sums that never fall, and who was in the way."""

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from plans import array, plan
from sched_ctl.kernel import libbpf, procfs, tracing
from sched_ctl.metrics.verdicts import assess
from sched_ctl.metrics.window import Window
from sched_ctl.model.topology import Snapshot, Thread
from sched_ctl.probes import waits
from sched_ctl.probes.clocks import Clocks
from sched_ctl.probes.limits import Limits
from sched_ctl.probes.waits import SLOTS, Lately, WaitTimes
from sched_ctl.service import bottlenecks
from sched_ctl.service.bottlenecks import Found

MINE, OTHER = Thread(7, 70, 1, "mine"), Thread(7, 71, 1, "other")


class Trace:
    """Stands for the tracing program. tables: thread id -> (slot -> waits), and ns in all."""

    def __init__(self) -> None:
        self.tables: dict[int, tuple[dict[int, int], int]] = {}
        self.behind: dict[tuple[int, int], int] = {}
        self.born_ns: dict[int, int] = {}

    def follow(self, pids: Any) -> None: ...

    def close(self) -> None: ...

    def threads(self) -> dict[int, Any]:
        found = {}
        for tid, (slots, ns) in self.tables.items():
            row = np.zeros((), [("born_ns", "<u8"), ("slots", "<u8", SLOTS), ("wait_ns", "<u8")])
            row["born_ns"] = self.born_ns.get(tid, 1)
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
    looked(times, trace, {70: ({3: 9, 10: 2}, 5000)})  # behind whom it waited longest is not known
    found = times.lately([MINE], behind=True)
    assert found is not None and found.behind == ((99, 0.18), (98, 0.02))
    assert times.lately([OTHER]) is None  # not seen


def test_old_readings_go(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "LATE_S", 0.0)
    times = WaitTimes()
    times.follow({7})
    for waited in (5, 8, 20):
        looked(times, trace, {70: ({0: waited}, waited)})
    found = times.lately([MINE])
    assert found is not None and found.waits == 12


def test_another_thread_of_the_same_id_has_waits_of_its_own(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "LATE_S", 0.0)
    times = WaitTimes()
    times.follow({7})
    looked(times, trace, {70: ({0: 5}, 50)})
    looked(times, trace, {70: ({0: 6}, 60)})
    trace.born_ns[70] = 2
    looked(times, trace, {70: ({0: 8}, 80)})
    found = times.lately([MINE])
    assert found is not None and (found.waits, found.counts[SLOTS]) == (8, 80)


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


def test_who_was_in_the_way_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def at(time_s: float) -> Snapshot:
        columns = {"thread_cpu_time": array(0.1 * time_s), "run_delay": array(0.5 * time_s)}
        return Snapshot(plan({"q": ["a"]}), time_s, columns)

    then = at(10.0)
    window = Window(Snapshot(then.topology, 14.0, at(14.0).columns), then)
    lately = Lately(10.0, np.ones(SLOTS + 1, dtype=np.int64), ((0, 0.4), (os.getpid(), 0.3)))
    stub: Any = SimpleNamespace(lately=lambda threads, behind=False: lately)
    sleeps = SimpleNamespace(lately=lambda _: None)
    engine: Any = SimpleNamespace(name="e", sleeps=sleeps, limits=Limits(), clocks=Clocks())
    one = Found(engine, window, assess(window), stub)
    [thread] = window.now.topology.operators[0].threads
    told = bottlenecks.explained([one], thread.tid)
    assert told is not None
    mine = procfs.name_of(os.getpid())
    assert told.endswith(f", behind an idle CPU 40%, {mine} 30%")
    assert bottlenecks.explained([one], 1) is None
