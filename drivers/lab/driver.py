"""The lab engine, `labspe`: read from the shared-memory file of each running instance.

In pool mode operators have no threads of their own. They get user-level threads instead, which
only the `pool` backend can schedule.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sched_ctl.drivers import DriverKind, Target
from sched_ctl.errors import EngineError
from sched_ctl.kernel.identity import born
from sched_ctl.lab.file import STATES, LabFile, path_of, pids
from sched_ctl.model.graph import Array, Index
from sched_ctl.model.topology import (
    Edge,
    HelperThread,
    Latencies,
    LogicalOperator,
    PhysicalOperator,
    Snapshot,
    Thread,
    Topology,
    UserThread,
)

__all__ = ["LabDriver", "connect", "find", "kind"]

OUTSIDE = 2**64 - 1
DONE = STATES.index("done")
STALE_S = 1.0  # the heartbeat is renewed every 20 ms
LATENCIES_EVERY_S = 0.1  # a histogram has 15 kB
MOST_HISTOGRAMS = 64  # egresses; of more, means alone


def _topology(file: LabFile, engine: str) -> Topology:
    """What runs, from a file's rows. Each thread is looked up in /proc."""
    queries = file.texts("queries", "name")
    notes: list[str] = []
    offer = file.live_offer()

    def kernel_thread(
        tid: int, start_time: int, name: str, row: int | None = None
    ) -> tuple[Thread, ...]:
        found = born(file.pid, tid)
        if found is None:  # gone: the sources of a run that drains, the operators of one that ends
            return ()
        if found != start_time:
            notes.append(f"{name}: thread {tid} of process {file.pid} is another one")
            return ()
        live = None if offer is None or row is None else (offer, row + 1)
        return (Thread(file.pid, tid, start_time, name, live),)

    operators = []
    for row, (name, query, tid, start_time) in enumerate(
        zip(
            file.texts("operators", "name"),
            file.numbers("operators", "query").tolist(),
            file.numbers("operators", "tid").tolist(),
            file.numbers("operators", "start_time").tolist(),
            strict=True,
        )
    ):
        if query >= len(queries):
            raise EngineError(f"{file.path}: operator {name} belongs to no query")
        if file.pool:
            threads: tuple[Thread, ...] = (UserThread(file.pid, file.start_time, name, row=row),)
        else:
            threads = kernel_thread(tid, start_time, name, row)
        operators.append(PhysicalOperator(queries[query], name, (name,), threads=threads))
    if len({(operator.query, operator.name) for operator in operators}) < len(operators):
        raise EngineError(f"{file.path}: two operators of a query have one name")
    edges = tuple(
        Edge(source, target, share)
        for source, target, share in zip(
            file.numbers("edges", "source").tolist(),
            file.numbers("edges", "target").tolist(),
            file.reals("edges", "share").tolist(),
            strict=True,
        )
        if source != OUTSIDE
    )
    if any(max(edge.source, edge.target) >= len(operators) for edge in edges):
        raise EngineError(f"{file.path}: an edge comes from, or leads to, no operator")
    if not all(0 < edge.share <= 1 for edge in edges):
        raise EngineError(f"{file.path}: an edge's share is not above 0 and at most 1")
    helpers = tuple(
        HelperThread(thread, role)
        for name, role, tid, start_time in zip(
            file.texts("threads", "name"),
            file.texts("threads", "role"),
            file.numbers("threads", "tid").tolist(),
            file.numbers("threads", "start_time").tolist(),
            strict=True,
        )
        for thread in kernel_thread(tid, start_time, name)
    )
    if file.pool:
        notes.append("a pool of workers runs the operators: only the backend 'pool' can order them")
    topology = Topology(
        engine=engine,
        operators=tuple(operators),
        edges=edges,
        logical=tuple(LogicalOperator(operator.query, operator.name) for operator in operators),
        logical_edges=edges,
        helpers=helpers,
        notes=tuple(notes),
    )
    if topology.graph.cyclic:
        raise EngineError(f"{file.path}: its operators form a cycle")
    return topology


def _first_inputs(file: LabFile) -> Index:
    """Row of the first input edge of each operator; edges are sorted by target."""
    target = file.numbers("edges", "target").astype(np.int64)
    first = np.searchsorted(target, np.arange(len(file.operators)))
    complete = (
        len(target) >= len(file.operators) > 0
        and bool((np.diff(target) >= 0).all())
        and bool((target >= 0).all() and (target < len(file.operators)).all())
        and bool((np.append(first[1:], len(target)) > first).all())
    )
    if not complete:
        raise EngineError(f"{file.path}: its edges are not sorted, or an operator has none")
    return first.astype(np.intp)


def _seconds(ns: npt.NDArray[Any]) -> Array:
    return ns.astype(np.float64) * 1e-9


@dataclass(frozen=True, slots=True)
class _View:
    """What stays while the generation does."""

    generation: int
    topology: Topology
    first_input: Index


COUNTERS = {"idle_time": "idle_ns", "busy_time": "busy_ns", "backpressured_time": "blocked_ns"}
THREAD_MODE_ONLY = ("idle_time", "backpressured_time")


class LabDriver:
    """One connected lab engine; see `drivers.Driver`."""

    def __init__(self, target: Target, file: LabFile) -> None:
        self.target = target
        self.file = file
        self.provides = frozenset(
            {"tuples_in", "tuples_out", "cpu_time", "queue_size", "head_age", *COUNTERS}
        ) - (set(THREAD_MODE_ONLY) if file.pool else set())
        self._view = self._look()
        self._latencies: Latencies | None = None
        self._latencies_s = float("-inf")

    def _look(self) -> _View:
        generation = self.file["generation"]
        return _View(generation, _topology(self.file, self.target.engine), _first_inputs(self.file))

    def poll(self, timeout_s: float) -> Snapshot:
        """Read the engine; takes no time to speak of, so `timeout_s` is not needed."""
        file = self.file
        file.refresh()
        now_ns = time.monotonic_ns()
        self._check_alive(now_ns)
        if file["generation"] != self._view.generation:
            self._view = self._look()
        now_s = now_ns * 1e-9
        if now_s - self._latencies_s >= LATENCIES_EVERY_S:
            self._latencies, self._latencies_s = self._counted(), now_s
        return Snapshot(
            self._view.topology, now_s, self._columns(now_ns), latencies=self._latencies
        )

    def _counted(self) -> Latencies | None:
        """The latencies at the egresses; None where they cannot be read at no cost."""
        file = self.file
        if file.egresses is None:
            return None
        rows = file.numbers("egresses", "operator").astype(np.intp)
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(file.operators)):
            raise EngineError(f"{file.path}: an egress is no operator")
        low_s, counts = np.empty(0), np.empty((len(rows), 0))
        if len(rows) <= MOST_HISTOGRAMS:
            low_s = file.bucket_low_s
            counts = file.histograms("egresses", "latency_histogram").astype(np.float64)
        return Latencies(
            rows,
            file.numbers("egresses", "departures").astype(np.float64),
            file.reals("egresses", "latency_ns") * 1e-9,
            low_s,
            counts,
        )

    def _check_alive(self, now_ns: int) -> None:
        silent_s = (now_ns - self.file["heartbeat_ns"]) * 1e-9
        if self.file["state"] == DONE or (silent_s > STALE_S and not self.file.alive):
            raise EngineError(f"{self.target.engine} has ended")
        if silent_s > 5 * STALE_S:
            raise EngineError(f"{self.target.engine} has not been heard of for {silent_s:.0f} s")

    def _columns(self, now_ns: int) -> Mapping[str, Array]:
        file, first = self.file, self._view.first_input
        # Consumed before produced: what is counted in between makes a queue longer, not negative.
        consumed = file.numbers("consumed", "tuples").astype(np.int64)
        head_due = file.numbers("consumed", "head_due_ns").astype(np.int64)
        waiting = np.maximum(file.numbers("produced", "tuples").astype(np.int64) - consumed, 0)
        age = np.where(waiting > 0, np.maximum(now_ns - head_due, 0), 0)
        columns: dict[str, Array] = {
            "tuples_in": file.numbers("activity", "in").astype(np.float64),
            "tuples_out": file.numbers("activity", "out").astype(np.float64),
            "cpu_time": _seconds(file.numbers("activity", "cpu_ns")),
            "queue_size": np.add.reduceat(waiting, first).astype(np.float64),
            "head_age": _seconds(np.maximum.reduceat(age, first)),
        }
        # The state that an operator is in is not yet in its counter.
        since = np.maximum(now_ns - file.numbers("activity", "since_ns").astype(np.int64), 0)
        state = file.numbers("activity", "state")
        for number, name in enumerate(COUNTERS):
            if name in self.provides:
                running = np.where(state == number, since, 0) if not file.pool else 0
                columns[name] = _seconds(file.numbers("activity", COUNTERS[name]) + running)
        return columns

    def close(self) -> None:
        self.file.close()


def find() -> list[Target]:
    """The lab engines that run on this machine."""
    return [Target("lab", str(pid), pid) for pid in pids()]


def connect(target: Target) -> LabDriver:
    """`target.address` is the engine's pid, or the path of its shared-memory file."""
    file = LabFile(path_of(target.address))
    try:
        return LabDriver(Target(target.kind, target.address, file.pid), file)
    except BaseException:
        file.close()
        raise


kind = DriverKind("lab", find, connect, prompt=True)
