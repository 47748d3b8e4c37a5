"""Pictures of what the demo measured, as PNG files. Needs the extra `plots`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt  # after the choice of the back end
import numpy as np
import seaborn as sns  # type: ignore[import-untyped]

from sched_ctl.demo.results import Phase
from sched_ctl.model.graph import Array
from sched_ctl.show import number

__all__ = ["latencies", "queues"]

SAMPLES = 20_000  # drawn for a distribution: enough for the 99.9th percentile
COLOURS = ("#8a8a8a", "#1f77b4")  # the OS grey, the policy blue


def _schedulers(phases: Sequence[Phase]) -> list[str]:
    return list(dict.fromkeys(phase.scheduler for phase in phases))


def _values(phases: Sequence[Phase], scheduler: str, what: str) -> Array:
    """About SAMPLES values with the distribution of all phases of a scheduler."""
    edges: list[float] = []
    counts: list[int] = []
    for phase in phases:
        if phase.scheduler == scheduler:
            for low, count in getattr(phase.results.total, what).histogram:
                edges.append(low)
                counts.append(count)
    if not counts:
        return np.empty(0)
    order = np.argsort(edges)
    cumulated = np.cumsum(np.array(counts, dtype=float)[order])
    # Evenly spaced quantiles: what plotting all of them would show, without all of them.
    at = (np.arange(min(SAMPLES, int(cumulated[-1]))) + 0.5) / min(SAMPLES, cumulated[-1])
    rows = np.searchsorted(cumulated, at * cumulated[-1])
    return np.asarray(np.array(edges)[order][rows], dtype=np.float64)


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def latencies(path: Path, phases: Sequence[Phase], title: str) -> Path:
    """Latency and slowdown as letter-value plots (Hofmann et al. 2017), the mean as a line."""
    with sns.axes_style("whitegrid"):
        figure, axes = plt.subplots(1, 2, figsize=(9, 4.8), layout="constrained")
    names = _schedulers(phases)
    palette = dict(zip(names, COLOURS, strict=False))
    for axis, (what, scale, label) in zip(
        axes,
        (("latency_s", 1e3, "end-to-end latency (ms)"), ("slowdown", 1.0, "slowdown")),
        strict=True,
    ):
        values = {name: _values(phases, name, what) * scale for name in names}
        x = np.concatenate([np.full(len(v), name) for name, v in values.items()])
        y = np.concatenate(list(values.values()))
        sns.boxenplot(
            x=x[y > 0],
            y=y[y > 0],
            hue=x[y > 0],
            order=names,
            palette=palette,
            k_depth="tukey",
            width=0.6,
            flier_kws={"s": 4, "alpha": 0.4},
            log_scale=True,
            legend=False,
            ax=axis,
        )
        for place, name in enumerate(names):
            mean = float(
                np.mean(
                    [
                        getattr(p.results.total, what).mean * scale
                        for p in phases
                        if p.scheduler == name
                    ]
                )
            )
            axis.hlines(mean, place - 0.38, place + 0.38, color="#d62728", lw=1.6, zorder=5)
            axis.annotate(
                f"mean {number(mean)}",
                (place + 0.39, mean),
                xytext=(2, 4),
                textcoords="offset points",
                ha="right",
                fontsize=9,
                color="#d62728",
                bbox={"boxstyle": "round,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.75},
                zorder=6,
            )
        axis.set_ylabel(label)
        axis.set_xlabel("")
        axis.yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda v, _: f"{v:g}"))
    figure.suptitle(f"{title}: all tuples", fontsize=12)
    return _save(figure, path)


def queues(path: Path, phases: Sequence[Phase], title: str) -> Path:
    """Tuples waiting in all queues over time: a thin line a phase, a thick one their mean."""
    with sns.axes_style("whitegrid"):
        figure, axis = plt.subplots(figsize=(9, 4.2), layout="constrained")
    end_s = max((phase.times_s[-1] for phase in phases if phase.times_s), default=1.0)
    grid = np.arange(0.0, end_s, 0.1)
    for name, colour in zip(_schedulers(phases), COLOURS, strict=False):
        mine = [p for p in phases if p.scheduler == name and len(p.times_s) > 1]
        for phase in mine:
            axis.plot(phase.times_s, phase.queued, color=colour, lw=0.7, alpha=0.45)
        if mine:
            # When an engine has ended, its queues are empty.
            mean = np.mean([np.interp(grid, p.times_s, p.queued, right=0.0) for p in mine], axis=0)
            axis.plot(grid, mean, color=colour, lw=2.4, label=f"{name} (mean of {len(mine)})")
    axis.set_xlim(0, end_s)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("time (s)")
    axis.set_ylabel("tuples waiting in all queues")
    axis.set_title(title, fontsize=12)
    if axis.get_legend_handles_labels()[1]:
        axis.legend(frameon=True)
    return _save(figure, path)
