"""A real Flink under the BPF scheduler, in a guest with exact time: ratios to the OS.

    ./dev run python bench/flink_kernel.py [--kernel 6.18] [--cpus 1] [--json FILE] SCENARIO ...

Each scenario (bench/flink_scenarios.py) is one guest in which Flink runs jobs, in phases under the
kernel's own scheduler and under ours. Arrivals are the same in each phase. What is shown: latency
and throughput of each query; how long threads wait for a CPU, by what they do for the engine; and
how late a process wakes up that has nothing to do with it. A guest takes five to eight minutes.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT / "vagrant"), str(ROOT / "tests")]
MARK = "@@ "
LIMIT_S = 1500.0


def run(scenario: str, kernel: str, cpus: int) -> list[dict[str, Any]]:
    """The phases of one scenario, as bench/flink_inside.py prints them."""
    import guest
    import kernels

    from engines import cluster

    cluster.job_jar(cluster.download())  # a guest has no network, and can write nothing here
    command = [
        *("env", "PYTHONDONTWRITEBYTECODE=1", f"PYTHONPATH={ROOT / 'tests'}:{ROOT}"),
        *(f"SCHED_CTL_ENGINES={cluster.CACHE}", sys.executable, "-u"),
        *(str(HERE / "flink_inside.py"), scenario),
    ]
    options = guest.Options(
        cpus=cpus,
        icount=True,
        memory="3G",
        timeout_s=LIMIT_S,
        show=(cluster.CACHE,),
        append=kernels.append(kernel),
    )
    phases, rest = [], b""
    with guest.boot(kernels.find(kernel), command, options) as machine:
        for piece in machine.output():
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                text = line.decode(errors="replace")
                if text.startswith(MARK):
                    phases.append(json.loads(text.removeprefix(MARK)))
                else:
                    print(text, file=sys.stderr, flush=True)
    return phases


def figures(phase: dict[str, Any]) -> dict[str, float]:
    """Everything of a phase that is compared."""
    found: dict[str, float] = {}
    seconds = phase["end"] - phase["begin"]
    every: list[float] = []
    for query, latencies in phase["queries"].items():
        ms = np.array(latencies)
        every += latencies
        found[f"{query} mean"] = float(ms.mean()) if len(ms) else np.nan
        found[f"{query} p99"] = float(np.quantile(ms, 0.99)) if len(ms) else np.nan
        found[f"{query} tuples/s"] = len(ms) / seconds
    found["all mean"], found["all p99"] = float(np.mean(every)), float(np.quantile(every, 0.99))
    if len(phase["queries"]) > 2:
        means = [found[f"{query} mean"] for query in phase["queries"]]
        found["queries' mean"] = float(np.mean(means))
    for role, (ran_ns, delay_ns, runs) in sorted(phase["roles"].items()):
        found[f"delay: {role}"] = delay_ns / 1e6 / max(1, runs)
        found[f"CPU: {role}"] = ran_ns / 1e9 / seconds
    if "neighbour" in phase:
        count, mean_ms, p99_ms = phase["neighbour"]
        found["neighbour /s"] = count / seconds
        found["neighbour late"], found["neighbour late p99"] = mean_ms, p99_ms
    found["switches/s"] = phase["switches"]
    found["idle"] = phase["idle"]
    return found


def table(phases: Sequence[dict[str, Any]]) -> str:
    """One line a figure: the OS's (mean of its phases), then each other phase's ratio to it."""
    seen = [(phase["phase"], figures(phase)) for phase in phases]
    base = [found for name, found in seen if name == "os"]
    rest = [(name, found) for name, found in seen if name != "os"]
    lines = ["| | OS | " + " | ".join(name for name, _ in rest) + " |"]
    lines.append("|---" * (2 + len(rest)) + "|")
    names = dict.fromkeys(name for _, found in seen for name in found)
    for name in names:
        known = [found[name] for found in base if name in found]
        mean = float(np.mean(known)) if known else np.nan
        ratios = [f"{found.get(name, np.nan) / mean:.2f}" if mean else "-" for _, found in rest]
        spread = f" ({min(known):.3g}..{max(known):.3g})" if len(known) > 1 else ""
        lines.append(f"| {name} | {mean:.3g}{spread} | " + " | ".join(ratios) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("scenarios", nargs="+", metavar="SCENARIO")
    parser.add_argument("--kernel", default="6.18")
    parser.add_argument("--cpus", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write all phases there")
    asked = parser.parse_args()
    os.chdir(ROOT)
    everything = {}
    for scenario in asked.scenarios:
        phases = everything[scenario] = run(scenario, asked.kernel, asked.cpus)
        print(f"\n## {scenario}, kernel {asked.kernel}\n\n{table(phases)}", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(everything))


if __name__ == "__main__":
    main()
