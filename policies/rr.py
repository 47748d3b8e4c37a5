"""RR: round robin over queries, RB inside each (Aurora's two levels, Carney et al. 2003).

"Whose turn is it" is no function of an operator's head age and queue size, so no urgency form is a
round robin. What it comes to is: every query gets the same share of the CPU, and inside a query the
order is RB's. That is what this policy asks for: one group a query, all with the same share, and
RB's rate inside. The simulator serves groups by turns, which is exact; sched_ext and cgroups share
the CPU equally in small slices, which is round robin with a finer grain than one tuple. A backend
without groups (nice alone) has only the form: there the best operators of all queries are equally
urgent, which is a round robin between those and an approximation for the rest.
"""

from sched_ctl.model.policy import OperatorFrame, Policy, Spacing, UrgencyForm, form
from sched_ctl.policies.rb import rate_within_query

__all__ = ["policy"]


def urgency(frame: OperatorFrame) -> UrgencyForm:
    return form(len(frame), static=rate_within_query(frame))


policy = Policy(
    name="rr",
    urgency=urgency,
    needs=frozenset({"global_selectivity", "global_cost"}),
    goal="baseline: equal shares for the queries",
    spacing=Spacing.LOGARITHMIC,
    groups=lambda _, query: (query, 1.0),
)
