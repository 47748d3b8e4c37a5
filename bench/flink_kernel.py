"""A real Flink under the BPF scheduler, in a guest with exact time: ratios to the OS.

    ./dev run python bench/flink_kernel.py [--kernel 6.18] [--cpus 1] [--runs 1] [--json FILE]
                                           SCENARIO ...

All scenarios (bench/flink_scenarios.py) are run in one guest, `--runs` times; one may be named
more than once. In each, Flink runs jobs in phases under the kernel's own scheduler and under ours.
Arrivals are the same in each phase. What is shown: latency and throughput of each query; how long
threads wait for a CPU, by what they do for the engine; and how late a process wakes up that has
nothing to do with it. To boot takes three to six minutes, a scenario five to eight; more on a busy
machine.
"""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT / "vagrant"), str(ROOT / "tests")]
MARK = "@@ "
LIMIT_S = 2400.0


def run(scenarios: Sequence[str], kernel: str, cpus: int) -> Iterator[dict[str, Any]]:
    """The phases of all scenarios, as bench/flink_inside.py prints them, in one guest."""
    import guest
    import kernels

    from engines import cluster

    cluster.job_jar(cluster.download())  # a guest has no network, and can write nothing here
    command = [
        *("env", "PYTHONDONTWRITEBYTECODE=1", f"PYTHONPATH={ROOT / 'tests'}:{ROOT}"),
        *(f"SCHED_CTL_ENGINES={cluster.CACHE}", sys.executable, "-u"),
        *(str(HERE / "flink_inside.py"), *scenarios),
    ]
    options = guest.Options(
        cpus=cpus,
        icount=True,
        memory="3G",
        timeout_s=LIMIT_S * (1 + len(scenarios)),
        show=(cluster.CACHE,),
        append=kernels.append(kernel),
    )
    rest, begun = b"", ""
    with guest.boot(kernels.find(kernel), command, options) as machine:
        for piece in machine.output():
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                text = line.decode(errors="replace")
                if not text.startswith(MARK):
                    print(text, file=sys.stderr, flush=True)
                    continue
                begun += text.removeprefix(MARK)
                with contextlib.suppress(json.JSONDecodeError):
                    yield json.loads(begun)
                    begun = ""


def figures(phase: dict[str, Any]) -> dict[str, float]:
    """Everything of a phase that is compared."""
    found: dict[str, float] = {}
    seconds = phase["end"] - phase["begin"]
    every: list[float] = []
    for query, latencies in phase["queries"].items():
        ms = np.array(latencies)
        every += latencies
        found[f"{query} mean"] = float(ms.mean()) if len(ms) else np.nan
        found[f"{query} median"] = float(np.median(ms)) if len(ms) else np.nan
        found[f"{query} p95"] = float(np.quantile(ms, 0.95)) if len(ms) else np.nan
        found[f"{query} p99"] = float(np.quantile(ms, 0.99)) if len(ms) else np.nan
        found[f"{query} tuples/s"] = len(ms) / seconds
    found["all mean"], found["all p99"] = float(np.mean(every)), float(np.quantile(every, 0.99))
    if len(phase["queries"]) > 2:
        means = [found[f"{query} mean"] for query in phase["queries"]]
        found["queries' mean"] = float(np.mean(means))
    for role, (ran_ns, delay_ns, runs) in sorted(phase["roles"].items()):
        found[f"delay: {role}"] = delay_ns / 1e6 / max(1, runs)
        found[f"CPU: {role}"] = ran_ns / 1e9 / phase.get("span", seconds)
    if "neighbour" in phase:
        count, mean_ms, p99_ms = phase["neighbour"]
        found["neighbour /s"] = count / seconds
        found["neighbour late"], found["neighbour late p99"] = mean_ms, p99_ms
    for name, (count, length_s, held_up_s) in phase.get("waits", {}).items():
        found[f"{name}, times"] = count
        found[f"{name}, ms"] = length_s * 1e3
        found[f"{name}, of that held up, ms"] = held_up_s * 1e3
    found["switches/s"] = phase["switches"]
    found["idle"] = phase["idle"]
    return found


def table(runs: Sequence[Sequence[dict[str, Any]]]) -> str:
    """One line a figure: the OS's mean, then each policy's ratio to the OS's of the same guest.

    In brackets the smallest and the largest: of the OS's phases over their own mean, and of the
    policy's ratios. In between is the geometric mean over its phases in all runs.
    """
    base: dict[str, list[float]] = {}
    spread: dict[str, list[float]] = {}
    ratios: dict[str, dict[str, list[float]]] = {}
    for phases in runs:
        seen = [(phase["phase"], figures(phase)) for phase in phases]
        own = [found for name, found in seen if name == "os"]
        for name in dict.fromkeys(name for _, found in seen for name in found):
            known = [found[name] for found in own if name in found]
            mean = float(np.mean(known)) if known else np.nan
            base.setdefault(name, []).append(mean)
            if mean > 0:
                spread.setdefault(name, []).extend(value / mean for value in known)
                for policy, found in seen:
                    if policy != "os" and name in found:
                        of_policy = ratios.setdefault(policy, {})
                        of_policy.setdefault(name, []).append(found[name] / mean)
    lines = ["| | OS | " + " | ".join(ratios) + " |", "|---" * (2 + len(ratios)) + "|"]
    for name, means in base.items():
        cells = [ranged(found.get(name, [])) for found in ratios.values()]
        around = spread.get(name, [1.0])
        own_mean = f"{np.nanmean(means):.3g} ({short(min(around))}-{short(max(around))})"
        lines.append(f"| {name} | {own_mean} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def ranged(values: Sequence[float]) -> str:
    """Their geometric mean, and the smallest and the largest."""
    if not values:
        return "-"
    middle = float(np.exp(np.mean(np.log(np.maximum(values, 1e-9)))))
    return f"{short(middle)} ({short(min(values))}-{short(max(values))})"


def short(value: float) -> str:
    """Two decimals below ten, without the zero in front."""
    return f"{value:.2f}".removeprefix("0") if value < 9.995 else f"{value:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO")
    parser.add_argument("--kernel", default="6.18")
    parser.add_argument("--cpus", type=int, default=1)
    parser.add_argument(
        "--runs", type=int, default=1, help="guests, one after the other; 0: only show"
    )
    parser.add_argument(
        "--json", type=Path, help="keep all phases there, and count those that are there already"
    )
    asked = parser.parse_args()
    os.chdir(ROOT)
    everything: dict[str, list[list[dict[str, Any]]]] = {}
    done = False
    if asked.json and asked.json.exists():
        everything = json.loads(asked.json.read_text())
    for _ in range(asked.runs):
        begun: set[str] = set()
        for phase in run(asked.scenarios, asked.kernel, asked.cpus):
            name = phase["scenario"]
            runs = everything.setdefault(name, [])
            os_alone = phase["phase"] == "os"
            if name not in begun or (os_alone and done):
                begun.add(name)
                runs.append([])
            done = os_alone and bool(runs[-1])  # the OS is first and last
            runs[-1].append(phase)
            if asked.json:
                asked.json.write_text(json.dumps(everything))
    for name, runs in everything.items():
        print(f"\n## {name}, {len(runs)} runs, kernel {asked.kernel}\n\n{table(runs)}", flush=True)


if __name__ == "__main__":
    main()
