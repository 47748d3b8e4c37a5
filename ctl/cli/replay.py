"""sched-ctl replay: what another policy would have set in a recorded time."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sched_ctl.cli.flags import Json, asked
from sched_ctl.errors import UserError

if TYPE_CHECKING:
    from sched_ctl.telemetry.records import Line

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    app.command()(replay)


def replay(
    files: Annotated[
        list[Path],
        typer.Argument(help="Recorded files of one node (load --record), or their folder."),
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            "-p",
            help="Policy to be tried; may be repeated. Default: hr, and what was in force.",
            show_default=False,
        ),
    ] = None,
    window: Annotated[
        float,
        typer.Option(
            help="How far back counters are compared.", metavar="SECONDS", min=0.01, max=600
        ),
    ] = 5.0,
    json: Json = False,
) -> None:
    """Show what other policies would have set in a recorded time: nice values, and the order.

    Nothing is applied, and the load is what it was; what a policy makes of a load, simulate tells.

    Example: sched-ctl replay /var/log/sched-ctl -p hr -p qs
    """
    import numpy as np

    from sched_ctl import show
    from sched_ctl.plugins import registry
    from sched_ctl.telemetry import records
    from sched_ctl.telemetry.replay import agreement
    from sched_ctl.telemetry.replay import replay as steps_of

    problems: list[str] = []
    lines = list(_lines(files, problems))
    in_force = {name for line in lines if isinstance(line, records.Record) for name in line.policy}
    known = [name for name in sorted(in_force) if name in registry.policies()]
    names = list(dict.fromkeys([*(policy or ["hr"]), *known]))
    with asked():
        chosen = [registry.policy(name) for name in names]
    steps = list(steps_of(lines, chosen, window))
    if not steps:
        raise UserError(
            "there is no record in these files" + (f": {problems[0]}" if problems else ""),
            "sched-ctl load --record DIR writes them",
        )
    figures = {
        (engine, label): {
            name: _spread([step.nice[name][row] for step, row in at]) for name in names
        }
        for (engine, label), at in _by_operator(steps).items()
    }
    alike = {
        name: _mean([agreement(step.place[names[0]], step.place[name]) for step in steps])
        for name in names[1:]
    }
    if json:
        show.emit_json(
            {
                "records": len(steps),
                "from_ms": min(step.t_ms for step in steps),
                "to_ms": max(step.t_ms for step in steps),
                "in_force": sorted(in_force),
                "problems": problems,
                "operators": [
                    {"engine": engine, "operator": label, "nice": values}
                    for (engine, label), values in figures.items()
                ],
                "ordered_as_" + names[0]: alike,
                "steps": [
                    {
                        "engine": step.engine,
                        "t_ms": step.t_ms,
                        "in_force": step.ruled,
                        "place": {
                            name: dict(zip(step.labels, _plain(step.place[name]), strict=True))
                            for name in names
                        },
                    }
                    for step in steps
                ],
            }
        )
        return
    seconds = (max(step.t_ms for step in steps) - min(step.t_ms for step in steps)) / 1e3
    show.text(
        f"{len(steps)} records over {seconds:.0f} s; in force: {', '.join(sorted(in_force))}. "
        "Nice values that each policy would have set (mean, least to most):"
    )
    show.table(
        ("engine", "operator", *(f">{name}" for name in names)),
        (
            (engine, label, *(_words(values[name]) for name in names))
            for (engine, label), values in figures.items()
        ),
    )
    for name, share in alike.items():
        told = (
            "puts nothing in order"
            if share is None or np.isnan(share)
            else (f"orders {share:.0%} of the pairs of operators as {names[0]} does")
        )
        show.text(f"{name} {told}")
    for problem in problems[:10]:
        show.text(problem)


def _lines(files: list[Path], problems: list[str]) -> Iterator["Line"]:
    from sched_ctl.telemetry import reading

    found = [
        path
        for file in files
        for path in (
            sorted((p for p in file.iterdir() if ".jsonl.gz" in p.name), key=_number)
            if file.is_dir()
            else [file]
        )
    ]
    if not found:
        raise UserError(f"there is no recorded file in {', '.join(map(str, files))}")
    for path in found:
        for line in reading.read(path):
            if not isinstance(line, reading.Bad):
                yield line[1]
            elif not (path.suffix == ".part" and line.why.startswith("torn")):  # it still grows
                problems.append(f"{path}:{line.line}: {line.why}")


def _number(path: Path) -> tuple[int, str]:
    from sched_ctl.telemetry.records import FileName

    name = FileName.parse(path.name.removesuffix(".part"))
    return (0 if name is None else name.seq, path.name)


def _by_operator(steps: list[Any]) -> dict[tuple[str, str], list[tuple[Any, int]]]:
    found: dict[tuple[str, str], list[tuple[Any, int]]] = {}
    for step in steps:
        for row, label in enumerate(step.labels):
            found.setdefault((step.engine, label), []).append((step, row))
    return found


def _spread(values: list[float]) -> dict[str, float]:
    rounded = [round(float(value)) for value in values]
    return {
        "mean": round(sum(map(float, values)) / len(values), 2),
        "least": min(rounded),
        "most": max(rounded),
    }


def _words(spread: dict[str, float]) -> str:
    same = spread["least"] == spread["most"]
    return f"{spread['mean']:.1f}" + ("" if same else f" ({spread['least']}..{spread['most']})")


def _mean(values: list[float]) -> float | None:
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else None


def _plain(column: Any) -> list[float | None]:
    return [round(value, 4) if value == value else None for value in column.tolist()]
