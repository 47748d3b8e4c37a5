"""How many tuples wait before each subtask, from counters that were not made to tell.

Flink counts what a task sends to all its outputs together, so the count of an edge is known where
a vertex has one edge, or where its only end sends every record along all of them. Elsewhere what
is left is the number of buffers that wait, times the records that a buffer held so far. And where
neither is told, the queue is unknown.
"""

import numpy as np
import numpy.typing as npt

from sched_ctl.drivers.flink.plan import Plan
from sched_ctl.model.graph import Array, Index

__all__ = ["Doubts", "in_buffers", "in_flight", "sent_by_edge"]

Mask = npt.NDArray[np.bool_]


def sent_by_edge(plan: Plan, sent: Array, by_end: Array) -> Array:
    """(n,) tuples that each row sent along each of its edges; NaN where the edges differ.

    sent: what its task counted. by_end: what the only end of its chain counted, NaN if it has
    several. An end counts a record once, whatever the number of edges it goes along; so a task
    that counted more has another way out as well, which the plan does not tell.
    """
    several = np.array([count > 1 for count in plan.outputs], dtype=np.bool_)
    with np.errstate(invalid="ignore"):
        sole = np.abs(sent - by_end) <= np.maximum(10.0, 0.01 * sent)
    return np.where(several & ~sole, np.nan, sent)


def in_flight(plan: Plan, sent: Array, taken: Array, buffers: Array) -> Array:
    """(n,) tuples on their way to each row: what was sent to it less what it took.

    sent: of `sent_by_edge`. Where producers choose among a vertex's rows by key, only the vertex's
    total is known; it is divided by the buffers that wait at each row.
    """
    n = len(plan.rows)
    arrived: Array = np.zeros(n)
    if plan.edges:
        source = np.array([edge.source for edge in plan.edges], dtype=np.intp)
        target = np.array([edge.target for edge in plan.edges], dtype=np.intp)
        share = np.array([edge.share for edge in plan.edges], dtype=np.float64)
        arrived = np.bincount(target, weights=share * sent[source], minlength=n).astype(float)
    queue = np.maximum(arrived - taken, 0.0)
    vertices: dict[tuple[str, str], int] = {}
    vertex: Index = np.array(
        [vertices.setdefault((row.job, row.vertex), len(vertices)) for row in plan.rows],
        dtype=np.intp,
    )
    total = np.maximum(np.bincount(vertex, weights=arrived - taken), 0.0)[vertex]
    known = np.nan_to_num(buffers)
    waiting = np.bincount(vertex, weights=known)[vertex]
    count = np.bincount(vertex)[vertex]
    with np.errstate(invalid="ignore", divide="ignore"):
        part = np.where(waiting > 0, known / waiting, 1 / count)
    return np.where(np.array(plan.even, dtype=np.bool_), queue, total * part)


def in_buffers(buffers: Array, taken: Array, buffers_taken: Array) -> Array:
    """(n,) tuples in the buffers that wait at each row, as many in each as there were so far."""
    with np.errstate(invalid="ignore", divide="ignore"):
        held = np.where(buffers_taken > 0, taken / buffers_taken, np.nan)
    return np.where(buffers == 0, 0.0, buffers * held)


class Doubts:
    """Rows whose queue cannot be what the counts say.

    Whoever has tuples waiting does not wait for tuples. So a row that did for most of the last
    seconds, while its queue was long all the time by the counts, has another one than they say
    (a side output, say), and that does not change while the job runs.
    """

    WATCH_S = 5.0
    IDLE = 0.8
    SECONDS = 1.0  # a long queue is worth at least so much of what the row takes in

    def __init__(self, n: int) -> None:
        self.rows: Mask = np.zeros(n, dtype=np.bool_)
        self._since_s = float("nan")
        self._idle_s: Array = np.zeros(n)
        self._taken: Array = np.zeros(n)
        self._least: Array = np.zeros(n)

    def update(self, time_s: float, queue: Array, idle_s: Array, taken: Array) -> Mask:
        """(n,) true where the counts are not to be believed. idle_s, taken: since the start."""
        if not self._since_s + self.WATCH_S > time_s:
            seconds = time_s - self._since_s
            with np.errstate(invalid="ignore"):
                idle = (idle_s - self._idle_s) / seconds
                rate = (taken - self._taken) / seconds
                long = self._least > np.maximum(100.0, self.SECONDS * rate)
                self.rows = self.rows | ((idle > self.IDLE) & long)
            self._since_s, self._idle_s, self._taken = time_s, idle_s, taken
            self._least = queue
        self._least = np.minimum(self._least, queue)
        return self.rows
