"""The words of `./dev demo --flink`."""

import pytest

from bench.real import demo, flink
from bench.real.abba import OS, Phase
from bench.real.demo import DONE, MEAN, TAIL, told
from bench.real.flink import AUTO


def test_one_number_is_the_ratio_to_the_phases_around() -> None:
    phases = [
        Phase(way, {MEAN: mean, TAIL: 10 * mean, DONE: done}, 1.0)
        for way, mean, done in (
            (OS.name, 10.0, 100.0),
            (AUTO.name, 5.0, 99.0),
            (OS.name, 10.0, 100.0),
            (AUTO.name, 6.0, 101.0),
            (OS.name, 10.0, 100.0),
        )
    ]
    light, heavy, number, _ = told(phases)
    assert "5.5 ms on average instead of 10" in light
    assert heavy.startswith("heavy: 1.00 of the records")
    assert number == "the number: 0.55 of the OS's mean latency (0.50 to 0.60 in 2 phases)"


def test_no_engine_is_started_beside_a_controller(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["demo"])
    monkeypatch.setattr(demo, "others", lambda: [17])
    monkeypatch.setattr(flink, "run", lambda *_: pytest.fail("started"))
    with pytest.raises(SystemExit, match="end it first: sched-ctl unload"):
        demo.main()
    assert "error: a controller runs, and would disturb it: pid 17\n" in capsys.readouterr().err
