"""CQC, continuous query classes: weighted round robin over classes, HR inside each.

Keeps the latency of important queries low without starving the others (the two-level scheduler of
Sharaf et al. for query classes, with HR of Sharaf et al. 2006 inside). As with `rr`, turns are no
function of ages and queues: the classes become groups with the wanted shares, and u = S_x / C_x
orders operators inside. The simulator's turns are exact, sched_ext and cgroups divide the time; a
backend without groups (nice alone) only has HR over all classes.
"""

import numpy as np

from sched_ctl.model.patterns import fits, names_of
from sched_ctl.model.policy import Policy, Spacing
from sched_ctl.policies import hr

__all__ = ["policy"]


def policy(weights: dict[str, float] | None = None) -> Policy:
    """weights: pattern of queries (see `patterns`) -> share of that class; the first one counts.

    The queries that no pattern matches form a class of their own, of weight 1.
    """
    table = dict(weights or {})
    if not all(np.isfinite(weight) and weight > 0 for weight in table.values()):
        raise ValueError("a weight must be a number above 0")

    def groups(engine: str, query: str) -> tuple[str, float]:
        names = names_of(engine, query)
        return next((entry for entry in table.items() if fits(entry[:1], *names)), ("other", 1.0))

    return Policy(
        name="cqc",
        urgency=hr.urgency,
        needs=hr.NEEDS,
        goal="shares for classes of queries, mean latency inside each",
        spacing=Spacing.LOGARITHMIC,
        groups=groups,
    )
