"""Apache Flink 2.x (and 1.x from 1.13 on), unmodified.

The JobManager's REST interface says which jobs run, how their operators are fused, and on which
TaskManager each subtask is; the Java virtual machine says which thread is called what; counters
come from the TaskManagers' Prometheus pages where these are enabled, else from REST. Only the
counters are read at every poll: jobs, subtasks and threads are read again when something changed,
by the table in `drivers.flink.stale`.

A thread's name holds neither job nor TaskManager id, so two subtasks whose tasks have the same
name, number and attempt in one TaskManager cannot be told apart. They are left without a thread,
and `Topology.notes` says so.
"""

import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType

import msgspec
import numpy as np

from sched_ctl.drivers import DriverKind, Target
from sched_ctl.drivers.deadlines import time_left
from sched_ctl.drivers.flink import local, scaling
from sched_ctl.drivers.flink.metrics import DERIVED, PROVIDES, HeadAge, Reading, RestAge, page
from sched_ctl.drivers.flink.plan import (
    Config,
    Job,
    JobOverview,
    Jobs,
    Plan,
    Row,
    TaskManager,
    TaskManagers,
    VertexDetail,
    plan,
)
from sched_ctl.drivers.flink.renewals import PATIENCE_S, Mask, Renewals
from sched_ctl.drivers.flink.stale import AGAIN_S, Event, Part, Stale
from sched_ctl.drivers.flink.workers import serving
from sched_ctl.drivers.sources import search
from sched_ctl.drivers.sources.http import Endpoint
from sched_ctl.drivers.sources.prometheus import Page
from sched_ctl.drivers.threadnames import OPERATOR, ThreadName
from sched_ctl.errors import EngineError
from sched_ctl.kernel import identity, procfs
from sched_ctl.model.graph import Array
from sched_ctl.model.topology import (
    PYTHON,
    HelperThread,
    PhysicalOperator,
    Snapshot,
    Thread,
    Topology,
)

__all__ = ["FlinkDriver", "connect", "find", "kind"]

ATTACH_S = 5.0
FETCH_SETTING = "metrics.fetcher.update-interval"
FETCH_DEFAULT = "10 s"
CACHE_MOST_MS = 60_000
CACHE_SLACK_S = 0.2
PROBE_AGAIN_S = (10.0, 300.0)  # a missing metrics page is looked for again after so long, at most
ALONE_S = 10.0  # a JobManager elsewhere that did not answer is asked again after so long
MISSING_MOST_S = 60.0  # a thread that is not found is looked for again after so long, at most
MOST_JOBS = 1000  # that run
# Bytes of all jobs' descriptions, as JSON: a subtask has 100. They take five times that.
KEPT_LIMIT = 16 << 20
FAILURES = 3  # of a page in a row, before its TaskManager is asked through the JobManager


def find() -> list[Target]:
    """Clusters whose JobManager runs on this machine, in whatever network namespace."""
    return search.targets("flink", local.job_managers(), local.rest_endpoints, _found)


_found: dict[tuple[int, int], Target] = {}  # by process and its start time; asked only once


def connect(target: Target) -> "FlinkDriver":
    """Connect to the cluster at `[HOST:]PORT[@PID]`: its REST address, as process PID sees it.

    Raises EngineError if it does not answer, UserError for another form of address.
    """
    return search.connected(target, local.job_managers, "a Flink cluster", FlinkDriver)


ThreadKey = tuple[str, int, int, int]  # Row.thread_key


@dataclass
class Retry:
    """When to look for a page again; how often in a row it failed."""

    at_s: float = 0.0
    pause_s: float = PROBE_AGAIN_S[0]
    failures: int = 0

    def later(self) -> None:
        self.at_s = time.monotonic() + self.pause_s
        self.pause_s = min(2 * self.pause_s, PROBE_AGAIN_S[1])


@dataclass(slots=True)
class _Read:
    """What was read of a job when its overview was this; details by vertex, as far as it went.

    size: bytes of all that, as JSON.
    """

    overview: JobOverview
    job: Job
    details: dict[str, VertexDetail]
    size: int

    @property
    def behind(self) -> bool:
        """Whether the overview counts other tasks as running than the details."""
        subtasks = [one for detail in self.details.values() for one in detail.subtasks]
        running = sum(subtask.status == "RUNNING" for subtask in subtasks)
        return running != self.overview.tasks.get("running", running)


class FlinkDriver:
    """One cluster: the JobManager and those of its TaskManagers that run on this machine."""

    provides = PROVIDES
    derived = DERIVED

    def __init__(self, target: Target, rest: Endpoint) -> None:
        self.target = target
        self._rest = rest
        self._born = procfs.stat(target.pid) if target.pid is not None else None
        # Whose TaskManagers it may speak of. None: the administrator named a cluster elsewhere.
        self._uid = target.uid if target.pid is None else procfs.owner(target.pid)
        self._processes: dict[int, local.Process] = {}
        self._pages: dict[int, Page | None] = {}
        self._probes: dict[int, Retry] = {}  # of TaskManagers whose page is not to be had
        self._rest_age = RestAge()
        self._matching: tuple[str, ...] = ()  # notes on processes
        self._listed: tuple[JobOverview, ...] | None = None
        self._jobs: dict[str, _Read] = {}
        self._stale = Stale()
        self._plan: Plan | None = None
        self._reading: Reading | None = None
        self._renewals = Renewals(0)
        self._answer: Snapshot | None = None  # the last one, of this reading
        self._head_age: HeadAge | None = None
        self._topology: Topology | None = None
        self._doubted: tuple[str, ...] = ()
        self._missing: set[str] = set()  # jobs with a subtask here whose thread was not found
        self._next_missing = math.inf  # when those are read, and looked for, again
        self._missing_pause_s = AGAIN_S[Part.LIST]  # the longer, the more often that was in vain
        # The JobManager answers questions about a job from a cache, so what it says right after
        # a change may be from before it, and is read again when the cache has expired.
        self._alone_until_s = 0.0  # until when the JobManager is not asked, see `_afar`
        self._known: dict[str, JobOverview] = {}  # by job: the last change that was seen
        self._settles: deque[tuple[float, str]] = deque()  # when no answer is from before it
        self._behind: set[str] = set()  # jobs that were read as before a change
        self._again: set[str] = set()  # jobs to be read again
        self._dumps = 0
        self._fetch_interval = FETCH_DEFAULT
        # Also the check that the address is Flink's.
        config: Config = rest.json("/config", 2.0, Config)
        self._cache_s = min(config.refresh_interval, CACHE_MOST_MS) / 1000 + CACHE_SLACK_S
        settings = rest.json("/jobmanager/config", 2.0, list[dict[str, str]])
        for setting in settings:
            if setting.get("key") == FETCH_SETTING:
                self._fetch_interval = setting.get("value", FETCH_DEFAULT)

    def poll(self, timeout_s: float) -> Snapshot:
        """Read the cluster once. Raises EngineError."""
        deadline = time.monotonic() + timeout_s
        self._check_alive()
        stirred = self._stirred()
        if stirred:
            self._stale.by(Event.THREADS)
        alone = time.monotonic() < self._alone_until_s
        if Part.LIST in self._stale and not alone:
            with self._afar():
                self._look_for_jobs(deadline)
        self._look_for_stale_jobs()
        if Part.PROCESSES in self._stale and not alone:
            with self._afar():
                self._look_for_processes(deadline)
            stirred = self._stirred()  # there may be new ones
        self._look_at_threads(stirred, deadline)
        if Part.PLAN in self._stale and not alone:
            with self._afar():
                self._read_jobs(deadline)
        if Part.TOPOLOGY in self._stale:
            self._build()
        return self._measure(deadline, alone)

    @contextmanager
    def _afar(self) -> Iterator[None]:
        """The JobManager is asked. Where it is on another node and does not answer, those here go
        on for a while by their own pages and what is known of the others.
        """
        try:
            yield
        except EngineError:
            if self._topology is not None and self._topology.away.any() and self._born is None:
                pages = [self._pages.get(pid) for pid in self._processes]
                if pages and all(pages):
                    self._alone_until_s = time.monotonic() + ALONE_S
            raise

    def close(self) -> None:
        self._rest.close()
        for one in self._pages.values():
            if one is not None:
                one.close()

    def _check_alive(self) -> None:
        born = self._born
        if born is not None and not identity.runs(born.tid, born.start_time):
            raise EngineError(f"{self.target.engine}: its JobManager has ended")
        dead = [pid for pid, process in self._processes.items() if not process.alive]
        self._drop(dead)
        if dead and not self._processes:
            raise EngineError(f"{self.target.engine}: its TaskManagers here have ended")

    def _drop(self, pids: Iterable[int]) -> None:
        """Processes that are none of its TaskManagers any more."""
        for pid in pids:
            del self._processes[pid]
            self._probes.pop(pid, None)
            if (gone := self._pages.pop(pid, None)) is not None:
                gone.close()
            self._stale.by(Event.ENDED)

    def _look_for_jobs(self, deadline: float) -> None:
        jobs: Jobs = self._rest.json("/jobs/overview", time_left(deadline), Jobs)
        listed = tuple(sorted(jobs.live, key=lambda j: j.jid))
        if len(listed) > MOST_JOBS:
            raise EngineError(f"Flink runs {len(listed)} jobs; at most {MOST_JOBS} are handled")
        self._stale.done(Part.LIST)
        if listed != self._listed:
            self._listed = listed
            self._missing_pause_s = AGAIN_S[Part.LIST]
            self._stale.by(Event.LISTED)
        self._again |= self._behind & {jid for _, jid in self._settles}

    def _look_for_stale_jobs(self) -> None:
        """Those that were read too early to be as they are now."""
        now = time.monotonic()
        while self._settles and now >= self._settles[0][0]:
            self._again.add(self._settles.popleft()[1])
        if now >= self._next_missing:
            self._next_missing = math.inf
            self._missing_pause_s = min(2 * self._missing_pause_s, MISSING_MOST_S)
            self._again |= self._missing
        if self._again:
            self._stale.by(Event.JOB)
        for jid in self._again:
            self._jobs.pop(jid, None)
        self._again.clear()

    def _look_for_processes(self, deadline: float) -> None:
        known: TaskManagers = self._rest.json("/taskmanagers", time_left(deadline), TaskManagers)
        here = local.task_managers(self._uid)
        matched, notes, disputed = local.match(here, known.taskmanagers, self.target.pid)
        self._matching = tuple(notes)
        # Who was alone when it was found may be an impostor, or what is left of an old one; but
        # not whoever was there before all of its rivals.
        sure = {one.id for one in matched.values()}
        self._drop(
            [
                pid
                for pid, process in self._processes.items()
                if pid not in matched
                and (
                    process.known.id in sure
                    or not process.before_all(disputed.get(process.known.id, ()))
                )
            ]
        )
        for pid, one in matched.items():
            process = self._processes.get(pid)
            if process is None or process.known.id != one.id:
                born = procfs.stat(pid)
                if born is not None:
                    self._processes[pid] = local.Process(pid, born.start_time, "flink", known=one)
                    self._pages[pid] = None
                    self._probes[pid] = Retry()
                    self._stale.by(Event.CAME)
            retry = self._probes.get(pid)
            if retry is not None and pid in self._processes and time.monotonic() >= retry.at_s:
                self._look_for_page(pid, one, retry)
        self._stale.done(Part.PROCESSES)

    def _look_for_page(self, pid: int, known: TaskManager, retry: Retry) -> None:
        """Its first answer may have been too slow, or its reporter came up after it."""
        endpoint = local.metrics_endpoint(pid, known)
        if endpoint is None:
            retry.later()
            return
        self._pages[pid] = page(endpoint)
        self._stale.by(Event.PAGE)
        del self._probes[pid]

    def _scrape(self, pid: int, source: Page, deadline: float) -> None:
        """Read a page. Raises EngineError; if that goes on, the page is given up for a while."""
        assert self._reading is not None
        try:
            self._reading.scrape(source, time_left(deadline))
        except EngineError:
            retry = self._probes.setdefault(pid, Retry(at_s=math.inf))
            retry.failures += 1
            if retry.failures >= FAILURES:
                source.close()
                self._pages[pid] = None
                self._stale.by(Event.PAGE)
                retry.failures = 0
                retry.later()
            raise
        self._probes.pop(pid, None)

    def _stirred(self) -> list[local.Process]:
        """Those in which threads came or went that may be operators', or are looked for."""
        wanted = bool(self._missing) and time.monotonic() >= self._next_missing
        return [p for p in self._processes.values() if p.changed(wanted=wanted)]

    def _look_at_threads(self, stirred: Sequence[local.Process], deadline: float) -> None:
        """Ask these virtual machines for their threads."""
        for process in stirred:
            before = process.names.keys()
            process.look(min(ATTACH_S, time_left(deadline)))
            if process.names.keys() != before:
                self._missing_pause_s = AGAIN_S[Part.LIST]
            self._dumps += 1
            self._stale.by(Event.NAMES)
        if any(process.look_for_workers() for process in self._processes.values()):
            self._stale.by(Event.WORKERS)

    def _read_jobs(self, deadline: float) -> None:
        """Read what has changed of the jobs; what was read stays if time runs out."""
        listed = {overview.jid: overview for overview in self._listed or ()}
        self._jobs = {jid: read for jid, read in self._jobs.items() if jid in listed}
        self._known = {jid: seen for jid, seen in self._known.items() if jid in listed}
        jobs = {jid: self._read_job(overview, deadline) for jid, overview in listed.items()}
        self._jobs = jobs
        self._behind = {jid for jid, read in jobs.items() if read.behind}
        new = plan(
            [read.job for read in jobs.values()],
            {
                (jid, vertex): detail
                for jid, read in jobs.items()
                for vertex, detail in read.details.items()
            },
        )
        if self._reading is None or new != self._reading.plan:
            self._reading = Reading(new)
            self._renewals = Renewals(len(new.rows))
            self._answer = self._head_age = None
            self._stale.by(Event.PLANNED)
        self._plan = new
        self._stale.done(Part.PLAN)

    def _read_job(self, overview: JobOverview, deadline: float) -> _Read:
        jid = overview.jid
        read = self._jobs.get(jid)
        if read is None or read.overview != overview:
            if self._known.get(jid) != overview:
                self._known[jid] = overview
                self._settles.append((time.monotonic() + self._cache_s, jid))
            job: Job = self._rest.json(f"/jobs/{jid}", time_left(deadline), Job)
            read = self._jobs[jid] = _Read(overview, job, {}, _size(job))
            self._check_size()
        for vertex in read.job.vertices:
            if vertex.id not in read.details:
                path = f"/jobs/{jid}/vertices/{vertex.id}"
                detail: VertexDetail = self._rest.json(path, time_left(deadline), VertexDetail)
                read.details[vertex.id] = detail
                read.size += _size(detail)
                self._check_size()
        return read

    def _check_size(self) -> None:
        if sum(read.size for read in self._jobs.values()) > KEPT_LIMIT:
            self._jobs.clear()
            raise EngineError(f"Flink tells more than {KEPT_LIMIT >> 20} MiB of its jobs")

    def _build(self) -> None:
        """The topology anew; the old object stays if it says the same."""
        assert self._plan is not None
        notes = [*self._matching, *self._plan.notes]
        away = self._away(self._plan.rows)
        threads, helpers, told = self._threads(self._plan.rows)
        notes += told
        if self._reading is not None and (doubted := self._reading.doubted):
            notes.append(
                f"{', '.join(doubted)}: idle, and yet with a queue by the counts of records, which "
                "side outputs spoil; its queue is taken from the buffers that wait"
            )
        if not all(self._pages.get(pid) for pid in self._processes):
            notes.append(self._about_rest())
        built = Topology(
            engine=self.target.engine,
            operators=tuple(
                PhysicalOperator(
                    query=row.query,
                    name=row.name,
                    logical=row.logical,
                    replica=row.index,
                    replicas=row.parallelism,
                    threads=threads.get(place, ()),
                    away=row.task_manager in away,
                )
                for place, row in enumerate(self._plan.rows)
            ),
            edges=self._plan.edges,
            logical=self._plan.logical,
            logical_edges=self._plan.logical_edges,
            helpers=tuple(helpers),
            notes=tuple(notes),
        )
        if self._missing:
            self._next_missing = min(self._next_missing, time.monotonic() + self._missing_pause_s)
        self._stale.done(Part.TOPOLOGY)
        if built != self._topology:
            self._topology = built
            self._head_age = HeadAge(built.graph)

    def _threads(
        self, rows: Sequence[Row]
    ) -> tuple[dict[int, tuple[Thread, ...]], list[HelperThread], list[str]]:
        """Threads of each row, helper threads, and what could not be told."""
        here: dict[str, dict[ThreadKey, list[int]]] = defaultdict(lambda: defaultdict(list))
        for place, row in enumerate(rows):
            here[row.task_manager][row.thread_key].append(place)
        owned: dict[int, tuple[Thread, ...]] = {}
        helpers: list[HelperThread] = []
        notes: list[str] = []
        self._missing = set()
        for process in self._processes.values():
            wanted = here[process.known.id]
            found, others = _named(process, wanted, rows)
            helpers += others
            for key, places in wanted.items():
                doubt = _doubt([rows[place] for place in places], found[key], process.known.id)
                if doubt:
                    notes.append(doubt)
                elif found[key]:
                    owned[places[0]] = tuple(sorted(found[key], key=lambda thread: thread.tid))
                elif rows[places[0]].running and not process.trouble:
                    self._missing.add(rows[places[0]].job)
            if process.workers:
                mine = {place for places in wanted.values() for place in places} & owned.keys()
                runs = {thread.tid: place for place in mine for thread in owned[place]}
                working, untold = serving(process.workers, runs, rows)
                helpers += working
                notes += untold
            if process.trouble:
                notes.append(f"TaskManager {process.known.id}: {process.trouble}")
        away = self._away(rows)
        if away:
            count = sum(row.task_manager in away for row in rows)
            notes.append(f"{count} subtasks run on TaskManagers that are not on this machine")
        return owned, helpers, notes

    def _away(self, rows: Sequence[Row]) -> set[str]:
        """TaskManagers with subtasks that are none of this machine's."""
        here = {process.known.id for process in self._processes.values()}
        return {row.task_manager for row in rows} - here - {""}

    def _about_rest(self) -> str:
        return (
            "a TaskManager has no Prometheus page that answers, so metrics come from the "
            f"JobManager{self._rest_age.words}; it refreshes them every {self._fetch_interval} "
            f"({FETCH_SETTING}; a bare number is in milliseconds)"
        )

    def _measure(self, deadline: float, alone: bool) -> Snapshot:
        assert self._reading is not None
        assert self._topology is not None
        reading = self._reading
        scraping = {self._processes[pid].known.id for pid, page in self._pages.items() if page}
        rows = reading.plan.rows
        running = np.array([r.running for r in rows], dtype=bool)
        asked = running & np.array([r.task_manager not in scraping for r in rows], dtype=bool)
        reading.clear(~asked if alone else None)
        begin = time.monotonic()
        for pid in self._processes:
            source = self._pages.get(pid)
            if source is not None:
                self._scrape(pid, source, deadline)
        end = time.monotonic()
        if asked.any() and not alone:
            with self._afar():
                reading.ask(self._rest, asked, deadline)
            if not scraping:
                begin = end = time.monotonic()
            if self._rest_age.update(time.monotonic(), reading.time_spent(asked)):
                self._build()
        time_s = (begin + end) / 2
        fresh = self._renewals.update(time_s, reading.counters, asked)
        columns = self._columns(reading, time_s, asked, fresh)
        if reading.doubted != self._doubted:
            self._doubted = reading.doubted
            self._build()
        by_rest_alone = asked.any() and not (running & ~asked).any() and not alone
        before = self._answer
        if by_rest_alone and not self._renewals.complete(fresh, asked) and before is not None:
            if before.topology is not self._topology:
                before = self._answer = replace(before, topology=self._topology)
            return before
        self._answer = Snapshot(
            topology=self._topology,
            time_s=time_s,
            columns=MappingProxyType(columns),
            logical=MappingProxyType(reading.logical()),
        )
        return self._answer

    def _columns(
        self, reading: Reading, time_s: float, asked: Mask, fresh: Mask
    ) -> dict[str, Array]:
        """All metrics of the rows; of other nodes, as long as something new is told of them."""
        assert self._topology is not None
        columns = reading.columns(time_s, asked)
        patience_s = max(PATIENCE_S, 3 * (self._rest_age.told_s or 0.0))
        # What a tuple costs there is as it was; what waits there is not known any more.
        cut_off = self._topology.away & self._renewals.stale(time_s, patience_s)
        columns["queue_size"] = np.where(cut_off, np.nan, columns["queue_size"])
        if self._head_age is None:
            self._head_age = HeadAge(self._topology.graph)
        columns["head_age_estimate"] = self._head_age.update(
            time_s, columns["tuples_in"], columns["queue_size"], fresh | cut_off
        )
        columns["wait_estimate"] = self._head_age.waits
        return columns


def _size(answer: Job | VertexDetail) -> int:
    return len(msgspec.json.encode(answer))


def _key_of(said: ThreadName) -> ThreadKey | None:
    """As `Row.thread_key`, of a thread that names a task."""
    if "task" not in said.parts:
        return None
    index, parallelism = said.number("index"), said.number("parallelism")
    return said.parts["task"], index, parallelism, int(said.parts.get("attempt", 0))


def _named(
    process: local.Process, wanted: Mapping[ThreadKey, Sequence[int]], rows: Sequence[Row]
) -> tuple[dict[ThreadKey, list[Thread]], list[HelperThread]]:
    """Threads of operators by what their names say, and helper threads.

    wanted: places in `rows` of subtasks in this process.
    """
    found: dict[ThreadKey, list[Thread]] = defaultdict(list)
    helpers = []
    later = _later(wanted, process.names.values(), rows)
    for thread, said in process.names.items():
        key = _key_of(said)
        key = later.get(key, key)
        if said.role == OPERATOR and key is not None:
            found[key].append(thread)
        elif said.role != OPERATOR:
            places = wanted.get(key, ()) if key is not None else ()
            helpers.append(HelperThread(thread, said.role, places[0] if len(places) == 1 else None))
    return found, helpers


def _later(
    wanted: Collection[ThreadKey], names: Iterable[ThreadName], rows: Sequence[Row]
) -> dict[ThreadKey | None, ThreadKey]:
    """Keys of threads of a later attempt -> those of their subtasks, as the JobManager knows them.

    After a restart it tells of the attempt before for as long as its cache lasts
    (web.refresh-interval), and a query that catches up would be nobody's for so long. Only where no
    other subtask has the same task, number and parallelism, and none of its own threads is left.
    """
    running = {key for said in names if said.role == OPERATOR and (key := _key_of(said))}
    newest = {key[:3]: key for key in sorted(running, key=lambda key: key[3])}
    alike = Counter(row.thread_key[:3] for row in rows)
    return {
        newest[key[:3]]: key
        for key in wanted
        if key not in running and alike[key[:3]] == 1 and newest.get(key[:3], key)[3] > key[3]
    }


def _doubt(rows: Sequence[Row], threads: Sequence[Thread], task_manager: str) -> str:
    """Why these threads, whose names fit these subtasks, are none of theirs for sure."""
    if len(rows) > 1:
        queries = sorted({row.query for row in rows})
        return (
            f"{len(rows)} subtasks called {rows[0].task!r} run on TaskManager {task_manager} "
            f"({', '.join(queries)}), and the names of their threads do not tell which is which: "
            "none is scheduled. Give operators names that differ between jobs"
        )
    # A task with a legacy source has two threads, told apart by their names.
    for name, count in Counter(thread.name for thread in threads).items():
        if count > 1:
            return (
                f"TaskManager {task_manager} has several threads called {name!r}; "
                "none of them is scheduled"
            )
    return ""


# A record is on its way only when the flusher has handed on its buffer, a window closes only when
# its timer has fired, and Python computes for its operator: a query is as slow as these. All else
# is left as it is, at nice 0, where no operator is above it: the virtual machine and its collector,
# RPC and heartbeats, network.
kind = DriverKind(
    "flink",
    find,
    connect,
    of_processes=True,
    mains=local.job_managers,
    helpers={"flusher": "follow", "timer": "follow", PYTHON: "follow"},
    check=search.checked("a Flink cluster"),
    scaler=scaling.connect,
)
