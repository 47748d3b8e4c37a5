"""The demo's table, its words and its picture."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sched_ctl import show
from sched_ctl.demo.results import sentences
from sched_ctl.errors import adding

__all__ = ["report"]


GUEST = "In a checkout ./dev demo --guest shows what sched_ext brings, in a guest that has it."


def report(found: Mapping[str, Any], out: Path | None, *, json: bool = False) -> None:
    """Show it. found: as `summary` has it. out: the folder for the picture."""
    plots = [] if out is None else _plots(out, found)
    if json:
        show.emit_json({**found, "plots": [str(path) for path in plots]})
        return
    show.text(
        f"{found['workload']} at {found['load']:.0%}: {found['policy']} ({found['backend']}) "
        "against the OS's own scheduling"
    )
    show.table(
        ("query", ">p50 ms: OS", ">ours", ">p99 ms: OS", ">ours", ">tuples, ratio"),
        (
            [row["query"], *_milliseconds(row), show.number(row["tuples_per_s"]["ratio"], 3)]
            for row in found["queries"]
        ),
    )
    for line in sentences(found["queries"]):
        show.text(line)
    _words(found)
    for path in plots:
        show.text(f"picture: {path}")
    if found["backend"] != "scx":
        show.text(GUEST)
    show.text(
        "next: sched-ctl check, then sched-ctl load, which schedules the engines that run here"
    )


def _milliseconds(row: Mapping[str, Any]) -> list[str]:
    return [show.number(row[at][who]) for at in ("p50_ms", "p99_ms") for who in ("os", "policy")]


def _words(found: Mapping[str, Any]) -> None:
    by = {
        verdict: [row["measure"] for row in found["measures"] if row["verdict"] == verdict]
        for verdict in ("worse", "unclear")
    }
    if by["worse"]:
        show.text(f"Over all tuples {found['policy']} loses in: {', '.join(by['worse'])}.")
    if by["unclear"]:
        show.text(f"The pairs do not agree on: {', '.join(by['unclear'])} (--phases 8 may tell).")
    if found["disturbed_phases"]:
        show.text(
            f"{found['disturbed_phases']} of {2 * found['phases']} phases were disturbed by other "
            "programs: repeat on a quiet machine."
        )


def _plots(out: Path, found: Mapping[str, Any]) -> list[Path]:
    try:
        from sched_ctl.demo import plots
    except ImportError as error:
        print(f"no plots: {error}; in a checkout: {adding('plots')}", file=sys.stderr)
        return []
    cpus = "1 CPU" if found["cpus"] == 1 else f"{found['cpus']} CPUs"
    title = f"{found['workload']} at {found['load']:.0%} of {cpus}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        return [plots.latencies(out / "latency.png", found["queries"], found["policy"], title)]
    except OSError as error:
        print(f"no plots: {error}", file=sys.stderr)
        return []
