"""The lab engine under the OS's own scheduling and under sched-ctl, on this machine.

    ./dev run python -m bench.real.lab [--seeds 3] [--seconds 8] [--json FILE] [CASE ...]

Each case is a workload at a load, and some variants: ways to schedule it. For each seed the OS
and all variants run in the order A B C C B A, every run with the same arrivals and the same filter
decisions, so what drifts on the machine meets all of them alike. A figure is the ratio to the OS in
the same seed (mean of the two runs each); the table gives the geometric mean over the seeds and,
in brackets, the smallest and the largest. The engine has one CPU, the controller another one.
"""

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench import results
from bench.results import Figure, Result, Row
from sched_ctl.lab import engine as lab

OS = "os"
SCHED_CTL = str(Path(sys.executable).with_name("sched-ctl"))
ENGINE_CPU = 1
CONTROLLER_CPU = 0
Figures = Mapping[str, float]


@dataclass(frozen=True)
class Case:
    """A workload at a load, and how to schedule it.

    variants: label -> arguments of `sched-ctl load`. The label says pool if the engine itself
    picks the operators, on one worker.
    """

    workload: str
    utilisation: float
    variants: Mapping[str, Sequence[str]]
    engine: tuple[str, ...] = ()
    base_cost_us: float | None = None
    classes: tuple[str, ...] = field(default=())


def nice(policy: str, *more: str) -> tuple[str, ...]:
    return ("--policy", policy, "--backend", "nice", *more)


def pool(policy: str) -> tuple[str, ...]:
    return ("--policy", policy, "--backend", "pool")


MANY = {
    "random": nice("random"),
    "hr": nice("hr"),
    "hnr": nice("hnr"),
    "fcfs": nice("fcfs"),
    "qs": nice("qs"),
    "pool hr": pool("hr"),
    "pool qs": pool("qs"),
}
PIPELINE = {"random": nice("random"), "qs": nice("qs"), "hr": nice("hr"), "pool hr": pool("hr")}

CASES = {
    "syn": Case("syn", 0.9, MANY),
    "etl": Case("etl", 1.0, PIPELINE | {"pool qs": pool("qs")}),
    "etl-bounded": Case("etl", 1.0, {k: PIPELINE[k] for k in ("qs", "hr")}, ("--bounded", "64")),
    "stats": Case("stats", 0.95, PIPELINE),
    "pred": Case("pred", 0.95, PIPELINE),
    "train": Case("train", 0.95, PIPELINE),
    "lr": Case("lr", 0.95, PIPELINE),
    "vs": Case("vs", 0.95, PIPELINE),
    "multi": Case(
        "multi",
        0.9,
        {
            "hr": nice("hr"),
            "multi-class": nice("multi-class"),
            "pool multi-class": pool("multi-class"),
        },
        classes=("high", "low"),
    ),
}


@contextmanager
def controller(arguments: Sequence[str], engine: lab.Engine) -> Iterator[None]:
    """`sched-ctl load` on the engine, on a CPU of its own, with a run folder of its own."""
    with TemporaryDirectory(prefix="sched-ctl-bench-") as folder:
        process = subprocess.Popen(
            ["taskset", "-c", str(CONTROLLER_CPU), SCHED_CTL, "load",
             "--engine", engine.name, "--run-dir", folder, "--race", "0", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
        try:
            yield
            if process.poll() is not None:
                raise RuntimeError(f"the controller ended early:\n{process.communicate()[0]}")
        finally:
            process.terminate()
            process.communicate(timeout=30)


def run(case: Case, variant: str, seed: int, seconds: float) -> Figures:
    """One run of the engine; its figures."""
    arguments = [
        *("--utilisation", str(case.utilisation), "--cpus", "1", "--seed", str(seed)),
        *("--duration", str(seconds), "--warmup", "2", "--drain", "30", *case.engine),
    ]
    if case.base_cost_us:
        arguments += ["--base-cost-us", str(case.base_cost_us)]
    if variant.startswith("pool"):
        arguments += ["--threads", "pool:1"]
    with (
        lab.workload_file(case.workload, seed) as path,
        lab.running(path, arguments, [ENGINE_CPU]) as engine,
    ):
        if variant == OS:
            results = engine.results()
        else:
            with controller(case.variants[variant], engine):
                engine.process.wait()
            results = engine.results()
    return figures(json.loads(results), case.classes)


def figures(results: Mapping[str, Any], classes: Sequence[str]) -> Figures:
    """The figures that are compared, from the engine's results. Latencies and variances in ms."""
    total = results["total"]
    found = {
        "throughput": results["departure_rate"],
        "mean latency": total["latency_s"]["mean"],
        "p50": total["latency_s"]["p50"],
        "p99": total["latency_s"]["p99"],
        "slowdown": total["slowdown"]["mean"],
        "max slowdown": total["slowdown"]["max"],
        "queue variance": results["queue_variance"],
        "switches": results["context_switches_per_s"],
    }
    for klass in classes:
        of_class = [query for query in results["queries"] if query["class"] == klass]
        departures = sum(query["departures"] for query in of_class)
        found[f"mean latency, {klass}"] = (
            sum(q["latency_s"]["mean"] * q["departures"] for q in of_class) / departures
        )
    return found


def measure(case: Case, seeds: Sequence[int], seconds: float) -> dict[str, list[dict[str, float]]]:
    """Variant -> for each seed, the figures as ratios to the OS (and the OS's own figures)."""
    order = [OS, *case.variants]
    table: dict[str, list[dict[str, float]]] = {variant: [] for variant in order}
    for seed in seeds:
        runs: dict[str, list[Figures]] = {variant: [] for variant in order}
        for variant in (*order, *reversed(order)):
            runs[variant].append(run(case, variant, seed, seconds))
            print(f"  {case.workload} seed {seed} {variant}: "
                  f"{runs[variant][-1]['mean latency'] * 1e3:.1f} ms", file=sys.stderr)  # fmt: skip
        means = {
            variant: {name: statistics.fmean(run[name] for run in both) for name in both[0]}
            for variant, both in runs.items()
        }
        table[OS].append(means[OS])
        for variant in case.variants:
            table[variant].append(
                {n: v / means[OS][n] if means[OS][n] else math.nan
                 for n, v in means[variant].items()}
            )  # fmt: skip
    return table


def result_of(case: Case, table: Mapping[str, list[dict[str, float]]]) -> Result:
    """Ratios to the OS; the first row is the OS's own, absolute."""
    names = list(table[OS][0])
    rows = [Row(OS, {name: absolute(name, table[OS]) for name in names})]
    rows += [
        Row(variant, {name: results.over(seed[name] for seed in table[variant]) for name in names})
        for variant in case.variants
    ]
    engine = " ".join(case.engine)
    return Result(
        title=f"{case.workload} at {case.utilisation:g} {engine}".rstrip() + f", {machine()}",
        columns=names,
        n=len(table[OS]),
        spread="smallest-largest over seeds",
        seeds=[*range(1, len(table[OS]) + 1)],
        kernel=platform.release(),
        rows=rows,
        **results.here(),
    )


def absolute(name: str, seeds: Sequence[Figures]) -> Figure:
    value = statistics.fmean(seed[name] for seed in seeds)
    if "latency" in name or name in ("p50", "p99"):
        return Figure(value * 1e3, unit="ms")
    return Figure(value, unit="/s" if name in ("throughput", "switches") else "")


def machine() -> str:
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{platform.system()} {platform.release()}, {len(models)} x {models[0]}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    results.argument(parser)
    options = parser.parse_args()
    if unknown := set(options.cases) - CASES.keys():
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    if len(os.sched_getaffinity(0)) < 2:
        parser.error("needs two CPUs: one for the engine, one for the controller")
    print(f"{machine()}; {options.seeds} seeds, {options.seconds:g} s a run\n")
    tables = {}
    for name in options.cases or CASES:
        table = measure(CASES[name], range(1, options.seeds + 1), options.seconds)
        result = result_of(CASES[name], table)
        results.tell(result, options.keep and f"{options.keep}-{name}")
        tables[name] = table
        if options.json:
            options.json.write_text(json.dumps({"machine": machine(), "cases": tables}, indent=1))


if __name__ == "__main__":
    main()
