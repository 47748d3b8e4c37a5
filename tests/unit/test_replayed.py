"""Recorded times under other policies: which records count, and what is told of them."""

from typing import Any

import msgspec
import pytest

from plans import plan
from sched_ctl.backends.threads.nice import planned
from sched_ctl.decide.decision import decide
from sched_ctl.metrics.catalogue import resolve
from sched_ctl.model.options import NiceOptions
from sched_ctl.plugins import registry
from sched_ctl.telemetry import records, replay
from sched_ctl.telemetry.span import described

TOPOLOGY = plan({"q": ["a"], "r": ["b"]})
BEGIN_MS = 1_800_000_000_000
HR, CONSTANT = registry.policy("hr"), registry.policy("constant")


def line_of(engine: str = "lab:1") -> records.Topology:
    return msgspec.structs.replace(described(TOPOLOGY, "n", BEGIN_MS, 1), engine=engine)


def record(place: int, **columns: Any) -> records.Record:
    """Of 5 s, the so-manieth. b costs a hundred times as much as a."""
    told: dict[str, Any] = {"tuples_in": [100, 100], "tuples_out": [100, 100]}
    told |= {"cpu": [1000, 100_000], "policy": ["hr", "hr"]}
    told |= {"node": "n", "engine": "lab:1", "epoch": 1, "t": BEGIN_MS + 5000 * place, "d": 5000}
    return records.Record(**(told | columns))


def test_nice_values_are_those_that_load_sets() -> None:
    """Weight is kept, and who has nothing to say stays where it is."""
    [step] = replay.replay([line_of(), record(0)], [HR, CONSTANT])
    assert step.nice["hr"].tolist() == [-3, 7]
    assert step.nice["constant"].tolist() == [0, 0]
    [(_, window)] = replay.windows([line_of(), record(0)], 5.0)
    resolution = resolve(HR.needs, window.now.columns, policy="hr", engine="lab:1")
    schedule = decide("hr", HR, {"lab:1": window}, {"lab:1": resolution})
    assert planned(schedule, NiceOptions())["nice"] == step.nice["hr"].tolist()


@pytest.mark.parametrize("window_s", [5.0, 60.0, 600.0])
def test_a_window_is_as_long_as_it_is_to_be(window_s: float) -> None:
    lines: list[records.Line] = [line_of(), *(record(place) for place in range(200))]
    *_, (_, last) = replay.windows(lines, window_s)
    assert last.seconds == pytest.approx(window_s, rel=0.01)
    assert last.rate("tuples_in").tolist() == pytest.approx([20.0, 20.0])


def test_a_clock_that_was_set_back_begins_a_window() -> None:
    lines: list[records.Line] = [line_of(), *(record(place) for place in (100, 101, 0, 1))]
    found = [window for _, window in replay.windows(lines, 600.0)]
    assert [window.seconds for window in found] == pytest.approx([5.0, 10.0, 5.0, 10.0])
    assert found[-1].gain("tuples_in").tolist() == [200.0, 200.0]
