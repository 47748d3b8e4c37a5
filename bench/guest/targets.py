"""Latency targets in the lab engine: who keeps them under which scheduler, in a guest.

    ./dev run python -m bench.guest.targets [--seeds 3] [--seconds 10] [--kernel 6.18] [--keep NAME]
                                            [--json FILE] [--variants RE] [CASE ...]

The workload is Cameo's shape (`bench/workloads/targets.graph`). The guest and its clock are those
of kernel.py; `deadline` looks again once a second, as `sched-ctl load` does. What waits at the end
is still served, and counts. Figures are means over the seeds, and in brackets the smallest and the
largest.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from bench import results
from bench.guest import kernel
from bench.results import Figure, Result, Row

ROOT = Path(__file__).resolve().parents[2]
Job = dict[str, Any]
ALARM, REPORT = (
    {"queries": ["alarm*"], "latency": "10ms"},
    {"queries": ["report*"], "latency": "100ms"},
)
CLASSES = {"classes": {"alarm*": "fcfs", "report*": "fcfs", "*": "hr"}}


@dataclass(frozen=True)
class Case:
    """The workload at a load, with targets."""

    what: str
    utilisation: float
    targets: Sequence[Mapping[str, Any]]


CASES = {
    "cameo": Case("alarms and reports beside bulk", 0.95, (ALARM, REPORT)),
    "impossible": Case(
        "one bulk query with a target below the cost of its path",
        0.95,
        (ALARM, REPORT, {"queries": ["bulk0"], "latency": "2ms"}),
    ),
    "overload": Case(
        "1.2 times what the CPU can do, and everybody has a target",
        1.2,
        (ALARM, REPORT, {"queries": ["bulk*"], "latency": "500ms", "weight": 0.5}),
    ),
}
VARIANTS: Mapping[str, Job] = {
    "eevdf": {"kind": "os"},
    **{
        f"{kind}-{policy}": {"kind": kind, "policy": policy, "period_s": 1.0, "options": options}
        for kind in ("nice", "scx")
        for policy, options in (
            ("hr", {}),
            ("multi-class", CLASSES),
            ("balanced", {}),
            ("deadline", {}),
        )
    },
    # By nice what has no target is left alone, as `auto` has it.
    "nice-deadline": {
        "kind": "nice",
        "policy": "deadline",
        "period_s": 1.0,
        "options": {"others": "constant"},
    },
}


def jobs(name: str, variants: Sequence[str], seeds: Sequence[int], seconds: float) -> list[Job]:
    case = CASES[name]
    found = []
    for seed in seeds:
        for variant in variants:
            job = {**VARIANTS[variant]}
            if job.get("policy") == "deadline":
                job["options"] = {"targets": case.targets, **job["options"]}
            found.append(
                {
                    "name": f"{name}/{variant}",
                    "workload": "targets",
                    "utilisation": case.utilisation,
                    "seed": seed,
                    "targets": case.targets,
                    **job,
                    "arguments": [
                        *("--utilisation", case.utilisation, "--cpus", 1, "--seed", seed),
                        *("--duration", seconds, "--warmup", 1, "--delay", kernel.DELAY_S),
                        *("--burn", "nop", "--drain", 60),
                    ],
                }
            )
    return found


def figures(found: Job) -> dict[str, float]:
    """By kind of query: the share within the target, and percentiles of all its tuples in ms."""
    told = {}
    for kind in ("alarm", "report", "bulk"):
        some = [q for q in found["by_query"] if fnmatch(q["query"], f"{kind}*") and q["departures"]]
        asked = [q for q in some if "met" in q]
        if asked:
            departed = sum(q["departures"] for q in asked)
            told[f"{kind} met"] = sum(q["met"] * q["departures"] for q in asked) / departed
            told[f"{kind} worst"] = min(q["met"] for q in asked)
        for figure, part in (("p50", 0.5), ("p99", 0.99)):
            told[f"{kind} {figure}"] = 1e3 * quantile(found["histograms"][kind], part)
    return told


def quantile(histogram: Sequence[tuple[float, int]], part: float) -> float:
    """Of counts by the least value that they stand for, in its order; NaN of none."""
    left = part * sum(n for _, n in histogram)
    for low, n in histogram:
        left -= n
        if left <= 0:
            return low
    return math.nan


def table(name: str, found: Sequence[Job], kernel_name: str) -> Result:
    by: dict[str, list[dict[str, float]]] = {}
    seeds = sorted({result["seed"] for result in found})
    for result in found:
        if "error" in result:
            print(result["job"], result["error"], file=sys.stderr)
            continue
        by.setdefault(result["job"].partition("/")[2], []).append(figures(result))
    rows = []
    for variant, runs in by.items():
        cells: dict[str, Figure | str] = {}
        for column in runs[0]:
            values = [run[column] for run in runs]
            mean = sum(values) / len(values)
            unit = "ms" if " p" in column else ""
            part = mean if unit else 1.0
            low, high = min(values) / part, max(values) / part
            cells[column] = Figure(round(mean, 4), round(low, 4), round(high, 4), unit)
        rows.append(Row(variant, cells, None if len(runs) == len(seeds) else len(runs)))
    return Result(
        title=f"{CASES[name].what}, at {CASES[name].utilisation:g} of the CPU: share within the "
        "target (of all, and of the query that is worst), median and p99",
        columns=list(dict.fromkeys(column for runs in by.values() for column in runs[0])),
        n=len(seeds),
        spread="smallest-largest over seeds",
        seeds=seeds,
        kernel=kernel_name,
        rows=rows,
        **results.here(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--kernel", default="6.18")
    parser.add_argument("--variants", default=".*", metavar="RE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append results, one a line")
    results.argument(parser)
    arguments = parser.parse_args()
    chosen = [v for v in VARIANTS if v == "eevdf" or re.fullmatch(arguments.variants, v)]
    subprocess.run(["make", "-s", "-C", str(ROOT / "bpf")], check=True)
    os.nice(10)
    for name in arguments.cases or CASES:
        found = []
        todo = jobs(name, chosen, range(1, arguments.seeds + 1), arguments.seconds)
        for result in kernel.run(todo, arguments.kernel):
            found.append(result)
            print(result["job"], result["seed"], result.get("error", ""), file=sys.stderr)
            if arguments.json:
                with open(arguments.json, "a") as file:
                    file.write(json.dumps(result) + "\n")
        told = table(name, found, arguments.kernel)
        results.tell(told, arguments.keep and f"{arguments.keep}-{name}")


if __name__ == "__main__":
    main()
