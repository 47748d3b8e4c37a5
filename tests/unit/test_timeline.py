"""A timeline for Perfetto, from a log of switches."""

import json
import os
import time

import numpy as np
import numpy.typing as npt
import pytest

from sched_ctl.kernel.runs import PREEMPTED, SWITCH, WAKING
from sched_ctl.probes import timeline
from sched_ctl.probes.timeline import Event, events

A, B, HOG = 11, 12, 99
OF = {A: 10, B: 10}
# (us, from, to, CPU, what): A wakes B while HOG has the other CPU; B waits behind it, is preempted.
LOG = [
    (0, 0, A, 0, SWITCH),
    (5, 0, HOG, 1, SWITCH),
    (10, A, B, 0, WAKING),
    (30, HOG, B, 1, SWITCH),
    (35, B, HOG, 1, PREEMPTED),
    (40, A, 0, 0, SWITCH),
    (50, HOG, B, 1, SWITCH),
    (60, B, 0, 1, SWITCH),
]


Rows = list[tuple[int, int, int, int, int]]


def told(log: Rows = LOG) -> list[Event]:
    rows = [(1000 * us, *rest) for us, *rest in log]
    return list(events(rows, OF, "t{}".format))  # type: ignore[arg-type]


def slices(what: str, tid: int, log: Rows = LOG) -> list[tuple[float, float]]:
    found = [e for e in told(log) if e["ph"] == "X" and e["name"] == what and e["tid"] == tid]
    return [(e["ts"], e["dur"]) for e in found]


def test_runs_and_waits_are_as_long_as_they_were() -> None:
    assert slices("runs", A) == [(0, 40)]
    assert slices("runs", B) == [(30, 5), (50, 10)]
    assert slices("waits", B) == [(10, 20), (35, 15)]
    assert slices("runs", HOG) == []  # nobody asked


def test_who_is_woken_while_it_runs_does_not_wait() -> None:
    log = [
        (0, 0, B, 0, SWITCH),
        (10, A, B, 1, WAKING),
        (20, B, 0, 0, SWITCH),
        (5000, A, B, 1, WAKING),
        (5030, 0, B, 0, SWITCH),
    ]
    assert slices("waits", B, log) == [(5000, 30)]


def test_what_lasts_to_the_end_is_drawn_so_far() -> None:
    """A runs to the end, and B waits: whoever starves is what is looked for."""
    log = [*LOG[:-1], (70, B, A, 1, PREEMPTED), (80, 0, HOG, 0, SWITCH)]
    assert slices("runs", A, log) == [(0, 40), (70, 10)]
    assert slices("waits", B, log) == [(10, 20), (35, 15), (70, 10)]
    woken_while_it_runs = [(0, 0, B, 0, SWITCH), (10, A, B, 1, WAKING), (30, 0, HOG, 1, SWITCH)]
    assert slices("waits", B, woken_while_it_runs) == []
    asleep = [*woken_while_it_runs, (40, B, 0, 0, SWITCH), (50, 0, HOG, 0, SWITCH)]
    assert slices("waits", B, asleep) == [] and slices("runs", B, asleep) == [(0, 40)]


def test_a_wait_names_who_ran_meanwhile_and_who_woke_it() -> None:
    first, second = (e["args"] for e in told() if e["name"] == "waits")
    assert first == {"cpu": 1, "behind": ["t99 (99)"], "woken_by": "t11"}
    assert second == {"cpu": 1, "behind": ["t99 (99)"]}
    arrows = [(e["ph"], e["tid"], e["ts"]) for e in told() if e["name"] == "wakes"]
    assert arrows == [("s", A, 10), ("f", B, 10)]


def test_every_event_has_what_the_format_asks_for() -> None:
    found = told()
    assert json.loads(json.dumps(found)) == found
    for event in found:
        assert {"ph", "name", "pid", "tid"} <= event.keys()
        assert event["ph"] in "XMsf"
        if event["ph"] == "X":
            assert event["dur"] >= 0 and event["ts"] >= 0
    names = {e["tid"]: e["args"]["name"] for e in found if e["ph"] == "M"}
    assert names == {A: "t11", B: "t12"}
    assert list(events([], {}, str)) == []


class Log:
    """A log of switches that has all of `LOG` at once."""

    full = False

    def __init__(self, _pids: object) -> None:
        self.now_ns = time.monotonic_ns()

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self) -> npt.NDArray[np.int64]:
        return np.array([(self.now_ns + 1000 * us, *rest) for us, *rest in LOG])


def test_values_lie_beside_the_runs_and_threads_have_names_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timeline, "RunLog", Log)
    me = os.getpid()
    looks = iter(range(100))
    found = timeline.record(
        [me], None, 0.1, names={me: "q/op"}, sample=lambda: {(0, "turns"): next(looks)}
    )["traceEvents"]
    assert [e["args"]["name"] for e in found if e["tid"] == me and e["ph"] == "M"] == ["q/op"]
    values = [(e["pid"], e["name"], e["args"]["value"]) for e in found if e["ph"] == "C"]
    assert values == [(0, "turns", n) for n in range(len(values))] and values
    assert all(e["ts"] >= 0 for e in found if e["ph"] == "C")
