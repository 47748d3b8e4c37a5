"""MIN-MEMORY: u = tuple_size * (1 - s) / c, the memory that x frees per CPU second.

Aurora's greedy rule (Carney et al. 2003); Chain looks further down the query. On a DAG every branch
queues its own copy, and an egress frees all of its input: see `formulas.memory_freed`. Operators
that shared queries hang on need no rule of their own: their branches are copies too.
"""

import numpy as np

from sched_ctl.metrics.formulas import memory_freed
from sched_ctl.model.policy import OperatorFrame, Policy, Spacing, UrgencyForm, form

__all__ = ["policy"]


def urgency(frame: OperatorFrame) -> UrgencyForm:
    freed = memory_freed(frame.graph, frame["selectivity"], frame["tuple_size"])
    with np.errstate(all="ignore"):
        return form(len(frame), static=freed / frame["cost"])


policy = Policy(
    name="min-memory",
    urgency=urgency,
    needs=frozenset({"cost", "selectivity", "tuple_size"}),
    goal="memory in queues, looking one operator ahead",
    spacing=Spacing.LOGARITHMIC,
)
