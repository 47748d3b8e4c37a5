"""Which targets can be met, and whose tuples are late: who goes first under least slack, and who
must not.

The least slack first is the best order as long as all targets can be met, and the worst past that:
the query that is latest goes first, so that one after the other is late (EDF's domino effect). So
who cannot meet its target, whatever is done, does not compete:

* its path alone takes longer than the target allows;
* one of its operators needs more CPUs than it has threads;
* the CPUs are not enough for it and those of larger weight (of equal weight: those that could meet
  theirs before, then who needs less).

Who could, but has a backlog, is *late*: its tuples miss their target in any order. It goes behind
the others of its weight or more if they would miss theirs while it catches up, and else stays where
it is. All bounds have hysteresis, so that noise moves nobody to and fro.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from sched_ctl.model.graph import Array, Graph
from sched_ctl.model.patterns import names_of
from sched_ctl.model.policy import OperatorFrame
from sched_ctl.model.targets import Target, target_of

__all__ = [
    "LATENCY",
    "STANDING",
    "WANTS",
    "WEIGHT",
    "Judgement",
    "Load",
    "Query",
    "Standing",
    "age",
    "feasible",
    "judge",
    "loads",
    "tell",
]

# Columns of a frame, NaN where there is no target
LATENCY, STANDING, WEIGHT = "target_latency", "target_standing", "target_weight"
# What a judgement reads, where it is known
WANTS = frozenset(
    {
        *("path_cost", "cost", "selectivity", "input_rate", "global_cost", "queue_size"),
        *("head_age", "arrival_age", "arrival_rate"),
    }
)
AGAIN = 0.9  # of a bound, below which what was beyond it is good again
STEADY_S = 1.0  # a queue tells the rate of arrivals over the age of its head, from this age on

Query = tuple[str, str]  # engine, query


class Standing(IntEnum):
    """How a query stands with its target."""

    OVER = 0  # cannot meet it, whatever is done
    LATE = 1  # could, but has a backlog by which others would miss theirs
    MEETS = 2  # can meet it


@dataclass(frozen=True, slots=True)
class Load:
    """What a query with a target asks for.

    path_s: CPU time of a tuple along its costliest path. cpus: that the tuples that come need.
    widest: the same of the operator that needs most, for each of its threads. work_s: CPU time that
    the tuples that wait need. slack_s: of the tuple that has least, what it waited on other nodes
    included; below 0 it is late. That is a mean, so it makes no target one that cannot be met.
    """

    latency_s: float
    weight: float = 1.0
    path_s: float = 0.0
    cpus: float = 0.0
    widest: float = 0.0
    work_s: float = 0.0
    slack_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Judgement:
    """why: in words, with what it would take; empty where the target can be met."""

    standing: Standing
    load: Load
    why: str = ""


def feasible(
    asked: Mapping[Query, Load], cpus: float, before: Mapping[Query, Standing]
) -> dict[Query, Judgement]:
    """How each query stands. cpus: how many there are for all of them. before: how they stood."""
    found: dict[Query, Judgement] = {}

    def bound(query: Query) -> float:
        return AGAIN if before.get(query) is Standing.OVER else 1.0

    def rank(query: Query) -> tuple[float, bool, float]:
        load = asked[query]
        return -load.weight, before.get(query) is Standing.OVER, load.cpus

    taken = 0.0
    for query in sorted(asked, key=rank):
        load = asked[query]
        wanted = taken + load.cpus
        if load.path_s >= bound(query) * load.latency_s:
            why = (
                f"its path alone takes {_time(load.path_s)} of CPU time: it would take a target "
                f"above {_time(load.path_s / AGAIN)}, or cheaper operators"
            )
        elif load.widest > bound(query):
            why = (
                f"one of its operators needs {load.widest:.2f} CPUs a thread: it would take "
                f"{math.ceil(load.widest / AGAIN)} replicas for each that it has"
            )
        elif wanted > bound(query) * cpus:
            why = (
                f"it needs {load.cpus:.2f} CPUs, and those before it {taken:.2f}, of {cpus:g}: it "
                f"would take {wanted / AGAIN - cpus:.2f} CPUs more, or fewer tuples; a looser "
                "target is not enough"
            )
        else:
            taken = wanted
            found[query] = Judgement(Standing.MEETS, load)
            continue
        found[query] = Judgement(Standing.OVER, load, why)
    return _late_behind(found, cpus - taken, before)


def _late_behind(
    judged: dict[Query, Judgement], free: float, before: Mapping[Query, Standing]
) -> dict[Query, Judgement]:
    """The same, with those late that others would suffer from. free: CPUs that are left over."""
    meets = {q: j.load for q, j in judged.items() if j.standing is Standing.MEETS}
    for query, load in meets.items():
        was = before.get(query) is Standing.LATE
        if load.slack_s >= (load.latency_s / 2 if was else 0.0):
            continue
        # How long others can wait: one that is late itself, but sooner through, for its latency.
        others = [
            other.slack_s if other.slack_s >= 0 else other.latency_s
            for name, other in meets.items()
            if name != query
            and other.weight >= load.weight
            and (other.slack_s >= 0 or other.work_s < load.work_s)
        ]
        clear_s = load.work_s / free if free > 0 else math.inf if load.work_s else 0.0
        if clear_s > (0.5 if was else 1.0) * min(others, default=math.inf):
            why = (
                f"its backlog of {_time(load.work_s)} of CPU time would make others late: it "
                "catches up behind those that are in time"
            )
            judged[query] = Judgement(Standing.LATE, load, why)
    return judged


def judge(
    frame: OperatorFrame,
    engines: Sequence[str],
    targets: Sequence[Target],
    cpus: float,
    before: Mapping[Query, Judgement],
    guessed: Collection[str] = (),
) -> dict[Query, Judgement]:
    """How each query of the frame that has a target stands. engines: by the frame's numbers.

    guessed: those of which only wake-ups are known, see `loads`.
    """
    asked = loads(frame, engines, targets, guessed)
    return feasible(asked, cpus, {query: known.standing for query, known in before.items()})


def tell(
    frame: OperatorFrame, engines: Sequence[str], judged: Mapping[Query, Judgement]
) -> dict[str, Array]:
    """The columns `LATENCY`, `STANDING` and `WEIGHT` of the frame."""
    found = [judged.get(name) for name in _names(frame, engines)]
    latency = np.array([math.nan if j is None else j.load.latency_s for j in found])
    standing = np.array([math.nan if j is None else float(j.standing) for j in found])
    weight = np.array([math.nan if j is None else j.load.weight for j in found])
    columns = {LATENCY: latency, STANDING: standing, WEIGHT: weight}
    return {name: column[frame.query] for name, column in columns.items()}


def age(frame: OperatorFrame) -> Array:
    """(n,) s: how old the oldest tuple of each is, or would be that comes now; 0 where unknown."""
    unknown = np.full(len(frame), np.nan)
    ages = [frame.columns.get(name, unknown) for name in ("head_age", "arrival_age")]
    return np.nan_to_num(np.fmax(*ages))


def loads(
    frame: OperatorFrame,
    engines: Sequence[str],
    targets: Sequence[Target],
    guessed: Collection[str] = (),
) -> dict[Query, Load]:
    """What the queries of the frame that have a target ask for; what is unknown counts as 0.

    Of guessed engines that is what waits, what a path takes, and what one operator makes of
    another's tuples: the milliseconds since a thread slept stand in for its queue, so that the rate
    of arrivals would be 1000/s for all. What they need is what their operators use.
    """
    names = _names(frame, engines)
    mine = {i: target_of(targets, *names_of(*name)) for i, name in enumerate(names)}
    if not any(mine.values()):
        return {}
    unknown = np.full(len(frame), np.nan)
    column = {name: _known(frame.columns.get(name, unknown)) for name in WANTS}
    at = np.zeros(len(frame), dtype=int) if frame.engine is None else frame.engine
    guess = np.isin(at, [i for i, name in enumerate(engines) if name in guessed])
    for name in ("queue_size", "path_cost"):
        column[name][guess] = 0.0
    threads = np.array([max(1, len(getattr(o, "threads", ()))) for o in frame.operators])
    away = np.array([getattr(o, "away", False) for o in frame.operators], dtype=np.bool_)
    graph = _from_here(frame.graph, away)
    # This node's CPUs are not asked for what others do.
    cost = np.where(away, 0.0, column["cost"])
    told = frame.columns.get("arrival_rate", unknown)
    come = arrivals(graph, told, column["input_rate"], column["queue_size"], column["head_age"])
    with np.errstate(all="ignore"):
        need = _known(cost * _flow(graph, come, column["selectivity"]))
        work = np.where(away, 0.0, _known(column["queue_size"] * column["global_cost"]))
    need[guess] = (column["cost"] * column["input_rate"])[guess]
    spent = np.where(column["head_age"] > 0, column["head_age"] + column["path_cost"], 0.0)
    found = {}
    whole = column["arrival_age"] + column["path_cost"]
    for number, target in mine.items():
        if target is None:
            continue
        inside = frame.query == number
        path_s = float(column["path_cost"][inside].max())
        found[names[number]] = Load(
            target.latency_s,
            target.weight,
            path_s,
            float(need[inside].sum()),
            float((need / threads)[inside].max()),
            float(work[inside].sum()),
            target.latency_s - max(float(whole[inside].max()), float(spent[inside].max())),
        )
    return found


def _names(frame: OperatorFrame, engines: Sequence[str]) -> list[Query]:
    """Engine and name of each query, by the frame's numbers."""
    first = np.unique(frame.query, return_index=True)[1].tolist()
    at = [0] * len(frame) if frame.engine is None else frame.engine.tolist()
    return [(engines[at[row]], frame.operators[row].query) for row in first]


def arrivals(graph: Graph, told: Array, taken: Array, queue: Array, age_s: Array) -> Array:
    """(n,) tuples/s that come from outside, 0 for all but ingresses. told: NaN where unknown.

    What is taken from a queue is less than what comes where the CPU is short, and more while a
    backlog is caught up with. Where nobody tells by how much the queue grew: what waits there has
    come since the oldest of it came, Q tuples in W seconds.
    """
    with np.errstate(all="ignore"):
        waiting = np.where(age_s >= STEADY_S, queue / age_s, 0.0)
    come = np.where(np.isfinite(told), told, np.maximum(taken, waiting))
    return np.where(graph.ingress, come, 0.0)


def _from_here(graph: Graph, away: npt.NDArray[np.bool_]) -> Graph:
    """The graph without what comes from other nodes: the tuples that come are counted here."""
    if not away.any():
        return graph
    mine = ~away[graph.source]
    return Graph(graph.n, graph.source[mine], graph.target[mine], graph.share[mine])


def _flow(graph: Graph, outside: Array, selectivity: Array) -> Array:
    """(n,) tuples/s that reach each operator if all that comes is processed."""
    flow = outside.copy()
    for _, edges in graph.reversed.levels:
        source, target = graph.source[edges], graph.target[edges]
        np.add.at(flow, target, graph.share[edges] * selectivity[source] * flow[source])
    return flow


def _known(column: Array) -> Array:
    """With 0 for what is unknown: products along a path may be beyond all floats."""
    return np.nan_to_num(column, posinf=0.0, neginf=0.0)


def _time(seconds: float) -> str:
    """Short, and without an exponent however long it is."""
    value, unit = (seconds, "s") if seconds >= 1.0 else (seconds * 1e3, "ms")
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
