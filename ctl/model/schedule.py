"""What a policy decided, as plain data on its way to a backend.

*Single-priority* schedules map threads to urgencies; *grouping* schedules also put threads into
groups with shares (Lachesis, section 4). A schedule is what `plan`, `explain`, record and replay
show.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from sched_ctl.model.graph import Array, Index
from sched_ctl.model.policy import NOTHING, Memory, Spacing, UrgencyForm
from sched_ctl.model.topology import Thread

__all__ = ["Group", "Schedule", "without"]


@dataclass(frozen=True)
class Group:
    """Threads (rows of the schedule) that get `share` of the CPU, relative to other groups."""

    share: float
    rows: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Schedule:
    """m threads and how urgent each is.

    scope: name of the rule that made it. A backend that gets a schedule releases the
    threads that the previous schedule of the same scope had and this one has not.
    form, head_age_s, queue_size: (m,) columns over `threads`.
    operators: m labels "query/operator", or "engine: role" for a helper thread.
    queries: of each thread, the engine and the query that it works for; None for a helper thread
    that works for none.
    depth: (m,) how far along its query's data way the thread's operator is, from 1; 0 for helper
    threads and where unknown. (0,) if nobody said.
    flushers: pairs of a helper thread that hands on by a timer what an operator makes, and the
    operator's thread; helpers with a rule of their own are left out.
    memory: what the policy wants to know at the rule's next schedule, see `Policy.remembers`.
    strict: whether the order counts whatever it takes from a query, see `Policy.strict`.
    targets: how those that have a target stand with it, see `metrics.feasibility.Judgement`.
    spinning: engines whose operators' threads use a CPU while they wait for input.
    lifts: whether a thread may come to be above what it had. Not where a user's own word decides.
    standing, grain: for who holds what samples say until the next schedule. standing: queues are
    long, compared with what may change meanwhile. grain: where they are short, the urgency that one
    waiting tuple makes; None: nothing is known of it.
    arrival_age_s: (m,) how old tuples are when they come to the thread from another node; (0,) if
    none do.
    """

    scope: str
    policy: str
    spacing: Spacing
    threads: tuple[Thread, ...]
    operators: tuple[str, ...]
    form: UrgencyForm
    head_age_s: Array
    queue_size: Array
    groups: Mapping[str, Group] = field(default_factory=lambda: MappingProxyType({}))
    queries: tuple[tuple[str, str] | None, ...] = ()
    depth: Index = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    flushers: tuple[tuple[Thread, Thread], ...] = ()
    memory: Memory = field(default_factory=lambda: NOTHING)
    strict: bool = False
    targets: Mapping[tuple[str, str], Any] = field(default_factory=lambda: MappingProxyType({}))
    spinning: frozenset[str] = frozenset()
    lifts: bool = True
    standing: bool = False
    grain: float | None = None
    arrival_age_s: Array = field(default_factory=lambda: np.zeros(0))


def without(schedule: Schedule, spared: Set[Thread]) -> Schedule:
    """The schedule without some threads."""
    if not spared:
        return schedule
    keep = [row for row, thread in enumerate(schedule.threads) if thread not in spared]
    if len(keep) == len(schedule.threads):
        return schedule
    rows = np.array(keep, dtype=np.intp)
    place = {old: new for new, old in enumerate(keep)}
    groups = {
        name: Group(group.share, tuple(place[row] for row in group.rows if row in place))
        for name, group in schedule.groups.items()
    }
    return replace(
        schedule,
        threads=tuple(schedule.threads[row] for row in keep),
        operators=tuple(schedule.operators[row] for row in keep),
        queries=tuple(schedule.queries[row] for row in keep if schedule.queries),
        depth=schedule.depth[rows] if len(schedule.depth) else schedule.depth,
        arrival_age_s=schedule.arrival_age_s[rows] if len(schedule.arrival_age_s) else np.zeros(0),
        form=schedule.form.take(rows),
        head_age_s=schedule.head_age_s[rows],
        queue_size=schedule.queue_size[rows],
        groups={name: group for name, group in groups.items() if group.rows},
        flushers=tuple(pair for pair in schedule.flushers if spared.isdisjoint(pair)),
    )
