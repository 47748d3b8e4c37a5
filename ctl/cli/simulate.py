"""sched-ctl simulate: workloads or a recorded snapshot, under several policies and loads."""

import json as json_module
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from sched_ctl.errors import UserError
from sched_ctl.model import files as record
from sched_ctl.model.policy import Policy
from sched_ctl.plugins import registry
from sched_ctl.sim import calibrate as calibration
from sched_ctl.sim.node import Node, of_snapshot, of_workload
from sched_ctl.sim.result import Result, interval
from sched_ctl.sim.run import simulate_by_name
from sched_ctl.sim.setting import SCHEDULERS, Setting
from sched_ctl.workloads import workload

__all__ = ["Row", "app"]

OS = "os"  # as a policy name: the OS's own scheduling


@dataclass(frozen=True)
class Row:
    """One policy at one load, over the seeds: mean and half width of the 95% interval."""

    policy: str
    load: float
    stable: bool
    figures: dict[str, tuple[float, float]]
    by_class: dict[str, dict[str, float]]
    results: tuple[Result, ...]


def run(
    source: Annotated[
        Path | None,
        typer.Argument(
            help="A workload file (bench/workloads/*.graph), or a snapshot (plan --save).",
            metavar="FILE",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", "-p", help="May be repeated; 'os' is the OS's own scheduling."),
    ] = None,
    load: Annotated[
        list[float] | None,
        typer.Option("--load", "-l", help="CPU demand over CPUs; may be repeated.", min=1e-3),
    ] = None,
    scheduler: Annotated[
        str, typer.Option(help="Who chooses what runs: " + ", ".join(SCHEDULERS) + ".")
    ] = "user",
    level: Annotated[str, typer.Option(help="user: decide by operator, or by query.")] = "operator",
    batch: Annotated[
        str, typer.Option(help="user: tuples a turn: a number (at most), all, or half.")
    ] = "1",
    cpus: Annotated[int, typer.Option(min=1, max=1024)] = 1,
    duration: Annotated[
        float, typer.Option(help="Of the arrivals.", metavar="SECONDS", min=1e-3)
    ] = 60.0,
    warm_up: Annotated[
        float | None, typer.Option(help="Tuples before are not counted (default: a tenth of it).")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs with different arrivals.", min=1, max=1000)] = 3,
    seed: Annotated[int, typer.Option(help="The first of them.", min=0)] = 1,
    clusters: Annotated[
        int, typer.Option(help="Clusters of wait-dependent policies; 0: exact.", min=0)
    ] = 0,
    capacity: Annotated[
        int, typer.Option(help="Bound of the queues between operators; 0: none.", min=0)
    ] = 0,
    base_cost_us: Annotated[
        float | None, typer.Option(help="CPU time of a cost of 1 (default: the workload's).")
    ] = None,
    decision_us: Annotated[float, typer.Option(help="Cost of a scheduling decision.", min=0)] = 0.0,
    hop_us: Annotated[
        float | None, typer.Option(help="Overhead of each tuple at each operator.", min=0)
    ] = None,
    wake_us: Annotated[
        float | None, typer.Option(help="Cost of a wake-up, for whoever wakes.", min=0)
    ] = None,
    switch_us: Annotated[
        float | None, typer.Option(help="Cost of a context switch.", min=0)
    ] = None,
    source_us: Annotated[
        float | None,
        typer.Option(help="What bringing tuples takes, each time it interrupts.", min=0),
    ] = None,
    costs: Annotated[
        Path | None,
        typer.Option(help="These four from a file that --calibrate wrote.", metavar="FILE"),
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Measure what a hop costs on this machine, print it."),
    ] = False,
    common_stream: Annotated[
        bool, typer.Option("--common-stream", help="All queries see the same tuples.")
    ] = False,
    plots: Annotated[
        Path | None, typer.Option(help="Folder for plots (PNG).", metavar="DIR")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Run queries in the simulator: what a policy can be expected to do at a load.

    The policies are the very ones that schedule real engines. Response times count from a tuple's
    arrival to its result; slowdown is the response time over the tuple's own CPU time.
    """
    if calibrate:
        print(calibration.measure().json())
        return
    if source is None:
        raise UserError("what is to be simulated?", "name a workload file, or a snapshot")
    policies = policy or ([OS, "hr"] if scheduler == "os" else ["fcfs", "hr"])
    chosen = {name: None if name == OS else registry.policy(name) for name in policies}
    machine = calibration.load(costs) if costs else calibration.Costs(0.0, 0.0, 0.0, 0.0)
    setting = Setting(
        scheduler=scheduler,
        level=level,
        batch=_batch(batch),
        cpus=cpus,
        duration_s=duration,
        warm_s=duration / 10 if warm_up is None else warm_up,
        seed=seed,
        clusters=clusters,
        capacity=capacity,
        decision_s=decision_us * 1e-6,
        hop_s=machine.hop_s if hop_us is None else hop_us * 1e-6,
        wake_s=machine.wake_s if wake_us is None else wake_us * 1e-6,
        switch_s=machine.switch_s if switch_us is None else switch_us * 1e-6,
        source_s=machine.source_s if source_us is None else source_us * 1e-6,
    )
    made = _nodes(source, load, cpus, base_cost_us, common_stream)
    if plots is not None:
        from sched_ctl.sim import plots as drawing  # fails early without matplotlib
    todo = [
        (at, node, name, replace(setting, seed=number, scheduler=OS if name == OS else scheduler))
        for at, node in made
        for name in chosen
        for number in range(seed, seed + seeds)
    ]
    # Nearly all of it is compiled and holds no lock of Python's, so threads fill the CPUs.
    with _progress(len(todo), not json) as advance, ThreadPoolExecutor(_cpus()) as pool:
        running = [
            pool.submit(
                simulate_by_name, node, None if name == OS else name, {}, now, advance(name, at)
            )
            for at, node, name, now in todo
        ]
        try:
            runs = [each.result() for each in running]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    rows = [
        row(name, at, chosen[name], runs[first : first + seeds])
        for first, (at, _, name, _) in list(enumerate(todo))[::seeds]
    ]
    if json:
        print(json_module.dumps([_plain(r) for r in rows], allow_nan=False))
    else:
        _show(source, rows)
    if plots is not None:
        files = drawing.write(rows, plots)
        Console(stderr=True).print(f"plots: {', '.join(map(str, files))}")


app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run)


def row(name: str, load: float, policy: Policy | None, runs: list[Result]) -> Row:
    """The figures of one policy at one load over several seeds."""
    summaries = [result.summary() for result in runs]

    def over(values: Iterator[float] | list[float]) -> tuple[float, float]:
        return interval(list(values))

    figures = {
        "throughput": over([s.throughput for s in summaries]),
        "response_s": over([s.response_s for s in summaries]),
        "response_p99_s": over([r.quantile(0.99) for r in runs]),
        "response_max_s": over([s.response_max_s for s in summaries]),
        "slowdown": over([s.slowdown for s in summaries]),
        "slowdown_max": over([s.slowdown_max for s in summaries]),
        "slowdown_l2": over([s.l2 for s in summaries]),
        "slowdown_rms": over([s.rms for s in summaries]),
        "memory_tuples": over([r.memory for r in runs]),
        "imbalance": over([r.imbalance for r in runs]),
        "switches_per_s": over([r.totals["switches"] / r.seconds for r in runs]),
        "offered": over([r.offered for r in runs]),
    }
    by_class = {
        klass: {
            "response_s": float(np.mean([r.by_class()[klass].response_s for r in runs])),
            "slowdown": float(np.mean([r.by_class()[klass].slowdown for r in runs])),
            "slowdown_max": float(np.max([r.by_class()[klass].slowdown_max for r in runs])),
        }
        for klass in runs[0].by_class()
    }
    return Row(name, load, all(r.stable for r in runs), figures, by_class, tuple(runs))


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


def _batch(text: str) -> int:
    if text in ("all", "half"):
        return {"all": 0, "half": -1}[text]
    if not text.isdecimal() or not 1 <= int(text) <= 10**9:
        raise UserError(f"--batch {text!r}: a number above 0, or all, or half")
    return int(text)


def _nodes(
    source: Path,
    loads: list[float] | None,
    cpus: int,
    base_cost_us: float | None,
    common: bool,
) -> list[tuple[float, Node]]:
    if base_cost_us is not None and not 1e-6 <= base_cost_us <= 1e9:
        raise UserError(f"--base-cost-us {base_cost_us:g} is out of range")
    if _is_json(source):
        snapshot = _snapshot(source)
        wanted: list[float | None] = [*loads] if loads else [None]
        made = [of_snapshot(snapshot, at, cpus) for at in wanted]
        return [(node.demand / cpus, node) for node in made]
    spec = workload.load(source)
    base = None if base_cost_us is None else base_cost_us * 1e-6
    return [
        (
            at,
            of_workload(spec, at, cpus=cpus, base_cost_s=base, common=common, folder=source.parent),
        )
        for at in loads or [0.9]
    ]


def _is_json(source: Path) -> bool:
    try:
        with open(source, "rb") as file:
            return file.read(1) == b"{"
    except OSError as error:
        raise UserError(f"cannot read {source}: {error.strerror}") from error


def _snapshot(source: Path) -> Any:
    try:
        data = msgspec.json.decode(source.read_bytes())
    except msgspec.DecodeError as error:
        raise UserError(f"{source}: not a snapshot: {error}") from error
    try:
        return record.snapshot_from_json(data)
    except UserError as error:
        raise UserError(f"{source}: {error.message}", error.hint) from error


@contextmanager
def _progress(total: int, shown: bool) -> Iterator[Any]:
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not shown,
    )
    with bar:
        task = bar.add_task("", total=total)
        done: dict[int, float] = {}  # run -> share of it

        def advance(name: str, load: float) -> Any:
            number = len(done)
            done[number] = 0.0

            def update(share: float) -> None:
                done[number] = share
                bar.update(
                    task, description=f"{name} at {load:g}", completed=sum(list(done.values()))
                )

            return update

        yield advance


def _plain(entry: Row) -> dict[str, Any]:
    def number(value: float) -> float | None:
        return value if np.isfinite(value) else None

    return {
        "policy": entry.policy,
        "load": entry.load,
        "stable": entry.stable,
        "seeds": len(entry.results),
        "setting": {k: number(v) if isinstance(v, float) else v for k, v in _setting(entry)},
        "figures": {
            name: {"mean": number(mean), "half_width_95": number(half)}
            for name, (mean, half) in entry.figures.items()
        },
        "classes": entry.by_class,
        "utilisation": {
            operator.label: float(np.mean([r.utilisation[i] for r in entry.results]))
            for i, operator in enumerate(entry.results[0].node.topology.operators)
        },
    }


def _setting(entry: Row) -> Any:
    return asdict(entry.results[0].setting).items()


def _show(source: Path, rows: list[Row]) -> None:
    table = Table(title=f"{source.name}, simulated", title_justify="left", box=None, padding=(0, 1))
    for name in ("policy", "load"):
        table.add_column(name, no_wrap=True)
    columns = {
        "out/s": ("throughput", 1.0),
        "mean ms": ("response_s", 1e3),
        "p99": ("response_p99_s", 1e3),
        "max": ("response_max_s", 1e3),
        "slow": ("slowdown", 1.0),
        "worst": ("slowdown_max", 1.0),
        "rms": ("slowdown_rms", 1.0),
        "queued": ("memory_tuples", 1.0),
        "CV": ("imbalance", 1.0),
    }
    if Console().width < 90:
        del columns["CV"]
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
        if name == "mean ms":
            table.add_column("±", justify="right", no_wrap=True)
    for entry in rows:
        cells = []
        for figure, scale in columns.values():
            mean, half = entry.figures[figure]
            cells.append(f"{mean * scale:,.4g}")
            if figure == "response_s":
                cells.append(f"{half / mean:.0%}" if np.isfinite(half) else "-")
        table.add_row(entry.policy, f"{entry.load:g}" + ("" if entry.stable else " !"), *cells)
        for klass, figures in entry.by_class.items():
            table.add_row(
                f"  {klass}",
                "",
                "",
                f"{figures['response_s'] * 1e3:,.4g}",
                "",
                "",
                "",
                f"{figures['slowdown']:,.4g}",
                f"{figures['slowdown_max']:,.4g}",
                style="dim",
            )
    Console().print(table)
    seeds = len(rows[0].results)
    Console().print(
        f"Means over {seeds} seeds; ±: half of the mean's 95% interval; times in ms.\n"
        "Slow: slowdown, response time over own CPU time; worst, rms: of the slowdowns.\n"
        "Queued: tuples in all queues; CV: variation of the operators' utilisation.",
        style="dim",
        highlight=False,
    )
    if any(not entry.stable for entry in rows):
        Console().print(
            "! more work than CPU: queues grow for as long as tuples come, so these figures "
            "depend on --duration",
            style="yellow",
        )
