"""How many replicas each operator needs for what its sources emit (DS2, Kalavri et al., OSDI 2018).

The *true rate* of an operator is what it would take in if it never waited: tuples by useful time.
Useful is the time in which its threads ran or slept with work in hand; not the time without input,
before a full queue, or waiting for a CPU. So it tells what a replica could do, however little it
does today. One walk from the sources down gives the rate that each operator has to take in, and
from both how many replicas that needs: one step for all operators of a query (section 3.2 there).

A source that is held by a full queue would emit more: what it emits by the share of the time in
which it was not held. That is what it could emit, not what comes: a source that catches up emits as
fast as it can. So it counts for LEAP times as many replicas at most, and one looks again then.

Pure functions over columns. Replicas of one operator are a *stage*.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sched_ctl.metrics.verdicts import SATURATED, Assessment, Mask
from sched_ctl.metrics.window import Window, divide
from sched_ctl.model.graph import Array, Graph, Index
from sched_ctl.model.topology import Topology

__all__ = [
    "LEAP",
    "LEAST_USEFUL",
    "Stages",
    "Wanted",
    "called",
    "stages",
    "times",
    "wanted",
    "whole",
]

LEAST_USEFUL = 0.01  # of the time: below that, what a replica could do is not known
LEAST_FREE = 0.1  # of the time: a source that is held is not taken to emit more than 10 times more
LEAP = 3  # times as many replicas in one step, where a source is held and so may want anything
SLACK = 0.05  # of a replica: figures are not as exact as that
MOST_REPLICAS = 1 << 15  # Flink's largest parallelism; beyond it, an engine's figures are wrong


@dataclass(frozen=True, eq=False)
class Stages:
    """The operators of one engine with their replicas put together.

    of: (n,) stage of each physical operator. queries, names: (m,) of each stage; logical: (m,) the
    operators that it is fused from. replicas: (m,).
    graph: over stages; share: part of a stage's output that takes an edge, all replicas together.
    """

    of: Index
    queries: tuple[str, ...]
    names: tuple[str, ...]
    logical: tuple[tuple[str, ...], ...]
    replicas: Index
    graph: Graph


@dataclass(frozen=True, eq=False)
class Wanted:
    """What m stages need. NaN = unknown.

    rate: (m,) tuples/s that a stage has to take in. true_rate: (m,) that one replica could, alone
    on a CPU. needed: (m,) replicas, before rounding up. cpus: (m,) CPUs for it. source_held:
    (m,) whether a source above it is held, so that all of these are for what it could emit.
    """

    stages: Stages
    rate: Array
    true_rate: Array
    needed: Array
    cpus: Array
    source_held: Mask

    @cached_property
    def first(self) -> Array:
        """(m,) replicas to have next, before rounding up; NaN where unknown, and for sources."""
        most = np.where(self.source_held, LEAP * self.stages.replicas, MOST_REPLICAS)
        return np.where(self.stages.graph.ingress, np.nan, np.minimum(self.needed, most))

    @cached_property
    def replicas(self) -> Index:
        """(m,) the same in whole ones; as many as there are where it is not known."""
        known = ~np.isnan(self.first)
        return np.where(known, whole(np.where(known, self.first, 1.0)), self.stages.replicas)


def stages(topology: Topology) -> Stages:
    """Replicas put together: operators of one query that run the same logical ones."""
    place: dict[tuple[str, tuple[str, ...]], int] = {}
    of = np.array(
        [place.setdefault((o.query, o.logical), len(place)) for o in topology.operators],
        dtype=np.intp,
    )
    replicas = np.bincount(of, minlength=len(place))
    shares: dict[tuple[int, int], float] = {}
    graph = topology.graph
    for source, target, share in zip(
        of[graph.source].tolist(), of[graph.target].tolist(), graph.share.tolist(), strict=True
    ):
        shares[source, target] = shares.get((source, target), 0.0) + share / replicas[source]
    ends = np.array(list(shares), dtype=np.intp).reshape(-1, 2)
    return Stages(
        of,
        tuple(query for query, _ in place),
        tuple(called(logical) for _, logical in place),
        tuple(logical for _, logical in place),
        replicas,
        Graph(len(place), ends[:, 0], ends[:, 1], np.array(list(shares.values()))),
    )


def times(parts: Stages, count: int) -> Stages:
    """So many of them side by side, for windows that are (`telemetry.replay.beside`)."""
    m, graph = len(parts.names), parts.graph
    first = np.repeat(np.arange(count, dtype=np.intp) * m, len(graph.source))
    return Stages(
        np.tile(parts.of, count) + np.repeat(np.arange(count) * m, len(parts.of)),
        parts.queries * count,
        parts.names * count,
        parts.logical * count,
        np.tile(parts.replicas, count),
        Graph(
            m * count,
            np.tile(graph.source, count) + first,
            np.tile(graph.target, count) + first,
            np.tile(graph.share, count),
        ),
    )


def wanted(window: Window, found: Assessment, known: Stages | None = None) -> Wanted:
    """What the stages of a window's topology need. found: its verdicts, over physical operators.

    known: `stages` of that topology, where somebody has kept them.
    """
    parts = known or stages(window.now.topology)
    m = len(parts.names)

    def total(column: Array) -> Array:
        """(m,) over replicas; NaN where one of them is not known."""
        return np.bincount(parts.of, weights=column, minlength=m).astype(np.float64)

    taken, sent = total(window.rate("tuples_in")), total(window.rate("tuples_out"))
    useful = found.run + np.nan_to_num(found.blocked)
    with np.errstate(all="ignore"):
        alone = np.where(useful >= LEAST_USEFUL, window.rate("tuples_in") / useful, np.nan)
        per_tuple = divide(total(found.run * np.maximum(window.threads, 1)), taken)  # CPU seconds
    true_rate = total(alone) / parts.replicas
    selectivity = divide(sent, taken)
    rate, source_held = _rates(parts.graph, *_sources(parts, found, sent), selectivity)
    return Wanted(
        parts,
        np.where(parts.graph.ingress, taken, rate),
        true_rate,
        divide(rate, true_rate),
        rate * per_tuple,
        source_held,
    )


def _sources(parts: Stages, found: Assessment, sent: Array) -> tuple[Array, Mask]:
    """(m,) tuples/s that each would emit as a source, and whether that is a lower bound."""
    held = np.nan_to_num(found.backpressured)
    busy = np.nan_to_num(found.run) + np.nan_to_num(found.wait) + held
    m = len(parts.names)
    free = 1.0 - np.bincount(parts.of, weights=held, minlength=m) / parts.replicas
    full = np.zeros(m, dtype=np.bool_)
    np.logical_or.at(full, parts.of, busy >= SATURATED)
    # Who has time left makes up for what it waited
    return np.where(full, sent / np.maximum(free, LEAST_FREE), sent), full


def _rates(
    graph: Graph, source_sent: Array, source_bound: Mask, selectivity: Array
) -> tuple[Array, Mask]:
    """(m,) tuples/s that each stage has to take in, from the sources down; NaN on a cycle."""
    rate, sent = np.full(graph.n, np.nan), np.full(graph.n, np.nan)
    bound = np.zeros(graph.n, dtype=np.bool_)
    up = graph.reversed
    for rows, edges in up.levels:
        into = np.bincount(
            up.source[edges], weights=up.share[edges] * sent[up.target[edges]], minlength=graph.n
        )
        rate[rows] = np.where(graph.ingress[rows], np.nan, into[rows])
        np.logical_or.at(bound, up.source[edges], bound[up.target[edges]])
        # Where nothing arrives, nothing is emitted, whatever the selectivity
        sent[rows] = np.where(rate[rows] == 0.0, 0.0, rate[rows] * selectivity[rows])
        first = rows[graph.ingress[rows]]
        sent[first], bound[first] = source_sent[first], source_bound[first]
    return rate, bound


def whole(replicas: Array) -> Index:
    """Replicas as one can have them: rounded up, and one at least."""
    return np.maximum(np.ceil(replicas - SLACK), 1).astype(np.intp)


def called(logical: tuple[str, ...]) -> str:
    """A stage's name, by the operators that it is fused from."""
    return logical[0] if len(logical) == 1 else f"{logical[0]}..{logical[-1]}" if logical else "?"
