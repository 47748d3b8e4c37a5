"""Flink's REST answers as a topology: what runs, what is fused, and along which edges.

Pure: from decoded answers to rows and edges; `drivers.flink` does the reading. A *vertex* of
Flink's job graph is a chain of logical operators that was fused; its *subtasks* are the physical
operators, one thread each.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from sched_ctl.errors import EngineError
from sched_ctl.model.topology import Edge, LogicalOperator

__all__ = [
    "SHOWN",
    "Config",
    "Job",
    "JobOverview",
    "Jobs",
    "Plan",
    "Row",
    "TaskManager",
    "TaskManagers",
    "Vertex",
    "VertexDetail",
    "chain",
    "plan",
    "query_names",
]

# What a topology may hold before we call the engine hostile.
ROW_LIMIT = 20_000
EDGE_LIMIT = 200_000
CELL_LIMIT = 200_000  # operators of chains, each in each of its subtasks
UNASSIGNED = "(unassigned)"  # where REST names a TaskManager: no slot has been found yet
SHOWN = 200  # characters of a name that are shown, also of each subtask's
NAME_LIMIT = 4096  # characters of a job's or a vertex's name
# Ship strategies after which every consumer of a vertex gets the same number of tuples, so that
# its own queue follows from the producers' counts.
EVEN = {"FORWARD", "REBALANCE", "BROADCAST", "RESCALE"}


class Config(msgspec.Struct, frozen=True, rename="kebab"):
    """/config. refresh_interval: ms for which answers about a job may come from a cache."""

    flink_version: str
    refresh_interval: int = 3000


class JobOverview(msgspec.Struct, frozen=True, rename="kebab"):
    """One entry of /jobs/overview. Equal entries mean that nothing about the job has changed."""

    jid: str
    name: str
    state: str
    start_time: int = 0
    last_modification: int = 0
    tasks: dict[str, int] = {}


class Jobs(msgspec.Struct, frozen=True):
    jobs: list[JobOverview]

    @property
    def live(self) -> list[JobOverview]:
        """Those that have threads, or will soon. Others are no queries (yet, or any more)."""
        return [job for job in self.jobs if job.state in ("RUNNING", "RESTARTING", "FAILING")]


class Vertex(msgspec.Struct, frozen=True):
    id: str
    name: str
    parallelism: int


class Input(msgspec.Struct, frozen=True):
    id: str
    ship_strategy: str = "HASH"


class Node(msgspec.Struct, frozen=True):
    id: str
    inputs: list[Input] = []


class Nodes(msgspec.Struct, frozen=True):
    nodes: list[Node] = []


class Job(msgspec.Struct, frozen=True):
    """/jobs/J"""

    jid: str
    name: str
    vertices: list[Vertex]
    plan: Nodes = Nodes()


class Subtask(msgspec.Struct, frozen=True, rename="kebab"):
    subtask: int
    attempt: int
    status: str
    taskmanager_id: str = ""

    @property
    def where(self) -> str:
        """Which TaskManager it was given to; "" before it was given to any."""
        return "" if self.taskmanager_id == UNASSIGNED else self.taskmanager_id


class VertexDetail(msgspec.Struct, frozen=True):
    """/jobs/J/vertices/V"""

    subtasks: list[Subtask]


class TaskManager(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    path: str
    data_port: int

    @property
    def rpc_host(self) -> str:
        return self._address[0]

    @property
    def rpc_port(self) -> int | None:
        return self._address[1]

    @property
    def _address(self) -> tuple[str, int | None]:
        match = re.search(r"@([^/@]*):(\d+)/", self.path)
        return (match[1], int(match[2])) if match else ("", None)


class TaskManagers(msgspec.Struct, frozen=True):
    taskmanagers: list[TaskManager]


@dataclass(frozen=True, slots=True)
class Row:
    """A subtask: where it stands in the engine, and what its thread is called."""

    query: str
    job: str
    vertex: str
    task: str  # name of the vertex
    label: str  # the same as it is shown, made unique in its query
    index: int
    parallelism: int
    attempt: int
    task_manager: str
    running: bool
    logical: tuple[str, ...]

    @property
    def name(self) -> str:
        if self.parallelism == 1:
            return self.label
        return f"{self.label} ({self.index + 1}/{self.parallelism})"

    @property
    def thread_key(self) -> tuple[str, int, int, int]:
        """What the name of its thread says, see `drivers.threadnames`."""
        return (self.task, self.index + 1, self.parallelism, self.attempt)


@dataclass(frozen=True)
class Plan:
    """All jobs as rows.

    chains: vertex (job, id) -> its logical operators, as rows of `logical` and the names under
    which Flink reports them. ends: vertex -> places in its chain of the operators that feed other
    vertices. source, sink: per row, whether the vertex has no input or no output inside Flink.
    even: per row, whether all its inputs spread tuples evenly over the vertex. outputs: per row,
    how many edges leave its vertex; two may lead to the same one.
    """

    rows: tuple[Row, ...]
    edges: tuple[Edge, ...]
    logical: tuple[LogicalOperator, ...]
    logical_edges: tuple[Edge, ...]
    source: tuple[bool, ...]
    sink: tuple[bool, ...]
    even: tuple[bool, ...]
    outputs: tuple[int, ...]
    chains: Mapping[tuple[str, str], tuple[tuple[int, str], ...]]
    ends: Mapping[tuple[str, str], tuple[int, ...]]
    notes: tuple[str, ...]


def query_names(jobs: Sequence[Job]) -> dict[str, str]:
    """Job id -> query name: the job's name, with its id where several jobs have the same."""
    names = {job.jid: job.name[:NAME_LIMIT] for job in jobs}
    if len(names) < len(jobs):
        raise EngineError("Flink reports two jobs with one id")
    count = Counter(names.values())
    return {jid: name if count[name] == 1 else f"{name}#{jid[:8]}" for jid, name in names.items()}


def chain(name: str) -> tuple[list[str], list[tuple[int, int]]]:
    """Operators of a vertex by its name, upstream first, and the edges between them.

    Flink writes `A -> B -> C` for a chain and `A -> (B -> C, D)` for one that forks
    (StreamingJobGraphGenerator.createChainedName). Names that hold unbalanced parentheses are
    kept as they are.
    """
    name = re.sub(r"^\[vertex-\d+\]", "", name)
    nesting = _Nesting(name)
    names: list[str] = []
    edges: list[tuple[int, int]] = []
    work: list[tuple[int, int, int | None]] = [(0, len(name), None)]
    while work:
        start, end, parent = work.pop()
        arrow = nesting.first(" -> ", start, end)
        names.append(name[start : end if arrow is None else arrow])
        here = len(names) - 1
        if parent is not None:
            edges.append((parent, here))
        if arrow is None:
            continue
        start = arrow + len(" -> ")
        if nesting.closes.get(start) == end - 1:
            branches: list[tuple[int, int, int | None]] = []
            start += 1
            while start < end - 1:
                comma = nesting.first(", ", start, end - 1)
                branches.append((start, end - 1 if comma is None else comma, here))
                start = end if comma is None else comma + len(", ")
            work.extend(reversed(branches))
        else:
            work.append((start, end, here))
    return names, edges


class _Nesting:
    """Where a name's parentheses close, and its separators by how deep they lie.

    In one look: a name is an engine's word, and may nest as deep as it is long.
    """

    def __init__(self, name: str) -> None:
        self.closes: dict[int, int] = {}
        self._depth: list[int] = []  # before each character
        self._places: dict[tuple[str, int], list[int]] = {}
        opened: list[int] = []
        depth = 0
        for i, letter in enumerate(name):
            self._depth.append(depth)
            if letter == "(":
                opened.append(i)
                depth += 1
            elif letter == ")":
                if opened:
                    self.closes[opened.pop()] = i
                depth -= 1
            else:
                for separator in (" -> ", ", "):
                    if name.startswith(separator, i):
                        self._places.setdefault((separator, depth), []).append(i)

    def first(self, separator: str, start: int, end: int) -> int | None:
        """Where it first stands between start and end, outside of parentheses that open there."""
        if start >= end:
            return None
        places = self._places.get((separator, self._depth[start]), [])
        found = bisect_left(places, start)
        if found < len(places) and places[found] + len(separator) <= end:
            return places[found]
        return None


def plan(jobs: Sequence[Job], details: Mapping[tuple[str, str], VertexDetail]) -> Plan:
    """The rows and edges of all jobs. details: (job, vertex) -> its subtasks.

    Raises EngineError if an answer contradicts itself or is too large.
    """
    size = sum(max(vertex.parallelism, 0) for job in jobs for vertex in job.vertices)
    if size > ROW_LIMIT:
        raise EngineError(f"Flink reports {size} subtasks; at most {ROW_LIMIT} are handled")
    built = _Builder()
    queries = query_names(jobs)
    for job in jobs:
        built.add(job, queries[job.jid], details)
    return built.done()


@dataclass(frozen=True)
class _Placed:
    """A vertex and where it stands: its first row, and of `logical` its head and its leaves."""

    vertex: Vertex
    row: int
    head: int
    leaves: tuple[int, ...]


def _numbered(name: str, used: Counter[str]) -> str:
    """A name with a number from its second use on."""
    used[name] += 1
    return name if used[name] == 1 else f"{name} [{used[name]}]"


class _Builder:
    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.edges: list[Edge] = []
        self.logical: list[LogicalOperator] = []
        self.logical_edges: list[Edge] = []
        self.source: list[bool] = []
        self.sink: list[bool] = []
        self.even: list[bool] = []
        self.outputs: list[int] = []
        self.chains: dict[tuple[str, str], tuple[tuple[int, str], ...]] = {}
        self.ends: dict[tuple[str, str], tuple[int, ...]] = {}
        self.notes: list[str] = []
        self.cells = 0

    def add(self, job: Job, query: str, details: Mapping[tuple[str, str], VertexDetail]) -> None:
        known = {vertex.id for vertex in job.vertices}
        if len(known) < len(job.vertices):
            raise EngineError(f"Flink reports two vertices of job {job.jid[:40]} with one id")
        inputs = {
            node.id: [source for source in node.inputs if source.id in known]
            for node in job.plan.nodes
        }
        feeds = Counter(source.id for sources in inputs.values() for source in sources)
        labels: Counter[str] = Counter()
        used: Counter[str] = Counter()
        placed: dict[str, _Placed] = {}
        for vertex in job.vertices:
            detail = details.get((job.jid, vertex.id))
            if detail is None:
                raise EngineError(f"Flink does not say how job {job.jid[:40]} runs")
            names = self._add_chain(job, query, vertex, used, placed)
            label = _numbered(vertex.name[:SHOWN], labels)
            self._add_rows(job, query, vertex, detail, label, names)
            sources, count = inputs.get(vertex.id, []), vertex.parallelism
            self.source += [not sources] * count
            self.sink += [not feeds[vertex.id]] * count
            self.outputs += [feeds[vertex.id]] * count
            self.even += [all(s.ship_strategy in EVEN for s in sources)] * count
        for vertex in job.vertices:
            for source in inputs.get(vertex.id, []):
                self._feed(query, placed[source.id], placed[vertex.id], source, feeds[source.id])

    def _add_chain(
        self,
        job: Job,
        query: str,
        vertex: Vertex,
        used: Counter[str],
        placed: dict[str, "_Placed"],
    ) -> tuple[str, ...]:
        """The logical operators that a vertex is fused from. Returns their names in the query."""
        if len(vertex.name) > NAME_LIMIT:
            self.notes.append(
                f"{query}: {vertex.name[:40]!r}... has a name of {len(vertex.name)} "
                f"characters, of which {NAME_LIMIT} are looked at: it is left alone"
            )
        names, links = chain(vertex.name[:NAME_LIMIT])
        self.cells += len(names) * max(1, vertex.parallelism)
        if self.cells > CELL_LIMIT:
            raise EngineError(f"Flink reports more than {CELL_LIMIT} operators in all subtasks")
        unique = tuple(_numbered(name, used) for name in names)
        base = len(self.logical)
        self.logical += [LogicalOperator(query, name) for name in unique]
        self.chains[job.jid, vertex.id] = tuple(
            (base + place, name) for place, name in enumerate(names)
        )
        self.logical_edges += [Edge(base + a, base + b) for a, b in links]
        leaves = sorted(set(range(len(names))) - {a for a, _ in links})
        # A sink at the end of a branch delivers, and feeds nobody.
        feeding = [leaf for leaf in leaves if not names[leaf].endswith((": Writer", "ommitter"))]
        leaves = feeding or leaves
        self.ends[job.jid, vertex.id] = tuple(leaves)
        placed[vertex.id] = _Placed(
            vertex, len(self.rows), base, tuple(base + leaf for leaf in leaves)
        )
        return unique

    def _add_rows(
        self,
        job: Job,
        query: str,
        vertex: Vertex,
        detail: VertexDetail,
        label: str,
        names: tuple[str, ...],
    ) -> None:
        """The subtasks of a vertex, also those that do not run (yet)."""
        subtasks = {s.subtask: s for s in detail.subtasks}
        for index in range(vertex.parallelism):
            subtask = subtasks.get(index)
            self.rows.append(
                Row(
                    query=query,
                    job=job.jid,
                    vertex=vertex.id,
                    task=vertex.name,
                    label=label,
                    index=index,
                    parallelism=vertex.parallelism,
                    attempt=subtask.attempt if subtask else 0,
                    task_manager=subtask.where if subtask else "",
                    running=subtask is not None and subtask.status == "RUNNING",
                    logical=names,
                )
            )

    def _feed(
        self, query: str, source: "_Placed", to: "_Placed", by: Input, consumers: int
    ) -> None:
        """One vertex feeds another. consumers: how many inputs the source has an output for."""
        count = len(source.leaves)
        if len(self.logical_edges) + count > EDGE_LIMIT:
            raise EngineError(f"Flink reports more than {EDGE_LIMIT} streams")
        self._connect(
            (source.row, source.vertex.parallelism),
            (to.row, to.vertex.parallelism),
            by.ship_strategy,
            1 / min(count, consumers),
        )
        self.logical_edges += [Edge(leaf, to.head, 1 / count) for leaf in source.leaves]
        if count > 1:
            self.notes.append(
                f"{query}: Flink does not tell which operator of {source.vertex.name[:SHOWN]!r} "
                f"feeds {to.vertex.name[:SHOWN]!r}; each is taken to give an equal part"
            )

    def _connect(
        self, producers: tuple[int, int], consumers: tuple[int, int], strategy: str, part: float
    ) -> None:
        """Edges from `(first row, count)` to `(first row, count)`. part: of all that is sent."""
        a, m = producers
        b, n = consumers
        one_to_one = strategy in ("FORWARD", "RESCALE") and min(m, n) > 0
        if len(self.edges) + (max(m, n) if one_to_one else m * n) > EDGE_LIMIT:
            raise EngineError(f"Flink reports more than {EDGE_LIMIT} streams")
        if one_to_one:
            if m >= n:
                pairs = [(i, i * n // m) for i in range(m)]
            else:
                pairs = [(j * m // n, j) for j in range(n)]
            fan_out = Counter(i for i, _ in pairs)
            self.edges += [Edge(a + i, b + j, part / fan_out[i]) for i, j in pairs]
        else:
            share = part if strategy == "BROADCAST" else part / max(n, 1)
            self.edges += [Edge(a + i, b + j, share) for i in range(m) for j in range(n)]

    def done(self) -> Plan:
        return Plan(
            rows=tuple(self.rows),
            edges=tuple(self.edges),
            logical=tuple(self.logical),
            logical_edges=tuple(self.logical_edges),
            source=tuple(self.source),
            sink=tuple(self.sink),
            even=tuple(self.even),
            outputs=tuple(self.outputs),
            chains=self.chains,
            ends=self.ends,
            notes=tuple(dict.fromkeys(self.notes)),
        )
