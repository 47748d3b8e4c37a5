"""Columns of physical and logical operators from each other, each operator by itself.

Random fusions and fissions: a chain of logical operators is cut into fused ones, each of which has
one or several replicas.
"""

import math
import random

import numpy as np
import pytest

from sched_ctl.metrics.levels import most_urgent, to_logical, to_physical
from sched_ctl.model.graph import Array
from sched_ctl.model.policy import UrgencyForm
from sched_ctl.model.topology import LogicalOperator, PhysicalOperator, Topology

OF_TIME = {"idle_time", "backpressured_time", "busy"}
LARGEST, MEAN = {"head_age", "latency"}, {"tuple_size", "cost", "selectivity"} | OF_TIME
FIRST, ALIKE = {"queue_size", "head_age"}, {"tuples_in", "latency", "tuple_size"} | OF_TIME
METRICS = sorted(LARGEST | MEAN | FIRST | ALIKE | {"tuples_out", "cpu_time", "busy_time"})


def fused(draw: random.Random) -> Topology:
    """Ten logical operators, one of which nobody runs, in chains of one to three, replicated."""
    names = [f"o{i}" for i in range(10)]
    operators: list[PhysicalOperator] = []
    at = 0
    while at < len(names) - 1:
        chain = tuple(names[at : at + draw.randint(1, 3)][: len(names) - 1 - at])
        at += len(chain)
        replicas = draw.choice((1, 1, 2, 3))
        operators += [
            PhysicalOperator("q", f"{'+'.join(chain)}/{i}", chain, i, replicas)
            for i in range(replicas)
        ]
    operators.append(PhysicalOperator("q", "helper", ()))
    logical = tuple(LogicalOperator("q", name) for name in names)
    return Topology("e", tuple(operators), (), logical, ())


def column(draw: random.Random, n: int) -> Array:
    return np.array([draw.choice((0.0, 1.0, 2.5, 7.0, 100.0)) for _ in range(n)])


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("seed", range(6))
def test_what_physical_operators_tell_of_logical_ones(metric: str, seed: int) -> None:
    draw = random.Random(seed)
    topology = fused(draw)
    columns = {name: column(draw, len(topology.operators)) for name in {metric, "tuples_in"}}
    found = to_logical(topology, metric, columns)
    for logical, value in zip(topology.logical, found, strict=True):
        told: list[float] = []
        for row, operator in enumerate(topology.operators):
            if logical.name not in operator.logical:
                continue
            own, passed = columns[metric][row], columns["tuples_in"][row]
            first = operator.logical[0] == logical.name
            last = operator.logical[-1] == logical.name
            if metric in FIRST:
                told.append(own if first else 0.0)
            elif metric == "selectivity":
                told.append(own if last else 1.0)
            elif metric == "tuples_out":
                told.append(own if last else passed)
            else:
                told.append(own if last or metric in ALIKE else 0.0)
        assert_same(value, metric, told)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("seed", range(6))
def test_what_logical_operators_tell_of_physical_ones(metric: str, seed: int) -> None:
    draw = random.Random(seed)
    topology = fused(draw)
    given = column(draw, len(topology.logical))
    by_name = {logical.name: value for logical, value in zip(topology.logical, given, strict=True)}
    found = to_physical(topology, metric, {metric: given})
    for operator, value in zip(topology.operators, found, strict=True):
        chain = [by_name[name] for name in operator.logical]
        if metric not in LARGEST | MEAN:
            chain = [one / operator.replicas for one in chain]
        if not chain:
            assert math.isnan(value)
        elif metric == "selectivity":
            assert value == pytest.approx(math.prod(chain))
        elif metric in FIRST | ALIKE:
            assert value == pytest.approx(chain[0])
        else:
            assert value == pytest.approx(chain[-1] if metric == "tuples_out" else sum(chain))


def assert_same(value: float, metric: str, told: list[float]) -> None:
    """Of replicas: the largest, the mean, or all together."""
    if not told:
        assert math.isnan(value)
    elif metric in LARGEST:
        assert value == max(told)
    else:
        expected = sum(told) / len(told) if metric in MEAN else sum(told)
        assert value == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(20))
def test_the_most_urgent_of_each_owner(seed: int) -> None:
    draw = random.Random(seed)
    rows, pairs, owners = 6, 12, 4
    nan = math.nan
    rank = np.array([draw.choice((nan, 0.0, 0.0, 1.0)) for _ in range(rows)])
    urgency = np.array([draw.choice((nan, -math.inf, -1.0, 0.0, 2.0)) for _ in range(rows)])
    owner, candidate = (
        np.array([draw.randrange(most) for _ in range(pairs)], dtype=np.intp)
        for most in (owners, rows)
    )
    zeros = np.zeros(rows)
    form = UrgencyForm(static=zeros, per_second=zeros, per_tuple=zeros, rank=rank)
    found = most_urgent(form, urgency, owner, candidate, owners)
    for one in range(owners):
        best, best_key = -1, (-math.inf, -math.inf)
        for place in range(pairs):
            row = candidate[place]
            sure = not (math.isnan(rank[row]) or math.isnan(urgency[row]))
            key = (rank[row], urgency[row]) if sure else (-math.inf, -math.inf)
            if owner[place] == one and (best < 0 or key > best_key):
                best, best_key = place, key
        assert found[one] == best
