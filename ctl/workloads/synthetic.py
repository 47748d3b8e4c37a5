"""Workloads drawn at random, as in Haren's evaluation (Palyvos-Giannas et al. 2019, section 6)."""

import math
from itertools import pairwise
from random import Random

from sched_ctl.workloads.demand import cpu_demand
from sched_ctl.workloads.workload import (
    Arrivals,
    OperatorSpec,
    QuerySpec,
    SourceSpec,
    Stream,
    Workload,
)

__all__ = ["multi", "syn"]


def _chain(
    random: Random, name: str, length: int, selectivity: float, exponent: int
) -> tuple[tuple[OperatorSpec, ...], tuple[Stream, ...]]:
    """A chain as Palyvos-Giannas et al. 2019 (Haren) make them, section 6.1."""
    operators = tuple(
        OperatorSpec(
            name=f"{name}-{step}",
            cost=round(2**exponent * random.uniform(0.9, 1.1), 4),
            selectivity=round(
                min(1.0, math.exp(math.log(selectivity) / length) * random.uniform(0.9, 1.1)), 4
            ),
        )
        for step in range(length)
    )
    streams = tuple(Stream(a.name, b.name) for a, b in pairwise(operators))
    return operators, streams


def syn(seed: int, queries: int = 20, length: int = 5) -> Workload:
    """The synthetic chains of Haren (DEBS 2019): selectivity of a query uniform in [0.01, 1],
    cost of its operators `2^z +- 10%`, z uniform in 0..4. All sources have the same rate.
    """
    random = Random(seed)
    made = []
    for number in range(queries):
        name = f"q{number:02}"
        operators, streams = _chain(
            random, name, length, random.uniform(0.01, 1), random.randrange(5)
        )
        made.append(QuerySpec(name, operators, streams, (SourceSpec(operators[0].name),)))
    return Workload("syn", tuple(made))


def multi(seed: int, high: int = 3, low: int = 10) -> Workload:
    """Haren's two classes: few bursty HIGH queries (30% of the load, on a quarter of the time)
    beside steady LOW ones of all costs and selectivities (70%).
    """
    random = Random(seed)
    made = []
    for number in range(high + low):
        klass = "high" if number < high else "low"
        name = f"{klass}{number if number < high else number - high:02}"
        selectivity, exponent = random.uniform(0.01, 1), random.randrange(5)
        if klass == "high":
            selectivity, exponent = 0.5, 1
        operators, streams = _chain(random, name, 5, selectivity, exponent)
        bare = QuerySpec(name, operators, streams, (SourceSpec(operators[0].name),), klass)
        demand = cpu_demand(Workload("", (bare,)), 1.0)
        share = 0.3 / high if klass == "high" else 0.7 / low
        arrivals = Arrivals("onoff", 0.06, 0.18) if klass == "high" else Arrivals()
        source = SourceSpec(operators[0].name, round(100 * share / demand, 6), arrivals)
        made.append(QuerySpec(name, operators, streams, (source,), klass))
    return Workload("multi", tuple(made))
