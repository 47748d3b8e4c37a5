"""Workloads or a recorded snapshot in the simulator, under several policies and loads."""

import json as json_module
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from sched_ctl import show
from sched_ctl.cli import kept
from sched_ctl.cli.flags import asked
from sched_ctl.config.settings import ConfigError
from sched_ctl.errors import UserError
from sched_ctl.lab.engine import check_name, workload_file
from sched_ctl.model import files as record
from sched_ctl.model.targets import Target
from sched_ctl.plugins import registry
from sched_ctl.sim.node import Node, of_snapshot, of_workload
from sched_ctl.sim.setting import Setting
from sched_ctl.sim.sweep import Job, Row, row, run_all
from sched_ctl.telemetry import profiles
from sched_ctl.workloads import workload

__all__ = ["OS", "batch", "nodes", "run"]

OS = "os"  # as a policy name: the OS's own scheduling

# Of a table: which figure, and in which unit.
COLUMNS = {
    "out/s": ("throughput", 1.0),
    "mean ms": ("response_s", 1e3),
    "p50": ("response_p50_s", 1e3),
    "p99": ("response_p99_s", 1e3),
    "max": ("response_max_s", 1e3),
    "slow": ("slowdown", 1.0),
    "worst": ("slowdown_max", 1.0),
    "rms": ("slowdown_rms", 1.0),
}
QUEUES = {"queued": ("memory_tuples", 1.0), "CV": ("imbalance", 1.0)}  # where there is room
WIDE = 90


def run(
    source: Path,
    made: list[tuple[float, Node]],
    names: list[str],
    setting: Setting,
    seeds: int,
    *,
    plots: Path | None,
    json: bool,
) -> None:
    """Simulate each policy at each load with each seed, side by side; print or plot what came out.

    made: load and node. names: of policies, and "os"; what has a target goes by that under
    `deadline`, and the rest as `auto` has it.
    """
    names = list(dict.fromkeys(names))
    with asked():  # refused before anything runs
        for name in names:
            if name != OS:
                _check_turns(name, setting.scheduler)
    if plots is not None:
        from sched_ctl.sim import plots as drawing  # fails early without matplotlib
    as_os = replace(setting, scheduler=OS)
    points = [(at, node, name) for at, node in made for name in names]
    todo = [
        Job(node, None, replace(as_os, seed=number))
        if name == OS
        else Job(node, name, replace(setting, seed=number), kept.options(name, node, setting))
        for _, node, name in points
        for number in range(setting.seed, setting.seed + seeds)
    ]
    with _progress(len(todo), not json) as advance:
        runs = iter(run_all(todo, advance))
    rows = [row(name, at, list(islice(runs, seeds))) for at, _, name in points]
    if json:
        print(json_module.dumps([_plain(r) for r in rows], allow_nan=False))
    else:
        _show(source, rows)
        kept.show(rows)
    if plots is not None:
        files = drawing.write(rows, plots)
        Console(stderr=True).print(f"plots: {', '.join(map(str, files))}")


def _check_turns(name: str, scheduler: str) -> None:
    """Raises UserError for a policy whose turns would be lost, and for one that there is not."""
    if registry.policy(name).groups is not None and scheduler != "user":
        raise UserError(
            f"{name} gives queries turns, which --scheduler {scheduler} would take for one order "
            "of all operators",
            "turns between queries are simulated by --scheduler user alone",
        )


def batch(text: str) -> int:
    if text in ("all", "half"):
        return {"all": 0, "half": -1}[text]
    if not text.isdecimal() or not 1 <= int(text) <= 10**9:
        raise UserError(f"--batch {text!r}: a number above 0, or all, or half")
    return int(text)


def nodes(
    source: Path,
    loads: list[float] | None,
    cpus: int,
    base_cost_us: float | None,
    common: bool,
    targets: tuple[Target, ...] = (),
) -> list[tuple[float, Node]]:
    if base_cost_us is not None and not 1e-6 <= base_cost_us <= 1e9:
        raise ConfigError(f"--base-cost-us {base_cost_us:g} is out of range")
    if np.inf in (loads or []):
        raise ConfigError("--load inf is out of range")
    loads = list(dict.fromkeys(loads or ()))
    base = None if base_cost_us is None else base_cost_us * 1e-6
    made = _nodes(source, loads, cpus, base, common)
    for _, node in made if targets else ():
        kept.check(node, targets)
    return [(at, replace(node, targets=targets)) for at, node in made]


def _nodes(
    source: Path, loads: list[float] | None, cpus: int, base: float | None, common: bool
) -> list[tuple[float, Node]]:
    with _file(source) as file:
        if _is_json(file):
            _refuse("--base-cost-us", base is not None)
            _refuse("--common-stream", common)
            snapshot = _snapshot(file)
            wanted: list[float | None] = [*loads] if loads else [None]
            made = [of_snapshot(snapshot, at, cpus) for at in wanted]
            return [(node.demand / cpus, node) for node in made]
        spec, folder = workload.load(file), file.parent
        return [
            (at, of_workload(spec, at, cpus=cpus, base_cost_s=base, common=common, folder=folder))
            for at in loads or [0.9]
        ]


def _refuse(flag: str, given: bool) -> None:
    if given:
        raise ConfigError(
            f"{flag} is for workloads: a snapshot has measured costs and streams",
            f"leave out {flag}",
        )


@contextmanager
def _file(source: Path) -> Iterator[Path]:
    """What is given, or the workload of that name, as the lab engine takes it."""
    if source.suffix or len(source.parts) != 1 or source.exists():
        yield source
        return
    with asked():
        check_name(source.name)
    with workload_file(source.name) as file:
        yield file


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
    if isinstance(data, dict) and data.get("kind") == "profile":
        return profiles.snapshot(profiles.read(source))
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

        def advance(job: Job) -> Any:
            number = len(done)
            done[number] = 0.0
            label = f"{job.policy or OS} at {job.node.demand / job.setting.cpus:.3g}"

            def update(share: float) -> None:
                done[number] = share
                bar.update(task, description=label, completed=sum(list(done.values())))

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
        "setting": asdict(entry.results[0].setting),
        "figures": {
            name: {"mean": number(mean), "half_width_95": number(half)}
            for name, (mean, half) in entry.figures.items()
        },
        "targets": kept.rows(entry),
        "classes": {
            klass: {name: number(value) for name, value in figures.items()}
            for klass, figures in entry.by_class.items()
        },
        "utilisation": {
            operator.label: number(float(np.mean([r.utilisation[i] for r in entry.results])))
            for i, operator in enumerate(entry.results[0].node.topology.operators)
        },
    }


def _show(source: Path, rows: list[Row]) -> None:
    columns = COLUMNS
    if wide := show.width() >= WIDE:
        columns = COLUMNS | QUEUES
    names = [f">{name}" for name in columns]
    names.insert(names.index(">mean ms") + 1, ">±")
    cells = [line for entry in rows for line in _lines(entry, columns)]
    show.table(("policy", "load", *names), cells, title=f"{source.name}, simulated")
    seeds = len(rows[0].results)
    show.text(f"Means over {seeds} seeds; ±: half of the mean's 95% interval; times in ms.")
    show.text("Slow: slowdown, response time over own CPU time; worst, rms: of the slowdowns.")
    if wide:
        show.text("Queued: tuples in all queues; CV: variation of the operators' utilisation.")
    _warn(rows)


def _lines(entry: Row, columns: Mapping[str, tuple[str, float]]) -> Iterator[list[str]]:
    """Of a table: all queries of a policy at a load, then each class of them."""

    def written(figures: Mapping[str, float], spread: str) -> Iterator[str]:
        for figure, scale in columns.values():
            value = figures.get(figure)
            yield "" if value is None else show.number(value * scale)
            if figure == "response_s":
                yield spread

    mean, half = entry.figures["response_s"]
    means = {name: figure for name, (figure, _) in entry.figures.items()}
    load = f"{entry.load:g}" + ("" if entry.stable else " !")
    yield [entry.policy, load, *written(means, f"{half / mean:.0%}" if np.isfinite(half) else "-")]
    for klass, figures in entry.by_class.items():
        yield [f"  {klass}", "", *written(figures, "")]


def _warn(rows: list[Row]) -> None:
    """Of what the figures are no measure."""
    why = dict.fromkeys(result.overload for entry in rows for result in entry.results)
    for overload in filter(None, why):
        show.text(
            f"! {overload}: queues grow for as long as tuples come, so these figures depend on "
            "--duration"
        )
    if any(map(_lacks_floor, rows)):
        show.text(
            "The floor of scx, which gives a query that lags behind its fair share the next turn, "
            "is not simulated."
        )


def _lacks_floor(entry: Row) -> bool:
    """Whether queries would be held to their fair shares under our BPF scheduler."""
    first = entry.results[0]
    several = len(first.node.topology.queries) > 1
    ours = first.setting.scheduler == "scx" and not registry.policy(entry.policy).strict
    return ours and several and not entry.stable
