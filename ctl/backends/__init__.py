"""Backends write a schedule to the kernel. Nothing else in sched-ctl changes the machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from sched_ctl.errors import UserError
from sched_ctl.model import Thread
from sched_ctl.schedule import Schedule

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


class Backend(Protocol):
    """Enforces schedules, one per scope, until `restore`."""

    name: ClassVar[str]

    def apply(self, schedule: Schedule) -> Applied:
        """Make the machine follow the schedule; release what its scope's last one had more.

        Journals before each change. Writes only differences. Threads are checked by identity
        (tid, start time) before they are touched.
        """
        ...

    def applied(self, thread: Thread) -> Mapping[str, str | float]:
        """What is in force for the thread, e.g. {"nice": 3}; empty if it is not ours."""
        ...

    def restore(self) -> tuple[str, ...]:
        """Put back everything this backend changed. Returns what could not be, in words."""
        ...
