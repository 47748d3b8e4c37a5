"""Profiles of a fleet, without Spark: shapes of queries out of topology lines, and figures."""

import math
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from sched_ctl.pipeline import profile
from sched_ctl.telemetry import records


def text(**fields: Any) -> str:
    plain: dict[str, Any] = {"queries": ["q", "r"], "ops": ["a", "b", "b", "a"]}
    plain |= {"query_of": [0, 0, 0, 1], **fields}
    line = records.Topology(node="n", t=1_800_000_000_000, engine="lab:1", epoch=1, **plain)
    return records.encode(line).decode()


def test_replicas_of_a_query_are_one() -> None:
    shares = [(0, 1, 0.25), (0, 2, 0.75), (1, 3, 1.0), (1, 2, 0.5)]
    assert profile.shapes_of(text(edges=shares)) == {
        "q": (["a", "b"], [(0, 1, 1.0), (1, 1, 0.25)]),  # nothing goes from query to query
        "r": (["a"], []),
    }
    twice = profile.shapes_of(text(queries=["q", "q"]))
    assert twice == {"q": (["a", "b"], [])}  # the first of a name


def test_a_line_that_cannot_be_read_again_has_no_shapes() -> None:
    assert profile.shapes_of(text(logical=[(0, "x" * 60_000)] * 200)) == {}


@pytest.mark.parametrize("a_day", [None, -800.0, 0.5, 800.0])
def test_a_drift_is_a_share_or_unknown(a_day: float | None) -> None:
    expected = {None: None, -800.0: -1.0, 0.5: math.expm1(0.5), 800.0: None}
    assert profile._drift(a_day) == expected[a_day]
