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
    "inside",
    "is_narrow",
    "latency",
    "lines",
    "milliseconds",
    "number",
    "percent",
    "short",
    "table",
    "table_lines",
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

    A column whose name begins with ">" is aligned to the right, and never broken; another one only
    between words. On a terminal columns in which nobody has anything are left out.
    """
    console = _console()
    for part in _parts(console, columns, rows, title):
        _print(console, part)


def table_lines(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> int:
    """How many lines `table` makes of it."""
    console = _console()
    parts = _parts(console, columns, rows, "")
    return sum(len(console.render_lines(part, pad=False)) for part in parts)


def _parts(
    console: Any, columns: Sequence[str], rows: Iterable[Sequence[object]], title: str
) -> list[Any]:
    from rich import box
    from rich.table import Table

    cells = [[_cell(value) for value in row] for row in rows]
    if console.width < UNLIMITED and cells:
        told = [at for at in range(len(columns)) if any(row[at].plain for row in cells)]
        columns = [columns[at] for at in told]
        cells = [[row[at] for at in told] for row in cells]
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
    for row in cells:
        shown.add_row(*row)
    if _fit(console, shown, columns, cells):
        return [shown]
    names = [column.strip("> ").replace("\n", " ") for column in columns]
    records = [part for row in cells for part in _record(names, row)]
    return [_plain(title), *records] if title else records


def _fit(console: Any, shown: Any, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> bool:
    """Give each column its longest word, and of what is left its part. Returns whether that fits.

    (Rich itself makes the widest column narrower first, and breaks words.)
    """
    from rich.cells import cell_len
    from rich.measure import Measurement

    whole = Measurement.get(console, console.options.update(width=UNLIMITED), shown).maximum
    if whole <= console.width:
        return True
    least, wished = [], []
    for at, name in enumerate(names):
        heads = name.lstrip(">").split("\n")
        texts = [*heads, *(row[at].plain for row in rows)]
        words = texts if name.startswith(">") else [word for text in texts for word in text.split()]
        least.append(max(map(cell_len, words), default=0))
        wished.append(max(map(cell_len, texts)) - least[-1])
    left = console.width - (whole - sum(wished))
    if left < 0:
        return False
    for column, needs, more in zip(shown.columns, least, wished, strict=True):
        column.width = needs + left * more // sum(wished)
    return True


def _record(names: Sequence[str], row: Sequence[Any]) -> tuple[Any, Any]:
    """One row: its first cell that has a name, and lines "name  value" to stand below."""
    from rich.table import Table

    lead = next(i for i, name in enumerate(names) if name)
    shown = Table.grid(padding=(0, 2, 0, 0))
    title = row[lead].copy()
    title.stylize("bold")
    for cell in reversed(row[:lead]):
        title = cell + " " + title
    shown.add_column(no_wrap=True)
    shown.add_column(overflow="fold")
    for name, cell in zip(names[lead + 1 :], row[lead + 1 :], strict=True):
        if cell.plain:
            shown.add_row(f"  {name}", cell)
    return title, shown


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


def inside(label: str, query: str | None) -> str:
    """An operator's name, without that of the query that the reader looks at."""
    return label.removeprefix(f"{query}/")


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


def milliseconds(time_s: float) -> str:
    """Short, without the unit. A mean of 0 is of samples in which nothing waited."""
    return number(time_s * 1e3) if time_s else "~0"


def latency(seconds: float | None) -> str:
    """Short: "12.3 ms", "1.5 s"; - for unknown."""
    if seconds is None:
        return "-"
    whole = abs(seconds) >= 1.0
    return f"{number(seconds)} s" if whole else f"{number(seconds * 1e3)} ms"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


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
