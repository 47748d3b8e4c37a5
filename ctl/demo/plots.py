"""A picture of what the demo measured, as a PNG file. Needs the extra `plots`."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt  # after the choice of the back end
import seaborn as sns
from matplotlib.lines import Line2D

from sched_ctl.show import number

__all__ = ["latencies"]

COLOURS = ("#8a8a8a", "#1f77b4")  # the OS grey, the policy blue


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def latencies(path: Path, queries: Sequence[Mapping[str, Any]], policy: str, title: str) -> Path:
    """Of each query a bar from p50 to p99 under the OS, and one under the policy, in ms."""
    with sns.axes_style("whitegrid", {"axes.grid.axis": "x"}):
        figure, axis = plt.subplots(figsize=(8, 1.2 + 0.75 * len(queries)), layout="constrained")
    for row, query in enumerate(queries):
        for who, colour, shift in (("os", COLOURS[0], -0.17), ("policy", COLOURS[1], 0.17)):
            half, tail = (query[at][who] for at in ("p50_ms", "p99_ms"))
            if not 0 < half <= tail < math.inf:
                continue
            axis.hlines(row + shift, half, tail, color=colour, lw=7, alpha=0.35)
            axis.plot(half, row + shift, "o", color=colour, ms=9)
            axis.annotate(
                f"{number(half)} ... {number(tail)} ms",
                (tail, row + shift),
                xytext=(7, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
                color=colour,
            )
    axis.set_xscale("log")
    axis.margins(x=0.1, y=0.12)
    axis.set_xlim(right=axis.get_xlim()[1] * 4)  # for the words behind the longest bar
    axis.set_yticks(range(len(queries)), [query["query"] for query in queries])
    axis.invert_yaxis()
    axis.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda v, _: f"{v:g}"))
    axis.set_xlabel("how long tuples take (ms): the dot is half of them, the bar's end 99 of 100")
    axis.legend(
        handles=[
            Line2D([], [], marker="o", lw=7, alpha=0.8, color=colour, label=name)
            for colour, name in zip(COLOURS, ("the OS", policy), strict=True)
        ],
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=2,
        frameon=False,
    )
    axis.set_title(title, fontsize=11, loc="right")
    return _save(figure, path)
