"""Tables and JSON on standard output."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["emit_json", "number", "table", "text"]


def emit_json(thing: object) -> None:
    import msgspec

    encoded = msgspec.json.format(msgspec.json.encode(thing), indent=2)
    sys.stdout.write(encoded.decode() + "\n")
    sys.stdout.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """A table as wide as it needs to be for a pipe, as wide as the terminal for a person.

    A column whose name begins with ">" is aligned to the right.
    """
    from rich import box
    from rich.table import Table

    shown = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for column in columns:
        right = column.startswith(">")
        shown.add_column(
            column.lstrip(">"), justify="right" if right else "left", overflow="fold", no_wrap=right
        )
    for row in rows:
        shown.add_row(*(_cell(value) for value in row))
    _console().print(shown)


def text(line: str = "") -> None:
    _console().print(_plain(line))


def number(value: float | None, digits: int = 3) -> str:
    """Short, for people: 12.3k rather than 12345.678; - for unknown."""
    if value is None:
        return "-"
    size = abs(value)
    if size >= 1e4:
        for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if size >= limit:
                return f"{value / limit:.{digits}g}{letter}"
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

    return Text(
        "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in line)
    )


def _console() -> Any:
    from rich.console import Console

    # Into a pipe nothing is cut or wrapped.
    return Console(soft_wrap=False, width=None if sys.stdout.isatty() else 200, highlight=False)
