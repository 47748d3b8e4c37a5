"""Apache Spark 4.x, Structured Streaming, unmodified.

An engine is an application. The web interface of its driver says which jobs run, and a job's group
is the run of the query that started it; the Java virtual machines say which thread is in which
stage; so a thread has a query. How it is scheduled depends on how the query runs, see `plan`.

Threads are told apart anew when the jobs differ: in real-time mode each batch is a job, whose
tasks may be on any threads of the pool.
"""

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from sched_ctl.drivers import DriverKind, Target
from sched_ctl.drivers.deadlines import rest_s, time_left
from sched_ctl.drivers.sources import search
from sched_ctl.drivers.sources.http import Endpoint
from sched_ctl.drivers.spark import local
from sched_ctl.drivers.spark.answers import (
    Application,
    Executor,
    Gauges,
    Job,
    Pace,
    Query,
    query_of,
)
from sched_ctl.drivers.spark.modes import Modes
from sched_ctl.drivers.spark.plan import Here, Plan, names_of, plan, several
from sched_ctl.errors import EngineError
from sched_ctl.kernel import identity, procfs
from sched_ctl.kernel.crowd import slowness
from sched_ctl.model.graph import Array
from sched_ctl.model.topology import Snapshot, Topology

__all__ = ["SparkDriver", "connect", "find", "kind"]

PROVIDES = frozenset({"tuples_in", "tuples_out", "arrival_rate", "queue_size", "head_age_estimate"})
DERIVED = MappingProxyType(
    {
        "tuples_in": "the last batch's rows a second, added up; one batch old",
        "tuples_out": "as tuples_in where a query is one operator: it delivers what it takes",
        "arrival_rate": "the last batch's rows a second",
        "queue_size": "rows that come while a batch like the last one runs",
        "head_age_estimate": "how long the last batch took: a row waits for the one before its own",
    }
)
JOBS_EVERY_S = 0.9  # where tasks are operators, or may be
RARELY_S = 5.0  # where all are micro-batches
YOUNG_S = 10.0  # a query that showed no tasks that stay within this time runs micro-batches
AGAIN_S = 2.0  # how long threads are looked at again after the jobs changed
PACES_EVERY_S = 2.0
EXECUTORS_EVERY_S = 10.0
ATTACH_S = 5.0
FIRST_S = 10.0  # for the first answer of each kind: Spark loads its resources only then
SETTING = "spark.sql.streaming.metricsEnabled"


def find() -> list[Target]:
    """Applications whose driver runs on this machine, in whatever network namespace."""
    return search.targets("spark", local.drivers(), local.interfaces, _found)


_found: dict[tuple[int, int], Target] = {}  # by process and its start time; asked only once


def connect(target: Target) -> "SparkDriver":
    """Connect to the application at `[HOST:]PORT[@PID]`: its web interface, as process PID sees it.

    Raises EngineError if it does not answer, UserError for another form of address.
    """
    return search.connected(target, local.drivers, "a Spark application", SparkDriver)


class SparkDriver:
    """One application: its driver, and those of its executors that run on this machine."""

    provides = PROVIDES
    derived = DERIVED
    counts_afresh = True

    def __init__(self, target: Target, rest: Endpoint) -> None:
        self.target = target
        self._rest = rest
        self._born = procfs.stat(target.pid) if target.pid is not None else None
        # Whose executors it may speak of. None: the administrator named one elsewhere.
        self._uid = target.uid if target.pid is None else procfs.owner(target.pid)
        self._answered: set[str] = set()  # paths
        listed: list[Application] = self._asked("/api/v1/applications", list[Application], 0.0)
        running = [one for one in listed if any(not a.completed for a in one.attempts)]
        if len(running) != 1:
            raise EngineError(
                f"{target.engine} is not the web interface of one running application",
                "a history server has those of many; that of the driver is needed",
            )
        self._id, self._name = running[0].id, running[0].name or running[0].id
        self._processes: dict[int, local.Process] = {}
        self._executors = 0  # of the application, wherever they are
        self._away = 0
        self._jobs: list[Job] = []
        self._queries: dict[str, tuple[Query, float]] = {}  # run -> when it was first seen
        self._newest: dict[str, int] = {}  # id of a query -> its newest job
        self._modes = Modes()
        self._paces: Mapping[str, Pace] = {}
        # By name of an operator: rows that it took in since we look, by its part then.
        self._taken: dict[tuple[str, str], float] = {}
        self._taken_s = time.monotonic()
        self._next_jobs = self._next_paces = self._next_executors = 0.0
        self._look_until = 0.0
        self._told: list[str] = []  # the notes that are not the plan's
        self._plan: Plan | None = None
        self._topology: Topology | None = None

    def poll(self, timeout_s: float) -> Snapshot:
        """Read the application once. Raises EngineError."""
        deadline = time.monotonic() + timeout_s
        now_s = time.monotonic()
        self._check_alive()
        changed = False
        if now_s >= self._next_executors:
            began_s = time.thread_time()
            changed = self._look_for_executors(deadline)
            spent_s = time.thread_time() - began_s
            self._next_executors = time.monotonic() + rest_s(spent_s, EXECUTORS_EVERY_S)
        if now_s >= self._next_jobs:
            changed |= self._look_at_jobs(deadline)
            self._next_jobs = now_s + (JOBS_EVERY_S if self._restless(now_s) else RARELY_S)
        changed |= self._look_at_threads(deadline)
        if now_s >= self._next_paces and self._queries:
            self._paces = self._asked("/metrics/json/", Gauges, deadline).paces()
            self._next_paces = now_s + PACES_EVERY_S
        notes = self._notes()
        if changed or self._plan is None or notes != self._told:
            self._told = notes
            self._make_plan()
        return self._measure()

    def close(self) -> None:
        self._rest.close()

    def _asked(self, path: str, kind: Any, deadline: float) -> Any:
        """What it says there; the first time it may take as long as Spark needs to load that."""
        patience_s = time_left(deadline)
        if path not in self._answered:
            patience_s = max(patience_s, FIRST_S * slowness())
        said = self._rest.json(path, patience_s, kind)
        self._answered.add(path)
        return said

    def _check_alive(self) -> None:
        born = self._born
        if born is not None and not identity.runs(born.tid, born.start_time):
            raise EngineError(f"{self.target.engine}: its driver has ended")
        for pid in [pid for pid, process in self._processes.items() if not process.alive]:
            del self._processes[pid]
            self._next_executors = 0.0
            self._plan = None

    def _look_for_executors(self, deadline: float) -> bool:
        """Whether there are others than before."""
        path = f"/api/v1/applications/{self._id}/executors"
        listed: list[Executor] = self._asked(path, list[Executor], deadline)
        working = {one.id for one in listed if one.is_active}
        pid = self.target.pid
        found = dict(local.executors(self._id, self._uid))
        # The driver runs tasks itself where it is the only one.
        if pid is not None:
            found[pid] = "driver" if working <= {"driver"} else ""
        self._executors = len(working - {"driver"}) or 1
        away = len(working - {"driver"} - set(found.values()))
        if {pid: one.executor for pid, one in self._processes.items()} == found:
            changed = away != self._away
            self._away = away
            return changed
        self._away = away
        before, self._processes = self._processes, {}
        for pid, name in found.items():
            stat = procfs.stat(pid)
            old = before.get(pid)
            if stat is not None and old is not None and old.start_time == stat.start_time:
                old.executor = name
                self._processes[pid] = old
            elif stat is not None:
                self._processes[pid] = local.Process(pid, stat.start_time, "spark", executor=name)
        return True

    def _look_at_jobs(self, deadline: float) -> bool:
        """Whether a job came, ended, or turned out to be one whose tasks stay."""
        path = f"/api/v1/applications/{self._id}/jobs?status=running"
        jobs: list[Job] = self._asked(path, list[Job], deadline)
        now_s = time.monotonic()
        known = self._queries.keys()
        self._note_runs(jobs, now_s)
        before = self._modes.steady, {j.job_id for j in self._jobs if j.group in self._modes.steady}
        self._modes.look([job for job in jobs if job.group in self._queries], now_s)
        self._jobs = jobs
        after = self._modes.steady, {j.job_id for j in jobs if j.group in self._modes.steady}
        changed = before != after or known != self._queries.keys()
        if changed:
            self._look_until = now_s + AGAIN_S
        return changed

    def _note_runs(self, jobs: Sequence[Job], now_s: float) -> None:
        """A query that was started again goes on in its new run: no two share a checkpoint."""
        for job in sorted(jobs, key=lambda job: job.job_id):
            query = query_of(job)
            if query is None or job.job_id < self._newest.get(query.id, 0):
                continue  # an older run's, of which Spark missed the end
            self._newest[query.id] = job.job_id
            if query.run not in self._queries:
                others = {r: one for r, one in self._queries.items() if one[0].id != query.id}
                self._queries = {**others, query.run: (query, now_s)}
        ids = {query.id for query, _ in self._queries.values()}
        self._newest = {one: number for one, number in self._newest.items() if one in ids}
        self._modes.keep(self._queries)

    def _restless(self, now_s: float) -> bool:
        """Whether tasks may be operators, and so move to other threads with the next batch."""
        return bool(self._modes.steady) or self._young(now_s)

    def _young(self, now_s: float) -> bool:
        return any(now_s - since < YOUNG_S for _, since in self._queries.values())

    def _look_at_threads(self, deadline: float) -> bool:
        """Whether threads came, went, or changed their names; so, too, Python workers."""
        wanted = time.monotonic() < self._look_until
        asked = False
        for process in self._processes.values():
            if process.changed(wanted=wanted):
                process.look(min(ATTACH_S, time_left(deadline)))
                asked = True
            asked |= process.look_for_workers()
        if asked:
            self._follow_queries()
            readers = (s for p in self._processes.values() for s in p.names.values())
            # Only continuous mode has these, so there is no need to wait and see.
            reading = {said.parts["run"] for said in readers if said.role == "fetcher"}
            self._modes.add(reading & self._queries.keys())
        return asked

    def _follow_queries(self) -> None:
        """A query lives as long as its stream thread, where that is on this machine."""
        driver = self._processes.get(self.target.pid or -1)
        if driver is None or driver.trouble or not driver.names:
            return
        now_s = time.monotonic()
        alive = {}
        for said in driver.names.values():
            if said.role == "stream":
                run, name = said.parts["run"], said.parts.get("query", "")
                alive[run] = self._queries.get(run, (Query(run, said.parts["id"], name), now_s))
        if alive.keys() - self._queries.keys():
            self._next_jobs = 0.0
        self._queries = alive
        self._modes.keep(alive)

    def _make_plan(self) -> None:
        here = [
            Here(process.pid, process.executor, process.names, process.workers, process.trouble)
            for process in self._processes.values()
        ]
        made = plan(
            self._name,
            [query for query, _ in self._queries.values()],
            self._modes.steady,
            self._jobs,
            here,
            self._executors,
            {} if self._plan is None else self._plan.shape,
        )
        self._plan = made
        built = Topology(
            engine=self.target.engine,
            operators=made.operators,
            edges=made.edges,
            logical=made.logical,
            logical_edges=made.logical_edges,
            helpers=made.helpers,
            notes=(*made.notes, *self._told),
        )
        if built != self._topology:
            self._topology = built

    def _notes(self) -> list[str]:
        notes = []
        if not self._queries:
            notes.append("no streaming query runs; other jobs of Spark are not scheduled")
        elif not self._paces:
            notes.append(f"rates are not known: {SETTING}=true would tell them")
        else:
            notes.append("rates are those of each query's last batch that has ended")
        if self._modes.steady and self._paces and self._rateless():
            notes.append("a query has no rates in continuous mode, and before its first batch ends")
        called = names_of(self._name, [query for query, _ in self._queries.values()])
        batched = [name for run, name in called.items() if run not in self._modes.steady]
        if len(batched) > 1 and not self._young(time.monotonic()):
            notes.append(several(batched, self._name))
        if self._away:
            notes.append(f"{self._away} executors are not on this machine")
        if self.target.pid is None:
            notes.append("its driver is not on this machine: which queries have ended is not told")
        return notes

    def _rateless(self) -> bool:
        return any(np.isnan(self._pace(query).rate) for query, _ in self._queries.values())

    def _pace(self, query: Query) -> Pace:
        return self._paces.get(query.name or query.id, Pace())

    def _measure(self) -> Snapshot:
        assert self._plan is not None
        assert self._topology is not None
        now_s = time.monotonic()
        paces = {run: self._pace(query) for run, (query, _) in self._queries.items()}
        before, self._taken = self._taken, {}
        passed_s, self._taken_s = now_s - self._taken_s, now_s
        n = len(self._plan.operators)
        columns: dict[str, Array] = {name: np.full(n, np.nan) for name in PROVIDES}
        for row, (runs, part) in enumerate(self._plan.source):
            known = [paces[run] for run in runs if run in paces and paces[run].rate >= 0]
            key = self._plan.operators[row].query, self._plan.operators[row].name
            grown = part * sum(pace.rate for pace in known) * passed_s
            self._taken[key] = before.get(key, 0.0) + grown
            if not known:
                continue
            columns["tuples_in"][row] = self._taken[key]
            columns["arrival_rate"][row] = part * sum(pace.rate for pace in known)
            if self._plan.pools[row]:
                columns["tuples_out"][row] = columns["tuples_in"][row]
                columns["queue_size"][row] = part * sum(p.rate * p.batch_s for p in known)
                columns["head_age_estimate"][row] = max(p.batch_s for p in known)
        return Snapshot(self._topology, now_s, MappingProxyType(columns))


# A query's stream thread plans a batch before its tasks can run, a continuous reader feeds its
# task, and a Python worker computes for one: a query is as slow as these. All else is left as it
# is, at nice 0, where no operator is above it.
kind = DriverKind(
    "spark",
    find,
    connect,
    of_processes=True,
    mains=local.drivers,
    helpers={"stream": "follow", "fetcher": "follow", "python": "follow"},
    check=search.checked("a Spark application"),
)
