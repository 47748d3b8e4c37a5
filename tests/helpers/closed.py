"""Closed loops in the simulator: a race or a guard sees what its orders do to queues, and decides.

One CPU under EEVDF, a thread an operator, orders as nice values: made once a second, and in force
`late_s` after that. What the engine tells is `lag_s` old. A twin run has the same tuples under the
system's own scheduling alone, so that each phase can be compared with what would have been.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from sched_ctl.config.settings import Section
from sched_ctl.controller.rule import make_policy
from sched_ctl.metrics import feasibility
from sched_ctl.metrics.catalogue import evaluate, resolve
from sched_ctl.metrics.feasibility import Judgement
from sched_ctl.metrics.window import Window
from sched_ctl.model.graph import Array
from sched_ctl.model.policy import OperatorFrame
from sched_ctl.model.targets import Target
from sched_ctl.model.topology import Latencies, Snapshot, Topology
from sched_ctl.plugins import registry
from sched_ctl.sim import Node, Setting, of_workload
from sched_ctl.sim.library import RESULTS, Machine
from sched_ctl.sim.result import quantile
from sched_ctl.sim.run import _nice_weights, _values, _Watch
from sched_ctl.workloads.workload import OperatorSpec, QuerySpec, SourceSpec, Stream, Workload

OS = "os"
WINDOW_S = 5  # over which rates and costs are means, where the policy goes by targets
LOOKS = 20  # a second, at who waits
EACH, MOST = 8, 400  # buckets of the simulator that the engine tells as one, so many in all
LOW_S = np.array([2.0 ** (at // 8 - 34) * (1 + at % 8 / 8) for at in range(MOST)])
Load = Callable[[float], float]  # time, s -> multiple of the usual rates
Costs = Callable[[float], Array]  # time, s -> (n,) CPU s a tuple


class Counts(NamedTuple):
    """Since the start: (q,) tuples that came, that left, the sum of their latencies; (q, b) in
    buckets of the simulator."""

    came: Array
    left: Array
    total_s: Array
    buckets: Array


def queries(seed: int, load: float, count: int = 6, unit_s: float = 5e-4) -> Node:
    """Chains of three, of costs from one to eight units, that need the same share of the CPU."""
    random = np.random.default_rng([seed, 28])
    made = []
    for number in range(count):
        names = [f"q{number}-{at}" for at in range(3)]
        costs, parts = 2.0 ** random.integers(0, 4, 3), random.uniform(0.4, 1.0, 3)
        specs = tuple(
            OperatorSpec(name=n, cost=float(c), selectivity=float(s))
            for n, c, s in zip(names, costs, parts, strict=True)
        )
        path = costs[0] + costs[1] * parts[0] + costs[2] * parts[0] * parts[1]
        links = tuple(Stream(a, b) for a, b in pairwise(names))
        made.append(QuerySpec(f"q{number}", specs, links, (SourceSpec(names[0], 1.0 / path),)))
    node = of_workload(Workload("closed", tuple(made)), load, base_cost_s=unit_s)
    # A target that all keep: what has one is counted by itself.
    return replace(
        node, targets=tuple(Target(queries=(q,), latency="1h") for q in node.topology.queries)
    )


def with_times(node: Node, duration_s: float, seed: int, load: Load) -> Node:
    """Poisson arrivals whose rate follows the load."""
    grid = np.arange(0.0, duration_s + 0.1, 0.1)
    whole = np.concatenate([[0.0], np.cumsum([load(t) * 0.1 for t in grid[:-1]])])
    random = np.random.default_rng([seed, 29])
    streams = []
    for stream in node.streams:
        wanted = stream.rate * whole[-1]
        gaps = random.exponential(1 / stream.rate, int(wanted + 10 * math.sqrt(wanted) + 10))
        due = np.cumsum(gaps)
        times = np.interp(due[due < whole[-1]], whole, grid)
        streams.append(replace(stream, times=np.asarray(times)))
    return replace(node, streams=tuple(streams))


@dataclass
class Loop:
    """What is run. orders: (n,) weights by name, besides the policies, whose `options` may be
    given. noise: of what the engine tells, in the logarithm, for as long as `noisy_s`. restart_s:
    when the engine starts again. mute_s: from when on it tells no latencies. targets: those of
    `deadline`.
    """

    node: Node
    duration_s: float
    seed: int = 1
    costs: Costs | None = None
    orders: Mapping[str, Array] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    noise: float = 0.0
    noisy_s: float = 10.0
    late_s: float = 0.0
    lag_s: float = 0.0
    restart_s: float = -1.0
    mute_s: float = math.inf
    targets: tuple[Target, ...] = ()
    now_s: float = 0.0
    topology: Topology = field(init=False)
    counts: list[Counts] = field(default_factory=list)
    enforced: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topology = self.node.topology
        self._setting = Setting(
            scheduler="os", duration_s=self.duration_s, warm_s=0.0, seed=self.seed
        )
        streams = [s.times for s in self.node.streams if s.times is not None]
        self._machine = Machine(_values(self.node, None, self._setting, streams, False))
        self._watch = _Watch(self.node, self._setting)
        self._random = np.random.default_rng([self.seed, 30])
        self._factor = np.ones(len(self.topology.queries))
        self._told_s = np.zeros(len(self.topology.queries))
        self._told: deque[Snapshot] = deque()
        self._known: deque[Snapshot] = deque(maxlen=WINDOW_S + 1)
        self.stood: Mapping[feasibility.Query, Judgement] = {}
        self._waiting: deque[tuple[float, Array]] = deque()
        self._memory: dict[str, Mapping[tuple[str, str], float]] = {}
        self._now = self._columns()
        self.pressure = 0.0  # share of time in which some operator waits for another
        self._since_columns = self._now
        self._count()
        self._since = self.counts[-1]

    def close(self) -> None:
        self._machine.close()

    def step(self, name: str) -> Window:
        """A second under this order. What the engine tells at its end."""
        weights = self.weights(name)
        self._waiting.append((self.now_s + self.late_s, weights))
        while self._waiting and self._waiting[0][0] <= self.now_s:
            self._machine.set_weights(self._waiting.popleft()[1])
        if self.costs is not None:
            self._machine.set_costs(self.costs(self.now_s))
            # The controller knows what it measured in the last second.
            self._watch.node = replace(self.node, cost_s=self.costs(max(0.0, self.now_s - 1.0)))
        if self.now_s == self.restart_s:
            self._restart()
        waits = 0
        for part in range(1, LOOKS + 1):
            self._machine.run(self.now_s + part / LOOKS)
            waits += int(np.count_nonzero(self._machine.observe()[0]) > 1)
        self.pressure = waits / LOOKS
        self.now_s += 1.0
        self.enforced.append(name)
        self._count()
        self._told.append(self._snapshot())
        while len(self._told) > 1 and self._told[1].time_s <= self.now_s - self.lag_s:
            self._told.popleft()
        self._known.append(self._told[0])
        return Window(self._told[0])

    def weights(self, name: str) -> Array:
        """(n,) 1024 = nice 0, by the queues of now."""
        queues = self._watch.look(self._machine)
        by_targets = self._by_targets(queues) if self.targets else None  # it judges them anyway
        if name == OS:
            return np.full(self.node.n, 1024.0)
        if name in self.orders:
            return self.orders[name]
        if name == "deadline" and by_targets is not None:
            return by_targets
        policy = registry.policy(name, dict(self.options.get(name, {})))
        use, busy = (self._now[c] - self._before[c] for c in ("cpu", "occupied"))
        frame = self._watch.node.frame(policy, self.now_s, queues)
        told = {"cpu_use": use, "utilisation": np.minimum(busy, 1.0)}
        frame = replace(frame, columns={**frame.columns, **told}, memory=self._memory)
        form = policy.urgency(frame)
        self._memory = {k: remember(frame, self.now_s) for k, remember in policy.remembers.items()}
        return _nice_weights(self._watch, policy, form, self._setting, queues)

    def _by_targets(self, queues: tuple[Array, Array]) -> Array:
        """What the controller makes of targets, by what the engine told: rates and costs too."""
        policy = make_policy(Section(policy="auto", target=self.targets), "nice")
        if not self._known or self._known[-1].topology is not self.topology:
            return np.full(self.node.n, 1024.0)
        now, then = self._known[-1], self._known[0]
        size, age = queues
        now = replace(now, columns={**now.columns, "queue_size": size, "head_age": age})
        window = Window(now, then if then is not self._known[-1] else None)
        resolution = resolve(
            policy.needs, now.columns, policy="auto", engine="sim", wants=policy.wants
        )
        engines = (self.topology.engine,)
        operators, graph = self.topology.operators, self.topology.graph
        frame = OperatorFrame(operators, graph, evaluate(resolution, window), engines=engines)
        self.stood = feasibility.judge(frame, engines, self.targets, 1.0, self.stood)
        told = feasibility.tell(frame, engines, self.stood)
        form = policy.urgency(replace(frame, columns={**frame.columns, **told}))
        return _nice_weights(self._watch, policy, form, self._setting, queues)

    def within(self, query: str, latency_s: float, since: int = 0, until: int = -1) -> float:
        """Share of the tuples of a query that left between these seconds within the latency."""
        row = self.topology.queries.index(query)
        counts = (self.counts[until].buckets - self.counts[since].buckets)[row]
        counts = counts[: MOST * EACH].reshape(-1, EACH).sum(axis=1)[:MOST]
        return float(counts[latency_s > LOW_S].sum() / counts.sum())

    def _restart(self) -> None:
        """What the engine counted begins anew, and it is another topology."""
        self.topology, self._since = replace(self.topology), self.counts[-1]
        self._since_columns, self._told_s = self._now, np.zeros(len(self._told_s))
        self._told.clear()
        self._known.clear()

    def _columns(self) -> dict[str, Array]:
        table = self._machine.arrays["results"]
        return {name: table[:, at].copy() for at, name in enumerate(RESULTS)}

    def _by_query(self, column: Array) -> Array:
        return np.bincount(self.node.query_of, column, len(self.topology.queries)).astype(
            np.float64
        )

    def _count(self) -> None:
        graph, columns = self.node.topology.graph, self._columns()
        self._before, self._now = self._now, columns
        came = self._by_query(np.where(graph.ingress, columns["done"], 0.0))
        histogram = self._machine.arrays["response_histogram"][1:].astype(np.float64)
        self.counts.append(
            Counts(
                came,
                self._by_query(columns["departed"]),
                self._by_query(columns["response"]),
                histogram,
            )
        )

    def _snapshot(self) -> Snapshot:
        if self.now_s % self.noisy_s < 1.0:
            self._factor = np.exp(self._random.normal(0, self.noise, len(self._factor)))
        now, before = self.counts[-1], self.counts[-2]
        self._told_s = self._told_s + (now.total_s - before.total_s) * self._factor
        rows = np.flatnonzero(self.node.topology.graph.egress)
        first = rows[np.unique(self.node.query_of[rows], return_index=True)[1]]
        counts = (now.buckets - self._since.buckets).reshape(len(first), -1, EACH)
        counts = counts.sum(axis=2)[:, :MOST]
        columns = {
            **{
                told: self._now[name] - self._since_columns[name]
                for told, name in (
                    ("tuples_in", "done"),
                    ("tuples_out", "out"),
                    ("cpu_time", "cpu"),
                )
            },
            "queue_size": self._machine.observe()[0],
        }
        latencies = Latencies(first, now.left - self._since.left, self._told_s, LOW_S, counts)
        return Snapshot(
            self.topology,
            self.now_s,
            MappingProxyType(columns),
            latencies=latencies if self.now_s < self.mute_s else None,
        )


class Beside(NamedTuple):
    """A stretch of time beside the same under the system's own: ratios, above 1 = worse."""

    mean: float
    p50: float
    p99: float
    lost: float


def beside(ours: Loop, own: Loop, since: int, until: int) -> Beside:
    """Of whole seconds; geometric means over the queries."""
    (a, b), (c, d) = ((run.counts[since], run.counts[until]) for run in (ours, own))
    with np.errstate(all="ignore"):
        means = ((b.total_s - a.total_s) / (b.left - a.left)) / (
            (d.total_s - c.total_s) / (d.left - c.left)
        )
    parts = [
        [quantile((y.buckets[q] - x.buckets[q]).astype(np.int64), part) for q in range(len(a.left))]
        for part in (0.5, 0.99)
        for x, y in ((a, b), (c, d))
    ]
    p50, p99 = (np.array(parts[i]) / np.array(parts[i + 1]) for i in (0, 2))
    lost = (d.came - c.came).sum() / (b.came - a.came).sum()
    return Beside(_middle(means), _middle(p50), _middle(p99), float(lost))


def _middle(ratios: Array) -> float:
    known = ratios[np.isfinite(ratios) & (ratios > 0)]
    return float(np.exp(np.log(known).mean())) if len(known) else math.nan


def longest(bad: Sequence[bool]) -> int:
    return max((len(list(run)) for is_bad, run in groupby(bad) if is_bad), default=0)
