"""Who runs what: an application's operators and helper threads.

In continuous and in real-time mode a query's tasks have no end, or one that is many seconds away,
and all run at once, each on a thread: so a task is an operator. In micro-batches the threads of a
pool change task many times a second, faster than anybody could follow, so all of an executor's
pool is one operator, with its Python workers.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field

from sched_ctl.drivers.spark.answers import Job, Query, stages
from sched_ctl.drivers.threadnames import OPERATOR, ThreadName
from sched_ctl.model.topology import (
    PYTHON,
    Edge,
    HelperThread,
    LogicalOperator,
    PhysicalOperator,
    Thread,
)

__all__ = ["POOL", "Here", "Plan", "names_of", "plan", "several"]

POOL = "tasks"  # of micro-batches
MOST_OPERATORS = 20_000
EDGE_LIMIT = 200_000
CUT = "there are more edges than are looked at: some operators seem to have no output"


@dataclass(frozen=True)
class Here:
    """A process of the application on this machine. executor: "" for a driver that is none."""

    pid: int
    executor: str
    names: Mapping[Thread, ThreadName]
    workers: tuple[Thread, ...] = ()
    trouble: str = ""


@dataclass(frozen=True)
class Plan:
    """source: of each operator, the runs whose rows it takes in, and its part of them."""

    operators: tuple[PhysicalOperator, ...]
    edges: tuple[Edge, ...]
    logical: tuple[LogicalOperator, ...]
    logical_edges: tuple[Edge, ...]
    helpers: tuple[HelperThread, ...]
    notes: tuple[str, ...]
    source: tuple[tuple[tuple[str, ...], float], ...]
    pools: tuple[bool, ...]  # of each operator, whether it is a pool
    shape: Mapping[tuple[str, int], int]  # for the next plan


def names_of(application: str, queries: Collection[Query]) -> Mapping[str, str]:
    """Run -> what the query is called: its name, else the application's; told apart by its id."""
    plain = {query.run: query.name or application for query in queries}
    often = Counter(plain.values())
    return {
        query.run: plain[query.run]
        if often[plain[query.run]] == 1
        else f"{plain[query.run]}#{query.id[:8]}"
        for query in queries
    }


def plan(
    application: str,
    queries: Collection[Query],
    steady: Set[str],
    jobs: Sequence[Job],
    here: Sequence[Here],
    executors: int,
    shape: Mapping[tuple[str, int], int],
) -> Plan:
    """queries: all that are active. steady: runs whose tasks are operators. executors: of the
    application, wherever they are. shape: how many tasks each run's stage had in batches before,
    by its place in the job: between two batches an operator has no thread, and stays.
    """
    called = names_of(application, queries)
    batched = sorted(run for run in called if run not in steady)
    found = _found(called, bool(batched), steady, jobs, here)
    tasks_of = {key: count for key, count in shape.items() if key[0] in steady & called.keys()}
    for run, place, partition in found.threads:
        tasks_of[run, place] = max(tasks_of.get((run, place), 0), partition + 1)
    made = _Operators()
    made.add_tasks(called, tasks_of, found.threads)
    shared = called[batched[0]] if len(batched) == 1 else application
    if batched:
        made.add_pools(shared, batched, found.pools, executors)
    else:
        found.helpers += [
            (thread, "idle", None) for pool in found.pools.values() for thread in pool
        ]
    edges, logical, logical_edges, cut = _edges(made.operators)
    notes = _notes(called, batched, shared, jobs, steady, here)
    if cut:
        notes.append(f"{', '.join(cut[:10])}: {CUT}")
    return Plan(
        operators=tuple(made.operators),
        edges=edges,
        logical=logical,
        logical_edges=logical_edges,
        helpers=tuple(
            HelperThread(thread, role, made.row(serves)) for thread, role, serves in found.helpers
        ),
        notes=tuple(notes),
        source=tuple(made.source),
        pools=tuple(operator.logical == (POOL,) for operator in made.operators),
        shape=tasks_of,
    )


Task = tuple[str, int, int]  # run, place of its stage in the job, partition


@dataclass
class _Found:
    """What threads do. helpers: with their role, and the task or the run that they serve."""

    threads: dict[Task, list[Thread]] = field(default_factory=lambda: defaultdict(list))
    pools: dict[str, list[Thread]] = field(default_factory=dict)  # by executor
    helpers: list[tuple[Thread, str, Task | str | None]] = field(default_factory=list)


def _found(
    called: Mapping[str, str],
    batched: bool,
    steady: Set[str],
    jobs: Sequence[Job],
    here: Sequence[Here],
) -> _Found:
    """Threads by what their names say. batched: whether there are queries in micro-batches."""
    found = _Found()
    stage_of = {
        stage: (job.group, place)
        for stage, (job, place) in stages(list(jobs)).items()
        if job.group in steady and job.group in called
    }
    only = next(iter(called)) if len(called) == 1 else None
    for process in here:
        pool = found.pools.setdefault(process.executor, []) if process.executor else []
        for thread, said in process.names.items():
            run = said.parts.get("run")
            group, place = None, 0
            if said.role == OPERATOR and "stage" in said.parts:
                group, place = stage_of.get(said.number("stage"), (None, 0))
            if group is not None:
                found.threads[group, place, said.number("partition")].append(thread)
            elif said.role in (OPERATOR, "idle"):
                pool.append(thread)
            elif said.role == "fetcher" and run is not None and run in called:
                found.helpers.append((thread, said.role, (run, 0, said.number("partition"))))
            else:
                found.helpers.append((thread, said.role, run if run in called else None))
        if batched and process.executor:
            pool.extend(process.workers)
        else:
            found.helpers.extend((thread, PYTHON, only) for thread in process.workers)
    return found


@dataclass
class _Operators:
    """Operators as they are made. source: see `Plan`."""

    operators: list[PhysicalOperator] = field(default_factory=list)
    source: list[tuple[tuple[str, ...], float]] = field(default_factory=list)
    row_of: dict[Task, int] = field(default_factory=dict)
    last_of: dict[str, int] = field(default_factory=dict)  # run -> the last of its tasks' rows

    def add_tasks(
        self,
        called: Mapping[str, str],
        tasks_of: Mapping[tuple[str, int], int],
        threads: Mapping[Task, Sequence[Thread]],
    ) -> None:
        """An operator a task, `MOST_OPERATORS` at most. tasks_of: by run and place of the stage."""
        stages_in_order = sorted(tasks_of.items(), key=lambda item: (called[item[0][0]], *item))
        for (run, place), count in stages_in_order:
            name = f"stage {place + 1}"
            for partition in range(min(count, MOST_OPERATORS - len(self.operators))):
                key = (run, place, partition)
                self.row_of[key] = self.last_of[run] = len(self.operators)
                self.operators.append(
                    PhysicalOperator(
                        called[run],
                        f"{name} ({partition + 1}/{count})" if count > 1 else name,
                        (name,),
                        replica=partition,
                        replicas=count,
                        threads=_in_order(threads.get(key, ())),
                    )
                )
                self.source.append(((run,) if place == 0 else (), 1 / count))

    def add_pools(
        self,
        shared: str,
        batched: Sequence[str],
        pools: Mapping[str, Sequence[Thread]],
        executors: int,
    ) -> None:
        """An operator for each executor's pool, of all runs in micro-batches together."""
        for replica, name in enumerate(sorted(pools)):
            if replica == 0:
                self.last_of.update(dict.fromkeys(batched, len(self.operators)))
            self.operators.append(
                PhysicalOperator(
                    shared,
                    POOL if len(pools) == 1 else f"{POOL} of executor {name}",
                    (POOL,),
                    replica=replica,
                    replicas=len(pools),
                    threads=_in_order(pools[name]),
                )
            )
            self.source.append((tuple(batched), 1 / max(executors, len(pools))))

    def row(self, serves: Task | str | None) -> int | None:
        """Of the operator that a helper serves.

        Who serves a query whose tasks are many operators follows the last of them: all of a
        query's have the same share, and most policies put the last first.
        """
        return (
            self.row_of.get(serves) if isinstance(serves, tuple) else self.last_of.get(serves or "")
        )


def _in_order(threads: Collection[Thread]) -> tuple[Thread, ...]:
    return tuple(sorted(threads, key=lambda thread: thread.key))


def _edges(
    operators: Sequence[PhysicalOperator],
) -> tuple[tuple[Edge, ...], tuple[LogicalOperator, ...], tuple[Edge, ...], list[str]]:
    """Each stage feeds the next one, all of its tasks all of the next one's. And queries of which
    some edges are left out, as they are too many."""
    rows: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row, operator in enumerate(operators):
        rows[operator.query, operator.logical[0]].append(row)
    logical = tuple(LogicalOperator(query, name) for query, name in rows)
    place = {one: number for number, one in enumerate(logical)}
    edges: list[Edge] = []
    logical_edges = []
    cut = []
    for one, number in place.items():
        follower = LogicalOperator(one.query, _next(one.name))
        if follower not in place:
            continue
        before, after = rows[one.query, one.name], rows[follower.query, follower.name]
        if len(edges) + len(before) * len(after) > EDGE_LIMIT:
            cut.append(one.query)
            continue
        logical_edges.append(Edge(number, place[follower]))
        edges += [Edge(a, b, 1 / len(after)) for a in before for b in after]
    return tuple(edges), logical, tuple(logical_edges), list(dict.fromkeys(cut))


def _next(name: str) -> str:
    word, _, number = name.partition(" ")
    return f"{word} {int(number) + 1}" if number.isdecimal() else ""


def _notes(
    called: Mapping[str, str],
    batched: Sequence[str],
    shared: str,
    jobs: Sequence[Job],
    steady: Set[str],
    here: Sequence[Here],
) -> list[str]:
    notes = [f"process {process.pid}: {process.trouble}" for process in here if process.trouble]
    if len(called) > len(batched) and any(process.workers for process in here) and len(called) > 1:
        notes.append(
            "whose Python code a Python worker runs is not known where the queries of an "
            "application are several and not all micro-batches"
            + (f"; they are with {shared!r}" if batched else "; they are left alone")
        )
    for job in jobs:
        if job.group and job.group in steady & called.keys() and len(job.stage_ids) > 2:
            notes.append(
                f"{called[job.group]}: which of its {len(job.stage_ids)} stages feeds which is "
                "not told; each is taken to feed the next one"
            )
    return notes


def several(names: Collection[str], application: str) -> str:
    """What is to be said of micro-batch queries that share their threads."""
    return (
        f"{', '.join(sorted(names)[:10])} are micro-batches of one application: its threads change "
        "from one to the other many times a second, so they are scheduled together, as "
        f"{application!r}. An application for each would tell them apart"
    )
