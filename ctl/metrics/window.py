"""What happened at an engine between two of its snapshots.

Input from engines is hostile: whatever is not finite, or negative, counts as unknown (NaN).
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sched_ctl.metrics.levels import to_logical, to_physical
from sched_ctl.model.graph import Array, Graph, Index
from sched_ctl.model.policy import Level
from sched_ctl.model.topology import LogicalOperator, PhysicalOperator, Snapshot

__all__ = ["LARGEST", "REPORTS", "SAMPLES", "Window", "clean", "divide"]

REPORTS = 10  # that a sample is the mean of, for who holds a decision until the next one

SAMPLES = frozenset({"queue_size", "queue_size_estimate", "head_age", "head_age_estimate"})
LARGEST = 2.0**63  # no count, time or size is more; sums and products of such are finite
LARGEST_BITS = np.float64(LARGEST).view(np.uint64)


def clean(column: npt.ArrayLike) -> Array:
    """As float, with NaN for whatever cannot be a count, a time or a size."""
    values = np.asarray(column, dtype=np.float64)
    # The bits of floats are in the order of the floats, from 0 on; those of all below 0, of
    # infinity and of NaN lie above. So one look is enough where all is well.
    if values.size == 0 or np.maximum.reduce(values.view(np.uint64), axis=None) <= LARGEST_BITS:
        return values
    return np.where((values >= 0) & (values <= LARGEST), values, np.nan)


def divide(above: Array, below: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.where(below > 0, above / below, np.nan)


@dataclass(frozen=True, eq=False)
class Window:
    """Two snapshots of one engine; rates and costs are counter differences between them.

    then: an older snapshot with the same topology, a few seconds back; anything else (None,
    another topology, a clock that did not move) leaves the totals since start only.
    recent: a later one than `then`, for rates of what `then` does not know: operators that are new,
    or a counter that was not read yet.
    level: whether the columns are over the physical or over the logical operators. What the
    engine reports at the other level is converted, see `sched_ctl.metrics.levels`.
    averages: columns of metrics that need not be worked out again, see `metrics.averages`.
    lately: the last few snapshots of `now`'s topology, `now` among them, over which `SAMPLES` are
    averaged; they need no other columns than these and tuple counts. Empty: a sample is what it is
    now. A value that is held for a second, and was read in a moment, makes the queue that it
    favoured the shortest of all by the next one: so the operators would take turns.
    lengths: (n,) seconds of each operator's own window, where several windows stand side by side.
    """

    now: Snapshot
    then: Snapshot | None = None
    level: Level = Level.PHYSICAL
    recent: Snapshot | None = None
    averages: dict[str, Array] = field(default_factory=dict)
    lately: tuple[Snapshot, ...] = ()
    lengths: Array | None = None

    @property
    def operators(self) -> tuple[PhysicalOperator, ...] | tuple[LogicalOperator, ...]:
        topology = self.now.topology
        return topology.operators if self.level is Level.PHYSICAL else topology.logical

    @property
    def graph(self) -> Graph:
        topology = self.now.topology
        return topology.graph if self.level is Level.PHYSICAL else topology.logical_graph

    @cached_property
    def away(self) -> npt.NDArray[np.bool_]:
        """(n,) which operators run on other nodes; none of the logical ones, that have no place."""
        if self.level is Level.PHYSICAL:
            return self.now.topology.away
        return np.zeros(len(self.operators), dtype=np.bool_)

    @cached_property
    def threads(self) -> Index:
        """(n,) threads that run each operator; of a logical one those of all its replicas."""
        topology = self.now.topology
        if self.level is Level.PHYSICAL:
            return topology.thread_counts
        physical, logical, _, _ = topology.logical_rows
        counts = np.zeros(len(topology.logical), dtype=np.intp)
        np.add.at(counts, logical, topology.thread_counts[physical])
        return counts

    @cached_property
    def base(self) -> Snapshot | None:
        """`then`, if it can be compared with `now`."""
        then = self.then
        if then is None or then.topology is not self.now.topology:
            return None
        return then if self.now.time_s > then.time_s else None

    @property
    def seconds(self) -> float:
        """Length of the window; NaN where there is only one snapshot."""
        return float("nan") if self.base is None else self.now.time_s - self.base.time_s

    def value(self, metric: str) -> Array:
        """(n,) what the engine says, cleaned: now, or of samples lately; NaN where nothing."""
        return self.mean(metric) if metric in SAMPLES else self._column(self.now, metric)

    def mean(self, metric: str) -> Array:
        """(n,) over `lately`, of what is known there; NaN where nothing is."""
        columns = [
            self._column(one, metric) for one in self.lately if one.topology is self.now.topology
        ]
        if len(columns) < 2:
            return self._column(self.now, metric)
        found = np.array(columns)
        known = ~np.isnan(found)
        return divide(np.where(known, found, 0.0).sum(axis=0), known.sum(axis=0).astype(np.float64))

    def or_prior(self, metric: str, column: Array) -> Array:
        """(n,) the column, with what is taken to be true where it is unknown."""
        prior = self.now.priors.get(metric)
        if prior is None or not np.isnan(column).any():
            return column
        if self.level is not Level.PHYSICAL:
            prior = to_logical(self.now.topology, metric, {metric: prior})
        return np.where(np.isnan(column), prior, column)

    def gain(self, counter: str) -> Array:
        """(n,) growth over the window; NaN where unknown.

        A counter that fell far was reset by a restart of the operator: what it counts now came
        since. One that fell a little is the sum, or a part, of others than before.
        """
        now = self.value(counter)
        if self.base is None:
            return np.full_like(now, np.nan)
        then = self._column(self.base, counter)
        return np.where(now >= then, now - then, np.where(now < then / 2, now, np.nan))

    def rate(self, counter: str) -> Array:
        """(n,) growth a second; NaN where there is only one snapshot."""
        rate = self.gain(counter) / (self.seconds if self.lengths is None else self.lengths)
        if self.recent is None or not np.isnan(rate).any():
            return rate
        lately = Window(self.now, self.recent, self.level).rate(counter)
        return np.where(np.isnan(rate), lately, rate)

    def change(self, metric: str) -> Array:
        """(n,) what the engine says now less what it said, by the second; NaN where unknown."""
        if self.base is None:
            return np.full(len(self.operators), np.nan)
        more = self._column(self.now, metric) - self._column(self.base, metric)
        return np.asarray(more / (self.seconds if self.lengths is None else self.lengths))

    def ratio(self, numerator: str, denominator: str) -> Array:
        """(n,) growth of one counter by growth of another; NaN where nothing was ever counted.

        Totals since start are taken instead where either did not grow in the window, so that a
        pause, or a filter that rarely lets a tuple through, keeps its last known value. After a
        restart both are totals since that restart.
        """
        above, below = self.value(numerator), self.value(denominator)
        if self.base is None:
            return divide(above, below)
        more_above = above - self._column(self.base, numerator)
        more_below = below - self._column(self.base, denominator)
        grew = (more_above > 0) & (more_below > 0)
        return divide(np.where(grew, more_above, above), np.where(grew, more_below, below))

    def _column(self, snapshot: Snapshot, metric: str) -> Array:
        # Kept with the snapshot: it is one end of many windows, of all policies
        key = (metric, self.level is Level.PHYSICAL)  # hashing an Enum runs Python code
        column = snapshot.cleaned.get(key)
        if column is None:
            column = snapshot.cleaned[key] = self._corrected(snapshot, metric)
        return column

    def _corrected(self, snapshot: Snapshot, metric: str) -> Array:
        # Sources of some engines count only what they emit: that is also what they took in. And
        # sinks only what they took in: all of it leaves the query.
        if metric == "tuples_in":
            return self._unless_counted(snapshot, metric, "tuples_out", self.graph.ingress)
        if metric == "tuples_out":
            return self._unless_counted(snapshot, metric, "tuples_in", self.graph.egress)
        return self._raw(snapshot, metric)

    def _unless_counted(
        self, snapshot: Snapshot, metric: str, instead: str, rows: npt.NDArray[np.bool_]
    ) -> Array:
        column = self._raw(snapshot, metric)
        if (column[rows] > 0).all():
            return column
        other = self._raw(snapshot, instead)
        return np.where(rows & ~(column > 0) & (other > 0), other, column)

    def _raw(self, snapshot: Snapshot, metric: str) -> Array:
        key = (metric, self.level is Level.PHYSICAL, "raw")
        column = snapshot.cleaned.get(key)
        if column is None:
            column = snapshot.cleaned[key] = self._converted(snapshot, metric)
        return column

    def _converted(self, snapshot: Snapshot, metric: str) -> Array:
        topology = snapshot.topology
        if self.level is Level.PHYSICAL:
            mine, other, convert = snapshot.columns, snapshot.logical, to_physical
        else:
            mine, other, convert = snapshot.logical, snapshot.columns, to_logical
        if metric in mine:
            column = clean(mine[metric])
        elif metric in other:
            needed = {name: clean(other[name]) for name in (metric, "tuples_in") if name in other}
            column = convert(topology, metric, needed)
        else:
            return np.full(len(self.operators), np.nan)
        if column.shape != (len(self.operators),):
            raise ValueError(
                f"{topology.engine}: {metric} has shape {column.shape} "
                f"for {len(self.operators)} operators"
            )
        return column
