"""Flink's counters as columns, from either of the two ways to read them.

A TaskManager's Prometheus page is current at the moment of the scrape. The REST interface answers
with what the JobManager fetched last, so it is asked twice: once to make it fetch, and once, a
little later, for the answer.

Rates are left to who differences the counters: Flink's own `...PerSecond` move every few seconds
only. Its counters leave gaps that are closed here: a source's task counts no input, a sink's no
output, and a chain counts only what crosses its ends.
"""

import math
import re
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

import msgspec
import numpy as np
import numpy.typing as npt

from sched_ctl.drivers.deadlines import time_left
from sched_ctl.drivers.flink import queues
from sched_ctl.drivers.flink.plan import Plan
from sched_ctl.drivers.flink.queues import Doubts
from sched_ctl.drivers.flink.renewals import Mask, mixed
from sched_ctl.drivers.sources.http import Endpoint
from sched_ctl.drivers.sources.prometheus import Labels, Page
from sched_ctl.errors import EngineError
from sched_ctl.model.graph import Array, Graph, Index

__all__ = ["DERIVED", "PROVIDES", "HeadAge", "Reading", "RestAge", "page"]

PROVIDES = frozenset(
    {
        "tuples_in",
        "tuples_out",
        "busy_time",
        "backpressured_time",
        "idle_time",
        "queue_size",
        "head_age_estimate",
        "wait_estimate",
    }
)
DERIVED = {
    "tuples_in": "numRecordsIn of the task; of a source, what its first operator sent",
    "tuples_out": "numRecordsOut of the task; of a sink, what its writer took",
    "queue_size": "derived: numRecordsOut of the tasks upstream less numRecordsIn; where edges "
    "cannot be told apart, waiting buffers times the records that a buffer held so far",
    "head_age_estimate": "derived: queue size over the rate at which it is emptied, and the "
    "longest such wait upstream",
    "wait_estimate": "derived: queue size over the rate at which it is emptied",
}

TASK = (
    "numRecordsIn",
    "numRecordsOut",
    "accumulateBusyTimeMs",
    "accumulateBackPressuredTimeMs",
    "accumulateIdleTimeMs",
    "Shuffle.Netty.Input.Buffers.inputQueueLength",
    "Shuffle.Netty.Input.numBuffersInLocal",
    "Shuffle.Netty.Input.numBuffersInRemote",
)
IN, OUT, BUSY, BACKPRESSURED, IDLE, BUFFERS, LOCAL, REMOTE = range(len(TASK))
OPERATOR = ("numRecordsIn", "numRecordsOut", "pendingRecords")
PENDING = 2
SCOPE = "flink_taskmanager_job_task_"
NAME_LIMIT = 80  # characters of an operator's name in metrics, MetricUtils

PLACES_LIMIT = 500_000  # series whose place is remembered; beyond that we start again
SETTLE_S = 0.05  # from the request that makes the JobManager fetch to the one that reads
QUERY_LIMIT = 3000  # characters; Flink's server takes 4096 a request line


class Value(msgspec.Struct, frozen=True):
    id: str
    value: str = "NaN"


def page(endpoint: Endpoint) -> Page:
    """The families of a TaskManager's page that we read."""
    families = [SCOPE + name.replace(".", "_") for name in TASK]
    families += [f"{SCOPE}operator_{name}" for name in OPERATOR]
    return Page(endpoint, families)


class Reading:
    """One pass after another over the metrics of one plan.

    A *cell* is one logical operator in one subtask: what Flink calls an operator's metrics.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        n = len(plan.rows)
        self._task = np.full((len(TASK), n), np.nan)
        self._rows = {
            (row.job, row.vertex, str(row.index), str(row.attempt)): place
            for place, row in enumerate(plan.rows)
        }
        self._cells: dict[tuple[int, str], int] = {}
        logical: list[int] = []
        self._head = np.zeros(n, dtype=np.intp)
        self._end = np.zeros(n, dtype=np.intp)
        self._only_end = np.full(n, -1, dtype=np.intp)  # cell of the one that feeds others
        self._doubts = Doubts(n)
        self._delivers = np.array(plan.sink, dtype=np.bool_)
        for place, row in enumerate(plan.rows):
            chain = plan.chains[row.job, row.vertex]
            repeated = Counter(_short(name) for _, name in chain)
            self._head[place] = len(logical)
            self._end[place] = len(logical)
            for operator, name in chain:
                if repeated[_short(name)] == 1:  # else Flink reports both under one name
                    self._cells[place, _short(name)] = len(logical)
                # What committers pass on are not tuples.
                if not name.endswith("ommitter"):
                    self._end[place] = len(logical)
                    if name.endswith(": Writer"):
                        self._delivers[place] = True
                logical.append(operator)
            ends = plan.ends[row.job, row.vertex]
            if len(ends) == 1 and repeated[_short(chain[ends[0]][1])] == 1:
                self._only_end[place] = self._head[place] + ends[0]
        self._logical: Index = np.array(logical, dtype=np.intp)
        self._row_of: Index = np.repeat(
            np.arange(n), [len(plan.chains[row.job, row.vertex]) for row in plan.rows]
        ).astype(np.intp)
        self._cell = np.full((len(OPERATOR), len(logical)), np.nan)
        # Of series of the Prometheus pages, by the number of their labels.
        self._places: dict[int, tuple[Array, int] | None] = {}

    def clear(self, rows: Mask | None = None) -> None:
        """Forget the values of these rows, or all: what is not read again is unknown."""
        if rows is None:
            rows = np.ones(len(self.plan.rows), dtype=np.bool_)
        self._task[:, rows] = np.nan
        self._cell[:, rows[self._row_of]] = np.nan

    def scrape(self, source: Page, timeout_s: float) -> None:
        """Read a TaskManager's page. Raises EngineError."""
        for family, labels, value in source.read(timeout_s):
            try:
                place = self._places[labels.number]
            except KeyError:
                if len(self._places) > PLACES_LIMIT:
                    self._places.clear()
                place = self._places[labels.number] = self._place(family, labels)
            if place is not None:
                place[0][place[1]] = value

    def _place(self, family: str, labels: Labels) -> tuple[Array, int] | None:
        row = self._rows.get(
            (
                labels.get("job_id", ""),
                labels.get("task_id", ""),
                labels.get("subtask_index", ""),
                labels.get("task_attempt_num", ""),
            )
        )
        if row is None:
            return None
        name = family.removeprefix(SCOPE)
        if name.startswith("operator_"):
            cell = self._cells.get((row, _short(labels.get("operator_name", ""))))
            metric = name.removeprefix("operator_")
            return None if cell is None else (self._cell[OPERATOR.index(metric)], cell)
        for i, known in enumerate(TASK):
            if name == known.replace(".", "_"):
                return self._task[i], row
        return None

    def ask(self, rest: Endpoint, asked: Mask, deadline: float) -> None:
        """Read these (n,) rows over REST. Raises EngineError.

        A cluster that is too large for the time is told what helps: half of its values would be of
        another time than the others.
        """
        vertices: dict[tuple[str, str], list[int]] = {}
        for at in np.flatnonzero(asked).tolist():
            row = self.plan.rows[at]
            vertices.setdefault((row.job, row.vertex), []).append(at)
        if not vertices:
            return
        job, vertex = min(vertices)
        rest.get(f"/jobs/{job}/vertices/{vertex}/metrics?get=0.numRecordsIn", time_left(deadline))
        time.sleep(SETTLE_S)
        questions = [
            (f"/jobs/{job}/vertices/{vertex}/metrics?get={names}", places)
            for (job, vertex), rows in sorted(vertices.items())
            for places in (dict(self._names(job, vertex, rows)),)
            for names in _portions(places)
        ]
        for number, (path, places) in enumerate(questions):
            try:
                answer: list[Value] = rest.json(path, time_left(deadline), list[Value])
            except EngineError:
                if not number or time.monotonic() < deadline:
                    raise
                raise EngineError(
                    f"{number} of {len(questions)} questions about its metrics were answered in "
                    "time: its Prometheus reporter needs one a TaskManager, or raise poll_timeout"
                ) from None
            for one in answer:
                if (place := places.get(one.id)) is not None:
                    place[0][place[1]] = _number(one.value)

    def _names(
        self, job: str, vertex: str, rows: Sequence[int]
    ) -> Iterator[tuple[str, tuple[Array, int]]]:
        """Names of the metrics of a vertex's rows in REST answers, and where their values go."""
        for place in rows:
            row = self.plan.rows[place]
            for i, name in enumerate(TASK):
                yield f"{row.index}.{name}", (self._task[i], place)
            for _, operator in self.plan.chains[job, vertex]:
                cell = self._cells.get((place, _short(operator)))
                if cell is not None:
                    for i, name in enumerate(OPERATOR):
                        called = re.sub(r"[ .:,]", "_", operator[:NAME_LIMIT])
                        yield f"{row.index}.{called}.{name}", (self._cell[i], cell)

    def columns(self, time_s: float = 0.0, asked: Mask | None = None) -> dict[str, Array]:
        """Metrics over the plan's rows, without estimates of waits.

        time_s: CLOCK_MONOTONIC when they were read. asked: rows that were read over REST.
        """
        task = _known(self._task)
        cell = _known(self._cell)
        source = np.array(self.plan.source, dtype=np.bool_)
        taken = np.where(source, cell[OUT][self._head], task[IN]) if len(source) else task[IN]
        given = np.where(self._delivers, cell[IN][self._end], task[OUT]) if len(source) else taken
        # A source that is a sink as well: whatever it makes is delivered.
        given = np.where(source & self._delivers & (self._head == self._end), taken, given)
        return {
            "tuples_in": taken,
            "tuples_out": given,
            "busy_time": task[BUSY] / 1000,
            "backpressured_time": task[BACKPRESSURED] / 1000,
            # A source of the old kind (SourceFunction) is never idle to Flink, which then tells no
            # busy time: TaskIOMetricGroup.setEnableBusyTime, by SourceStreamTask.
            "idle_time": np.where(source & np.isnan(task[BUSY]), np.nan, task[IDLE]) / 1000,
            "queue_size": self._queues(time_s, task, cell, asked),
        }

    @property
    def counters(self) -> Array:
        """(k, n) as read, of the tasks; the times that they spent move in any case."""
        return self._task

    def time_spent(self, asked: Mask) -> float:
        """Busy, idle and back-pressured time (ms) of these: differs when they were read anew."""
        return float(np.nansum(self._task[[BUSY, IDLE, BACKPRESSURED]][:, asked]))

    @property
    def doubted(self) -> tuple[str, ...]:
        """Labels of tasks whose counts do not tell their queue, in words for the user."""
        rows = [row for row, doubt in zip(self.plan.rows, self._doubts.rows, strict=True) if doubt]
        return tuple(dict.fromkeys(f"{row.query}/{row.label}" for row in rows))

    def logical(self) -> dict[str, Array]:
        """Metrics over the plan's logical operators."""
        cell = _known(self._cell)
        n = len(self.plan.logical)
        taken, given = cell[IN].copy(), cell[OUT].copy()
        heads = self._head[np.array(self.plan.source, dtype=np.bool_)]
        taken[heads] = cell[OUT][heads]
        ends = self._end[self._delivers]
        given[ends] = np.where(np.isin(ends, heads), cell[OUT][ends], cell[IN][ends])
        return {
            "tuples_in": np.bincount(self._logical, weights=taken, minlength=n).astype(float),
            "tuples_out": np.bincount(self._logical, weights=given, minlength=n).astype(float),
        }

    def _queues(self, time_s: float, task: Array, cell: Array, asked: Mask | None) -> Array:
        """(n,) tuples that wait before each row, see `queues`."""
        plan = self.plan
        if not plan.rows:
            return np.zeros(0)
        end = np.where(self._only_end >= 0, cell[OUT][self._only_end], np.nan)
        sent = queues.sent_by_edge(plan, task[OUT], end)
        counted = queues.in_flight(plan, sent, task[IN], task[BUFFERS])
        doubted = self._doubts.update(time_s, counted, task[IDLE] / 1000, task[IN])
        received = np.nan_to_num(task[LOCAL]) + np.nan_to_num(task[REMOTE])
        seen = queues.in_buffers(task[BUFFERS], task[IN], received)
        apart = doubted if asked is None else doubted | mixed(plan, asked)
        queue = np.where(np.isnan(counted) | apart, seen, counted)
        # What waits before a source is known to the source alone, if at all.
        pending = cell[PENDING][self._head]
        return np.asarray(np.where(np.array(plan.source, dtype=np.bool_), pending, queue))


class RestAge:
    """How old values get that the JobManager hands on, as seen: they stand still in between.

    Of a busy one each age is another; the largest of some is what they are up to.
    """

    DIFFERS = 1.5  # a new age is told when it is this many times another
    LOOKED_AT = 20

    def __init__(self) -> None:
        self.told_s: float | None = None
        self._value = float("nan")
        self._since_s = float("nan")
        self._ages_s: deque[float] = deque(maxlen=self.LOOKED_AT)

    def update(self, time_s: float, value: float) -> bool:
        """value: differs whenever the values are new ones. Returns whether the age is another."""
        if value == self._value:
            return False
        if not math.isnan(self._since_s):
            self._ages_s.append(time_s - self._since_s)
        self._since_s, self._value = time_s, value
        age_s, told_s = max(self._ages_s, default=0.0), self.told_s or 0.0
        if not (age_s > self.DIFFERS * told_s or age_s < told_s / self.DIFFERS):
            return False
        self.told_s = age_s
        return True

    @property
    def words(self) -> str:
        return "" if self.told_s is None else f", up to {self.told_s:.1f} s old as seen"


class HeadAge:
    """Estimates the age of the oldest waiting tuple of each row.

    Little's law gives the wait in a row's own queue as its length over the rate at which it is
    emptied; the age in the system adds the largest wait upstream. Where nothing is taken out of a
    queue that is not empty, its head grows older.
    """

    SMOOTH_S = 1.0

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._time_s: Array = np.full(graph.n, np.nan)
        self._taken: Array = np.zeros(graph.n)
        self._rate: Array = np.full(graph.n, np.nan)
        self._wait: Array = np.full(graph.n, np.nan)

    @property
    def waits(self) -> Array:
        """(n,) seconds that tuples spend in each row's own queue; NaN = unknown."""
        return self._wait

    def update(self, time_s: float, taken: Array, queue: Array, fresh: Mask | None = None) -> Array:
        """(n,) seconds; taken: tuples since start, queue: tuples waiting now.

        fresh: (n,) of which rows these came anew; None = of all. The others keep their waits.
        """
        new = np.ones(self._graph.n, dtype=np.bool_) if fresh is None else fresh
        seconds = time_s - self._time_s
        gain = taken - self._taken
        with np.errstate(invalid="ignore", divide="ignore"):
            moved = new & (seconds > 0)
            rate = np.where(moved & (gain >= 0), gain / seconds, np.nan)
            keep = np.where(np.isfinite(self._rate), np.exp(-seconds / self.SMOOTH_S), 0.0)
            self._rate = np.where(
                np.isfinite(rate), keep * np.nan_to_num(self._rate) + (1 - keep) * rate, self._rate
            )
            wait = np.where(self._rate > 0, queue / self._rate, np.nan)
            stuck = (queue > 0) & (gain == 0)
            wait = np.where(stuck, np.nan_to_num(self._wait) + seconds, wait)
        self._wait = np.where(moved, np.where(queue == 0, 0.0, wait), self._wait)
        self._time_s = np.where(new, time_s, self._time_s)
        self._taken = np.where(new, taken, self._taken)
        upstream = np.zeros(self._graph.n)
        own = np.nan_to_num(self._wait)
        for rows, edges in reversed(self._graph.levels):
            own[rows] += upstream[rows]
            np.maximum.at(upstream, self._graph.target[edges], own[self._graph.source[edges]])
        return np.where(np.isnan(self._wait), np.nan, np.where(queue > 0, own, 0.0))


def _known(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """NaN for whatever cannot be a count or a time."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(values) & (values >= 0), values, np.nan)


def _short(name: str) -> str:
    """An operator's name as both reporters leave it, whatever they replace by what."""
    return re.sub(r"[^a-zA-Z0-9]", "_", name[:NAME_LIMIT])


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _portions(names: Mapping[str, object]) -> Iterator[str]:
    """Comma-separated lists of names, each short enough for a request line."""
    portion: list[str] = []
    size = 0
    for name in names:
        text = quote(name, safe="")
        if portion and size + len(text) + 3 > QUERY_LIMIT:
            yield "%2C".join(portion)
            portion, size = [], 0
        portion.append(text)
        size += len(text) + 3
    if portion:
        yield "%2C".join(portion)
