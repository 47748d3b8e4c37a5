"""Writes what pages show of the results: tables in marked sections, and the drawing of README.

./dev figures
"""

from html import escape

from bench import results
from bench.results import Figure, Result

__all__ = ["DRAWING", "DRAWN", "drawing", "main"]

DRAWN = "flink-light-6.18"
DRAWING = results.ROOT / "docs" / "light-behind-heavy.svg"
WIDTH, BAR, GAP, LEFT, ROOM = 760, 18, 16, 84, 560  # pixels; ROOM: of the longest bar
GREY, BLUE, INK = "#9aa0a6", "#1a73e8", "#202124"


def drawing(result: Result) -> str:
    """Latencies of the light query without and with us, and what becomes of the heavy one."""
    rows = {row.name: row.figures for row in result.rows}
    names = {"median": "median", "mean": "light query, mean", "p95": "p95", "p99": "p99"}
    bars = []
    for label, name in names.items():
        own_ms = _value(rows[name]["EEVDF"])
        bars.append((label, own_ms, own_ms * _value(rows[name]["balanced"])))
    scale = ROOM / max(own for _, own, _ in bars)
    top = 66
    parts = [
        _text(LEFT - 68, 26, "Latency of a light query behind a heavy one", 17, bold=True),
        _text(LEFT - 68, 46, "Flink, one CPU, in ms: grey without sched-ctl, blue with it", 13),
    ]
    for label, without, ours in bars:
        parts.append(_text(LEFT - 68, top + BAR + 5, label, 14))
        for ms, colour, y in ((without, GREY, top), (ours, BLUE, top + BAR)):
            length = ms * scale
            size = f'width="{length:.1f}" height="{BAR - 2}"'
            parts.append(f'<rect x="{LEFT}" y="{y}" {size} fill="{colour}"/>')
            parts.append(_text(LEFT + length + 6, y + BAR - 5, f"{ms:.2g}", 12))
        top += 2 * BAR + GAP
    gain = _value(rows["heavy query, throughput"]["balanced"])
    told = f"The heavy query meanwhile: {gain:.2f} of the throughput that it had."
    parts.append(_text(LEFT - 68, top + 12, told, 13))
    height = top + 28
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" font-family="sans-serif" fill="{INK}">',
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _value(figure: Figure | str) -> float:
    assert isinstance(figure, Figure) and figure.value is not None
    return figure.value


def _text(x: float, y: float, text: str, size: int, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y}" font-size="{size}"{weight}>{escape(text)}</text>'


def main() -> None:
    for page in results.PAGES:
        text = page.read_text()
        new = results.refreshed(text)
        if new != text:
            page.write_text(new)
            print(page.relative_to(results.ROOT))
    DRAWING.write_text(drawing(results.load(DRAWN)))


if __name__ == "__main__":
    main()
