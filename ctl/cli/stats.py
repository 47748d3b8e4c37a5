"""sched-ctl stats: what the scheduler in the kernel does."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sched_ctl.cli.flags import DEFAULT_RUN_DIR, Json, RunDir
from sched_ctl.errors import UserError

if TYPE_CHECKING:
    from sched_ctl.probes.timeline import Sample

__all__ = ["add_to"]

KERNEL = 0  # as a process of the timeline, which has the decisions
SHOWN_THREADS = 20


def add_to(app: typer.Typer) -> None:
    app.command()(stats)


def stats(
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show the rates again and again, until Ctrl-C.")
    ] = False,
    interval: Annotated[
        float, typer.Option(help="Time between two looks, in seconds.", min=0.1, max=3600)
    ] = 1.0,
    perfetto: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Instead: write when each operator ran and waited, its age, and how many "
            "decisions there were, as a timeline for ui.perfetto.dev.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="How long --perfetto looks.", min=0.1, max=3600)
    ] = 5.0,
    run_dir: RunDir = DEFAULT_RUN_DIR,
    json: Json = False,
) -> None:
    """Show what the scheduler in the kernel does: its decisions, and each thread's waits.

    Example: sched-ctl stats --watch
    """
    from sched_ctl import show
    from sched_ctl.config.settings import ConfigError
    from sched_ctl.service.socket import request

    if perfetto is not None and (watch or json):
        raise ConfigError(
            "--perfetto writes a file, and shows nothing", "leave out --watch, --json"
        )

    def ask() -> dict[str, Any]:
        answer: dict[str, Any] = request(run_dir, "dispatch")
        if not answer:
            raise UserError(
                "no scheduler of ours runs in the kernel: the backend is not scx",
                "sched-ctl status shows which it is and why",
            )
        return answer

    now = ask()
    if perfetto is not None:
        _timeline(now, ask, seconds, perfetto)
        return
    if json and not watch:
        show.emit_json(now)
        return
    if not watch:
        _show(now, {}, 0.0)
        return
    while True:
        before, began_s = now, time.monotonic()
        time.sleep(interval)
        now = ask()
        took_s = time.monotonic() - began_s
        if json:
            show.emit_json(now)
            continue
        if sys.stdout.isatty():
            print("\033[2J\033[H", end="")  # clear, and up to the corner
        _show(now, before["counters"], took_s)


def _timeline(
    now: dict[str, Any], ask: Callable[[], dict[str, Any]], seconds: float, path: Path
) -> None:
    """Operators as tracks, with their ages; and what was decided since the look before."""
    from sched_ctl.cli.waits import write_timeline

    before = dict(now["counters"])

    def sample() -> "Sample":
        seen = ask()
        made = {
            (KERNEL, name): float(value - before.get(name, 0))
            for name, value in seen["counters"].items()
            if value
        }
        before.update(seen["counters"])
        ages = {(row["pid"], f"age of {row['operator']}, ms"): row for row in seen["threads"]}
        return made | {key: row["age_ms"] for key, row in ages.items() if row["age_ms"] is not None}

    names = {row["tid"]: row["operator"] for row in now["threads"]}
    pids = sorted({row["pid"] for row in now["threads"]})
    write_timeline(path, pids, set(names), seconds, names=names, sample=sample)


def _show(now: dict[str, Any], before: dict[str, int], seconds: float) -> None:
    """Counters, or their rates if there are earlier ones; and the threads that wait most."""
    from sched_ctl import show

    counters = now["counters"]
    rates = (
        {name: (value - before.get(name, 0)) / seconds for name, value in counters.items()}
        if before
        else {}
    )
    show.table(
        ("counter", ">per second" if rates else ">total", "what"),
        (
            (name, show.number(rates.get(name, value)), now["about"].get(name, ""))
            for name, value in counters.items()
            if value
        ),
        title=f"sched_ext, {now['mode']} mode",
    )
    show.table(
        (
            *(">tid", "operator", ">queue", ">age ms", "by", ">waits ms", ">mean wait ms"),
            *(">longest ms", ">runs", ">starved"),
        ),
        (
            (
                row["tid"],
                row["operator"],
                row["queue"],
                show.number(row["age_ms"]),
                row["age_by"],
                *(show.number(row[key]) for key in ("waits_ms", "wait_mean_ms")),
                show.number(row["wait_max_ms"]),
                row["runs"],
                row["starved"],
            )
            for row in now["threads"][:SHOWN_THREADS]
        ),
        title=f"{len(now['threads'])} threads, longest wait first",
    )
