"""sched-ctl replay: what another policy would have set in a recorded time."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sched_ctl.cli.flags import Json, asked
from sched_ctl.errors import UserError

if TYPE_CHECKING:
    from sched_ctl.telemetry.reading import Bad
    from sched_ctl.telemetry.records import Line
    from sched_ctl.telemetry.replay import Spread, Step, Summary

__all__ = ["add_to", "lines_of"]


def add_to(app: typer.Typer) -> None:
    app.command()(replay)


def replay(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Recorded files of one node (load --record), or their folder.",
            readable=False,  # who may not read it gets our own error, with a hint
        ),
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
    from sched_ctl import show
    from sched_ctl.plugins import registry
    from sched_ctl.telemetry import records
    from sched_ctl.telemetry.replay import Lack, Summary
    from sched_ctl.telemetry.replay import replay as steps_of

    # Twice through the files: what a month of records says does not fit into a small memory.
    lines = lines_of(files, [])
    in_force = {name for line in lines if isinstance(line, records.Record) for name in line.policy}
    known = [name for name in sorted(in_force) if name in registry.policies()]
    names = list(dict.fromkeys([*(policy or ["hr"]), *known]))
    with asked():
        chosen = [registry.policy(name) for name in names]
    problems: list[str] = []
    missing: dict[str, Lack] = {}
    summary, steps = Summary(names), list[dict[str, Any]]()
    for step in steps_of(lines_of(files, problems), chosen, window, missing):
        summary.add(step)
        if json:
            steps.append(_plain(step))
    if not summary.steps:
        raise UserError(
            "there is no record in these files" + (f": {problems[0]}" if problems else ""),
            "sched-ctl load --record DIR writes them",
        )
    problems[:0] = [f"left out {k.records} times: {k.why.message}" for k in missing.values()]
    if json:
        show.emit_json(_as_json(summary, sorted(in_force), problems, steps))
        return
    seconds = (summary.to_ms - summary.from_ms) / 1e3
    show.text(
        f"{summary.steps} records over {seconds:.0f} s; in force: {', '.join(sorted(in_force))}. "
        "Nice values that each policy would have set (mean, least to most):"
    )
    show.table(
        ("engine", "operator", *(f">{name}" for name in names)),
        (
            (engine, label, *(_words(values[name]) for name in names))
            for (engine, label), values in summary.nice.items()
        ),
    )
    for name in names[1:]:
        if not {name, names[0]} <= summary.tried:
            continue
        alike = summary.alike.get(name)
        told = (
            "puts nothing in order"
            if alike is None
            else f"orders {alike.mean:.0%} of the pairs of operators as {names[0]} does"
        )
        show.text(f"{name} {told}")
    for problem in problems[:10]:
        show.text(problem)


def _as_json(
    summary: "Summary", in_force: list[str], problems: list[str], steps: list[dict[str, Any]]
) -> dict[str, Any]:
    first, *others = summary.names
    alike = summary.alike
    return {
        "records": summary.steps,
        "from_ms": summary.from_ms,
        "to_ms": summary.to_ms,
        "in_force": in_force,
        "problems": problems,
        "operators": [
            {
                "engine": engine,
                "operator": label,
                "nice": {name: _numbers(spread) for name, spread in values.items()},
            }
            for (engine, label), values in summary.nice.items()
        ],
        f"ordered_as_{first}": {
            name: alike[name].mean if name in alike else None for name in others
        },
        "steps": steps,
    }


def lines_of(files: list[Path], problems: list[str]) -> Iterator["Line"]:
    """The lines of recorded files, and of those in folders, one after the other.

    problems: gets what is no line of ours, in words. Raises UserError if something cannot be read.
    """
    from sched_ctl.telemetry.reading import Bad

    found = [path for file in files for path in _paths(file)]
    if not found:
        raise UserError(f"there is no recorded file in {', '.join(map(str, files))}")
    for path in found:
        told = _read(path)
        if told is None:
            problems.append(f"{path}: is not there any more")
            continue
        for line in told:
            if not isinstance(line, Bad):
                yield line[1]
            elif not (path.suffix == ".part" and line.why.startswith("torn")):  # it still grows
                problems.append(f"{path}:{line.line}: {line.why}")


def _paths(file: Path) -> list[Path]:
    """The file, or the recorded files in the folder, oldest first. Raises UserError."""
    try:
        if not file.is_dir():
            file.stat()
            return [file]
        return sorted((p for p in file.iterdir() if ".jsonl.gz" in p.name), key=_number)
    except OSError as error:
        hint = "run this as its owner, or as root" if isinstance(error, PermissionError) else None
        raise UserError(f"cannot read {file}: {error.strerror}", hint) from error


def _read(path: Path) -> "Iterator[tuple[int, Line] | Bad] | None":
    """A file, also if it was closed meanwhile, and has another name; None if it is not there."""
    from sched_ctl.telemetry import reading

    for name in (path, path.with_name(path.name.removesuffix(".part"))):
        try:
            return reading.read(name)
        except UserError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
    return None


def _number(path: Path) -> tuple[int, str]:
    from sched_ctl.telemetry.records import FileName

    name = FileName.parse(path.name.removesuffix(".part"))
    return (0 if name is None else name.seq, path.name)


def _numbers(spread: "Spread") -> dict[str, float | None]:
    if not spread.count:
        return dict.fromkeys(("mean", "least", "most"))
    return {"mean": round(spread.mean, 2), "least": int(spread.least), "most": int(spread.most)}


def _words(spread: "Spread") -> str:
    if not spread.count:
        return "-"
    same = spread.least == spread.most
    return f"{spread.mean:.1f}" + ("" if same else f" ({spread.least:.0f}..{spread.most:.0f})")


def _plain(step: "Step") -> dict[str, Any]:
    return {
        "engine": step.engine,
        "t_ms": step.t_ms,
        "in_force": step.ruled,
        "place": {
            name: {
                label: round(value, 4) if value == value else None
                for label, value in zip(step.labels, place.tolist(), strict=True)
            }
            for name, place in step.place.items()
        },
    }
