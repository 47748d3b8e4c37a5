"""scx: a BPF scheduler of ours dispatches the operator threads, by the policy's own order.

Decisions fall when a CPU asks what to run next, not when the controller has time; the controller
only writes hints into shared memory, so a policy switch costs no system call. In *full* mode every
normal thread of the machine is scheduled by us, operators by urgency and everybody else fairly with
a guaranteed share; in *partial* mode only operator threads (policy SCHED_EXT), and the kernel's
deadline server for them keeps the fair class, which ranks above, from starving them. Partial is
taken where the kernel has that server, and left when others keep operators from the CPU.

If the controller dies, the kernel takes all threads back; if it hangs, the hints expire; if the
kernel ejects the scheduler, `apply` says why and the ladder goes on below.
"""

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sched_ctl.backends import Applied, Backend
from sched_ctl.backends.scx import server
from sched_ctl.backends.scx.between import Between
from sched_ctl.backends.scx.hints import Limits, Part, capped, hints, merged
from sched_ctl.backends.scx.live import LiveRows
from sched_ctl.backends.scx.losses import Losses
from sched_ctl.backends.scx.monitor import Ejected, Monitor, hurried, save_dump
from sched_ctl.backends.scx.probe import mode_of
from sched_ctl.backends.scx.room import domain_of
from sched_ctl.backends.scx.slots import (
    Slots,
    arrivals_us,
    behind,
    heads_ns,
    numbers,
    rivals,
    strict,
    write,
)
from sched_ctl.backends.scx.weight import Weight
from sched_ctl.backends.threads.parameters import Parameters, Target, policy_alone
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.kernel import cgroup, sched, schedext
from sched_ctl.kernel.scheduler import Exit, LoadError, Scheduler
from sched_ctl.model.graph import Index
from sched_ctl.model.options import ScxOptions
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import Thread
from sched_ctl.runfolder import RunFolder

__all__ = ["Scx", "behind_us"]

log = logging.getLogger(__name__)

BEATS_PER_TTL = 4
RECHECK_S = 10.0
REST_S = 60.0  # without an operator: a job that restarts is back by then, and to load takes seconds
BEHIND = 0.6  # of a slice: with two thirds one median of five was 1.29 of EEVDF's
MOST_DEBT_MS = 100
MOST_RESTARTS = 3  # in a row, without an apply that went well


@dataclass
class _Scope:
    schedule: Schedule
    slots: Index
    live: NDArray[np.uint32]
    parts: list[Part] = field(default_factory=list)
    problems: tuple[str, ...] = ()  # of its threads, and ...
    uncapped: tuple[str, ...] = ()  # ... its caps
    rowless: bool = False  # whether an engine of it has no live rows for want of room


class Loaded:
    """A scheduler, and what there is only as long as it is loaded.

    attached: whether it dispatches. fair: whether others share the CPU with operators by weight.
    full: of all normal threads.
    """

    def __init__(self, scheduler: Scheduler, *, fair: bool, full: bool) -> None:
        self.scheduler = scheduler
        self.losses = Losses()
        self.live = LiveRows(scheduler)
        self.weight = Weight(scheduler, fair=fair)
        self.between = Between()
        self.limits = Limits.of(scheduler.limits)
        self.slots = Slots(scheduler, full=full)
        self.attached = False
        self._monitor: Monitor | None = None

    def watch(self, monitor: Monitor) -> None:
        self._monitor = monitor
        monitor.start()

    def close(self) -> None:
        """Detach; what was changed on threads and files stays."""
        if self._monitor is not None:
            self._monitor.stop()
            self._monitor = None
        self.live.close()
        self.scheduler.close()


class Scx(Backend):
    """The backend; see `backends.Backend`."""

    name: ClassVar[str] = "scx"
    expires: ClassVar[bool] = True  # the scheduler itself forgets what is not renewed
    lifts: ClassVar[bool] = True  # operators run before other threads of the same weight

    def __init__(self, journal: Journal, options: ScxOptions | None = None) -> None:
        self.options = options or ScxOptions()
        self.fair = self.options.precedence == "fair"
        self.mode = mode_of(self.options)
        self._journal = journal
        self._parameters = Parameters(journal, RECHECK_S, policy_alone(sched.EXT))
        self._scopes: dict[str, _Scope] = {}
        self._wanted: NDArray[Any] | None = None  # hints as they are written, kept for its memory
        self._restarts = 0
        self._resting_s = math.inf  # since when there is no operator, CLOCK_MONOTONIC
        self._with_cgroups = False
        self.loaded: Loaded | None = None

    @property
    def scheduler(self) -> Scheduler | None:
        return None if self.loaded is None else self.loaded.scheduler

    def apply(self, schedule: Schedule) -> Applied:
        """Raises Ejected when the kernel has ended the scheduler, LoadError if it cannot start."""
        if self.loaded is not None:
            loaded = self._look(self.loaded)
        elif not schedule.threads:
            return Applied()
        elif (obstacle := schedext.taken()) is not None:
            raise LoadError(obstacle)  # at once: to load it takes a slow CPU many seconds
        else:
            loaded = self._take(self._load())
        scope = self._scopes.get(schedule.scope)
        writes = 0
        released: list[Thread] = []
        fresh: list[Thread] = []
        if (
            scope is None
            or scope.schedule.threads != schedule.threads
            or self._may_get_more(loaded, scope)
        ):
            scope, fresh, released = self._follow(loaded, schedule)
        scope.schedule = schedule
        loaded.live.look()
        self._hint(loaded, scope)
        changed = self._write(loaded)
        self._forget_empty()
        writes += changed
        fresh += loaded.slots.untied(schedule.threads)
        more, gone = loaded.slots.adopt(fresh)
        if self.mode == "full" and self.options.align > 0:
            some = loaded.slots.follow_flushers([one.schedule for one in self._scopes.values()])
            # Each wake-up of other threads is looked at while this is not 0.
            loaded.scheduler.control["hold_us"] = round(self.options.align * 1e3) if some else 0
        if not loaded.attached:
            # Only now: a thread that is queued without a slot stays among the others for a while.
            self._attach(loaded)
        writes += len(fresh) - gone - len(loaded.slots.untied(fresh)) + len(released)
        repaired = 0
        if self.mode == "partial":
            ext = np.full(len(schedule.threads), sched.EXT)
            done = self._parameters.apply(Target(schedule.scope, schedule.threads, ext))
            writes, repaired = writes + done.writes, done.repaired
            gone = max(gone, done.gone)
            more += done.problems
        self._restarts = 0
        return Applied(
            writes=writes,
            unchanged=max(0, len(schedule.threads) - changed - gone),
            repaired=repaired,
            gone=gone,
            problems=(*scope.problems, *scope.uncapped, *more),
        )

    def applied(self, thread: Thread) -> Mapping[str, str | float]:
        """Where the scheduler has the thread, and what became of it so far."""
        loaded = self.loaded
        adopted = None if loaded is None else loaded.slots.get(thread)
        if loaded is None or adopted is None or adopted.gone:
            return {}
        scheduler = loaded.scheduler
        hint = scheduler.slots[adopted.slot]
        seen = scheduler.threads[adopted.slot]
        now_ns = scheduler.now_ns()
        queue = int(hint["queue"])
        control = scheduler.control
        age_ms, told = _since_ms(now_ns, int(seen["origin_ns"])), {}
        by_engine = bool(hint["flags"] & scheduler.slot_flags["SLOT_LIVE_AGE"])
        if (row := loaded.live.row(thread)) is not None:
            told = {"queue_tuples": int(row["queue_tuples"])}
            if by_engine:
                age_ms = _since_ms(time.monotonic_ns(), int(row["head_ns"]))
        return {
            "mode": self.mode,
            "queue": queue,
            "group": int(control["queues"][queue]["group"]),
            "lead_ms": float(hint["lead_us"]) / 1e3,
            "age_ms": age_ms,
            "age_by": "engine" if by_engine else "waker",
            **told,
            "waits_ms": _since_ms(now_ns, int(seen["queued_ns"])),
            "wait_max_ms": round(float(seen["wait_max_ns"]) / 1e6, 3),
            "wait_mean_ms": round(float(seen["wait_ns"]) / 1e6 / max(1, int(seen["runs"])), 4),
            "runs": int(seen["runs"]),
            "starved": int(seen["rescues"]),
            "ingress": "yes" if seen["outside"] else "no",
        }

    def restore(self) -> tuple[str, ...]:
        """Give back all threads, detach, and put the deadline server back."""
        problems = list(self._parameters.restore())
        self._close()
        return (*problems, *server.lower(self._journal))

    def rest(self) -> tuple[str, ...]:
        """Who pays for a scheduler that orders nobody are all others."""
        if self.loaded is None or any(scope.schedule.threads for scope in self._scopes.values()):
            self._resting_s = math.inf
            return self._parameters.rest()
        now_s = time.monotonic()
        self._resting_s = min(self._resting_s, now_s)
        if now_s - self._resting_s < REST_S:
            return ()
        log.info("no operator for %.0f s: the sched_ext scheduler is taken off", REST_S)
        return self.restore()

    def statistics(self) -> Mapping[str, int]:
        """Counters of the scheduler; `about` has a text for each."""
        return self.scheduler.stats() if self.scheduler is not None else {}

    def about(self) -> Mapping[str, str]:
        return self.scheduler.about if self.scheduler is not None else {}

    def _load(self) -> Scheduler:
        """A scheduler that is ready to be attached."""
        full = self.mode == "full"
        self._with_cgroups = full and cgroup.in_use()
        tunables = {
            "operators_first": self.options.precedence == "engine",
            "guarantee_percent": self.options.guarantee,
            "debt_ms": _debt_ms(self.options.guarantee, self.options.ttl),
            "follow_use": self.options.frequency == "use",
        }
        try:
            scheduler = Scheduler(full=full, cgroups=self._with_cgroups, tunables=tunables)
        except LoadError as error:
            _show(error)
            raise
        for name in scheduler.cleared:
            log.warning("this kernel has no ops.%s: done without", name)
        control = scheduler.control
        control["ttl_ms"] = round(self.options.ttl * 1e3)
        control["slice_us"] = round(self.options.slice * 1e3)
        control["starvation_ms"] = round(self.options.starvation)
        control["preempt_times"] = self.options.preempt
        control["floor_us"] = round(self.options.floor * 1e3)
        control["least_us"] = round(self.options.interrupt * 1e3)
        return scheduler

    def _take(self, scheduler: Scheduler) -> Loaded:
        self.loaded = Loaded(scheduler, fair=self.fair, full=self.mode == "full")
        return self.loaded

    def _attach(self, loaded: Loaded) -> None:
        """Raises LoadError, or JournalError; then it is not attached."""
        if self.mode == "partial":
            server.note(self._journal)  # once attached, nothing may keep it from its monitor
        try:
            loaded.scheduler.attach()
        except LoadError as error:
            _show(error)
            self.restore()
            raise
        loaded.attached = True
        if self.mode == "partial":
            usual = 90 if self.options.precedence == "engine" else 50
            server.raise_to(self._journal, self.options.server or usual)
        libbpf = loaded.scheduler.libbpf
        log.info("sched_ext scheduler attached in %s mode, by %s", self.mode, libbpf)
        monitor = Monitor(
            loaded.scheduler,
            self.options.ttl / BEATS_PER_TTL,
            self._ended,
            lambda: self.good_until_s,
        )
        loaded.watch(monitor)

    def _ended(self, exit_: Exit) -> None:
        if self.on_lost is not None:
            self.on_lost(str(exit_))

    def _look(self, loaded: Loaded) -> Loaded:
        """Is it still attached? Loads it again where the kernel asks for that."""
        exit_ = loaded.scheduler.exit()
        if exit_ is None:
            return self._watch_cgroups(self._watch_losses(loaded))
        if not exit_.restart or self._restarts >= MOST_RESTARTS:
            dump = save_dump(loaded.scheduler, exit_, RunFolder(self._journal.path.parent).dump)
            raise Ejected(exit_, dump or "dmesg")
        self._restarts += 1
        log.warning("%s", exit_)
        return self._reload()

    def _reload(self) -> Loaded:
        """Change to a new one, which is loaded before the old one goes: that takes a while."""
        scopes = [scope.schedule for scope in self._scopes.values()]
        with hurried():
            scheduler = self._load()
        if self.mode == "full":
            for problem in (*self._parameters.restore(), *server.lower(self._journal)):
                log.warning("%s", problem)
        self._close()
        loaded = self._take(scheduler)
        for schedule in scopes:
            scope, fresh, _ = self._follow(loaded, schedule)
            self._hint(loaded, scope)
            self._write(loaded)
            loaded.slots.adopt(fresh)  # who cannot be tied is tried, and told of, by each pass
        self._attach(loaded)
        return loaded

    def _close(self) -> None:
        """Detach and forget all slots; what was changed on threads and files stays."""
        if self.loaded is not None:
            self.loaded.close()
            self.loaded = None
        self._scopes.clear()

    def _watch_losses(self, loaded: Loaded) -> Loaded:
        """Partial mode does not keep latency beside threads that use all CPUs: leave it then."""
        if self.mode == "full" or self.options.mode != "auto":
            return loaded
        share = loaded.losses.look(self.statistics())
        if share is None:
            return loaded
        self.note = (
            f"full mode: in partial mode other threads had the CPU for {share:.0%} of the time "
            "that operators wanted it"
        )
        log.warning("%s", self.note)
        self.mode = "full"
        return self._reload()

    def _watch_cgroups(self, loaded: Loaded) -> Loaded:
        """Cgroups that got the cpu controller only now: their weights and limits count from now."""
        if self.mode == "full" and not self._with_cgroups and cgroup.in_use():
            log.info("cgroups have the cpu controller now: the scheduler is loaded with them")
            return self._reload()
        return loaded

    def _follow(
        self, loaded: Loaded, schedule: Schedule
    ) -> tuple[_Scope, list[Thread], list[Thread]]:
        """Slots and live rows for the schedule's threads; which got a slot, and which lost it."""
        known = self._scopes.get(schedule.scope)
        before = known.schedule.threads if known else ()
        fresh, released, problems = loaded.slots.follow(schedule.scope, before, schedule.threads)
        scope = self._scopes[schedule.scope] = self._scope(loaded, schedule)
        if self.options.live:
            refused = loaded.live.refused(schedule.threads, domain_of(schedule.scope))
            problems += [*loaded.live.strangers(schedule.threads), *refused]
            scope.rowless = bool(refused)
        scope.problems = tuple(problems)
        loaded.live.keep(one.live for one in self._scopes.values())
        return scope, fresh, released

    def _may_get_more(self, loaded: Loaded, scope: _Scope) -> bool:
        """Whether it lacks slots or live rows that have come free."""
        name = scope.schedule.scope
        if not scope.slots.all() and loaded.slots.has_room(name):
            return True
        return scope.rowless and loaded.live.has_room(domain_of(name))

    def _scope(self, loaded: Loaded, schedule: Schedule) -> _Scope:
        threads = schedule.threads
        live = np.zeros(len(threads), dtype=np.uint32)
        if self.options.live:
            live = loaded.live.indices(threads, domain_of(schedule.scope))
        return _Scope(schedule, loaded.slots.of(threads), live)

    def _hint(self, loaded: Loaded, scope: _Scope) -> None:
        """Make the hints of a scope; if it takes the room of others' caps, then theirs, too."""
        self._hint_one(loaded, scope)
        scopes = self._scopes.values()
        if sum(len(one.parts) for one in scopes) > loaded.limits.groups:
            for other in scopes:
                if other is not scope and any(part.cap for part in other.parts):
                    self._hint_one(loaded, other)

    def _hint_one(self, loaded: Loaded, scope: _Scope) -> None:
        options = self.options
        others = sum(len(other.parts) for other in self._scopes.values() if other is not scope)
        room = loaded.limits.groups - others
        caps, scope.uncapped = capped(scope.schedule, options.caps, room)
        scope.parts = hints(
            scope.schedule,
            loaded.limits,
            clusters=options.clusters,
            gap_s=options.gap,
            caps=caps,
            live=loaded.live.counting(scope.live),
        )

    def _forget_empty(self) -> None:
        """Drop scopes without threads, as of engines that ended; one of them may stay."""
        used = {name: scope for name, scope in self._scopes.items() if scope.schedule.threads}
        self._scopes = used or dict(list(self._scopes.items())[-1:])

    def _write(self, loaded: Loaded) -> int:
        """Write the hints of all scopes; returns how many slots changed."""
        scheduler = loaded.scheduler
        scopes = list(self._scopes.values())
        offsets = np.cumsum([0, *(len(scope.slots) for scope in scopes)])
        parts = [
            (int(offset), part)
            for scope, offset in zip(scopes, offsets, strict=False)
            for part in scope.parts
        ]
        total = int(offsets[-1])
        of_scope = {name: scope.schedule.threads for name, scope in self._scopes.items()}
        weights = loaded.between.weights(of_scope)
        made = merged(
            parts, total, loaded.limits, dict(zip(offsets.tolist(), weights, strict=False))
        )
        control, table = scheduler.control, scheduler.slots
        queues = max(1, len(made.queue_base))
        grown = control["queues"][: len(made.queue_base)]
        grown["base"], grown["slope"] = made.queue_base, made.queue_slope
        grown["group"] = made.queue_group
        grown["flags"] = made.queue_exact * scheduler.queue_flags["QUEUE_EXACT"]
        control["groups"]["share"][: len(made.shares)] = made.shares
        control["groups"]["cap"][: len(made.caps)] = made.caps
        control["nr_queues"], control["nr_groups"] = queues, len(made.shares)
        slots = scopes[0].slots if len(scopes) == 1 else np.concatenate([x.slots for x in scopes])
        live = scopes[0].live if len(scopes) == 1 else np.concatenate([x.live for x in scopes])
        names = scheduler.slot_flags
        always = names["SLOT_ACTIVE"] | self.options.until_block * names["SLOT_UNTIL_BLOCK"]
        if self._wanted is None or len(self._wanted) != total:
            self._wanted = np.zeros(total, dtype=table.dtype)
        fresh = self._wanted
        schedules = [scope.schedule for scope in scopes]
        flags = np.full(total, always, dtype=np.uint16)
        flags[rivals(schedules)] |= names["SLOT_RIVALS"]
        fresh["lead_us"], fresh["queue"] = made.lead_us, made.queue
        fresh["slope"], fresh["base"] = made.slope, made.base
        fresh["query"], fresh["depth"] = numbers(schedules)
        fresh["slice_us"] = behind(schedules) * behind_us(self.options.slice)
        loaded.weight.of(slots, fresh["query"].astype(np.intp), strict(schedules))
        came_us = arrivals_us(schedules, made.by_age & self.options.arrivals)
        scheduler.heads[slots] = heads_ns(schedules, came_us)
        scheduler.arrivals[slots] = came_us
        if (told := loaded.live.counting(live)).any():
            flags[told & made.by_age] |= names["SLOT_LIVE_AGE"]
            flags[told & (made.per_tuple > 0)] |= names["SLOT_LIVE_LENGTH"]
            # Without these flags nobody reads the other two, so they need not be put back.
            fresh["per_tuple"], fresh["live"] = made.per_tuple, live
        fresh["flags"] = flags
        changed = write(scheduler, slots, fresh)
        lately = loaded.weight.look()
        if lately is not None:
            loaded.between.look(of_scope, lately)
        return changed


def behind_us(slice_ms: float) -> int:
    """Slice of threads that the rest of their query goes before: it waits for half of it."""
    return min(round(slice_ms * 1e3 * BEHIND), 65_535)


def _debt_ms(guarantee_percent: int, ttl_s: float) -> int:
    """Other threads, such as the controller's, may wait for half the TTL to pay back leftovers."""
    earned = guarantee_percent / (100 - guarantee_percent)
    return min(MOST_DEBT_MS, round(earned * ttl_s * 1e3 / 2))


def _since_ms(now_ns: int, then_ns: int) -> float:
    return max(0.0, round((now_ns - then_ns) / 1e6, 3)) if then_ns else 0.0


def _show(error: LoadError) -> None:
    for line in error.log.splitlines():
        log.debug("libbpf: %s", line)
