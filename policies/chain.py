"""CHAIN: u = steepness of the lower envelope of the query's progress chart at x; tie: W.

Operators that free the most memory per CPU second come first, and with them those that lead there:
least memory in queues (Babcock et al. 2003; as in Haren, Palyvos-Giannas et al. 2019, the tie goes
to the older head). How the envelope is extended to forks, joins and shared operators: see
`sched_ctl.metrics.envelope`. Needs `tuple_size` only where tuples differ in size; else memory
counts tuples.
"""

import numpy as np

from sched_ctl.metrics.envelope import steepness
from sched_ctl.metrics.formulas import memory_freed
from sched_ctl.model.policy import OperatorFrame, Policy, Spacing, UrgencyForm, form

__all__ = ["policy"]

TIE = 1e-9  # per second of age, of the smallest steepness


def urgency(frame: OperatorFrame) -> UrgencyForm:
    freed = memory_freed(frame.graph, frame["selectivity"], frame["tuple_size"])
    slope = steepness(frame.graph, frame["cost"], frame["selectivity"], freed)
    size = np.abs(slope[np.isfinite(slope) & (slope != 0)])
    tie = TIE * float(size.min()) if len(size) else 0.0
    return form(len(frame), static=slope, per_second=tie)


policy = Policy(
    name="chain",
    urgency=urgency,
    needs=frozenset({"cost", "selectivity", "tuple_size", "head_age"}),
    goal="memory in queues",
    spacing=Spacing.LOGARITHMIC,
)
