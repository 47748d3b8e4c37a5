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

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from sched_ctl.backends import Applied, BackendFailed, Probe, undo
from sched_ctl.backends.hints import Limits, Part, hints, merged
from sched_ctl.backends.journal import Journal
from sched_ctl.backends.live import LiveRows
from sched_ctl.backends.parameters import Parameters, Target
from sched_ctl.backends.records import FileChanged
from sched_ctl.graph import Index
from sched_ctl.kernel import cgroup, procfs, sched, schedext
from sched_ctl.kernel.libbpf import BpfError, library
from sched_ctl.kernel.scheduler import OBJECT, Exit, LoadError, Scheduler, thread_pidfd
from sched_ctl.model import Thread
from sched_ctl.schedule import Schedule

__all__ = ["Ejected", "Scx", "ScxOptions", "features", "probe"]

log = logging.getLogger(__name__)

BEATS_PER_TTL = 4
DUMP_NAME = "sched_ext.dump"
RECHECK_S = 10.0
LOOK_S = 0.5
MOST_LOST = 0.05  # of the CPU time that operators wanted: others may have it without a reaction ...
LEAST_LOST = 0.01  # ... and this much of one CPU, however little operators want
LOSSES = 2  # looks in a row that find more
SERVER_PERIOD_NS = 100_000_000
MOST_DEBT_MS = 100
MOST_RESTARTS = 3  # in a row, without an apply that went well


class ScxOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the sched_ext backend."""

    mode: Annotated[
        Literal["auto", "partial", "full"],
        msgspec.Meta(description="whether only operator threads are ours, or all normal ones"),
    ] = "auto"
    slice: Annotated[
        float,
        msgspec.Meta(
            description="time that a thread runs before others are compared with it",
            ge=0.1,
            le=1000,
            extra={"unit": "ms"},
        ),
    ] = 3.0
    until_block: Annotated[
        bool, msgspec.Meta(description="let operators run until they block, at most 100 ms")
    ] = False
    clusters: Annotated[
        int, msgspec.Meta(description="classes of wait-dependent priorities", ge=1, le=64)
    ] = 12
    gap: Annotated[
        float,
        msgspec.Meta(
            description="work that is older by this goes before work one place more urgent",
            ge=0,
            le=3600,
            extra={"unit": "s"},
        ),
    ] = 1.0
    starvation: Annotated[
        float,
        msgspec.Meta(
            description="an operator that waits longer for a CPU runs next, whatever the policy",
            ge=1,
            le=60_000,
            extra={"unit": "ms"},
        ),
    ] = 500.0
    guarantee: Annotated[
        int,
        msgspec.Meta(
            description="share of each CPU for all other threads (full mode)",
            ge=0,
            le=50,
            extra={"unit": "%"},
        ),
    ] = 5
    server: Annotated[
        int,
        msgspec.Meta(
            description="share of each CPU for operators against the fair class (partial mode)",
            ge=5,
            le=95,
            extra={"unit": "%"},
        ),
    ] = 90
    caps: Annotated[
        dict[str, Annotated[int, msgspec.Meta(ge=1, le=512)]],
        msgspec.Meta(
            description="how many threads of a query may run at once: pattern = number; others "
            "run on as many CPUs as they can use",
        ),
    ] = {}
    preempt: Annotated[
        int,
        msgspec.Meta(
            description="a woken operator this many times more urgent preempts; 0 = never",
            ge=0,
            le=1_000_000,
        ),
    ] = 0
    live: Annotated[
        bool,
        msgspec.Meta(description="go by head ages and queue lengths that engines write"),
    ] = True
    ttl: Annotated[
        float,
        msgspec.Meta(
            description="hints of a controller that gives no sign of life for so long are ignored",
            ge=0.2,
            le=60,
            extra={"unit": "s"},
        ),
    ] = 2.0


class Ejected(BackendFailed):
    """The kernel no longer runs our scheduler. kind: as `Exit.kind`."""

    def __init__(self, exit_: Exit, details: str = "dmesg") -> None:
        super().__init__(
            f"the kernel ended the sched_ext scheduler: {exit_}",
            f"all threads are with the kernel's own scheduler; {details} has the details",
        )
        self.kind = exit_.kind


@dataclass
class _Scope:
    schedule: Schedule
    slots: Index
    live: NDArray[np.uint32]
    parts: list[Part] = field(default_factory=list)
    problems: tuple[str, ...] = ()


@dataclass
class _Adopted:
    """A thread that has a slot."""

    slot: int
    scopes: set[str] = field(default_factory=set)
    gone: bool = False


class Scx:
    """The backend; see `backends.Backend`.

    on_lost: called (from another thread) as soon as the kernel has ejected the scheduler.
    """

    name: ClassVar[str] = "scx"

    def __init__(self, journal: Journal, options: ScxOptions | None = None) -> None:
        self.options = options or ScxOptions()
        self.on_lost: Callable[[str], None] | None = None
        self.mode = _mode(self.options)
        self.scheduler: Scheduler | None = None
        self._journal = journal
        self._parameters = Parameters(journal, RECHECK_S)
        self._scopes: dict[str, _Scope] = {}
        self._wanted: NDArray[Any] | None = None  # hints as they are written, kept for its memory
        self._adopted: dict[Thread, _Adopted] = {}
        self._free: deque[int] = deque()
        self._live: LiveRows | None = None
        self._monitor: _Monitor | None = None
        self._restarts = 0
        self._attached = False
        self._with_cgroups = False
        self._seen: tuple[Mapping[str, int], float] = ({}, 0.0)  # counters, when they were read
        self._losing = 0  # looks in a row that found losses
        self.note = ""  # for `status`

    # -- the contract ---------------------------------------------------------------------------

    def apply(self, schedule: Schedule) -> Applied:
        """Raises Ejected when the kernel has ended the scheduler, LoadError if it cannot start."""
        if self.scheduler is None:
            self._take(self._loaded())
        else:
            self._look()
        assert self._live is not None
        scope = self._scopes.get(schedule.scope)
        problems: list[str] = []
        writes = 0
        released: list[Thread] = []
        fresh: list[Thread] = []
        if scope is None or scope.schedule.threads != schedule.threads:
            fresh, released, problems = self._follow(schedule)
            scope = self._scopes[schedule.scope] = self._scope(schedule)
            self._live.keep(one.live for one in self._scopes.values())
            scope.problems = tuple(problems)
        scope.schedule = schedule
        self._live.look()
        scope.parts = self._hints(scope)
        changed = self._write()
        writes += changed
        more, gone = self._adopt(fresh)
        if not self._attached:
            # Only now: a thread that is queued without a slot stays among the others for a while.
            self._attach()
        writes += len(fresh) - gone + len(released)
        repaired = 0
        if self.mode == "partial":
            done = self._parameters.apply(Target(schedule.scope, schedule.threads, None, sched.EXT))
            writes, repaired = writes + done.writes, done.repaired
            gone = max(gone, done.gone)
            more += done.problems
        self._restarts = 0
        return Applied(
            writes=writes,
            unchanged=max(0, len(schedule.threads) - changed - gone),
            repaired=repaired,
            gone=gone,
            problems=(*scope.problems, *more),
        )

    def applied(self, thread: Thread) -> Mapping[str, str | float]:
        """Where the scheduler has the thread, and what became of it so far."""
        adopted = self._adopted.get(thread)
        if adopted is None or adopted.gone or self.scheduler is None:
            return {}
        hint = self.scheduler.slots[adopted.slot]
        seen = self.scheduler.threads[adopted.slot]
        now_ns = self.scheduler.now_ns()
        queue = int(hint["queue"])
        control = self.scheduler.control
        age_ms, told = _since_ms(now_ns, int(seen["origin_ns"])), {}
        by_engine = bool(hint["flags"] & self.scheduler.slot_flags["SLOT_LIVE_AGE"])
        if self._live is not None and (row := self._live.row(thread)) is not None:
            told = {"queue_tuples": int(row["queue_tuples"])}
            if by_engine:
                age_ms = _since_ms(time.monotonic_ns(), int(row["head_ns"]))
        return {
            "mode": self.mode,
            "cluster": queue,
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
        return (*problems, *self._lower_servers())

    def statistics(self) -> Mapping[str, int]:
        """Counters of the scheduler; `about` has a text for each."""
        return self.scheduler.stats() if self.scheduler is not None else {}

    def about(self) -> Mapping[str, str]:
        return self.scheduler.about if self.scheduler is not None else {}

    # -- attach, watch --------------------------------------------------------------------------

    def _loaded(self) -> Scheduler:
        """A scheduler that is ready to be attached."""
        full = self.mode == "full"
        self._with_cgroups = full and cgroup.in_use()
        tunables = {
            "guarantee_percent": self.options.guarantee,
            "debt_ms": _debt_ms(self.options.guarantee, self.options.ttl),
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
        return scheduler

    def _take(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._seen = ({}, time.monotonic())
        self._live = LiveRows(scheduler)
        self._limits = Limits.of(scheduler.limits)
        self._free = deque(range(1, len(scheduler.slots)))

    def _attach(self) -> None:
        assert self.scheduler is not None
        try:
            self.scheduler.attach()
        except LoadError as error:
            _show(error)
            self.restore()
            raise
        self._attached = True
        if self.mode == "partial":
            self._raise_server()
        log.info("sched_ext scheduler attached in %s mode, by %s", self.mode, self.scheduler.libbpf)
        self._monitor = _Monitor(self.scheduler, self.options.ttl / BEATS_PER_TTL, self._ended)
        self._monitor.start()

    def _ended(self, exit_: Exit) -> None:
        if self.on_lost is not None:
            self.on_lost(str(exit_))

    def _look(self) -> None:
        """Is it still attached? Loads it again where the kernel asks for that."""
        assert self.scheduler is not None
        exit_ = self.scheduler.exit()
        if exit_ is None:
            self._watch_losses()
            self._watch_cgroups()
            return
        if not exit_.restart or self._restarts >= MOST_RESTARTS:
            raise Ejected(exit_, self._save_dump(exit_) or "dmesg")
        self._restarts += 1
        log.warning("%s", exit_)
        self._reload()

    def _save_dump(self, exit_: Exit) -> str:
        """Put what the kernel says about the end beside the journal; returns the file's name."""
        assert self.scheduler is not None
        dump = self.scheduler.dump()
        if not dump:
            return ""
        path = self._journal.path.with_name(DUMP_NAME)
        try:
            # Names of threads are in it: for the one who started us alone.
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with open(fd, "w", encoding="utf-8", errors="replace") as file:
                file.write(f"{exit_}\n\n{dump}")
        except OSError as error:
            log.warning("%s: %s: the kernel's dump is lost", path, error.strerror)
            return ""
        log.warning("the kernel's dump of the scheduler's end is in %s", path)
        return str(path)

    def _reload(self) -> None:
        """Change to a new one, which is loaded before the old one goes: that takes a while."""
        scopes = [scope.schedule for scope in self._scopes.values()]
        with _at_once():
            scheduler = self._loaded()
        if self.mode == "full":
            for problem in (*self._parameters.restore(), *self._lower_servers()):
                log.warning("%s", problem)
        self._close()
        self._take(scheduler)
        for schedule in scopes:
            fresh, _, _ = self._follow(schedule)
            scope = self._scopes[schedule.scope] = self._scope(schedule)
            scope.parts = self._hints(scope)
            self._write()
            scope.problems, _ = self._adopt(fresh)
        self._attach()

    def _close(self) -> None:
        """Detach and forget all slots; what was changed on threads and files stays."""
        if self._monitor is not None:
            self._monitor.stop()
            self._monitor = None
        if self._live is not None:
            self._live.close()
            self._live = None
        if self.scheduler is not None:
            self.scheduler.close()
            self.scheduler = None
        self._attached = False
        self._scopes.clear()
        self._adopted.clear()
        self._free.clear()

    def _watch_losses(self) -> None:
        """Partial mode does not keep latency beside threads that use all CPUs: leave it then."""
        if self.mode == "full" or self.options.mode != "auto":
            return
        counters, now_s = self.statistics(), time.monotonic()
        seen, seen_s = self._seen
        passed_s = now_s - seen_s
        if passed_s < LOOK_S:
            return
        self._seen = (counters, now_s)
        lost_s, ran_s = (
            (counters[name] - seen.get(name, 0)) / 1e9 for name in ("lost_ns", "operator_ns")
        )
        share = lost_s / max(lost_s + ran_s, 1e-9)
        loses = share > MOST_LOST and lost_s > LEAST_LOST * passed_s
        self._losing = self._losing + 1 if loses else 0
        if self._losing < LOSSES:
            return
        self.note = (
            f"full mode: in partial mode other threads had the CPU for {share:.0%} of the time "
            "that operators wanted it"
        )
        log.warning("%s", self.note)
        self.mode = "full"
        self._reload()

    def _watch_cgroups(self) -> None:
        """Cgroups that got the cpu controller only now: their weights and limits count from now."""
        if self.mode == "full" and not self._with_cgroups and cgroup.in_use():
            log.info("cgroups have the cpu controller now: the scheduler is loaded with them")
            self._reload()

    def _raise_server(self) -> None:
        """Give SCHED_EXT threads their share against the fair class; journalled first."""
        wanted = self.options.server * SERVER_PERIOD_NS // 100
        for folder in schedext.server_files():
            runtime, period = folder / "runtime", folder / "period"
            if schedext.is_offline(folder.name):
                continue  # when it comes, we are loaded anew
            try:
                self._journal.write(
                    FileChanged(path=str(file), undo=file.read_text().strip())
                    for file in (runtime, period)
                )
                # The runtime may at no time exceed the period.
                runtime.write_text("1000000")
                period.write_text(str(SERVER_PERIOD_NS))
                runtime.write_text(str(wanted))
            except OSError as error:
                log.warning("%s: %s: operators may starve beside a hog", folder, error.strerror)

    def _lower_servers(self) -> list[str]:
        """Put the servers back; returns what could not be."""
        raised = [path for path in self._journal.state.files if path.startswith(_SERVERS)]
        return undo.files(self._journal, raised)

    # -- threads --------------------------------------------------------------------------------

    def _follow(self, schedule: Schedule) -> tuple[list[Thread], list[Thread], list[str]]:
        """Slots for new threads, and none for those that the scope has no more."""
        scope = self._scopes.get(schedule.scope)
        before = set(scope.schedule.threads) if scope else set()
        after = set(schedule.threads)
        fresh: list[Thread] = []
        problems: list[str] = []
        for thread in dict.fromkeys(schedule.threads):
            adopted = self._adopted.get(thread)
            if adopted is None:
                if not self._free:
                    problems.append(f"thread {thread.tid}: no slot left, it is not scheduled by us")
                    continue
                adopted = self._adopted[thread] = _Adopted(self._free.popleft())
                fresh.append(thread)
            adopted.scopes.add(schedule.scope)
        released = []
        for thread in before - after:
            adopted = self._adopted.get(thread)
            if adopted is None:
                continue
            adopted.scopes.discard(schedule.scope)
            if not adopted.scopes:
                self._release(thread)
                released.append(thread)
        return fresh, released, problems

    def _slots_of(self, threads: Sequence[Thread]) -> Index:
        """Slot 0 for threads that have none."""
        found = (self._adopted.get(thread) for thread in threads)
        return np.array([a.slot if a else 0 for a in found], dtype=np.intp)

    def _adopt(self, threads: Sequence[Thread]) -> tuple[tuple[str, ...], int]:
        """Tie threads to their slots, which are filled. Returns problems, and how many are gone."""
        assert self.scheduler is not None
        problems = []
        gone = 0
        for thread in threads:
            adopted = self._adopted[thread]
            try:
                fd = thread_pidfd(thread.tid)
                with open(fd, "rb", buffering=0):
                    # Opened first: if the start time is right now, the descriptor is right.
                    now = procfs.stat(thread.pid, thread.tid)
                    if now is None or now.start_time != thread.start_time:
                        raise ProcessLookupError
                    self.scheduler.adopt(fd, adopted.slot)
            except ProcessLookupError:
                adopted.gone = True
                gone += 1
                continue
            except BpfError as error:
                problems.append(f"thread {thread.tid} ({thread.name}): {error.strerror}")
                continue
            if self.mode == "full" and now.policy not in _OURS_IN_FULL_MODE:
                name = sched.POLICY_NAMES.get(now.policy, str(now.policy))
                problems.append(
                    f"thread {thread.tid} ({thread.name or now.name}) is {name} by somebody "
                    "else's will: left alone"
                )
        return tuple(problems), gone

    def _release(self, thread: Thread) -> None:
        assert self.scheduler is not None
        adopted = self._adopted.pop(thread)
        self.scheduler.slots[adopted.slot]["flags"] = 0
        self._free.append(adopted.slot)  # at the far end: it rests before it is used again
        if adopted.gone:
            return
        try:
            fd = thread_pidfd(thread.tid)
        except OSError:
            return
        with open(fd, "rb", buffering=0):
            now = procfs.stat(thread.pid, thread.tid)
            if now is not None and now.start_time == thread.start_time:
                self.scheduler.disown(fd)

    # -- hints ----------------------------------------------------------------------------------

    def _scope(self, schedule: Schedule) -> _Scope:
        assert self._live is not None
        threads = schedule.threads
        live = np.zeros(len(threads), dtype=np.uint32)
        if self.options.live:
            live = self._live.indices(threads)
        return _Scope(schedule, self._slots_of(threads), live)

    def _hints(self, scope: _Scope) -> list[Part]:
        assert self._live is not None
        options = self.options
        return hints(
            scope.schedule,
            self._limits,
            clusters=options.clusters,
            gap_s=options.gap,
            caps=options.caps,
            live=self._live.counting(scope.live),
        )

    def _write(self) -> int:
        """Write the hints of all scopes; returns how many slots changed."""
        assert self.scheduler is not None and self._live is not None
        scopes = list(self._scopes.values())
        offsets = np.cumsum([0, *(len(scope.slots) for scope in scopes)])
        parts = [
            (int(offset), part)
            for scope, offset in zip(scopes, offsets, strict=False)
            for part in scope.parts
        ]
        total = int(offsets[-1])
        made = merged(parts, total, self._limits)
        control, table = self.scheduler.control, self.scheduler.slots
        queues = max(1, len(made.queue_base))
        grown = control["queues"][: len(made.queue_base)]
        grown["base"], grown["slope"] = made.queue_base, made.queue_slope
        grown["group"] = made.queue_group
        grown["flags"] = made.queue_exact * self.scheduler.queue_flags["QUEUE_EXACT"]
        control["groups"]["share"][: len(made.shares)] = made.shares
        control["groups"]["cap"][: len(made.caps)] = made.caps
        control["nr_queues"], control["nr_groups"] = queues, len(made.shares)
        slots = scopes[0].slots if len(scopes) == 1 else np.concatenate([x.slots for x in scopes])
        live = scopes[0].live if len(scopes) == 1 else np.concatenate([x.live for x in scopes])
        names = self.scheduler.slot_flags
        always = names["SLOT_ACTIVE"] | self.options.until_block * names["SLOT_UNTIL_BLOCK"]
        if self._wanted is None or len(self._wanted) != total:
            self._wanted = np.zeros(total, dtype=table.dtype)
        fresh = self._wanted
        fresh["lead_us"], fresh["queue"], fresh["flags"] = made.lead_us, made.queue, always
        fresh["slope"], fresh["base"] = made.slope, made.base
        if (told := self._live.counting(live)).any():
            flags = np.full(total, always, dtype=np.uint16)
            flags[told & made.by_age] |= names["SLOT_LIVE_AGE"]
            flags[told & (made.per_tuple > 0)] |= names["SLOT_LIVE_LENGTH"]
            # Without these flags nobody reads the other two, so they need not be put back.
            fresh["flags"], fresh["per_tuple"], fresh["live"] = flags, made.per_tuple, live
        # As words: comparing and copying structs member by member takes four times as long.
        words, wanted = (x.view(np.uint64).reshape(len(x), -1) for x in (table, fresh))
        at = _consecutive(slots)
        differ = _differ(words[at], wanted)
        if not isinstance(at, slice):
            differ &= slots != 0
        changed = int(np.count_nonzero(differ))
        unused = table["flags"][at] == 0
        if unused.any():
            new = slots[unused & differ]
            self.scheduler.threads[new] = np.zeros((), dtype=self.scheduler.threads.dtype)
        if isinstance(at, slice) and changed > total // 8:
            words[at] = wanted  # one copy costs less than to pick what changed
        else:
            words[slots[differ]] = wanted[differ]
        return changed


def _consecutive(slots: Index) -> slice | Index:
    """These slots as a slice, where they are one: a tenth of the time to read and write."""
    first = int(slots[0]) if len(slots) else 0
    if first > 0 and bool((np.diff(slots) == 1).all()):
        return slice(first, first + len(slots))
    return slots


def _differ(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """(n,) whether rows of (n, 4) words differ."""
    differing = one != other
    if differing.shape[1] != 4:
        return differing.any(axis=1)  # type: ignore[no-any-return]
    found: NDArray[np.bool_] = differing.view(np.uint32).ravel() != 0  # 4 bytes, a word of them
    return found


_SERVERS = str(schedext.SERVERS)
_OURS_IN_FULL_MODE = (sched.OTHER, sched.BATCH, sched.IDLE, sched.EXT)


@contextlib.contextmanager
def _at_once() -> Iterator[None]:
    """Before all other threads but operators, where that is permitted: beside hogs, too."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, policy, parameters)


class _Monitor(threading.Thread):
    """Gives the sign of life, and notices at once when the kernel has ended the scheduler."""

    def __init__(
        self, scheduler: Scheduler, period_s: float, ended: Callable[[Exit], None]
    ) -> None:
        super().__init__(name="scx heartbeat", daemon=True)
        self._scheduler, self._period_s, self._ended = scheduler, period_s, ended
        self._stopped = threading.Event()

    def run(self) -> None:
        # Next to nothing to do, but in time, whoever has the CPUs.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        while not self._stopped.wait(self._period_s):
            self._scheduler.beat()
            exit_ = self._scheduler.exit()
            if exit_ is not None:
                self._ended(exit_)
                return

    def stop(self) -> None:
        self._stopped.set()
        if self is not threading.current_thread():
            self.join()


def probe() -> Probe:
    """Whether a scheduler could be attached now. Loads nothing."""
    obstacle = next(schedext.obstacles(), None)
    if obstacle is not None:
        return Probe(False, obstacle.because, obstacle.hint)
    if not OBJECT.exists():
        return Probe(
            False,
            f"the BPF program was not built ({OBJECT.name} is missing)",
            "make -C bpf (needs clang), or install a package that has it",
        )
    try:
        lib = library()
    except BpfError as error:
        return Probe(False, str(error.strerror), "apt install libbpf1, or pip install pylibbpf")
    return Probe(True, f"{_mode(ScxOptions())} mode, by {lib.origin}")


def features() -> list[tuple[str, str]]:
    """What of sched_ext this kernel has, name and words, for `sched-ctl check`."""
    if schedext.state() is None:
        return []
    share = schedext.server_share()
    found = [
        (
            "deadline server",
            "none: full mode, in which all normal threads are ours"
            if share is None
            else f"{share:.0%} of each CPU: partial mode, in which only operators are ours",
        )
    ]
    held = "hold" if cgroup.in_use() else "would hold; none has the cpu controller now"
    found.append(("cgroups", f"in full mode, weights and limits of cgroups {held}"))
    kernel = schedext.kernel_types()
    for function, use in _OPTIONAL.items():
        has = kernel.parameters(function) is not None
        found.append((function, use if has else f"missing; without: {use}"))
    return found


_OPTIONAL = {
    "scx_bpf_dsq_peek": "look at the head of a queue without taking its lock",
    "scx_bpf_now": "a clock that costs no system counter read",
}


def _debt_ms(guarantee_percent: int, ttl_s: float) -> int:
    """Other threads, such as the controller's, may wait for half the TTL to pay back leftovers."""
    earned = guarantee_percent / (100 - guarantee_percent)
    return min(MOST_DEBT_MS, round(earned * ttl_s * 1e3 / 2))


def _mode(options: ScxOptions) -> str:
    if options.mode != "auto":
        return options.mode
    return "partial" if schedext.server_files() else "full"


def _since_ms(now_ns: int, then_ns: int) -> float:
    return max(0.0, round((now_ns - then_ns) / 1e6, 3)) if then_ns else 0.0


def _show(error: LoadError) -> None:
    for line in error.log.splitlines():
        log.debug("libbpf: %s", line)
