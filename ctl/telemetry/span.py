"""From the snapshots of one engine to records: sums and maxima over a few seconds.

A record is over one stretch of time under one set of policies. So it ends when its time is up, and
before that when a policy or the topology changes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sched_ctl.metrics import verdicts
from sched_ctl.metrics.catalogue import MissingMetric, Resolution, evaluate, resolve
from sched_ctl.metrics.window import Window
from sched_ctl.model.graph import Array
from sched_ctl.model.topology import Edge, Snapshot, Topology
from sched_ctl.probes.pressure import Gauge
from sched_ctl.telemetry import records

__all__ = ["Span", "described", "same"]

# field of a record -> counters that it is the growth of, best first, and the size of its unit
SUMS: Mapping[str, tuple[tuple[str, ...], float]] = {
    "tuples_in": (("tuples_in",), 1.0),
    "tuples_out": (("tuples_out",), 1.0),
    "cpu": (("cpu_time", "thread_cpu_time"), 1e-6),
    "wait": (("run_delay",), 1e-6),
    "busy": (("busy_time",), 1e-3),
    "idle": (("idle_time",), 1e-3),
    "full": (("backpressured_time",), 1e-3),
}
# Times have three digits that count: what is below is noise, and noise takes most of the space.
DIGITS = 3
ROUNDED = ("cpu", "wait")
STALLS = ("cpu", "io", "memory")
GAUGED = ("queue_size", "head_age", "latency")
SET_S = 1.0  # by which clocks must differ to count as set: so far apart are reads of a busy machine


def described(topology: Topology, node: str, t_ms: int, epoch: int) -> records.Topology:
    """A topology as its line."""
    query = {name: place for place, name in enumerate(topology.queries)}
    ops = topology.operators
    line = records.Topology(
        node=node,
        t=t_ms,
        engine=topology.engine,
        epoch=epoch,
        queries=list(topology.queries),
        ops=[o.name for o in ops],
        query_of=[query[o.query] for o in ops],
        edges=_edges(topology.edges),
    )
    if any(o.replicas != 1 for o in ops):
        line.replica = [o.replica for o in ops]
        line.replicas = [o.replicas for o in ops]
    if any(len(o.threads) != 1 for o in ops):
        line.threads = [len(o.threads) for o in ops]
    if topology.away.any():
        line.away = topology.away.astype(int).tolist()
    logical = [*dict.fromkeys((o.query, o.name) for o in topology.logical)]
    fused = [(o.query, o.name) for o in ops] != logical or any(o.logical != (o.name,) for o in ops)
    if fused or topology.edges != topology.logical_edges:
        _add_logical(line, topology)
    return line


def _add_logical(line: records.Topology, topology: Topology) -> None:
    """What the engine calls its operators, where these are more or others than what runs."""
    query = {name: place for place, name in enumerate(topology.queries)}
    # One of a query that has no physical operator yet has no index: it is left out.
    known = [o for o in topology.logical if o.query in query]
    at = {(o.query, o.name): i for i, o in enumerate(known)}
    line.logical = [(query[o.query], o.name) for o in known]
    line.logical_of = [
        [at[o.query, n] for n in o.logical if (o.query, n) in at] for o in topology.operators
    ]
    rows = [at.get((o.query, o.name), -1) for o in topology.logical]
    line.logical_edges = [
        (rows[e.source], rows[e.target], round(e.share, 6))
        for e in topology.logical_edges
        if rows[e.source] >= 0 and rows[e.target] >= 0
    ]


def _edges(edges: Sequence[Edge]) -> list[tuple[int, int, float]]:
    return [(e.source, e.target, round(e.share, 6)) for e in edges]


def same(one: records.Topology, other: records.Topology) -> bool:
    """Whether two lines say the same of what runs."""
    left = {k: getattr(one, k) for k in one.__struct_fields__ if k not in ("seq", "t", "epoch")}
    return all(getattr(other, key) == value for key, value in left.items())


class Span:
    """Gathers passes of one engine with an unchanged topology, and makes records of them."""

    def __init__(self, snapshot: Snapshot, wall_s: float, ruled: tuple[Sequence[str], ...]) -> None:
        """wall_s: Unix time of the snapshot. ruled: policies and backends in force from now on."""
        self._gauges = [Gauge(resource) for resource in STALLS]
        self._resolution: tuple[frozenset[str], Resolution | None] = (frozenset(), None)
        self._first: Snapshot = snapshot
        self._last: Snapshot = snapshot
        self._wall_s, self._ruled, self._passes = wall_s, ruled, 0
        self._ruled_s = snapshot.time_s
        self._gauged: dict[str, list[Array]] = {}

    def seconds(self, snapshot: Snapshot) -> float:
        return snapshot.time_s - self._first.time_s

    @property
    def begin_s(self) -> float:
        """Of the record that is gathered, by the snapshots' clock."""
        return self._first.time_s

    def clocked(self, wall_s: float) -> None:
        """Unix time of that begin, by the clock of now: a board's is set when it has a network."""
        if abs(wall_s - self._wall_s) > SET_S:
            self._wall_s = wall_s

    @property
    def ruled(self) -> tuple[Sequence[str], ...]:
        return self._ruled

    @property
    def ruled_s(self) -> float:
        """Since when, by the snapshots' clock."""
        return self._ruled_s

    def add(self, snapshot: Snapshot) -> None:
        """A pass. What it says of queues holds for the record that its time falls into."""
        if snapshot.topology is not self._first.topology:  # others threads: the rows are the same
            self._first = replace(self._first, topology=snapshot.topology)
            self._last = replace(self._last, topology=snapshot.topology)
        for name, column in self._seen(Window(snapshot, self._last)).items():
            self._gauged.setdefault(name, []).append(column)
        self._last = snapshot
        self._passes += 1

    def close(
        self, node: str, epoch: int, ruled: tuple[Sequence[str], ...], memory: float
    ) -> tuple[records.Record, verdicts.Assessment]:
        """The record of what was gathered; a new one begins, under these policies.

        memory: pressure on memory, for the verdicts.
        """
        now = self._last
        window = Window(now, self._first)
        queues = self._gauged.get("queue_size", [])
        found = verdicts.assess(window, queues[-1] if queues else None, memory)
        sums: dict[str, Any] = {
            field: _sum(window, *way, rounded=field in ROUNDED) for field, way in SUMS.items()
        }
        if sums["busy"] is not None and sums["full"] is not None:
            sums["idle"] = None  # it is what is left of the time
        record = records.Record(
            node=node,
            t=round(self._wall_s * 1e3),
            d=max(0, round((now.time_s - self._first.time_s) * 1e3)),
            engine=now.topology.engine,
            epoch=epoch,
            passes=self._passes,
            policy=list(self._ruled[0]),
            backend=list(self._ruled[1]),
            psi=[_share(gauge) for gauge in self._gauges],
            **sums,
            q=_whole(_over(np.nanmean, queues)),
            qmax=_whole(_over(np.nanmax, queues)),
            age=_whole(_over(np.nanmax, self._gauged.get("head_age", [])), 1e-3, rounded=True),
            lat=_whole(_over(np.nanmean, self._gauged.get("latency", [])), 1e-6, rounded=True),
            verdict=found.verdict.tolist() if found.verdict.any() else None,
            by=found.limit.tolist() if (found.limit >= 0).any() else None,
        )
        self._wall_s += now.time_s - self._first.time_s
        if ruled != self._ruled:
            self._ruled_s = now.time_s
        self._first, self._ruled, self._passes, self._gauged = now, ruled, 0, {}
        return record, found

    def end(self) -> None:
        for gauge in self._gauges:
            gauge.close()

    def _seen(self, window: Window) -> Mapping[str, Array]:
        """What is true at a moment: reported, else derived as policies have it."""
        provides = frozenset(window.now.columns) | frozenset(window.now.logical)
        if provides != self._resolution[0]:
            self._resolution = (provides, _resolved(provides, window.now.topology.engine))
        resolution = self._resolution[1]
        columns = {} if resolution is None else evaluate(resolution, window)
        return {name: columns[name] for name in GAUGED if name in columns}


def _resolved(provides: frozenset[str], engine: str) -> Resolution | None:
    """How to get as much of `GAUGED` as there is; what costs a derivation on guesses, not."""
    wanted = []
    for metric in GAUGED:
        try:
            resolve([metric], provides, policy="recording", engine=engine)
        except MissingMetric:
            continue
        wanted.append(metric)
    return resolve(wanted, provides, policy="recording", engine=engine) if wanted else None


def _sum(window: Window, counters: Sequence[str], unit: float, *, rounded: bool) -> records.Column:
    total = window.gain(counters[0])
    for other in counters[1:]:
        missing = np.isnan(total)
        if not missing.any():
            break
        total = np.where(missing, window.gain(other), total)
    return _whole(total, unit, rounded=rounded)


def _over(function: object, columns: Sequence[Array]) -> Array | None:
    if not columns:
        return None
    if len(columns) == 1:
        return columns[0]
    stack = np.stack(columns)
    known = ~np.isnan(stack)
    if function is np.nanmax:
        return np.where(known.any(axis=0), np.where(known, stack, 0.0).max(axis=0), np.nan)
    count = known.sum(axis=0)
    with np.errstate(all="ignore"):
        return np.where(count > 0, np.where(known, stack, 0.0).sum(axis=0) / count, np.nan)


def _whole(column: Array | None, unit: float = 1.0, *, rounded: bool = False) -> records.Column:
    """As integers of a unit, None = unknown; None if all are."""
    if column is None:
        return None
    known = np.isfinite(column) & (column >= 0)
    if not known.any():
        return None
    scaled = np.where(known, column, 0.0) / unit
    if rounded:
        size = 10.0 ** np.maximum(np.floor(np.log10(np.maximum(scaled, 1.0))) + 1 - DIGITS, 0)
        scaled = np.rint(scaled / size) * size
    whole: list[int | None] = np.rint(np.minimum(scaled, records.LARGEST)).astype(np.int64).tolist()
    if not known.all():
        whole = [value if ok else None for value, ok in zip(whole, known.tolist(), strict=True)]
    return whole


def _share(gauge: Gauge) -> int | None:
    level = gauge.read()
    return None if level is None else round(min(1.0, max(0.0, level.some_share)) * 1e4)
