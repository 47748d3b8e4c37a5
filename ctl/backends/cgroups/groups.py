"""Groups of threads as cgroups with CPU weights, and nice values inside them.

Our cgroups lie in one folder `sched-ctl` inside the cgroup in which the engine's threads are found
(its base), so the limits of the engine's container or service keep holding. A process goes there
as a whole or not at all: a group of operators alone would put the rest of its virtual machine, the
garbage collector and the heartbeats, at a disadvantage. The folder weighs as much as the processes
did without it (see `neighbours`). What a schedule asks for becomes:

* groups with shares: a cgroup each, whose weights have the ratios of the shares, and one for the
  *rest*, all other threads of these processes, which weighs as much as the heaviest of the others;
* no groups, weights alone: a cgroup for each thread with a weight by its priority, or, beyond
  `max_groups` threads, one for each level of priority, which weighs as much as its threads;
* no groups, with nice inside: nice alone, and no cgroup, where nice counts between all threads
  and between nobody else. That is so in a cgroup of the engine's own, and in one session under
  autogroup. Processes of the root cgroup for which it is not go into one cgroup together.

Several of these backends may be in use, for engines of one cgroup, too: our folder there is for
all of them, and goes with the last. A process is in the groups of one backend.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal
from weakref import WeakKeyDictionary, WeakSet

from sched_ctl.backends import Applied, Backend, BackendFailed
from sched_ctl.backends.cgroups.places import Places
from sched_ctl.backends.cgroups.wanted import Wanted, wanted_groups
from sched_ctl.backends.threads import neighbours, nice
from sched_ctl.backends.threads.nice import Nice, inside_groups, with_shares
from sched_ctl.backends.undo import put_back as undo
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.backends.undo.records import Moved, Returned
from sched_ctl.kernel import cgroup, identity
from sched_ctl.kernel.births import Births
from sched_ctl.kernel.cgroup import ROOT_NAME
from sched_ctl.model.options import GroupOptions
from sched_ctl.model.schedule import Group as Shared
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import Thread

__all__ = ["Groups", "planned"]

DRIFT = 0.02  # a weight that follows the demand is rewritten when it is off by that much
_by_journal: WeakKeyDictionary[Journal, WeakSet["Groups"]] = WeakKeyDictionary()


@dataclass
class _Scope:
    """place: threads in groups of their own. whole: processes taken along -> their base."""

    threads: tuple[Thread, ...] = ()
    keys: tuple[str | None, ...] = ()
    groups: Mapping[str, Shared] = field(default_factory=dict)
    place: dict[Thread, Path] = field(default_factory=dict)
    whole: dict[int, Path] = field(default_factory=dict)
    gone: int = 0
    unfit: tuple[str, ...] = ()  # bases that cannot have groups, in words
    # Threads that could not be moved when that was tried last, in words
    refused: list[str] = field(default_factory=list)
    tried_s: float = 0.0  # when it was last seen that they cannot


class Groups(Places, Backend):
    """Common part of the cgroup backends; see `backends.Backend`."""

    name: ClassVar[str]
    with_nice: ClassVar[bool]

    def __init__(
        self, journal: Journal, options: GroupOptions | None = None, owner: str | None = None
    ) -> None:
        """owner: the backend that makes groups by this one."""
        self.options = options or self.default_options()
        super().__init__(journal, owner or self.name)
        self._all = _by_journal.setdefault(journal, WeakSet())  # us and the others
        self._all.add(self)
        self._nice = Nice(journal, self.options)
        self._scopes: dict[str, _Scope] = {}
        self._weights: dict[Path, int] = {}  # as we wrote them
        self._demand: dict[Path, neighbours.Demand] = {}  # by base
        self._spoilt: dict[Path, tuple[float, BackendFailed]] = {}  # bases: since when, and why
        self._left = False  # whether there are groups that could not go yet
        self._looked_at = time.monotonic()
        self._births = Births()

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
            writes += self._balance()
        except OSError as error:
            raise BackendFailed(f"{error.filename}: {error.strerror}") from error
        now = time.monotonic()
        stirred = self._births.changed(self._pids)
        if stirred or now - self._looked_at >= self.options.recheck:
            self._looked_at = now
            repaired = self._repair()
        placed = Applied(
            writes=writes + repaired,
            unchanged=max(0, len(schedule.threads) - writes - scope.gone),
            repaired=repaired,
            gone=scope.gone,
            problems=(*scope.unfit, *scope.refused, *problems),
        )
        if not self.with_nice:
            return placed
        options = nice.of_schedule(schedule, self.options)
        levels = inside_groups(schedule, options)
        if scope.unfit:
            outside = [row for row, t in enumerate(schedule.threads) if t not in scope.place]
            levels[outside] = with_shares(schedule, options)[outside]
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
            base = scope.whole.get(thread.pid)
            if folder := scope.place.get(thread) or (base and self._rest(base)):
                found["cgroup"] = str(folder)
                found[self._tree.weight] = self._weights.get(folder, 0)
        return found

    def restore(self) -> tuple[str, ...]:
        self._scopes.clear()
        problems: list[str] = []
        try:
            problems += self._nice.restore()
        finally:
            problems += self._tidy(undo.REMOVE_WITHIN_S)
        return tuple(problems)

    def rest(self) -> tuple[str, ...]:
        """See `Backend.rest`. A group that could not go at once is tried again."""
        if self._left:
            self._tidy()
        return self._nice.rest()

    # What is wanted

    def _wanted(self, schedule: Schedule) -> Wanted:
        scale, most = self._tree.weights, self.options.max_groups
        return wanted_groups(schedule, scale, most, by_priority=not self.with_nice)

    # Where threads are

    def _place(self, scope: _Scope, schedule: Schedule, wanted: Wanted, problems: list[str]) -> int:
        """Make the groups, move the threads that are not where they should be; tidy up."""
        taken = self._taken()
        ours = [thread for thread in schedule.threads if thread.pid not in taken]
        found = {thread: self._base(thread) for thread in ours}
        bases = [found.get(thread) for thread in schedule.threads]
        where = list(zip(schedule.threads, bases, wanted.keys, strict=True))
        gone = [thread for thread in ours if found[thread] is None]
        hidden = {thread.pid for thread in gone if identity.same(thread) is not None}
        target, whole, unfit = self._made(where, schedule.scope)
        others = [other for other in self._scopes.values() if other is not scope]
        if unfit and not whole and not any(other.whole for other in others):
            raise unfit[0]
        shared = taken.keys() & {thread.pid for thread in schedule.threads}
        scope.unfit = self._unfit_in_words(
            unfit, hidden, {pid: taken[pid] for pid in sorted(shared)}
        )
        scope.tried_s = time.monotonic()
        scope.refused = []
        writes, lost = self._put(scope, target, scope.refused)
        before = scope.whole
        scope.threads, scope.keys = schedule.threads, wanted.keys
        scope.whole, scope.gone = whole, len(gone) + lost
        of_others = {pid for other in others for pid in other.whole}
        for pid in whole.keys() - before.keys() - of_others:
            self._born.pop(pid, None)  # of one that had the id before, and was put back
        for pid, base in whole.items():
            with self._at(base):
                writes += self._take_along(pid, base, scope.refused)
        for pid in before.keys() - whole.keys() - of_others:
            writes += self._let_go(pid, before[pid])
        problems += self._tidy()
        return writes

    def _unfit_in_words(
        self, unfit: Sequence[BackendFailed], hidden: Set[int], taken: Mapping[int, str]
    ) -> tuple[str, ...]:
        """Why threads are in no group, and what they have instead.

        hidden: processes whose cgroups are not seen. taken: those in groups of another backend.
        """
        only = "its threads have nice values alone" if self.with_nice else "its threads are as ever"
        return (
            *(f"{error.message}: {only}" for error in unfit),
            *(
                f"the cgroup of process {pid} is not seen here, or its name is no text: {only}"
                for pid in sorted(hidden)
            ),
            *(
                f"process {pid} is in groups of the backend {backend}, and has no room in "
                f"those of another: {only}"
                for pid, backend in taken.items()
            ),
        )

    def _made(
        self, where: Sequence[tuple[Thread, Path | None, str | None]], scope: str
    ) -> tuple[dict[Thread, Path], dict[int, Path], list[BackendFailed]]:
        """Make the groups that threads are to be in.

        where: threads, their bases (None = not seen) and the keys of their groups (None = of none).
        Returns the group of each thread that is in one, the base of each process that is taken
        along, and why bases cannot have groups.
        """
        pooled = self._pooled((thread.pid, base) for thread, base, _ in where if base)
        fit: dict[Path, BackendFailed | None] = {}
        target: dict[Thread, Path] = {}
        whole: dict[int, Path] = {}
        folders: dict[Path, dict[Path, None]] = {}  # by base, each once
        for thread, base, key in where:
            if base is None or (key is None and base not in pooled):
                continue
            if base not in fit:
                fit[base] = self._unfit(base)
            if fit[base] is not None:
                continue
            whole[thread.pid] = base
            inside = folders.setdefault(base, {self._rest(base): None})
            if key is not None:
                folder = target[thread] = base / ROOT_NAME / self._slug(scope, key)
                inside[folder] = None
        for base, inside in folders.items():
            with self._at(base):
                for folder in inside:
                    self._make(folder)
            fit[base] = self._trouble(base)
        return (
            {t: folder for t, folder in target.items() if fit[_base_of(folder)] is None},
            {pid: base for pid, base in whole.items() if fit[base] is None},
            [error for error in fit.values() if error is not None],
        )

    def _put(
        self, scope: _Scope, target: dict[Thread, Path], problems: list[str]
    ) -> tuple[int, int]:
        """Threads into their groups, and those that need none any more into the rest's.

        Returns the writes, and how many are gone.
        """
        self._journal.write(
            Moved(thread.pid, thread.tid, thread.start_time, str(folder.parent.parent))
            for thread, folder in target.items()
            if thread.key not in self._journal.state.moved
        )
        new = [(thread, f) for thread, f in target.items() if scope.place.get(thread) != f]
        writes = sum(self._move(thread, folder, problems) for thread, folder in new)
        gone = len(new) - writes
        lost = []
        for thread, folder in scope.place.items():
            if thread in target:
                continue
            if self._move(thread, self._rest(folder.parent.parent), []):
                writes += 1
            else:
                lost.append(thread.key)
        if lost:  # or the records of who ended would be kept for as long as the process runs
            self._journal.done([Returned(threads=lost)])
        scope.place = target
        return writes, gone

    def _pooled(self, places: Iterable[tuple[int, Path]]) -> set[Path]:
        """Bases whose processes must have a group together for nice to count as it should.

        In the root cgroup nice counts between the threads of a session only, so several sessions
        need one. Without autogroup it would count against the whole machine.
        """
        pids = {pid for pid, base in places if base == self._tree.mount}
        if not self.with_nice or not pids:
            return set()
        if neighbours.autogroup_is_on() and len(neighbours.sessions(pids)) <= 1:
            return set()
        return {self._tree.mount}

    # What they weigh

    def _weigh(self, scope: _Scope, schedule: Schedule, wanted: Wanted) -> int:
        """Write the weights of groups that differ. Returns how many."""
        key_of = dict(zip(schedule.threads, wanted.keys, strict=True))
        weights = {
            folder: wanted.weights[key]
            for thread, folder in scope.place.items()
            if (key := key_of[thread]) is not None
        }
        writes = 0
        for folder, weight in weights.items():
            with self._at(_base_of(folder)):
                writes += self._write_weight(folder, weight)
        return writes

    def _balance(self) -> int:
        """Weights of our folders, and of the rest in them. Returns how many were written."""
        writes = 0
        default = self._tree.weights[2]
        along = {one: one._along() for one in self._all}
        bases = along[self]
        heaviest: dict[Path, int] = {}  # of the groups in a base
        for folder in {f for scope in self._scopes.values() for f in scope.place.values()}:
            base, weight = _base_of(folder), self._weights.get(folder, default)
            heaviest[base] = max(weight, heaviest.get(base, weight))
        self._demand = {base: d for base, d in self._demand.items() if base in bases}
        for base in bases:
            mine = {one: found[base] for one, found in along.items() if base in found}
            with self._at(base):
                writes += self._balance_base(base, heaviest.get(base, default), mine)
        return writes

    def _balance_base(self, base: Path, heaviest: int, along: Mapping["Groups", set[int]]) -> int:
        """heaviest: weight of a group there. along: processes taken from there, by backend."""
        low, high, default = self._tree.weights
        root, rest = base / ROOT_NAME, self._rest(base)
        writes = int(self._write_weight(rest, min(high, heaviest * len(along[self]))))
        if self is not min(along, key=id):  # of several one writes it
            self._weights.pop(root, None)
            return writes
        pids = {pid for found in along.values() for pid in found}
        if base == self._tree.mount and neighbours.autogroup_is_on():
            threads, drift = neighbours.sessions_weight(pids), 0.0
        else:
            demand = self._demand.setdefault(base, neighbours.Demand())
            threads, drift = demand.look(pids, self._journal.state.adopted), DRIFT
        weight = min(high, max(low, round(default * threads)))
        return writes + self._write_weight(root, weight, drift)

    def _write_weight(self, folder: Path, weight: int, drift: float = 0.0) -> bool:
        now = self._weights.get(folder)
        if now is not None and abs(weight - now) <= drift * now:
            return False
        cgroup.write(folder / self._tree.weight, str(weight))
        self._weights[folder] = weight
        return True

    # What others do meanwhile

    def _repair(self) -> int:
        """Put our threads and weights back where they were; others that got in, out."""
        repaired = 0
        inside: dict[Path, set[int]] = {}
        for folder, weight in self._weights.items():
            with self._at(_base_of(folder)):
                inside[folder] = set(self._tree.members(folder))
                if (folder / self._tree.weight).read_text().strip() != str(weight):
                    cgroup.write(folder / self._tree.weight, str(weight))
                    repaired += 1
        for scope in self._scopes.values():
            scope.refused = []
            for thread, folder in scope.place.items():
                if thread.tid in inside.get(folder, ()):
                    inside[folder].discard(thread.tid)
                else:
                    repaired += self._moves(thread, folder, scope.refused)
        rests = {
            self._rest(base) for scope in self._scopes.values() for base in scope.whole.values()
        }
        for folder, strangers in inside.items():
            if folder in rests or folder.name == ROOT_NAME:
                continue
            for tid in strangers:  # born of a thread in a query's group
                try:
                    self._tree.move(tid, self._rest(folder.parent.parent))
                except OSError:
                    continue  # it ended, or goes when the group is removed
        for scope in self._scopes.values():
            for pid, base in scope.whole.items():
                with self._at(base):
                    repaired += self._take_along(pid, base, scope.refused)
        return repaired

    @contextmanager
    def _at(self, base: Path) -> Iterator[None]:
        """What fails in a base is the trouble of the engines there alone.

        Its owner may rename our folder, or the base itself, or take the controller away. Those
        engines go on without groups from the next pass on; later it is tried again.
        """
        try:
            yield
        except (OSError, BackendFailed) as error:
            if not isinstance(error, BackendFailed):
                why = f"the cgroup {base} cannot be used: {error.filename}: {error.strerror}"
                error = BackendFailed(why)
            self._spoilt[base] = time.monotonic(), error
            for scope in self._scopes.values():
                if base in scope.whole.values():
                    scope.threads = ()  # they are placed anew
                    scope.whole = {pid: b for pid, b in scope.whole.items() if b != base}
                    scope.place = {t: f for t, f in scope.place.items() if _base_of(f) != base}
            self._weights = {f: w for f, w in self._weights.items() if _base_of(f) != base}

    def _trouble(self, base: Path) -> BackendFailed | None:
        return self._spoilt[base][1] if base in self._spoilt else None

    def _unfit(self, base: Path) -> BackendFailed | None:
        """Make our folder in a base, or tell why that cannot be."""
        tried = self._spoilt.get(base)
        if tried is None or time.monotonic() - tried[0] >= self.options.recheck:
            self._spoilt.pop(base, None)
            with self._at(base):
                self._prepare(base)
        return self._trouble(base)

    def _along(self) -> dict[Path, set[int]]:
        """Processes that we took along, by the base that they are from."""
        found: dict[Path, set[int]] = {}
        for scope in self._scopes.values():
            for pid, base in scope.whole.items():
                found.setdefault(base, set()).add(pid)
        return found

    def _taken(self) -> dict[int, str]:
        """Processes that others took along, and which backend did."""
        others = [
            (one.owner, s) for one in self._all if one is not self for s in one._scopes.values()
        ]
        return {pid: owner for owner, scope in others for pid in scope.whole}

    def _needed(self) -> set[Path]:
        """The groups that we have use for, and our folders that hold them."""
        scopes = self._scopes.values()
        groups = {folder for scope in scopes for folder in scope.place.values()}
        groups |= {self._rest(base) for scope in scopes for base in scope.whole.values()}
        return groups | {group.parent for group in groups}

    def _pids(self) -> set[int]:
        return {thread.pid for scope in self._scopes.values() for thread in scope.threads}

    def _tidy(self, within_s: float = 0.0) -> list[str]:
        """Remove what no scope needs any more: of ours, of others, and of who was killed.

        within_s: see `undo.groups`. A thread may hang while it exits: no pass waits for it.
        """
        needed = {folder for one in self._all for folder in one._needed()}
        held = {pid for one in self._all for scope in one._scopes.values() for pid in scope.whole}
        state = self._journal.state
        mount = self._tree.mount
        problems = undo.moved(
            self._journal,
            [
                key
                for key, record in state.moved.items()
                if record.pid not in held and Path(record.cgroup).is_relative_to(mount)
            ],
        )
        needless = [
            path
            for path in state.groups
            if Path(path) not in needed and Path(path).is_relative_to(mount)
        ]
        problems += undo.groups(self._journal, needless, within_s)
        self._left = any(path in state.groups for path in needless)
        own = self._needed()
        self._weights = {folder: w for folder, w in self._weights.items() if folder in own}
        bases = {folder.parent for folder in map(Path, state.groups) if folder.name == ROOT_NAME}
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


def _base_of(folder: Path) -> Path:
    """The base in which a group of ours lies, or our folder that holds them."""
    return folder.parent if folder.name == ROOT_NAME else folder.parent.parent


def planned(
    schedule: Schedule,
    options: GroupOptions,
    had: Mapping[tuple[int, int], int] = nice.NOTHING_HAD,
    *,
    version: Literal[1, 2],
    with_nice: bool,
) -> dict[str, list[object]]:
    """What `apply` would set, where the engines' cgroups can have groups. had: see `nice`."""
    tree = cgroup.Hierarchy(version, Path())
    wanted = wanted_groups(schedule, tree.weights, options.max_groups, by_priority=not with_nice)
    values: dict[str, list[object]] = {}
    if wanted.weights:
        values[tree.weight] = [None if key is None else wanted.weights[key] for key in wanted.keys]
    if with_nice:
        values |= nice.planned(
            schedule, options, had, inside_groups(schedule, nice.of_schedule(schedule, options))
        )
    return values
