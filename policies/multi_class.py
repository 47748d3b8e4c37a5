"""MULTI-CLASS: rank = class, inside each class the urgency of its own policy.

Urgent classes first, whatever the load of the others (Haren, Palyvos-Giannas et al. 2019, section
7.4: HIGH uses FCFS, LOW uses HR). With `strict` they may take all; without, no query that has work
gets less than its share would be without an order, where the backend can hold that floor. A
priority is the vector <class, in-class priority>, compared lexicographically; a class whose policy
has ranks itself keeps them inside the class. Classes are patterns of queries, the most important
first. The spacing is logarithmic as soon as that of one class is: min-max on the logarithms keeps
the order of the others.
"""

from collections.abc import Mapping
from functools import lru_cache, partial

import numpy as np

from sched_ctl.model.frames import subframe
from sched_ctl.model.graph import Index
from sched_ctl.model.patterns import fits, names_of
from sched_ctl.model.policy import (
    Level,
    OperatorFrame,
    Policy,
    Query,
    Spacing,
    UrgencyForm,
    form,
)
from sched_ctl.plugins import registry

__all__ = ["policy"]

KEPT = 1 << 14  # queries whose class is remembered: an engine may tell others for ever
DEFAULT = {"[Hh][Ii][Gg][Hh]*": "fcfs", "*": "hr"}


def policy(
    classes: dict[str, str] | None = None,
    options: dict[str, dict[str, object]] | None = None,
    strict: bool = False,
) -> Policy:
    """classes: pattern of queries (see `patterns`) -> policy, most important first.

    options: pattern -> options of that class's policy. Queries that no pattern matches form a
    last class without order. strict: an urgent class may take all, as in Haren, also what others
    would have of the CPU without an order.
    """
    table = classes or DEFAULT
    if strangers := set(options or {}) - table.keys():
        raise ValueError(f"options for {', '.join(sorted(strangers))}, which is no class")
    parts = {
        pattern: registry.policy(name, (options or {}).get(pattern, {}))
        for pattern, name in table.items()
    }
    if any(part.level is not Level.PHYSICAL for part in parts.values()):
        raise ValueError("the policies of classes must be on physical operators")

    @lru_cache(KEPT)
    def class_of(names: tuple[str, ...]) -> int:
        return next((i for i, p in enumerate(parts) if fits((p,), *names)), len(parts))

    def members(frame: OperatorFrame) -> Index:
        found = [class_of(names_of(*query)) for query in frame.queries]
        return np.array(found, dtype=np.intp)[frame.query]

    def remember(name: str, frame: OperatorFrame, now_s: float) -> Mapping[Query, float]:
        found: dict[Query, float] = {}
        member = members(frame)
        for i, part in enumerate(parts.values()):
            rows = np.flatnonzero(member == i)
            if name in part.remembers and len(rows):
                found.update(part.remembers[name](subframe(frame, rows), now_s))
        return found

    def urgency(frame: OperatorFrame) -> UrgencyForm:
        member = members(frame)
        result = form(len(frame), static=np.nan)
        rank = 0.0  # of the most important of what is left
        for i, part in enumerate(parts.values()):
            rows = np.flatnonzero(member == i)
            inside = part.urgency(subframe(frame, rows))
            levels, place = np.unique(np.nan_to_num(inside.rank), return_inverse=True)
            result.rank[rows] = rank - len(levels) + 1 + place
            result.static[rows] = inside.static
            result.per_second[rows] = inside.per_second
            result.per_tuple[rows] = inside.per_tuple
            rank -= max(len(levels), 1)
        result.rank[member == len(parts)] = rank
        return result

    logarithmic = any(part.spacing is Spacing.LOGARITHMIC for part in parts.values())
    return Policy(
        name="multi-class",
        urgency=urgency,
        needs=frozenset[str]().union(*(part.needs for part in parts.values())),
        wants=frozenset[str]().union(*(part.wants for part in parts.values())),
        goal="important queries first, each class with its own goal",
        spacing=Spacing.LOGARITHMIC if logarithmic else Spacing.LINEAR,
        remembers={
            name: partial(remember, name) for part in parts.values() for name in part.remembers
        },
        steady=all(part.steady for part in parts.values()),
        strict=strict,
    )
