"""What the demo says of its phases: by query, and who gained and who paid in a sentence each."""

from typing import Any

import pytest

from sched_ctl.demo.results import (
    OS,
    Distribution,
    Options,
    Phase,
    Query,
    Results,
    Total,
    sentences,
    summary,
)


def phase(scheduler: str, pair: int, light: float, heavy: float, drain_s: float = 1.0) -> Phase:
    """light, heavy: median latencies in s, of which the 99th percentile is four times."""
    all_of_them = Distribution(mean=heavy, p50=light, p99=4 * heavy, max=5 * heavy)
    queries = [
        Query("alarms", 50.0, Distribution(mean=light, p50=light, p99=4 * light)),
        Query("archive", 100.0, Distribution(mean=heavy, p50=heavy, p99=4 * heavy)),
    ]
    total = Total(150.0, all_of_them, all_of_them)
    results = Results(150.0, 4.0, drain_s, 1.0, 1.0, 1.0, 0.9, total, queries)
    return Phase(scheduler, pair, results, 0.0)


def found(*phases: Phase) -> list[dict[str, Any]]:
    options = Options(policy="light-first", phases=len(phases) // 2)
    rows: list[dict[str, Any]] = summary(options, list(phases), "nice")["queries"]
    return rows


def test_ratios_are_of_pairs() -> None:
    alarms, archive = found(
        phase(OS, 0, 0.010, 1.0),
        phase("light-first", 0, 0.002, 1.0),
        phase("light-first", 1, 0.001, 2.0),
        phase(OS, 1, 0.020, 2.0),
    )
    assert alarms["query"] == "alarms" and archive["query"] == "archive"
    assert alarms["p50_ms"] == {
        "os": pytest.approx(15),
        "policy": pytest.approx(1.5),
        "ratio": pytest.approx(0.1),  # the geometric mean of .2 and .05
    }
    assert archive["p99_ms"]["ratio"] == pytest.approx(1.0)
    assert archive["tuples_per_s"]["os"] == pytest.approx(20)


def test_who_gains_and_that_nobody_pays() -> None:
    gains, pays = sentences(found(phase(OS, 0, 0.010, 1.0), phase("light-first", 0, 0.002, 1.0)))
    assert gains == (
        "alarms: half of its tuples take 2 ms or less instead of 10; one in a hundred takes more "
        "than 8 ms instead of 40."
    )
    assert pays.startswith("Nobody pays; archive: 100% of the tuples")


@pytest.mark.parametrize(("heavy", "drain_s"), [(1.5, 1.0), (1.0, 2.5)])
def test_who_pays_is_named(heavy: float, drain_s: float) -> None:
    _, pays = sentences(
        found(phase(OS, 0, 0.010, 1.0), phase("light-first", 0, 0.002, heavy, drain_s))
    )
    assert pays.startswith("Who pays: archive: ")


def test_without_latencies_nothing_is_said() -> None:
    nothing = float("nan")
    assert sentences(found(phase(OS, 0, 0.0, 0.0), phase("hr", 0, nothing, nothing))) == []
