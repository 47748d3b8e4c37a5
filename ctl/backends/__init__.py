"""Backends write a schedule to the kernel. Nothing else in sched-ctl changes the machine."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from sched_ctl.errors import UserError
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import Thread

__all__ = ["Applied", "Backend", "BackendFailed", "Probe"]


class BackendFailed(UserError):
    """A backend cannot enforce a schedule here after all: restore it and take the next one."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether a backend can work on this machine, and why (not), in words for the user."""

    can: bool
    because: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Applied:
    """What one `apply` did.

    writes: system calls or file writes that changed something. repaired: threads that somebody
    else had changed behind our back and that were set again. gone: threads that died meanwhile
    (no error). problems: threads that could not be set, in words; never silent.
    """

    writes: int = 0
    unchanged: int = 0
    repaired: int = 0
    gone: int = 0
    problems: tuple[str, ...] = ()

    def __add__(self, other: "Applied") -> "Applied":
        return Applied(
            self.writes + other.writes,
            self.unchanged + other.unchanged,
            self.repaired + other.repaired,
            self.gone + other.gone,
            self.problems + other.problems,
        )


class Backend(ABC):
    """Enforces schedules, one per scope, until `restore`.

    lifts: whether it runs operators before other threads of the same weight.
    user_level: whether it can order user-level threads, too; otherwise it is given none.
    fair: whether threads that no schedule has get what the OS would give them, so that an engine's
    helpers need none of the rules that its driver has for them.
    mode: which way it works, where it has several. note: what it decided by itself, for `status`.
    on_lost: to be called with the reason, from any thread, once it notices by itself that it no
    longer works.
    good_until_s: CLOCK_MONOTONIC; if it passes, who decides stands still, and what is in force is
    of old samples. expires: whether the backend then lets go of it by itself.
    """

    name: ClassVar[str]
    user_level: ClassVar[bool] = False
    lifts: ClassVar[bool] = False
    expires: ClassVar[bool] = False
    fair: bool = False
    mode: str = ""
    note: str = ""
    on_lost: Callable[[str], None] | None = None
    good_until_s: float = math.inf

    @abstractmethod
    def apply(self, schedule: Schedule) -> Applied:
        """Make the machine follow the schedule; release what its scope's last one had more.

        Journals before each change. Writes only differences. Threads are checked by identity
        (tid, start time) before they are touched.
        """

    @abstractmethod
    def applied(self, thread: Thread) -> Mapping[str, str | float]:
        """What is in force for the thread, e.g. {"nice": 3}; empty if it is not ours."""

    @abstractmethod
    def restore(self) -> tuple[str, ...]:
        """Put back everything this backend changed. Returns what could not be, in words."""

    def rest(self) -> tuple[str, ...]:
        """Once a pass. Lets go of what it holds of the machine where it has ordered nobody for
        long; the next `apply` takes it again. Returns what could not be put back, in words.
        """
        return ()

    def statistics(self) -> Mapping[str, int]:
        """What it counted since it began, for a backend that dispatches by itself."""
        return {}

    def about(self) -> Mapping[str, str]:
        """A text for each of its `statistics`."""
        return {}
