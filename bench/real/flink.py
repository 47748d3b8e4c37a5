"""Queries that compete for one CPU of a real Flink."""

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.real.abba import Figures, Phase, Way, take_turns
from engines.cluster import running
from engines.compete import finished, loaded

__all__ = ["CASES", "Case", "run"]

FAVOUR = ("--policy", "multi-class", "--policy-option", 'classes={"light*": "constant"}')
SHARE = ("--policy", "constant", "--share", "large=4", "--share", "small=1")
BUSY: dict[str, object] = {"rate": 100_000, "parse_us": 20, "work_us": 100, "every": 20}
LIGHT: dict[str, object] = {"rate": 300, "parse_us": 50, "work_us": 100}
WARM_S = 25.0


@dataclass(frozen=True)
class Case:
    """queries: name -> arguments of the test job. favoured: the one whose latency counts.

    main: the test job. counted: the argument that names the file by which throughputs are counted,
    where that is not the one with the latencies.
    """

    title: str
    queries: dict[str, dict[str, object]]
    ways: tuple[Way, ...]
    favoured: str
    ratio: tuple[str, str] | None = None  # whose throughputs are divided
    settings: dict[str, object] = field(default_factory=dict)  # of all queries
    cluster: dict[str, str] = field(default_factory=dict)  # settings of Flink
    main: str = "Query"
    counted: str = "out"
    others: tuple[str, ...] = ()  # queries whose mean latency is shown as well


def _by(policy: tuple[str, ...], *names: str) -> tuple[Way, ...]:
    return tuple(Way(name, (*policy, "--backend", name)) for name in names)


HEAVY: dict[str, dict[str, object]] = {"light": LIGHT, "heavy": {**BUSY, "parallelism": 4}}
EQUAL: dict[str, dict[str, object]] = {"small": BUSY, "large": BUSY}
AUTO = Way("auto, no option", ())
HR = Way("hr by nice", ("--policy", "hr", "--backend", "nice"))

CASES = {
    "light": Case(
        "A light query (300/s) beside a saturated one, buffer timeout 1 ms",
        HEAVY,
        (*_by(FAVOUR, "nice", "cgroup1+nice"), AUTO, HR),
        "light",
        settings={"buffer_timeout": "1 ms"},
    ),
    "light-100": Case(
        "A light query beside a saturated one, buffer timeout 100 ms",
        HEAVY,
        (*_by(FAVOUR, "nice", "cgroup1+nice"),),
        "light",
        settings={"buffer_timeout": "100 ms"},
    ),
    "light-chained": Case(
        "A light query beside a saturated one, both chained, buffer timeout 1 ms",
        HEAVY,
        (*_by(FAVOUR, "nice", "cgroup1+nice"),),
        "light",
        settings={"buffer_timeout": "1 ms", "chain": "true"},
    ),
    "light-share": Case(
        "A light query with a share of 4 beside a saturated one with 1, buffer timeout 1 ms",
        HEAVY,
        _by(("--policy", "constant", "--share", "light=4"), "cgroup1+nice", "nice"),
        "light",
        settings={"buffer_timeout": "1 ms"},
    ),
    "equal": Case(
        "Two equal, saturated queries in shares of 4 to 1, buffer timeout 1 ms",
        EQUAL,
        _by(SHARE, "cgroup1+nice", "nice"),
        "large",
        ("large", "small"),
        {"buffer_timeout": "1 ms"},
    ),
    "three": Case(
        "Three queries of different cost, the dearest saturated, buffer timeout 1 ms",
        {
            "cheap": {"rate": 400, "parse_us": 20, "work_us": 50},
            "middle": {"rate": 200, "parse_us": 50, "work_us": 500},
            "dear": {**BUSY, "work_us": 2000, "every": 1, "parallelism": 2},
        },
        (AUTO, HR),
        "cheap",
        settings={"buffer_timeout": "1 ms"},
        others=("middle",),
    ),
    "sql": Case(
        "Nexmark's q18 (500/s) beside its q5 at full speed, buffer timeout 1 ms",
        {
            "light": {"query": "q18", "rate": 500},
            "heavy": {"query": "q5", "rate": 1_000_000, "every": 100},
        },
        (*_by(FAVOUR, "nice", "cgroup1+nice"), AUTO),
        "light",
        settings={"buffer_timeout": "1 ms"},
        cluster={"taskmanager.memory.managed.size": "128m"},  # of which windows want some
        main="Sql",
        counted="ingest",
    ),
    "single": Case(
        "A single saturated query",
        {"single": {**BUSY, "parallelism": 2}},
        (AUTO, Way("qs by nice", ("--policy", "qs", "--backend", "nice"))),
        "single",
        settings={"buffer_timeout": "1 ms"},
    ),
}


def run(case: Case, folder: Path, cycles: int, seconds: float, end_s: float) -> Iterator[Phase]:
    """The phases of a case, on a cluster of its own with its TaskManager on one CPU."""
    with running(folder / "cluster", settings=case.cluster) as cluster:
        cluster.pin({max(os.sched_getaffinity(0))})
        outs = {name: folder / f"{name}.txt" for name in case.queries}
        counts = {name: folder / f"{name}.{case.counted}.txt" for name in case.queries}
        counts = outs if case.counted == "out" else counts
        for name, given in case.queries.items():
            files = {"out": outs[name], case.counted: counts[name]}
            cluster.submit(case.main, name=name, **{**case.settings, **given, **files})
        pids = [process.pid for process in cluster.task_managers]
        time.sleep(WARM_S)

        def measure() -> Figures:
            end = time.monotonic()
            gone = {name: finished(file, end - seconds, end) for name, file in counts.items()}
            waits = finished(outs[case.favoured], end - seconds, end)
            figures = {
                f"mean of {case.favoured} (ms)": _mean_ms(waits),
                f"p50 of {case.favoured} (ms)": (
                    float(np.median(waits)) * 1e3 if len(waits) else math.nan
                ),
                f"p99 of {case.favoured} (ms)": (
                    float(np.quantile(waits, 0.99)) * 1e3 if len(waits) else math.nan
                ),
                **{f"mean of {name} (ms)": _mean_ms(gone[name]) for name in case.others},
                **{
                    f"{name} (1/s)": len(gone[name])
                    * float(str(case.queries[name].get("every", 1)))
                    / seconds
                    for name in case.queries
                },
            }
            if case.ratio:
                one, other = (len(gone[name]) for name in case.ratio)
                figures["ratio"] = one / max(other, 1)
            return figures

        @contextmanager
        def load(way: Way) -> Iterator[None]:
            with loaded(cluster, folder, way.arguments or (), 1):
                yield

        yield from take_turns(
            case.ways, cycles, load, measure, pids, settle_s=1.5, seconds=seconds, end_s=end_s
        )


def _mean_ms(waits_s: npt.NDArray[np.float64]) -> float:
    return float(waits_s.mean()) * 1e3 if len(waits_s) else math.nan
