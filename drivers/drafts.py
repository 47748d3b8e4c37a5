"""What a declaration says of a process's threads; where there is none, a first draft of one."""

import glob
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from sched_ctl.drivers import Target, kernel, threadnames
from sched_ctl.drivers.finding import is_of
from sched_ctl.drivers.jvm import JavaProcess
from sched_ctl.drivers.kernel import NUMBER, pattern_of
from sched_ctl.errors import EngineError
from sched_ctl.kernel import procfs
from sched_ctl.model.programs import MOST_CHOICES, Match, Program
from sched_ctl.model.topology import Thread

__all__ = ["draft", "edges_seen", "explained", "pooled"]

ATTACH_S = 5.0


def explained(
    programs: Iterable[Program], pid: int, threads: Sequence[Thread]
) -> tuple[Program | None, list[tuple[Thread, Match | None]]]:
    """The first declaration that means this process, and what it says of each thread."""
    program = next((one for one in programs if is_of(one, pid)), None)
    if program is not None and program.names == "java" and (first := procfs.stat(pid)) is not None:
        process = JavaProcess(pid, first.start_time, "jvm")
        process.look(ATTACH_S)
        full = {thread: thread for thread in (*process.names, *process.others)}
        threads = [full.get(thread, thread) for thread in threads]
    return program, [(t, None if program is None else _match(program, t.name)) for t in threads]


def _match(program: Program, name: str) -> Match | None:
    found = program.match(name)
    if found is None and program.names == "java":
        said = threadnames.read("jvm", name)
        return None if said is None else Match("any Java VM's", said.role, None, None)
    return found


def edges_seen(pid: int, seconds: float) -> dict[str, tuple[str, ...]]:
    """Who wakes whom of a process's threads, by names without numbers. Waits for that long.

    Empty where nobody can be traced.
    """
    try:
        driver = kernel.connect(Target("kernel", str(pid)))
    except EngineError:
        return {}
    try:
        driver.poll(1.0)
        time.sleep(seconds)
        topology = driver.poll(1.0).topology
    except EngineError:
        return {}
    finally:
        driver.close()
    found: dict[str, tuple[str, ...]] = {}
    for edge in topology.logical_edges:
        a, b = (topology.logical[row].name for row in (edge.source, edge.target))
        found[a] = (*found.get(a, ()), b)
    return found


def draft(
    pid: int, threads: Sequence[Thread], edges: Mapping[str, tuple[str, ...]] | None = None
) -> str:
    """A first declaration for a program that nobody declared: its threads' names, as patterns.

    Names that differ in numbers alone are one pattern. Threads that have the process's own name are
    taken for helpers: whoever gave its threads no names has nothing that could be ordered. edges:
    see `edges_seen`.
    """
    main = next((thread.name for thread in threads if thread.tid == pid), "")
    called = re.sub(r"[^\w.-]", "-", main) or "program"
    kinds = Counter(_drafted(thread.name) for thread in threads)
    lines = []
    for pattern, times in sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0])):
        role = '{ role = "housekeeping" }' if pattern == _drafted(main) else '"operator"'
        lines.append(f"{_literal(pattern)} = {role}  # {times}")
    operators = {pattern_of(thread.name) for thread in threads} - {pattern_of(main)}
    seen = {a: [b for b in to if b in operators] for a, to in (edges or {}).items()}
    if drawn := [
        f"{_literal(a)} = [{', '.join(map(_literal, b))}]"
        for a, b in seen.items()
        if a in operators and b
    ]:
        lines += ["[program.edges]  # who woke whom, just now", *drawn]
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
    first = pattern_of(threads[0].name)
    return len({pattern_of(thread.name) for thread in threads} - {first}) <= 1


def _drafted(name: str) -> str:
    """A pattern for names that differ from this one in numbers alone."""
    parts = [re.sub(r"([^\w\s:#-])", r"\\\1", part) for part in NUMBER.split(name)]
    return r"\d+".join(parts) if len(parts) <= MOST_CHOICES + 1 else f"{parts[0]}.*"


def _literal(text: str) -> str:
    """The text as TOML in quotes, whatever somebody called its threads."""
    if text.isprintable() and "'" not in text:
        return f"'{text}'"
    plain = (one if one.isprintable() and one not in '"\\' else _escaped(one) for one in text)
    return f'"{"".join(plain)}"'


def _escaped(one: str) -> str:
    """A character as TOML takes it; no half of a surrogate pair is one."""
    number = ord(one)
    return "\N{REPLACEMENT CHARACTER}" if 0xD800 <= number <= 0xDFFF else f"\\U{number:08x}"
