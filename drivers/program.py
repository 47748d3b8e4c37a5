"""Programs by declaration: `[[program]]` sections, and the files of drivers/programs/.

A declaration tells which processes are the program, and what its threads are by their names; the
rest is as of `kernel:`, see there. An engine is `program:NAME`, one user's processes: those of
several users are `program:NAME@UID`. What the configuration declares is found by itself. What lies
in drivers/programs/ has to be named, because nobody here has said that it may be ordered.

Without counters the tuples are wake-ups, and where there was a backlog what its CPU time took in,
see `sched_ctl.probes.wakecost`. With [program.metrics] they are what a Prometheus page
says; replicas of one operator get equal parts of what a counter grows by while they are there.
"""

import math
import re
import time
import tomllib
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from sched_ctl.drivers import DriverKind, Target, threadnames
from sched_ctl.drivers.believed import Believed, nobody, rank, whose
from sched_ctl.drivers.deadlines import rest_s, time_left
from sched_ctl.drivers.finding import found, processes
from sched_ctl.drivers.jvm import JavaProcess
from sched_ctl.drivers.kernel import (
    KernelDriver,
    Named,
    Sorted,
    operators_named,
    pattern_of,
)
from sched_ctl.drivers.sources.http import Endpoint
from sched_ctl.drivers.sources.prometheus import Page
from sched_ctl.errors import EngineError, near_miss
from sched_ctl.kernel import containers, identity, procfs
from sched_ctl.model.graph import Array
from sched_ctl.model.programs import OPERATOR, Program, counter, faults
from sched_ctl.model.topology import Edge, HelperThread, PhysicalOperator, Snapshot, Thread
from sched_ctl.probes.wakecost import WakeCosts

__all__ = [
    "WHOLE",
    "WHOLE_NAME",
    "ProgramDriver",
    "broken",
    "declared",
    "kind",
    "shipped",
    "sorted_threads",
]

FOLDER = Path(__file__).parent / "programs"
EDGE_LIMIT = 200_000
ATTACH_S = 5.0  # for a Java virtual machine to tell its threads
AGAIN_S = 5.0  # how often processes that came are looked for
WHOLE_NAME = "process"
WHOLE = (
    "its operators run on threads without names of their own: only the whole process can be "
    "ordered, by --share, multi-class or a target"
)
TEMPLATE = re.compile(r"\$(query|operator)\b")


@cache
def _files() -> tuple[Mapping[str, Program], tuple[str, ...]]:
    """The declarations of our folder, by name, and what is wrong with files that are none."""
    read: dict[str, Program] = {}
    broken = []
    for path in sorted(FOLDER.glob("*.toml")):
        try:
            told = tomllib.loads(path.read_text("utf-8")).get("program", [])
            mine = msgspec.convert(told, list[Program])
        except (OSError, ValueError) as error:  # ValidationError and TOMLDecodeError, too
            broken.append(f"{path}: {error}")
            continue
        wrong = next(faults([*read.values(), *mine]), None)
        if wrong is None:
            read |= {program.name: program for program in mine}
        else:
            broken.append(f"{path}: {wrong[1]}: {wrong[2]}")
    return read, tuple(broken)


def shipped() -> Mapping[str, Program]:
    """The declarations of our folder, by name. A file that is none is left out."""
    return _files()[0]


def broken() -> tuple[str, ...]:
    """What is wrong with the files of our folder that are no declarations."""
    return _files()[1]


@dataclass
class _Told:
    """What the names of a program's threads say.

    unknown: names that no pattern matches. twice: of a name that two patterns match, by these.
    """

    named: list[Named] = field(default_factory=list)
    helpers: list[HelperThread] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    twice: str = ""


def _told(program: Program, threads: Sequence[Thread]) -> _Told:
    several = len({thread.pid for thread in threads}) > 1
    found = _Told()
    for thread in threads:
        match = program.match(thread.name)
        if match is None:
            said = threadnames.read("jvm", thread.name) if program.names == "java" else None
            if said is None:
                found.unknown.append(thread.name)
            else:
                found.helpers.append(HelperThread(thread, said.role))
            continue
        if match.role != OPERATOR:
            found.helpers.append(HelperThread(thread, match.role))
            continue
        # A helper's pattern above a wide one of operators is what makes an exception.
        if match.others and not found.twice:
            found.twice = f"{thread.name!r} matches {match.pattern!r} and {match.others[0]!r}"
        query = match.query or (f"{program.name}#{thread.pid}" if several else program.name)
        logical = match.operator or pattern_of(thread.name)
        found.named.append(Named(query, logical, match.operator or thread.name, thread))
    return found


def sorted_threads(program: Program, threads: Sequence[Thread]) -> Sorted:
    """What a program's threads are. Those that no pattern matches are left alone.

    So are all of a process that runs no operator beside others that do: it is another program.
    """
    told = _told(program, threads)
    mine = {named.thread.pid for named in told.named}
    if mine and not program.whole:
        told = _told(program, [thread for thread in threads if thread.pid in mine])
    operators, helpers, unknown = operators_named(told.named), told.helpers, told.unknown
    notes = []
    if program.whole:
        several = len({thread.pid for thread in threads}) > 1
        wholes = _wholes(program, threads, {one.thread.pid for one in told.named}, several=several)
        operators += wholes
        taken = {thread for operator in wholes for thread in operator.threads}
        helpers = [helper for helper in helpers if helper.thread not in taken]
        unknown = [] if taken else unknown
        if wholes:
            notes.append(WHOLE)
    elif not told.named:
        notes.append("none of its threads is an operator's by its declaration")
    if unknown:
        notes.append(
            f"{len(unknown)} threads match no pattern and are left alone, such as {unknown[0]!r}: "
            "sched-ctl engines --explain PID"
        )
    if told.twice:
        notes.append(f"{told.twice}: the first decides")
    edges = None
    if program.edges:
        edges, missing, cut = _edges(program, operators)
        if missing:
            notes.append(f"edges of the declaration name operators that are not here: {missing}")
        if cut:
            notes.append(
                "there are more edges than are looked at: some operators seem to have no output"
            )
    return Sorted(operators, tuple(helpers), edges, tuple(notes))


def _wholes(
    program: Program, threads: Sequence[Thread], named: Container[int], *, several: bool
) -> tuple[PhysicalOperator, ...]:
    """Processes none of whose threads has an operator's name, each as one operator."""
    by_pid: dict[int, list[Thread]] = {}
    for thread in threads:
        if thread.pid not in named:
            by_pid.setdefault(thread.pid, []).append(thread)
    return tuple(
        PhysicalOperator(
            f"{program.name}#{pid}" if several else program.name,
            WHOLE_NAME,
            (WHOLE_NAME,),
            threads=tuple(mine),
        )
        for pid, mine in by_pid.items()
    )


def _edges(
    program: Program, operators: Sequence[PhysicalOperator]
) -> tuple[tuple[Edge, ...], str, bool]:
    """The edges declared, within each query; which of their operators are missing; and whether
    some were left out, as they are too many.

    Each target gets all that an operator hands on; its replicas get equal parts.
    """
    rows: dict[tuple[str, str], list[int]] = {}
    for row, operator in enumerate(operators):
        rows.setdefault((operator.query, operator.logical[0]), []).append(row)
    edges: list[Edge] = []
    cut = False
    for (query, name), sources in rows.items():
        for target in dict.fromkeys(program.edges.get(name, ())):
            targets = rows.get((query, target), [])
            if len(edges) + len(sources) * len(targets) > EDGE_LIMIT:
                cut = True
                continue
            edges += [Edge(a, b, 1.0 / len(targets)) for a in sources for b in targets]
    here = {name for _, name in rows}
    told = {*program.edges, *(name for names in program.edges.values() for name in names)}
    return tuple(edges), ", ".join(sorted(told - here)[:5]), cut


@dataclass(frozen=True, slots=True)
class _Series:
    """Which samples of a page are whose. keys: labels that tell; rows: their values -> rows."""

    family: str
    keys: tuple[str, ...]
    rows: Mapping[tuple[str, ...], list[int]]


def _series(text: str, operators: Sequence[PhysicalOperator]) -> _Series:
    family, labels = counter(text)
    rows: dict[tuple[str, ...], list[int]] = {}
    for row, operator in enumerate(operators):
        names = {"query": operator.query, "operator": operator.logical[0]}
        filled = tuple(
            TEMPLATE.sub(lambda match, names=names: names[match[1]], value)  # type: ignore[misc]
            for value in labels.values()
        )
        rows.setdefault(filled, []).append(row)
    return _Series(family, tuple(labels), rows)


class _Parts:
    """Counters that replicas share, as one for each: a part of the whole would fall, or leap, when
    there are other replicas."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, ...], float] = {}
        self._parts: dict[Hashable, float] = {}

    def update(
        self, series: _Series, totals: Mapping[tuple[str, ...], float], who: Sequence[Hashable]
    ) -> Array:
        """(n,) totals: of a page, by values of the labels. who: (n,) stays with an operator."""
        column = np.full(len(who), math.nan)
        known: dict[Hashable, float] = {}
        before, self._totals = self._totals, {}
        for key, rows in series.rows.items():
            was, now = before.get(key, math.nan), totals.get(key, math.nan)
            grown = 0.0
            if not math.isnan(now):
                self._totals[key] = now
                # A sum of several falls a little when one of them goes.
                grown = now if not now >= was / 2 else max(0.0, now - was)
            elif key in before:
                self._totals[key] = was
            for row in rows:
                part = 0.0 if math.isnan(was) else self._parts.get(who[row], 0.0)
                known[who[row]] = part + grown / len(rows)
                if not math.isnan(now):
                    column[row] = known[who[row]]
        self._parts = known
        return column


class ProgramDriver(KernelDriver):
    """One user's processes of a declared program; see `sched_ctl.drivers.Driver`."""

    def __init__(self, target: Target, program: Program, pids: Callable[[], list[int]]) -> None:
        self._program = program
        self.guessed = program.metrics is None
        self._java: dict[int, JavaProcess] = {}
        self._deadline = time.monotonic() + ATTACH_S
        self._comms: dict[int, str] = {}  # names in the kernel when the machine was asked last
        super().__init__(target, pids, self._told)
        self._counters: dict[str, str] = {}
        self._shared: dict[str, _Parts] = {}
        self._page: Page | None = None
        self._costs: WakeCosts | None = None
        if program.metrics is None:
            if self._tracer is not None:
                self._costs = WakeCosts()
                self.provides |= {"cost"}
                self.derived |= {
                    "cost": "CPU time a wake-up of its replicas, where that was least lately",
                    "tuples_in": "wake-ups of its thread, or its CPU time by their cost",
                }
            return
        told = {"tuples_in": program.metrics.tuples_in, "tuples_out": program.metrics.tuples_out}
        self.guesses = frozenset()
        self._counters = {name: text for name, text in told.items() if text}
        self._shared = {name: _Parts() for name in self._counters}
        # Wake-ups given, over tuples taken in, would be no selectivity.
        self.provides = self.provides - told.keys() | self._counters.keys()
        self.derived = {name: how for name, how in self.derived.items() if name not in told}
        host, port, path = program.metrics.address
        families = [counter(text)[0] for text in self._counters.values()]
        # The page may be another process's; but where nobody listens, anybody may.
        endpoint = Endpoint(host, port, self.target.pid, listens=False, uid=self.target.uid)
        self._page = Page(endpoint, families, path)

    def poll(self, timeout_s: float) -> Snapshot:
        """Read it once. Raises EngineError if it has ended, or its page does not answer."""
        end_s = time.monotonic() + timeout_s
        # Machines that do not answer leave the page its time.
        self._deadline = end_s if self._page is None else end_s - timeout_s / 2
        snapshot = super().poll(timeout_s)
        if self._costs is not None:
            return self._worked_out(self._costs, snapshot)
        if self._page is None:
            return snapshot
        columns = {
            n: v for n, v in snapshot.columns.items() if n not in ("tuples_in", "tuples_out")
        }
        counted = self._counted(self._page, snapshot, time_left(end_s))
        return replace(snapshot, columns=columns | counted)

    @property
    def unsure(self) -> bool:
        """Whether what its operators cost is not known yet."""
        return self._costs is not None and self._costs.unsure

    def _worked_out(self, costs: WakeCosts, snapshot: Snapshot) -> Snapshot:
        threads = [operator.threads[0] for operator in snapshot.topology.operators]
        who = [self._same.get(thread.tid, thread) for thread in threads]
        spent_s, wakeups = (snapshot.columns[n] for n in ("thread_cpu_time", "tuples_in"))
        tuples, cost_s = costs.update(snapshot.time_s, threads, who, spent_s, wakeups)
        columns = {**snapshot.columns, "tuples_in": tuples, "cost": cost_s}
        return replace(snapshot, columns=columns)

    def _told(self, threads: Sequence[Thread]) -> Sorted:
        sort = sorted_threads(self._program, threads)
        matches = ((thread, self._program.match(thread.name)) for thread in threads)
        self._same = {
            thread.tid: (match.query or thread.pid, match.operator)
            for thread, match in matches
            if match is not None and match.role == OPERATOR and match.operator
        }
        trouble = [one.trouble for one in self._java.values() if one.trouble]
        return replace(sort, notes=(*sort.notes, *trouble[:3]))

    def _changed(self) -> bool:
        return super()._changed() or any(one.changed(wanted=False) for one in self._java.values())

    def _called(self, threads: list[Thread]) -> list[Thread]:
        if self._program.names != "java":
            return threads
        for pid in self._pids:
            first = procfs.stat(pid)
            known = self._java.get(pid)
            if first is not None and (known is None or known.start_time != first.start_time):
                self._java[pid] = JavaProcess(pid, first.start_time, "jvm")
        self._java = {pid: self._java[pid] for pid in self._pids if pid in self._java}
        before, self._comms = self._comms, {thread.tid: thread.name for thread in threads}
        renamed = {
            thread.pid
            for thread in threads
            if before.get(thread.tid, thread.name) != thread.name
            and not threadnames.certainly_helper("jvm", thread.name)
        }
        for pid, process in self._java.items():
            # Who is not asked in time is still to be asked at the next poll.
            if process.changed(wanted=pid in renamed) and time.monotonic() < self._deadline:
                process.look(min(ATTACH_S, time_left(self._deadline)))
        full = {
            thread: thread for one in self._java.values() for thread in (*one.names, *one.others)
        }
        return [full.get(thread, thread) for thread in threads]

    def _counted(self, page: Page, snapshot: Snapshot, timeout_s: float) -> dict[str, Array]:
        operators = snapshot.topology.operators
        wanted = {name: _series(text, operators) for name, text in self._counters.items()}
        totals: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in wanted}
        for family, labels, value in page.read(timeout_s):
            for name, series in wanted.items():
                if series.family != family or not math.isfinite(value):
                    continue
                key = tuple(labels.get(label, "") for label in series.keys)
                if key in series.rows:
                    totals[name][key] = totals[name].get(key, 0.0) + value
        who = [(operator.query, operator.logical, operator.threads) for operator in operators]
        return {
            name: self._shared[name].update(series, totals[name], who)
            for name, series in wanted.items()
        }

    def close(self) -> None:
        super().close()
        if self._page is not None:
            self._page.close()


class _Processes:
    """One user's processes of a program, eldest first.

    Those that came are looked for among all of the machine, of which any user may start thousands.
    """

    def __init__(self, program: Program, uid: int | None) -> None:
        self._program, self._uid = program, uid
        self._born: dict[int, int] = {}  # with their start times
        self._next_s = 0.0

    def __call__(self) -> list[int]:
        """Raises EngineError if there is none."""
        self._born = {pid: at for pid, at in self._born.items() if identity.runs(pid, at)}
        if not self._born or time.monotonic() >= self._next_s:
            self._look()
        if not self._born:
            given = self._program.find.given.items()
            told = ", ".join(f"{key} = {text!r}" for key, text in given)
            raise EngineError(f"no process of {self._program.name} runs here", f"looked for {told}")
        return [*self._born]

    def _look(self) -> None:
        began_s = time.thread_time()
        mine = [] if self._uid is None else processes(self._program).get(self._uid, [])
        born = {pid: identity.born(pid) for pid in mine}
        self._born = {pid: at for pid, at in born.items() if at is not None}
        spent_s = time.thread_time() - began_s
        self._next_s = time.monotonic() + rest_s(spent_s, AGAIN_S)


def _find(programs: Sequence[Program]) -> list[Target]:
    return [
        Target("program", f"{name}@{uid}", pids[0], uid)
        for name, by_user in (found(programs) if programs else {}).items()
        for uid, pids in by_user.items()
    ]


def _named(programs: Mapping[str, Program], address: str) -> Program:
    """The program that NAME or NAME@UID means. Raises EngineError if none is declared as that."""
    name = address.partition("@")[0]
    if name not in programs:
        raise EngineError(
            f"no program is declared as {name!r}{near_miss(name, programs)}",
            f"declared: {', '.join(sorted(programs))}; or add a [[program]] section",
        )
    return programs[name]


def _connect(programs: Mapping[str, Program], target: Target, believed: Believed) -> ProgramDriver:
    """`target.address` is NAME or NAME@UID."""
    name, at, user = target.address.partition("@")
    program = _named(programs, target.address)
    here = processes(program)
    ranks = (
        (uid, rank(uid, believed, containers.namespace_of(pid)))
        for uid, pids in here.items()
        for pid in pids
    )
    uid = int(user) if user.isdecimal() else whose(ranks)
    if (at and not user.isdecimal()) or (uid is None and here):
        names = ", ".join(f"program:{name}@{one}" for one in sorted(here))
        raise EngineError("several users run it", f"name one: {names}")

    pids = _Processes(program, uid)
    return ProgramDriver(Target(target.kind, target.address, pids()[0], uid), program, pids)


def declared(programs: Sequence[Program], believed: Believed = nobody) -> DriverKind:
    """The kind that knows these programs, and those of our folder, which are found by no search."""

    def known() -> dict[str, Program]:
        return {**shipped(), **{program.name: program for program in programs}}

    return DriverKind(
        "program",
        lambda: _find(programs),
        lambda target: _connect(known(), target, believed),
        of_processes=True,
        of_several=True,
        declared=declared,
        check=lambda address: _named(known(), address),
    )


kind = declared(())
