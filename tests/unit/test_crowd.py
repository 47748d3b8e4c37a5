"""How crowded the CPUs are, and what patience it makes."""

import os
from pathlib import Path
from typing import Never

import pytest

from sched_ctl.drivers import DriverKind, Target
from sched_ctl.engines.engine import Engine
from sched_ctl.errors import EngineError
from sched_ctl.kernel.crowd import MOST, lasting, slowness


@pytest.mark.parametrize(
    ("text", "wanting"),
    [
        ("0.00 0.01 0.05 1/213 4711\n", 0.0),
        ("8.00 1.00 1.00 2/213 4711\n", 8.0),  # the last minute
        ("0.10 0.10 0.10 40/213 4711\n", 40.0),  # a burst
        ("1e9 0.10 0.10 2/213 4711\n", 1e9),
    ],
)
def test_the_larger_of_now_and_the_last_minute(text: str, wanting: float, tmp_path: Path) -> None:
    path = tmp_path / "loadavg"
    path.write_text(text)
    expected = min(MOST, max(1.0, wanting / (os.cpu_count() or 1)))
    assert slowness(path) == pytest.approx(expected)
    minute = float(text.split()[0])
    allowed = os.sched_getaffinity(0)
    assert lasting(path) == pytest.approx(minute / len(allowed))
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert lasting(path) == pytest.approx(minute)  # all may want the one that is ours
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize("text", ["", "x", "a b c d e", "1 2 3"])
def test_what_cannot_be_read_is_calm(text: str, tmp_path: Path) -> None:
    path = tmp_path / "loadavg"
    path.write_text(text)
    assert slowness(path) == 1.0
    assert slowness(tmp_path / "none") == 1.0
    assert lasting(tmp_path / "none") == 0.0


@pytest.mark.parametrize("text", ["", "x"])
def test_of_a_minute_that_cannot_be_read_nobody_is_known(text: str, tmp_path: Path) -> None:
    path = tmp_path / "loadavg"
    path.write_text(text)
    assert lasting(path) == 0.0


def test_of_this_machine() -> None:
    assert 1.0 <= slowness() <= MOST


def nobody(target: Target) -> Never:
    raise EngineError("nobody listens")


@pytest.mark.parametrize(("crowd", "released_after_s"), [(1.0, 10.0), (20.0, 200.0)])
def test_an_engine_that_gets_no_cpu_is_kept_longer(crowd: float, released_after_s: float) -> None:
    engine = Engine(Target("fake", "a"), DriverKind("fake", tuple, nobody, prompt=True), 10.0)
    try:
        engine.state, engine.answered_s = "silent", 100.0
        for second in range(101, int(100 + released_after_s)):
            assert engine.check(float(second), 1.0, 10.0, crowd) is None
            assert engine.state == "silent"
        said = engine.check(101 + released_after_s, 1.0, 10.0, crowd)
        assert said is not None and engine.state == "released"
    finally:
        engine.close()


def test_patience_ends_with_the_crowd() -> None:
    engine = Engine(Target("fake", "a"), DriverKind("fake", tuple, nobody, prompt=True), 10.0)
    try:
        engine.state, engine.answered_s = "silent", 100.0
        assert engine.check(200.0, 1.0, 10.0, 20.0) is None  # 5 of the 10 s
        assert engine.check(204.0, 1.0, 10.0, 1.0) is None
        assert engine.check(206.0, 1.0, 10.0, 1.0) is not None
    finally:
        engine.close()
