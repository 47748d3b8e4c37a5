"""What a schedule asks of cgroups: who is in which group, and what each weighs."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sched_ctl.model.normalise import places, scaled_shares, weights
from sched_ctl.model.schedule import Schedule

__all__ = ["Wanted", "wanted_groups"]

SPREAD = 8.0  # weights of single priorities reach from default / 8 to default * 8


@dataclass(frozen=True)
class Wanted:
    """What a schedule asks for: the group of each thread (None: its base), and their weights."""

    keys: tuple[str | None, ...]
    weights: Mapping[str, int]


def wanted_groups(
    schedule: Schedule, scale: tuple[int, int, int], most: int, *, by_priority: bool
) -> Wanted:
    """What to ask for.

    scale: smallest, largest and default weight. by_priority: of a schedule without groups, whether
    each thread has one for itself, or, beyond `most` threads, each level of priority.
    """
    low, high, default = scale
    keys: list[str | None] = [None] * len(schedule.threads)
    if schedule.groups:
        for name, group in schedule.groups.items():
            for row in group.rows:
                keys[row] = name
        shares = {name: group.share for name, group in schedule.groups.items()}
        return Wanted(tuple(keys), scaled_shares(shares, low, high, default))
    if not by_priority:
        return Wanted(tuple(keys), {})
    place = places(schedule)
    value = weights(
        place, max(low, round(default / SPREAD)), min(high, round(default * SPREAD)), default
    ).tolist()
    if len(keys) <= most:
        names = [
            f"{operator}#{thread.tid}"
            for operator, thread in zip(schedule.operators, schedule.threads, strict=True)
        ]
        return Wanted(tuple(names), dict(zip(names, value, strict=True)))
    step = np.log(SPREAD**2) / max(1, most - 1)
    level = [round(float(np.log(weight) / step)) for weight in value]
    total: dict[str, int] = {}
    for nth, weight in zip(level, value, strict=True):
        total[f"level {nth}"] = total.get(f"level {nth}", 0) + weight
    fit = min(1.0, high / max(total.values()))  # for all alike, or many would weigh less than few
    scaled = {name: max(low, round(weight * fit)) for name, weight in total.items()}
    return Wanted(tuple(f"level {nth}" for nth in level), scaled)
