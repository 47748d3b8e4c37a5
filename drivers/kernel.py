"""Any multi-threaded program, of which nothing is known but what the kernel sees of its threads.

Named as `--engine kernel:PID`, `kernel:NAME` or `kernel:/CGROUP`, never found by itself: whoever
names a program says that its threads may be ordered. Each thread is an operator, and threads of one
name but for a number are replicas of one logical operator. The processes of a cgroup, and of those
below it, are one program; they may come and go.

Where the tracing program can be loaded, a thread takes in wake-ups and gives wake-ups to others:
that makes the edges, the selectivity, and cost, CPU time a wake-up. Parts of a program between
which nobody wakes anybody are queries of their own. Queues nobody tells; but a thread that has not
slept for long has had work for so long, and that stands in for its age and length. Elsewhere all
that is known is turns on a CPU, so there is cost and nothing else. Policies that need more than
there is refuse, and say what is missing.
"""

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sched_ctl.drivers import DriverKind, Target
from sched_ctl.drivers.believed import Believed, nobody, rank
from sched_ctl.drivers.threads import thread_of
from sched_ctl.errors import EngineError
from sched_ctl.kernel import cgroup, containers, procfs, tracing
from sched_ctl.model.graph import Array
from sched_ctl.model.topology import (
    Edge,
    HelperThread,
    LogicalOperator,
    PhysicalOperator,
    Snapshot,
    Thread,
    Topology,
)
from sched_ctl.probes.threads import ThreadTimes
from sched_ctl.probes.wakegraph import LEAST, parts, wake_graph

__all__ = [
    "NUMBER",
    "KernelDriver",
    "Named",
    "Sorted",
    "connect",
    "kind",
    "operators_named",
    "operators_of",
    "pattern_of",
]

WOKEN_S = 1.0  # so often it is looked who wakes whom
APART_S = 10.0  # edges that have stayed for so long tell which parts a program has
MOST_PARTS = 8  # more of them are clients or the like
LONG_NS = 1_000_000_000  # whoever is awake for so long is looked at, 20 us each
RENAMED_S = 5.0  # so often a thread is looked at again, which may have got its name late
MOST_THREADS = 10_000
MOST_PROCESSES = 1000  # of a cgroup
_known: dict[int, int] = {}  # process id that was named -> start time of the process that had it
NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Named:
    """A thread as what it is taken for. logical: its logical operator; name: its own, if alone."""

    query: str
    logical: str
    name: str
    thread: Thread


@dataclass(frozen=True, slots=True)
class Sorted:
    """What a program's threads are. edges: by rows of operators; None: who wakes whom."""

    operators: tuple[PhysicalOperator, ...]
    helpers: tuple[HelperThread, ...] = ()
    edges: tuple[Edge, ...] | None = None
    notes: tuple[str, ...] = ()


def _could_run(thread: Thread) -> bool:
    """Whether it has a CPU or waits for one; also if it is not there any more."""
    found = procfs.stat(thread.pid, thread.tid)
    return found is None or found.start_time != thread.start_time or found.state == "R"


def pattern_of(name: str) -> str:
    """What replicas have in common: the name without its numbers."""
    return NUMBER.sub("#", name) or "#"


def operators_of(query: str, threads: Iterable[Thread]) -> tuple[PhysicalOperator, ...]:
    """One operator a thread. Threads whose names differ in numbers alone are replicas."""
    return operators_named(
        Named(query, pattern_of(thread.name), thread.name, thread) for thread in threads
    )


def operators_named(named: Iterable[Named]) -> tuple[PhysicalOperator, ...]:
    """One operator a thread; those of one logical operator are its replicas, by age.

    A name belongs to whoever sets it: of several threads with one name each keeps its id in it.
    """
    rows = sorted(named, key=lambda one: (one.thread.start_time, one.thread.tid))
    times = Counter((one.query, one.name) for one in rows)
    total, replica = Counter((one.query, one.logical) for one in rows), Counter[tuple[str, str]]()
    operators = []
    taken: set[tuple[str, str]] = set()
    for one in rows:
        several = times[one.query, one.name] > 1
        name = f"{one.name}.{one.thread.tid}" if several else one.name
        while not name or (one.query, name) in taken:
            name += f".{one.thread.tid}"
        taken.add((one.query, name))
        logical = one.query, one.logical
        operators.append(
            PhysicalOperator(
                one.query,
                name,
                logical=(one.logical,),
                replica=replica[logical],
                replicas=total[logical],
                threads=(one.thread,),
            )
        )
        replica[logical] += 1
    return tuple(operators)


class KernelDriver:
    """One program; see `sched_ctl.drivers.Driver`.

    processes: gives its processes, and raises EngineError if it ended. sort: what threads are.
    """

    guessed = True  # see `Topology.guessed`
    # Whoever feeds whom, a thread wakes others more or less often than it hands something on.
    guesses = frozenset({"tuples_out"})

    def __init__(
        self,
        target: Target,
        processes: Callable[[], list[int]],
        sort: Callable[[Sequence[Thread]], Sorted],
    ) -> None:
        self.target = target
        self._sort, self._processes = sort, processes
        self._pids = processes()
        self._untraced = ""  # why, in words
        self._tracer: tracing.Tracer | None = None
        try:
            self._tracer = tracing.Tracer(self._pids, wakings=True)
        except tracing.Unavailable as error:
            self._untraced = str(error)
        self.provides = frozenset({"tuples_in", "thread_cpu_time", "run_delay"})
        self.derived = {"tuples_in": "turns of its thread on a CPU, as schedstat counts them"}
        if self._tracer is not None:
            self.provides |= {"tuples_out", "queue_size_estimate", "head_age_estimate"}
            self.derived = {
                "tuples_in": "wake-ups of its thread, traced",
                "tuples_out": "threads that its thread woke, traced",
                "queue_size_estimate": "milliseconds since its thread slept last, traced",
                "head_age_estimate": "time since its thread slept last, traced",
            }
        self._wakes: dict[tuple[int, int], float] = {}  # edges by thread ids, with their shares
        self._woken_s = float("-inf")
        self._wired_s: float | None = None  # since then the edges are as they are; None: told apart
        self._parts: dict[int, int] = {}  # of a thread: the source that its part is named after
        # Of a thread: its operator, if it is certain that other threads of that are replicas
        self._same: dict[int, Hashable] = {}
        self._tids: set[int] = set()  # of all its threads
        self._threads: dict[int, Thread] = {}  # of those that are looked at
        self._named_s = time.monotonic()
        self._topology = self._made()
        self._times = ThreadTimes()

    def poll(self, timeout_s: float) -> Snapshot:
        """Read it once. Raises EngineError if it has ended."""
        self._pids = self._processes()
        if self._changed() or self._rewired():
            if self._tracer is not None:
                self._tracer.follow(self._pids)
            self._topology = self._made()
        # Turns are counted since the thread was born, wake-ups since we look.
        afresh = self._tracer is not None and "tuples_in" in self.derived
        columns = self._times.read(self._topology, afresh=afresh)
        columns["tuples_in"] = self._times.turns
        if self._tracer is not None:
            columns |= self._traced(self._tracer)
        return Snapshot(self._topology, time.monotonic(), columns)

    def close(self) -> None:
        self._times.close()
        if self._tracer is not None:
            self._tracer.close()

    def _traced(self, tracer: tracing.Tracer) -> dict[str, Array]:
        """Wake-ups of each operator's thread and those that it gave, and for how long it is awake.

        What has never been seen has slept for all that time. One that has been awake for long is
        looked at: a kernel may have hidden that it fell asleep.
        """
        seen = tracer.threads()
        now_ns = time.monotonic_ns()
        rows = []
        for operator in self._topology.operators:
            known = [row for t in operator.threads if (row := seen.get(t.tid)) is not None]
            since = [
                ns
                for thread in operator.threads
                if (row := seen.get(thread.tid)) is not None
                and (ns := row["awake_ns"])
                and (now_ns < ns + LONG_NS or _could_run(thread))
            ]
            rows.append(
                (
                    sum(row["wakeups"] for row in known),
                    sum(row["wakes"] for row in known),
                    min(since, default=now_ns),
                )
            )
        into, out, since_ns = np.array(rows, dtype=np.float64).reshape(-1, 3).T
        awake_s = np.maximum(now_ns - since_ns, 0.0) * 1e-9
        return {
            "tuples_in": into,
            "tuples_out": out,
            "queue_size_estimate": awake_s * 1e3,
            "head_age_estimate": awake_s,
        }

    def _rewired(self) -> bool:
        """Whether threads wake others than they did, by what was seen since the beginning."""
        now_s = time.monotonic()
        if self._tracer is None or now_s - self._woken_s < WOKEN_S:
            return False
        self._woken_s = now_s
        counts = self._tracer.wakings()
        same = self._same
        fed = {(a, b): n for (a, b), n in counts.items() if a not in same or same[a] != same.get(b)}
        before, self._wakes = self._wakes, wake_graph(fed, self._threads, self._wakes)
        if before.keys() != self._wakes.keys():
            self._wired_s = now_s
            return True
        if self._wired_s is None or now_s - self._wired_s < APART_S:
            return False
        self._wired_s = None
        # Replicas that wake each other are of one part, though neither feeds the other.
        wakes = self._wakes
        if len(fed) < len(counts):
            wakes = wake_graph(counts, self._threads, self._wakes)
        found = _joined(parts(wakes), same)
        if not 2 <= len(found) <= MOST_PARTS:
            found = []
        woken = {b for _, b in wakes}
        known, self._parts = self._parts, {tid: min(part - woken) for part in found for tid in part}
        return known != self._parts

    def _changed(self) -> bool:
        """Whether threads came, went, or were given another name."""
        now_s = time.monotonic()
        tids = {tid for pid in self._pids for tid in procfs.tids(pid)}
        if tids != self._tids:
            return True
        if now_s - self._named_s < RENAMED_S:
            return False
        self._named_s = now_s
        return any(
            (now := thread_of(thread.pid, tid)) != thread or now is None or now.name != thread.name
            for tid, thread in self._threads.items()
        )

    def _how(self, sort: Sorted, *, several: bool) -> str:
        """Who feeds whom, in words; nothing where nobody does. several: operators of a query."""
        untold = self._untraced if sort.edges is None else ""
        if not several:
            return untold and f"nobody tells what it hands on: {untold}"
        how = ", and its declaration says who feeds whom"
        if untold:
            how = f"; nobody tells what they hand on: {untold}"
        elif sort.edges is None:
            how = ", and who wakes another feeds it"
        return f"its threads are its operators{how}"

    def _made(self) -> Topology:
        tids = [(pid, tid) for pid in self._pids for tid in procfs.tids(pid)]
        self._tids = {tid for _, tid in tids}
        found = [thread for one in tids[:MOST_THREADS] if (thread := thread_of(*one))]
        self._threads = {thread.tid: thread for thread in found}
        sort = self._sort(self._called(found))
        operators = sort.operators if sort.edges is not None else self._apart(sort.operators)
        logical = dict.fromkeys((one.query, name) for one in operators for name in one.logical)
        edges = self._seen(operators) if sort.edges is None else sort.edges
        notes = [*sort.notes]
        if how := self._how(sort, several=len(logical) > len({query for query, _ in logical})):
            notes.append(how)
        if len(tids) > MOST_THREADS:
            notes.append(f"{len(tids) - MOST_THREADS} threads beyond {MOST_THREADS} are left alone")
        return Topology(
            engine=self.target.engine,
            operators=operators,
            edges=edges,
            logical=tuple(LogicalOperator(*one) for one in logical),
            logical_edges=_between(logical, operators, edges),
            helpers=sort.helpers,
            notes=tuple(notes),
            guessed=self.guessed,
        )

    def _called(self, threads: list[Thread]) -> list[Thread]:
        """The threads, by names that say more than the kernel's."""
        return threads

    def _apart(self, operators: Sequence[PhysicalOperator]) -> tuple[PhysicalOperator, ...]:
        """The same, where parts of a query that never wake each other are queries of their own."""
        named = {thread.tid: o.name for o in operators for thread in o.threads}
        first = [self._parts.get(o.threads[0].tid, 0) for o in operators]
        of = {(o.query, part) for o, part in zip(operators, first, strict=True) if part in named}
        several = Counter(query for query, _ in of)
        queries = [
            f"{o.query}#{named[part]}" if part in named and several[o.query] > 1 else o.query
            for o, part in zip(operators, first, strict=True)
        ]
        keys = [(name, o.logical) for name, o in zip(queries, operators, strict=True)]
        total, replica = Counter(keys), Counter[tuple[str, tuple[str, ...]]]()
        found = []
        for key, operator in zip(keys, operators, strict=True):
            row = replace(operator, query=key[0], replica=replica[key], replicas=total[key])
            found.append(row)
            replica[key] += 1
        return tuple(found)

    def _seen(self, operators: Sequence[PhysicalOperator]) -> tuple[Edge, ...]:
        """Edges by who wakes whom."""
        row = {t.tid: row for row, operator in enumerate(operators) for t in operator.threads}
        return tuple(
            Edge(row[a], row[b], share)
            for (a, b), share in self._wakes.items()
            if a in row and b in row and row[a] != row[b]
        )


def _joined(found: Iterable[set[int]], same: Mapping[int, Hashable]) -> list[set[int]]:
    """The parts, where those that are nothing but replicas of one operator are one."""
    joined: dict[Hashable, set[int]] = {}
    for number, part in enumerate(found):
        first, *others = {same.get(tid, number) for tid in part}
        joined.setdefault(number if others else first, set()).update(part)
    return list(joined.values())


def _between(
    logical: Iterable[tuple[str, str]],
    operators: Sequence[PhysicalOperator],
    edges: Iterable[Edge],
) -> tuple[Edge, ...]:
    """Edges between logical operators; one that would close a cycle is left out."""
    place = {one: number for number, one in enumerate(logical)}
    weight: Counter[tuple[int, int]] = Counter()
    for edge in edges:
        ends = (operators[row] for row in (edge.source, edge.target))
        a, b = (place[one.query, one.logical[0]] for one in ends)
        weight[a, b] += max(1, round(1000 * edge.share))
    shares = wake_graph({pair: LEAST * n for pair, n in weight.items()}, range(len(place)))
    return tuple(Edge(a, b, share) for (a, b), share in shares.items())


def find() -> list[Target]:
    """None: a program has to be named."""
    return []


def connect(target: Target, believed: Believed = nobody) -> KernelDriver:
    """`target.address` is a process id, the name of exactly one process, or a cgroup's path."""
    if target.address.startswith("/"):
        folder = _cgroup(target.address)
        return KernelDriver(target, lambda: _members(folder), _all_of(folder.name))
    pid = int(target.address) if target.address.isdecimal() else _named(target, believed)
    if pid <= 1 or pid == os.getpid() or not procfs.command_line(pid):
        raise EngineError("it is no program that could be scheduled")
    first = procfs.stat(pid)
    if first is None:
        raise EngineError(f"there is no process {pid}")
    # Connected anew after it ended, the id may be another program's, which nobody named.
    if target.address.isdecimal() and _known.setdefault(pid, first.start_time) != first.start_time:
        raise EngineError(f"{target.engine} has ended, and another process has its id")

    def processes() -> list[int]:
        found = procfs.stat(pid)
        if found is None or found.start_time != first.start_time or found.state in "ZX":
            raise EngineError("it has ended")
        return [pid]

    return KernelDriver(Target(target.kind, target.address, pid), processes, _all_of(first.name))


def _all_of(query: str) -> Callable[[Sequence[Thread]], Sorted]:
    return lambda threads: Sorted(operators_of(query, threads))


def _cgroup(address: str) -> Path:
    """The folder of a cgroup that is named by it, or by its path in the hierarchy."""
    path = Path(address)
    inside = cgroup.hierarchy_of(path)
    if inside is None:
        found = [h.mount / address.lstrip("/") for h in cgroup.hierarchies()]
        path = next((folder for folder in found if folder.is_dir()), path)
        inside = cgroup.hierarchy_of(path)
    if inside is None or not path.is_dir():
        raise EngineError(
            f"there is no cgroup {address}",
            "name its folder, such as /sys/fs/cgroup/system.slice/x.service, or its path in the "
            "hierarchy; of version 1 it is the cpu controller's",
        )
    if path == inside.mount:
        raise EngineError("it is the whole machine", "name a cgroup below it")
    return path


def _members(folder: Path) -> list[int]:
    try:
        pids = cgroup.processes(folder, MOST_PROCESSES)
    except OSError as error:
        raise EngineError(f"cannot read cgroup {folder}: {error.strerror}") from None
    return [pid for pid in pids if pid > 1 and pid != os.getpid() and procfs.command_line(pid)]


def _named(target: Target, believed: Believed) -> int:
    name = target.address[:15]  # TASK_COMM_LEN
    pids = [
        pid
        for pid in procfs.pids()
        if (found := procfs.stat(pid)) is not None and found.name == name
    ]
    ranks = {
        pid: rank(uid, believed, containers.namespace_of(pid))
        for pid in pids
        if (uid := procfs.owner(pid)) is not None
    }
    pids = [pid for pid, its in ranks.items() if its == min(ranks.values())]
    if len(pids) != 1:
        several = f": {', '.join(map(str, pids[:8]))}" if pids else ""
        raise EngineError(
            f"{len(pids) or 'no'} processes have this name{several}",
            "name one by its id: --engine kernel:PID",
        )
    return pids[0]


def _kind(believed: Believed) -> DriverKind:
    return DriverKind(
        "kernel",
        find,
        lambda target: connect(target, believed),
        declared=lambda _, believed: _kind(believed),
    )


kind = _kind(nobody)
