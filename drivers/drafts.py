"""What a declaration says of a process's threads; where there is none, a first draft of one."""

import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from sched_ctl.drivers import Target, kernel, threadnames
from sched_ctl.drivers.finding import is_of
from sched_ctl.drivers.jvm import JavaProcess
from sched_ctl.drivers.kernel import NUMBER, pattern_of
from sched_ctl.errors import EngineError
from sched_ctl.kernel import procfs
from sched_ctl.model.programs import (
    COMM_LENGTH,
    JAVA_LENGTH,
    LONGEST,
    MOST_CHOICES,
    MOST_JAVA_CHOICES,
    MOST_PATTERNS,
    Match,
    Program,
)
from sched_ctl.model.topology import Thread
from sched_ctl.probes.wakegraph import LEAST, wake_graph

__all__ = ["draft", "edges_seen", "explained", "pooled", "started_with", "told_by_java"]

ATTACH_S = 5.0
INTERPRETER = re.compile(r"(?:java|node|(?:python|perl|ruby|php|lua|bash|dash|sh)[\d.]*)")
VALUED = {  # options whose value is the next word, by interpreter without its version
    "java": {
        *("-cp", "-classpath", "--class-path", "-p", "--module-path", "--upgrade-module-path"),
        *("--add-modules", "--limit-modules", "--add-exports", "--add-opens", "--add-reads"),
        *("--patch-module", "--enable-native-access", "--source"),
    },
    "python": {"-W", "-X"},
    "perl": {"-I"},
    "ruby": {"-I", "-r", "-C"},
    "node": {"-r", "--require", "--import", "--loader"},
    **{shell: {"-o", "+o", "-O", "+O"} for shell in ("bash", "dash", "sh")},
}
WITH_TEXT = {  # the next word is the program's text; a shell's -e and a Python's -E are others
    **{one: {"-c"} for one in ("python", "bash", "dash", "sh")},
    **{one: {"-e", "-E"} for one in ("perl", "ruby", "node")},
}
LONGEST_WORD = 100
SPECIAL = re.compile(r"[][*?]")  # of shell patterns; ? is as long as what it stands for
BEGUN = 40  # characters of a name whose pattern would be too long
ANYTHING = ".*"
LEAST_LETTERS = 3  # before an open end
MACHINES = (  # threads of a Java VM whose names the kernel cuts
    *("Reference Handler", "Monitor Deflation Thread", "Notification Thread"),
    *("VM Periodic Task Thread", "Concurrent Mark-Sweep GC Thread", "process reaper (pid"),
)
CUT = {name[:COMM_LENGTH] for name in MACHINES}


def explained(
    programs: Iterable[Program], pid: int, threads: Sequence[Thread]
) -> tuple[Program | None, list[tuple[Thread, Match | None]]]:
    """The first declaration that means this process, and what it says of each thread."""
    program = next((one for one in programs if is_of(one, pid)), None)
    if program is not None and program.names == "java":
        threads = told_by_java(pid, threads)
    return program, [(t, None if program is None else _match(program, t.name)) for t in threads]


def told_by_java(pid: int, threads: Sequence[Thread]) -> list[Thread]:
    """The threads by the names that their Java VM tells, where it does."""
    first = procfs.stat(pid)
    if first is None:
        return [*threads]
    process = JavaProcess(pid, first.start_time, "jvm")
    process.look(ATTACH_S)
    full = {thread: thread for thread in (*process.names, *process.others)}
    return [full.get(thread, thread) for thread in threads]


def started_with(pid: int) -> tuple[str, str]:
    """Of a process that an interpreter runs: which one, and the program's word among its
    arguments, such as a script or a main class. Empty where it is none, or is not told."""
    command, *words = procfs.command_line(pid) or [""]
    interpreter = command.rpartition("/")[2]
    if not INTERPRETER.fullmatch(interpreter):
        return "", ""
    kind = interpreter.rstrip("0123456789.")
    valued, with_text = VALUED.get(kind, ()), WITH_TEXT.get(kind, ())
    value = False
    for word in words:
        if word in with_text or (interpreter == "java" and word.startswith("@")):
            return interpreter, ""
        if not value and not word.startswith(("-", "+")):
            return interpreter, _told(word) or _told(word.rpartition("/")[2])
        value = word in valued
    return interpreter, ""


def _told(word: str) -> str:
    good = len(word) <= LONGEST_WORD and word.isprintable() and " " not in word
    return word if good else ""


def _match(program: Program, name: str) -> Match | None:
    found = program.match(name)
    if found is None and program.names == "java":
        said = threadnames.read("jvm", name)
        return None if said is None else Match("any Java VM's", said.role, None, None)
    return found


def edges_seen(pid: int, seconds: float, threads: Sequence[Thread]) -> dict[str, tuple[str, ...]]:
    """Who wakes whom of a process's threads, by names without numbers. Waits for that long.

    threads: whose names are taken. Empty where nobody can be traced.
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
    names = {thread: pattern_of(thread.name) for thread in threads}
    called = [
        next((names[thread] for thread in operator.threads if thread in names), None)
        for operator in topology.operators
    ]
    weight: Counter[tuple[str, str]] = Counter()
    for edge in topology.edges:
        a, b = called[edge.source], called[edge.target]
        if a is not None and b is not None and a != b:
            weight[a, b] += max(1, round(1000 * edge.share))
    every = [*dict.fromkeys(names.values())]
    row = {name: number for number, name in enumerate(every)}
    counts = {(row[a], row[b]): LEAST * n for (a, b), n in weight.items()}
    found: dict[str, tuple[str, ...]] = {}
    for source, to in wake_graph(counts, row.values()):
        found[every[source]] = (*found.get(every[source], ()), every[to])
    return found


def draft(
    pid: int,
    threads: Sequence[Thread],
    edges: Mapping[str, tuple[str, ...]] | None = None,
    started: tuple[str, str] = ("", ""),
) -> str:
    """A first declaration for a program that nobody declared: its threads' names, as patterns.

    Names that differ in numbers alone are one pattern. Threads that have the process's own name are
    taken for helpers: whoever gave its threads no names has nothing that could be ordered but the
    process. So are those of a Java VM. edges: see `edges_seen`. started: see `started_with`.
    """
    main = next((thread.name for thread in threads if thread.tid == pid), "")
    interpreter, word = started
    # Where the machine tells its threads' names its compiler's is too long for the kernel.
    of_java = interpreter == "java" and any(len(t.name) > COMM_LENGTH for t in threads)
    last = word.rpartition("/")[2]
    if interpreter == "java" and not last.endswith(".jar"):
        last = last.rpartition(".")[2]  # of a class
    called = re.sub(r"[^A-Za-z0-9_.-]", "-", last or main)[:64]
    head = ["[[program]]", f"name = {_literal(called or 'program')}"]
    head.append(f"find = {{ {_found_by(pid, main, word)} }}")
    if interpreter and not word:
        head.append(f"# This means all processes of {interpreter}: narrow it down.")
    mine = [thread for thread in threads if not _of_a_machine(thread.name, interpreter)]
    operators = {pattern_of(thread.name) for thread in mine} - {pattern_of(main)}
    if not operators or pooled(threads, interpreter):
        return "\n".join([*head, "whole = true"])
    untitled = [*head]
    if of_java:
        head.append('names = "java"')
    title = "[program.threads]  # name a part (?P<operator>...) and, of several, (?P<query>...)"
    lines, drafted = _patterns(mine if of_java else threads, main, interpreter, of_java=of_java)
    if not drafted:
        return "\n".join([*untitled, "whole = true"])
    return "\n".join([*head, title, *lines, *_drawn(edges or {}, operators & drafted)])


def _found_by(pid: int, main: str, word: str) -> str:
    """How the process is found again: by the name of its first thread, or else by its file."""
    if main:
        found = f"comm = {_literal(SPECIAL.sub('?', main))}"
    else:
        found = f"exe = {_literal(SPECIAL.sub('?', _file_of(pid)))}"
    if not word:
        return found
    words = procfs.command_line(pid) or [""]
    # A whole word, or the end of a path that is too long.
    args = f"*{' ' if word in words else '/'}{SPECIAL.sub('?', word)}"
    if not words[-1].endswith(word):
        args += " *"
    return f"{found}, args = {_literal(args)}"


def _file_of(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/exe").readlink()).removesuffix(" (deleted)")
    except OSError:
        return "/path/of/its/file"


def _of_a_machine(name: str, interpreter: str) -> bool:
    """Whether a thread is a Java VM's own."""
    return interpreter == "java" and (
        name in CUT
        or name.startswith("GC task thread#")  # of JDK 8
        or threadnames.certainly_helper("jvm", name)
        or threadnames.read("jvm", name) is not None
    )


def _patterns(
    threads: Sequence[Thread], main: str, interpreter: str, *, of_java: bool
) -> tuple[list[str], set[str]]:
    """A line of TOML for each kind of name, of the rarest only how many there are; and those of
    operators, as `pattern_of` has them."""
    length, most = (JAVA_LENGTH, MOST_JAVA_CHOICES) if of_java else (COMM_LENGTH, MOST_CHOICES)
    own = [main, *(t.name for t in threads if _of_a_machine(t.name, interpreter))]
    own = [name[:length] for name in own]
    helpers = {_drafted(main[:length], most)}
    kinds: Counter[str] = Counter()
    named: dict[str, set[str]] = {}
    for thread in threads:
        pattern = _drafted(thread.name[:length], most)
        kinds[pattern] += 1
        named.setdefault(pattern, set()).add(pattern_of(thread.name))
        if _of_a_machine(thread.name, interpreter):
            helpers.add(pattern)
    narrow = [kind for kind in kinds.items() if kind[0] in helpers or not _too_wide(kind[0], own)]
    ordered = sorted(narrow, key=lambda kind: (kind[0].endswith(ANYTHING), -kind[1], kind[0]))
    drafted = {
        name
        for pattern, _ in ordered[:MOST_PATTERNS]
        if pattern not in helpers
        for name in named[pattern]
    }
    lines = []
    for pattern, times in ordered[:MOST_PATTERNS]:
        role = '{ role = "housekeeping" }' if pattern in helpers else '"operator"'
        lines.append(f"{_literal(pattern)} = {role}  # {times}")
    if len(ordered) > MOST_PATTERNS:
        lines.append(f"# and {len(ordered) - MOST_PATTERNS} other names, which are left alone")
    if len(narrow) < len(kinds):
        lines.append(f"# and {len(kinds) - len(narrow)} whose patterns would mean others, too")
    return lines, drafted


def _drawn(edges: Mapping[str, tuple[str, ...]], operators: set[str]) -> list[str]:
    seen = {a: [b for b in to if b in operators] for a, to in edges.items()}
    lines = [
        f"{_literal(a)} = [{', '.join(map(_literal, b))}]"
        for a, b in seen.items()
        if a in operators and b
    ]
    return ["[program.edges]  # who woke whom, just now", *lines] if lines else []


def pooled(threads: Sequence[Thread], interpreter: str = "") -> bool:
    """Whether no thread's name tells it from the others: then only the whole can be ordered."""
    mine = [thread for thread in threads if not _of_a_machine(thread.name, interpreter)]
    if len(mine) < 2:
        return False
    first = pattern_of(threads[0].name)
    return len({pattern_of(thread.name) for thread in mine} - {first}) <= 1


def _drafted(name: str, most: int) -> str:
    """A pattern for names that differ from this one in numbers alone. most: repeats."""
    parts = [_escaped_in_pattern(part) for part in NUMBER.split(name)]
    pattern = r"\d+".join(parts)
    if len(parts) > most + 1 or len(pattern) > LONGEST:
        begun = NUMBER.split(name[:BEGUN])[:most]  # and .* is a choice, too
        return r"\d+".join(map(_escaped_in_pattern, begun)) + ANYTHING
    return pattern


def _too_wide(pattern: str, names: Iterable[str]) -> bool:
    """Whether a pattern with an open end tells too little, or means one of these names."""
    if not pattern.endswith(ANYTHING):
        return False
    letters = sum(map(str.isalpha, pattern.replace(r"\d+", "")))
    found = re.compile(pattern, re.DOTALL)
    return letters < LEAST_LETTERS or any(map(found.fullmatch, names))


def _escaped_in_pattern(text: str) -> str:
    return re.sub(r"([.^$*+?{}()\[\]\\|])", r"\\\1", text)


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
