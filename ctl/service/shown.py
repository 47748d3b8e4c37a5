"""How much of whose engines is looked at, while the control loop waits for it.

Anybody's file or page may hold any number of queries. So of an owner who is ordered alone the first
ones are looked at, and before anything is worked out; the others are counted. Those of the common
owners come first, and all of them.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from sched_ctl.engines.engine import Engine
from sched_ctl.engines.owners import COMMON
from sched_ctl.model.graph import Index, distinct
from sched_ctl.model.topology import Topology

__all__ = ["ALL", "OTHERS", "Most", "left_out", "names", "shown"]


class Most(NamedTuple):
    """So many queries; operators, of which one counts for each thread of an owner's own."""

    queries: int
    operators: int


ALL = Most(1 << 62, 1 << 62)
OTHERS = Most(200, 1000)  # of each owner who is ordered alone
MOST_OF_ONE = 100  # threads that one of his operators counts as: none hides all others


def shown(engines: Iterable[Engine], common: Most = ALL) -> Iterator[tuple[Engine, Index]]:
    """Engines that have answered, the common owners' first, and the rows that are looked at: the
    first operators of the first queries.

    common: most of the common owners' engines together.
    """
    rooms = {COMMON: common}
    for engine in sorted(engines, key=lambda one: one.domain != COMMON):
        if engine.snapshot is None:
            continue
        topology, room = engine.snapshot.topology, rooms.get(engine.domain, OTHERS)
        rows = np.flatnonzero(topology.query_rows < room.queries)
        counts = np.ones(len(rows), dtype=np.intp)
        if engine.domain != COMMON:
            counts = np.clip(topology.thread_counts[rows], 1, MOST_OF_ONE)
        rows = rows[np.cumsum(counts) <= room.operators]
        taken = int(counts[: len(rows)].sum())
        rooms[engine.domain] = Most(room.queries - _queries(topology, rows), room.operators - taken)
        yield engine, rows


def names(engines: Iterable[Engine]) -> set[tuple[str, str]]:
    """Engine and query of those that are looked at."""
    return {
        (engine.name, engine.snapshot.topology.queries[place])
        for engine, rows in shown(engines)
        if engine.snapshot is not None
        for place in distinct(engine.snapshot.topology.query_rows[rows]).tolist()
    }


def left_out(engines: Iterable[Engine], common: Most = ALL) -> dict[str, Most]:
    """By owner, how many are not looked at; without those of whom all are."""
    found: dict[str, Most] = {}
    for engine, rows in shown(engines, common):
        assert engine.snapshot is not None
        topology, before = engine.snapshot.topology, found.get(engine.domain, Most(0, 0))
        queries = len(topology.queries) - _queries(topology, rows)
        operators = len(topology.operators) - len(rows)
        if operators:
            found[engine.domain] = Most(before.queries + queries, before.operators + operators)
    return found


def _queries(topology: Topology, rows: Index) -> int:
    return len(distinct(topology.query_rows[rows]))
