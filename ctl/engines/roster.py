"""Which engines are here: looking for them, places for them, and noticing their end."""

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from sched_ctl.config.settings import SettingError, Settings
from sched_ctl.drivers import DriverKind, Target
from sched_ctl.engines.engine import Engine
from sched_ctl.engines.owners import COMMON, Owners, called
from sched_ctl.engines.remarks import Remarks
from sched_ctl.engines.timers import Timer
from sched_ctl.engines.worker import Worker
from sched_ctl.errors import EngineError, near_miss
from sched_ctl.kernel import containers, procfs
from sched_ctl.kernel.births import Births, Young, last_id
from sched_ctl.kernel.crowd import slowness
from sched_ctl.model.access import Access
from sched_ctl.model.patterns import first
from sched_ctl.model.topology import Thread

__all__ = ["Roster", "wanted_kinds"]

log = logging.getLogger(__name__)

QUIET_S = 60.0  # a kind is looked for so often even if no process or thread was born
MOST_ENGINES = 256
MOST_OF_USER = 32  # engines of one user who is ordered alone
MOST_OF_USERS = 192  # engines of all such users together: the rest is for root and the system


class Roster:
    """The engines of this machine. arrived: called with each that is found."""

    def __init__(
        self,
        settings: Settings,
        kinds: Mapping[str, DriverKind],
        owners: Owners,
        remarks: Remarks,
        arrived: Callable[[Engine], None],
    ) -> None:
        self.engines: dict[str, Engine] = {}
        self.timer = Timer(settings.discover, time.monotonic())
        self._young = Young()
        self._births = Births()
        self._settings, self._kinds, self._owners = settings, kinds, owners
        self._remarks, self._arrived = remarks, arrived
        self._finding: dict[str, asyncio.Future[Sequence[Target]]] = {}
        self._finders: dict[str, Worker[Sequence[Target]]] = {}
        self._looked: dict[str, tuple[float, bytes]] = {}  # when, and who was born last
        self._named: set[str] = set()  # engines that were not found, but named
        self._twice: dict[str, str] = {}  # those of them that are others, by another address
        self._again = True
        self._ended = False  # an engine, which may go on in others of its processes
        self._left_s = 0.0  # what those that left have cost

    def follow(self, settings: Settings, kinds: Mapping[str, DriverKind], owners: Owners) -> None:
        """Other settings from now on: let go of the engines that they do not want any more."""
        self.timer = Timer(settings.discover, time.monotonic())
        self._settings, self._kinds, self._owners = settings, kinds, owners
        self._looked.clear()
        self._twice.clear()
        for engine in [e for e in self.engines.values() if not self._is_wanted(e.target)]:
            log.info("%s: not wanted any more", engine.name)
            self._drop(engine)
        for engine in self.engines.values():
            engine.owners, engine.window_s = owners, settings.window
            engine.reach(self._access(engine.name))
            engine.refused.clear()

    async def discover(self, patience_s: float) -> None:
        """Look for engines that came and went; wait for the answer at most so long."""
        for name, kind in self._kinds.items():
            if name in self._finding or (kind.of_processes and self._is_quiet(name)):
                continue
            finder = self._finders.get(name)
            if finder is None:
                finder = self._finders[name] = Worker(f"find {name}")
            future = finder.call(kind.find)
            self._finding[name] = future
            future.add_done_callback(functools.partial(self._found, name))
        if patience_s and self._finding:
            await asyncio.wait(list(self._finding.values()), timeout=patience_s)
            await asyncio.sleep(0)  # the callbacks

    @property
    def is_looking(self) -> bool:
        """Whether a search is under way: more engines may be here than are known."""
        return bool(self._finding)

    def is_due(self, now_s: float) -> bool:
        """Whether to look for engines: it is time, one ended, or a new process may be one."""
        timely = self.timer.is_due(now_s)
        if timely:
            self.timer.done(now_s)
        self._again = self._young.due()  # one that may not have been ready
        ended, self._ended = self._ended, False
        return self._again or timely or ended

    def _is_quiet(self, name: str) -> bool:
        """Whether looking for engines of this kind would find what it found the last time."""
        now_s, born = time.monotonic(), last_id()
        looked_s, before = self._looked.get(name, (float("-inf"), b""))
        if not self._again and born and born == before and now_s - looked_s < QUIET_S:
            return True
        self._looked[name] = now_s, born
        return False

    def stirring(self) -> list[Engine]:
        """Engines in whose processes threads came or went since they were last looked at."""
        changed = self._births.changed(
            lambda: {pid for engine in self.engines.values() for pid in engine.pids}
        )
        return [engine for engine in self.engines.values() if engine.pids & changed]

    def check(self) -> Iterator[Engine]:
        """Notice silence and death. Gives the engines whose threads are to be released."""
        now_s, crowd = time.monotonic(), slowness()
        patience = self._settings.poll_timeout, self._settings.stale_after
        for engine in list(self.engines.values()):
            before = engine.state
            change = engine.check(now_s, *patience, crowd)
            if change:
                log.warning("%s: %s", engine.name, change)
            other = self._other_name(engine)
            if other is not None:
                message = f"{engine.name} is {other}, whose threads it has: left out"
                self._remarks.say(f"engines {engine.name}", message)
                self._twice[engine.name], engine.state = other, "gone"
            if engine.state != before and engine.state in ("gone", "released"):
                yield engine
            if engine.state == "gone":
                self._drop(engine)
                # An address may stand for several processes, of which it had the eldest.
                self._looked.pop(engine.target.kind, None)
                self._ended = True

    @property
    def in_loop_s(self) -> float:
        """CPU time of the main loop that engines have cost so far, those that left as well."""
        return self._left_s + sum(engine.in_loop_s for engine in self.engines.values())

    def _drop(self, engine: Engine) -> None:
        engine.close()
        del self.engines[engine.name]
        self._left_s += engine.in_loop_s

    def close(self) -> None:
        """Let go of the engines; does not wait for them."""
        for engine in self.engines.values():
            engine.close()
        for finder in self._finders.values():
            finder.stop()

    def _found(self, name: str, future: "asyncio.Future[Sequence[Target]]") -> None:
        self._finding.pop(name, None)
        if future.cancelled() or name not in self._kinds:  # not wanted any more
            return
        error = future.exception()
        if error is not None:
            log.debug("%s", name, exc_info=error)
            self._remarks.say(f"find {name}", f"{name}: cannot look for engines: {error}")
        targets = list(future.result()) if error is None else []
        for wanted in self._settings.engine:
            kind, _, address = wanted.partition(":")
            if kind == name and address and wanted not in [t.engine for t in targets]:
                targets.append(Target(kind, address))
                self._named.add(wanted)
        for target in targets:
            other = self.engines.get(self._twice.get(target.engine, ""))
            twice = other is not None and other.snapshot is not None
            known = target.engine in self.engines or twice or self._is_followed(target)
            if self._is_wanted(target) and not known:
                if (refusal := self._full(target)) is not None:
                    self._remarks.say(f"engines {refusal}", refusal)
                    continue
                reached = replace(target, access=self._access(target.engine))
                engine = Engine(reached, self._kinds[name], self._settings.window, self._owners)
                self.engines[target.engine] = engine
                seen = f"found, pid {target.pid}" if target.pid else "named, and asked from now on"
                log.info("%s: %s", engine.name, seen)
                self._arrived(engine)

    def _is_followed(self, target: Target) -> bool:
        """Whether an engine of several processes, of which that is one, is here by another address:
        of those with one id the user who was first has it without his number.
        """
        stem = target.address.partition("@")[0]
        return self._kinds[target.kind].of_several and any(
            engine.target.kind == target.kind
            and engine.target.address.partition("@")[0] == stem
            and target.pid in engine.pids
            for engine in self.engines.values()
        )

    def _other_name(self, engine: Engine) -> str | None:
        """What an engine that was named is here as already, by its threads; None if it is not.

        A name may mean what is found as something longer, or by another address.
        """
        if engine.name not in self._named:
            return None
        others = [other for name, other in self.engines.items() if name not in self._named]
        named = [other for name, other in self.engines.items() if name in self._named]
        for other in (*others, *named[: named.index(engine)]):
            alike = other.target.kind == engine.target.kind and engine.pids & other.pids
            if alike and _threads(engine) & _threads(other):
                return other.name
        return None

    def _full(self, target: Target) -> str | None:
        """Why there is no place for one more engine of its user, in words; None if there is."""
        uid = target.uid if target.pid is None else procfs.owner(target.pid)
        container = None if target.pid is None else containers.of(target.pid)
        domain = self._owners.domain(uid, container)
        others = [engine.domain for engine in self.engines.values() if engine.domain != COMMON]
        if len(self.engines) >= MOST_ENGINES:
            return f"more than {MOST_ENGINES} engines: the others are left alone"
        if domain == COMMON:
            return None
        if others.count(domain) >= MOST_OF_USER:
            who = called(domain)
            return f"more than {MOST_OF_USER} engines of {who}: the others are left alone"
        if len(others) >= MOST_OF_USERS:
            return f"more than {MOST_OF_USERS} engines of users: the others are left alone"
        return None

    def _access(self, engine: str) -> Access | None:
        return first(self._settings.access, engine, engine.partition(":")[0])

    def _is_wanted(self, target: Target) -> bool:
        wanted = self._settings.engine
        return not wanted or target.kind in wanted or target.engine in wanted


def _threads(engine: Engine) -> set[Thread]:
    """Of its operators."""
    if engine.snapshot is None:
        return set()
    return {thread for o in engine.snapshot.topology.operators for thread in o.threads}


def wanted_kinds(settings: Settings, kinds: Mapping[str, DriverKind]) -> dict[str, DriverKind]:
    """The kinds that the settings ask for. Raises SettingError for one that there is not."""
    wanted = {text.partition(":")[0] for text in settings.engine}
    for kind in sorted(wanted - kinds.keys()):
        raise SettingError(
            ("engine",),
            f"there is no driver for engines of kind {kind!r}{near_miss(kind, kinds)}",
            f"kinds: {', '.join(sorted(kinds)) or 'none'}",
        )
    believed = Owners(settings.users).believed
    found = {
        name: kind if kind.declared is None else kind.declared(settings.program, believed)
        for name, kind in ((name, kinds[name]) for name in sorted(wanted or kinds))
    }
    for name, _, address in (text.partition(":") for text in settings.engine):
        try:
            if address:
                found[name].check(address)
        except EngineError as error:
            raise SettingError(("engine",), error.message, error.hint) from None
    return found
