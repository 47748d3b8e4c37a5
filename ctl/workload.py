"""Workload files: queries as graphs, for the lab engine, the simulator and the benchmarks.

Costs are relative to a base cost, arrival rates to the rate that makes the busiest resource
busy all the time, so one file serves every load.
"""

from dataclasses import dataclass

__all__ = ["Arrivals", "OperatorSpec", "QuerySpec", "SourceSpec", "Stream", "Workload"]


@dataclass(frozen=True, slots=True)
class OperatorSpec:
    """cost: CPU time a tuple, in base costs. selectivity: output tuples per input tuple.

    block_probability: chance that a tuple blocks the operator, for up to block_max_s seconds
    (uniform). window_s: > 0 makes it a symmetric hash join over its (two) inputs.
    """

    name: str
    cost: float
    selectivity: float = 1.0
    block_probability: float = 0.0
    block_max_s: float = 0.0
    window_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Stream:
    """An edge: producer and consumer by name, and the share of the producer's output it takes."""

    source: str
    target: str
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """kind: "constant", "poisson", "onoff" or "trace".

    on_s, off_s: mean lengths of On and Off periods (rate is 0 in Off; the mean over both is the
    source's rate). shape: > 0 makes them Pareto with this shape, 0 exponential.
    """

    kind: str = "poisson"
    on_s: float = 0.0
    off_s: float = 0.0
    shape: float = 0.0
    trace: str = ""


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """Feeds the ingress `operator`. rate: relative to the other sources of the workload."""

    operator: str
    rate: float = 1.0
    arrivals: Arrivals = Arrivals()


@dataclass(frozen=True, slots=True)
class QuerySpec:
    name: str
    operators: tuple[OperatorSpec, ...]
    streams: tuple[Stream, ...]
    sources: tuple[SourceSpec, ...]
    klass: str = ""  # priority class, for multi-class policies


@dataclass(frozen=True, slots=True)
class Workload:
    """base_cost_s: CPU seconds of a cost of 1, unless the run says otherwise."""

    name: str
    queries: tuple[QuerySpec, ...]
    base_cost_s: float = 50e-6
