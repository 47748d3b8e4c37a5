"""Phases of a real engine in a guest with exact time, and how they are compared."""

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench import results
from bench.results import Figure, Result, Row

__all__ = [
    "ROOT",
    "Runs",
    "arguments",
    "collect",
    "figures",
    "from_guest",
    "keep",
    "kept",
    "show",
    "table",
    "without_first",
]

Runs = dict[str, list[list[dict[str, Any]]]]  # of each scenario: runs, each with its phases

ROOT = Path(__file__).resolve().parents[2]
MARK = "@@ "
# A guest has no tcp_diag: whose a connection is the controller reads from tables of all buckets.
FEW_BUCKETS = "thash_entries=1024"


def from_guest(
    program: str, arguments: Sequence[str], kernel: str, cpus: int, limit_s: float
) -> Iterator[dict[str, Any]]:
    """The phases that a program of this folder prints in a guest (bench/guest/inside.py)."""
    import guest
    import kernels

    from engines.cluster import CACHE

    command = [
        *(
            "env",
            "PYTHONDONTWRITEBYTECODE=1",
            f"PYTHONPATH={ROOT / 'tests'}:{ROOT / 'tests' / 'helpers'}:{ROOT}",
        ),
        *(
            f"SCHED_CTL_ENGINES={CACHE}",
            sys.executable,
            "-u",
            "-m",
            f"bench.guest.{program}",
            *arguments,
        ),
    ]
    options = guest.Options(
        cpus=cpus,
        icount=True,
        memory="3G",
        timeout_s=limit_s,
        show=(CACHE,),
        append=f"{kernels.append(kernel)} {FEW_BUCKETS}",
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
    if machine.returncode == guest.TIMED_OUT:
        print("the guest's time was up before its last phase", file=sys.stderr)


def collect(phases: Iterable[dict[str, Any]], runs: Runs) -> Iterator[None]:
    """Add phases to the runs of their scenarios; stops after each. The OS is first and last."""
    begun: set[str] = set()
    done = False
    for phase in phases:
        name = phase["scenario"]
        own = runs.setdefault(name, [])
        os_alone = phase["phase"] == "os"
        if name not in begun or (os_alone and done):
            begun.add(name)
            own.append([])
        done = os_alone and bool(own[-1])
        own[-1].append(phase)
        yield


def keep(phases: Iterable[dict[str, Any]], runs: Runs, path: Path | None) -> None:
    """Collect phases, writing all runs to the file after each, if one was named."""
    for _ in collect(phases, runs):
        if path:
            path.write_text(json.dumps(runs))


def arguments(parser: argparse.ArgumentParser) -> None:
    """What all programs take that run phases in guests."""
    parser.add_argument("--kernel", default="6.18")
    parser.add_argument(
        "--runs", type=int, default=1, help="guests, one after the other; 0: only show"
    )
    parser.add_argument(
        "--json", type=Path, help="keep each phase there as it ends, beside those of before"
    )
    results.argument(parser)


def kept(path: Path | None) -> Runs:
    """The runs of earlier times; none without a file."""
    found: Runs = json.loads(path.read_text()) if path and path.exists() else {}
    return found


def show(runs: Runs, kernel: str, name: str | None) -> None:
    """Print each scenario's figures; name: keep them, as NAME-SCENARIO."""
    for scenario, own in runs.items():
        results.tell(table(scenario, own, kernel), name and f"{name}-{scenario}")


def without_first(runs: Runs) -> Runs:
    """The runs without the very first phase of each way, of each scenario: a virtual machine is
    still warming up.
    """
    found: Runs = {}
    for scenario, own in runs.items():
        seen: set[str] = set()
        found[scenario] = []
        for run in own:
            later = []
            for phase in run:
                if phase["phase"] in seen:
                    later.append(phase)
                seen.add(phase["phase"])
            found[scenario].append(later)
    return found


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
    if len(phase["queries"]) > 1:
        found["all mean"], found["all p99"] = float(np.mean(every)), float(np.quantile(every, 0.99))
    for query, rate in phase.get("passed", {}).items():
        found[f"{query} frames/s"] = rate
    for query, share in phase.get("late", {}).items():
        found[f"{query} late, %"] = 100 * share
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
    if "stopped_s" in phase:
        found["the longest time nothing ran, ms"] = phase["stopped_s"] * 1e3
    for name, ms in phase.get("loading", {}).items():
        found[f"while loading, {name}, ms"] = ms
    for name, (count, length_s, held_up_s) in phase.get("waits", {}).items():
        found[f"{name}, times"] = count
        found[f"{name}, ms"] = length_s * 1e3
        found[f"{name}, of that held up, ms"] = held_up_s * 1e3
    for query, caught_up_s in phase.get("caught_up_s", {}).items():
        found[f"{query} caught up, s"] = caught_up_s
    found["switches/s"] = phase["switches"]
    found["idle"] = phase["idle"]
    return found


def table(scenario: str, runs: Sequence[Sequence[dict[str, Any]]], kernel: str) -> Result:
    """One row a figure: the OS's mean, then each policy's ratio to the OS's of the same guest.

    A range is of the OS's phases over their own mean, and of the policy's ratios. In between is the
    geometric mean over its phases in all runs; the OS's in one guest is geometric too, or chance
    alone would look like a gain. A dash: in some phase it is not known, as a mean latency where a
    query got no tuple through. What the OS has no figure of is told as it is.
    """
    seen = _compared(runs)
    rows = []
    for name, means in seen.means.items():
        around = seen.spread.get(name, [1.0])
        mean = float(np.mean(means)) if means else math.nan
        own_mean = Figure(mean, round(min(around), 3), round(max(around), 3), unit_of(name))
        cells = {policy: results.over(of.get(name, [])) for policy, of in seen.ratios.items()}
        theirs = {policy: _own(name, values) for policy, values in seen.alone.get(name, {}).items()}
        own = "-" if theirs or math.isnan(mean) else own_mean
        rows.append(Row(name, {"OS": own, **cells, **theirs}))
    return Result(
        title=f"{scenario}: the OS's own figures, and ratios to them",
        columns=["OS", *seen.ratios],
        n=max((len(of) for each in seen.ratios.values() for of in each.values()), default=0),
        spread="smallest-largest over phases",
        seeds=None,
        kernel=kernel,
        rows=rows,
        **results.here(),
    )


@dataclass(frozen=True)
class _Seen:
    """means, spread: of the OS's figures, each run's mean and the phases over that. ratios: of
    policies to that mean, by figure. alone: figures of which the OS has none, by policy.
    """

    means: dict[str, list[float]] = field(default_factory=dict)
    spread: dict[str, list[float]] = field(default_factory=dict)
    ratios: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    alone: dict[str, dict[str, list[float]]] = field(default_factory=dict)


def _compared(runs: Sequence[Sequence[dict[str, Any]]]) -> _Seen:
    seen = _Seen()
    for phases in runs:
        told = [(phase["phase"], figures(phase)) for phase in phases]
        for name in dict.fromkeys(name for _, found in told for name in found):
            by_phase = [(who, found[name]) for who, found in told if name in found]
            known = [value for who, value in by_phase if who == "os"]
            mean = results.middle(known)
            seen.means.setdefault(name, []).extend([mean] if known else [])
            for who, value in by_phase:
                if not known:
                    seen.alone.setdefault(name, {}).setdefault(who, []).append(value)
                elif mean and who != "os":  # NaN as well
                    ratios = seen.ratios.setdefault(who, {})
                    ratios.setdefault(name, []).append(value / mean)
                elif mean:
                    seen.spread.setdefault(name, []).append(value / mean)
    return seen


def _own(name: str, values: Sequence[float]) -> Figure:
    mean = float(np.mean(values))
    around = [value / mean for value in values] if mean else [1.0]
    return Figure(mean, round(min(around), 3), round(max(around), 3), unit_of(name))


def unit_of(name: str) -> str:
    """Of a figure of a phase."""
    if name.endswith(("/s", "%", " s")):
        return name[-2:].strip()
    times = ("mean", "median", "p95", "p99", "late", ", ms")
    return "ms" if name.endswith(times) or name.startswith("delay") else "CPUs"
