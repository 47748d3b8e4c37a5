"""The controller's side of one engine: asking it, remembering its answers, bearing its silence.

Each engine has a thread of its own, because drivers are synchronous and an engine may hang: the
loop asks, waits for a bounded time, and goes on with what it knows. (Not if its driver only reads
memory, see `drivers.DriverKind`.) An engine is

    new         found, not heard of yet
    ok          answered when last asked
    silent      did not answer; its schedule stays
    released    silent for longer than `stale_after`, which lasts the longer the more the CPUs are
                crowded; its threads are as they were before us
    gone        its process is no more
"""

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from sched_ctl.drivers import Driver, DriverKind, Target
from sched_ctl.engines.boundary import checked, words
from sched_ctl.engines.budget import Allowance, Budget
from sched_ctl.engines.horizons import Horizons
from sched_ctl.engines.owners import COMMON, Owners, belonging
from sched_ctl.engines.worker import Here, Worker
from sched_ctl.kernel import containers, identity, procfs
from sched_ctl.metrics.settle import Said
from sched_ctl.metrics.window import REPORTS, SAMPLES
from sched_ctl.model.access import Access
from sched_ctl.model.graph import Array, Index
from sched_ctl.model.patterns import runs_in
from sched_ctl.model.topology import PhysicalOperator, Snapshot, Topology
from sched_ctl.probes.answering import AnsweringTime
from sched_ctl.probes.clocks import Clocks
from sched_ctl.probes.every import Probes
from sched_ctl.probes.limits import Limits
from sched_ctl.probes.sleeps import SleepPlaces
from sched_ctl.probes.unserved import Unserved

__all__ = ["Engine", "carry_over"]

log = logging.getLogger(__name__)
K = TypeVar("K")
Mask = npt.NDArray[np.bool_]

RECONNECT_AFTER = 3  # failures in a row
LONGEST_PAUSE_S = 2.0  # to ask one that does not answer costs little, and it may be back
LONGEST_PAUSE_OF_USER_S = 30.0  # of a user who is ordered alone
CPU_SHARE = 0.1  # that the engines of a user who is ordered alone may cost together
REMARKABLE_S = 1.0  # a rest that is worth a remark, unless passes are rarer than that
BRIEF_S = 0.001  # engines that answer within this time are waited for on the spot
GAP = 3  # times the longest time between two reports: those before tell of another time
HISTORY = 8  # snapshots kept a window: enough that one of them is about a window old


class Engine:
    """One engine instance, for as long as it runs."""

    def __init__(
        self, target: Target, kind: DriverKind, window_s: float, owners: Owners | None = None
    ) -> None:
        self.target = target
        self.state = "new"
        self.problem: str | None = None  # why it does not answer, in words
        self.refused: dict[str, str] = {}  # rule -> why it cannot rule this engine
        self.provides: frozenset[str] | None = None  # known once connected
        self.derived: Mapping[str, str] = {}  # metrics that the driver works out, and how
        self.guesses: frozenset[str] = frozenset()  # those that no policy may trust unwatched
        self.waiting = self.unsure = False  # for its first metrics; of what its operators cost
        self._lifetime = None if target.pid is None else identity.Lifetime(target.pid)
        # Whose it is; None: not known (yet).
        self.uid = target.uid if target.pid is None else procfs.owner(target.pid)
        self.container: containers.Container | None = None
        self._found_in = 0  # the process whose container that is
        self._first_whose: tuple[int, str] | None = None  # user and namespace, of one by address
        if target.pid is not None:
            self._find_container(target.pid)
        self.priors: Callable[[Topology], Mapping[str, Array]] | None = None
        # Whether some policy needs our probes. At first nobody can tell, and rates need two looks.
        self.probing = True
        self.polls = 0
        self.failures = 0  # since it answered last
        self.answered_s: float | None = None  # CLOCK_MONOTONIC of the last answer
        self.poll_s = 0.0  # how long the last answer took
        self._silent_s = 0.0  # since it answered last, as an idle machine would count it
        self._checked_s = 0.0
        self.late = False  # it exceeded the loop's patience when it was last asked
        self._kind = kind
        self.owners = owners or Owners()
        self.window_s = window_s
        self._history: deque[Snapshot] = deque()
        self._latest: Snapshot | None = None
        self._samples: deque[Snapshot] = deque(maxlen=REPORTS)  # see `Window.lately`
        self._apart_s = 0.0  # the last two reports
        self._whole_s = 0.0  # of the first answer with all operators and counters of the last one
        self._asked: asyncio.Future[Snapshot] | None = None
        self._asked_s = self._quiet_until_s = 0.0
        # What another user wrote is never taken apart in the main loop.
        own = kind.prompt and self.uid in (None, os.geteuid()) and not self.namespace
        self._worker: Worker[Snapshot] | Here = Here() if own else Worker(target.engine)
        self._driver: Driver | None = None  # touched by the worker only
        self._probes: Probes | None = None  # likewise
        self._read: Snapshot | None = None  # what they read last, likewise
        self.sleeps = SleepPlaces()  # looks while somebody wants to know
        self.limits, self.clocks = Limits(), Clocks()  # likewise
        self.unserved = Unserved()  # likewise
        self.horizons = Horizons()  # filled while somebody wants to know
        self.said: dict[str, Said] = {}  # of its queries
        self._spent_s = 0.0  # CPU time of the last answer
        self._answering = AnsweringTime()  # touched by the worker only
        self._budget = Budget()
        self._rests_until_s = 0.0  # for what it costs; not while somebody looks, see `share`
        self.share = 0.0  # of a CPU that its answers may take; 0: no limit but that of its owner
        self.allowance = Allowance()  # of a user who is ordered alone: with his other engines
        self.remarkable_s = REMARKABLE_S  # so long a rest is
        self.longest_s = float("inf")  # that it is not asked for what it costs
        self.in_loop_s = 0.0  # CPU time of the main loop that it has cost so far
        self.costly: str | None = None  # that it is asked less often for what it costs, in words
        self._said: Topology | None = None  # the last one, as the driver made it ...
        self._own: Topology | None = None  # ... and what of it is the owner's
        self._expected: tuple[Topology, Mapping[str, Array]] | None = None  # by the priors

    @property
    def name(self) -> str:
        return self.target.engine

    @property
    def domain(self) -> str:
        """Which engines it is ordered with, see `owners`."""
        return self.owners.domain(self.uid, self.container)

    @property
    def ordered(self) -> str:
        """The same and why, in words."""
        return self.owners.why(self.uid, self.container)

    @property
    def namespace(self) -> str:
        """Of its pod; "": it is in none."""
        return "" if self.container is None else self.container.namespace or self.container.pod

    @property
    def snapshot(self) -> Snapshot | None:
        """The last answer, unless the engine was released."""
        return self._latest if self.state in ("ok", "silent") else None

    @property
    def pids(self) -> frozenset[int]:
        """The processes that are known to be its."""
        if self._latest is not None:
            return self._latest.topology.pids
        return frozenset() if self.target.pid is None else frozenset({self.target.pid})

    @property
    def busy(self) -> bool:
        return self._asked is not None

    @property
    def history(self) -> tuple[Snapshot, ...]:
        """Answers that were kept, oldest first."""
        return tuple(self._history)

    def lately(self) -> tuple[Snapshot, ...]:
        """The last answers, with samples and tuple counts alone: see `Window.lately`."""
        return tuple(self._samples)

    def then(self) -> Snapshot | None:
        """The snapshot to compare the last one with: a window old, or the oldest there is."""
        now = self._latest
        if now is None:
            return None
        old = [s for s in self._history if s.time_s < now.time_s]
        far = [s for s in old if now.time_s - s.time_s >= self.window_s]
        return far[-1] if far else old[0] if old else None

    def recent(self, then: Snapshot | None) -> Snapshot | None:
        """The oldest that knows all that the last one does, where `then` does not; if it is a
        while old, as rates over a moment are noise."""
        now = self._latest
        if now is None or then is None or then.time_s >= self._whole_s:
            return None
        whole = next(s for s in self._history if s.time_s >= self._whole_s)
        return whole if now.time_s - whole.time_s >= self.window_s / HISTORY else None

    def ask(self, now_s: float, timeout_s: float) -> "asyncio.Future[Snapshot] | None":
        """Ask the engine, unless it is still busy with the last question or on back-off.

        Returns what to wait for; None if there is nothing to: not asked, or answered already.
        """
        if self.busy or now_s < self._quiet_until_s or self.state == "gone":
            return None
        if now_s < self._rests_until_s and (self.share or self.domain != COMMON):
            return None
        if self.domain != COMMON and self.allowance.rests(now_s):
            return None
        probing = self.probing
        self._asked_s = now_s
        brief_s = BRIEF_S if self.polls and self.poll_s < BRIEF_S else 0.0
        asked = self._asked = self._worker.call(lambda: self._poll(timeout_s, probing), brief_s)
        if asked.done():
            self._answer(asked)
            self.late = False
            return None
        asked.add_done_callback(self._answer)
        return asked

    def check(
        self, now_s: float, timeout_s: float, stale_after_s: float, slowness: float = 1.0
    ) -> str | None:
        """Notice silence and death. Returns what changed, in words for the log.

        slowness: see `kernel.crowd`. An engine that gets no CPU cannot answer: it is what we are
        for, and is not let go of for it.
        """
        if self.state == "gone":
            return None
        # It may have ended between being found and being made a note of here: then, too.
        if self._lifetime is not None and not self._lifetime.lasts() and not self._goes_on():
            self.state, self.problem = "gone", "its process ended"
            return "its process ended"
        patient_s = timeout_s * slowness
        if self.busy and now_s - self._asked_s > 2 * patient_s and self.state in ("new", "ok"):
            self.problem = f"no answer within {patient_s:.3g} s"
            if self.state == "ok":
                self.state = "silent"
                return f"{self.problem}; its order is kept"
        if self.state == "silent" and self.answered_s is not None:
            since_s = max(self._checked_s, self.answered_s)
            self._silent_s += max(0.0, now_s - since_s) / slowness
            self._checked_s = now_s
            if self._silent_s > stale_after_s:
                self.state = "released"
                self._latest = None
                self._history.clear()
                self._samples.clear()
                self.horizons.clear()
                self.said.clear()
                silent_s = now_s - self.answered_s
                return f"silent for {silent_s:.1f} s ({self.problem}): its threads are released"
        return None

    def reach(self, access: Access | None) -> None:
        """Connect anew if what is needed to reach it differs."""
        if access != self.target.access:
            self.target = replace(self.target, access=access)
            self._quiet_until_s = 0.0
            self._worker.tell(self._disconnect)

    def close(self) -> None:
        """Let the worker close the connection; does not wait for it."""
        if self._lifetime is not None:
            self._lifetime.close()
        self.sleeps.close()
        self._worker.tell(self._disconnect)
        self._worker.stop()
        runs_in(self.name, ())

    def _goes_on(self) -> bool:
        """Whether another of its processes is there, by which it is known from now on.

        It is connected anew: the id of the one that ended may soon be anybody's.
        """
        if not self._kind.of_several:
            return False
        born = {pid: identity.born(pid) for pid in self.pids if procfs.owner(pid) == self.uid}
        here = sorted((at, pid) for pid, at in born.items() if at is not None)
        if not here:
            return False
        if self._lifetime is not None:
            self._lifetime.close()
        _, eldest = here[0]
        self._lifetime, self.target = identity.Lifetime(eldest), replace(self.target, pid=eldest)
        self._worker.tell(self._disconnect)
        return True

    def _find_container(self, pid: int) -> None:
        """Once for each process that is its main one."""
        if pid != self._found_in:
            self._found_in, self.container = pid, containers.of(pid)
            runs_in(self.name, () if self.container is None else self.container.names)

    # --- in the worker ---

    def _poll(self, timeout_s: float, probing: bool) -> Snapshot:
        began_s, spent_s = time.thread_time(), 0.0
        try:
            if self._driver is None:
                self._driver = self._kind.connect(self.target)
            self.provides = self._driver.provides
            self.derived = getattr(self._driver, "derived", {})
            self.guesses = frozenset(getattr(self._driver, "guesses", ()))
            before_s = self._answering.read(self._own)
            answer = checked(self._driver.poll(timeout_s), self._driver, self._said)
            spent_s = max(0.0, self._answering.read(self._own) - before_s)
            self.waiting = getattr(self._driver, "waiting", False)
            self.unsure = getattr(self._driver, "unsure", False)
            return self._probed(self._owned(self._driver, answer), probing)
        finally:  # one that cannot be used costs as much
            own_s = time.thread_time() - began_s
            if isinstance(self._worker, Here):
                self.in_loop_s += own_s
            self._spent_s = own_s + spent_s

    def _probed(self, snapshot: Snapshot, probing: bool) -> Snapshot:
        """The snapshot with what our probes read and profiles tell."""
        before, read = self._read, Snapshot(snapshot.topology, snapshot.time_s, {})
        if before is not None and before.time_s == snapshot.time_s:
            # It tells nothing new: times of threads go with counters of the same moment.
            read = carry_over(before, snapshot.topology)
        elif probing:
            if self._probes is None:
                self._probes = Probes()
            afresh = getattr(self._driver, "counts_afresh", False)
            columns = self._probes.read(read.topology, read.time_s, afresh=afresh)
            read = replace(read, columns=columns)
        if not probing and self._probes is not None:
            self._probes.close()
            self._probes = None
        self._read = read
        if read.columns:
            snapshot = replace(snapshot, columns={**read.columns, **snapshot.columns})
        if self.priors is not None:
            if self._expected is None or self._expected[0] is not snapshot.topology:
                self._expected = (snapshot.topology, self.priors(snapshot.topology))
            snapshot = replace(snapshot, priors=self._expected[1])
        return snapshot

    def _owned(self, driver: Driver, snapshot: Snapshot) -> Snapshot:
        """The snapshot without threads of other users than the engine's."""
        if snapshot.topology is not self._said:
            self._find_owner(driver.target, snapshot.topology)
            self._said = self._own = snapshot.topology
            if self.uid is not None:
                self._own = belonging(snapshot.topology, self.uid, namespace=self.namespace)
        if self._own is snapshot.topology or self._own is None:
            return snapshot
        return replace(snapshot, topology=self._own)

    def _find_owner(self, target: Target, topology: Topology) -> None:
        """Whose it is, and in which container."""
        if target.pid is not None:
            uid = procfs.owner(target.pid)
            self.uid = self.uid if uid is None else uid
            self._find_container(target.pid)
            return
        # The administrator has named it. Where it runs elsewhere, it may speak of those whose
        # threads it speaks of first, whenever one of these is here; else of those beside the
        # process that holds its network.
        pids = {t.pid for o in topology.operators for t in o.threads}
        holder = target.address.rpartition("@")[2]
        of_pid = {pid: uid for pid in pids if (uid := procfs.owner(pid)) is not None}
        if target.uid is not None:
            self.uid = target.uid
            of_pid = {pid: uid for pid, uid in of_pid.items() if uid == target.uid}
        else:
            spaces = {pid: (uid, containers.namespace_of(pid)) for pid, uid in of_pid.items()}
            for whose in (self._first_whose, (self.uid, self.namespace)):
                if whose in spaces.values():
                    of_pid = {pid: uid for pid, uid in of_pid.items() if spaces[pid] == whose}
                    break
        if target.uid is not None and holder.isdecimal():
            self._find_container(int(holder))
        elif of_pid:
            first = min(of_pid, key=lambda pid: (of_pid[pid], pid))
            self.uid = of_pid[first]
            self._find_container(first)
            self._first_whose = self._first_whose or (self.uid, self.namespace)

    def _disconnect(self) -> None:
        driver, self._driver = self._driver, None
        probes, self._probes = self._probes, None
        try:
            if driver is not None:
                driver.close()
        finally:
            self._answering.close()
            if probes is not None:
                probes.close()

    # --- in the loop ---

    def _answer(self, future: "asyncio.Future[Snapshot]") -> None:
        self._asked = None
        if future.cancelled():
            return
        now_s = time.monotonic()
        self.poll_s = now_s - self._asked_s
        self.polls += 1
        error = future.exception()
        if error is not None:
            self._failed(error, now_s)
            return
        if self.state == "gone":
            return
        snapshot = future.result()
        if self.state != "ok":
            if self.state != "new":
                log.info("%s: answers again", self.name)
            self.state, self.problem = "ok", None
        self.failures = 0
        self._silent_s = 0.0
        self.answered_s = now_s
        began_s = time.thread_time()
        self._remember(snapshot)
        spent_s = time.thread_time() - began_s
        self.in_loop_s += spent_s
        self._charge(self._spent_s + spent_s)

    def _failed(self, error: BaseException, now_s: float) -> None:
        self.failures += 1
        # Whoever tells it says of which engine it is.
        self.problem = words(error).removeprefix(self.name).lstrip(": ")
        longest_s = LONGEST_PAUSE_S if self.domain == COMMON else LONGEST_PAUSE_OF_USER_S
        pause_s = min(0.25 * 2.0 ** min(self.failures, 20), longest_s)
        self._quiet_until_s = now_s + pause_s
        if self.failures == 1:
            log.warning("%s: %s", self.name, self.problem)
            log.debug("%s", self.name, exc_info=error)
        if self.state == "ok":
            self.state = "silent"
        if self.failures >= RECONNECT_AFTER:
            self._worker.tell(self._disconnect)
        self._charge(self._spent_s)

    def _charge(self, spent_s: float) -> None:
        """An engine may not cost more than a share of a CPU: rest for as long as that takes.

        One of a user who is ordered alone has a second bound, by each single answer.
        """
        theirs = self.domain != COMMON
        if theirs:
            self.allowance.spend(spent_s, time.monotonic(), CPU_SHARE)
        longest_s = float("inf") if theirs else self.longest_s
        pause_s, share = self._budget.charge(spent_s, self._asked_s, self.share, longest_s), 0.0
        if pause_s:
            spent_s, share = self._budget.cost_s, self.share
        if theirs and spent_s / CPU_SHARE > pause_s:
            pause_s, share = spent_s / CPU_SHARE, CPU_SHARE
        self._rests_until_s = self._asked_s + pause_s
        self.costly = None
        if pause_s > self.remarkable_s:
            self.costly = (
                f"an answer costs {spent_s:.2g} s of CPU time: asked every {pause_s:.2g} s, so "
                f"that it takes {share:.2g} of a CPU at most (cpu_limit)"
            )

    def _remember(self, snapshot: Snapshot) -> None:
        last = self._latest
        known = last is not None and snapshot.topology is last.topology
        if last is not None and known and snapshot.time_s == last.time_s:
            return  # the same answer again: the engine counts now and then only
        if last is not None and not known:
            self._history = deque(carry_over(s, snapshot.topology) for s in self._history)
            carried = [carry_over(s, snapshot.topology) for s in self._samples]
            self._samples = deque(carried, maxlen=REPORTS)
            self.horizons.carry(lambda old: carry_over(old, snapshot.topology))
        more = last is None or not known or not snapshot.columns.keys() <= last.columns.keys()
        if more:
            self._whole_s = snapshot.time_s
        self._latest = snapshot
        if self._follows_gap(snapshot.time_s):
            self._samples.clear()
        self._samples.append(_sampled(snapshot))
        if "run_delay" in snapshot.columns:
            self.horizons.note(snapshot)
        # Not every snapshot is kept: at 10 Hz and 10,000 operators they would take all the memory.
        if (
            more
            or not self._history
            or snapshot.time_s - self._history[-1].time_s >= self.window_s / HISTORY
        ):
            self._history.append(snapshot)
        while len(self._history) > 2 and snapshot.time_s - self._history[1].time_s >= self.window_s:
            self._history.popleft()

    def _follows_gap(self, time_s: float) -> bool:
        """Whether nobody looked for so long that a mean over the reports before tells nothing."""
        if not self._samples:
            return False
        times_s = [sample.time_s for sample in self._samples]
        usual_s = max(np.diff(times_s), default=self._apart_s)
        self._apart_s = time_s - times_s[-1]
        return self._apart_s > GAP * max(usual_s, self.remarkable_s)


def _sampled(snapshot: Snapshot) -> Snapshot:
    """What `Window.lately` needs of it, and nothing else: ten of these are kept."""
    wanted = SAMPLES | {"tuples_in", "tuples_out"}
    columns, logical = (
        {name: column for name, column in table.items() if name in wanted}
        for table in (snapshot.columns, snapshot.logical)
    )
    return Snapshot(snapshot.topology, snapshot.time_s, columns, logical)


def carry_over(old: Snapshot, topology: Topology) -> Snapshot:
    """An older snapshot as one of a newer topology, so that a change keeps what is known.

    Operators are the same if their name and their threads are; new ones get NaN.
    """
    if old.topology is topology:
        return old
    rows = _matching(
        {_identity(operator): row for row, operator in enumerate(old.topology.operators)},
        [_identity(operator) for operator in topology.operators],
    )
    logical = _matching(
        {(o.query, o.name): row for row, o in enumerate(old.topology.logical)},
        [(o.query, o.name) for o in topology.logical],
    )
    return Snapshot(topology, old.time_s, _take(old.columns, *rows), _take(old.logical, *logical))


def _identity(operator: PhysicalOperator) -> tuple[object, ...]:
    return (operator.query, operator.name, operator.threads)


def _matching(old: Mapping[K, int], new: list[K]) -> tuple[Index, Mask]:
    """For each new row its old one, or 0, and whether it has one."""
    found = np.array([old.get(key, -1) for key in new], dtype=np.intp)
    return np.maximum(found, 0), found >= 0


def _take(columns: Mapping[str, Array], rows: Index, known: Mask) -> dict[str, Array]:
    return {
        name: np.where(known, column[rows], np.nan) if len(column) else np.full(len(rows), np.nan)
        for name, column in columns.items()
    }
