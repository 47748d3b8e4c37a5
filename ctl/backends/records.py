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
    "State",
]

Key = tuple[int, int]  # a thread's identity: tid, start time


class Adopted(msgspec.Struct, frozen=True, tag="adopted", tag_field="is", omit_defaults=True):
    """A thread's nice and policy before we first changed one of them."""

    pid: int
    tid: int
    start: int
    nice: int
    policy: int = 0
    reset_on_fork: bool = False

    @property
    def key(self) -> Key:
        return self.tid, self.start


class Released(msgspec.Struct, frozen=True, tag="released", tag_field="is"):
    """Threads whose nice and policy are what they were, or that are gone."""

    threads: list[Key]


class Moved(msgspec.Struct, frozen=True, tag="moved", tag_field="is"):
    """A thread's cgroup (its folder) before we first moved it."""

    pid: int
    tid: int
    start: int
    cgroup: str

    @property
    def key(self) -> Key:
        return self.tid, self.start


class Returned(msgspec.Struct, frozen=True, tag="returned", tag_field="is"):
    """Threads that are back in their cgroup, or that are gone."""

    threads: list[Key]


class Process(msgspec.Struct, frozen=True, tag="process", tag_field="is"):
    """What threads and processes that are born in `pid` from now on may inherit from us.

    start: start time of the process. since: boot ticks when we adopted its first thread.
    nice, policy: what its threads had (most of them) before. set_nice, set_policies: values that
    we set in it so far; a later line replaces an earlier one.
    """

    pid: int
    start: int
    since: int
    nice: int
    policy: int
    set_nice: list[int]
    set_policies: list[int]


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
        return [record for table in tables for record in table.values()]

    def __bool__(self) -> bool:
        return bool(self.records())
