"""Engines by declaration: how a program is found, and what its threads' names say.

A `[[program]]` section of the configuration, and each file of drivers/programs/, is one. Patterns
of threads are regular expressions that match a whole name; the first that does decides. A program's
threads have any names, so a pattern must be harmless on all of them: see `fault_of`.
"""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

from msgspec import Meta, Struct

from sched_ctl.errors import near_miss

__all__ = [
    "COMM_LENGTH",
    "JAVA_LENGTH",
    "KINDS",
    "LONGEST",
    "MOST_CHOICES",
    "MOST_JAVA_CHOICES",
    "MOST_PATTERNS",
    "OPERATOR",
    "ROLES",
    "Counters",
    "Find",
    "Helper",
    "Match",
    "Program",
    "counter",
    "fault_of",
    "faults",
    "shortest",
    "shown",
]

OPERATOR = "operator"
ROLES = (
    *("housekeeping", "network", "flusher", "timer", "fetcher", "state", "checkpoint", "rpc"),
    *("metrics", "io", "gc", "jit", "jvm", "heartbeat", "system", "idle", "scheduler", "cleaner"),
)
KINDS = f'write "operator" or {{ role = ... }}; roles: {", ".join(ROLES)}'
COMM_LENGTH = 15  # characters of a name that the kernel keeps, TASK_COMM_LEN - 1
JAVA_LENGTH = 150  # of a name that a Java virtual machine tells, that are looked at
LONGEST = 200  # characters of a pattern
MOST_SHOWN = 40  # characters of a pattern in a message
MOST_PATTERNS = 64
MOST_CHOICES = 4  # of a pattern: 4 of 15 characters are 3,876 ways to match, 0.3 ms
MOST_JAVA_CHOICES = 2  # 2 of 150 characters are 11,476 ways, 1 ms
MOST_NAMES = 20_000  # whose matches are kept
PLACES = ("query", "operator")  # named groups, and what a counter's labels may be filled with
COUNTER = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?")
LABEL = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*"([^"\\]*)"\s*(?:,|\Z)')
URL = re.compile(r"http://(\[[0-9a-fA-F:]+\]|[\w.-]+):(\d{1,5})(/[\w./-]*)?")


class Find(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which processes are the program: all that is given must match, as shell patterns."""

    comm: Annotated[str, Meta(description="name of its first thread, as ps -o comm has it")] = ""
    exe: Annotated[str, Meta(description="path of its file")] = ""
    cgroup: Annotated[str, Meta(description="path of its cgroup in the hierarchy")] = ""
    unit: Annotated[str, Meta(description="its systemd unit: the last part of that path")] = ""
    args: Annotated[str, Meta(description="its arguments, with a space between two")] = ""
    file: Annotated[str, Meta(description="path of a file that it has open, such as a jar")] = ""

    @property
    def given(self) -> dict[str, str]:
        return {key: getattr(self, key) for key in self.__struct_fields__ if getattr(self, key)}


class Helper(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a thread does that is no operator."""

    role: str


class Counters(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a program's own counters come from; `$operator` and `$query` stand for names."""

    prometheus: Annotated[str, Meta(description="address of the page: http://HOST:PORT/PATH")]
    tuples_in: Annotated[str, Meta(description='FAMILY{LABEL="$operator"}')] = ""
    tuples_out: Annotated[str, Meta(description="the same, of what it hands on")] = ""

    @property
    def address(self) -> tuple[str, int, str]:
        """Host, port and path. The form was looked at by `faults`."""
        match = URL.fullmatch(self.prometheus)
        assert match is not None
        return match[1].strip("[]"), int(match[2]), match[3] or "/metrics"


@dataclass(frozen=True, slots=True)
class Match:
    """What a thread's name says. pattern: the one that decided.

    role: "operator", or a helper's. query, operator: None where the pattern names none.
    others: patterns further down that match, too.
    """

    pattern: str
    role: str
    query: str | None
    operator: str | None
    others: tuple[str, ...] = ()


class Program(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A `[[program]]` section: a program whose threads are operators, by their names."""

    name: Annotated[
        str, Meta(description="what the engine is called: program:NAME", pattern=r"^[\w.-]{1,64}$")
    ]
    find: Annotated[Find, Meta(description="which processes: comm, exe, cgroup, unit, args")]
    threads: Annotated[
        dict[str, str | Helper],
        Meta(description='pattern of a thread\'s name = "operator" or { role = ROLE }'),
    ] = {}
    names: Annotated[
        Literal["kernel", "java"],
        Meta(description="who tells threads' names: the kernel 15 characters, a Java VM 150"),
    ] = "kernel"
    whole: Annotated[
        bool,
        Meta(description="a process in which no thread is an operator's is one operator"),
    ] = False
    edges: Annotated[
        dict[str, tuple[str, ...]],
        Meta(description="operator = those that it feeds; none: by who wakes whom"),
    ] = {}
    metrics: Annotated[
        Counters | None,
        Meta(description="prometheus = URL, tuples_in and tuples_out; none: by wake-ups"),
    ] = None

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], str]]:
        return [
            (re.compile(text, re.DOTALL), what if isinstance(what, str) else what.role)
            for text, what in self.threads.items()
        ]

    @cached_property
    def _seen(self) -> dict[str, Match | None]:
        return {}

    @property
    def longest(self) -> int:
        """Characters of a name that are looked at."""
        return JAVA_LENGTH if self.names == "java" else COMM_LENGTH

    def match(self, name: str) -> Match | None:
        """What the name of a thread says, or None if no pattern matches. Kept by name."""
        name = name[: self.longest]
        try:
            return self._seen[name]
        except KeyError:
            if len(self._seen) >= MOST_NAMES:
                self._seen.clear()
            found = self._seen[name] = self._matched(name)
            return found

    def _matched(self, name: str) -> Match | None:
        matches = [(m, role) for p, role in self._patterns if (m := p.fullmatch(name))]
        if not matches:
            return None
        (first, role), *rest = matches
        parts: Mapping[str, str | None] = first.groupdict()
        return Match(
            first.re.pattern,
            role,
            parts.get("query") or None,
            parts.get("operator") or None,
            tuple(other.re.pattern for other, _ in rest),
        )


def faults(programs: Iterable[Program]) -> Iterator[tuple[int, str, str, str | None]]:
    """What is wrong that no type says: place, key, message and hint of each fault."""
    names: dict[str, int] = {}
    for place, program in enumerate(programs):
        if (before := names.setdefault(program.name, place)) != place:
            yield place, "name", f"program[{before}] has this name already", "name each once"
        if not program.find.given:
            yield place, "find", "it says nothing", 'give one, such as find = { comm = "x" }'
        if len(program.find.comm) > COMM_LENGTH:
            hint = f"write {program.find.comm[:COMM_LENGTH]!r}"
            yield place, "find.comm", f"the kernel cuts names at {COMM_LENGTH} characters", hint
        if len(program.threads) > MOST_PATTERNS:
            yield place, "threads", f"more than {MOST_PATTERNS} patterns", "join some with |"
        for text, what in program.threads.items():
            if (found := _thread_fault(text, what, program)) is not None:
                yield place, f"threads.{shown(text)}", *found
        if not program.whole and OPERATOR not in program.threads.values():
            hint = "'PATTERN' = \"operator\", or whole = true for the process as one"
            yield place, "threads", "no pattern is of operators", hint
        if (cycle := _cycle(program.edges)) is not None:
            yield place, "edges", f"{cycle!r} feeds itself", "leave one of the edges out"
        if program.metrics is not None:
            for key, message, about in _counters(program):
                yield place, f"metrics.{key}", message, about


def shown(pattern: str) -> str:
    """A pattern of threads as messages name it."""
    return repr(pattern if len(pattern) <= MOST_SHOWN else f"{pattern[:MOST_SHOWN]}...")


def _thread_fault(text: str, what: str | Helper, program: Program) -> tuple[str, str | None] | None:
    if isinstance(what, str) and what != OPERATOR:
        return f"{what!r} is neither{near_miss(what, [OPERATOR])}", KINDS
    if isinstance(what, Helper) and what.role not in ROLES:
        said = f"there is no role {what.role!r}{near_miss(what.role, ROLES)}"
        return said, f"roles: {', '.join(ROLES)}"
    fault = fault_of(text, MOST_JAVA_CHOICES if program.names == "java" else MOST_CHOICES)
    if fault is None and (needs := shortest(text)) > program.longest:
        told = f"no name has {needs} characters: they are cut at {program.longest}"
        return told, "end it where the name is cut, as engines --explain PID shows it"
    return fault


def fault_of(text: str, most: int = MOST_CHOICES) -> tuple[str, str | None] | None:
    """Why a pattern cannot be used, with a hint; None if it can.

    A name may match a pattern in many ways, and all are tried before it does not. With a bounded
    number of choices (repeats of varying length, alternatives inside a group) and none inside
    something repeated there are so few that any name is done with at once. most: choices.
    """
    if len(text) > LONGEST:
        return f"longer than {LONGEST} characters", "make two patterns of it"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # what may mean a set of sets one day
            compiled = re.compile(text)
    except FutureWarning:
        return "a bracket inside of brackets", r"write \\[, \\-, \\&, \\~ or \\| for the character"
    except (re.error, OverflowError, RecursionError) as error:
        return f"no regular expression: {error}", "as in Python's re"
    for group in compiled.groupindex:
        if group not in PLACES:
            return f"a group is called {group!r}", f"groups: {', '.join(PLACES)}"
    return _too_slow(text, most)


TOKEN = re.compile(
    r"""(?P<escape>\\.)|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])|(?P<open>\((?:\?(?::|P<\w+>))?)
    |(?P<close>\))|(?P<fixed>\{\d+\})|(?P<repeat>(?:[*+]|\{\d*,\d*\})[?+]?)
    |(?P<maybe>\?[?+]?)|(?P<or>\|)|(?P<plain>.)""",
    re.DOTALL | re.VERBOSE,
)
OTHER_GROUP = re.compile(r"\(\?(?!:|P<)")
REFERENCE = re.compile(r"(?<!\\)(?:\\\\)*\\[1-9]")


def _too_slow(text: str, at_most: int) -> tuple[str, str | None] | None:
    """As `fault_of`, of a pattern that compiles: looks at choices alone."""
    if OTHER_GROUP.search(re.sub(r"\\.", "", text)) or REFERENCE.search(text):
        return "it looks around, refers back or sets flags", "groups: ( ), (?: ) and (?P<name> )"
    open_: list[int] = []  # choices so far at each open group
    choices = most = inside = 0  # of this branch, of the largest branch, of the group that closed
    for token in TOKEN.finditer(text):
        kind = token.lastgroup
        if kind == "open":
            open_.append(choices)
        elif kind == "close":
            inside = choices - open_.pop()
            continue
        elif kind == "or":
            if open_:
                choices += 1
            else:
                most, choices = max(most, choices), 0
        elif kind == "maybe":
            choices += 1
        elif kind in ("repeat", "fixed"):
            if inside:
                return "a repeat or a choice inside something repeated", "repeat one of them only"
            choices += kind == "repeat"
        inside = 0
    if max(most, choices) > at_most:
        return f"more than {at_most} repeats or choices", "make two patterns of it"
    return None


def shortest(text: str) -> int:
    """How many characters a name has at least that a good pattern matches."""
    outer: list[list[int]] = []  # what is around each open group
    branches, last = [0], 0  # of this group so far; of what a repeat would repeat
    for token in TOKEN.finditer(text):
        kind, word = token.lastgroup, token.group()
        if kind == "open":
            outer.append(branches)
            branches = [0]
            continue
        if kind == "close":
            last = min(branches)
            branches = outer.pop()
        elif kind == "or":
            branches.append(0)
            continue
        elif kind in ("repeat", "maybe", "fixed"):
            fewest = word[1:].partition(",")[0].rstrip("}?+") if word[0] == "{" else ""
            times = int(fewest or 0) if word[0] == "{" else int(word[0] == "+")
            branches[-1] += last * (times - 1)
            last = 0  # what follows a repeat is part of it
            continue
        else:
            last = int(word not in ("^", "$", r"\A", r"\b", r"\B", r"\Z"))
        branches[-1] += last
    return min(branches)


def _cycle(edges: Mapping[str, tuple[str, ...]]) -> str | None:
    """An operator from which edges lead back to it, or None."""
    for start in edges:
        todo, seen = list(edges[start]), set[str]()
        while todo:
            at = todo.pop()
            if at == start:
                return start
            if at not in seen:
                seen.add(at)
                todo += edges.get(at, ())
    return None


def counter(text: str) -> tuple[str, dict[str, str]]:
    """Family and labels of `family{label="text"}`. Raises ValueError for another form."""
    match = COUNTER.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    labels: dict[str, str] = {}
    end, inside = 0, match[2] or ""
    while inside[end:].strip():
        label = LABEL.match(inside, end)
        if label is None:
            raise ValueError(text)
        labels[label[1]] = label[2]
        end = label.end()
    return match[1], labels


def _counters(program: Program) -> Iterator[tuple[str, str, str | None]]:
    metrics = program.metrics
    assert metrics is not None
    url = URL.fullmatch(metrics.prometheus)
    if url is None or not 0 < int(url[2]) < 65536:
        yield "prometheus", f"{metrics.prometheus!r} is no address", "http://HOST:PORT/metrics"
    if not metrics.tuples_in:
        yield "tuples_in", "it is needed", 'FAMILY{LABEL="$operator"}'
    for key in ("tuples_in", "tuples_out"):
        text = getattr(metrics, key)
        try:
            _, labels = counter(text) if text else ("", {"": "$operator"})
        except ValueError:
            yield key, f"{text!r} is no counter", 'FAMILY{LABEL="$operator"}'
            continue
        names = {name for value in labels.values() for name in re.findall(r"\$(\w*)", value)}
        if strange := sorted(names - set(PLACES)):
            yield key, f"there is no ${strange[0]}", "$operator and $query"
        elif not names:
            yield key, "all operators would have one counter", 'give a label, as "$operator"'
