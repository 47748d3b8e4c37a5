"""What of a schedule changes with the topologies alone: who may decide for which threads.

Worked out once for each set of topologies, and kept while these are the very same objects.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from sched_ctl.model.frames import join_graphs, subgraph
from sched_ctl.model.graph import Graph, Index
from sched_ctl.model.patterns import first, names_of
from sched_ctl.model.policy import Level
from sched_ctl.model.topology import (
    HelperThread,
    LogicalOperator,
    PhysicalOperator,
    Thread,
    Topology,
)

__all__ = ["Layout", "SameObjects", "layout_of"]

Mask = npt.NDArray[np.bool_]

FLUSHER = "flusher"  # role of helpers that hand on by a timer what their operator makes


@dataclass(frozen=True, eq=False)
class Layout:
    """All of a schedule that changes only with the topology.

    rows: per engine, the rows of its columns that are in the frame. engine: (n,) see
    `OperatorFrame`. spins: (n,) of the frame, see `Topology.idle_spins`.
    owner, row: who may decide for whom: one entry for each pair of a thread and an operator of
    the frame whose urgency it may get. labels, groups (engine, query), depth (see `Schedule`): of
    the pairs.
    roles: (m,) label of a thread that no operator decides for. top: (m,) true if above all.
    """

    rows: tuple[Index, ...]
    engine: Index
    spins: Mask
    operators: tuple[PhysicalOperator, ...] | tuple[LogicalOperator, ...]
    graph: Graph
    threads: tuple[Thread, ...]
    roles: tuple[str, ...]
    top: Mask
    owner: Index
    row: Index
    labels: tuple[str, ...]
    groups: tuple[tuple[str, str], ...]
    depth: Index
    flushers: tuple[tuple[Thread, Thread], ...]

    @cached_property
    def only_place(self) -> Index | None:
        """(m,) the pair that decides for each thread, if none has a choice; -1: no operator."""
        if len(set(self.owner.tolist())) < len(self.owner):
            return None
        place = np.full(len(self.threads), -1, dtype=np.intp)
        place[self.owner] = np.arange(len(self.owner))
        return place

    @cached_property
    def straight(self) -> bool:
        """Whether thread i has operator i to decide for it, for all of them."""
        rows = np.arange(len(self.operators))
        return (
            len(rows) > 0
            and len(self.threads) == len(rows)
            and all(np.array_equal(column, rows) for column in (self.owner, self.row))
        )

    @cached_property
    def only_labels(self) -> tuple[str, ...]:
        """(m,) labels if no thread has a choice."""
        return self._labels(self.only_place) if self.only_place is not None else ()

    @cached_property
    def only_queries(self) -> tuple[tuple[str, str] | None, ...]:
        """(m,) engines and queries if no thread has a choice."""
        return self._queries(self.only_place) if self.only_place is not None else ()

    def labels_by(self, place: Index) -> tuple[str, ...]:
        """(m,) labels of the pairs that decide; of the role where none does."""
        return self.only_labels if place is self.only_place else self._labels(place)

    def queries_by(self, place: Index) -> tuple[tuple[str, str] | None, ...]:
        """(m,) engines and queries of the pairs that decide; None where none does."""
        return self.only_queries if place is self.only_place else self._queries(place)

    def _labels(self, place: Index) -> tuple[str, ...]:
        return tuple(
            self.labels[at] if at >= 0 else role
            for at, role in zip(place.tolist(), self.roles, strict=True)
        )

    def _queries(self, place: Index) -> tuple[tuple[str, str] | None, ...]:
        return tuple(self.groups[at] if at >= 0 else None for at in place.tolist())


class SameObjects:
    """Topologies as a cache key: equal if they are the very same objects (see `model`)."""

    def __init__(self, topologies: tuple[Topology, ...]) -> None:
        self.topologies = topologies

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.topologies)))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, SameObjects)
            and len(self.topologies) == len(other.topologies)
            and all(a is b for a, b in zip(self.topologies, other.topologies, strict=True))
        )


@lru_cache(maxsize=32)
def layout_of(
    key: SameObjects,
    level: Level,
    select: tuple[frozenset[str], ...] | None,
    rules: tuple[tuple[str, str], ...],
) -> Layout:
    """select: of each topology, the queries that count; None = all. rules: of helper threads."""
    rows: list[Index] = []
    operators: list[PhysicalOperator | LogicalOperator] = []
    graphs: list[Graph] = []
    made = _Gathered(dict(rules))
    for at, topology in enumerate(key.topologies):
        wanted = frozenset(topology.queries) if select is None else select[at]
        of_level: Sequence[PhysicalOperator | LogicalOperator] = topology.operators
        graph = topology.graph
        if level is Level.LOGICAL:
            of_level, graph = topology.logical, topology.logical_graph
        chosen = np.array([i for i, o in enumerate(of_level) if o.query in wanted], dtype=np.intp)
        deciders = _deciders(topology, level, chosen, len(operators))
        rows.append(chosen)
        operators.extend(of_level[i] for i in chosen)
        graphs.append(subgraph(graph, chosen))
        made.take_operators(topology, wanted, deciders)
        made.take_helpers(topology, wanted, deciders)
    graph = join_graphs(graphs)
    owner, row = np.array([pair[:2] for pair in made.pairs], dtype=np.intp).reshape(-1, 2).T
    # A helper hands work on to the operator that it serves: it is nowhere on the data's way.
    helping = _among(made.threads, made.helpers)[owner]
    engine = np.repeat(np.arange(len(rows)), [len(part) for part in rows])
    return Layout(
        rows=tuple(rows),
        engine=engine,
        spins=np.array([topology.idle_spins for topology in key.topologies], dtype=bool)[engine],
        operators=tuple(operators),  # type: ignore[arg-type]
        graph=graph,
        threads=tuple(made.threads),
        roles=tuple(made.roles),
        top=_among(made.threads, made.highest),
        owner=owner,
        row=row,
        labels=tuple(pair[2] for pair in made.pairs),
        groups=tuple(pair[3] for pair in made.pairs),
        depth=np.where(helping, 0, graph.reversed.height[row] + 1),
        flushers=tuple(pair for pair in made.flushers if pair[0] not in made.threads),
    )


def _among(threads: Mapping[Thread, int], some: Sequence[Thread]) -> npt.NDArray[np.bool_]:
    """(m,) which threads are some of these. (np.isin may load all of numpy.ma.)"""
    found = np.zeros(len(threads), dtype=np.bool_)
    found[[threads[thread] for thread in some]] = True
    return found


def _deciders(
    topology: Topology, level: Level, chosen: Index, begin: int
) -> Mapping[int, Sequence[int]]:
    """Physical row -> the rows of the frame that may decide for it.

    chosen: (k,) rows of the level that are in the frame, from its row `begin` on.
    """
    place = {int(old): begin + new for new, old in enumerate(chosen)}
    if level is Level.PHYSICAL:
        return {old: [new] for old, new in place.items()}
    deciders: dict[int, list[int]] = {}
    physical, logical, _, _ = topology.logical_rows
    for i, j in zip(physical.tolist(), logical.tolist(), strict=True):
        if j in place:
            deciders.setdefault(i, []).append(place[j])
    return deciders


@dataclass
class _Gathered:
    """Threads of all topologies, with those who may decide for them, as they come.

    rules: of helper threads. threads: thread -> its row. roles: (m,) what it is called if nobody
    decides for it. pairs: row of the thread and of the frame, label, group.
    """

    rules: Mapping[str, str]
    threads: dict[Thread, int] = field(default_factory=dict)
    roles: list[str] = field(default_factory=list)
    pairs: list[tuple[int, int, str, tuple[str, str]]] = field(default_factory=list)
    helpers: list[Thread] = field(default_factory=list)
    highest: list[Thread] = field(default_factory=list)
    flushers: list[tuple[Thread, Thread]] = field(default_factory=list)

    def take_operators(
        self, topology: Topology, wanted: frozenset[str], deciders: Mapping[int, Sequence[int]]
    ) -> None:
        for i, operator in enumerate(topology.operators):
            if operator.query in wanted:
                for thread in operator.threads:
                    self._let_decide(thread, topology, i, deciders, operator.label)

    def take_helpers(
        self, topology: Topology, wanted: frozenset[str], deciders: Mapping[int, Sequence[int]]
    ) -> None:
        """Those that some rule is for, and that serve an operator of the frame or none."""
        of_operators = {thread for operator in topology.operators for thread in operator.threads}
        for helper in topology.helpers:
            asked = first(self.rules, *names_of(topology.engine, helper.role))
            serves = helper.serves
            if serves is not None and topology.operators[serves].query not in wanted:
                continue
            if helper.role == FLUSHER and serves is not None and asked is None:
                served = topology.operators[serves].threads[:1]
                self.flushers.extend((helper.thread, thread) for thread in served)
            if (asked or "leave") == "leave" or helper.thread in of_operators or not wanted:
                continue
            self._take_helper(helper, str(asked), topology, deciders)

    def _take_helper(
        self,
        helper: HelperThread,
        rule: str,
        topology: Topology,
        deciders: Mapping[int, Sequence[int]],
    ) -> None:
        label = f"{topology.engine}: {helper.role}"
        if rule == "follow" and helper.serves is not None:
            self._let_decide(helper.thread, topology, helper.serves, deciders, label)
        else:
            self._row(helper.thread, label)
        self.helpers.append(helper.thread)
        if rule == "top":
            self.highest.append(helper.thread)

    def _let_decide(
        self,
        thread: Thread,
        topology: Topology,
        operator: int,
        deciders: Mapping[int, Sequence[int]],
        label: str,
    ) -> None:
        row = self._row(thread, label)
        group = (topology.engine, topology.operators[operator].query)
        self.pairs.extend((row, decider, label, group) for decider in deciders.get(operator, ()))

    def _row(self, thread: Thread, label: str) -> int:
        row = self.threads.setdefault(thread, len(self.threads))
        if row == len(self.roles):
            self.roles.append(label)
        return row
