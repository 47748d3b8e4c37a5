"""Storm's metrics as columns."""

import math
import time
from collections.abc import Sequence

import numpy as np

from sched_ctl.drivers.sources.graphite import Series
from sched_ctl.drivers.storm.plan import Executor
from sched_ctl.drivers.storm.series import CAPACITY, QUEUES, Measure, Sampled
from sched_ctl.model.graph import Array, Index

__all__ = ["PROVIDES", "Reading"]

PROVIDES = frozenset({"tuples_in", "tuples_out", "queue_size", "queue_capacity", "latency"})
STALE_S = 5.0  # and at least this many reports:
STALE_REPORTS = 5
LONGEST_PERIOD_S = 60.0


class Reading:
    """The series of one plan's operators, looked up once."""

    def __init__(self, running: Sequence[Executor], measures: Sequence[Measure]) -> None:
        self._n = len(running)
        row_of = {task: row for row, executor in enumerate(running) for task in executor.tasks}
        mine = [(row_of[one.task], one) for one in measures if one.task in row_of]
        counts = {
            "tuples_in": [(row, one) for row, one in mine if one.what == "execute"],
            "tuples_out": [(row, one) for row, one in mine if one.what == "emit"],
        }
        self._counters = {name: _Counter(self._n, found) for name, found in counts.items()}
        queues = [[(row, one) for row, one in mine if one.what == what] for what in QUEUES]
        self._queues = [_Column(self._n, found) for found in queues]
        room = [(row, one) for row, one in mine if one.what == CAPACITY]
        self._room = _Column(self._n, room)
        self._latency = _Latency(self._n, mine)
        # By operator, for workers report on their own: when a length came last.
        self._last_s: Array = np.full(self._n, -math.inf)
        self._reports: Array = np.zeros(len(queues[0]))  # how often, by series
        self._periods_s: Array = np.full(self._n, math.nan)

    @property
    def step(self) -> int:
        """Counts move in steps of this; 0 if not known yet. (One sampler serves all.)"""
        steps = [step for counter in self._counters.values() for step in counter.steps if step]
        return min(steps, default=0)

    @property
    def period_s(self) -> float:
        """Between reports of the worker that reports least often; NaN if not known yet."""
        known = self._periods_s[np.isfinite(self._periods_s)]
        return float(known.max()) if len(known) else math.nan

    def _follow(self) -> None:
        lengths = self._queues[0]
        newest_s, reports = lengths.newest(), lengths.reports()
        with np.errstate(invalid="ignore"):
            passed = newest_s - self._last_s
        # The shortest of late; we may look less often than reports come.
        each = passed / np.maximum(lengths.most(reports - self._reports), 1)
        shortest = np.fmin(each, 1.1 * self._periods_s)
        came = (passed > 0) & np.isfinite(self._last_s)
        self._periods_s = np.where(came, shortest, self._periods_s)
        self._last_s, self._reports = newest_s, reports

    def columns(self) -> dict[str, Array]:
        """The columns of PROVIDES, now."""
        now_s = time.monotonic()
        self._follow()
        period_s = min(self.period_s, LONGEST_PERIOD_S) if self.period_s > 0 else LONGEST_PERIOD_S
        oldest_s = now_s - max(STALE_S, STALE_REPORTS * period_s)
        # Every task of an executor reports the one queue that they share.
        waiting, overflow = (column.largest(oldest_s) for column in self._queues)
        return {
            "queue_size": waiting + np.nan_to_num(overflow),
            "queue_capacity": self._room.largest(oldest_s),
            "latency": self._latency.read(now_s, now_s - oldest_s),
            **{name: counter.read(now_s) for name, counter in self._counters.items()},
        }


class _Column:
    """Series by rows, as arrays."""

    def __init__(self, n: int, found: Sequence[tuple[int, Measure]]) -> None:
        self.n = n
        self.rows: Index = np.array([row for row, _ in found], dtype=np.intp)
        self.series: list[Series] = [one.series for _, one in found]

    def values(self) -> Array:
        values = np.array([one.value for one in self.series], dtype=np.float64)
        return np.where(values >= 0, values, np.nan)

    def received(self) -> Array:
        return np.array([one.received_s for one in self.series], dtype=np.float64)

    def newest(self) -> Array:
        """(n,) when each row's last value came."""
        found: Array = np.full(self.n, -np.inf)
        np.maximum.at(found, self.rows, self.received())
        return found

    def reports(self) -> Array:
        """How often values of each series came."""
        return np.array([one.reports for one in self.series], dtype=np.float64)

    def most(self, counts: Array) -> Array:
        """(n,) the largest of each row's counts by series; 0 without."""
        found: Array = np.zeros(self.n)
        np.maximum.at(found, self.rows, counts)
        return found

    def largest(self, oldest_s: float) -> Array:
        """(n,) the largest of each row's values; NaN where all are unknown, or too old."""
        values = np.where(self.received() >= oldest_s, self.values(), np.nan)
        found: Array = np.full(self.n, np.nan)
        np.fmax.at(found, self.rows, values)
        return found


class _Latency:
    """Complete latency of spouts, s. What is reported stands still when no more tuples are done, so
    it counts only as long as acknowledgements do not stand still as well.
    """

    def __init__(self, n: int, mine: Sequence[tuple[int, Measure]]) -> None:
        streams = {(one.task, one.stream) for _, one in mine if one.what == "complete"}
        told = [(row, one) for row, one in mine if one.what == "complete"]
        acked = [
            (row, one)
            for row, one in mine
            if one.what == "ack" and (one.task, one.stream) in streams
        ]
        self._told, self._acked = _Column(n, told), _Column(n, acked)
        self._count: Array = np.full(n, np.nan)
        self._grew_s: Array = np.full(n, -np.inf)

    def read(self, now_s: float, patience_s: float) -> Array:
        """(n,) the mean over the streams of each row; NaN = unknown."""
        if not self._told.series:
            return np.full(self._told.n, np.nan)
        rows, n = self._acked.rows, self._acked.n
        count = np.bincount(rows, np.nan_to_num(self._acked.values()), n).astype(np.float64)
        grew = (count != self._count) & np.isfinite(self._count)
        self._grew_s = np.where(grew, now_s, self._grew_s)
        self._count = count
        fresh = now_s - self._grew_s <= patience_s
        values = np.where(self._told.received() >= now_s - patience_s, self._told.values(), np.nan)
        known = np.isfinite(values)
        rows = self._told.rows
        total = np.bincount(rows, np.where(known, values, 0.0), n)
        with np.errstate(invalid="ignore"):
            mean = total / np.bincount(rows, known, n) * 1e-3
        return np.where(fresh, mean, np.nan)


class _Counter(_Column):
    """Sums of sampled counts, made smooth."""

    def __init__(self, n: int, found: Sequence[tuple[int, Measure]]) -> None:
        super().__init__(n, found)
        self.steps = [0] * len(self.series)  # what all values were a multiple of
        self._smooth = Sampled(n)
        self._has = np.bincount(self.rows, minlength=n) > 0

    def read(self, now_s: float) -> Array:
        values = np.nan_to_num(self.values())
        for place, value in enumerate(values.tolist()):
            if self.steps[place] != 1:
                self.steps[place] = math.gcd(self.steps[place], int(min(value, 2**53)))
        count = np.bincount(self.rows, values, self.n).astype(np.float64)
        slack = np.array([max(0, step - 1) for step in self.steps], dtype=np.float64)
        band = np.bincount(self.rows, slack, self.n).astype(np.float64)
        # A series comes to be with the first tuple it counts.
        count = np.where(self._has, count, np.nan)
        return self._smooth.update(now_s, count, self.newest(), band)
