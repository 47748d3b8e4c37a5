"""Profiles of a fleet, without Spark: shapes of queries out of topology lines, and figures."""

import math
from collections import Counter
from datetime import date
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


FIRST = date(2026, 3, 1).toordinal()


def days_of(*spans: tuple[int, int, int]) -> list[profile.Day]:
    """spans: first and last day, and nodes on each of them, which are added up."""
    counts: Counter[int] = Counter()
    for first, last, nodes in spans:
        counts.update(dict.fromkeys(range(first, last + 1), nodes))
    return [
        profile.Day(date.fromordinal(FIRST + day).isoformat(), nodes)
        for day, nodes in sorted(counts.items())
    ]


FAR = 5000  # days off


@pytest.mark.parametrize(
    ("nodes", "spans", "window", "lonely"),
    [
        # one node, and one that was away
        (1, [(0, 30, 1)], (0, 30), 0),
        (1, [(0, 30, 1), (60, 70, 1)], (60, 70), 0),
        # two, of which one is retired, or joins
        (2, [(0, 30, 2), (31, 60, 1)], (0, 60), 0),
        (2, [(0, 30, 1), (31, 60, 2)], (0, 60), 0),
        # one that was given new names
        (3, [(0, 30, 1)], (0, 30), 0),
        # a fleet that shrinks, and one that grows
        (100, [(0, 13, 100), (14, 59, 20)], (0, 59), 0),
        (100, [(0, 13, 100), (14, 14, 20)], (0, 14), 0),
        (3, [(0, 13, 3), (14, 59, 1)], (0, 59), 0),
        (20, [(0, 13, 2), (14, 59, 20)], (0, 59), 0),
        (20, [(0, 13, 1), (14, 59, 20)], (14, 59), 0),
        # one that was off for weeks
        (10, [(0, 13, 10), (40, 59, 10)], (40, 59), 0),
        # one clock that is far off, or was for a day
        (3, [(0, 30, 2), (FAR, FAR + 30, 1)], (0, 30), 31),
        (4, [(0, 30, 3), (FAR, FAR + 30, 1)], (0, 30), 31),
        (4, [(0, 30, 4), (FAR, FAR, 1)], (0, 30), 1),
        (4, [(0, 30, 3), (-FAR, -FAR + 30, 1)], (0, 30), 31),
        (100, [(0, 30, 99), (FAR, FAR + 30, 1)], (0, 30), 31),
        # two without a clock, which agree on 1970
        (1000, [(0, 30, 998), (-FAR, -FAR + 1, 2)], (0, 30), 2),
        # several that agree neither end it nor are told from a fleet that has become smaller
        (100, [(0, 30, 85), (FAR, FAR + 30, 15)], (0, 30), 0),
        # days ahead, but not far
        (100, [(0, 30, 99), (5, 50, 1)], (0, 30), 0),
    ],
)
def test_the_fleet_is_there_when_several_nodes_say_so(
    nodes: int, spans: list[tuple[int, int, int]], window: tuple[int, int], lonely: int
) -> None:
    known = days_of(*spans)
    there = profile.stretch(known, nodes)
    found = there[0].date, there[-1].date
    assert found == tuple(date.fromordinal(FIRST + day).isoformat() for day in window)
    assert len(profile.alone(known, nodes)) == lonely
    assert profile.stretch([], 0) == []
    assert profile.alone([], 0) == []
