"""A topology's operators and edges, from the names of threads and of metrics."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sched_ctl.drivers.storm.series import Measure, plain
from sched_ctl.drivers.threadnames import OPERATOR, ThreadName
from sched_ctl.model.topology import Edge, LogicalOperator, PhysicalOperator, Thread

__all__ = ["Executor", "Plan", "executors", "plan", "same"]

# Emitted tuples from which a stream's share is taken from counts; before, parts are equal.
ENOUGH = 500
# Names of threads and metrics are anybody's: what exceeds these is left out, and said.
TASK_LIMIT = 20_000  # a process
EDGE_LIMIT = 100_000
# How much a share may move, as part of itself and besides, before the topology is another one.
MOVED = (0.1, 0.02)


@dataclass(frozen=True, slots=True)
class Executor:
    """One thread of Storm's, which runs one or more tasks of one component."""

    component: str
    first: int
    last: int
    thread: Thread

    @property
    def tasks(self) -> range:
        return range(self.first, self.last + 1)


@dataclass(frozen=True)
class Plan:
    operators: tuple[PhysicalOperator, ...]
    edges: tuple[Edge, ...]
    logical: tuple[LogicalOperator, ...]
    logical_edges: tuple[Edge, ...]
    away: tuple[str, ...]  # components without an executor here that send to one
    cut: bool = False  # whether edges were left out, as there are too many


def executors(names: Mapping[Thread, ThreadName]) -> list[Executor]:
    """The user's executors among the threads of a process."""
    found = []
    tasks = 0
    for thread, said in names.items():
        if said.role == OPERATOR:
            first, last = said.number("first"), said.number("last")
            if first < 0 or last < first or tasks + last - first >= TASK_LIMIT:
                continue
            tasks += last - first + 1
            found.append(Executor(said.parts["task"], first, last, thread))
    return found


def plan(query: str, running: Sequence[Executor], measures: Sequence[Measure]) -> Plan:
    """Operators in the order of `running`, which has each task once."""
    rows: dict[str, list[int]] = defaultdict(list)
    of_task = {}
    for row, executor in enumerate(running):
        rows[executor.component].append(row)
        of_task.update(dict.fromkeys(executor.tasks, row))
    components = {plain(name): name for name in rows}
    replica = {row: place for of in rows.values() for place, row in enumerate(of)}
    operators = tuple(
        PhysicalOperator(
            query=query,
            name=_name(executor, len(rows[executor.component])),
            logical=(executor.component,),
            replica=replica[row],
            replicas=len(rows[executor.component]),
            threads=(executor.thread,),
        )
        for row, executor in enumerate(running)
    )
    emitted: dict[tuple[str, str], float] = defaultdict(float)  # (component, stream)
    total: dict[str, float] = defaultdict(float)
    taken: dict[tuple[str, str, int], float] = defaultdict(float)  # (source, stream, row)
    away = set()
    for one in measures:
        row = of_task.get(one.task, -1)
        if row < 0:
            continue
        if one.what == "emit":
            emitted[running[row].component, one.stream] += one.count
            total[running[row].component] += one.count
        elif one.what == "execute":
            if one.source in components:
                taken[components[one.source], one.stream, row] += one.count
            else:
                away.add(one.source)

    consumers: dict[tuple[str, str], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for source, stream, row in taken:
        consumers[source, stream][running[row].component].append(row)
    streams: dict[str, list[str]] = defaultdict(list)
    for source, stream in consumers:
        streams[source].append(stream)

    physical: dict[tuple[int, int], float] = defaultdict(float)
    logical: dict[tuple[str, str], float] = defaultdict(float)
    left = EDGE_LIMIT
    for (source, stream), by_component in consumers.items():
        if total[source] >= ENOUGH:
            part = emitted[source, stream] / total[source]
        else:
            part = 1 / len(streams[source])
        for component, found in by_component.items():
            left -= len(rows[source]) * len(rows[component])
            if left < 0:
                break
            logical[source, component] += part
            known = sum(taken[source, stream, row] for row in found)
            tasks = sum(len(running[row].tasks) for row in rows[component])
            # All of a component's executors hear a stream, also those that had no tuple yet.
            for row in rows[component]:
                share = len(running[row].tasks) / tasks
                if known >= ENOUGH and len(rows[component]) > 1:
                    share = taken.get((source, stream, row), 0.0) / known
                for producer in rows[source]:
                    physical[producer, row] += part * share
    number = {name: place for place, name in enumerate(rows)}
    return Plan(
        operators=operators,
        edges=_edges(physical),
        logical=tuple(LogicalOperator(query, name) for name in rows),
        logical_edges=_edges({(number[a], number[b]): s for (a, b), s in logical.items()}),
        away=tuple(sorted(away)),
        cut=left < 0,
    )


def same(old: Plan, new: Plan) -> bool:
    """True if the new plan says nothing new: shares come from counts, which are never still."""

    def still(before: tuple[Edge, ...], now: tuple[Edge, ...]) -> bool:
        return len(before) == len(now) and all(
            (a.source, a.target) == (b.source, b.target)
            and abs(a.share - b.share) <= MOVED[0] * a.share + MOVED[1]
            for a, b in zip(before, now, strict=True)
        )

    return (
        (old.operators, old.away, old.cut) == (new.operators, new.away, new.cut)
        and still(old.edges, new.edges)
        and still(old.logical_edges, new.logical_edges)
    )


def _name(executor: Executor, replicas: int) -> str:
    if replicas == 1:
        return executor.component
    return f"{executor.component}[{executor.first}-{executor.last}]"


def _edges(shares: Mapping[tuple[int, int], float]) -> tuple[Edge, ...]:
    return tuple(
        Edge(source, target, min(1.0, max(1e-6, share)))
        for (source, target), share in sorted(shares.items())
        if source != target
    )
