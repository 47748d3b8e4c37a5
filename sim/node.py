"""What is simulated: the operators of a node as arrays, and the streams that feed them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from sched_ctl.errors import UserError
from sched_ctl.metrics import catalogue as metrics
from sched_ctl.metrics.backlog import SEEN_BY
from sched_ctl.model.graph import Array, Index
from sched_ctl.model.patterns import names_of
from sched_ctl.model.policy import OperatorFrame, Policy
from sched_ctl.model.targets import Target, target_of
from sched_ctl.model.topology import Edge, LogicalOperator, PhysicalOperator, Snapshot, Topology
from sched_ctl.workloads.demand import cpu_demand, rate_scale
from sched_ctl.workloads.workload import Arrivals, OperatorSpec, Workload

__all__ = ["Node", "Stream", "of_snapshot", "of_workload"]


@dataclass(frozen=True, eq=False)
class Stream:
    """Arrivals that several ingress operators (rows) see at once, each its own copy."""

    rows: tuple[int, ...]
    rate: float  # tuples/s
    arrivals: Arrivals = field(default_factory=Arrivals)
    times: Array | None = None  # instead of draws


@dataclass(frozen=True, eq=False)
class Node:
    """Operators and streams. Columns are (n,) over `topology.operators`.

    cost_s: CPU time a tuple. selectivity: output tuples per input tuple; of a window join
    (window_s > 0), the chance that two tuples within the window join.
    forced: row -> outputs of its first, second, ... input, instead of draws.
    told: time -> columns of what an engine tells of other nodes by then: `arrival_age`, for one.
    measured: costs and rates are those of an engine. targets: that its queries are to keep.
    """

    name: str
    topology: Topology
    cost_s: Array
    selectivity: Array
    block_probability: Array
    block_max_s: Array
    window_s: Array
    streams: tuple[Stream, ...]
    classes: Mapping[str, str] = field(default_factory=dict)  # query -> class
    folder: Path = Path()
    forced: Mapping[int, Sequence[int]] = field(default_factory=dict)
    told: Callable[[float], Mapping[str, Array]] | None = None
    measured: bool = False
    targets: tuple[Target, ...] = ()

    @property
    def n(self) -> int:
        return len(self.topology.operators)

    @cached_property
    def _rates(self) -> tuple[Array, Array]:
        """(n,) tuples/s that come in, and that go out, if there is CPU enough.

        A join of window V over inputs of l and r tuples/s puts out 2 s l r V (AQSIOS, section 5).
        """
        graph = self.topology.graph
        rate = np.zeros(self.n)
        product = np.ones(self.n)  # of the inputs, for joins
        for stream in self.streams:
            rate[list(stream.rows)] += stream.rate
        out = np.zeros(self.n)
        for operators, _ in graph.levels[::-1]:
            joined = 2 * self.window_s[operators] * product[operators]
            out[operators] = self.selectivity[operators] * np.where(
                self.window_s[operators] > 0, joined, rate[operators]
            )
            edges = np.flatnonzero(np.isin(graph.source, operators))
            flow = graph.share[edges] * out[graph.source[edges]]
            np.add.at(rate, graph.target[edges], flow)
            np.multiply.at(product, graph.target[edges], flow)
        return rate, out

    @property
    def input_rate(self) -> Array:
        return self._rates[0]

    @property
    def output_rate(self) -> Array:
        return self._rates[1]

    @cached_property
    def mean_selectivity(self) -> Array:
        """(n,) output tuples per input tuple, also of joins."""
        with np.errstate(all="ignore"):
            ratio = self.output_rate / self.input_rate
        return np.where(np.isfinite(ratio), ratio, self.selectivity)

    @cached_property
    def demand(self) -> float:
        """CPU seconds per second that the operators need."""
        return float(np.sum(self.input_rate * self.cost_s))

    def snapshot(self, time_s: float, queue_size: Array, head_age_s: Array) -> Snapshot:
        """What a driver would report: the true costs and selectivities, measured queues.

        head_age_s: (n,) since the oldest tuple came to this node.
        """
        told = {} if self.told is None else dict(self.told(time_s))
        if "arrival_age" in told:
            head_age_s = np.where(queue_size > 0, head_age_s + told["arrival_age"], head_age_s)
        return Snapshot(
            self.topology,
            time_s,
            MappingProxyType(
                {
                    "cost": self.cost_s,
                    "selectivity": self.mean_selectivity,
                    "input_rate": self.input_rate,
                    "output_rate": self.output_rate,
                    "window": self.window_s,
                    "queue_size": queue_size,
                    "head_age": head_age_s,
                    **told,
                }
            ),
        )

    def frame(
        self, policy: Policy, time_s: float = 0.0, queues: tuple[Array, Array] | None = None
    ) -> OperatorFrame:
        """What the policy gets to see. queues: (n,) queue sizes, (n,) head ages.

        Nobody is heavy: how much is used depends on the run.
        """
        size, age = queues or (np.zeros(self.n), np.zeros(self.n))
        snapshot = self.snapshot(time_s, size, age)
        resolution = metrics.resolve(
            policy.needs,
            snapshot.columns,
            policy=policy.name,
            engine="the simulator",
            wants=policy.wants - SEEN_BY,
        )
        columns = metrics.evaluate(resolution, metrics.Window(snapshot))
        return OperatorFrame(
            self.topology.operators, self.topology.graph, columns, engines=(self.topology.engine,)
        )

    @cached_property
    def targeted(self) -> Mapping[str, Target]:
        """Query -> its target, of those that have one."""
        engine = self.topology.engine
        found = {q: target_of(self.targets, *names_of(engine, q)) for q in self.topology.queries}
        return {query: target for query, target in found.items() if target is not None}

    @cached_property
    def query_of(self) -> Index:
        """(n,) index into `topology.queries`."""
        index = {query: i for i, query in enumerate(self.topology.queries)}
        return np.array([index[o.query] for o in self.topology.operators], dtype=np.intp)


def of_workload(
    workload: Workload,
    utilisation: float,
    *,
    cpus: float = 1.0,
    base_cost_s: float | None = None,
    rate: float | None = None,
    common: bool = False,
    folder: Path = Path(),
) -> Node:
    """The node that runs a workload at a utilisation (CPU demand over CPUs).

    base_cost_s: CPU seconds of a cost of 1; else the workload's own. rate: tuples/s of a source of
    rate 1; the costs are then scaled to the utilisation instead of the rates. common: all queries
    see the same stream (that of the first source).
    """
    if rate is not None:
        base_cost_s = _cost_for_rate(workload, utilisation, cpus, rate)
        scale = rate
    else:
        base_cost_s = base_cost_s or workload.base_cost_s
        scale = rate_scale(workload, utilisation, cpus, base_cost_s)
    operators: list[PhysicalOperator] = []
    specs: list[OperatorSpec] = []
    edges: list[Edge] = []
    streams: list[Stream] = []
    for query in workload.queries:
        rows = {spec.name: len(specs) + i for i, spec in enumerate(query.operators)}
        specs += query.operators
        operators += [PhysicalOperator(query.name, o.name, (o.name,)) for o in query.operators]
        edges += [Edge(rows[s.source], rows[s.target], s.share) for s in query.streams]
        streams += [
            Stream((rows[source.operator],), scale * source.rate, source.arrivals)
            for source in query.sources
        ]
    if common and streams:
        if len({stream.rate for stream in streams}) > 1:
            raise UserError(
                f"workload {workload.name}: sources of different rates cannot see one stream",
                "give all its sources the same rate=, or leave out --common-stream",
            )
        rows_of_all = tuple(row for stream in streams for row in stream.rows)
        streams = [replace(streams[0], rows=rows_of_all)]
    return Node(
        workload.name,
        _topology(workload.name, operators, edges),
        base_cost_s * np.array([spec.cost for spec in specs]),
        np.array([spec.selectivity for spec in specs]),
        np.array([spec.block_probability for spec in specs]),
        np.array([spec.block_max_s for spec in specs]),
        np.array([spec.window_s for spec in specs]),
        tuple(streams),
        {query.name: query.klass for query in workload.queries if query.klass},
        folder,
    )


def of_snapshot(snapshot: Snapshot, utilisation: float | None = None, cpus: float = 1.0) -> Node:
    """The node that an engine's snapshot was taken from: measured costs, rates and selectivities.

    utilisation: scale all rates to this load; None: as measured. Operators that run on other nodes
    are left out. What these send comes from a stream: what came to an operator, less what those
    before it send that run here. What goes to them is not followed; an operator whose results all
    go there is an egress. Raises UserError where the engine did not report enough, or runs nothing
    here.
    """
    whole = snapshot.topology
    wanted = ["cost", "selectivity", "input_rate"]
    resolution = metrics.resolve(
        wanted, snapshot.columns, policy="(simulation)", engine=whole.engine
    )
    columns = metrics.evaluate(resolution, metrics.Window(snapshot))
    if whole.graph.cyclic:
        raise UserError(f"the queries of {whole.engine} have a cycle")
    here = ~whole.away
    if not here.any():
        raise UserError(
            f"no operator of {whole.engine} runs on the node where the snapshot was taken",
            "take it on a node that runs some",
        )
    topology, fed = _of_here(whole)
    cost, selectivity, rate = (columns[name][here] for name in wanted)
    for name, lacking in (
        ("cost", np.isnan(cost)),
        ("selectivity", np.isnan(selectivity)),
        ("input_rate", np.isnan(rate) & fed),
    ):
        if lacking.any():
            first = topology.operators[int(np.flatnonzero(lacking)[0])].label
            raise UserError(
                f"{name} of {first} is unknown in this snapshot of {topology.engine}",
                "record it again while tuples flow through all operators",
            )
    outside = _from_outside(topology, fed, rate, selectivity)
    streams = tuple(Stream((int(row),), float(outside[row])) for row in np.flatnonzero(fed))
    zeros = np.zeros(len(rate))
    node = Node(
        topology.engine, topology, cost, selectivity, zeros, zeros, zeros, streams, measured=True
    )
    if node.demand <= 0:
        raise UserError(f"nothing flowed through {topology.engine} when the snapshot was taken")
    if utilisation is None:
        return node
    factor = utilisation * cpus / node.demand
    scaled = tuple(replace(stream, rate=stream.rate * factor) for stream in streams)
    return replace(node, streams=scaled)


def _of_here(whole: Topology) -> tuple[Topology, npt.NDArray[np.bool_]]:
    """What runs on this node, and (n,) which of its operators are fed from outside."""
    here = ~whole.away
    graph = whole.graph
    fed = graph.ingress.copy()
    fed[graph.target[whole.away[graph.source]]] = True
    if here.all():
        return whole, fed
    row = np.cumsum(here) - 1
    edges = tuple(
        Edge(int(row[edge.source]), int(row[edge.target]), edge.share)
        for edge in whole.edges
        if here[edge.source] and here[edge.target]
    )
    operators = tuple(o for o in whole.operators if not o.away)
    return replace(whole, operators=operators, edges=edges, helpers=()), fed[here]


def _from_outside(
    topology: Topology, fed: npt.NDArray[np.bool_], rate: Array, selectivity: Array
) -> Array:
    """(n,) tuples/s that do not come from operators of this node. rate: (n,) what came in all."""
    graph = topology.graph
    outside, flow = np.zeros(graph.n), np.zeros(graph.n)
    for operators, edges in graph.reversed.levels:
        source, target = graph.source[edges], graph.target[edges]
        np.add.at(flow, target, graph.share[edges] * selectivity[source] * flow[source])
        mine = operators[fed[operators]]
        outside[mine] = np.maximum(rate[mine] - flow[mine], 0.0)
        flow[mine] += outside[mine]
    return outside


def _topology(name: str, operators: list[PhysicalOperator], edges: list[Edge]) -> Topology:
    logical = tuple(LogicalOperator(o.query, o.name) for o in operators)
    return Topology(f"sim:{name}", tuple(operators), tuple(edges), logical, tuple(edges))


def _cost_for_rate(workload: Workload, utilisation: float, cpus: float, rate: float) -> float:
    demand = cpu_demand(workload, rate)
    if not (rate > 0 and utilisation > 0):
        raise UserError(f"rate {rate:g} and utilisation {utilisation:g} must be above 0")
    return utilisation * cpus / demand
