"""Tables and JSON on standard output."""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from sched_ctl.errors import printable

__all__ = [
    "ENTRY",
    "copied",
    "duration",
    "emit_json",
    "ends",
    "entry",
    "height",
    "is_narrow",
    "lines",
    "number",
    "short",
    "table",
    "text",
    "width",
]

UNLIMITED = 100_000  # columns
ENTRY = 24  # columns of the name in `entry`


def emit_json(thing: object) -> None:
    import msgspec

    encoded = msgspec.json.format(msgspec.json.encode(thing), indent=2)
    sys.stdout.write(encoded.decode() + "\n")
    sys.stdout.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """A table. Where the terminal is too narrow for it, each row becomes a list of its cells.

    A column whose name begins with ">" is aligned to the right.
    """
    from rich import box
    from rich.measure import Measurement
    from rich.table import Table

    shown = Table(
        box=box.SIMPLE_HEAD,
        title=title or None,
        title_justify="left",
        pad_edge=False,
        collapse_padding=True,
    )
    for column in columns:
        right = column.startswith(">")
        shown.add_column(
            column.lstrip(">"), justify="right" if right else "left", overflow="fold", no_wrap=right
        )
    cells = [[_cell(value) for value in row] for row in rows]
    for row in cells:
        shown.add_row(*row)
    console = _console()
    needed = Measurement.get(console, console.options.update(width=UNLIMITED), shown).minimum
    if needed <= console.width:
        _print(console, shown)
        return
    if title:
        text(title)
    for row in cells:
        _print(console, _record([column.strip("> ") for column in columns], row))


def _record(names: Sequence[str], row: Sequence[Any]) -> Any:
    """One row as lines "name  value" below its first cell that has a name."""
    from rich.table import Table

    lead = next(i for i, name in enumerate(names) if name)
    shown = Table.grid(padding=(0, 2, 0, 0))
    shown.title, shown.title_justify, shown.title_style = row[lead].copy(), "left", "bold"
    for cell in reversed(row[:lead]):
        shown.title = cell + " " + shown.title
    shown.add_column(no_wrap=True)
    shown.add_column(overflow="fold")
    for name, cell in zip(names[lead + 1 :], row[lead + 1 :], strict=True):
        if cell.plain:
            shown.add_row(f"  {name}", cell)
    return shown


def text(line: str = "") -> None:
    _print(_console(), _plain(line))


def entry(name: str, *lines: str) -> None:
    """A name, and beside it lines of words; each is broken between words where it is too long."""
    from textwrap import wrap

    room = max(20, _console().width - ENTRY)
    broken = [part for line in lines if line for part in wrap(printable(line), room)]
    for row, part in enumerate(broken or [""]):
        copied(f"{printable(name) if row == 0 else '':{ENTRY}}{part}".rstrip())


def copied(line: str) -> None:
    """A line that somebody will copy: not broken at the terminal's width."""
    sys.stdout.write(printable(line) + "\n")
    sys.stdout.flush()


def is_narrow() -> bool:
    """Whether lines have an end: not in a pipe, where a row is a line."""
    return bool(_console().width < UNLIMITED)


def width() -> int:
    return int(_console().width)


def height() -> int:
    """Lines of the terminal; 24 where there is none."""
    return int(_console().height) if sys.stdout.isatty() else 24


def lines(line: str) -> int:
    """How many lines `text` makes of it."""
    return len(_console().render_lines(_plain(line), pad=False))


def short(text: str, most: int) -> str:
    """The text, or its two ends where it is too long for a narrow screen."""
    return ends(text, most) if is_narrow() else text


def ends(text: str, most: int) -> str:
    """The text, or its two ends where it has more characters than that."""
    if len(text) <= most:
        return text
    head = (most - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def duration(seconds: float) -> str:
    """For people: "12 s", "5 min", "3.2 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def number(value: float | None, digits: int = 3) -> str:
    """Short, for people: 12.3k rather than 12345.678; - for unknown."""
    if value is None:
        return "-"
    rounded = float(f"{value:.{digits}g}")  # first, or 999.9 would become 1e+03
    size = abs(rounded)
    if size >= 1e4:
        for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if size >= limit:
                return f"{rounded / limit:.{digits}g}{letter}"
    return f"{value:.{digits}g}" if size < 1000 else f"{value:.0f}"


def _cell(value: object) -> Any:
    from rich.text import Text

    if value is True:
        return Text("yes", style="green")
    if value is False:
        return Text("no", style="red")
    return _plain("-" if value is None else str(value))


def _plain(line: str) -> Any:
    """Names come from engines: no markup, no control characters."""
    from rich.text import Text

    return Text(printable(line))


def _console() -> Any:
    from rich.console import Console

    # Into a pipe a row is a line, for grep and the like, unless COLUMNS asks for another width.
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=UNLIMITED if piped else None, highlight=False)


def _print(console: Any, thing: Any) -> None:
    """Print without the blanks that fill up each line."""
    with console.capture() as capture:
        console.print(thing)
    for line in capture.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")
    sys.stdout.flush()
