"""What sched-ctl does to queries of a real Flink, in ABBA phases on one CPU.

    ./dev run python bench/flink.py [--rounds N] [--seconds S] [--out FILE.json]

Needs root, Java 17 or newer, and PyPI at the first run. Prints, for each experiment, the figure
under the system's own scheduling, that under the policy, and their ratio, with the smallest and
the largest ratio over the rounds. Phases in which somebody else used the CPU are left out and
counted.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from engines.cluster import Cluster, running
from engines.compete import Phase, finished, loaded, phases

BUSY = {"rate": 100_000, "parse_us": 20, "work_us": 100, "every": 100}
LIGHT = {"rate": 200, "parse_us": 50, "work_us": 100}
OPERATORS = 5
FAVOUR = (
    *("--policy", "multi-class", "--backend", "nice"),
    *("--policy-option", 'classes={"light": "constant", "heavy": "constant"}'),
)


def favoured(cluster: Cluster, folder: Path, rounds: int, seconds: float, buffers: str) -> object:
    """A light query beside an overloaded one: latency of the light one."""
    out = folder / "light.txt"
    cluster.submit(name="light", out=out, buffer_timeout=buffers, **LIGHT)
    cluster.submit(name="heavy", parallelism=4, **BUSY)
    measured = phases(
        cluster, folder, FAVOUR, 2 * OPERATORS, order="ABBA" * rounds, seconds=seconds
    )
    cluster.cancel_all()
    statistics: dict[str, Callable[[Phase], float]] = {
        "mean": lambda p: float(finished(out, p.begin, p.end).mean()),
        "p50": lambda p: float(np.quantile(finished(out, p.begin, p.end), 0.5)),
        "p99": lambda p: float(np.quantile(finished(out, p.begin, p.end), 0.99)),
    }
    result = {name: compare(measured, statistic) for name, statistic in statistics.items()}
    for name, row in result.items():
        print(f"  {name:5} {describe(row, 1e3, 'ms')}")
    return result


def compare(measured: Sequence[Phase], statistic: Callable[[Phase], float]) -> dict[str, object]:
    """Medians over undisturbed phases, and the ratio within each ABBA round."""
    values = [(phase, statistic(phase)) for phase in measured]
    kinds = {
        name: [v for phase, v in values if phase.scheduled is scheduled and phase.undisturbed]
        for name, scheduled in (("system", False), ("policy", True))
    }
    ratios = []
    for i in range(0, len(values), 4):
        one = {
            scheduled: [
                v for p, v in values[i : i + 4] if p.scheduled is scheduled and p.undisturbed
            ]
            for scheduled in (False, True)
        }
        if one[False] and one[True]:
            ratios.append(float(np.mean(one[True]) / np.mean(one[False])))
    return {
        **{name: float(np.median(found)) if found else None for name, found in kinds.items()},
        "ratios": ratios,
        "phases": len(values),
        "disturbed": sum(not phase.undisturbed for phase, _ in values),
    }


def describe(row: dict[str, object], scale: float, unit: str) -> str:
    ratios = row["ratios"]
    assert isinstance(ratios, list)
    parts = [
        f"{name} {value * scale:7.2f} {unit}" if isinstance(value, float) else f"{name}       -"
        for name, value in ((name, row[name]) for name in ("system", "policy"))
    ]
    if ratios:
        parts.append(f"ratio {np.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})")
    parts.append(f"{row['disturbed']} of {row['phases']} phases left out")
    return "   ".join(parts)


def shares(cluster: Cluster, folder: Path, rounds: int, seconds: float) -> object:
    """Two equal, overloaded queries under shares of 1 to 4: what they ingest."""
    outs = {name: folder / f"{name}.txt" for name in ("small", "large")}
    for name, out in outs.items():
        cluster.submit(name=name, out=out, **BUSY)
    arguments = ["--policy", "constant", "--share", "small=1", "--share", "large=4"]
    found: dict[str, list[float]] = {"system": [], "policy": []}

    def measure(kind: str) -> None:
        time.sleep(2)
        begin = time.monotonic()
        time.sleep(seconds)
        end = time.monotonic()
        small, large = (len(finished(out, begin, end)) for out in outs.values())
        found[kind].append(large / max(small, 1))

    for _ in range(rounds):
        measure("system")
        with loaded(cluster, folder, arguments, 2 * OPERATORS):
            measure("policy")
    cluster.cancel_all()
    for kind, values in found.items():
        print(f"  {kind}  1 : {np.median(values):.2f} ({min(values):.2f}..{max(values):.2f})")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="ABBA rounds")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of a phase")
    parser.add_argument("--out", type=Path, help="write all figures as JSON")
    given = parser.parse_args()
    results: dict[str, object] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder) / "cluster") as cluster,
    ):
        cluster.pin({max(os.sched_getaffinity(0))})
        print("a light query beside an overloaded one, buffer timeout 0 ms")
        results["favoured, buffers 0 ms"] = favoured(
            cluster, Path(folder), given.rounds, given.seconds, "0 ms"
        )
        print("a light query beside an overloaded one, buffer timeout 1 ms")
        results["favoured, buffers 1 ms"] = favoured(
            cluster, Path(folder), given.rounds, given.seconds, "1 ms"
        )
        print("two equal queries, shares 1 to 4")
        results["shares"] = shares(cluster, Path(folder), given.rounds, given.seconds)
    if given.out:
        given.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
