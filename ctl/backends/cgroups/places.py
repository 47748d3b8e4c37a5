"""Where threads are: cgroups of ours made and removed, threads moved there and back.

Everything is journalled before it is done. A process goes into our folder as a whole: those of
its threads that no schedule places are in the group of the *rest*.
"""

import hashlib
import re
from pathlib import Path
from typing import ClassVar

from sched_ctl.backends import BackendFailed, Probe
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.backends.undo.records import FileChanged, Group, Moved
from sched_ctl.kernel import cgroup, identity, procfs, sched
from sched_ctl.kernel.cgroup import ROOT_NAME, Hierarchy
from sched_ctl.kernel.identity import Identified
from sched_ctl.model.topology import Thread

__all__ = ["Places", "probe_mount"]

REAL_TIME = {sched.FIFO, sched.RR, sched.DEADLINE}
REST = "rest"  # the group of all threads that are in no other


class Places:
    """Common part of the cgroup backends: the tree, and what is moved in it."""

    version: ClassVar[int]

    def __init__(self, journal: Journal, owner: str) -> None:
        self._journal = journal
        self.owner = owner  # the backend whose groups these are
        self._tree = tree(self.version)
        self._born: dict[int, int] = {}  # processes taken along: pid -> start time

    def _base(self, thread: Thread) -> Path | None:
        """The cgroup that the thread is in without us; None if it is gone."""
        if record := self._journal.state.moved.get(thread.key):
            return Path(record.cgroup)
        folder = self._tree.folder_of(thread.pid, thread.tid)
        if folder is None:
            return None
        parts = folder.parts
        return Path(*parts[: parts.index(ROOT_NAME)]) if ROOT_NAME in parts else folder

    def _rest(self, base: Path) -> Path:
        return base / ROOT_NAME / self._slug("", REST)

    def _slug(self, scope: str, key: str) -> str:
        """A folder name: what people can read of the key, and a hash that tells keys apart.

        And backends and journals: others may have groups in the same folder.
        """
        whose = f"{self._journal.path}\0{self.owner}"
        unique = f"{whose}\0{scope}\0{key}".encode(errors="replace")
        digest = hashlib.blake2s(unique, digest_size=4).hexdigest()
        return f"{re.sub(r'[^A-Za-z0-9_-]+', '_', key)[:40]}-{digest}"

    def _make(self, folder: Path) -> None:
        """Make a group, journalled first."""
        if str(folder) in self._journal.state.groups:
            return
        self._journal.write([Group(str(folder))])
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise BackendFailed(f"cannot make the cgroup {folder}: {error.strerror}") from error
        self.enter(folder)

    def _prepare(self, base: Path) -> None:
        """Make our folder in a base, or raise BackendFailed. Nothing has been moved yet."""
        self._make(base / ROOT_NAME)

    def enter(self, folder: Path) -> None:
        """What a new group needs before threads can go in."""

    def change(self, path: Path, text: str, undone: str) -> None:
        """Write to a control file that is not ours, journalled first."""
        self._journal.write([FileChanged(path=str(path), undo=undone)])
        cgroup.write(path, text)

    def _moves(self, thread: Identified, folder: Path, problems: list[str]) -> bool:
        """Move it; whether it is there now."""
        before = len(problems)
        return self._move(thread, folder, problems) and len(problems) == before

    def _move(self, thread: Identified, folder: Path, problems: list[str]) -> bool:
        """Move it; whether it is not gone. What the kernel says against it is a problem."""
        pinned = identity.pin(thread)
        if pinned is None:
            return False
        try:
            self._tree.move(thread.tid, folder)
        except ProcessLookupError:
            return False
        except OSError as error:
            problems.append(f"{error.filename}: {error.strerror}")
        finally:
            identity.unpin(pinned[0])
        return True

    def _take_along(self, pid: int, base: Path, problems: list[str]) -> int:
        """All threads of a process that are still in its base go to the rest's group.

        Those that are born of them meanwhile, too: so look until there is none. Real-time ones
        stay: they have no weight, and a group of version 1 may have no runtime for them.
        """
        leader = procfs.stat(pid)
        if leader is None or self._born.setdefault(pid, leader.start_time) != leader.start_time:
            return 0  # ended, and maybe another process has the id
        writes, stuck = 0, set[int]()
        for _ in range(5):
            tids = set(procfs.tids(pid)) & set(self._tree.members(base)) - stuck
            outside = [
                Moved(pid, tid, found.start_time, str(base))
                for tid in tids
                if (found := procfs.stat(pid, tid)) and found.policy not in REAL_TIME
            ]
            if not outside:
                break
            known = self._journal.state.moved
            self._journal.write(record for record in outside if record.key not in known)
            for record in outside:
                if self._moves(record, self._rest(base), problems):
                    writes += 1
                else:
                    stuck.add(record.tid)
        return writes

    def _let_go(self, pid: int, base: Path) -> int:
        """Out of our groups with the threads of a process that we have none of any more."""
        leader, born = procfs.stat(pid), self._born.pop(pid, None)
        if leader is None or born != leader.start_time:
            return 0
        writes = 0
        for tid in procfs.tids(pid):
            folder, found = self._tree.folder_of(pid, tid), procfs.stat(pid, tid)
            if folder is None or found is None or (base / ROOT_NAME) not in folder.parents:
                continue
            record = Moved(pid, tid, found.start_time, str(base))
            if record.key not in self._journal.state.moved:  # born there
                writes += self._move(record, base, [])
        return writes


def tree(version: int) -> Hierarchy:
    """The mounted hierarchy of that version. Raises BackendFailed."""
    for found in cgroup.hierarchies():
        if found.version == version:
            return found
    raise BackendFailed(f"no cgroup v{version} hierarchy is mounted")


def probe_mount(version: int) -> Probe:
    """Whether the cpu controller is in that hierarchy and we may write there."""
    found = {hierarchy.version: hierarchy for hierarchy in cgroup.hierarchies()}
    other = 3 - version
    if version not in found or not cgroup.has_cpu(found[version]):
        elsewhere = other in found and cgroup.has_cpu(found[other])
        where = (
            f"the cpu controller is in cgroup v{other} here"
            if elsewhere
            else ("the kernel has no cpu controller, or it is mounted nowhere")
        )
        return Probe(False, where)
    mount = found[version].mount
    if not cgroup.is_writable(mount):
        return Probe(False, f"{mount} cannot be written", "run as root, outside a container")
    return Probe(True, f"the cpu controller of cgroup v{version} is at {mount}")
