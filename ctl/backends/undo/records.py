"""What the journal's lines say, and what they add up to."""

from dataclasses import dataclass, field
from typing import Annotated

import msgspec

__all__ = [
    "Adopted",
    "FileChanged",
    "FileRestored",
    "Group",
    "GroupRemoved",
    "Key",
    "Moved",
    "Process",
    "ProcessReleased",
    "Record",
    "Released",
    "Returned",
    "Set",
    "State",
]

# What a line may say: all else was not written by us, and nothing is set by it.
Pid = Annotated[int, msgspec.Meta(ge=1, le=1 << 22)]  # PID_MAX_LIMIT, linux/threads.h
Ticks = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Nice = Annotated[int, msgspec.Meta(ge=-20, le=19)]
Policy = Annotated[int, msgspec.Meta(ge=0, le=7)]  # linux/sched.h: SCHED_OTHER to SCHED_EXT
Way = Annotated[str, msgspec.Meta(max_length=4096, pattern=r"\A/[^\x00]*\Z")]
Text = Annotated[str, msgspec.Meta(max_length=1 << 16, pattern=r"\A[^\x00]*\Z")]

Key = tuple[Pid, Ticks]  # a thread's identity: tid, start time


class Adopted(msgspec.Struct, frozen=True, tag="adopted", tag_field="is", omit_defaults=True):
    """A thread's nice and policy before we first changed one of them.

    slice_ns: its time slice, 0 for the kernel's own; None where we leave slices alone.
    """

    pid: Pid
    tid: Pid
    start_time: Ticks = msgspec.field(name="start")
    nice: Nice
    policy: Policy = 0
    reset_on_fork: bool = False
    slice_ns: Ticks | None = None

    @property
    def key(self) -> Key:
        return self.tid, self.start_time


class Released(msgspec.Struct, frozen=True, tag="released", tag_field="is"):
    """Threads whose nice and policy are what they were, or that are gone."""

    threads: list[Key]


class Set(msgspec.Struct, frozen=True, tag="set", tag_field="is"):
    """Nice values that we are about to give adopted threads: tid, start time, value."""

    nice: list[tuple[Pid, Ticks, Nice]]


class Moved(msgspec.Struct, frozen=True, tag="moved", tag_field="is"):
    """A thread's cgroup (its folder) before we first moved it."""

    pid: Pid
    tid: Pid
    start_time: Ticks = msgspec.field(name="start")
    cgroup: Way

    @property
    def key(self) -> Key:
        return self.tid, self.start_time


class Returned(msgspec.Struct, frozen=True, tag="returned", tag_field="is"):
    """Threads that are back in their cgroup, or that are gone."""

    threads: list[Key]


class Process(msgspec.Struct, frozen=True, tag="process", tag_field="is"):
    """What threads and processes that are born in `pid` from now on may inherit from us.

    start_time: of the process. since: boot ticks when we adopted its first thread.
    nice, policy: what its threads had (most of them) before. set_nice, set_policies: values that
    we set in it so far; a later line replaces an earlier one.
    """

    pid: Pid
    start_time: Ticks = msgspec.field(name="start")
    since: Ticks
    nice: Nice
    policy: Policy
    set_nice: list[Nice]
    set_policies: list[Policy]

    @property
    def tid(self) -> int:
        """Of its first thread."""
        return self.pid


class ProcessReleased(msgspec.Struct, frozen=True, tag="process released", tag_field="is"):
    pid: Pid


class Group(msgspec.Struct, frozen=True, tag="group", tag_field="is"):
    """A cgroup (its folder) that we are about to make."""

    path: Way


class GroupRemoved(msgspec.Struct, frozen=True, tag="group removed", tag_field="is"):
    path: Way


class FileChanged(msgspec.Struct, frozen=True, tag="file", tag_field="is"):
    """A file of the kernel that we are about to write. undo: what to write to put it back."""

    path: Way
    undo: Text


class FileRestored(msgspec.Struct, frozen=True, tag="file restored", tag_field="is"):
    path: Way


Record = (
    Adopted
    | Released
    | Set
    | Moved
    | Returned
    | Process
    | ProcessReleased
    | Group
    | GroupRemoved
    | FileChanged
    | FileRestored
)


@dataclass
class State:
    """What is changed at the moment: the sum of the records."""

    adopted: dict[Key, Adopted] = field(default_factory=dict)
    # The nice values that we may have given: the last one, and the one before, because who was
    # killed may not have come to set the last.
    given: dict[Key, tuple[int, int]] = field(default_factory=dict)
    moved: dict[Key, Moved] = field(default_factory=dict)
    processes: dict[int, Process] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    files: dict[str, FileChanged] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        """Of a thing's original state the first record counts: the rest may be our own doing."""
        match record:
            case Adopted():
                first = self.adopted.setdefault(record.key, record)
                if first.slice_ns is None and record.slice_ns is not None:
                    self.adopted[record.key] = msgspec.structs.replace(
                        first, slice_ns=record.slice_ns
                    )
            case Released():
                for key in record.threads:
                    self.adopted.pop(key, None)
                    self.given.pop(key, None)
            case Set():
                for tid, start_time, nice in record.nice:
                    key = tid, start_time
                    if (adopted := self.adopted.get(key)) is not None:
                        self.given[key] = (nice, self.given.get(key, (adopted.nice,))[0])
            case Moved():
                self.moved.setdefault(record.key, record)
            case Returned():
                for key in record.threads:
                    self.moved.pop(key, None)
            case Process():
                self.processes[record.pid] = record
            case ProcessReleased():
                self.processes.pop(record.pid, None)
            case Group():
                self.groups[record.path] = record
            case GroupRemoved():
                self.groups.pop(record.path, None)
            case FileChanged():
                self.files.setdefault(record.path, record)
            case FileRestored():
                self.files.pop(record.path, None)

    def records(self) -> list[Record]:
        tables = (self.files, self.groups, self.processes, self.adopted, self.moved)
        records: list[Record] = [record for table in tables for record in table.values()]
        for which in (1, 0):
            if self.given:
                records.append(Set([(*key, nice[which]) for key, nice in self.given.items()]))
        return records

    def __bool__(self) -> bool:
        return bool(self.records())
