"""One topology: its workers on this machine.

Metrics come from the Graphite reporter that is part of Storm, pushed to a listener of ours
(`sources.graphite`); which thread runs which tasks, from the Java virtual machines; the edges,
from the names of metrics. Nothing is asked of Storm's daemons. An engine is a topology, because
its workers belong together and those of another may belong to somebody else.
"""

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from sched_ctl.drivers import DriverKind, Target
from sched_ctl.drivers.believed import Believed, nobody
from sched_ctl.drivers.deadlines import rest_s, time_left
from sched_ctl.drivers.sources.graphite import DEFAULT_PORT, Inbox, Series
from sched_ctl.drivers.storm import scaling
from sched_ctl.drivers.storm.plan import Executor, Plan, executors, plan, same
from sched_ctl.drivers.storm.reading import PROVIDES, Reading
from sched_ctl.drivers.storm.series import Measure, is_read, take_apart
from sched_ctl.drivers.storm.workers import Worker, addresses, chosen, query_of, workers
from sched_ctl.drivers.threadnames import OPERATOR, certainly_helper
from sched_ctl.errors import EngineError
from sched_ctl.kernel.crowd import slowness
from sched_ctl.model.topology import HelperThread, Snapshot, Topology

__all__ = ["StormDriver", "connect", "find", "kind"]

WORKERS_EVERY_S = 5.0  # how often we look for more workers of a topology
NAMES_EVERY_S = 1.0  # how often new names of series are looked at
SHARES_EVERY_S = 10.0  # how often the shares of streams are counted again
MISSING_EVERY_S = 10.0  # how often threads are looked for that only metrics tell of
LISTEN_EVERY_S = 10.0  # how often a port that was taken is tried again
ATTACH_S = 5.0
SLOW_S = 2.0  # a remark is made of reports that come less often
FIRST_S = 15.0  # that first metrics may take on an idle machine
RAREST = 200  # what looks like a sample of fewer is the first few counts
HELP = "see Storm in docs/engines.md for the lines of storm.yaml"


def find(believed: Believed = nobody) -> list[Target]:
    """Topologies with workers on this machine."""
    return [
        Target("storm", address, worker.pid, worker.uid)
        for address, worker in addresses(workers(), believed).items()
    ]


def connect(target: Target, believed: Believed = nobody) -> "StormDriver":
    """Follow the topology with this id, or with this name. Raises EngineError if there is none.

    One that was found stays its user's, whoever has the plain id meanwhile.
    """
    worker = chosen(target, workers(), believed)
    return StormDriver(replace(target, pid=worker.pid), worker.topology, worker.uid)


class StormDriver:
    """The workers of one topology that one user runs on this machine."""

    provides = PROVIDES

    def __init__(self, target: Target, topology: str, uid: int) -> None:
        self.target = target
        self._id = topology
        self._query = query_of(topology)
        self._uid = uid
        self._workers: dict[int, Worker] = {}
        self._inboxes: dict[int, Inbox] = {}  # by the number of the network namespace
        self._since_s = time.monotonic()
        self._no_inbox = ""  # why there is none, in words
        self._next_workers = self._next_listen = self._next_missing = 0.0
        self._next_names = self._next_shares = 0.0
        self._running: tuple[Executor, ...] = ()
        self._measures: list[Measure] = []
        self._reading = Reading((), ())
        self._plan: Plan | None = None
        self._topology: Topology | None = None
        self._look_for_workers()

    @property
    def waiting(self) -> bool:
        """Whether its first metrics are still on their way: they come once a report.period.

        The first ones may be a part of a report, or of a worker that has had no tuple yet: then who
        feeds whom is not known before the next.
        """
        if self._no_inbox or (self._plan is not None and self._plan.edges):
            return False
        if self._measures and math.isfinite(self._reading.period_s):
            return False
        return time.monotonic() - self._since_s < FIRST_S * slowness()

    def poll(self, timeout_s: float) -> Snapshot:
        """Read the topology's workers once. Raises EngineError."""
        deadline = time.monotonic() + timeout_s
        self._check_alive()
        now_s = time.monotonic()
        if now_s >= self._next_workers:
            self._look_for_workers()
        if now_s >= self._next_listen:
            self._listen()
        renamed = self._look_at_threads(deadline)
        changed = now_s >= self._next_names and any(i.changed for i in self._inboxes.values())
        if changed or renamed or self._plan is None:
            self._next_names = now_s + NAMES_EVERY_S
            self._measures = take_apart(self._id, self._series())
            self._reading = Reading(self._running, self._measures)
        if changed or renamed or self._plan is None or now_s >= self._next_shares:
            self._next_shares = now_s + SHARES_EVERY_S
            fresh = plan(self._query, self._running, self._measures)
            if self._plan is None or not same(self._plan, fresh):
                self._plan = fresh
                self._topology = None
        columns = self._reading.columns()
        self._build(self._plan)
        assert self._topology is not None
        return Snapshot(self._topology, time.monotonic(), MappingProxyType(columns))

    def close(self) -> None:
        for inbox in self._inboxes.values():
            inbox.close()
        self._inboxes = {}

    def _check_alive(self) -> None:
        dead = [pid for pid, worker in self._workers.items() if not worker.alive]
        for pid in dead:
            del self._workers[pid]
            self._next_workers = 0.0
            self._plan = None
        if not self._workers:
            raise EngineError(f"{self.target.engine}: its workers here have ended")

    def _look_for_workers(self) -> None:
        began_s = time.thread_time()
        found = list(workers())
        spent_s = time.thread_time() - began_s
        self._next_workers = time.monotonic() + rest_s(spent_s, WORKERS_EVERY_S)
        for worker in found:
            if (worker.topology, worker.uid) == (self._id, self._uid):
                known = self._workers.get(worker.pid)
                if known is None or known.start_time != worker.start_time:
                    self._workers[worker.pid] = worker
                    self._plan = None
                    self._next_listen = 0.0

    def _listen(self) -> None:
        """An inbox in each network namespace that has a worker, and in no other."""
        self._next_listen = time.monotonic() + LISTEN_EVERY_S
        self._no_inbox = ""
        spaces = set()
        for pid in self._workers:
            try:
                space = Path(f"/proc/{pid}/ns/net").stat().st_ino
                spaces.add(space)
                if space not in self._inboxes:
                    self._inboxes[space] = Inbox(self._uid, DEFAULT_PORT, pid, is_read)
            except EngineError as error:
                self._no_inbox = error.message
            except OSError:
                continue  # the worker has ended
        for space in self._inboxes.keys() - spaces:
            self._inboxes.pop(space).close()

    def _series(self) -> dict[str, Series]:
        found: dict[str, Series] = {}
        for inbox in self._inboxes.values():
            found.update(inbox.series())
        return found

    def _look_at_threads(self, deadline: float) -> bool:
        """Ask virtual machines whose threads changed; whether the executors are others now."""
        now_s = time.monotonic()
        missing = False
        if now_s >= self._next_missing:
            # A thread that had no name yet when we looked is told of by its metrics.
            known = {task for executor in self._running for task in executor.tasks}
            since_s = now_s - MISSING_EVERY_S  # what came before may be of a worker that has gone
            missing = not known or any(
                one.task not in known and one.series.received_s >= since_s for one in self._measures
            )
            self._next_missing = now_s + MISSING_EVERY_S
        for worker in self._workers.values():
            if worker.changed(wanted=missing):
                worker.look(min(ATTACH_S, time_left(deadline)))
        running = _once(e for worker in self._workers.values() for e in executors(worker.names))
        if running == self._running:
            return False
        self._running = running
        return True

    def _build(self, made: Plan) -> None:
        """The topology anew; the old object stays if it says the same."""
        notes = tuple(self._notes(made))
        helpers = tuple(
            HelperThread(thread, said.role)
            for worker in self._workers.values()
            for thread, said in worker.names.items()
            if said.role != OPERATOR
        )
        before = self._topology
        if before is not None and (before.notes, _lasting(before.helpers)) == (
            notes,
            _lasting(helpers),
        ):
            return
        self._topology = Topology(
            engine=self.target.engine,
            operators=made.operators,
            edges=made.edges,
            logical=made.logical,
            logical_edges=made.logical_edges,
            helpers=helpers,
            notes=notes,
            idle_spins=True,  # WaitStrategyProgressive: a thousand looks before it sleeps
        )

    def _notes(self, made: Plan) -> Iterable[str]:
        for worker in self._workers.values():
            if worker.trouble:
                yield f"worker {worker.pid}: {worker.trouble}"
        if self._no_inbox:
            yield self._no_inbox
        elif self.waiting:
            yield "waiting for the first metrics of the topology's workers"
        elif not self._measures:
            yield f"no metrics came from the topology's workers yet; {HELP}"
            yield from {inbox.untold for inbox in self._inboxes.values() if inbox.untold}
        elif self._reading.period_s > SLOW_S:
            yield (
                f"metrics come every {self._reading.period_s:.0f} s (report.period); queues that "
                "build up and drain in between are not seen"
            )
        if 1 < self._reading.step <= RAREST:
            yield (
                f"Storm counts one tuple of {self._reading.step} for all "
                "(topology.stats.sample.rate); counts are smoothed, selectivities are estimates"
            )
        if made.away:
            more = f" and {len(made.away) - 10} more" if len(made.away) > 10 else ""
            yield f"not on this machine, but upstream of here: {', '.join(made.away[:10])}{more}"
        if made.cut:
            yield "there are more edges than are looked at: some operators seem to have no output"
        if any(inbox.refused for inbox in self._inboxes.values()):
            yield "some of what its user sends to the Graphite listener is not understood"


def _lasting(helpers: Iterable[HelperThread]) -> list[HelperThread]:
    """Without those that virtual machines start and end all the time."""
    return [one for one in helpers if not certainly_helper("storm", one.thread.name)]


def _once(found: Iterable[Executor]) -> tuple[Executor, ...]:
    """Executors by their tasks; those that share a task with another are left out.

    A task has one executor, in one worker, while a topology is moved about in two: then nothing
    tells whose the metrics are.
    """
    running: Sequence[Executor] = sorted(found, key=lambda one: (one.first, one.thread.tid))
    claims = Counter(task for executor in running for task in executor.tasks)
    return tuple(one for one in running if all(claims[task] == 1 for task in one.tasks))


# Where tuples are acknowledged, every one of them is acknowledged by each operator that it passes,
# and none is over before the acker says so: it must never wait for those that it serves. All else
# is left as it is, at nice 0, where no operator is above it; a worker that misses its heartbeats is
# killed by its supervisor.
def _kind(believed: Believed) -> DriverKind:
    return DriverKind(
        "storm",
        lambda: find(believed),
        lambda target: connect(target, believed),
        of_processes=True,
        of_several=True,
        helpers={"acker": "top"},
        declared=lambda _, believed: _kind(believed),
        scaler=lambda target: scaling.connect(target, believed),
    )


kind = _kind(nobody)
