"""The lab engine: it loses nothing, burns what it says, measures what happens."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import labengine
import numpy as np
import pytest
from labengine import CHAIN, WORKLOADS
from labs import command, sched_ctl

from sched_ctl.sim.arrivals import arrival_times
from sched_ctl.workloads.demand import rate_scale, tuple_rates
from sched_ctl.workloads.resolved import resolved_file
from sched_ctl.workloads.workload import Arrivals, load
from support import wait_until

pytestmark = [pytest.mark.host, pytest.mark.needs("cc")]

# Light, but many tuples: cheap operators at a high rate.
BRIEF = ("--duration", 0.5, "--warmup", 0, "--cpus", 1, "--utilisation", 0.15, "--base-cost-us", 5)
MODES = {
    "threads": (),
    "bounded": ("--bounded", 4),
    "pool": ("--threads", "pool:2", "--batch", "all"),
    "pool-bounded": ("--threads", "pool:2", "--bounded", 4, "--batch", 8),
}
RECORDED = [
    *((time, "<u8") for time in ("due", "entry", "out")),
    *(("operator", "<u4"), ("ideal", "<u4")),
]
ALL = sorted(WORKLOADS.glob("*.graph"))
JOIN = """workload join base_cost_us=20
query q
op l cost=1
op r cost=1
op j cost=1 selectivity=0.2 window_ms=20
op split cost=0.5 selectivity=2.5
op a cost=1 block_probability=0.01 block_max_ms=2
op b cost=1
op sink cost=1
edge l j
edge r j
edge j split
edge split a share=0.3
edge split b share=0.7
edge a sink
edge b sink
source l
source r rate=2 arrivals=onoff on_ms=20 off_ms=20 shape=1.5
"""


@pytest.fixture
def join(tmp_path: Path) -> Path:
    path = tmp_path / "join.graph"
    path.write_text(JOIN)
    return path


def counts(results: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {f"{op['query']}/{op['name']}": (op["in"], op["out"]) for op in results["operators"]}


def assert_conserved(path: Path, results: dict[str, Any]) -> None:
    """What an operator took in is what its upstream ones put out; what left was recorded."""
    seen = counts(results)
    departures = 0
    for query in load(path).queries:
        for op in query.operators:
            took, put = seen[f"{query.name}/{op.name}"]
            inputs = [stream for stream in query.streams if stream.target == op.name]
            if inputs and all(stream.share == 1 for stream in inputs):
                assert took == sum(seen[f"{query.name}/{s.source}"][1] for s in inputs), op.name
            if not op.window_s:
                fraction = op.selectivity % 1
                deviation = (took * fraction * (1 - fraction)) ** 0.5
                assert abs(put - took * op.selectivity) <= 5 * deviation + 1e-6, op.name
            departures += put * all(stream.source != op.name for stream in query.streams)
    assert results["left"] == 0
    assert results["total"]["departures"] == departures > 0
    assert sum(count for _, count in results["total"]["latency_s"]["histogram"]) == departures


def together(path: Path, *runs: Sequence[object], sanitizer: str = "") -> list[dict[str, Any]]:
    """Results of runs with these options beside each other: most of the time nothing comes."""
    labengine.program(sanitizer)
    with ThreadPoolExecutor(len(runs)) as pool:
        return list(pool.map(lambda run: labengine.run(path, *run, sanitizer=sanitizer), runs))


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_no_tuple_is_lost_and_the_seed_decides(path: Path) -> None:
    other = *MODES["pool"], "--seed", 2
    *runs, reseeded = together(path, *((*BRIEF, *more) for more in (*MODES.values(), other)))
    for results in runs:
        assert_conserved(path, results)
    first = counts(runs[0])
    assert all(counts(results) == first for results in runs)
    if path.stem != "train":  # whose arrivals are constant
        assert counts(reseeded) != first


def test_joins_splits_and_blocking_do_not_depend_on_the_scheduler(join: Path) -> None:
    options = ("--duration", 1, "--warmup", 0, "--cpus", 1, "--utilisation", 0.3)
    runs = [labengine.run(join, *options, *mode) for mode in MODES.values()]
    seen = counts(runs[0])
    assert all(counts(results) == seen for results in runs)
    assert_conserved(join, runs[0])
    assert seen["q/a"][0] + seen["q/b"][0] == seen["q/split"][1]
    assert seen["q/a"][0] / seen["q/split"][1] == pytest.approx(0.3, abs=0.1)
    # Pairs inside the window, both ways: 2 * V * rate * rate * selectivity; On/Off makes it vary.
    expected = 2 * 0.02 * seen["q/l"][0] * seen["q/r"][0] * 0.2
    assert 0.4 < seen["q/j"][1] / expected < 2.5


@pytest.mark.parametrize("sanitizer", ["address", "undefined", "thread"])
def test_sanitizers_find_nothing(sanitizer: str, join: Path) -> None:
    runs = [(*BRIEF, *mode) for mode in MODES.values()]
    for path in (join, WORKLOADS / "vs.graph"):
        for results in together(path, *runs, sanitizer=sanitizer):
            assert results["left"] == 0


@pytest.mark.quiet
def test_burns_the_cpu_time_it_says(tmp_path: Path) -> None:
    path = tmp_path / "two.graph"
    path.write_text(
        "workload two base_cost_us=400\nquery q\nop one cost=1\nop four cost=4\nedge one four\n"
        "source one\n"
    )
    ratios: list[float] = []
    while not any(ratio == pytest.approx(4, rel=0.1) for ratio in ratios):
        assert len(ratios) < 3, ratios  # a shared CPU is not always equally fast
        results = labengine.run(path, "--duration", 1.5, "--warmup", 0, "--cpus", 1)
        one, four = (op["cpu_s"] / op["in"] for op in results["operators"])
        assert one > 0.9 * 400e-6  # the work is done, not optimised away
        ratios.append(four / one)


def test_utilisation_means_the_same_to_the_simulator(join: Path) -> None:
    for path in (*ALL, join):
        described = json.loads(
            subprocess.run(
                command("lab", str(path), "--describe", "--utilisation", "0.7", "--cpus", "3"),
                capture_output=True,
                check=True,
            ).stdout
        )
        workload = load(path)
        scale = rate_scale(workload, 0.7, 3)
        assert described["scale"] == pytest.approx(scale, rel=1e-9)
        assert described["cpus_needed"] == pytest.approx(2.1, rel=1e-9)
        rates = {
            (query.name, name): rate
            for query in workload.queries
            for name, rate in tuple_rates(query, scale).items()
        }
        for op in described["operators"]:
            assert op["rate"] == pytest.approx(rates[op["query"], op["name"]], rel=1e-9)


def test_histograms_agree_with_the_departures(tmp_path: Path) -> None:
    record = tmp_path / "record"
    results = labengine.run(WORKLOADS / "vs.graph", *BRIEF, "--record", record, *MODES["threads"])
    rows = np.fromfile(record, RECORDED)
    latency = (rows["out"] - rows["due"]) * 1e-9
    for name, direct in (
        ("latency_s", latency),
        ("processing_s", (rows["out"] - rows["entry"]) * 1e-9),
        ("slowdown", latency / (rows["ideal"] * 1e-9)),
    ):
        told = results["total"][name]
        assert told["mean"] == pytest.approx(direct.mean(), rel=1e-6)
        assert told["max"] == pytest.approx(direct.max(), rel=1e-6)
        for field, quantile in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
            exact = np.quantile(direct, quantile, method="inverted_cdf")
            assert told[field] == pytest.approx(exact, rel=0.03, abs=1e-9)
    squares = ((latency / (rows["ideal"] * 1e-9)) ** 2).sum()
    assert results["total"]["slowdown_l2"] == pytest.approx(squares**0.5, rel=1e-6)


def test_a_trace_means_the_same_to_the_simulator(tmp_path: Path) -> None:
    path, record = tmp_path / "trace.graph", tmp_path / "record"
    (tmp_path / "times").write_text("100\n100.2\n100.2\n101\n")
    path.write_text(
        "workload w base_cost_us=10\nquery q\nop o cost=1\nsource o arrivals=trace trace=times\n"
    )
    labengine.run(
        path, *("--duration", 0.195, "--warmup", 0, "--cpus", 1, "--utilisation", 1e-3),
        *("--record", record),
    )  # fmt: skip
    due_s = np.fromfile(record, RECORDED)["due"] * 1e-9
    found = arrival_times(
        Arrivals("trace", trace="times"), 100.0, 0.195, np.random.default_rng(1), tmp_path
    )
    assert len(found) == 20
    assert due_s - due_s[0] == pytest.approx(found, abs=1e-6)


def test_what_is_wrong_in_a_file_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.graph"
    path.write_text(CHAIN + "edge a c\n")
    assert "bad.graph:7: query q has no operator c" in sched_ctl("lab", str(path), code=1)


def test_only_resolved_workloads_are_run(tmp_path: Path) -> None:
    path = tmp_path / "workload"
    path.write_text(CHAIN)
    words = resolved_file(path).split()
    refused = [CHAIN.encode(), b"", b"\0" * 100, b" ".join([*words[:2], b"x" * 1000])]
    refused += [b" ".join(words[:count]) for count in range(len(words))]
    for i, number in enumerate(words):
        if re.fullmatch(rb"[0-9.e+-]+", number):
            for other in (b"nan", b"1e300", b"-7", b"x"):
                refused.append(b" ".join([*words[:i], other, *words[i + 1 :]]))
    for text in refused:
        path.write_bytes(text)
        done = subprocess.run(
            [labengine.program("address"), "--describe", path], capture_output=True, check=False
        )
        assert done.returncode == 1 and b"no resolved workload" in done.stderr, (text, done)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--nonsense"],
        ["--utilisation", "x"],
        ["--threads", "pool:0"],
        ["--bounded", "0"],
        ["--elastic", "1"],
    ],
)
def test_bad_arguments_are_explained(arguments: list[str]) -> None:
    done = subprocess.run(
        [labengine.program(), *arguments, *([WORKLOADS / "etl.graph"] if arguments else [])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "labspe: " in done.stderr


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_in_order(number: signal.Signals, mode: str, tmp_path: Path) -> None:
    results, workload = tmp_path / "results", tmp_path / "etl"
    workload.write_bytes(resolved_file(WORKLOADS / "etl.graph"))
    # Overloaded, so that there is something in every queue and producers wait for room.
    options = ("--forever", "--utilisation", 3, "--results", results, *MODES[mode])
    engine = subprocess.Popen(
        list(map(str, (labengine.program(), *labengine.SAFE, *options, workload))),
        stderr=subprocess.DEVNULL,
    )
    shm = Path(f"/dev/shm/labspe.{engine.pid}")
    try:
        wait_until(shm.exists)
        engine.send_signal(number)
        assert engine.wait(20) == 0
    finally:
        if engine.poll() is None:
            os.kill(engine.pid, signal.SIGKILL)
            engine.wait()
    assert not shm.exists()
    assert json.loads(results.read_text())["workload"] == "etl"


def test_the_next_start_removes_what_a_killed_engine_left(tmp_path: Path) -> None:
    workload = tmp_path / "chain.graph"
    workload.write_text(CHAIN)
    resolved = tmp_path / "chain"
    resolved.write_bytes(resolved_file(workload))
    with labengine.started(workload, "--utilisation", 0.1) as runs:
        alive = Path(f"/dev/shm/labspe.{runs.pid}")
        killed = subprocess.Popen(
            [labengine.program(), *labengine.SAFE, "--duration", "60", resolved],
            stderr=subprocess.DEVNULL,
        )
        left = Path(f"/dev/shm/labspe.{killed.pid}")
        not_ours = [Path(f"/dev/shm/labspe.{name}") for name in ("1", f"{killed.pid}x")]
        try:
            wait_until(left.exists)
            killed.kill()
            killed.wait()
            assert left.exists()
            for path in not_ours:
                path.touch(exist_ok=False)
            labengine.run(workload, "--utilisation", 0.1, "--duration", 0.1)
            assert not left.exists()
            assert alive.exists()
            assert all(path.exists() for path in not_ours)
        finally:
            for path in (left, *not_ours):
                path.unlink(missing_ok=True)
            if killed.poll() is None:
                killed.kill()
                killed.wait()
