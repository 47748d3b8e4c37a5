"""Workload files: queries as graphs, for the lab engine, the simulator and the benchmarks.

Costs are relative to a base cost, arrival rates to the rate that makes the busiest resource
busy all the time, so one file serves every load. One statement a line:

    workload etl base_cost_us=50           # the first statement
    query etl class=high                   # opens a query; class= is optional
    op spout cost=0.2 selectivity=1        # also block_probability= block_max_ms= window_ms=
    edge spout parse share=0.5             # share=1: the edge gets every output tuple
    source spout rate=1 arrivals=poisson   # also constant, onoff (on_ms= off_ms= shape=),
                                           # trace (trace=FILE, seconds, one arrival a line)

`op`, `edge` and `source` belong to the last `query`; edges and sources follow their operators.
A query is a DAG, each of its operators without upstream has one source. No join is downstream of
another or of a union. The lab engine is handed what `workloads.resolved` makes of it.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sched_ctl.errors import UserError
from sched_ctl.workloads.demand import cpu_demand, upstream_first

__all__ = [
    "Arrivals",
    "OperatorSpec",
    "QuerySpec",
    "SourceSpec",
    "Stream",
    "Workload",
    "dump",
    "load",
    "load_trace",
    "parse",
    "trace_phases",
]

MAX_BYTES = 16 << 20
MAX_OPERATORS = 100_000
MAX_NAME = 63
NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.:+-]{{0,{MAX_NAME - 1}}}")
OF_NAMES = f"names are 1 to {MAX_NAME} of A-Z a-z 0-9 _ . : + -, no sign first"
BLANKS = re.compile(r"[ \t\r\v\f]+")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)  # no nan, no inf
KINDS = ("constant", "poisson", "onoff", "trace")


@dataclass(frozen=True, slots=True)
class OperatorSpec:
    """cost: CPU time a tuple, in base costs. selectivity: output tuples per input tuple.

    block_probability: chance that a tuple blocks the operator, for up to block_max_s seconds
    (uniform). window_s: > 0 makes it a symmetric hash join over its (two) inputs; its selectivity
    is then the chance that a pair of tuples inside the window joins.
    """

    name: str
    cost: float
    selectivity: float = 1.0
    block_probability: float = 0.0
    block_max_s: float = 0.0
    window_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Stream:
    """An edge: producer and consumer by name, and the share of the producer's output it takes.

    An output tuple takes every edge whose share is 1. Edges with a smaller share split it: their
    shares lie one after the other on a circle of length 1, and one draw a tuple says which it hits;
    while they sum to at most 1, no tuple takes two of them.
    """

    source: str
    target: str
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """kind: "constant", "poisson", "onoff" or "trace".

    on_s, off_s: mean lengths of On and Off periods (rate is 0 in Off; the mean over both is the
    source's rate). shape: > 0 makes them Pareto with this shape, 0 exponential.
    """

    kind: str = "poisson"
    on_s: float = 0.0
    off_s: float = 0.0
    shape: float = 0.0
    trace: str = ""


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """Feeds the ingress `operator`. rate: relative to the other sources of the workload."""

    operator: str
    rate: float = 1.0
    arrivals: Arrivals = Arrivals()


@dataclass(frozen=True, slots=True)
class QuerySpec:
    name: str
    operators: tuple[OperatorSpec, ...]
    streams: tuple[Stream, ...]
    sources: tuple[SourceSpec, ...]
    klass: str = ""  # priority class, for multi-class policies


@dataclass(frozen=True, slots=True)
class Workload:
    """base_cost_s: CPU seconds of a cost of 1, unless the run says otherwise."""

    name: str
    queries: tuple[QuerySpec, ...]
    base_cost_s: float = 50e-6


# --- reading --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Field:
    """One key=value of a statement: how it is checked, and its unit."""

    low: float
    high: float
    per: float = 1.0  # divided by, not multiplied: 50 / 1e6 is the float nearest to 50e-6
    above: bool = False  # low itself is not allowed


_FIELDS: Mapping[str, Mapping[str, _Field | None]] = {  # None: text
    "workload": {"base_cost_us": _Field(0, 1e6, 1e6, above=True)},
    "query": {"class": None},
    "op": {
        "cost": _Field(0, 1e6),
        "selectivity": _Field(0, 1000),
        "block_probability": _Field(0, 1),
        "block_max_ms": _Field(0, 60_000, 1e3),
        "window_ms": _Field(0, 3_600_000, 1e3),
    },
    "edge": {"share": _Field(0, 1, above=True)},
    "source": {
        "rate": _Field(0, 1e9, above=True),
        "arrivals": None,
        "on_ms": _Field(0, 3_600_000, 1e3, above=True),
        "off_ms": _Field(0, 3_600_000, 1e3, above=True),
        "shape": _Field(1, 100, above=True),
        "trace": None,
    },
}
_NAMES = {"workload": 1, "query": 1, "op": 1, "edge": 2, "source": 1}


class _Line:
    """One statement: its words, checked, and the error that names its place."""

    def __init__(self, path: str, number: int, text: str) -> None:
        self.path, self.number = path, number
        words = [word for word in BLANKS.split(text) if word]
        self.kind = words[0]
        if self.kind not in _FIELDS:
            raise self.error(f"unknown statement {_shown(self.kind)}", _near(self.kind, _FIELDS))
        count = _NAMES[self.kind]
        self.names = words[1 : count + 1]
        if len(self.names) < count or any("=" in name for name in self.names):
            raise self.error(f"'{self.kind}' needs {count} name{'s' * (count > 1)}")
        for name in self.names:
            if not NAME.fullmatch(name):
                raise self.error(f"{_shown(name)} is not a name", OF_NAMES)
        self.values: dict[str, float] = {}
        self.texts: dict[str, str] = {}
        for word in words[count + 1 :]:
            self._field(word)

    def _field(self, word: str) -> None:
        key, equals, text = word.partition("=")
        if not equals or not text:
            raise self.error(f"expected key=value, not {_shown(word)}")
        if key not in _FIELDS[self.kind]:
            raise self.error(
                f"'{self.kind}' has no field {_shown(key)}", _near(key, _FIELDS[self.kind])
            )
        if key in self.values or key in self.texts:
            raise self.error(f"{key} is given twice")
        rule = _FIELDS[self.kind][key]
        if rule is None:
            if key == "class" and not NAME.fullmatch(text):
                raise self.error(f"class={_shown(text)[1:-1]} is not a name", OF_NAMES)
            self.texts[key] = text
            return
        if not NUMBER.fullmatch(text):
            raise self.error(f"{key}={_shown(text)[1:-1]} is not a number")
        value = float(text)
        low = value > rule.low if rule.above else value >= rule.low
        if not (low and value <= rule.high):
            least = "above" if rule.above else "at least"
            raise self.error(f"{key}={text} must be {least} {rule.low:g}, at most {rule.high:g}")
        self.values[key] = value / rule.per

    def error(self, message: str, hint: str | None = None) -> UserError:
        return UserError(f"{self.path}:{self.number}: {message}", hint)


def _shown(text: str) -> str:
    """Foreign text in an error message: printable and short."""
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _near(word: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(word, known, 1)
    return f"did you mean '{close[0]}'?" if close else f"one of: {', '.join(known)}"


def load(path: str | Path) -> Workload:
    """Read a workload file. UserError names file, line and field of what is wrong in it."""
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot read workload {path}: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise UserError(f"{path}: larger than {MAX_BYTES >> 20} MB")
    if b"\0" in content:
        line = content[: content.index(b"\0")].count(b"\n") + 1
        raise UserError(f"{path}:{line}: not text")
    workload = parse(content.decode("utf-8", "replace"), str(path))
    for query in workload.queries:
        for source in query.sources:
            if source.arrivals.kind == "trace":
                load_trace(Path(path).parent / source.arrivals.trace)
    return workload


def parse(text: str, path: str = "<workload>") -> Workload:
    """The workload that `text` describes. `path` is for the errors. Traces are not opened."""
    lines = list(_statements(text, path))
    if not lines or lines[0].kind != "workload":
        raise UserError(
            f"{path}:{lines[0].number if lines else 1}: the first statement must be 'workload NAME'"
        )
    operators = 0
    names: set[str] = set()
    queries: list[list[_Line]] = []  # the statements of each, its head first
    for line in lines[1:]:
        if line.kind == "workload":
            raise line.error("a second 'workload'")
        if line.kind == "query":
            if line.names[0] in names:
                raise line.error(f"query {line.names[0]} is there twice")
            names.add(line.names[0])
            queries.append([line])
        elif not queries:
            raise line.error(f"'{line.kind}' before the first 'query'")
        else:
            queries[-1].append(line)
            operators += line.kind == "op"
            if operators > MAX_OPERATORS:
                raise line.error(f"more than {MAX_OPERATORS} operators")
    if not queries:
        raise lines[0].error("no query")
    workload = Workload(
        name=lines[0].names[0],
        queries=tuple(_query(block) for block in queries),
        base_cost_s=lines[0].values.get("base_cost_us", 50e-6),
    )
    if cpu_demand(workload, 1.0) <= 0:
        raise lines[0].error("no operator that gets tuples costs anything")
    return workload


def _statements(text: str, path: str) -> Iterator[_Line]:
    for number, line in enumerate(text.split("\n"), 1):
        statement = line.partition("#")[0]
        if BLANKS.sub("", statement):
            yield _Line(path, number, statement)


def _query(block: list[_Line]) -> QuerySpec:
    head, *lines = block
    operators: dict[str, OperatorSpec] = {}
    streams: dict[tuple[str, str], tuple[_Line, Stream]] = {}
    sources: dict[str, tuple[_Line, SourceSpec]] = {}
    at: dict[str, _Line] = {}

    def known(line: _Line, name: str) -> str:
        if name not in operators:
            raise line.error(
                f"query {head.names[0]} has no operator {name}", _near(name, operators)
            )
        return name

    for line in lines:
        name = line.names[0]
        if line.kind == "op":
            if name in operators:
                raise line.error(f"operator {name} is there twice in query {head.names[0]}")
            operators[name] = _operator(line)
            at[name] = line
        elif line.kind == "edge":
            pair = known(line, name), known(line, line.names[1])
            if pair in streams:
                raise line.error(f"edge {pair[0]} {pair[1]} is there twice")
            streams[pair] = line, Stream(*pair, line.values.get("share", 1.0))
        else:
            if known(line, name) in sources:
                raise line.error(f"operator {name} has a source already")
            sources[name] = line, _source(line)
    if not operators:
        raise head.error(f"query {head.names[0]} has no operators")
    upstream: dict[str, list[str]] = {name: [] for name in operators}
    for producer, consumer in streams:
        upstream[consumer].append(producer)
    for name, line in at.items():
        if operators[name].window_s and len(upstream[name]) != 2:
            raise line.error(
                f"window_ms: operator {name} has {len(upstream[name])} inputs, a join needs 2"
            )
        if not upstream[name] and name not in sources:
            raise line.error(f"operator {name} has no input: no edge leads to it and no source")
    for name, (line, _) in sources.items():
        if upstream[name]:
            raise line.error(
                f"source on {name}, which has the upstream operator {upstream[name][0]}"
            )
    _no_cycle(head, operators, streams)
    _joins_in_order(at, operators, upstream)
    return QuerySpec(
        name=head.names[0],
        operators=tuple(operators.values()),
        streams=tuple(stream for _, stream in streams.values()),
        sources=tuple(source for _, source in sources.values()),
        klass=head.texts.get("class", ""),
    )


def _operator(line: _Line) -> OperatorSpec:
    get = line.values.get
    if "cost" not in line.values:
        raise line.error("'op' needs cost=")
    if bool(get("block_probability")) != bool(get("block_max_ms")):
        raise line.error("block_probability and block_max_ms belong together")
    return OperatorSpec(
        name=line.names[0],
        cost=line.values["cost"],
        selectivity=get("selectivity", 1.0),
        block_probability=get("block_probability", 0.0),
        block_max_s=get("block_max_ms", 0.0),
        window_s=get("window_ms", 0.0),
    )


def _source(line: _Line) -> SourceSpec:
    kind = line.texts.get("arrivals", "poisson")
    if kind not in KINDS:
        raise line.error(
            f"arrivals={_shown(kind)[1:-1]} is not known", f"one of: {', '.join(KINDS)}"
        )
    for field, belongs in (("on_ms", "onoff"), ("off_ms", "onoff"), ("shape", "onoff")):
        if field in line.values and kind != belongs:
            raise line.error(f"{field} is for arrivals={belongs}")
    if kind == "onoff" and not {"on_ms", "off_ms"} <= line.values.keys():
        raise line.error("arrivals=onoff needs on_ms= and off_ms=")
    if (kind == "trace") != ("trace" in line.texts):
        raise line.error("arrivals=trace and trace=FILE belong together")
    get = line.values.get
    return SourceSpec(
        operator=line.names[0],
        rate=get("rate", 1.0),
        arrivals=Arrivals(
            kind=kind,
            on_s=get("on_ms", 0.0),
            off_s=get("off_ms", 0.0),
            shape=get("shape", 0.0),
            trace=line.texts.get("trace", ""),
        ),
    )


def _no_cycle(
    head: _Line,
    operators: Mapping[str, OperatorSpec],
    streams: Mapping[tuple[str, str], tuple[_Line, Stream]],
) -> None:
    done = set(upstream_first(operators, streams))
    for (producer, consumer), (line, _) in streams.items():
        if producer not in done and consumer not in done:
            raise line.error(
                f"query {head.names[0]} has a cycle through or above edge {producer} {consumer}"
            )


def _joins_in_order(
    at: Mapping[str, _Line],
    operators: Mapping[str, OperatorSpec],
    upstream: Mapping[str, Sequence[str]],
) -> None:
    """A join finds the same pairs under every scheduler if each of its inputs has one order."""
    pairs = ((producer, name) for name, producers in upstream.items() for producer in producers)
    mixed: dict[str, str] = {}  # operator -> the union or join that it has its tuples through
    for name in upstream_first(upstream, pairs):
        through = next((mixed[producer] for producer in upstream[name] if producer in mixed), None)
        if through and operators[name].window_s:
            raise at[name].error(
                f"window_ms: operator {name} is downstream of {through}, which has two inputs or "
                "more: what it joins would depend on the scheduler",
                "join first, and let the join's output meet others",
            )
        if through or len(upstream[name]) > 1:
            mixed[name] = through or name


def load_trace(path: Path) -> tuple[float, ...]:
    """Arrival times in seconds from the start, not decreasing, one a line; `#` comments."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot read trace {path}: {error.strerror}") from error
    if len(text) > MAX_BYTES:
        raise UserError(f"{path}: larger than {MAX_BYTES >> 20} MB")
    times: list[float] = []
    for number, line in enumerate(text.split("\n"), 1):
        word = line.partition("#")[0].strip()
        if not word:
            continue
        try:
            time_s = float(word)
        except ValueError:
            raise UserError(f"{path}:{number}: {_shown(word)} is not a time in seconds") from None
        if not 0 <= time_s <= 1e9:
            raise UserError(f"{path}:{number}: time {word} must be 0 to 1e9 seconds")
        if times and time_s < times[-1]:
            raise UserError(f"{path}:{number}: time {word} is before the one above it")
        times.append(time_s)
    if not times or times[-1] <= 0:
        raise UserError(f"{path}: a trace needs an arrival after time 0")
    return tuple(times)


def trace_phases(path: Path) -> tuple[float, ...]:
    """When in a cycle of length 1 each arrival of a trace comes, the first at 0.

    A cycle ends one mean gap after its last arrival, so that the next joins without a pile-up.
    """
    times = load_trace(path)
    span = (times[-1] - times[0]) * len(times) / max(len(times) - 1, 1) or 1.0
    return tuple((time_s - times[0]) / span for time_s in times)


# --- writing --------------------------------------------------------------------------------------


def dump(workload: Workload) -> str:
    """The text of a workload file; `parse(dump(w))` equals `w` up to the last digits."""

    def fields(*pairs: tuple[str, float | str, float | str]) -> str:
        return "".join(
            f" {key}={value if isinstance(value, str) else format(value, '.12g')}"
            for key, value, default in pairs
            if value != default
        )

    lines = [f"workload {workload.name} base_cost_us={workload.base_cost_s * 1e6:.12g}"]
    for query in workload.queries:
        lines += ["", f"query {query.name}" + fields(("class", query.klass, ""))]
        for op in query.operators:
            lines.append(
                f"op {op.name} cost={op.cost:.12g}"
                + fields(
                    ("selectivity", op.selectivity, 1.0),
                    ("block_probability", op.block_probability, 0.0),
                    ("block_max_ms", op.block_max_s * 1e3, 0.0),
                    ("window_ms", op.window_s * 1e3, 0.0),
                )
            )
        for stream in query.streams:
            lines.append(
                f"edge {stream.source} {stream.target}" + fields(("share", stream.share, 1.0))
            )
        for source in query.sources:
            arrivals = source.arrivals
            lines.append(
                f"source {source.operator}"
                + fields(
                    ("rate", source.rate, 1.0),
                    ("arrivals", arrivals.kind, "poisson"),
                    ("on_ms", arrivals.on_s * 1e3, 0.0),
                    ("off_ms", arrivals.off_s * 1e3, 0.0),
                    ("shape", arrivals.shape, 0.0),
                    ("trace", arrivals.trace, ""),
                )
            )
    return "\n".join(lines) + "\n"
