"""Programs by declaration: `[[program]]` sections, and the files of drivers/programs/.

A declaration tells which processes are the program, and what its threads are by their names; the
rest is as of `kernel:`, see there. An engine is `program:NAME`, one user's processes: those of
several users are `program:NAME@UID`. What the configuration declares is found by itself. What lies
in drivers/programs/ has to be named, because nobody here has said that it may be ordered.

Without counters the tuples are wake-ups. With [program.metrics] they are what a Prometheus page
says; replicas of one operator get equal parts of a counter.
"""

import glob
import json
import math
import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from sched_ctl.drivers import DriverKind, Target
from sched_ctl.drivers.kernel import (
    NUMBER,
    KernelDriver,
    Named,
    Sorted,
    operators_named,
    pattern_of,
)
from sched_ctl.drivers.sources.http import Endpoint
from sched_ctl.drivers.sources.prometheus import Page
from sched_ctl.errors import EngineError, near_miss
from sched_ctl.kernel import procfs
from sched_ctl.model.graph import Array
from sched_ctl.model.programs import MOST_CHOICES, OPERATOR, Match, Program, counter, faults
from sched_ctl.model.topology import Edge, HelperThread, PhysicalOperator, Snapshot, Thread

__all__ = [
    "ProgramDriver",
    "declared",
    "draft",
    "explained",
    "kind",
    "pooled",
    "processes",
    "shipped",
    "sorted_threads",
]

FOLDER = Path(__file__).parent / "programs"
MOST_PROCESSES = 1000
TEMPLATE = re.compile(r"\$(query|operator)\b")


@cache
def shipped() -> Mapping[str, Program]:
    """The declarations of our folder, by name. Raises EngineError for a file that is none."""
    found = {}
    for path in sorted(FOLDER.glob("*.toml")):
        try:
            program = msgspec.convert(tomllib.loads(path.read_text("utf-8")), Program)
        except (OSError, ValueError) as error:  # ValidationError and TOMLDecodeError, too
            raise EngineError(f"{path}: {error}") from None
        for _, key, message, hint in faults([program]):
            raise EngineError(f"{path}: {key}: {message}", hint)
        found[program.name] = program
    return found


def processes(program: Program) -> dict[int, list[int]]:
    """The program's processes, by the user who started each; eldest first."""
    found: dict[int, list[tuple[int, int]]] = {}
    for pid in procfs.pids():
        if pid <= 1 or pid == os.getpid() or not _is(program, pid):
            continue
        first, uid = procfs.stat(pid), procfs.owner(pid)
        if first is not None and uid is not None and first.state not in "ZX":
            found.setdefault(uid, []).append((first.start_time, pid))
    return {uid: [pid for _, pid in sorted(pids)[:MOST_PROCESSES]] for uid, pids in found.items()}


def _is(program: Program, pid: int) -> bool:
    given = program.find.given
    return all(fnmatchcase(text, given[key]) for key, text in _facts(pid, given)) and bool(
        procfs.command_line(pid)  # no kernel thread
    )


def _facts(pid: int, given: Iterable[str]) -> Iterable[tuple[str, str]]:
    """What is asked for of a process, cheapest first; read only as far as it is asked."""
    for key in given:
        if key == "comm":
            first = procfs.stat(pid)
            yield key, "" if first is None else first.name
        elif key == "exe":
            try:
                yield key, str(Path(f"/proc/{pid}/exe").readlink()).removesuffix(" (deleted)")
            except OSError:
                yield key, ""
        elif key == "args":
            yield key, " ".join(procfs.command_line(pid))
        else:
            yield key, _cgroup(pid, last=key == "unit")


def _cgroup(pid: int, *, last: bool) -> str:
    """Path of a process's cgroup, of version 2 or else systemd's own; its unit, if `last`."""
    try:
        lines = [line.split(":", 2) for line in procfs.lines(f"/proc/{pid}/cgroup")]
    except OSError:
        return ""
    paths = {parts[1]: parts[2] for parts in lines if len(parts) == 3}
    path = paths.get("", "/")
    if path == "/":
        path = paths.get("name=systemd", path)
    if not last:
        return path
    units = [part for part in path.split("/") if part.endswith((".service", ".scope"))]
    return units[-1] if units else ""


def sorted_threads(program: Program, threads: Sequence[Thread]) -> Sorted:
    """What a program's threads are. Those that no pattern matches are left alone."""
    several = len({thread.pid for thread in threads}) > 1
    named: list[Named] = []
    helpers: list[HelperThread] = []
    unknown: list[str] = []
    twice: dict[str, str] = {}
    for thread in threads:
        match = program.match(thread.name)
        if match is None:
            unknown.append(thread.name)
            continue
        # A helper's pattern above a wide one of operators is what makes an exception.
        if match.others and match.role == OPERATOR:
            twice.setdefault(
                thread.name, f"{thread.name!r} matches {match.pattern!r} and {match.others[0]!r}"
            )
        if match.role != OPERATOR:
            helpers.append(HelperThread(thread, match.role))
            continue
        query = match.query or (f"{program.name}#{thread.pid}" if several else program.name)
        logical = match.operator or pattern_of(thread.name)
        named.append(Named(query, logical, match.operator or thread.name, thread))
    operators = operators_named(named)
    notes = []
    if not named:
        notes.append("none of its threads is an operator's by its declaration")
    if unknown:
        notes.append(
            f"{len(unknown)} threads match no pattern and are left alone, such as {unknown[0]!r}: "
            "sched-ctl engines --explain PID"
        )
    if twice:
        notes.append(f"{next(iter(twice.values()))}: the first decides")
    edges = None
    if program.edges:
        edges, missing = _edges(program, operators)
        if missing:
            notes.append(f"edges of the declaration name operators that are not here: {missing}")
    return Sorted(operators, tuple(helpers), edges, tuple(notes))


def _edges(program: Program, operators: Sequence[PhysicalOperator]) -> tuple[tuple[Edge, ...], str]:
    """The edges declared, within each query, and which of their operators are missing.

    Each target gets all that an operator hands on; its replicas get equal parts.
    """
    rows: dict[tuple[str, str], list[int]] = {}
    for row, operator in enumerate(operators):
        rows.setdefault((operator.query, operator.logical[0]), []).append(row)
    edges = tuple(
        Edge(a, b, 1.0 / len(targets))
        for (query, name), sources in rows.items()
        for target in dict.fromkeys(program.edges.get(name, ()))
        if (targets := rows.get((query, target)))
        for a in sources
        for b in targets
    )
    here = {name for _, name in rows}
    told = {*program.edges, *(name for names in program.edges.values() for name in names)}
    return edges, ", ".join(sorted(told - here)[:5])


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


class ProgramDriver(KernelDriver):
    """One user's processes of a declared program; see `sched_ctl.drivers.Driver`."""

    def __init__(self, target: Target, program: Program, pids: Callable[[], list[int]]) -> None:
        super().__init__(target, pids, lambda threads: sorted_threads(program, threads))
        self._counters: dict[str, str] = {}
        self._page: Page | None = None
        if program.metrics is None:
            return
        told = {"tuples_in": program.metrics.tuples_in, "tuples_out": program.metrics.tuples_out}
        self._counters = {name: text for name, text in told.items() if text}
        # Wake-ups given, over tuples taken in, would be no selectivity.
        self.provides = self.provides - told.keys() | self._counters.keys()
        self.derived = {name: how for name, how in self.derived.items() if name not in told}
        host, port, path = program.metrics.address
        families = [counter(text)[0] for text in self._counters.values()]
        endpoint = Endpoint(host, port, self.target.pid, listens=False)
        self._page = Page(endpoint, families, path)

    def poll(self, timeout_s: float) -> Snapshot:
        """Read it once. Raises EngineError if it has ended, or its page does not answer."""
        snapshot = super().poll(timeout_s)
        if self._page is None:
            return snapshot
        columns = {
            n: v for n, v in snapshot.columns.items() if n not in ("tuples_in", "tuples_out")
        }
        return replace(snapshot, columns=columns | self._counted(self._page, snapshot, timeout_s))

    def _counted(self, page: Page, snapshot: Snapshot, timeout_s: float) -> dict[str, Array]:
        operators = snapshot.topology.operators
        wanted = {name: _series(text, operators) for name, text in self._counters.items()}
        columns = {name: np.full(len(operators), math.nan) for name in wanted}
        for family, labels, value in page.read(timeout_s):
            for name, series in wanted.items():
                if series.family != family or not math.isfinite(value):
                    continue
                rows = series.rows.get(tuple(labels.get(key, "") for key in series.keys), [])
                if rows:
                    before = np.nan_to_num(columns[name][rows])
                    columns[name][rows] = before + value / len(rows)
        return columns

    def close(self) -> None:
        super().close()
        if self._page is not None:
            self._page.close()


def explained(
    programs: Iterable[Program], pid: int, threads: Sequence[Thread]
) -> tuple[Program | None, list[tuple[Thread, Match | None]]]:
    """The first declaration that means this process, and what it says of each thread."""
    program = next((one for one in programs if _is(one, pid)), None)
    return program, [(t, None if program is None else program.match(t.name)) for t in threads]


def draft(pid: int, threads: Sequence[Thread]) -> str:
    """A first declaration for a program that nobody declared: its threads' names, as patterns.

    Names that differ in numbers alone are one pattern. Threads that have the process's own name are
    taken for helpers: whoever gave its threads no names has nothing that could be ordered.
    """
    main = next((thread.name for thread in threads if thread.tid == pid), "")
    called = re.sub(r"[^\w.-]", "-", main) or "program"
    kinds = Counter(_drafted(thread.name) for thread in threads)
    lines = []
    for pattern, times in sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0])):
        role = '{ role = "housekeeping" }' if pattern == _drafted(main) else '"operator"'
        lines.append(f"{_literal(pattern)} = {role}  # {times}")
    return "\n".join(
        [
            "[[program]]",
            f"name = {_literal(called)}",
            f"find = {{ comm = {_literal(glob.escape(main))} }}",
            "[program.threads]  # name a part (?P<operator>...) and, of several, (?P<query>...)",
            *lines,
        ]
    )


def pooled(threads: Sequence[Thread]) -> bool:
    """Whether no thread's name tells it from the others: then only the whole can be ordered."""
    if len(threads) < 2:
        return False
    first = threads[0].name if threads else ""
    return len({pattern_of(thread.name) for thread in threads} - {pattern_of(first)}) <= 1


def _drafted(name: str) -> str:
    """A pattern for names that differ from this one in numbers alone."""
    parts = [re.sub(r"([^\w\s:#-])", r"\\\1", part) for part in NUMBER.split(name)]
    return r"\d+".join(parts) if len(parts) <= MOST_CHOICES + 1 else f"{parts[0]}.*"


def _literal(text: str) -> str:
    """The text as TOML in quotes, whatever somebody called its threads."""
    if text.isprintable() and "'" not in text:
        return f"'{text}'"
    return json.dumps(text)


def _find(programs: Sequence[Program]) -> list[Target]:
    return [
        Target("program", f"{program.name}@{uid}", pids[0], uid)
        for program in programs
        for uid, pids in processes(program).items()
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


def _connect(programs: Mapping[str, Program], target: Target) -> ProgramDriver:
    """`target.address` is NAME or NAME@UID."""
    name, at, user = target.address.partition("@")
    program = _named(programs, target.address)
    here = processes(program)
    uid = int(user) if user.isdecimal() else next(iter(here), None)
    if (at and not user.isdecimal()) or (not at and len(here) > 1):
        names = ", ".join(f"program:{name}@{one}" for one in sorted(here))
        raise EngineError("several users run it", f"name one: {names}")

    def pids() -> list[int]:
        found = [] if uid is None else processes(program).get(uid, [])
        if not found:
            given = ", ".join(f"{key} = {text!r}" for key, text in program.find.given.items())
            raise EngineError(f"no process of {name} runs here", f"looked for {given}")
        return found

    return ProgramDriver(Target(target.kind, target.address, pids()[0], uid), program, pids)


def declared(programs: Sequence[Program]) -> DriverKind:
    """The kind that knows these programs, and those of our folder, which are found by no search."""
    known = {**shipped(), **{program.name: program for program in programs}}
    return DriverKind(
        "program",
        lambda: _find(programs),
        lambda target: _connect(known, target),
        of_processes=True,
        declared=declared,
        check=lambda address: _named(known, address),
    )


kind = declared(())
