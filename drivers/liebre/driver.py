"""One Java process that runs Liebre queries, found by the metrics that it writes or sends.

Liebre is a library: the main class is the user's. A thread is called exactly as its operator, and
nothing else marks it, so operators are the names in the metrics, and all other threads are left
alone. Its own times (EXEC) include the wait for input; costs come from the kernel.
"""

import re
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType

import numpy as np

from sched_ctl.drivers import DriverKind, Target
from sched_ctl.drivers.deadlines import time_left
from sched_ctl.drivers.jvm import JavaProcess
from sched_ctl.drivers.liebre.counts import CountFile, by_prefix, open_files, taken_apart
from sched_ctl.drivers.sources.graphite import DEFAULT_PORT, SILENT_S, Inbox, Series, as_sent
from sched_ctl.errors import EngineError, UserError
from sched_ctl.kernel import hotspot, procfs
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

__all__ = ["LiebreDriver", "connect", "find", "kind"]

PROVIDES = frozenset({"tuples_in", "tuples_out", "queue_size"})
ATTACH_S = 5.0
LOOK_EVERY_S = 5.0  # for new files and series
LISTEN_EVERY_S = 10.0
FIRST_S = 15.0
BACKOFF_S = 0.02  # twice its longest sleep, by its source: streams sleep 1 to 10 ms
ENOUGH = 500  # tuples from which the shares of a producer's streams are taken from counts
STREAM_LIMIT = 10_000  # who shares one has it with each at its other end
LIBRARY = "liebre"
JAVA = re.compile(r"(?:^|/)java$")


def find() -> list[Target]:
    """Java processes with Liebre on their class path, or with its metric files open."""
    found = []
    for pid in procfs.pids():
        words = procfs.command_line(pid)
        # By its name first: what else is mapped takes a hundred times as long to see.
        if not words or not JAVA.search(words[0]) or not hotspot.is_hotspot(pid):
            continue
        on_path = any(
            LIBRARY in jar.rpartition("/")[2].lower()
            for word in words
            for jar in word.split(":")
            if jar.endswith(".jar")
        )
        if on_path or open_files(pid):
            found.append(Target("liebre", str(pid), pid))
    return found


def connect(target: Target) -> "LiebreDriver":
    """Follow process PID. Raises EngineError if there is none, UserError for another address."""
    if not target.address.isdecimal():
        raise UserError(
            f"{target.address!r} is no address of a Liebre query",
            "give the id of its process: --engine liebre:PID",
        )
    pid = int(target.address)
    born, uid = procfs.stat(pid), procfs.effective_uid(pid)
    if born is None or uid is None:
        raise EngineError(f"{target.engine}: there is no such process")
    return LiebreDriver(replace(target, pid=pid), born.start_time, uid)


@dataclass(frozen=True)
class _Stream:
    """entered, left: what counts tuples at its two ends, if it is known.

    writers, readers: that share it, of whom these are two. Each reader takes all tuples.
    """

    producer: str
    consumer: str
    entered: "CountFile | Series | None"
    left: "CountFile | Series | None"
    writers: int = field(default=1, kw_only=True)
    readers: int = field(default=1, kw_only=True)

    def counts(self, epoch_s: float, end_s: float) -> tuple[float, float]:
        """What the one gave to the other, and what that took of it."""
        entered = _count(self.entered, epoch_s, end_s) / self.writers
        return entered, _count(self.left, epoch_s, end_s) / (self.writers * self.readers)

    @property
    def whole(self) -> bool:
        """Whether both ends were counted from the query's start, or from the same moment on."""
        ends = (self.entered, self.left)
        return all(isinstance(e, Series) or (e is not None and e.whole) for e in ends)


def _count(end: "CountFile | Series | None", epoch_s: float, end_s: float) -> float:
    if end is None:
        return float("nan")
    return end.total if isinstance(end, Series) else float(end.read(epoch_s, end_s))


class LiebreDriver:
    """The queries of one process; they are one graph for us."""

    provides = PROVIDES

    def __init__(self, target: Target, start_time: int, uid: int) -> None:
        assert target.pid is not None
        self.target = target
        self._uid = uid
        self._process = JavaProcess(target.pid, start_time, "liebre")
        self._files: dict[tuple[str, str], CountFile] = {}
        self._inbox: Inbox | None = None
        self._no_inbox = ""
        self._next_look = self._next_listen = 0.0
        self._since_s = time.monotonic()
        self._streams: tuple[_Stream, ...] = ()
        self._operators: tuple[tuple[str, Thread], ...] = ()
        self._unclear: list[str] = []
        self._mixed = False  # whether a prefix has operators of ours, and others
        self._series: Mapping[tuple[str, str], Series] = {}
        self._afresh = False
        self._shared = False  # whether shares were taken from counts
        self._topology: Topology | None = None

    @property
    def counts_afresh(self) -> bool:
        """A reporter tells increases, and of a long file we read the end. It stays so: the CPU time
        of all threads would jump.
        """
        ends = (end for stream in self._streams for end in (stream.entered, stream.left))
        self._afresh = self._afresh or any(
            isinstance(end, Series) or (end is not None and not end.whole) for end in ends
        )
        return self._afresh

    @property
    def waiting(self) -> bool:
        """Whether its first metrics are still on their way, from a reporter."""
        young = time.monotonic() - self._since_s < FIRST_S
        return young and not self._streams and self._inbox is not None

    def poll(self, timeout_s: float) -> Snapshot:
        """Read the process's metrics once. Raises EngineError."""
        deadline = time.monotonic() + timeout_s
        if not self._process.alive:
            raise EngineError(f"{self.target.engine}: its process has ended")
        now_s = time.monotonic()
        renamed = self._process.changed(wanted=not self._operators)
        if renamed:
            self._process.look(min(ATTACH_S, time_left(deadline)))
        if self._inbox is None and now_s >= self._next_listen:
            self._listen()
        if renamed or now_s >= self._next_look or (self._inbox and self._inbox.changed):
            self._next_look = now_s + LOOK_EVERY_S
            self._look()
        entered, left = self._count(deadline)
        if self._topology is None or (not self._shared and self._may_share(entered)):
            self._build(entered)
        assert self._topology is not None
        columns = self._columns(entered, left)
        return Snapshot(self._topology, time.monotonic(), MappingProxyType(columns))

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files = {}
        if self._inbox is not None:
            self._inbox.close()
            self._inbox = None

    def _listen(self) -> None:
        self._next_listen = time.monotonic() + LISTEN_EVERY_S
        try:
            self._inbox = Inbox(self._uid, DEFAULT_PORT, self._process.pid)
            self._no_inbox = ""
        except EngineError as error:
            self._no_inbox = error.message

    def _look(self) -> None:
        """Which operators and streams there are."""
        pid = self._process.pid
        files = open_files(pid)
        self._follow_files({key: fd for key, fd in files.items() if key[1] in ("IN", "OUT")})
        threads = [*self._process.names, *self._process.others]
        called = Counter(thread.name for thread in threads)
        # Files have names as they are, a reporter sends some without their spaces.
        real = {as_sent(name): name for name in called} | {name: name for name in called}
        mixed = self._mixed
        series = self._of_ours(real)
        if self._mixed != mixed:
            self._topology = None  # its notes
        ids = files.keys() | series.keys()
        told = {name for name, metric in ids if metric in ("EXEC", "RATE") and name in real}
        mine = {real[name] for name in told}
        counted = {name for name, metric in ids if metric in ("IN", "OUT")}
        ends, self._unclear = taken_apart(counted, real, told or real)
        found: dict[tuple[str, str], CountFile | Series] = {**series, **self._files}
        between = (
            _Stream(
                real[producer],
                real[consumer],
                found.get((stream, "IN")),
                found.get((stream, "OUT")),
                writers=len(writers),
                readers=len(readers),
            )
            for stream, (writers, readers) in sorted(ends.items())
            for producer in writers
            for consumer in readers
        )
        streams = tuple(islice(between, STREAM_LIMIT))
        mine |= {name for stream in streams for name in (stream.producer, stream.consumer)}
        operators = tuple(
            sorted((t.name, t) for t in threads if t.name in mine and called[t.name] == 1)
        )
        if (operators, streams) != (self._operators, self._streams):
            self._operators, self._streams = operators, streams
            self._topology = None
            self._shared = False

    def _follow_files(self, found: Mapping[tuple[str, str], int]) -> None:
        """found: descriptors of the process. A query that starts again begins its files anew."""
        pid = self._process.pid
        for key, file in list(self._files.items()):
            if key not in found or not file.follows(pid, found[key]):
                self._files.pop(key).close()
        for key in found.keys() - self._files.keys():
            if (opened := CountFile.of(pid, found[key])) is not None:
                self._files[key] = opened

    def _of_ours(self, called: Collection[str]) -> Mapping[tuple[str, str], Series]:
        """The series of the prefix whose operators are this process's threads."""
        if self._inbox is None:
            return {}
        fitting = []
        mixed = False
        for series in by_prefix(self._inbox.series()).values():
            # What was sent long before the rest is of operators that have gone.
            last_s = max((one.received_s for one in series.values()), default=0.0)
            sent = {k: one for k, one in series.items() if last_s - one.received_s <= SILENT_S}
            names = {name for name, metric in sent if metric in ("EXEC", "RATE")}
            if names and names.issubset(called):
                fitting.append(sent)
            mixed |= not names.isdisjoint(called)
        self._mixed = mixed and not fitting
        return fitting[0] if len(fitting) == 1 else {}

    def _count(self, deadline: float) -> tuple[Array, Array]:
        """Of each stream; none while files are behind, whose counts would leap."""
        epoch_s = time.time()
        pairs = [stream.counts(epoch_s, deadline) for stream in self._streams]
        entered, left = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
        ends = (end for stream in self._streams for end in (stream.entered, stream.left))
        if any(isinstance(end, CountFile) and end.behind for end in ends):
            return np.full_like(entered, np.nan), np.full_like(left, np.nan)
        return entered, left

    def _may_share(self, entered: Array) -> bool:
        return bool(len(entered)) and bool(np.nansum(entered) >= ENOUGH * len(entered))

    def _build(self, entered: Array) -> None:
        names = [name for name, _ in self._operators]
        row = {name: place for place, name in enumerate(names)}
        self._shared = self._may_share(entered)
        sent = Counter[str]()
        for stream, count in zip(self._streams, entered.tolist(), strict=True):
            sent[stream.producer] += int(count) if self._shared and count > 0 else 1
        edges = []
        for stream, count in zip(self._streams, entered.tolist(), strict=True):
            if stream.producer in row and stream.consumer in row:
                part = count if self._shared and count > 0 else 1.0
                share = min(1.0, max(1e-6, part / sent[stream.producer]))
                edges.append(Edge(row[stream.producer], row[stream.consumer], share))
        query = f"process {self._process.pid}"
        self._topology = Topology(
            engine=self.target.engine,
            operators=tuple(
                PhysicalOperator(query, name, (name,), threads=(thread,))
                for name, thread in self._operators
            ),
            edges=tuple(edges),
            logical=tuple(LogicalOperator(query, name) for name in names),
            logical_edges=tuple(edges),
            helpers=tuple(
                HelperThread(thread, said.role)
                for thread, said in self._process.names.items()
                if thread.name not in row
            ),
            notes=tuple(self._notes()),
            backoff_s=BACKOFF_S,
        )

    def _notes(self) -> Sequence[str]:
        notes = []
        if self._process.trouble:
            notes.append(self._process.trouble)
        if self._mixed and not self._streams:
            notes.append("several programs send under one prefix: give each its own")
        elif not self._streams:
            notes.append(
                "no metrics of this process are known: its program must ask for file metrics, or "
                "for Dropwizard's with a Graphite reporter; see Liebre in docs/engines.md"
            )
            if self._no_inbox:
                notes.append(self._no_inbox)
            if self._inbox is not None and self._inbox.untold:
                notes.append(self._inbox.untold)
        elif self._files:
            notes.append("queues are as they were two seconds ago (file metrics)")
        notes += [
            f"stream {stream!r} can be read in several ways and is left out: rename its operators"
            for stream in self._unclear
        ]
        return notes

    def _columns(self, entered: Array, left: Array) -> dict[str, Array]:
        """Columns over the operators. An operator has what its streams have together."""
        n = len(self._operators)
        row = {name: place for place, (name, _) in enumerate(self._operators)}
        taken, given, queue = np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan)

        def add(column: Array, name: str, value: float) -> None:
            if name in row and np.isfinite(value):
                column[row[name]] = np.nan_to_num(column[row[name]]) + value

        for stream, into, out in zip(self._streams, entered, left, strict=True):
            add(taken, stream.consumer, out)
            add(given, stream.producer, into)
            if stream.whole:
                add(queue, stream.consumer, np.maximum(0.0, into - out))
        return {"tuples_in": taken, "tuples_out": given, "queue_size": queue}


kind = DriverKind("liebre", find, connect, of_processes=True)
