"""Figures as data: what benchmarks measured, kept in `bench/results/NAME.json`, and shown on pages.

    ./dev figures        # rewrites the marked sections of README.md and docs/*.md

A page says `<!-- figures: NAME -->`, or with some columns only `<!-- figures: NAME: mean, p99 -->`;
all between that and `<!-- end -->` is written from the file. Nobody edits it by hand.
"""

import argparse
import functools
import json
import math
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

__all__ = [
    "FOLDER",
    "MARK",
    "PAGES",
    "ROOT",
    "Figure",
    "Result",
    "Row",
    "argument",
    "here",
    "load",
    "markdown",
    "median",
    "middle",
    "over",
    "refreshed",
    "tell",
    "used",
    "write",
]

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(__file__).resolve().parent / "results"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
MARK = re.compile(r"(<!-- figures: ([\w.-]+)(?:: ([^>]*?))? -->\n).*?(<!-- end -->)", re.DOTALL)


class Figure(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """value: None where only `each` is known. low, high: the smallest and the largest of the runs,
    as parts of the value where it has a unit. unit: empty for a ratio. each: single runs.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    each: tuple[float, ...] = ()


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """figures: by column; text where it is no number. n: runs, if not as many as the result's."""

    name: str
    figures: dict[str, Figure | str]
    n: int | None = None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What one program measured at one time. None: not known.

    title: what is told. spread: what a range is of. build: a commit or a date. command: what
    repeats it.
    """

    title: str
    columns: list[str]
    n: int | None
    spread: str | None
    seeds: list[int] | None
    build: str | None
    kernel: str | None
    command: str | None
    rows: list[Row]


def load(name: str) -> Result:
    """Raises ValueError where two columns have one name: of a row's figures one would be lost."""
    found = msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=Result)
    if len({*found.columns}) < len(found.columns):
        raise ValueError(f"{name}: columns of one name in {found.columns}")
    return found


def write(name: str, result: Result) -> None:
    """One line a field and a row, so that differences can be read."""

    def told(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    fields = msgspec.to_builtins(result)
    rows = fields.pop("rows")
    for row in rows:
        row["figures"] = {column: _short(figure) for column, figure in row["figures"].items()}
    head = "".join(f' "{key}": {told(value)},\n' for key, value in fields.items())
    body = ",\n".join(f"  {told(row)}" for row in rows)
    (FOLDER / f"{name}.json").write_text(f'{{\n{head} "rows": [\n{body}\n ]\n}}\n')


def _short(figure: Any) -> Any:
    """Without what is as by default, and without digits that tell nothing."""
    if isinstance(figure, str):
        return figure
    value, low, high, unit, each = figure
    short = [_rounded(value), _rounded(low), _rounded(high), unit, [*map(_rounded, each)]]
    while len(short) > 1 and short[-1] in (None, "", []):
        short.pop()
    return short


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def argument(parser: argparse.ArgumentParser) -> None:
    """The option of benchmarks that keeps what they measured."""
    parser.add_argument(
        "--keep", metavar="NAME", help="write the figures to bench/results/NAME.json as well"
    )


def tell(result: Result, name: str | None) -> None:
    """Print it, and keep it if it has a name."""
    print(f"{markdown(result)}\n", flush=True)
    if name:
        write(name, result)


def here() -> dict[str, Any]:
    """The fields of a result that this run knows by itself: build and command."""
    words = list(sys.argv[1:])
    for of_this_run in ("--keep", "--json", "--save"):
        if of_this_run in words:
            at = words.index(of_this_run)
            del words[at : at + 2]
    program = ".".join(Path(sys.argv[0]).resolve().relative_to(ROOT).with_suffix("").parts)
    program = program.removesuffix(".__main__")
    return {
        "build": _build(),
        "command": shlex.join(["./dev", "run", "python", "-m", program, *words]),
    }


@functools.cache
def _build() -> str | None:
    """Asked once: a table that is kept makes the checkout a changed one for those after it."""
    described = subprocess.run(
        ["git", "-C", ROOT, "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or None


def over(values: Iterable[float]) -> Figure | str:
    """Ratios of runs: geometric mean, smallest and largest. A dash where one is not known: the
    run that got nothing done is none to leave out.
    """
    every = [*values]
    if not every or any(map(math.isnan, every)):
        return "-"
    middle = math.exp(sum(math.log(max(value, 1e-12)) for value in every) / len(every))
    return Figure(round(middle, 4), round(min(every), 4), round(max(every), 4))


def middle(values: Sequence[float]) -> float:
    """The geometric mean; the arithmetic one where a value is 0. NaN where one is not known."""
    if not values or math.isnan(sum(values)):
        return math.nan
    return statistics.geometric_mean(values) if min(values) > 0 else statistics.fmean(values)


def median(values: Sequence[float], unit: str = "") -> Figure:
    """And smallest and largest: of a ratio as they are, with a unit as parts of the median."""
    middle = statistics.median(values)
    part = middle if unit else 1.0
    return (
        Figure(middle, min(values) / part, max(values) / part, unit)
        if part
        else Figure(middle, unit=unit)
    )


def number(value: float, unit: str = "") -> str:
    """Ratios with two digits, all else with three that count; a dash where nothing was seen."""
    if not math.isfinite(value):
        return "-"
    if not unit:
        return f"{value:.2f}" if abs(value) < 99.5 else f"{value:,.0f}"
    if unit == "%":
        return f"{value:.3g}%"
    if value != 0 and abs(value) < 1e-3:
        return f"{value:.2g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def cell(figure: Figure | str) -> str:
    if isinstance(figure, str):
        return figure
    unit = figure.unit if figure.unit in ("", "%") else f" {figure.unit}".replace(" /", "/")
    own = "" if figure.unit == "%" else unit
    if figure.value is None:
        return ", ".join(number(value, figure.unit) for value in figure.each) + own
    text = number(figure.value, figure.unit) + own
    if figure.low is None or figure.high is None or figure.low == figure.high:
        return text
    return f"{text} ({number(figure.low)}-{number(figure.high)})"


def markdown(result: Result, columns: Sequence[str] = ()) -> str:
    """The table, and above it what it is of."""
    shown = list(columns) or result.columns
    if unknown := set(shown) - set(result.columns):
        raise KeyError(f"no column {', '.join(sorted(unknown))}; there are {result.columns}")
    lines = [caption(result), "", f"| | {' | '.join(shown)} |", "|---" * (len(shown) + 1) + "|"]
    for row in result.rows:
        name = row.name if row.n is None or row.n == result.n else f"{row.name} (n = {row.n})"
        cells = [cell(row.figures.get(column, "")) for column in shown]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def caption(result: Result) -> str:
    n = ", ".join(filter(None, [f"n = {result.n}" if result.n else None, result.spread]))
    known = {"kernel": result.kernel, "build": result.build}
    facts = [n, *(f"{key} {value}" for key, value in known.items() if value)]
    told = "; ".join(fact for fact in facts if fact)
    command = f"`{result.command}`" if result.command else ""
    return "\n".join(filter(None, [f"*{result.title}* " + (f"({told})" if told else ""), command]))


def refreshed(page: str, of: Callable[[str], Result] = load) -> str:
    """The page with its marked sections as the files have them."""

    def section(found: re.Match[str]) -> str:
        columns = [column.strip() for column in (found[3] or "").split(",") if column.strip()]
        return f"{found[1]}{markdown(of(found[2]), columns)}\n{found[4]}"

    return MARK.sub(section, page)


def used(pages: Mapping[Path, str]) -> set[str]:
    """Names of the results that pages show."""
    return {found[2] for text in pages.values() for found in MARK.finditer(text)}
