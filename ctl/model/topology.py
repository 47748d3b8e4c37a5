"""What runs on this machine: queries, operators, threads.

Immutable. A driver builds a new `Topology` when the engine's topology changes and hands out the
same object while it does not, so that whatever is derived from it can be cached on its identity.

The two views of a query (Lachesis, section 3): *logical* operators are what the user wrote;
*physical* ones are what the engine runs, after fusion (several logical in one physical) and
fission (one logical as several physical replicas).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from sched_ctl.model.graph import Array, Graph, Index

__all__ = [
    "PYTHON",
    "Edge",
    "HelperThread",
    "Latencies",
    "LiveOffer",
    "LogicalOperator",
    "PhysicalOperator",
    "Snapshot",
    "Thread",
    "Topology",
    "UserThread",
]


Mask = npt.NDArray[np.bool_]

# Role of helper threads in other processes that do an operator's work: their CPU time is its cost.
PYTHON = "python"


@dataclass(frozen=True, slots=True)
class LiveOffer:
    """An engine's offer to write, at each push and pop, what waits for each of its threads.

    It does so in memory that it is handed: a message of two 64-bit numbers, how many rows and how
    many bytes each, with the descriptor (SCM_RIGHTS), to an abstract UNIX socket (SOCK_SEQPACKET)
    of process `pid`. The connection stays open while the memory is read. Each row has head_ns,
    CLOCK_MONOTONIC of the oldest tuple's arrival or 0, and queue_tuples; in row 0 head_ns is the
    time of the engine's last sign of life.

    row: layout of a row, as the engine describes it.
    """

    pid: int
    socket: str
    rows: int
    row: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread of the kernel. Identity is (tid, start time): a reused tid is another thread.

    start_time: clock ticks since boot, field 22 of /proc/PID/task/TID/stat (proc(5)).
    live: where its engine would write what waits for it: the offer, and a row from 1 on.
    """

    pid: int
    tid: int
    start_time: int
    name: str = field(default="", compare=False)
    live: tuple[LiveOffer, int] | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> tuple[int, int]:
        """Its identity on this machine, for tables and the journal."""
        return self.tid, self.start_time


@dataclass(frozen=True, slots=True)
class UserThread(Thread):
    """What runs an operator in an engine that schedules its operators by itself, in a pool.

    The kernel knows nothing of it, so it has no tid; pid and start time are the engine's. Only a
    backend that speaks to that pool can order it, by the operator's row in the engine's table.
    """

    tid: int = field(default=0, init=False)
    row: int = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class LogicalOperator:
    """An operator as the user wrote it; (query, name) is unique in its engine."""

    query: str
    name: str


@dataclass(frozen=True, slots=True)
class PhysicalOperator:
    """An operator as the engine runs it; (query, name) is unique in its engine.

    logical: names of the logical operators it runs, upstream first; several after fusion.
    replica: 0..replicas-1 after fission.
    threads: those that run it; empty when the engine has not started it, or when the thread
    cannot be told apart from another operator's (the driver then says so in `Topology.notes`).
    away: it runs on another node, so it has no threads here.
    """

    query: str
    name: str
    logical: tuple[str, ...]
    replica: int = 0
    replicas: int = 1
    threads: tuple[Thread, ...] = ()
    away: bool = False

    @property
    def label(self) -> str:
        return f"{self.query}/{self.name}"


@dataclass(frozen=True, slots=True)
class Edge:
    """A stream from one operator (row in its tuple) to another.

    share: part of the producer's output that takes this edge, see `graph.Graph`.
    """

    source: int
    target: int
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class HelperThread:
    """An engine thread that belongs to no operator.

    role: what it does, one word of the driver's own vocabulary ("network", "flusher", "gc", ...).
    serves: row of the physical operator it works for, or None.
    """

    thread: Thread
    role: str
    serves: int | None = None


@dataclass(frozen=True)
class Topology:
    """Everything one engine runs. `engine` is unique on the machine, e.g. "flink:8081"."""

    engine: str
    operators: tuple[PhysicalOperator, ...]
    edges: tuple[Edge, ...]
    logical: tuple[LogicalOperator, ...]
    logical_edges: tuple[Edge, ...]
    helpers: tuple[HelperThread, ...] = ()
    notes: tuple[str, ...] = ()  # what could not be told, in words, for the user
    idle_spins: bool = False  # threads of operators use a CPU while they wait for input
    backoff_s: float = 0.0  # who finds no input sleeps for up to so long before it looks again
    guessed: bool = False  # nobody counts tuples: wake-ups of threads stand in for them

    @cached_property
    def graph(self) -> Graph:
        return _graph(len(self.operators), self.edges)

    @cached_property
    def logical_graph(self) -> Graph:
        return _graph(len(self.logical), self.logical_edges)

    @cached_property
    def away(self) -> Mask:
        """(n,) which operators run on other nodes."""
        return np.array([operator.away for operator in self.operators], dtype=np.bool_)

    @cached_property
    def logical_rows(self) -> tuple[Index, Index, Index, Index]:
        """Who runs whom: one entry for each pair of a physical and a logical operator.

        Row of the physical one, row of the logical one, position in the fused chain, length of
        that chain. A name that is not among `logical` is left out.
        """
        row = {(operator.query, operator.name): i for i, operator in enumerate(self.logical)}
        pairs = [
            (i, row[operator.query, name], position, len(operator.logical))
            for i, operator in enumerate(self.operators)
            for position, name in enumerate(operator.logical)
            if (operator.query, name) in row
        ]
        physical, logical, position, length = np.array(pairs, dtype=np.intp).reshape(-1, 4).T
        return physical, logical, position, length

    @cached_property
    def thread_counts(self) -> Index:
        """(n,) threads of each operator."""
        return np.array([len(operator.threads) for operator in self.operators], dtype=np.intp)

    @cached_property
    def pids(self) -> frozenset[int]:
        """Processes of the operators' and helper threads that are known."""
        operators = {thread.pid for operator in self.operators for thread in operator.threads}
        return frozenset(operators | {helper.thread.pid for helper in self.helpers})

    @cached_property
    def queries(self) -> tuple[str, ...]:
        """Names of the queries, in order of first appearance."""
        return tuple(dict.fromkeys(operator.query for operator in self.operators))

    @cached_property
    def query_rows(self) -> Index:
        """(n,) place of each operator's query in `queries`."""
        place = {query: number for number, query in enumerate(self.queries)}
        return np.array([place[operator.query] for operator in self.operators], dtype=np.intp)


@dataclass(frozen=True, eq=False)
class Latencies:
    """End-to-end latencies as an engine counts them itself, from its start on.

    rows: (m,) operators where tuples leave. tuples: (m,) so many; total_s: (m,) their latencies
    added up. low_s: (b,) the least value of each bucket of a histogram, counts: (m, b) how many
    lay in it; b = 0 where there is none.
    """

    rows: Index
    tuples: Array
    total_s: Array
    low_s: Array
    counts: Array


@dataclass(frozen=True)
class Snapshot:
    """What one engine reported at one moment.

    time_s: CLOCK_MONOTONIC at which the values held.
    columns: raw metric name -> (n,) array over `topology.operators`, NaN = unknown. Counters are
    cumulative since the operator started; see `metrics.catalogue.PRIMITIVES` for names and units.
    logical: the same over `topology.logical`, for engines that report by logical operator.
    priors: metric name -> (n,) array over `topology.operators`: what is taken to be true of an
    operator until it is measured, see `telemetry.profiles`; NaN = nothing.
    latencies: None where the engine counts none.
    """

    topology: Topology
    time_s: float
    columns: Mapping[str, Array]
    logical: Mapping[str, Array] = field(default_factory=lambda: MappingProxyType({}))
    priors: Mapping[str, Array] = field(default_factory=lambda: MappingProxyType({}))
    latencies: Latencies | None = None

    @cached_property
    def cleaned(self) -> dict[object, Array]:
        """What `window` made of the columns, by its own keys."""
        return {}


def _graph(n: int, edges: tuple[Edge, ...]) -> Graph:
    return Graph(
        n,
        np.array([edge.source for edge in edges], dtype=np.intp),
        np.array([edge.target for edge in edges], dtype=np.intp),
        np.array([edge.share for edge in edges], dtype=np.float64),
    )
