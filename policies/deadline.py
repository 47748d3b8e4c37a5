"""DEADLINE: the least slack first, u = -(L - W_x - C_x) = C_x - L + W_x.

L is the target of the query, W_x the head age, time on other nodes before included, and C_x the CPU
time along the costliest path from here to the egress: a tuple must start by arrival + L - C_x to
leave in time (Cameo, Xu et al., NSDI 2021). In a rank of their own above all others are queries
whose target can be met and is in danger: less slack than `DANGER_S`, or than half of the target if
that is longer. Who is late (`metrics.feasibility`) comes behind those of its weight or more, and
before those of less. Below them are all others, with those whose target cannot be met whatever is
done, in the order of another policy, `others`.

Where nice values stand for the order, a rank is worth more than what differs inside of it: in the
lab engine, alarms of 10 ms and reports of 100 ms beside bulk that is in no hurry, 0.66 of the
reports came in time with bands of equal width.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sched_ctl.errors import UserError
from sched_ctl.metrics import feasibility
from sched_ctl.metrics.feasibility import LATENCY, STANDING, WEIGHT, Standing
from sched_ctl.model.graph import Array, distinct
from sched_ctl.model.policy import Level, OperatorFrame, Policy, Spacing, UrgencyForm
from sched_ctl.model.targets import Target, faults
from sched_ctl.plugins import registry

__all__ = ["DANGER_S", "policy"]

Mask = npt.NDArray[np.bool_]

DANGER_S = 2.0  # which is longer than it takes to look again


def policy(targets: tuple[Target, ...] = (), others: str = "balanced") -> Policy:
    """targets: tables of queries (patterns), latency ("50ms"), share and weight; the first counts.

    others: the policy of those that have none, or no danger, or no hope.
    """
    for place, key, message, _ in faults(targets):
        raise UserError(f"policy deadline: targets[{place}].{key}: {message}")
    if others == "deadline":
        raise UserError("policy deadline: others must be another policy")
    rest = registry.policy(others)
    if rest.level is not Level.PHYSICAL:
        raise UserError(f"policy deadline: {others} is not on physical operators")
    # It may have ranks of its own, and targets have some
    factors = rest.spacing is Spacing.LOGARITHMIC
    rest = replace(rest, spacing=Spacing.RANKED_LOGARITHMIC if factors else Spacing.RANKED)

    def urgency(frame: OperatorFrame) -> UrgencyForm:
        below = rest.urgency(frame)
        told = _told(frame, targets)
        latency, standing = told[LATENCY], told[STANDING]
        path = np.nan_to_num(frame.columns.get("path_cost", np.zeros(len(frame))))
        age = feasibility.age(frame)
        slack = _least(frame, latency - age - path)
        first = (standing == Standing.MEETS) & (slack < np.maximum(DANGER_S, latency / 2))
        late = standing == Standing.LATE
        by_slack = first | late
        rank = _stacked(below.rank, late, told[WEIGHT], first)
        return UrgencyForm(
            rank,
            np.where(by_slack, path - latency, below.static),
            np.where(by_slack, 1.0, below.per_second),
            np.where(by_slack, 0.0, below.per_tuple),
        )

    return Policy(
        name="deadline",
        urgency=urgency,
        needs=rest.needs,
        wants=rest.wants | feasibility.WANTS,
        goal="latency targets of queries, the least slack first",
        spacing=rest.spacing,
        remembers=rest.remembers,
        steady=rest.steady,
        strict=bool(targets) or rest.strict,
        targets=tuple(targets),
    )


def _told(frame: OperatorFrame, targets: tuple[Target, ...]) -> Mapping[str, Array]:
    """Columns of targets, and how the queries stand with them, see `feasibility.tell`.

    Whoever decides has put them into the frame; else by the queries' names alone, as it is now, and
    with CPUs enough.
    """
    if LATENCY in frame.columns:
        return frame.columns
    engines = [""] * (1 if frame.engine is None else int(frame.engine.max(initial=0)) + 1)
    judged = feasibility.judge(frame, engines, targets, np.inf, {})
    return feasibility.tell(frame, engines, judged)


def _least(frame: OperatorFrame, slack: Array) -> Array:
    """(n,) the least slack of each one's query."""
    least = np.full(int(frame.query.max(initial=-1)) + 1, np.inf)
    np.fmin.at(least, frame.query, slack)
    return least[frame.query]


def _stacked(below: Array, late: Mask, weight: Array, first: Mask) -> Array:
    """(n,) ranks: those of others as they are, above them who has a target in danger.

    Who is late comes after those of its weight or more, and before those of less.
    """
    highest = float(np.nan_to_num(below).max(initial=0.0))
    above = 2.0 * np.searchsorted(distinct(weight[late]), weight, side="right")
    return np.where(late, highest + above, np.where(first, highest + 1 + above, below))
