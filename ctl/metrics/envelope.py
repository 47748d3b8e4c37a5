"""The lower envelope of progress charts (Babcock et al. 2003), for Chain scheduling.

A chain's progress chart goes from (0, size of a new tuple) down: operator by operator, by the
expected CPU time to the right and to the memory that is left of the tuple. Its lower envelope joins
operators to segments of falling steepness; a segment frees `freed / time` bytes per CPU second.

On a DAG a segment is a connected piece that begins with one operator: the piece below an operator
that frees the most per CPU second, by Sidney's decomposition for out-trees (Horn 1972): a segment
swallows the steepest of the segments below it as long as that one is steeper than itself. Segments
are made from the egresses up, so that those below are what they will be. On a chain this is the
lower envelope. An operator with several upstream ones is swallowed only when they
are all in the same segment (a diamond), else it begins a segment of its own.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from sched_ctl.model.graph import Array, Graph

__all__ = ["flow", "steepness"]


def flow(graph: Graph, selectivity: Array) -> Array:
    """(n,) expected input tuples of each operator per tuple that enters its ingresses.

    NaN below an unknown selectivity and on or below a cycle.
    """
    arriving = np.where(graph.ingress, 1.0, np.nan)
    for _, edges in graph.reversed.levels[1:]:
        source, target = graph.source[edges], graph.target[edges]
        arriving[target] = 0.0
        np.add.at(arriving, target, graph.share[edges] * selectivity[source] * arriving[source])
    return arriving


def steepness(graph: Graph, cost: Array, selectivity: Array, freed: Array) -> Array:
    """(n,) memory freed per CPU second by the segment that each operator is in.

    freed: (n,) per input tuple, see `formulas.memory_freed`. NaN where an operator's own cost,
    selectivity or flow is unknown; such an operator is in no segment.
    """
    rate = np.maximum(flow(graph, selectivity), 1e-12)  # a tuple in a million million still counts
    gain, time = rate * freed, rate * cost
    known = np.isfinite(gain) & np.isfinite(time)
    slope = np.full(graph.n, np.nan)
    begins = np.arange(graph.n)
    segments: dict[int, _Segment] = {}
    fed = np.bincount(graph.target, minlength=graph.n).tolist()
    feeds = _feeds(graph, known)
    down = [row for rows, _ in graph.reversed.levels for row in rows.tolist() if known[row]]
    for row in reversed(down):
        begun = _Segment(float(gain[row]), float(time[row]))
        begun.add(feeds[row], fed, segments)
        for other in begun.swallow(fed, segments):
            begins[other] = row
        segments[row] = begun
        slope[row] = begun.slope
    for row in down:  # who swallowed it comes before it
        begins[row] = begins[begins[row]]
    return slope[begins]


@dataclass
class _Segment:
    """What it frees, and in which time. below: edges to each segment that is fed from it.

    steepest: those of them that are fed from nowhere else, a heap of falling slopes.
    """

    gain: float
    time: float
    below: Counter[int] = field(default_factory=Counter)
    steepest: list[tuple[float, int]] = field(default_factory=list)

    @property
    def slope(self) -> float:
        return self.gain / self.time if self.time > 0 else self.gain * math.inf

    def add(
        self, below: Mapping[int, int], fed: Sequence[int], segments: Mapping[int, "_Segment"]
    ) -> None:
        """fed: edges to each operator, so who has them all feeds it alone."""
        for row, edges in below.items():
            self.below[row] += edges
            if self.below[row] == fed[row] and not math.isnan(segments[row].slope):
                heappush(self.steepest, (-segments[row].slope, row))

    def swallow(self, fed: Sequence[int], segments: Mapping[int, "_Segment"]) -> Iterator[int]:
        """Take the steepest segment below as long as it is steeper; tell with what each begins."""
        while self.steepest and -self.steepest[0][0] > self.slope:
            row = heappop(self.steepest)[1]
            del self.below[row]
            other = segments[row]
            self.gain += other.gain
            self.time += other.time
            few = other.below
            if len(few) > len(self.below):  # the fewer of the two are added to the others
                few, self.below, self.steepest = self.below, other.below, other.steepest
            self.add(few, fed, segments)
            yield row


def _feeds(graph: Graph, known: npt.NDArray[np.bool_]) -> list[Counter[int]]:
    """(n,) how many edges lead from each operator to each other, of those that are known."""
    found: list[Counter[int]] = [Counter() for _ in range(graph.n)]
    inner = known[graph.source] & known[graph.target]
    pairs = zip(graph.source[inner].tolist(), graph.target[inner].tolist(), strict=True)
    for source, target in pairs:
        found[source][target] += 1
    return found
