"""What a tuple's way from one operator to the next costs: `python -m bench.real.hop`.

A chain of ten operators that do hardly any work is run with one thread an operator and with a pool
of one worker, in alternation. The overhead of a hop is the CPU time of the process that is left
over when the operators' own work is taken away, by the number of tuples processed. It is made of
the wake-up, the switch and the queue in the one case, of the pick and the queue in the other.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

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
    arguments = parser.parse_args()
    seen: dict[str, list[float]] = {kind: [] for kind in KINDS}
    switches: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        workload = Path(folder, "chain.graph")
        workload.write_text(chain())
        for _ in range(arguments.rounds):
            for kind, options in KINDS.items():
                results = measure(workload, arguments.duration, *options)
                seen[kind].append(overhead_us(results))
                switches[kind].append(results["context_switches_per_s"])
    base = statistics.median(seen["threads"])
    print(f"{'mode':16} {'us a hop':>9} {'(min':>7} {'max)':>7} {'ratio':>6} {'switches/s':>11}")
    for kind, values in seen.items():
        middle = statistics.median(values)
        print(
            f"{kind:16} {middle:9.2f} {min(values):7.2f} {max(values):7.2f} {middle / base:6.2f} "
            f"{statistics.median(switches[kind]):11.0f}"
        )


if __name__ == "__main__":
    main()
