"""Elastic scheduling's claims on the CPUs that are there: the lab engine with each kind of threads.

    ./dev run python -m bench.papers.threads [--runs 3] [--seconds 4] [--keep NAME]

All sources emit more than can be done, queues are bounded. A figure is the tuples that all
operators took in, as in the paper (Schneider and Wu, PLDI 2017), over those of two threads that
pick any operator (`pool:2`). Runs take turns (A B C .. C B A ..). `elastic` begins at one thread,
and is measured with its search. The paper's manual model, one thread that calls operators
directly, is not there: `pool:1` is one thread that picks. Needs a quiet machine.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from bench import results
from bench.results import Figure, Result, Row

SCHED_CTL = Path(sys.executable).with_name("sched-ctl")
COSTS_US = (1.0, 20.0)
ELASTIC = "pool:4 elastic"
BASE = "pool:2"
WAYS = {
    "pool:1": ("--threads", "pool:1"),
    BASE: ("--threads", BASE),
    "pool:4": ("--threads", "pool:4"),
    ELASTIC: ("--threads", "pool:4", "--elastic", "0.25"),
    "dedicated": ("--threads", "operator"),
}
TOO_MUCH = 4.0  # of the CPUs


def pipelines(width: int, depth: int, cost_us: float) -> str:
    """A workload of so many pipelines of so many equal operators each."""
    lines = [f"workload pipelines base_cost_us={cost_us:g}"]
    for query in range(width):
        lines.append(f"query q{query}")
        lines += [f"op o{query}-{place} cost=1" for place in range(depth)]
        lines += [f"edge o{query}-{place} o{query}-{place + 1}" for place in range(depth - 1)]
        lines.append(f"source o{query}-0")
    return "\n".join(lines) + "\n"


def parallel(width: int, cost_us: float) -> str:
    """A workload of one operator that divides its tuples among so many, and one behind them."""
    lines = [f"workload parallel base_cost_us={cost_us:g}", "query q", "op first cost=0.1"]
    lines += [f"op o{number} cost=1" for number in range(width)]
    lines.append("op last cost=0.1")
    lines += [f"edge first o{number} share={1 / width:.9f}" for number in range(width)]
    lines += [f"edge o{number} last" for number in range(width)]
    return "\n".join([*lines, "source first"]) + "\n"


SHAPES: dict[str, Callable[[float], str]] = {
    "a pipeline of 100": lambda cost_us: pipelines(1, 100, cost_us),
    "a pipeline of 1,000": lambda cost_us: pipelines(1, 1000, cost_us),
    "100 in parallel": lambda cost_us: parallel(100, cost_us),
    "10 pipelines of 100": lambda cost_us: pipelines(10, 100, cost_us),
}


def run(graph: Path, way: tuple[str, ...], seconds: float, seed: int) -> float:
    """Tuples/s that all operators took in."""
    out = graph.with_suffix(".json")
    cpus = len(os.sched_getaffinity(0))
    command = [
        *(SCHED_CTL, "lab", graph, *way, "--utilisation", TOO_MUCH, "--cpus", cpus),
        *("--bounded", 64, "--batch", "half", "--sources", "fair", "--seed", seed),
        *("--duration", seconds, "--warmup", 0, "--drain", 0.001, "--results", out),
    ]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    found = json.loads(out.read_text())
    took_s = found["seconds"] + found["drain_s"]  # counters go on to the end
    return float(sum(op["in"] for op in found["operators"]) / took_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3, help="of each way")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--cost", type=float, nargs="+", default=COSTS_US)
    results.argument(parser)
    options = parser.parse_args()
    here = results.here()  # before it writes anything
    rows = []
    for name, shape in SHAPES.items():
        for cost_us in options.cost:
            with tempfile.TemporaryDirectory() as folder:
                graph = Path(folder, "pipelines.graph")
                graph.write_text(shape(cost_us))
                found = turns(graph, options.runs, options.seconds)
            rows.append(Row(f"{name}, {cost_us:g} us each", found))
            print(rows[-1], file=sys.stderr, flush=True)
    cpus = len(os.sched_getaffinity(0))
    result = Result(
        title=f"Tuples/s of all operators of a saturated lab engine on {cpus} CPUs, by its threads",
        columns=[f"{BASE}, tuples/s", *(way for way in WAYS if way != BASE)],
        n=options.runs,
        spread="geometric mean; smallest-largest over runs",
        seeds=[*range(1, options.runs + 1)],
        kernel=platform.release(),
        rows=rows,
        **here,
    )
    results.tell(result, options.keep)


def turns(graph: Path, runs: int, seconds: float) -> dict[str, Figure | str]:
    """A row: the base in tuples/s, the others in ratio to it, run by run."""
    rates: dict[str, list[float]] = defaultdict(list)
    for number in range(runs):
        for way in WAYS if number % 2 == 0 else reversed(WAYS):
            rates[way].append(run(graph, WAYS[way], seconds, number + 1))
    base = rates[BASE]
    middle = statistics.geometric_mean(base)
    row: dict[str, Figure | str] = {
        f"{BASE}, tuples/s": Figure(middle, min(base) / middle, max(base) / middle, "/s")
    }
    for way in WAYS:
        if way != BASE:
            row[way] = results.over(a / b for a, b in zip(rates[way], base, strict=True))
    return row


if __name__ == "__main__":
    main()
