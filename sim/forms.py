"""Urgency forms as the simulator's kernel takes them: in groups that keep their order."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sched_ctl.model.clusters import logarithmic_clusters
from sched_ctl.model.graph import Array
from sched_ctl.model.policy import UrgencyForm
from sched_ctl.model.unknown import known_form

__all__ = ["Groups", "aging", "by_turns", "clustered", "grouped"]

Whole = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Groups:
    """fixed, per_tuple, group_of: by operator. per_second, rank, turns: by group.

    Ranks ascend from 0, the most urgent.
    """

    fixed: Array
    per_tuple: Array
    group_of: Whole
    per_second: Array
    rank: Whole
    turns: Whole


def grouped(form: UrgencyForm) -> Groups:
    """Operators of equal rank and per_second keep their order while time passes: one group.

    Without any per_second or per_tuple the order is total: one group of all ranks.
    """
    form = known_form(form)
    rank, fixed, per_second, per_tuple = form.rank, form.static, form.per_second, form.per_tuple
    n = len(form)
    if not per_second.any() and not per_tuple.any():
        place, _ = _distinct(rank, fixed)
        one = np.zeros(1, dtype=np.int64)
        none = np.zeros(n, dtype=np.int64)
        return Groups(place.astype(np.float64), np.zeros(n), none, np.zeros(1), one, one + 1)
    # Larger ranks first. Of those with equal urgency, as at age 0, the kernel takes the first: the
    # one that becomes more urgent sooner.
    group_of, first = _distinct(-rank, -per_second)
    _, order = np.unique(-rank[first], return_inverse=True)
    return Groups(
        fixed,
        per_tuple,
        group_of,
        per_second[first],
        order.reshape(-1).astype(np.int64),
        np.ones(len(first), dtype=np.int64),
    )


def _distinct(major: Array, minor: Array) -> tuple[Whole, Whole]:
    """(n,) place of each pair among the distinct ones in ascending order, and a row of each."""
    order = np.lexsort((minor, major))
    new = (np.diff(major[order]) != 0) | (np.diff(minor[order]) != 0)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.concatenate([[0], np.cumsum(new)])[: len(order)]
    return place, order[np.concatenate([[True], new])[: len(order)]].astype(np.int64)


def by_turns(form: UrgencyForm, member: Whole, shares: Array) -> Groups:
    """Round robin over groups (`member`: by operator), inside by the static part.

    A turn is one tuple for the smallest share, and as many more as a share is larger.
    """
    inside = grouped(replace(form, per_second=np.zeros(len(form)), per_tuple=np.zeros(len(form))))
    n = len(shares)
    turns = np.maximum(1, np.rint(shares / shares.min())).astype(np.int64)
    zeros = np.zeros(n)
    return Groups(inside.fixed, inside.per_tuple, member, zeros, np.zeros(n, dtype=np.int64), turns)


def aging(form: UrgencyForm, gap_s: float) -> UrgencyForm:
    """A form without any part that grows, as the scx backend hands it on: older work goes first
    where it is older by gap_s for each place between (`hints` of backends/scx)."""
    form = known_form(form)
    if form.per_second.any() or form.per_tuple.any():
        return form
    place, _ = _distinct(form.rank, form.static)
    zeros = np.zeros(len(form))
    return replace(
        form, rank=zeros, static=place.astype(np.float64) * gap_s, per_second=zeros + 1.0
    )


def clustered(form: UrgencyForm, clusters: int, uniform: bool = False) -> UrgencyForm:
    """The form with `per_second` (of each rank) quantised to so many clusters (AQSIOS, 6.2.1).

    Logarithmic: cluster i covers [eps^i, eps^(i+1)) and has the pseudo-priority eps^i; uniform:
    parts of equal width, with the lower end as pseudo-priority (of the first, which may begin at
    0, its smallest member). Operators whose per_second is 0 stay as they are.
    """
    form = known_form(form)
    slope = form.per_second.copy()
    for rank in np.unique(form.rank):
        rows = np.flatnonzero((form.rank == rank) & (slope > 0))
        if not len(rows):
            continue
        low, high = slope[rows].min(), slope[rows].max()
        if low == high:
            continue
        if uniform:
            width = (high - low) / clusters
            index = np.minimum(np.floor((slope[rows] - low) / width), clusters - 1)
            slope[rows] = low + index * width
        else:
            index, edges = logarithmic_clusters(slope[rows], clusters)
            slope[rows] = edges[index]
    return replace(form, per_second=slope)
