"""What the journal's lines say, and what they add up to."""

from dataclasses import dataclass, field

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

Key = tuple[int, int]  # a thread's identity: tid, start time


class Adopted(msgspec.Struct, frozen=True, tag="adopted", tag_field="is", omit_defaults=True):
    """A thread's nice and policy before we first changed one of them.

    slice_ns: its time slice, 0 for the kernel's own; None where we leave slices alone.
    """

    pid: int
    tid: int
    start_time: int = msgspec.field(name="start")
    nice: int
    policy: int = 0
    reset_on_fork: bool = False
    slice_ns: int | None = None

    @property
    def key(self) -> Key:
        return self.tid, self.start_time


class Released(msgspec.Struct, frozen=True, tag="released", tag_field="is"):
    """Threads whose nice and policy are what they were, or that are gone."""

    threads: list[Key]


class Set(msgspec.Struct, frozen=True, tag="set", tag_field="is"):
    """Nice values that we are about to give adopted threads: tid, start time, value."""

    nice: list[tuple[int, int, int]]


class Moved(msgspec.Struct, frozen=True, tag="moved", tag_field="is"):
    """A thread's cgroup (its folder) before we first moved it."""

    pid: int
    tid: int
    start_time: int = msgspec.field(name="start")
    cgroup: str

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

    pid: int
    start_time: int = msgspec.field(name="start")
    since: int
    nice: int
    policy: int
    set_nice: list[int]
    set_policies: list[int]

    @property
    def tid(self) -> int:
        """Of its first thread."""
        return self.pid


class ProcessReleased(msgspec.Struct, frozen=True, tag="process released", tag_field="is"):
    pid: int


class Group(msgspec.Struct, frozen=True, tag="group", tag_field="is"):
    """A cgroup (its folder) that we are about to make."""

    path: str


class GroupRemoved(msgspec.Struct, frozen=True, tag="group removed", tag_field="is"):
    path: str


class FileChanged(msgspec.Struct, frozen=True, tag="file", tag_field="is"):
    """A file of the kernel that we are about to write. undo: what to write to put it back."""

    path: str
    undo: str


class FileRestored(msgspec.Struct, frozen=True, tag="file restored", tag_field="is"):
    path: str


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
                self.adopted.setdefault(record.key, record)
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
