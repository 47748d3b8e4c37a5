"""CONSTANT: priorities by hand, by name pattern.

A pattern (see `patterns`) is over "query/operator", or over the query alone ("etl" is "etl/*"). The
first one that matches counts, in the order given; operators that none matches get the default.
"""

from functools import lru_cache

import numpy as np

from sched_ctl.errors import UserError, near_miss
from sched_ctl.model.patterns import first, names_of
from sched_ctl.model.policy import Level, OperatorFrame, Policy, UrgencyForm, form

__all__ = ["policy"]

KEPT = 1 << 16  # operators whose priority is remembered: an engine may tell others for ever


def policy(
    priorities: dict[str, float] | None = None, default: float = 0.0, level: str = "physical"
) -> Policy:
    """priorities: pattern -> priority, larger is more urgent. level: "physical" or "logical"."""
    table = dict(priorities or {})
    if not all(map(np.isfinite, [default, *table.values()])):
        raise UserError("policy constant: a priority is not a finite number")
    levels = {known.value: known for known in Level}
    if level not in levels:
        raise UserError(f"policy constant: no level {level!r}{near_miss(level, levels)}")

    @lru_cache(KEPT)
    def priority(queries: tuple[str, ...], name: str) -> float:
        found = first(table, *(f"{query}/{name}" for query in queries), *queries)
        return default if found is None else found

    def urgency(frame: OperatorFrame) -> UrgencyForm:
        names = [names_of(*query) for query in frame.queries]
        of = (names[query] for query in frame.query.tolist())
        values = (priority(next(of), operator.name) for operator in frame.operators)
        return form(len(frame), static=np.fromiter(values, dtype=np.float64, count=len(frame)))

    return Policy(
        name="constant",
        urgency=urgency,
        needs=frozenset(),
        goal="priorities by hand",
        level=levels[level],
    )
