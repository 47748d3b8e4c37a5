"""What a tuple's way from one operator to the next costs: `python -m bench.real.hop`.

A chain of ten operators that do hardly any work is run with one thread an operator and with a pool
of one worker, in alternation. The overhead of a hop is the CPU time of the process that is left
over when the operators' own work is taken away, by the number of tuples processed. It is made of
the wake-up, the switch and the queue in the one case, of the pick and the queue in the other.
"""

import argparse
import json
import platform
import statistics
import subprocess
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench import results
from bench.results import Figure, Result, Row
from sched_ctl.lab.engine import PROGRAM, handed
from sched_ctl.workloads.resolved import resolved_file

LENGTH = 10
RATE = 3000  # tuples/s into the chain
KINDS = {
    "threads": ("--threads", "operator"),
    "pool": ("--threads", "pool:1"),
    "pool, batches": ("--threads", "pool:1", "--batch", "all"),
}


def chain() -> str:
    names = [f"op{step}" for step in range(LENGTH)]
    return "\n".join(
        [
            "workload chain base_cost_us=0.05",
            "query chain",
            *(f"op {name} cost=1" for name in names),
            *(f"edge {a} {b}" for a, b in pairwise(names)),
            f"source {names[0]}",
            "",
        ]
    )


def overhead_us(results: dict[str, Any]) -> float:
    """CPU time of a hop beyond the work, from the results of a run without warm-up."""
    hops = sum(operator["in"] for operator in results["operators"])
    work_s = sum(operator["in"] * operator["cost_s"] for operator in results["operators"])
    return float((results["cpu"] * results["seconds"] - work_s) / hops * 1e6)


def measure(workload: Path, duration_s: float, *options: str) -> dict[str, Any]:
    command = [str(PROGRAM), "--results", "-", "--warmup", "0", "--duration", str(duration_s)]
    load = ("--cpus", "1", "--utilisation", str(RATE * LENGTH * 0.05e-6))
    with handed(resolved_file(workload)) as (fd, path):
        done = subprocess.run(
            [*command, *load, *options, path],
            capture_output=True,
            text=True,
            check=True,
            pass_fds=[fd],
        )
    return dict(json.loads(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--duration", type=float, default=2.0, help="seconds a run")
    results.argument(parser)
    arguments = parser.parse_args()
    seen: dict[str, list[float]] = {kind: [] for kind in KINDS}
    switches: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        workload = Path(folder, "chain.graph")
        workload.write_text(chain())
        for _ in range(arguments.rounds):
            for kind, options in KINDS.items():
                found = measure(workload, arguments.duration, *options)
                seen[kind].append(overhead_us(found))
                switches[kind].append(found["context_switches_per_s"])
    rows = []
    for kind, values in seen.items():
        hop = results.median(values, "us")
        per_s = Figure(statistics.median(switches[kind]), unit="/s")
        rows.append(Row(kind, {"a hop": hop, "switches": per_s}))
    result = Result(
        title="What a tuple's way from one operator to the next costs",
        columns=["a hop", "switches"],
        n=arguments.rounds,
        spread="middle: median; smallest-largest over rounds",
        seeds=None,
        kernel=platform.release(),
        rows=rows,
        **results.here(),
    )
    results.tell(result, arguments.keep)


if __name__ == "__main__":
    main()
