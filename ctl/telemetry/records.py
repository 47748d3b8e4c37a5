"""What a gateway records of itself: one JSON object a line, of one of the kinds below.

The types here are the schema: docs/telemetry.md is made from them (`python -m
sched_ctl.telemetry.schema`). A line says by itself which version it has, which node wrote it and
which number it has there, so that each can be judged without the others; only the arrays of a
record need the last topology line of their engine before them.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from sched_ctl.errors import UserError

__all__ = [
    "COLUMNS",
    "KINDS",
    "MOST_LINE_BYTES",
    "UPGRADES",
    "VERSION",
    "Column",
    "Event",
    "FileName",
    "Line",
    "Record",
    "Start",
    "Topology",
    "decode",
    "encode",
    "node_name",
]

VERSION = 1
MOST_LINE_BYTES = 8 << 20  # 10,000 operators take 1 MB
LARGEST = 2**53  # beyond, a float would no longer hold it

Number = Annotated[int, Meta(ge=0, le=LARGEST)]
# Drivers look at 4096 characters of an engine's name, and add which of several it is
Name = Annotated[str, Meta(max_length=1 << 16)]
Row = Annotated[int, Meta(ge=-1, le=10**6)]
Column = list[Number | None] | None

Version = Annotated[int, Meta(description="version of the schema", ge=0, le=10**6)]
Node = Annotated[Name, Meta(description="name of the machine")]
Seq = Annotated[
    Number,
    Meta(description="number of the line on its node, never used again"),
]
Time = Annotated[Number, Meta(description="Unix time in milliseconds")]
Engine = Annotated[Name, Meta(description="name of the engine, as `flink:127.0.0.1:8081`")]


class Start(Struct, tag_field="k", tag="file", kw_only=True, omit_defaults=True):
    """The first line of each file: who writes."""

    v: Version = field(default_factory=lambda: VERSION)  # which is never left out
    node: Node
    seq: Seq = 0
    t: Time
    run: Annotated[
        Number,
        Meta(
            description="`seq` of the first line since the controller's start: none is missing "
            "from there on"
        ),
    ] = 0
    boot: Annotated[
        Name,
        Meta(description="the kernel's boot id: tells machines of one name apart"),
    ] = ""
    program: Annotated[Name, Meta(description="version of sched-ctl")] = ""
    cpus: Annotated[Number, Meta(description="CPUs of the machine")] = 0
    machine: Annotated[
        Name,
        Meta(description="kind of machine: architecture and processor, the same on like machines"),
    ] = ""


class Topology(Struct, tag_field="k", tag="topology", kw_only=True, omit_defaults=True):
    """What an engine runs; before its first record in each file, and at each change."""

    v: Version = field(default_factory=lambda: VERSION)  # which is never left out
    node: Node
    seq: Seq = 0
    t: Time
    engine: Engine
    epoch: Annotated[Number, Meta(description="one more at each change, from 1 at the start")]
    queries: Annotated[list[Name], Meta(description="names of the queries")]
    ops: Annotated[list[Name], Meta(description="names of the n physical operators")]
    query_of: Annotated[list[Row], Meta(description="(n,) index of each one's query")]
    replica: Annotated[list[Row], Meta(description="(n,) which replica; absent: all 0")] = []
    replicas: Annotated[list[Row], Meta(description="(n,) of how many; absent: all 1")] = []
    threads: Annotated[list[Row], Meta(description="(n,) number of threads; absent: all 1")] = []
    away: Annotated[
        list[Row], Meta(description="(n,) 1: it runs on another node; absent: all 0")
    ] = []
    edges: Annotated[
        list[tuple[Row, Row, float]],
        Meta(description="streams: producer, consumer, and part of the output that takes it"),
    ] = []
    logical: Annotated[
        list[tuple[Row, Name]],
        Meta(
            description="logical operators: index of the query, name; absent: as the physical ones"
        ),
    ] = []
    logical_of: Annotated[
        list[list[Row]],
        Meta(description="(n,) which logical operators each runs, by their place in `logical`"),
    ] = []
    logical_edges: Annotated[
        list[tuple[Row, Row, float]], Meta(description="streams between logical operators")
    ] = []


class Record(Struct, tag_field="k", tag="record", kw_only=True, omit_defaults=True):
    """A stretch of time at one engine, under one set of policies.

    What is unknown of one operator is null, what is unknown of all is absent.
    """

    v: Version = field(default_factory=lambda: VERSION)  # which is never left out
    node: Node
    seq: Seq = 0
    t: Annotated[Time, Meta(description="begin, Unix time in milliseconds")]
    d: Annotated[Number, Meta(description="length in milliseconds")]
    engine: Engine
    epoch: Annotated[Number, Meta(description="of the topology line that the arrays belong to")]
    passes: Annotated[Number, Meta(description="how often the engine was asked in it")] = 1
    policy: Annotated[
        list[Name],
        Meta(description='policy of each query; "os": scheduled by nobody but the system'),
    ] = []
    backend: Annotated[
        list[Name], Meta(description='what enforced it, for each query; "": nothing')
    ] = []
    time: Annotated[
        Column,
        Meta(description="of each query: mean time in the system", extra={"unit": "us"}),
    ] = None
    source: Annotated[
        list[Name],
        Meta(
            description="what says so, for each query: counted, reported, awake, little or unknown"
        ),
    ] = []
    target: Annotated[
        Column, Meta(description="of each query: latency that it is to keep", extra={"unit": "us"})
    ] = None
    told: Annotated[
        Column,
        Meta(
            description="of each query: its tuples that were seen to keep the target or not",
            extra={"unit": "tuples"},
        ),
    ] = None
    met: Annotated[
        Column,
        Meta(description="of each query: those that kept it", extra={"unit": "tuples"}),
    ] = None
    psi: Annotated[
        list[Number | None],
        Meta(
            description="share of the time in which some thread waited for CPU, I/O, memory "
            "(0.01%), by the machine's PSI"
        ),
    ] = []
    tuples_in: Annotated[
        Column, Meta(description="input tuples processed", extra={"unit": "tuples"})
    ] = field(default=None, name="in")
    tuples_out: Annotated[
        Column, Meta(description="output tuples emitted", extra={"unit": "tuples"})
    ] = field(default=None, name="out")
    cpu: Annotated[
        Column,
        Meta(
            description="CPU time used, as the engine says, else of the threads; three digits",
            extra={"unit": "us"},
        ),
    ] = None
    wait: Annotated[
        Column,
        Meta(description="time its threads waited for a CPU; three digits", extra={"unit": "us"}),
    ] = None
    busy: Annotated[
        Column, Meta(description="time busy, as the engine says", extra={"unit": "ms"})
    ] = None
    idle: Annotated[
        Column,
        Meta(
            description="time without input, as the engine says; absent where it follows from "
            "the others",
            extra={"unit": "ms"},
        ),
    ] = None
    full: Annotated[
        Column,
        Meta(description="time held by a full queue, as the engine says", extra={"unit": "ms"}),
    ] = None
    q: Annotated[
        Column, Meta(description="tuples waiting, mean of the passes", extra={"unit": "tuples"})
    ] = None
    qmax: Annotated[
        Column, Meta(description="the same, largest of the passes", extra={"unit": "tuples"})
    ] = None
    age: Annotated[
        Column,
        Meta(
            description="age of the oldest waiting tuple, largest of the passes; three digits",
            extra={"unit": "ms"},
        ),
    ] = None
    lat: Annotated[
        Column,
        Meta(
            description="end-to-end latency as the engine reports it, mean of the passes; three "
            "digits",
            extra={"unit": "us"},
        ),
    ] = None
    verdict: Annotated[
        Column,
        Meta(description="what held it over the stretch, code of docs/bottlenecks.md"),
    ] = None
    by: Annotated[
        list[Row] | None,
        Meta(description="row of the operator that holds a backpressured one, else -1"),
    ] = None


class Event(Struct, tag_field="k", tag="event", kw_only=True, omit_defaults=True):
    """Something that happened. `policy`: another one is in force; `verdict`: something else holds a
    query; `engine`: it came, fell silent or went; `error`: something does not work; `lost`: lines
    that could not be written.
    """

    v: Version = field(default_factory=lambda: VERSION)  # which is never left out
    node: Node
    seq: Seq = 0
    t: Time
    what: Annotated[
        Literal["policy", "verdict", "engine", "error", "lost"],
        Meta(description="what happened, see above"),
    ]
    engine: Annotated[Name, Meta(description="which engine, if it is about one")] = ""
    about: Annotated[Name, Meta(description="query, operator or rule")] = ""
    value: Annotated[Name, Meta(description="what it is now")] = ""
    count: Annotated[Number, Meta(description="how many, of what was lost")] = 0


Line = Start | Topology | Record | Event
KINDS: tuple[type[Struct], ...] = (Start, Topology, Record, Event)
# fields of a record that are arrays over the operators, as they are called in JSON
COLUMNS = (
    *("in", "out", "cpu", "wait", "busy", "idle", "full"),
    *("q", "qmax", "age", "lat", "verdict", "by"),
)

# version -> what makes a line of the next version out of one, as plain data
UPGRADES: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}

_encode = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


class _Version(Struct):
    v: int


_version = msgspec.json.Decoder(_Version)


def encode(line: Line) -> bytes:
    """The line with its end."""
    return _encode(line) + b"\n"


def decode(line: bytes) -> Line:
    """What a line says, as of this version. Raises ValueError with the reason in words."""
    if len(line) > MOST_LINE_BYTES:
        raise ValueError(f"longer than {MOST_LINE_BYTES} bytes")
    try:
        found = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _older(line, error)
    if found.v == VERSION:
        return found
    return _older(line, None)


def _older(line: bytes, error: Exception | None) -> Line:
    """A line that this version does not know as it stands: upgraded, if it is an older one."""
    try:
        version = _version.decode(line).v
        if version > VERSION:
            raise ValueError(f"version {version}: written by a newer sched-ctl")
        if version == VERSION or version not in UPGRADES:
            raise ValueError(str(error) if error else f"version {version} is none of ours")
        data = msgspec.json.decode(line)
        for step in range(version, VERSION):
            data = UPGRADES[step](data) | {"v": step + 1}
        upgraded: Line = msgspec.convert(data, Line)
        return upgraded
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError(f"no line of ours: {error}") from None
    except (KeyError, TypeError) as other:
        raise ValueError(f"version {version} cannot be upgraded: {other}") from None


def node_name(text: str) -> str:
    """A machine's name as it may stand in a file's. Raises UserError if nothing is left of it."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", text).strip("._-")[:120]
    if not name:
        raise UserError(f"{text!r} is no name for a node", "letters, digits, dots and hyphens")
    return name


class FileName(Struct, frozen=True, order=True):
    """NODE-START-SEQ.jsonl.gz: when its first line was written, in UTC, and that line's number."""

    node: str
    start: str
    seq: int

    @classmethod
    def of(cls, node: str, t_ms: int, seq: int) -> "FileName":
        return cls(node, datetime.fromtimestamp(t_ms / 1e3, UTC).strftime("%Y%m%dT%H%M%SZ"), seq)

    @classmethod
    def parse(cls, name: str) -> "FileName | None":
        """None if it is no name of a closed file."""
        match = re.fullmatch(r"([A-Za-z0-9._-]+)-(\d{8}T\d{6}Z)-(\d{1,16})\.jsonl\.gz", name)
        return None if match is None else cls(match[1], match[2], int(match[3]))

    def __str__(self) -> str:
        return f"{self.node}-{self.start}-{self.seq:013}.jsonl.gz"
