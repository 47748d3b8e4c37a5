"""Pictures of simulations. Needs the extra `plots`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sched_ctl.errors import UserError, adding

try:
    import matplotlib
except ImportError as error:
    hint = f"in a checkout: {adding('plots')}"
    raise UserError("plots need matplotlib, which is not installed", hint) from error

matplotlib.use("Agg")
import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from sched_ctl.sim.sweep import Row

__all__ = ["COLOURS", "figure", "save", "write"]

# Okabe and Ito: told apart by everybody
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
MARKERS = "osD^vPX*"


def figure(
    title: str, x: str, y: str, *, size: tuple[float, float] = (5.6, 3.6), log: bool = False
) -> tuple[Any, Any]:
    """A figure and its axes in the project's look."""
    fig, axes = plt.subplots(figsize=size, layout="constrained")
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if log:
        axes.set_yscale("log")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    axes.set_prop_cycle(color=COLOURS, marker=list(MARKERS))
    return fig, axes


def save(fig: Any, path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fig.savefig(path, dpi=110)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    finally:
        plt.close(fig)
    return path


def write(rows: "Sequence[Row]", folder: Path) -> list[Path]:
    """The distribution of response times, and, with several loads, curves over the load."""
    files = [_distribution(rows, folder / "response-time.png")]
    loads = sorted({row.load for row in rows})
    if len(loads) > 1:
        for name, title, scale in (
            ("response_s", "Mean response time, ms", 1e3),
            ("slowdown", "Mean slowdown", 1.0),
            ("slowdown_max", "Maximum slowdown", 1.0),
            ("memory_tuples", "Mean number of tuples in queues", 1.0),
        ):
            fig, axes = figure(f"{title} over load", "load", title, log=True)
            for policy in dict.fromkeys(row.policy for row in rows):
                of = [row for row in rows if row.policy == policy]
                means = np.array([row.figures[name] for row in of]) * scale
                half = np.nan_to_num(means[:, 1])
                axes.errorbar([row.load for row in of], means[:, 0], half, label=policy, capsize=2)
            axes.legend(frameon=False)
            files.append(save(fig, folder / f"{name.removesuffix('_s').replace('_', '-')}.png"))
    return files


def _distribution(rows: "Sequence[Row]", path: Path) -> Path:
    """Share of tuples that took longer, on log axes: the tail is where policies differ."""
    load = max(row.load for row in rows)
    fig, axes = figure(
        f"Response times at load {load:g}", "response time, ms", "share of tuples slower", log=True
    )
    axes.set_xscale("log")
    for row in (row for row in rows if row.load == load):
        counts = np.sum([result.responses for result in row.results], axis=0)
        used = np.flatnonzero(counts)
        if not len(used):
            continue
        octave, part = np.divmod(np.arange(len(counts)), 64)
        upper = 2.0 ** (octave - 34.0) * (1 + (part + 1) / 64) * 1e3
        slower = 1 - np.cumsum(counts) / counts.sum()
        shown = slice(used[0], used[-1])
        axes.plot(upper[shown], slower[shown], label=row.policy, marker="")
    axes.legend(frameon=False)
    return save(fig, path)
