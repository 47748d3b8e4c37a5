"""What a workload asks for: tuple rates of its operators, CPU time, the rate for a utilisation."""

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from sched_ctl.errors import UserError

if TYPE_CHECKING:  # `workload` checks with `cpu_demand` what it has read
    from sched_ctl.workloads.workload import QuerySpec, Stream, Workload

__all__ = ["cpu_demand", "rate_scale", "tuple_rates", "upstream_first"]


def upstream_first(names: Iterable[str], streams: Iterable[tuple[str, str]]) -> list[str]:
    """The operators in an order in which each comes after all that feed it.

    streams: producer and consumer. Who is on a cycle, or below one, is left out.
    """
    missing = dict.fromkeys(names, 0)
    downstream: dict[str, list[str]] = {name: [] for name in missing}
    for producer, consumer in streams:
        missing[consumer] += 1
        downstream[producer].append(consumer)
    ready = [name for name, count in missing.items() if not count]
    for name in ready:  # which grows meanwhile
        for consumer in downstream[name]:
            missing[consumer] -= 1
            if not missing[consumer]:
                ready.append(consumer)
    return ready


def tuple_rates(query: "QuerySpec", scale: float) -> dict[str, float]:
    """Input tuples/s of each operator when each source emits `scale * rate` tuples/s.

    A join of window V and pair selectivity s over inputs of l and r tuples/s emits
    `2 s l r V` tuples/s (Sharaf et al. 2006, section 5).
    """
    downstream: dict[str, list[Stream]] = {op.name: [] for op in query.operators}
    inputs: dict[str, list[float]] = {op.name: [] for op in query.operators}
    for stream in query.streams:
        downstream[stream.source].append(stream)
    for source in query.sources:
        inputs[source.operator].append(scale * source.rate)
    by_name = {op.name: op for op in query.operators}
    for name in upstream_first(inputs, ((s.source, s.target) for s in query.streams)):
        op = by_name[name]
        rate = sum(inputs[name])
        if op.window_s > 0:
            rate = 2 * op.window_s * math.prod(inputs[name])
        for stream in downstream[name]:
            inputs[stream.target].append(rate * op.selectivity * stream.share)
    return {name: sum(rates) for name, rates in inputs.items()}


def cpu_demand(workload: "Workload", scale: float) -> float:
    """Base costs per second that all operators together need at `scale`."""
    return sum(
        rates[op.name] * op.cost
        for query in workload.queries
        for rates in (tuple_rates(query, scale),)
        for op in query.operators
    )


def rate_scale(
    workload: "Workload", utilisation: float, cpus: float = 1.0, base_cost_s: float | None = None
) -> float:
    """Tuples/s of a source of rate 1 at which the operators need `utilisation * cpus` CPUs."""
    if not (0 < utilisation <= 1000 and 0 < cpus <= 100_000):
        raise UserError(f"utilisation {utilisation:g} on {cpus:g} CPUs is out of range")
    demand = utilisation * cpus / (base_cost_s or workload.base_cost_s)
    high = 1.0
    while cpu_demand(workload, high) < demand:
        high *= 2
    # Joins make the demand grow faster than the rate, so it is searched, not divided.
    if not any(op.window_s for query in workload.queries for op in query.operators):
        return demand / cpu_demand(workload, 1.0)
    return _bisect(lambda scale: cpu_demand(workload, scale) - demand, 0.0, high)


def _bisect(function: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(200):
        middle = (low + high) / 2
        if function(middle) < 0:
            low = middle
        else:
            high = middle
    return high
