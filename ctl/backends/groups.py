"""Groups of threads as cgroups with CPU weights, and nice values inside them.

Our cgroups lie in one folder `sched-ctl` inside the cgroup in which the engine's threads are found
(its base), so the limits of the engine's container or service keep holding. That folder weighs as
much as its threads did without it. What a schedule asks for becomes:

* groups with shares: a cgroup each, whose weights have the ratios of the shares;
* no groups, weights alone: a cgroup for each thread with a weight by its priority, or, beyond
  `max_groups` threads, one for each level of priority, which weighs as much as its threads;
* no groups, with nice inside: nice alone. Where autogroup would confine nice values to one
  session, all threads of the schedule go into one cgroup, which takes them out of it.
"""

import hashlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
import numpy as np

from sched_ctl.backends import Applied, BackendFailed, Probe, undo
from sched_ctl.backends.journal import Journal
from sched_ctl.backends.nice import Nice, NiceOptions, inside_groups, with_shares
from sched_ctl.backends.records import FileChanged, Group, Key, Moved, Record
from sched_ctl.kernel import cgroup, identity
from sched_ctl.kernel.cgroup import ROOT_NAME, Hierarchy
from sched_ctl.model import Thread
from sched_ctl.normalise import positions, scaled_shares, weights
from sched_ctl.schedule import Group as Shared
from sched_ctl.schedule import Schedule

__all__ = ["GroupOptions", "Groups", "probe_mount"]

AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")
SPREAD = 8.0  # weights of single priorities reach from default / 8 to default * 8


class GroupOptions(NiceOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the cgroup backends; those of nice count where nice goes inside the groups."""

    max_groups: Annotated[
        int,
        msgspec.Meta(description="cgroups at most, for a schedule without groups", ge=1, le=10_000),
    ] = 256


@dataclass(frozen=True)
class _Wanted:
    """What a schedule asks for: the group of each thread (None: its base), and their weights."""

    keys: tuple[str | None, ...]
    weights: Mapping[str, int]


@dataclass
class _Scope:
    threads: tuple[Thread, ...] = ()
    keys: tuple[str | None, ...] = ()
    groups: Mapping[str, Shared] = field(default_factory=dict)
    place: dict[Thread, Path] = field(default_factory=dict)
    gone: int = 0
    unfit: tuple[str, ...] = ()  # bases that cannot have groups, in words
    tried_s: float = 0.0  # when it was last seen that they cannot


class Groups:
    """Common part of the cgroup backends; see `backends.Backend`."""

    name: ClassVar[str]
    version: ClassVar[int]
    with_nice: ClassVar[bool]

    def __init__(self, journal: Journal, options: GroupOptions | None = None) -> None:
        self.options = options or self.default_options()
        self._journal = journal
        self._tree = tree(self.version)
        self._nice = Nice(journal, self.options)
        self._scopes: dict[str, _Scope] = {}
        self._weights: dict[Path, int] = {}  # as we wrote them
        self._looked_at = time.monotonic()

    @classmethod
    def default_options(cls) -> GroupOptions:
        return GroupOptions()

    def apply(self, schedule: Schedule) -> Applied:
        """See `Backend.apply`. Raises BackendFailed where no base can have groups.

        Where only some engines' cgroups cannot, their threads get nice values alone, moved by the
        shares, and a problem says so.
        """
        scope = self._scopes.setdefault(schedule.scope, _Scope())
        by_priority = not (schedule.groups or self.with_nice)
        same = scope.threads == schedule.threads and scope.groups == schedule.groups
        if scope.unfit and time.monotonic() - scope.tried_s >= self.options.recheck:
            scope.keys, same = (), False  # somebody may have mended it
        problems: list[str] = []
        writes = repaired = 0
        try:
            if by_priority or not same:
                wanted = self._wanted(schedule)
                if scope.threads != schedule.threads or scope.keys != wanted.keys:
                    writes += self._place(scope, schedule, wanted, problems)
                writes += self._weigh(scope, schedule, wanted)
                scope.groups = dict(schedule.groups)
        except OSError as error:
            raise BackendFailed(f"{error.filename}: {error.strerror}") from error
        now = time.monotonic()
        if now - self._looked_at >= self.options.recheck:
            self._looked_at = now
            repaired = self._repair()
        placed = Applied(
            writes=writes + repaired,
            unchanged=max(0, len(schedule.threads) - writes - scope.gone),
            repaired=repaired,
            gone=scope.gone,
            problems=(*scope.unfit, *problems),
        )
        if not self.with_nice:
            return placed
        levels = inside_groups(schedule, self.options)
        if scope.unfit:
            outside = [row for row, t in enumerate(schedule.threads) if t not in scope.place]
            levels[outside] = with_shares(schedule, self.options)[outside]
        inner = self._nice.write(schedule, levels)
        return Applied(
            writes=placed.writes + inner.writes,
            unchanged=min(placed.unchanged, inner.unchanged),
            repaired=placed.repaired + inner.repaired,
            gone=max(placed.gone, inner.gone),
            problems=(*placed.problems, *inner.problems),
        )

    def applied(self, thread: Thread) -> Mapping[str, str | float]:
        found: dict[str, str | float] = dict(self._nice.applied(thread))
        for scope in self._scopes.values():
            if folder := scope.place.get(thread):
                found["cgroup"] = str(folder)
                found[self._tree.weight] = self._weights.get(folder, 0)
        return found

    def restore(self) -> tuple[str, ...]:
        problems = list(self._nice.restore())
        self._scopes.clear()
        problems += self._tidy()
        return tuple(problems)

    # What is wanted

    def _wanted(self, schedule: Schedule) -> _Wanted:
        low, high, default = self._tree.weights
        keys: list[str | None] = [None] * len(schedule.threads)
        if schedule.groups:
            for name, group in schedule.groups.items():
                for row in group.rows:
                    keys[row] = name
            shares = {name: group.share for name, group in schedule.groups.items()}
            return _Wanted(tuple(keys), scaled_shares(shares, low, high, default))
        if self.with_nice:
            return _Wanted(tuple(keys), {})
        place = positions(schedule.form, schedule.head_age_s, schedule.queue_size, schedule.spacing)
        value = weights(
            place, max(low, round(default / SPREAD)), min(high, round(default * SPREAD)), default
        ).tolist()
        if len(keys) <= self.options.max_groups:
            names = [
                f"{operator}#{thread.tid}"
                for operator, thread in zip(schedule.operators, schedule.threads, strict=True)
            ]
            return _Wanted(tuple(names), dict(zip(names, value, strict=True)))
        step = np.log(SPREAD**2) / max(1, self.options.max_groups - 1)
        level = [round(float(np.log(weight) / step)) for weight in value]
        total: dict[str, int] = {}
        for nth, weight in zip(level, value, strict=True):
            total[f"level {nth}"] = total.get(f"level {nth}", 0) + weight
        clipped = {name: min(high, weight) for name, weight in total.items()}
        return _Wanted(tuple(f"level {nth}" for nth in level), clipped)

    # Where threads are

    def _place(
        self, scope: _Scope, schedule: Schedule, wanted: _Wanted, problems: list[str]
    ) -> int:
        """Make the groups, move the threads that are not where they should be; tidy up."""
        target: dict[Thread, Path] = {}
        lines: list[Record] = []
        bases: dict[Path, BackendFailed | None] = {}
        gone = 0
        for thread, key in zip(schedule.threads, wanted.keys, strict=True):
            base = self._base(thread)
            if base is None:
                gone += 1
                continue
            if key is None and not self._needs_pool(base):
                continue
            if base not in bases:
                bases[base] = self._unfit(base)
            if bases[base] is not None:
                continue
            target[thread] = base / ROOT_NAME / self._slug(schedule.scope, key or "all")
            if (thread.tid, thread.start_time) not in self._journal.state.moved:
                lines.append(Moved(thread.pid, thread.tid, thread.start_time, str(base)))
        unfit = [error for error in bases.values() if error is not None]
        others = (other.place for other in self._scopes.values() if other is not scope)
        if unfit and not target and not any(others):
            raise unfit[0]
        only = "its threads have nice values alone" if self.with_nice else "its threads are as ever"
        scope.unfit = tuple(f"{error.message}: {only}" for error in unfit)
        scope.tried_s = time.monotonic()
        for folder in dict.fromkeys(target.values()):
            self._make(folder)
        self._journal.write(lines)
        writes = 0
        for thread, folder in target.items():
            if scope.place.get(thread) == folder:
                continue
            moved = self._move(thread, folder, problems)
            writes += moved
            gone += not moved
        left = [thread for thread in scope.place if thread not in target]
        keys: list[Key] = [(thread.tid, thread.start_time) for thread in left]
        writes += len(left)
        problems += undo.moved(self._journal, keys)
        scope.threads, scope.keys = schedule.threads, wanted.keys
        scope.place, scope.gone = target, gone
        problems += self._tidy()
        return writes

    def _unfit(self, base: Path) -> BackendFailed | None:
        """Make our folder in a base, or tell why that cannot be."""
        try:
            self._prepare(base)
        except BackendFailed as error:
            return error
        return None

    def _slug(self, scope: str, key: str) -> str:
        """A folder name: what people can read of the key, and a hash that tells keys apart.

        And journals: controllers with other ones may have groups in the same folder.
        """
        unique = f"{self._journal.path}\0{scope}\0{key}".encode(errors="replace")
        digest = hashlib.blake2s(unique, digest_size=4).hexdigest()
        return f"{re.sub(r'[^A-Za-z0-9_-]+', '_', key)[:40]}-{digest}"

    def _base(self, thread: Thread) -> Path | None:
        """The cgroup that the thread is in without us; None if it is gone."""
        if record := self._journal.state.moved.get((thread.tid, thread.start_time)):
            return Path(record.cgroup)
        folder = self._tree.folder_of(thread.pid, thread.tid)
        if folder is None:
            return None
        parts = folder.parts
        return Path(*parts[: parts.index(ROOT_NAME)]) if ROOT_NAME in parts else folder

    def _needs_pool(self, base: Path) -> bool:
        return self.with_nice and base == self._tree.mount and _autogroup()

    def _move(self, thread: Thread, folder: Path, problems: list[str]) -> bool:
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

    # What they weigh

    def _weigh(self, scope: _Scope, schedule: Schedule, wanted: _Wanted) -> int:
        """Write the weights that differ. Returns how many."""
        _, high, default = self._tree.weights
        counts: dict[Path, int] = {}
        key_of = dict(zip(schedule.threads, wanted.keys, strict=True))
        for other in self._scopes.values():
            for folder in other.place.values():
                counts[folder.parent] = counts.get(folder.parent, 0) + 1
        wanted_now = {root: min(high, default * count) for root, count in counts.items()}
        for thread, folder in scope.place.items():
            key = key_of[thread]
            # A pool of threads without group competes with others like its threads would
            pooled = min(high, default * len(scope.place))
            wanted_now[folder] = pooled if key is None else wanted.weights[key]
        writes = 0
        for folder, weight in wanted_now.items():
            if self._weights.get(folder) != weight:
                cgroup.write(folder / self._tree.weight, str(weight))
                self._weights[folder] = weight
                writes += 1
        return writes

    # What others do meanwhile

    def _repair(self) -> int:
        """Put our threads and weights back where they were; others that got in, out."""
        repaired = 0
        place = {t: folder for scope in self._scopes.values() for t, folder in scope.place.items()}
        inside: dict[Path, set[int]] = {}
        for folder, weight in self._weights.items():
            try:
                inside[folder] = set(self._tree.members(folder))
                if (folder / self._tree.weight).read_text().strip() != str(weight):
                    cgroup.write(folder / self._tree.weight, str(weight))
                    repaired += 1
            except OSError as error:
                raise BackendFailed(
                    f"the cgroup {folder} is not usable any more: {error.strerror}"
                ) from error
        for thread, folder in place.items():
            if thread.tid in inside.get(folder, ()):
                inside[folder].discard(thread.tid)
            elif self._move(thread, folder, []):
                repaired += 1
        for folder, strangers in inside.items():
            base = Path(*folder.parts[: folder.parts.index(ROOT_NAME)])
            for tid in strangers:
                try:
                    self._tree.move(tid, base)
                except OSError:
                    continue  # it ended, or goes when the group is removed
        return repaired

    def _tidy(self) -> list[str]:
        """Remove what no scope needs any more."""
        places = [scope.place for scope in self._scopes.values()]
        used = {folder for place in places for folder in place.values()}
        roots = {folder.parent for folder in used}
        held = {(t.tid, t.start_time) for place in places for t in place}
        state = self._journal.state
        mount = self._tree.mount
        problems = undo.moved(
            self._journal,
            [
                key
                for key, record in state.moved.items()
                if key not in held and Path(record.cgroup).is_relative_to(mount)
            ],
        )
        needless = [
            path
            for path in state.groups
            if Path(path) not in used | roots and Path(path).is_relative_to(mount)
        ]
        problems += undo.groups(self._journal, needless)
        for path in needless:
            self._weights.pop(Path(path), None)
        bases = {root.parent for root in roots}
        problems += undo.files(
            self._journal,
            [
                path
                for path in state.files
                if Path(path).is_relative_to(mount)
                and not any(base.is_relative_to(Path(path).parent) for base in bases)
            ],
        )
        return problems


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


def _autogroup() -> bool:
    try:
        return AUTOGROUP.read_text().strip() == "1"
    except OSError:
        return False
