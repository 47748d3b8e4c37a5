"""Drawings of the report, as SVG inside HTML, without any library: they take the colours of the
page, light or dark, and shrink to a phone."""

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

__all__ = [
    *(
        "Linked",
        "bars",
        "clock",
        "figure",
        "forest",
        "heat",
        "letter_values",
        "lines",
        "link",
        "place",
    ),
    "table",
]

WIDTH = 400
LEAST_SHARE = 0.005
Point = tuple[float, float]


def figure(title: str, svg: str, note: str = "") -> str:
    said = f"<p>{escape(note)}</p>" if note else ""
    return f"<figure><figcaption>{escape(title)}</figcaption>{svg}{said}</figure>"


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """In a box that scrolls by itself; a column whose name begins with > is aligned right.

    A cell of `Linked` is HTML already.
    """

    def told(cell: object) -> str:
        return str(cell) if isinstance(cell, Linked) else escape(str(cell))

    head = "".join(
        f"<th{' class=r' if name.startswith('>') else ''}>{escape(name.lstrip('>'))}</th>"
        for name in columns
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{' class=r' if name.startswith('>') else ''}>{told(cell)}</td>"
            for name, cell in zip(columns, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f"<div class=t><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


class Linked(str):
    """HTML of ours, not to be escaped."""

    __slots__ = ()


def link(node: str) -> Linked:
    """To what the page tells of a node (`place`)."""
    return Linked(f'<a href="#{place(node)}">{escape(node)}</a>')


def place(node: str) -> str:
    return "node-" + re.sub(r"[^\w.-]", "_", node)


def clock(t_ms: float) -> str:
    """As people say it: 21 Nov 03:00 (UTC)."""
    at = datetime.fromtimestamp(t_ms / 1e3, UTC)
    return f"{at.day} {at:%b %H:%M}"


def _svg(height: float, inside: str, words: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(words)}">'
        f"{inside}</svg>"
    )


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _short(name: str, length: int) -> str:
    """Names of hosts differ in their first letters."""
    return name if len(name) <= length else f"{name[: length - 1]}…"


def bars(rows: Sequence[tuple[str, float, str]], words: str) -> str:
    """A line for each of (name, length, what stands behind it)."""
    most = max((value for _, value, _ in rows), default=0.0) or 1.0
    inside = ""
    for place, (name, value, behind) in enumerate(rows):
        y = 18 * place
        inside += _text(128, y + 12, _short(name, 18), "end")
        inside += (
            f'<rect class="a" x="134" y="{y + 2}" width="{170 * value / most:.1f}" height="13"/>'
        )
        inside += _text(138 + 170 * value / most, y + 12, behind)
    return _svg(18 * len(rows) + 2, inside, words)


def lines(
    series: Sequence[tuple[str, Sequence[Point]]],
    unit: str,
    words: str,
    marks: Sequence[tuple[float, str]] = (),
) -> str:
    """Points over time (Unix s), at most eight series; the y axis begins at 0.

    marks: times that a line stands at, with what was then, for who points at it.
    """
    points = [point for _, found in series for point in found]
    most = max((y for _, y in points), default=0.0) or 1.0
    begin = min((x for x, _ in points), default=0.0)
    span = (max((x for x, _ in points), default=0.0) - begin) or 1.0

    def at(x: float) -> float:
        return 36 + 358 * (x - begin) / span

    inside = '<path class="x" d="M36 8V150H394"/>'
    inside += _text(33, 14, f"{most:.3g}", "end") + _text(33, 150, "0", "end") + _text(40, 14, unit)
    for place, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        inside += _text(36 + 358 * place, 164, clock((begin + place * span) * 1e3), anchor)
    for when, what in marks:
        if begin < when < begin + span:
            inside += (
                f'<path class="c" d="M{at(when):.1f} 8V150"><title>{escape(what)}</title></path>'
            )
    for number, (name, found) in enumerate(series[:8]):
        path = "L".join(f"{at(x):.1f} {150 - 138 * y / most:.1f}" for x, y in found)
        inside += f'<path class="l s{number}" d="M{path}"/>' if found else ""
        key = _text(40 + 120 * (number % 3), 180 + 14 * (number // 3), _short(name, 17))
        inside += f'<g class="s{number} k">{key}</g>'
    return _svg(186 + 14 * ((max(0, len(series) - 1)) // 3), inside, words)


def heat(
    rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float]], words: str
) -> str:
    """Cells from 0 (empty) to 1 (full), which say their names when pointed at; NaN has none.

    Rows without any are left out.
    """
    full = [any(v > LEAST_SHARE for v in line) for line in values]
    rows = [row for row, kept in zip(rows, full, strict=True) if kept]
    values = [line for line, kept in zip(values, full, strict=True) if kept]
    width, height = 300 / max(1, len(columns)), 13.0
    inside = "".join(
        _text(92, height * r + 10, _short(name, 13), "end") for r, name in enumerate(rows)
    )
    for r, line in enumerate(values):
        for c, value in enumerate(line):
            if not math.isnan(value) and value > LEAST_SHARE:
                inside += (
                    f'<rect class="a" x="{96 + c * width:.1f}" y="{r * height:.0f}" '
                    f'width="{width:.1f}" height="{height:.0f}" opacity="{min(1, value):.2f}">'
                    f"<title>{escape(rows[r])}, {escape(columns[c])}: {value:.2f}</title></rect>"
                )
    inside += f'<rect class="b" x="96" y="0" width="300" height="{height * len(rows):.0f}"/>'
    ends = f"{columns[0][-20:]} ... {columns[-1][-20:]}" if columns else ""
    inside += _text(96, height * len(rows) + 13, ends)
    return _svg(height * len(rows) + 18, inside, words)


def letter_values(rows: Sequence[tuple[str, Sequence[float]]], unit: str, words: str) -> str:
    """Hofmann, Wickham, Kafadar 2017: boxes of the quantiles 1/4, 1/8, ... each way.

    rows: name, and an odd number of quantiles from the lowest to the highest, the median in the
    middle. The axis is logarithmic.
    """
    known = [v for _, found in rows for v in found if v > 0]
    low, high = (min(known), max(known)) if known else (1.0, 10.0)
    span = math.log(high / low) or 1.0

    def x(value: float) -> float:
        return 110 + 280 * math.log(max(value, low) / low) / span

    inside = ""
    for place, (name, found) in enumerate(rows):
        y, half = 30 * place + 16, len(found) // 2
        inside += _text(104, y + 4, _short(name, 15), "end")
        for depth in range(half):
            a, b = found[depth], found[-1 - depth]
            tall = 24 * (depth + 1) / half
            inside += (
                f'<rect class="a" opacity=".35" x="{x(a):.1f}" y="{y - tall / 2:.1f}" '
                f'width="{max(0.5, x(b) - x(a)):.1f}" height="{tall:.1f}"/>'
            )
        m = x(found[half])
        inside += f'<path class="m" d="M{m:.1f} {y - 13}V{y + 13}"/>'
        inside += f'<g class="h">{_text(m + 3, y + 4, f"{found[half]:.3g}")}</g>'
    bottom = 30 * len(rows) + 16
    inside += _text(110, bottom, f"{low:.3g}") + _text(390, bottom, f"{high:.3g} {unit}", "end")
    return _svg(bottom + 6, inside, words)


def forest(rows: Sequence[tuple[str, float, float, float]], words: str) -> str:
    """(name, ratio, low, high) on a logarithmic axis around 1; NaN ends: only a point."""
    ends = [abs(math.log(v)) for _, *values in rows for v in values if v > 0 and math.isfinite(v)]
    reach = max([*ends, math.log(1.2)])

    def x(value: float) -> float:
        return 275 + 115 * math.log(value) / reach

    inside = f'<path class="x" d="M275 0V{20 * len(rows) + 4}"/>'
    for place, (name, value, low, high) in enumerate(rows):
        y = 20 * place + 12
        inside += _text(0, y + 4, _short(name, 24))
        if not math.isnan(low):
            inside += f'<path class="m" d="M{x(low):.1f} {y}H{x(high):.1f}"/>'
        inside += f'<circle class="a" cx="{x(value):.1f}" cy="{y}" r="4"/>'
    bottom = 20 * len(rows) + 16
    inside += _text(275, bottom, "1", "middle")
    inside += _text(160, bottom, f"{math.exp(-reach):.2g}") + _text(
        396, bottom, f"{math.exp(reach):.2g}", "end"
    )
    return _svg(bottom + 6, inside, words)
