"""How figures are made of runs under the OS and under us, on runs made by hand."""

import contextlib
import itertools
import json
import math
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import guest
import kernels
import pytest

from bench.guest import inside, kernel, kernel_inside, phases, stops, targets
from bench.papers import threads
from bench.real import abba
from bench.results import Figure
from sched_ctl.model.targets import Target


def phase(who: str, ms: list[float], **more: Any) -> dict[str, Any]:
    made = {"phase": who, "begin": 0.0, "end": 2.0, "queries": {"q": ms}}
    return {**made, "roles": {}, "switches": 10.0, "idle": 0.0, **more}


def test_chance_alone_is_no_gain() -> None:
    """Ours is now half, now twice as long as the OS's middle, which swings as much."""
    run = [phase("os", [20.0]), phase("hr", [20.0]), phase("hr", [80.0]), phase("os", [80.0])]
    [mean] = [row for row in phases.table("case", [run], "6.18").rows if row.name == "q mean"]
    own, ours = mean.figures["OS"], mean.figures["hr"]
    assert isinstance(own, Figure) and own.value == pytest.approx(40.0)
    assert (own.low, own.high, ours) == (0.5, 2.0, Figure(1.0, 0.5, 2.0))
    around = [
        abba.Phase(way, {"mean (ms)": ms}, 1.0)
        for way, ms in (("OS", 20.0), ("hr", 40.0), ("OS", 80.0))
    ]
    assert abba.ratios(around)["hr"]["mean (ms)"] == [pytest.approx(1.0)]
    around[0] = abba.Phase(
        "OS", {"mean (ms)": 0.0}, 1.0
    )  # which a geometric mean leaves nothing of
    assert abba.ratios(around)["hr"]["mean (ms)"] == [pytest.approx(1.0)]


def test_the_first_phase_of_each_way_is_left_out_and_no_other() -> None:
    """The OS of a round whose first phase is left out is its other one."""
    rounds = [
        [phase("os", [cold]), phase("qs", [cold / 2]), phase("qs", [30.0]), phase("os", [20.0])]
        for cold in (900.0, 20.0)
    ]
    left = phases.without_first({"case": rounds, "other": rounds[:1]})
    told = [[(p["phase"], p["queries"]["q"]) for p in run] for run in left["case"]]
    assert told[0] == [("qs", [30.0]), ("os", [20.0])]
    assert told[1] == [("os", [20.0]), ("qs", [10.0]), ("qs", [30.0]), ("os", [20.0])]
    assert len(left["other"][0]) == 2
    result = phases.table("case", left["case"], "6.18")
    [mean] = [row.figures for row in result.rows if row.name == "q mean"]
    own = mean["OS"]
    assert isinstance(own, Figure) and own.value == pytest.approx(20.0)
    assert (result.n, own.low, own.high) == (3, 1.0, 1.0)
    assert mean["qs"] == Figure(round(1.125 ** (1 / 3), 4), 0.5, 1.5)


@pytest.mark.parametrize(("code", "why"), [(guest.TIMED_OUT, "its time was up"), (1, "it ended")])
def test_runs_that_a_guest_did_not_come_to_are_told(
    code: int, why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table of fewer seeds would look like one that was asked for."""
    todo = [{"name": "case/eevdf", "seed": seed} for seed in (1, 2, 3)]

    @contextlib.contextmanager
    def boot(*_: object) -> Iterator[Mock]:
        yield Mock(output=lambda: [b'@@{"seed": 1}\n@@{"se', b'ed": 2}\n'], returncode=code)

    monkeypatch.setattr(guest, "boot", boot)
    monkeypatch.setattr(kernels, "find", Path)
    assert [result["seed"] for result in kernel.run(todo, "6.18")] == [1, 2]
    assert f"the guest did 2 of 3 runs: {why}" in capsys.readouterr().err
    list(phases.from_guest("storm_inside", [], "6.18", 1, 60.0))
    assert ("time was up" in capsys.readouterr().err) == (code == guest.TIMED_OUT)
    assert list(kernel.run(todo[:2], "6.18")) and not capsys.readouterr().err


def test_phases_are_compared_within_their_guest() -> None:
    """What is zero in one of the OS's phases is compared, and what it lacks is told as it is."""
    runs = [
        [
            phase("os", [10.0 * n], late={"q": 0.0}),
            phase("hr", [5.0 * n], late={"q": 0.01}, roles={"ours": (5e8, 0, 1)}),
            phase("os", [10.0 * n], late={"q": 0.04}),
        ]
        for n in (1, 8)
    ]
    result = phases.table("case", runs, "6.18")
    rows = {row.name: row.figures for row in result.rows}
    assert (result.columns, result.n) == (["OS", "hr"], 2)
    own = rows["q p99"]["OS"]
    assert isinstance(own, Figure) and own.value == pytest.approx(45.0)
    assert rows["q p99"]["hr"] == Figure(0.5, 0.5, 0.5)
    assert rows["q late, %"] == {"OS": Figure(2.0, 0.0, 2.0, "%"), "hr": Figure(0.5, 0.5, 0.5)}
    assert rows["CPU: ours"] == {"OS": "-", "hr": Figure(0.25, 1.0, 1.0, "CPUs")}
    assert rows["q tuples/s"]["OS"] == Figure(0.5, 1.0, 1.0, "/s")


def test_a_phase_without_a_tuple_is_not_left_out() -> None:
    """A policy that starves a query, and an OS that does, have no mean latency."""

    def of(who: str, ms: list[float]) -> dict[str, Any]:
        return phase(who, [], queries={"q": ms, "other": [1.0]})

    fine, starved = of("os", [10.0]), of("os", [])
    for run in (
        [fine, of("hr", [5.0]), of("hr", []), fine],
        [fine, of("hr", [5.0]), of("hr", [5.0]), starved],
    ):
        result = phases.table("case", [run, [fine, of("hr", [5.0]), fine]], "6.18")
        rows = {row.name: row.figures for row in result.rows}
        assert rows["q mean"]["hr"] == "-" != rows["q tuples/s"]["hr"]
        assert (rows["q mean"]["OS"] == "-") == (starved in run)
        assert rows["other mean"]["hr"] == Figure(1.0, 1.0, 1.0)


def of_query(name: str, *histogram: tuple[float, int]) -> dict[str, Any]:
    latency = {"histogram": [*histogram]}
    return {"name": name, "departures": sum(n for _, n in histogram), "latency_s": latency}


def test_percentiles_are_those_of_all_tuples() -> None:
    """And not a mean of each query's: the rare one has all that is late."""
    queries = [
        of_query("alarm0", (0.001, 985)),
        of_query("alarm1", (0.001, 5), (0.1, 10)),
        of_query("report0", (0.02, 3), (0.05, 1)),
        of_query("bulk0"),
    ]
    asked = [Target(queries=("alarm*",), latency="10ms")]
    found = targets.figures(
        {
            "by_query": [kernel_inside.of_query(query, asked) for query in queries],
            "histograms": kernel_inside.added_up(queries),
        }
    )
    assert (found["alarm p50"], found["alarm p99"]) == (1.0, 1.0)
    assert found["alarm met"] == pytest.approx(0.99)
    assert found["alarm worst"] == 1 / 3
    assert (found["report p50"], found["report p99"]) == (20.0, 50.0)
    assert "report met" not in found and math.isnan(found["bulk p99"])


def test_who_still_waits_at_the_end_is_served_and_counts() -> None:
    [job] = targets.jobs("cameo", ["eevdf"], [1], 8.0)
    assert float(job["arguments"][job["arguments"].index("--drain") + 1]) > 8.0


def test_a_range_of_targets_is_of_their_mean_and_a_failed_seed_counts_for_none() -> None:
    histograms = {"alarm": [(0.01, 1)], "report": [(0.02, 1)], "bulk": [(0.1, 1)]}
    query = {"query": "alarm0", "departures": 10}
    found = [
        {"job": "cameo/nice-hr", "seed": 1, "histograms": histograms},
        {"job": "cameo/nice-hr", "seed": 2, "histograms": {**histograms, "alarm": [(0.03, 1)]}},
        {"job": "cameo/eevdf", "seed": 1, "histograms": histograms},
    ]
    runs = [
        {**of, "by_query": [{**query, "met": met}]}
        for of, met in zip(found, (0.4, 0.8, 0.5), strict=True)
    ]
    runs.append({"job": "cameo/eevdf", "seed": 2, "error": "stalled"})
    result = targets.table("cameo", runs, "6.18")
    hr, eevdf = result.rows
    assert hr.figures["alarm p99"] == Figure(20.0, 0.5, 1.5, "ms")
    assert hr.figures["alarm met"] == Figure(0.6, 0.4, 0.8)
    assert (result.n, hr.n, eevdf.n) == (2, None, 1)


def test_a_scheduler_that_the_kernel_has_ended_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What came after was the fair class's work."""

    class Loaded(contextlib.nullcontext[None]):
        ended = ""

        def __init__(self, **options: object) -> None:
            super().__init__()

        def __enter__(self) -> Any:
            return self

        def attach(self) -> None:
            pass

        def stats(self) -> dict[str, int]:
            return {"runs": 3}

        def exit(self) -> str:
            return self.ended

    monkeypatch.setattr(kernel_inside, "Scheduler", Loaded)
    monkeypatch.setattr(kernel_inside, "enforce_scx", lambda *_: None)
    with kernel_inside.enforcer({"kind": "scx"}) as (_, report):
        assert report() == {}
        Loaded.ended = "runnable task stall"
        with pytest.raises(RuntimeError, match="task stall"):
            report()


@pytest.mark.parametrize("ends", [True, False])
def test_only_what_fails_because_the_engine_ends_is_no_failure(ends: bool) -> None:
    class Engine:
        def wait(self, timeout: float) -> int:
            if not ends:
                raise subprocess.TimeoutExpired("labspe", timeout)
            return 0

    fails = contextlib.nullcontext() if ends else pytest.raises(KeyError)
    with fails, kernel_inside.unless_ended(cast(Any, Engine())):
        raise KeyError("verdict")


def test_tuples_a_second_are_of_the_time_in_which_they_are_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The engine counts an operator's tuples from its start, and seconds from the warm-up's end."""

    def engine(command: Sequence[str], **_: object) -> None:
        told = dict(itertools.pairwise(command))
        seconds = float(told["--duration"]) - float(told["--warmup"])
        took = {"in": 100 * (float(told["--duration"]) + 0.02)}
        report = {"operators": [took, took], "seconds": seconds, "drain_s": 0.02}
        Path(told["--results"]).write_text(json.dumps(report))

    monkeypatch.setattr("subprocess.run", engine)
    found = threads.run(tmp_path / "two.graph", ("--threads", "pool:2"), 4.0, 1)
    assert found == pytest.approx(200)


def test_a_stop_is_compared_with_the_middle_of_the_systems() -> None:
    """The first phase does not count."""

    def stopped(who: str, *took_s: float) -> dict[str, Any]:
        return {"phase": who, "stops": {"frozen": [(4.0, s) for s in took_s]}, "bulk": 0.4}

    rows = stops.table(
        [
            stopped("os", 99.0),
            stopped("os", 4.0, 16.0),
            stopped("hr", 2.0, 4.0),
            stopped("os", 8.0),
        ]
    )
    caught_up, other = rows
    assert caught_up.figures["EEVDF"] == Figure(2.0, 0.5, 2.0, "s")
    assert caught_up.figures["hr"] == Figure(0.375, 0.25, 0.5)
    assert (other.name, other.figures["EEVDF"]) == (stops.OTHER, Figure(0.4, 1.0, 1.0, "CPUs"))


def run(variant: str, seed: int, mean_s: float) -> dict[str, Any]:
    latency = {"mean": mean_s, "p50": mean_s, "p99": 2 * mean_s}
    slowdown = {"mean": 2.0, "max": 4.0}
    total: dict[str, Any] = {"latency_s": latency, "processing_s": latency, "slowdown": slowdown}
    one = {"throughput": 100.0, "queue_variance": 1.0, "context_switches_per_s": 50.0}
    total["slowdown_l2"] = 3.0
    return {"job": f"syn-0.9/{variant}", "seed": seed, "total": total, **one}


def test_runs_of_a_kernel_are_compared_seed_by_seed() -> None:
    """A run that failed, or whose seed has none of the OS's, is left out; so is what no run has."""
    failed = {"job": "syn-0.9/scx-hr", "seed": 2, "error": "stalled"}
    found = [
        *(run("eevdf", 1, 0.1), run("eevdf", 2, 0.4)),
        *(run("nice-hr", 1, 0.05), run("nice-hr", 2, 0.8), run("nice-hr", 3, 9.0)),
        *(run("scx-hr", 1, 0.02), failed),
        {**run("eevdf", 1, 1.0), "job": "other/nice-hr"},
    ]
    [(case, result)] = kernel.tables(found, "6.18").items()
    nice, scx = result.rows
    assert (case, result.n, result.seeds) == ("syn-0.9", 2, [1, 2])
    assert "250 ms" in result.title and "high" not in result.columns
    assert (nice.n, nice.figures["mean"]) == (None, Figure(1.0, 0.5, 2.0))
    assert (scx.n, scx.figures["p99"]) == (1, Figure(0.2, 0.2, 0.2))
    together = kernel.together(found, "6.18")
    assert [(row.name, row.n) for row in together.rows] == [
        ("syn-0.9, nice-hr", 2),
        ("syn-0.9, scx-hr", 1),
    ]


def test_a_thread_that_is_looked_at_late_has_no_more_than_one_cpu() -> None:
    """Samples of 10 s around a phase of 12 s: a whole CPU is one, and so are its runs a second."""
    before = inside.Sampled("executor", [10**9, 5 * 10**8, 100], 100.0)
    after = inside.Sampled("executor", [31 * 10**9, 65 * 10**8, 700], 130.0)
    assert inside.spent(before, after, 12.0) == [12 * 10**9, 24 * 10**8, 240]
    assert inside.spent(None, after, 12.0) == after.so_far
