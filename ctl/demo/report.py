"""The demo's table, its words and its plots."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sched_ctl import show
from sched_ctl.demo.results import Options, Phase, summary

__all__ = ["report"]


def report(options: Options, phases: list[Phase], backend: str, json: bool) -> None:
    found = summary(options, phases, backend)
    plots = [] if options.out is None else _plots(options.out, options, phases)
    found["plots"] = [str(path) for path in plots]
    if json:
        show.emit_json(found)
        return
    show.table(
        ("", "unit", ">OS", f">{options.policy}", ">ratio", ">of the pairs", "verdict"),
        (
            (
                row["measure"],
                row["unit"],
                show.number(row["os"]),
                show.number(row["policy"]),
                show.number(row["ratio"]),
                f"{show.number(row['ratio_min'])} .. {show.number(row['ratio_max'])}",
                row["verdict"],
            )
            for row in found["measures"]
        ),
        title=f"{options.workload} at {options.load:.0%}: {options.policy} ({backend}) against "
        "the OS's own scheduling",
    )
    _words(found, options)
    for path in plots:
        show.text(f"plot: {path}")


def _words(found: Mapping[str, Any], options: Options) -> None:
    by = {
        verdict: [row["measure"] for row in found["measures"] if row["verdict"] == verdict]
        for verdict in ("better", "worse", "unclear")
    }
    if by["better"]:
        show.text(f"{options.policy} is better in: {', '.join(by['better'])}")
    if by["worse"]:
        show.text(f"{options.policy} loses in: {', '.join(by['worse'])}")
    if by["unclear"]:
        show.text(f"the pairs do not agree on: {', '.join(by['unclear'])} (more --phases may tell)")
    if found["disturbed_phases"]:
        show.text(
            f"{found['disturbed_phases']} of {2 * options.phases} phases were disturbed by other "
            "programs: repeat on a quiet machine"
        )


def _plots(out: Path, options: Options, phases: list[Phase]) -> list[Path]:
    try:
        from sched_ctl.demo import plots
    except ImportError as error:
        print(f"no plots: {error}; pip install 'sched-ctl[plots]' adds them", file=sys.stderr)
        return []
    cpus = "1 CPU" if options.cpus == 1 else f"{options.cpus} CPUs"
    title = f"{options.workload} at {options.load:.0%} of {cpus}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        return [
            plots.latencies(out / "latency.png", phases, title),
            plots.queues(out / "queues.png", phases, title),
        ]
    except OSError as error:
        print(f"no plots: {error}", file=sys.stderr)
        return []
