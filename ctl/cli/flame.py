"""A flame graph of stacks, as one SVG file that any browser opens: point at a part for its name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from zlib import crc32

__all__ = ["svg"]

WIDTH, HEIGHT, LETTER = 1200, 17, 7  # pixels: of all, of one row, of a letter
LEAST = 0.3  # pixels; what is narrower is not drawn


@dataclass(slots=True)
class _Part:
    """A function below those that called it. value: of all stacks that go through it."""

    value: int = 0
    parts: "dict[str, _Part]" = field(default_factory=dict)


def svg(stacks: Mapping[tuple[str, ...], int], title: str, unit: str) -> str:
    """stacks: outermost first -> how much, in `unit`."""
    top = _Part()
    for frames, value in stacks.items():
        at = top
        at.value += value
        for frame in frames:
            at = at.parts.setdefault(frame, _Part())
            at.value += value
    drawn: list[str] = []
    depth = _draw(top, title, 0.0, WIDTH, 0, top.value or 1, unit, drawn)
    height = (depth + 1) * HEIGHT + 4
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="monospace" font-size="11">\n' + "\n".join(drawn) + "\n</svg>\n"
    )


def _draw(
    part: _Part, name: str, x: float, width: float, row: int, total: int, unit: str, out: list[str]
) -> int:
    """Draws it and what it called below it; returns the deepest row."""
    told = f"{name}: {part.value} {unit}, {part.value / total:.1%}"
    letters = int(width / LETTER)
    text = name if len(name) <= letters else name[: letters - 1] + "…" if letters > 3 else ""
    hue = crc32(name.encode()) % 40 + 15
    out.append(
        f'<g><title>{escape(told)}</title><rect x="{x:.1f}" y="{row * HEIGHT}" width="{width:.1f}" '
        f'height="{HEIGHT - 1}" rx="2" fill="hsl({hue} 80% 70%)"/>'
        f'<text x="{x + 3:.1f}" y="{row * HEIGHT + 12}">{escape(text)}</text></g>'
    )
    deepest = row
    for inner, below in sorted(part.parts.items()):
        its = width * below.value / (part.value or 1)
        if its >= LEAST:
            deepest = max(deepest, _draw(below, inner, x, its, row + 1, total, unit, out))
            x += its
    return deepest
