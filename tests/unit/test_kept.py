"""What a run of all tests took is kept as a file."""

import json
from pathlib import Path
from typing import Any

import kept
import pytest


def report(name: str, when: str, seconds: float) -> pytest.TestReport:
    return pytest.TestReport(name, ("f", 1, "n"), {}, "passed", None, when, duration=seconds)  # type: ignore[arg-type]


def test_a_run_of_all_tests_is_kept_and_one_of_some_is_not(tmp_path: Path) -> None:
    reports: list[Any] = ["collected"]
    for number in range(kept.WHOLE):
        for when in ("setup", "call", "teardown"):
            reports.append(report(f"t::{number}", when, number / 1000))
        if number in (1, 2):
            reports[-2].user_properties.append(("cpu_s", 4.0 * number))  # of the call
    guests = [{"name": "6.16", "seconds": 3.0}, {"name": "7.3", "seconds": 9.0}]
    assert kept.keep(tmp_path / "a", reports[:-6], guests) is None
    assert not (tmp_path / "a").exists()
    path = kept.keep(tmp_path / "a" / "b", reports, guests)
    assert path is not None
    found = json.loads(path.read_text())
    assert [guest["name"] for guest in found["guests"]] == ["7.3", "6.16"]
    assert list(found["check_cpu_seconds"].items()) == [("t::2", 8.0), ("t::1", 4.0)]
    [slowest, *_] = found["tests"].items()
    assert slowest == (f"t::{kept.WHOLE - 1}", pytest.approx(3 * (kept.WHOLE - 1) / 1000, abs=0.01))
    assert len(found["tests"]) == kept.WHOLE
