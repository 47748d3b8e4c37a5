"""What of a cluster is read, or made, again, and when: one table."""

import enum
import math
import time

__all__ = ["AGAIN_S", "STALE", "Event", "Part", "Stale"]


class Part(enum.Enum):
    """What is kept from one poll to the next."""

    LIST = "which jobs there are"
    PROCESSES = "TaskManagers that run here, and their pages"
    PLAN = "operators and subtasks of the jobs"
    TOPOLOGY = "operators with their threads, as they are told"


class Event(enum.Enum):
    """What was noticed."""

    THREADS = "threads came or went"
    NAMES = "a virtual machine was asked for its threads"
    LISTED = "the list of jobs says something else"
    JOB = "what was read of a job may be from before its last change, or lacks a thread"
    PLANNED = "the plan is another one"
    CAME = "a TaskManager was found"
    ENDED = "a TaskManager has ended"
    WORKERS = "Python processes of a TaskManager, or their threads, are others"
    PAGE = "a page of metrics was found, or given up"


STALE: dict[Event, tuple[Part, ...]] = {
    Event.THREADS: (Part.LIST,),
    Event.NAMES: (Part.TOPOLOGY,),
    Event.LISTED: (Part.PLAN, Part.PROCESSES, Part.TOPOLOGY),
    Event.JOB: (Part.PLAN, Part.TOPOLOGY),
    Event.PLANNED: (Part.TOPOLOGY,),
    Event.CAME: (Part.TOPOLOGY,),
    Event.ENDED: (Part.PROCESSES, Part.TOPOLOGY),
    Event.WORKERS: (Part.TOPOLOGY,),
    Event.PAGE: (Part.TOPOLOGY,),
}
# Without any event. A driver is mostly asked once a second: who comes a moment early is not sent
# away for another.
AGAIN_S = {Part.LIST: 0.9, Part.PROCESSES: 10.0, Part.PLAN: math.inf, Part.TOPOLOGY: math.inf}


class Stale:
    """Which parts are to be had again: all at first."""

    def __init__(self) -> None:
        self._due_s = dict.fromkeys(Part, 0.0)

    def __contains__(self, part: Part) -> bool:
        return time.monotonic() >= self._due_s[part]

    def by(self, event: Event) -> None:
        for part in STALE[event]:
            self._due_s[part] = 0.0

    def done(self, part: Part) -> None:
        """It has been read or made, wholly."""
        self._due_s[part] = time.monotonic() + AGAIN_S[part]
