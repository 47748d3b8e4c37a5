"""What the names of Storm's metrics say, and what their values add up to.

Storm 2's reporters send, for each task,

    storm.worker.TOPOLOGY.HOST.COMPONENT.TASK.PORT-receive-queue-population
    storm.worker.TOPOLOGY.HOST.COMPONENT.TASK.PORT-receive-queue-capacity
    storm.worker.TOPOLOGY.HOST.COMPONENT.STREAM.TASK.PORT-__execute-count-SOURCE:STREAM.count
    storm.worker.TOPOLOGY.HOST.COMPONENT.STREAM.TASK.PORT-__emit-count-STREAM.count

    storm.worker.TOPOLOGY.HOST.COMPONENT.STREAM.TASK.PORT-__ack-count-STREAM.count
    storm.worker.TOPOLOGY.HOST.COMPONENT.STREAM.TASK.PORT-__complete-latency-STREAM

with dots in the parts replaced by underscores (StormMetricRegistry), and spaces by hyphens
(GraphiteSanitize). A task's number is unique in
its topology and a thread's name has the numbers of its tasks, so numbers join the two. That
component C counts what it executed of stream S of component B *is* the edge from B to C: the
topology needs no second source. Components and streams that begin with two underscores are
Storm's own. Spouts alone have a complete latency, where tuples are acknowledged: the mean of the
last three that were sampled, each in whole ms.

Counts are sampled: of every 20 tuples (`topology.stats.sample.rate` 0.05) one, chosen at random,
adds 20. `Sampled` makes them smooth.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sched_ctl.drivers.sources.graphite import Series, as_sent
from sched_ctl.model.graph import Array

__all__ = ["CAPACITY", "QUEUES", "Measure", "Sampled", "is_read", "plain", "take_apart"]

PLACE = re.compile(
    r"[^.]+\.(?P<component>[^.]+)(?:\.(?P<stream>[^.]+))?\.(?P<task>-?\d{1,9})\.\d+-(?P<metric>.+)"
)
ANY = re.compile(r"storm\.worker\.[^.]+\.")
COUNT = re.compile(r"__(?P<what>execute|emit|ack)-count-(?P<of>.+)\.count")
LATENCY = "__complete-latency-"
# Tuples that wait for an executor: the second holds what other workers sent when the first is full.
QUEUES = ("receive-queue-population", "receive-queue-overflow")
CAPACITY = "receive-queue-capacity"  # of the first of them


@dataclass(frozen=True, slots=True)
class Measure:
    """One series. what: "execute", "emit", "ack", "complete" (of a spout: the complete latency, ms)
    one of QUEUES, or CAPACITY. source: of an execute count.
    """

    what: str
    task: int
    series: Series
    stream: str = ""
    source: str = ""

    @property
    def count(self) -> float:
        """The value, if it can be a count; else 0."""
        return self.series.value if self.series.value > 0 else 0.0


def plain(name: str) -> str:
    """A component's or stream's name as Storm's metrics have it."""
    return as_sent(name.replace(".", "_"))


def take_apart(topology: str, found: Mapping[str, Series]) -> list[Measure]:
    """The series of a topology that we read, by names."""
    prefix = f"storm.worker.{topology}."
    told = ((_said(name, len(prefix)), of) for name, of in found.items() if name.startswith(prefix))
    return [
        Measure(said.what, said.task, of, said.stream, said.source) for said, of in told if said
    ]


def is_read(name: str) -> bool:
    """Whether a series of some topology is one of these."""
    start = ANY.match(name)
    return start is not None and _said(name, start.end()) is not None


class _Said(NamedTuple):
    what: str
    task: int
    stream: str = ""
    source: str = ""


def _said(name: str, start: int) -> _Said | None:
    """What a name says from there on; None: nothing that we read."""
    match = PLACE.fullmatch(name, start)
    if match is None or match["component"].startswith("__"):  # its tasks are no operators
        return None
    task, metric = int(match["task"]), match["metric"]
    if metric in QUEUES or metric == CAPACITY:
        return _Said(metric, task)
    if metric.startswith(LATENCY) and not metric.startswith(f"{LATENCY}__"):
        return _Said("complete", task, plain(metric.removeprefix(LATENCY)))
    count = COUNT.fullmatch(metric)
    if count is None:
        return None
    source, _, stream = count["of"].rpartition(":")
    if count["what"] == "emit":
        source, stream = "", count["of"]
    elif count["what"] == "ack" and source:  # of a bolt
        return None
    if source.startswith("__") or stream.startswith("__"):
        return None
    return _Said(count["what"], task, plain(stream), plain(source))


class Sampled:
    """Smooth counters from such that move in steps.

    A counter that adds k at a random one of every k events is within k of their number. Between
    steps, and between reports, ours grows at the rate of late; what the counter says bounds it.
    So it is never further from the truth than the counter itself, and its growth over a second is
    not 0 or k for an operator of 10 tuples a second.
    """

    SMOOTH_S = 1.0  # and at least the time of so many steps:
    STEPS = 5.0
    LONGEST_S = 10.0
    AHEAD_S = 2.0  # longest time to go on at the known rate without news

    def __init__(self, n: int) -> None:
        self._time_s = math.nan
        self._news_s: Array = np.full(n, np.nan)
        self._count: Array = np.full(n, np.nan)
        self._rate: Array = np.zeros(n)
        self._value: Array = np.full(n, np.nan)

    def update(self, now_s: float, count: Array, received_s: Array, step: Array) -> Array:
        """(n,) counters now. count: as reported, at `received_s`; step: how far off a
        count may be, k - 1; NaN where nothing was reported.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            restarted = ~(count >= self._count)
            self._value = np.where(restarted, count, self._value)
            since = np.where(restarted, np.nan, received_s - self._news_s)
            latest = (count - self._count) / since
            span = np.clip(self.STEPS * step / self._rate, self.SMOOTH_S, self.LONGEST_S)
            keep = np.where(self._rate > 0, np.exp(-since / span), 0.0)
            fresh = since > 0
            self._rate = np.where(
                fresh, keep * self._rate + (1 - keep) * latest, np.where(restarted, 0.0, self._rate)
            )
            ahead = np.clip(now_s - received_s, 0.0, self.AHEAD_S) * self._rate
            passed = max(0.0, now_s - self._time_s) if np.isfinite(self._time_s) else 0.0
            grown = self._value + passed * self._rate
            grown = np.clip(grown, count - step, count + step + ahead)
            self._value = np.fmax(grown, np.where(np.isnan(count), np.nan, self._value))
        moved = fresh | restarted
        self._count = np.where(moved, count, self._count)
        self._news_s = np.where(moved, received_s, self._news_s)
        self._time_s = now_s
        return self._value
