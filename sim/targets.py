"""Targets in the simulator: who kept them, what they cost the others, what they would take.

Who can meet a target at all is judged as the controller does (`metrics.feasibility`), by costs and
rates alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sched_ctl.metrics import feasibility
from sched_ctl.metrics.feasibility import Judgement
from sched_ctl.model.graph import Array
from sched_ctl.model.targets import Target
from sched_ctl.plugins import registry
from sched_ctl.sim.node import Node
from sched_ctl.sim.result import Result, interval, middle_s, quantile

__all__ = ["Kept", "judged", "kept"]

Figure = tuple[float, float]  # mean over the seeds, and half width of its 95% interval


@dataclass(frozen=True)
class Kept:
    """What became of a target; None: of the queries without one, of which `met` and `within_s` are
    NaN.

    met: share of the tuples. within_s: the latency that the share asked for has kept, of the tuples
    of all seeds. queries: each one's share of tuples, over all seeds; NaN where none left. Seeds of
    which no tuple left count for nothing.
    """

    target: Target | None
    met: Figure
    within_s: Figure
    response_s: Figure
    p50_s: Figure
    p99_s: Figure
    queries: Mapping[str, float]

    @property
    def keeps(self) -> list[str]:
        """Queries that keep it."""
        asked = math.nan if self.target is None else self.target.share
        return [query for query, met in self.queries.items() if met >= asked]

    @property
    def known(self) -> int:
        """Queries of which tuples left."""
        return sum(not math.isnan(met) for met in self.queries.values())


def judged(node: Node, cpus: float) -> dict[str, Judgement]:
    """How each query stands with its target while no tuple waits."""
    engine = node.topology.engine
    frame = node.frame(registry.policy("deadline", {"targets": node.targets}))
    found = feasibility.judge(frame, (engine,), node.targets, cpus, {})
    return {query: judgement for (_, query), judgement in found.items()}


def kept(runs: Sequence[Result]) -> tuple[Kept, ...]:
    """Each target of the runs' node, in their order, then those without one, if there are any."""
    node = runs[0].node
    if not node.targets:
        return ()
    found = []
    for kind, target in (*enumerate(node.targets, 1), (0, None)):
        queries = [q for q in node.topology.queries if node.targeted.get(q) is target]
        if queries:
            found.append(_of(kind, target, queries, runs))
    return tuple(found)


def _of(kind: int, target: Target | None, queries: list[str], runs: Sequence[Result]) -> Kept:
    node = runs[0].node
    names = node.topology.queries
    mine = np.isin(names, queries)

    def by_query(column: str) -> Array:
        """(runs, queries) sums."""
        return np.array([np.bincount(node.query_of, r.columns[column], len(names)) for r in runs])

    departed = by_query("departed")
    with np.errstate(invalid="ignore"):
        met = by_query("met")
        shares = met.sum(axis=0) / departed.sum(axis=0)
        tuples = departed[:, mine].sum(axis=1)
        share, response_s = (
            _over(each[:, mine].sum(axis=1) / tuples) for each in (met, by_query("response"))
        )
    within = [_within(r.by_target[kind], target) for r in runs]
    p50_s, p99_s = (
        _over(np.array([quantile(r.by_target[kind], part) for r in runs])) for part in (0.5, 0.99)
    )
    together = np.sum([r.by_target[kind] for r in runs], axis=0)
    unknown = (math.nan, math.nan)
    return Kept(
        target,
        unknown if target is None else share,
        (_within(together, target), _over(np.array(within))[1]),
        response_s,
        p50_s,
        p99_s,
        {q: math.nan if target is None else float(shares[names.index(q)]) for q in queries},
    )


def _within(histogram: npt.NDArray[np.int64], target: Target | None) -> float:
    """The first latency, in s, that at least the share asked for has kept; NaN if no tuple left."""
    tuples = int(histogram.sum())
    if target is None or not tuples:
        return math.nan
    return middle_s(int(np.searchsorted(np.cumsum(histogram), math.ceil(target.share * tuples))))


def _over(values: Array) -> Figure:
    known = values[~np.isnan(values)]
    return interval(known.tolist()) if len(known) else (math.nan, math.nan)
