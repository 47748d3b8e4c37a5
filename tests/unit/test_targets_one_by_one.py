"""What queries with targets ask for, and who can have it: each by itself, in plain Python.

Figures are drawn from a few values, bounds among them, so that both sides of each are met.
"""

import math
import random

import pytest

from plans import frame, plan
from sched_ctl.metrics.feasibility import Load, Query, Standing, feasible, loads
from sched_ctl.model.policy import OperatorFrame
from sched_ctl.model.targets import Target
from sched_ctl.model.topology import Topology

MEETS, LATE, OVER = Standing.MEETS, Standing.LATE, Standing.OVER
UNKNOWN = math.nan
COSTS = (0.0, 1e-3, 2e-3, 5e-2, UNKNOWN)
COUNTS = (0.0, 0.5, 3.0, 40.0, UNKNOWN)
AGES = (0.0, 0.4, 1.0, 2.5, UNKNOWN)


def drawn(draw: random.Random) -> tuple[Topology, OperatorFrame]:
    """Three queries of three to six operators, whose edges go from earlier to later ones."""
    sizes = [draw.randint(3, 6) for _ in range(3)]
    firsts = [sum(sizes[:i]) for i in range(3)]
    edges = [
        (first + a, first + b)
        for first, size in zip(firsts, sizes, strict=True)
        for b in range(1, size)
        for a in range(b)
        if draw.random() < 0.5
    ]
    names = {f"q{i}": [f"o{j}" for j in range(size)] for i, size in enumerate(sizes)}
    topology = plan(names, edges)
    n = len(topology.operators)
    values = {
        **dict.fromkeys(("path_cost", "cost", "global_cost"), COSTS),
        **dict.fromkeys(("selectivity", "input_rate", "queue_size"), COUNTS),
        "head_age": AGES,
    }
    columns = {name: [draw.choice(some) for _ in range(n)] for name, some in values.items()}
    return topology, frame(topology, **columns)


def known(value: float) -> float:
    return 0.0 if math.isnan(value) else value


@pytest.mark.parametrize("seed", range(40))
def test_what_each_asks_for(seed: int) -> None:
    draw = random.Random(seed)
    topology, of = drawn(draw)
    at = [
        {name: known(column[row]) for name, column in of.columns.items()} for row in range(len(of))
    ]
    edges = [(edge.source, edge.target, edge.share) for edge in topology.edges]
    ingress = set(range(len(of))) - {target for _, target, _ in edges}

    def comes(row: int) -> float:
        own = at[row]
        if row in ingress:
            steady = own["head_age"] >= 1.0
            waiting = own["queue_size"] / own["head_age"] if steady else 0.0
            return max(own["input_rate"], waiting)
        return sum(share * at[a]["selectivity"] * comes(a) for a, b, share in edges if b == row)

    found = loads(of, ("lab",), [Target(queries=("q0", "q2"), latency="10ms", weight=3.0)])
    assert found.keys() == {("lab", "q0"), ("lab", "q2")}
    for (_, query), load in found.items():
        rows = [row for row, operator in enumerate(topology.operators) if operator.query == query]
        path_s = max(at[row]["path_cost"] for row in rows)
        oldest_s = max(
            at[row]["head_age"] + at[row]["path_cost"] if at[row]["head_age"] > 0 else 0.0
            for row in rows
        )
        assert (load.latency_s, load.weight, load.path_s) == (0.01, 3.0, path_s)
        assert load.cpus == pytest.approx(sum(at[row]["cost"] * comes(row) for row in rows))
        assert load.widest == pytest.approx(max(at[row]["cost"] * comes(row) for row in rows))
        work_s = sum(at[row]["queue_size"] * at[row]["global_cost"] for row in rows)
        assert load.work_s == pytest.approx(work_s)
        assert load.slack_s == pytest.approx(0.01 - max(path_s, oldest_s))


def stands(
    asked: dict[Query, Load], cpus: float, before: dict[Query, Standing]
) -> dict[Query, Standing]:
    """As the module has it in words."""
    found, free = {}, cpus
    over = {query for query in asked if before.get(query) == OVER}
    for query in sorted(asked, key=lambda q: (-asked[q].weight, q in over, asked[q].cpus)):
        load, bound = asked[query], 0.9 if query in over else 1.0
        alone = load.path_s < bound * load.latency_s and load.widest <= bound
        if alone and cpus - free + load.cpus <= bound * cpus:
            found[query] = MEETS
            free -= load.cpus
        else:
            found[query] = OVER
    can = [query for query in asked if found[query] == MEETS]
    for query in can:
        load, was = asked[query], before.get(query) == LATE
        if load.slack_s >= (load.latency_s / 2 if was else 0.0):
            continue
        waits = [math.inf]
        for other in (asked[q] for q in can if q != query):
            if other.weight < load.weight:
                continue
            if other.slack_s >= 0:
                waits.append(other.slack_s)
            elif other.work_s < load.work_s:
                waits.append(other.latency_s)
        clear_s = math.inf if load.work_s > 0 else 0.0
        if free > 0:
            clear_s = load.work_s / free
        if clear_s > (0.5 if was else 1.0) * min(waits):
            found[query] = LATE
    return found


@pytest.mark.parametrize("seed", range(200))
def test_how_each_stands(seed: int) -> None:
    """In powers of two, so that sums are exact and bounds are met."""
    draw = random.Random(seed)
    queries = [("lab", f"q{i}") for i in range(draw.randint(1, 5))]
    asked = {
        query: Load(
            latency_s=draw.choice((0.5, 1.0, 2.0)),
            weight=draw.choice((1.0, 1.0, 2.0)),
            path_s=draw.choice((0.0, 0.0, 0.25, 0.46, 0.5, 1.0)),
            cpus=draw.choice((0.0, 0.25, 0.5, 1.0)),
            widest=draw.choice((0.0, 0.25, 0.95, 1.0, 1.0625)),
            work_s=draw.choice((0.0, 0.125, 0.25, 0.5, 1.0, 4.0)),
            slack_s=draw.choice((-1.0, -0.25, 0.0, 0.25, 0.5, 1.0, math.inf)),
        )
        for query in queries
    }
    before = {query: draw.choice((MEETS, LATE, OVER)) for query in queries if draw.random() < 0.7}
    cpus = draw.choice((0.5, 1.0, 2.0))
    found = feasible(asked, cpus, before)
    assert {query: one.standing for query, one in found.items()} == stands(asked, cpus, before)
    for query, one in found.items():
        assert one.load is asked[query]
        assert bool(one.why) == (one.standing != MEETS)
