"""What a policy decided, as plain data on its way to a backend.

*Single-priority* schedules map threads to urgencies; *grouping* schedules also put threads into
groups with shares (Lachesis, section 4). A schedule is what `plan`, `explain`, record and replay
show.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from sched_ctl.graph import Array
from sched_ctl.model import Thread
from sched_ctl.policy import Spacing, UrgencyForm

__all__ = ["Group", "Schedule"]


@dataclass(frozen=True)
class Group:
    """Threads (rows of the schedule) that get `share` of the CPU, relative to other groups."""

    share: float
    rows: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Schedule:
    """m threads and how urgent each is.

    scope: name of the policy binding that made it. A backend that gets a schedule releases the
    threads that the previous schedule of the same scope had and this one has not.
    form, head_age_s, queue_size: (m,) columns over `threads`.
    operators: m labels "query/operator", or "engine: role" for a helper thread.
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
