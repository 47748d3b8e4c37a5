"""RB, rate based: u = (S_x / C_x) / (largest S / C of the query).

Inside a query the operator with the most results per CPU second comes first (Urhan and Franklin
2001; Sharaf et al. 2006). RB does not compare queries: dividing by the query's largest rate makes
their best operators equally urgent. On a DAG: see `hr`.
"""

import numpy as np

from sched_ctl.model.graph import Array
from sched_ctl.model.policy import OperatorFrame, Policy, Spacing, UrgencyForm, form

__all__ = ["policy", "rate_within_query"]


def rate_within_query(frame: OperatorFrame) -> Array:
    """(n,) S / C over the largest S / C of the operator's query; NaN where unknown."""
    with np.errstate(all="ignore"):
        rate = frame["global_selectivity"] / frame["global_cost"]
        known = np.where(np.isfinite(rate), rate, 0.0)
        largest = np.zeros(len(frame))
        np.maximum.at(largest, frame.query, known)
        return np.asarray(rate / largest[frame.query])


def urgency(frame: OperatorFrame) -> UrgencyForm:
    return form(len(frame), static=rate_within_query(frame))


policy = Policy(
    name="rb",
    urgency=urgency,
    needs=frozenset({"global_selectivity", "global_cost"}),
    goal="mean latency of one query",
    spacing=Spacing.LOGARITHMIC,
)
