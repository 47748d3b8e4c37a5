"""Targets in the simulator: who kept them, what they cost the others, what they would take.

Who can meet a target at all is judged as the controller does (`metrics.feasibility`), by costs and
rates alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sched_ctl.metrics import feasibility
from sched_ctl.metrics.feasibility import Judgement
from sched_ctl.model.targets import Target
from sched_ctl.plugins import registry
from sched_ctl.sim.node import Node
from sched_ctl.sim.result import Result, interval, quantile

__all__ = ["Kept", "judged", "kept"]

Figure = tuple[float, float]  # mean over the seeds, and half width of its 95% interval


@dataclass(frozen=True)
class Kept:
    """What became of a target; None: of the queries without one, of which `met` and `within_s` are
    NaN.

    met: share of the tuples. within_s: the latency that the share asked for has kept. queries: each
    one's share of tuples, over all seeds; NaN where none left.
    """

    target: Target | None
    met: Figure
    within_s: Figure
    response_s: Figure
    p99_s: Figure
    queries: Mapping[str, float]

    @property
    def keeps(self) -> list[str]:
        """Queries that keep it."""
        asked = math.nan if self.target is None else self.target.share
        return [query for query, met in self.queries.items() if met >= asked]


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
    operators = [operator.query for operator in node.topology.operators]
    rows = np.isin(operators, queries)
    share = math.nan if target is None else target.share

    def over(column: str) -> list[float]:
        """Of a sum, the mean of a tuple in each run."""
        each = [(r.columns[column][rows].sum(), r.columns["departed"][rows].sum()) for r in runs]
        return [float(total / tuples) if tuples else math.nan for total, tuples in each]

    met = dict.fromkeys(queries, math.nan)
    for query in queries if target is not None else ():
        mine = np.equal(operators, query)
        tuples = sum(float(r.columns["departed"][mine].sum()) for r in runs)
        if tuples:
            met[query] = sum(float(r.columns["met"][mine].sum()) for r in runs) / tuples
    none = (math.nan, math.nan)
    return Kept(
        target,
        none if target is None else interval(over("met")),
        none if target is None else interval([quantile(r.by_target[kind], share) for r in runs]),
        interval(over("response")),
        interval([quantile(r.by_target[kind], 0.99) for r in runs]),
        met,
    )
