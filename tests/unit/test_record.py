"""Snapshots and schedules to JSON and back, exactly; and what is not one of ours."""

import json
from typing import Any

import numpy as np
import pytest

from plans import array, plan
from sched_ctl.errors import UserError
from sched_ctl.model.files import (
    snapshot_from_json,
    snapshot_to_json,
)
from sched_ctl.model.graph import Array
from sched_ctl.model.topology import (
    HelperThread,
    PhysicalOperator,
    Snapshot,
    Thread,
    Topology,
    UserThread,
)

NAN, INF = float("nan"), float("inf")

BASE = plan({"q": ["a", "ü/b"]}, helpers=(HelperThread(Thread(1, 9, 2, "gc#1"), "gc", 1),))
SNAPSHOT = Snapshot(
    Topology(
        BASE.engine,
        (
            *BASE.operators,
            PhysicalOperator(
                "q", "c", ("a", "ü/b"), 1, 3, (Thread(4, 5, 6, "c"), UserThread(4, 6, row=2))
            ),
        ),
        BASE.edges,
        BASE.logical,
        BASE.logical_edges,
        BASE.helpers,
        ("two threads look alike",),
    ),
    0.1 + 0.2,
    {"queue_size": array(1 / 3, NAN, INF), "tuples_in": array(2**53 - 1, -0.0, 5e-324)},
    {"cost": array(-INF, 1e308)},
)


def same(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes() or bool(
        ((a == b) | (np.isnan(a) & np.isnan(b))).all() and (np.signbit(a) == np.signbit(b)).all()
    )


def through_text(data: object) -> Any:
    return json.loads(json.dumps(data, allow_nan=False))


def test_a_snapshot_comes_back_exactly() -> None:
    back = snapshot_from_json(through_text(snapshot_to_json(SNAPSHOT)))
    assert back.topology == SNAPSHOT.topology
    assert [t.name for o in back.topology.operators for t in o.threads] == ["", "", "c", ""]
    assert back.time_s == SNAPSHOT.time_s
    for mine, other in ((back.columns, SNAPSHOT.columns), (back.logical, SNAPSHOT.logical)):
        assert mine.keys() == other.keys()
        assert all(same(mine[name], other[name]) for name in other)


def changed(data: dict[str, Any], place: str, value: object) -> dict[str, Any]:
    copy = through_text(data)
    *path, last = [int(key) if key.isdigit() else key for key in place.split(".")]
    part = copy
    for key in path:
        part = part[key]
    if value is None:
        del part[last]
    else:
        part[last] = value
    return dict(copy)


@pytest.mark.parametrize(
    ("place", "value", "text"),
    [
        ("version", 99, "version is 99"),
        ("kind", "schedule", "kind"),
        ("engine", None, "engine"),
        ("extra", 1, "extra"),
        ("edges.0.target", 3, "edges.0. names an operator outside 0..2"),
        ("edges.0.source", -1, "edges.0. names"),
        ("edges.0.share", -1, "share is -1"),
        ("helpers.0.serves", 3, "helpers.0..serves"),
        ("operators.0.replica", 1, "replica is 1 of 1"),
        ("operators.0.threads.0.tid", "x", "Expected `int`, got `str`"),
        ("columns.queue_size", [1], "queue_size has 1 entries for 3"),
        ("columns.queue_size.0", "nan", "'nan'"),
        ("columns.queue_size.0", [], "got `array`"),
        ("logical_columns.cost", [1, 2, 3], "cost has 3 entries for 2"),
    ],
)
def test_what_is_no_snapshot(place: str, value: object, text: str) -> None:
    with pytest.raises(UserError, match=text):
        snapshot_from_json(changed(snapshot_to_json(SNAPSHOT), place, value))


@pytest.mark.parametrize("data", [None, 3, [], {}, "x"])
def test_garbage(data: object) -> None:
    with pytest.raises(UserError, match="no recording"):
        snapshot_from_json(data)
