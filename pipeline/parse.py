"""Recorded files to rows, in Spark's Python workers: bytes in, Arrow batches out.

A task holds one file at a time, and rows go on by the ten thousand. Records without verdicts, of
whoever does not judge, are judged by `judge`. Nothing in a file makes it fail: what is no line of
ours becomes a row of the table `bad` with file, line and reason.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from sched_ctl.pipeline import judge
from sched_ctl.pipeline.choice import DAY_MS
from sched_ctl.pipeline.plausible import LATEST_MS, implausible, misplaced
from sched_ctl.pipeline.tables import COLUMNS
from sched_ctl.telemetry import reading, records
from sched_ctl.telemetry.recorder import kind_of_machine

__all__ = ["SCHEMA", "of_file", "rows"]

ROWS = 20_000  # of a batch, about
FIRST_DAY = "20200101"  # of names: a clock that was not set tells an earlier one
BEFORE_MS = 86_400_000  # that a clock may be set back while a file is written
MOST_BAD = 1000  # lines named of each file; the others are counted
MOST_THREADS = 100_000  # of an engine: each has a stand-in where its records are judged
MOST_BYTES = 64 << 20  # of names that rows hold together, and of what a file's records may refer to
ENGINE_BYTES = 64 << 10  # of an engine without operators, and thus a thousand engines a file
ENTRY_BYTES = 64  # of an operator, or a stream
MOST_SHARE = 1e6  # of an operator's output, that an edge takes
LONGEST_WORD = 1000  # characters of what is told anew with each row, but for names of queries
MOST_RUNS = 1000  # whose files are put together as one
MOST_LINES = 2_000_000  # of a file: their numbers are all in memory
MOST_PIECES = 100_000  # of a file's numbers: each is a row, which all later ingests read
TIME_BITS = records.LARGEST.bit_length()
LATEST = (1 << TIME_BITS) - 1
TYPES = {"STRING": pa.string(), "BIGINT": pa.int64(), "INT": pa.int32()}
SCHEMA = pa.schema([(name, TYPES[kind]) for name, kind in COLUMNS.items()])

# field of a record -> column
ARRAYS = {
    "tuples_in": "tuples_in",
    "tuples_out": "tuples_out",
    "cpu": "cpu_us",
    "wait": "wait_us",
    "busy": "busy_ms",
    "idle": "idle_ms",
    "full": "full_ms",
    "q": "queue",
    "qmax": "queue_max",
    "age": "age_ms",
    "lat": "latency_us",
    "verdict": "verdict",
}

Who = tuple[str, int, str]  # boot, run, machine
Piece = dict[str, str | int | None]  # of a run, as a row of the table `file`
OF_RECORD = ("policy", "backend", "source", "time", "target", "told", "met", "psi")
BY_QUERY = {"policy": "policy", "backend": "backend", "time": "time_us", "source": "time_source"}


def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: (path, content, time in ms) of files to rows of the wide schema.

    Those of small files go on together: what a batch of rows costs by itself is that of a file.
    """
    gathered: list[pa.RecordBatch] = []
    size = held = 0
    for batch in batches:
        for path, content, modified in zip(
            batch.column(0).to_pylist(), batch.column(1), batch.column(2).to_pylist(), strict=True
        ):
            for made in of_file(path, content.as_buffer().to_pybytes(), modified):
                gathered.append(made)
                size += made.num_rows
                held += made.nbytes
                if size >= ROWS or held >= MOST_BYTES:
                    yield _whole(gathered)
                    gathered, size, held = [], 0, 0
    if gathered:
        yield _whole(gathered)


def _whole(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


class _Rows:
    """Rows of one file, gathered by column; a record gives as many as it has operators."""

    def __init__(self, path: str) -> None:
        self.path, self.file = path, path.rpartition("/")[2]
        self.boot, self.run, self.machine = "", 0, ""  # of the last first line of a file
        self.last = -1  # number of the line before
        self.unread = 0  # lines since then that could not be read
        self.topologies: dict[str, tuple[int, dict[str, Any]]] = {}  # engine -> epoch, `_made`
        self._clear()

    def _clear(self) -> None:
        self.size = self.text = 0  # rows, and bytes of their names, about
        self._single: list[dict[str, Any]] = []
        self._records: list[tuple[records.Record, int, Who, dict[str, Any]]] = []

    def add(self, **row: Any) -> None:
        told = {"file": self.file, "source": self.path, "boot": self.boot, "run": self.run}
        self._single.append(told | row)
        self.size += 1
        self.text += sum(len(value) for value in row.values() if isinstance(value, str))

    @property
    def full(self) -> bool:
        return self.size >= ROWS or self.text >= MOST_BYTES

    def run_of(self, line: records.Line) -> tuple[str, int]:
        """Boot and run: numbers are those of a run."""
        return (line.boot, line.run) if isinstance(line, records.Start) else (self.boot, self.run)

    def follow(self, line: records.Line) -> None:
        """What does not go on where the line before it was may be of a run whose first line is
        missing, as of copies that were torn and put together.
        """
        lost = line.count if isinstance(line, records.Event) and line.what == "lost" else 0
        # What was lost before a file was begun is before its first line, too.
        follows = line.seq in (self.last + 1, self.last + 1 + lost)
        if not 0 <= line.seq - self.last - 1 <= lost + self.unread:
            self.topologies.clear()  # what it goes by is another run's, or may be
        if not isinstance(line, records.Start) and not follows:
            self.lose_run()
        self.last, self.unread = line.seq, 0

    def skip(self) -> None:
        """A line that cannot be read may have been a first line."""
        self.unread += 1
        self.lose_run()

    def lose_run(self) -> None:
        """Of which run lines are is not sure, up to the next first line of a file; most likely they
        are of that boot.
        """
        self.run = 0

    def refuse(self, line: records.Line) -> None:
        """What follows a begin is of a run that nobody knows then, and not of the one before."""
        if isinstance(line, records.Start):
            self.boot, self.run, self.machine = "", 0, ""
            self.topologies.clear()

    def go_by(self, line: records.Line) -> None:
        """Read what follows by this line, be it a repeated one."""
        if isinstance(line, records.Start):
            if self.run_of(line) != (self.boot, self.run):
                self.topologies.clear()  # files that were put together each explain themselves
            self.boot, self.run = line.boot, line.run
            self.machine = kind_of_machine(line.machine, line.cpus)
        elif isinstance(line, records.Topology):
            self.topologies[line.engine] = (line.epoch, _made(line))

    def take(self, line: records.Line) -> None:
        """The rows of a good line that is the first of its number."""
        if isinstance(line, records.Record):
            made = self.topologies[line.engine][1]
            who = self.boot, self.run, self.machine
            self._records.append((line, len(made["names"]), who, made))
            self.size += max(1, len(made["names"]))  # one of no rows is held, too
            self.text += made["text"] + ENTRY_BYTES * sum(
                len(getattr(line, name) or ()) for name in OF_RECORD
            )
        elif isinstance(line, records.Topology):
            self.text += self.topologies[line.engine][1]["bytes"]
            self.add(
                kind="topology",
                machine=self.machine,
                engine=line.engine,
                epoch=line.epoch,
                text=msgspec.json.encode(line).decode(),
                **_common(line),
            )
        elif isinstance(line, records.Event):
            self.add(
                kind="event",
                engine=line.engine,
                what=line.what,
                about=line.about,
                value=line.value,
                count=line.count,
                **_common(line),
            )

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self._single:
            columns = {
                name: pa.array([row.get(name) for row in self._single], SCHEMA.field(name).type)
                for name in SCHEMA.names
            }
            yield pa.RecordBatch.from_arrays(list(columns.values()), schema=SCHEMA)
        if self._records:
            yield self._operators()
        self._clear()

    def _operators(self) -> pa.RecordBatch:
        found = self._records
        needed = _judged(found)
        lines = [line for line, _, _, _ in found]
        counts = [n for _, n, _, _ in found]
        sizes = np.array(counts)
        total = int(sizes.sum())
        columns: dict[str, pa.Array] = {}

        def each(name: str, values: list[Any]) -> None:
            """One value a record."""
            kind = SCHEMA.field(name).type
            if len(set(values)) == 1:
                columns[name] = pa.repeat(pa.scalar(values[0], kind), total)
            else:
                columns[name] = pa.array(values, kind).take(
                    pa.array(np.repeat(np.arange(len(sizes)), sizes))
                )

        each("kind", ["operator"] * len(found))
        each("file", [self.file] * len(found))
        each("source", [self.path] * len(found))
        each("date", [_date(line.t) for line in lines])
        for name in ("node", "seq", "t", "d", "engine", "epoch"):
            each(name, list(map(attrgetter(name), lines)))
        for place, name in enumerate(("boot", "run", "machine")):
            each(name, [who[place] for _, _, who, _ in found])
        for place, name in enumerate(("psi_cpu", "psi_io", "psi_memory")):
            each(name, [line.psi[place] if len(line.psi) > place else None for line in lines])
        for field, name in ARRAYS.items():
            columns[name] = _array(field, lines, counts, SCHEMA.field(name).type)
        columns["needed"] = needed
        for name in ("query", "operator", "replica", "replicas"):
            columns[name] = pa.concat_arrays([made[name] for _, _, _, made in found])
        for field, name in BY_QUERY.items():
            of_each = (_by_query(getattr(r, field) or (), n, made) for r, n, _, made in found)
            columns[name] = pa.array(chain.from_iterable(of_each), SCHEMA.field(name).type)
        held = (_held_by(r.by, n, made["names"]) for r, n, _, made in found)
        columns["held_by"] = pa.array(chain.from_iterable(held), pa.string())
        for name in SCHEMA.names:
            if name not in columns:
                columns[name] = pa.nulls(total, SCHEMA.field(name).type)
        made = pa.RecordBatch.from_arrays([columns[n] for n in SCHEMA.names], schema=SCHEMA)
        # What runs on another node is told by its own.
        here = np.concatenate([of["here"] for _, _, _, of in found])
        return made if here.all() else made.filter(pa.array(here))


class _Seen:
    """The good lines of a file."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[str, int], set[int]] = {}  # boot, run -> and times, as one
        self.good = self.repeated = 0
        self._pieces = 0  # at most
        self._last: tuple[tuple[str, int], int] = ("", 0), -1

    def add(self, run: tuple[str, int], line: records.Line) -> bool:
        """Returns whether the line is the first of its number."""
        key = line.seq << TIME_BITS | line.t
        if key in (numbers := self.numbers.setdefault(run, set())):
            self.repeated += 1
            return False
        numbers.add(key)
        self.good += 1
        if run != self._last[0] or line.seq - self._last[1] not in (0, 1):
            self._pieces += 1
        self._last = run, line.seq
        return True

    def too_much(self) -> str | None:
        """Why no more is taken of the file, if so."""
        if self.good + self.repeated >= MOST_LINES:
            return f"after more than {MOST_LINES} lines"
        return f"after more than {MOST_PIECES} holes" if self._pieces >= MOST_PIECES else None


def _judged(found: Sequence[tuple[records.Record, int, Who, dict[str, Any]]]) -> pa.Array:
    """Give the records their verdicts; what each held operator needs, see `judge.needed`."""
    judged = [(record, made["topology"]) for record, _, _, made in found]
    judge.fill_in(judged)
    told = zip(judge.needed(judged), found, strict=True)
    each = (needed or [None] * n for needed, (_, n, _, _) in told)
    return pa.array(chain.from_iterable(each), SCHEMA.field("needed").type)


def _array(
    field: str, lines: Sequence[records.Record], counts: Sequence[int], kind: pa.DataType
) -> pa.Array:
    """A field with an entry for each operator of each record; null where a record has none."""
    arrays = list(map(attrgetter(field), lines))
    if not any(arrays):
        return pa.nulls(sum(counts), kind)
    if not all(arrays):
        arrays = [of or [None] * n for of, n in zip(arrays, counts, strict=True)]
    return pa.array(list(chain.from_iterable(arrays)), kind)


def _by_query(told: Sequence[Any], n: int, made: dict[str, Any]) -> Iterable[Any]:
    """For each of n operators what is told of its query, if something is of each query."""
    return map(told.__getitem__, made["query_of"]) if len(told) == made["queries"] else [None] * n


def _held_by(by: Sequence[int] | None, n: int, names: Sequence[str]) -> list[str | None]:
    """Who holds each of n operators."""
    return [names[at] if 0 <= at < n else None for at in by] if by else [None] * n


def of_file(path: str, data: bytes, modified: int | None = None) -> Iterator[pa.RecordBatch]:
    """All rows of one file, the last of which counts them (table `file`).

    path: its folder tells it from others of its name; what is in both counts once by what it says.
    """
    gathered = _Rows(path)
    named = records.FileName.parse(gathered.file)
    node = named.node if named else "unknown"
    day = _day_of(named) if named else "unknown"
    begun = 0 if named is None else _begun(named)
    first_line = True
    seen = _Seen()
    bad = 0

    def set_aside(line: int, why: str, text: str = "") -> None:
        nonlocal bad
        bad += 1
        if bad <= MOST_BAD:
            gathered.add(kind="bad", date=day, node=node, line=line, why=why, text=text)

    left = reading.lines_of(data)
    for found in left:
        if isinstance(found, reading.Bad):
            set_aside(found.line, found.why, found.text)
            gathered.skip()
            continue
        number, line = found
        if why := seen.too_much():
            set_aside(number, why)
            bad += sum(1 for _ in left)
            break
        if first_line and misplaced(line) is None:
            node, first_line = line.node, False
        gathered.follow(line)
        why = _wrong(line, node, gathered.topologies) or _misfit(line, begun, gathered, seen)
        if why:
            set_aside(number, why)
            gathered.refuse(line)
            continue
        gathered.go_by(line)
        if not seen.add(gathered.run_of(line), line):
            continue
        gathered.take(line)
        if gathered.full:
            yield from gathered.batches()
    date = _known_until(named, seen.numbers, modified or 0)
    told = {"size": len(data), "modified": modified, "bad": bad}
    yield from _summed(gathered, seen, {"kind": "file", "date": date, "node": node}, told)


def _misfit(line: records.Line, begun: int, gathered: _Rows, seen: _Seen) -> str | None:
    """Why a good line is not of this file; None = it is. begun: Unix time, ms."""
    begins = isinstance(line, records.Start) and gathered.run_of(line) not in seen.numbers
    if begins and len(seen.numbers) >= MOST_RUNS:
        return f"of more than {MOST_RUNS} runs"
    # Older recorders repeat a topology with the time at which it was first seen.
    if isinstance(line, records.Record | records.Event) and line.t < begun:
        return f"before its file was begun: time {line.t}"
    return None


def _summed(
    gathered: _Rows, seen: _Seen, of_each: Mapping[str, Any], told: Mapping[str, Any]
) -> Iterator[pa.RecordBatch]:
    """What is left, and a row for each piece of numbers; the last has what is told of the file."""
    piece: Piece = {}
    for following in _pieces(seen.numbers, (gathered.boot, gathered.run)):
        if piece:
            gathered.add(**of_each, **piece)
        if gathered.full:
            yield from gathered.batches()
        piece = following
    gathered.add(**of_each, **told, good=seen.good, repeated=seen.repeated, **piece)
    yield from gathered.batches()


def _pieces(seen: Mapping[tuple[str, int], set[int]], last: tuple[str, int]) -> Iterator[Piece]:
    """First and last numbers of each run's lines, without a hole between; those of the last run
    at the end, or one that is empty.
    """
    for run in (*(run for run in seen if run != last), last):
        numbers = sorted({key >> TIME_BITS for key in seen.get(run, ())})
        holes = [at for at, (a, b) in enumerate(pairwise(numbers), 1) if b > a + 1]
        for begin, end in pairwise((0, *holes, len(numbers))):
            first, of_last = (numbers[begin], numbers[end - 1]) if numbers else (None, None)
            yield {"boot": run[0], "run": run[1], "seq": first, "last_seq": of_last}


def _known_until(
    named: records.FileName | None, seen: Mapping[tuple[str, int], set[int]], modified: int
) -> str:
    """Day of a file: that of its last line, as numbers are known as long as a line counts, or when
    it was modified, as it is looked at as long.

    One of no day never expires: it would be taken for new again.
    """
    if named is None or named.start < FIRST_DAY:
        return "unknown"
    latest = max((key & LATEST for numbers in seen.values() for key in numbers), default=0)
    return max(_day_of(named), _date(max(latest, min(modified, LATEST_MS))))


def _wrong(
    line: records.Line, node: str, topologies: dict[str, tuple[int, dict[str, Any]]]
) -> str | None:
    """Why a line that can be read cannot be used."""
    if why := misplaced(line):
        return why
    if line.node != node:
        return f"of another node than the file: {line.node!r}"
    if isinstance(line, records.Start) and max(len(line.boot), len(line.machine)) > LONGEST_WORD:
        return f"a name of more than {LONGEST_WORD} characters"
    if isinstance(line, records.Topology):
        return _wrong_topology(line, topologies)
    if isinstance(line, records.Record):
        known = topologies.get(line.engine)
        if known is None or known[0] != line.epoch:
            return "the topology line that it belongs to is not in this file"
        n = len(known[1]["names"])
        for field in (*ARRAYS, "by"):
            values = getattr(line, field)
            if values is not None and len(values) != n:
                return f"{field} has {len(values)} entries for {n} operators"
        if max(map(len, (*line.policy, *line.backend, *line.source)), default=0) > LONGEST_WORD:
            return f"a name of more than {LONGEST_WORD} characters"
        return implausible(line, known[1]["threads"])
    return None


def _wrong_topology(
    line: records.Topology, topologies: dict[str, tuple[int, dict[str, Any]]]
) -> str | None:
    """topologies: of the file's engines up to here, which are kept for their records."""
    sizes = {len(line.ops), len(line.query_of)}
    sizes |= {len(column) for column in (line.replica, line.replicas, line.away) if column}
    if len(sizes) > 1:
        return "arrays of different lengths"
    if not all(0 <= query < len(line.queries) for query in line.query_of):
        return "an operator of no query"
    n = len(line.ops)
    if len(line.queries) > max(1, n):
        return "more queries than operators"
    if not all(0 <= a < n and 0 <= b < n for a, b, _ in line.edges):
        return "an edge of no operator"
    if not all(0 <= share <= MOST_SHARE for _, _, share in line.edges):
        return "an edge that takes less than nothing, or too much"
    if sum(max(1, k) for k in line.threads or [1] * n) > MOST_THREADS:
        return f"more than {MOST_THREADS} threads"
    others = sum(made["bytes"] for name, (_, made) in topologies.items() if name != line.engine)
    if others + _bytes(line) > MOST_BYTES:
        return f"with the file's other engines more than {MOST_BYTES >> 20} MB"
    return None


def _common(line: records.Line) -> dict[str, Any]:
    return {"date": _date(line.t), "node": line.node, "seq": line.seq, "t": line.t}


def _day_of(named: records.FileName) -> str:
    return f"{named.start[:4]}-{named.start[4:6]}-{named.start[6:8]}"


def _begun(named: records.FileName) -> int:
    """Unix time (ms) before which nothing in a file of this name happened; clocks may be set."""
    try:
        at = datetime.strptime(named.start, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return 0
    return round(at.timestamp() * 1e3) - BEFORE_MS


def _made(line: records.Topology) -> dict[str, Any]:
    """What all records of a topology have in common, as columns."""
    return {
        "bytes": _bytes(line),
        "text": _text(line),
        "names": line.ops,
        "threads": line.threads,
        "here": np.array(line.away or [0] * len(line.ops)) < 1,
        "topology": judge.topology_of(line),
        "query_of": line.query_of,
        "queries": len(line.queries),
        "query": pa.array([line.queries[q] for q in line.query_of], pa.string()),
        "operator": pa.array(line.ops, pa.string()),
        "replica": pa.array(line.replica or [0] * len(line.ops), pa.int32()),
        "replicas": pa.array(line.replicas or [1] * len(line.ops), pa.int32()),
    }


def _bytes(line: records.Topology) -> int:
    """What is kept of a topology takes so much memory, or some times as much."""
    arrays = line.queries, line.ops, line.edges, line.logical, line.logical_edges
    entries = sum(len(each) for each in arrays) + sum(map(len, line.logical_of))
    return ENGINE_BYTES + ENTRY_BYTES * entries + _text(line)


def _text(line: records.Topology) -> int:
    """Bytes of names in the rows of a record, at most: any operator may hold all others."""
    names = [len(name.encode()) for name in line.ops]
    queries = [len(name.encode()) for name in line.queries]
    of_each = len(line.engine.encode()) + max(names, default=0)
    return sum(names) + sum(queries[q] for q in line.query_of) + len(names) * of_each


def _date(t_ms: int) -> str:
    return _day(t_ms // DAY_MS)


@lru_cache(maxsize=1000)
def _day(number: int) -> str:
    return datetime.fromtimestamp(number * 86_400, UTC).strftime("%Y-%m-%d")
