"""A recorded time once more through metrics, policy and schedule: what would another policy set?

Nothing is applied, and nothing is simulated: the load is what it was, whatever the policy would
have made of it (for that there is `sched-ctl simulate`).
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sched_ctl.decide.decision import decide
from sched_ctl.metrics.catalogue import MissingMetric, Resolution, resolve
from sched_ctl.metrics.window import Window
from sched_ctl.model.graph import Array, Index
from sched_ctl.model.normalise import nice_levels, positions, with_weight_kept
from sched_ctl.model.options import NiceOptions
from sched_ctl.model.policy import NOTHING, Memory, Policy
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import (
    Edge,
    LogicalOperator,
    PhysicalOperator,
    Snapshot,
    Thread,
    Topology,
)
from sched_ctl.telemetry import records

__all__ = [
    "Engine",
    "Lack",
    "Spread",
    "Step",
    "Summary",
    "agreement",
    "beside",
    "replay",
    "topology_of",
    "windows",
]

# counter of a snapshot -> field of a record, and the size of its unit
COUNTERS: Mapping[str, tuple[str, float]] = {
    "tuples_in": ("tuples_in", 1.0),
    "tuples_out": ("tuples_out", 1.0),
    "thread_cpu_time": ("cpu", 1e-6),
    "run_delay": ("wait", 1e-6),
    "busy_time": ("busy", 1e-3),
    "idle_time": ("idle", 1e-3),
    "backpressured_time": ("full", 1e-3),
}
GAUGES: Mapping[str, tuple[str, float]] = {
    "queue_size": ("q", 1.0),
    "head_age": ("age", 1e-3),
    "latency": ("lat", 1e-6),
}


@dataclass(frozen=True, eq=False)
class Step:
    """What the policies would have set at the end of one record.

    labels: n operators with threads. place, nice: policy -> (n,) position, 1 = most urgent and NaN
    where there is no order, and nice value; without the policies that need more than the record
    has. ruled: the policies that were in force.
    """

    engine: str
    t_ms: int
    labels: tuple[str, ...]
    place: Mapping[str, Array]
    nice: Mapping[str, Index]
    ruled: tuple[str, ...]


@dataclass
class Lack:
    """Why a policy is left out of some records: what the first one of these does not have."""

    why: MissingMetric
    records: int = 0


class Engine:
    """Snapshots of one engine, rebuilt from its records. window_s: as the setting `window`."""

    def __init__(self, line: records.Topology, window_s: float) -> None:
        self.topology, self.epoch = topology_of(line), line.epoch
        self._window_s = window_s
        n = len(line.ops)
        self._totals = {name: np.zeros(n) for name in COUNTERS}
        self._history: deque[Snapshot] = deque()  # the first one is the begin of the window

    def add(self, record: records.Record) -> Window | None:
        """The window at the end of the record; None if it does not fit the topology."""
        n = len(self.topology.operators)
        columns = _columns([record], n)
        if columns is None:
            return None
        before = {name: self._totals[name] for name in columns if name in COUNTERS}
        for name in before:
            self._totals[name] = self._totals[name] + np.nan_to_num(columns[name])
            columns[name] = np.where(np.isnan(columns[name]), np.nan, self._totals[name])
        now_s, history = (record.t + record.d) * 1e-3, self._history
        # The clock was set back, or nothing was recorded for a time that no counter tells of.
        if history and (
            now_s < history[-1].time_s or record.t - history[-1].time_s * 1e3 > record.d / 2
        ):
            history.clear()
        if not history:  # the counters at the begin of the first record
            history.append(Snapshot(self.topology, record.t * 1e-3, before))
        while len(history) > 1 and now_s - history[1].time_s >= 0.99 * self._window_s:
            history.popleft()
        now = Snapshot(self.topology, now_s, columns)
        history.append(now)
        return Window(now, history[0])


def beside(topology: Topology, found: Sequence[records.Record]) -> Window:
    """The windows of m records, each for itself, as one of m times the operators, side by side.

    What is worked out of it is that of each record alone, whatever was before it. Queues are taken
    to have been at its begin what they were in its mean. Raises ValueError if one speaks of other
    operators.
    """
    n = len(topology.operators)
    columns = _columns(found, n)
    if columns is None:
        raise ValueError("a record of other operators")
    before = {
        name: column * 0.0 if name in COUNTERS else column for name, column in columns.items()
    }
    lengths = [(r.t + r.d) * 1e-3 - r.t * 1e-3 for r in found]
    many = _times(topology, len(found))
    then, now = Snapshot(many, 0.0, before), Snapshot(many, max(lengths), columns)
    return Window(now, then, lengths=np.repeat(lengths, n))


def _times(topology: Topology, count: int) -> Topology:
    """So many of it side by side; the logical operators are left out."""
    n = len(topology.operators)
    edges = tuple(
        Edge(edge.source + first, edge.target + first, edge.share)
        for first in range(0, count * n, n)
        for edge in topology.edges
    )
    return Topology(topology.engine, topology.operators * count, edges, (), ())


def _columns(found: Sequence[records.Record], n: int) -> dict[str, Array] | None:
    """(m * n,) what m records say of n operators, in base units; None if one speaks of others."""
    columns: dict[str, Array] = {}
    for name, (key, unit) in (*COUNTERS.items(), *GAUGES.items()):
        told = [_idle(r) if key == "idle" else getattr(r, key) for r in found]
        if not any(values is not None for values in told):
            continue
        whole = [[None] * n if values is None else values for values in told]
        if any(len(values) != n for values in whole):
            return None
        columns[name] = np.array(whole, dtype=np.float64).ravel() * unit  # None: NaN
    return columns


def _idle(record: records.Record) -> records.Column:
    """Time without input; what is left of the record's, where that is how it was told."""
    if record.idle is not None or record.busy is None or record.full is None:
        return record.idle
    return [
        None if busy is None or full is None else max(0, record.d - busy - full)
        for busy, full in zip(record.busy, record.full, strict=False)
    ]


def topology_of(line: records.Topology) -> Topology:
    """The topology that a line describes, with stand-ins for the threads.

    Raises ValueError if it contradicts itself.
    """
    n = len(line.ops)
    replica, replicas = line.replica or [0] * n, line.replicas or [1] * n
    threads, away = line.threads or [1] * n, line.away or [0] * n
    logical_of = line.logical_of or [[i] for i in range(n)]
    columns = line.query_of, replica, replicas, threads, away, logical_of
    if {len(column) for column in columns} != {n}:
        raise ValueError("arrays of different lengths")
    logical = line.logical or list(zip(line.query_of, line.ops, strict=True))
    try:
        operators = tuple(
            PhysicalOperator(
                line.queries[line.query_of[i]],
                line.ops[i],
                tuple(logical[row][1] for row in logical_of[i]),
                replica[i],
                replicas[i],
                tuple(Thread(0, 1000 * i + k + 1, 0, line.ops[i]) for k in range(threads[i])),
                away[i] > 0,
            )
            for i in range(n)
        )
        edges = tuple(Edge(*edge) for edge in line.edges)
        above = tuple(Edge(*edge) for edge in line.logical_edges) if line.logical else edges
        made = Topology(
            line.engine,
            operators,
            edges,
            tuple(LogicalOperator(line.queries[query], name) for query, name in logical),
            above,
        )
        _ = made.graph, made.logical_graph
    except IndexError:
        raise ValueError("an index points nowhere") from None
    return made


def windows(
    lines: Iterable[records.Line], window_s: float
) -> Iterator[tuple[records.Record, Window]]:
    """Each record with the window at its end. Records without their topology are left out."""
    engines: dict[str, Engine] = {}
    for line in lines:
        if isinstance(line, records.Topology):
            known = engines.get(line.engine)
            # Each file repeats the topologies: those say nothing new.
            if known is None or known.epoch != line.epoch or known.topology != topology_of(line):
                engines[line.engine] = Engine(line, window_s)
        elif isinstance(line, records.Record):
            engine = engines.get(line.engine)
            if engine is not None and engine.epoch == line.epoch:
                window = engine.add(line)
                if window is not None:
                    yield line, window


def replay(
    lines: Iterable[records.Line],
    policies: Sequence[Policy],
    window_s: float = 5.0,
    missing: dict[str, Lack] | None = None,
) -> Iterator[Step]:
    """Each record under each of the policies that it has enough for.

    missing: gets what records lack, by policy. Raises MissingMetric if all lack something for all.
    """
    missing = {} if missing is None else missing
    resolutions: dict[tuple[str, frozenset[str]], Resolution | None] = {}
    memories: dict[tuple[str, str], Memory] = {}  # by policy and engine
    some = False
    for record, window in windows(lines, window_s):
        place: dict[str, Array] = {}
        nice: dict[str, Index] = {}
        labels: tuple[str, ...] = ()
        provides = frozenset(window.now.columns)
        for policy in policies if window.operators else ():
            key = (policy.name, provides)
            if key not in resolutions:
                resolutions[key] = _resolved(policy, provides, missing)
            resolution, name = resolutions[key], record.engine
            if resolution is None:
                missing[policy.name].records += 1
                continue
            schedule = decide(
                "replay",
                policy,
                {name: window},
                {name: resolution},
                memory=memories.get((policy.name, name), NOTHING),
            )
            memories[policy.name, name] = schedule.memory
            first = np.unique(np.array(schedule.operators), return_index=True)[1]
            first.sort()  # threads of one operator are alike
            labels = tuple(schedule.operators[row] for row in first)
            ages, queues = schedule.head_age_s, schedule.queue_size
            place[policy.name] = positions(schedule.form, ages, queues, policy.spacing)[first]
            nice[policy.name] = _nice_values(schedule)[first]
        if place:
            some = True
            ruled = tuple(dict.fromkeys(record.policy))
            yield Step(record.engine, record.t + record.d, labels, place, nice, ruled)
    if missing and not some:
        raise next(iter(missing.values())).why


def _resolved(
    policy: Policy, provides: frozenset[str], missing: dict[str, Lack]
) -> Resolution | None:
    """How to get what a policy needs; None: not of such records. Engines may tell nothing yet."""
    try:
        return resolve(
            policy.needs,
            provides,
            policy=policy.name,
            engine="the recording",
            wants=policy.wants,
        )
    except MissingMetric as error:
        missing.setdefault(policy.name, Lack(error))
        return None


def _nice_values(schedule: Schedule) -> Index:
    """(m,) what `load` sets at first in threads that have nice 0 and all want a CPU.

    Shares of groups are left out: how they are kept depends on the backend.
    """
    options = NiceOptions()
    below = nice_levels(schedule, *options.range, math.nan)
    own, demand = np.zeros(len(below)), np.ones(len(below))
    levels = with_weight_kept(below, own, demand, options.best, options.worst)
    return np.where(np.abs(levels) > options.dead_band, np.rint(levels), own).astype(np.intp)


@dataclass
class Spread:
    """Numbers, one after the other, of which none is kept."""

    count: int = 0
    total: float = 0.0
    least: float = math.inf
    most: float = -math.inf

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.least, self.most = min(self.least, value), max(self.most, value)

    @property
    def mean(self) -> float:
        """NaN of none."""
        return self.total / self.count if self.count else math.nan


@dataclass
class Summary:
    """What steps have in common, with `names` of policies, the first of which others are beside.

    nice: engine and operator -> policy -> nice values. alike: policy -> `agreement` with the first.
    tried: policies that are in some step.
    """

    names: Sequence[str]
    steps: int = 0
    from_ms: int = 0
    to_ms: int = 0
    nice: dict[tuple[str, str], dict[str, Spread]] = field(default_factory=dict)
    alike: dict[str, Spread] = field(default_factory=dict)
    tried: set[str] = field(default_factory=set)

    def add(self, step: Step) -> None:
        self.from_ms = min(self.from_ms, step.t_ms) if self.steps else step.t_ms
        self.to_ms, self.steps = max(self.to_ms, step.t_ms), self.steps + 1
        for label in step.labels:
            self.nice.setdefault((step.engine, label), {name: Spread() for name in self.names})
        self.tried |= step.nice.keys()
        one = step.place.get(self.names[0])
        for name, values in step.nice.items():
            for label, value in zip(step.labels, values.tolist(), strict=True):
                self.nice[step.engine, label][name].add(value)
            alike = math.nan if one is None else agreement(one, step.place[name])
            if not math.isnan(alike):
                self.alike.setdefault(name, Spread()).add(alike)


def agreement(one: Array, other: Array) -> float:
    """Share of the pairs of operators that two orders put alike; NaN if either orders none.

    A pair that only one of them puts equal counts half.
    """
    known = ~(np.isnan(one) | np.isnan(other))
    a, b = one[known], other[known]
    if len(a) < 2:
        return float("nan")
    rows, columns = np.triu_indices(len(a), 1)
    left, right = np.sign(a[rows] - a[columns]), np.sign(b[rows] - b[columns])
    return float(np.mean(1.0 - np.abs(left - right) / 2))
