"""What holds the operators of a controller's engines back: verdicts with their evidence.

Verdicts need the times of the threads, which no policy may want. So they are read only while
somebody looks: a request starts the readings, and the first answer waits until there are two.
They are worked out in the control loop's thread, so of each owner's operators only as many as
`shown` says.
"""

import asyncio
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sched_ctl import show
from sched_ctl.adapt import parallelism
from sched_ctl.controller import targets
from sched_ctl.controller.loop import Controller
from sched_ctl.controller.rule import Rule
from sched_ctl.engines.engine import Engine
from sched_ctl.engines.horizons import HORIZONS_S
from sched_ctl.engines.owners import COMMON
from sched_ctl.kernel import procfs, psi, sleeping
from sched_ctl.kernel.cpus import cpus_of
from sched_ctl.metrics import verdicts
from sched_ctl.metrics.catalogue import MissingMetric, evaluate, resolve
from sched_ctl.metrics.settle import FIRST_S, Reading, Said, settle
from sched_ctl.metrics.verdicts import Assessment, Judged, Verdict
from sched_ctl.metrics.window import Window
from sched_ctl.model.graph import Array, Index, distinct
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import Snapshot, Thread
from sched_ctl.probes import sleeps, threads
from sched_ctl.probes.clocks import Clock
from sched_ctl.probes.limits import Limit
from sched_ctl.probes.waits import Lately, WaitTimes
from sched_ctl.service import views
from sched_ctl.service.idle import idle
from sched_ctl.service.shown import ALL, OTHERS, Most, left_out, shown
from sched_ctl.telemetry import exposition

__all__ = [
    "SCRAPED_S",
    "SHORT_S",
    "Found",
    "assessed",
    "bottlenecks",
    "explained",
    "exposed",
    "look",
    "needs",
    "replicas",
    "screen",
    "words",
]

WATCH_S = 15.0  # readings go on for so long after the last request
SCRAPED_S = 60.0  # ... or after the last scrape
WINDOW_S = 2.0  # verdicts are of about the last two seconds
SHORT_S = 1.0  # the first window at least
LONGER_S = 0.5  # that a window has to be longer, to count as another
FIRST_LOOKS = 20  # at threads that sleep with work in hand
PATIENCE_S = 5.0  # for it
NAMED = 2  # of those behind whom a thread waits
MOSTLY = 0.5  # of the time that it sleeps with work in hand
ASLEEP = (Verdict.IO_BOUND, Verdict.MEMORY_BOUND)
# No wait for memory is there; pages of files are, too, where they have to be read anew.
ELSEWHERE = frozenset(
    {
        *(sleeping.LOCK, sleeping.TIMED, sleeping.SOCKET, sleeping.PIPE),
        *(sleeping.EVENTS, sleeping.TIMER, sleeping.CHILD),
    }
)
LEAST_ASLEEP = verdicts.LEAST_SHARE  # with work in hand, for anybody to look where


@dataclass(frozen=True, eq=False)
class Found:
    """The verdicts of one engine, over the operators of `window.now.topology`.

    waits: what was traced of all engines' threads, if anything is. longer: the same over more time,
    as far as anybody looked. late: how late a query's tuples are, as effects are told. only: rows
    that are looked at; None: all.
    """

    engine: Engine
    window: Window
    assessment: Assessment
    waits: WaitTimes
    longer: tuple[Assessment, ...] = ()
    late: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    only: Index | None = None

    @property
    def rows(self) -> Index:
        """Of the operators that are looked at, in order."""
        return (
            np.arange(len(self.window.now.topology.operators)) if self.only is None else self.only
        )


async def look(
    controller: Controller, first_s: float = FIRST_S, *, every_s: float = 0.0
) -> list[Found]:
    """The verdicts of all engines now; waits for the readings if none were being made.

    first_s: that have to be looked at, for an answer that is not made of one window. every_s: from
    one look to the next of who looks for ever: passes and answers then keep to their limits.
    """
    end_s = time.monotonic() + PATIENCE_S
    while True:
        if every_s:
            controller.probe(2 * every_s)
        else:
            controller.watch(WATCH_S)
        found = list(assessed(controller))
        # All of them: each has its looks begun
        looked = [_looked_for_sleep(one) for one in found]
        if (all(looked) and all(_ready(one, first_s) for one in found)) or time.monotonic() > end_s:
            return found
        await asyncio.sleep(0.1)


def assessed(controller: Controller, common: Most = ALL) -> Iterator[Found]:
    """Of the readings there are; no wait. The common owners' engines come first.

    common: most that is looked at of these. Engines of which nothing is are left out.
    """
    controller.waits.look()
    late: dict[str, dict[str, Mapping[str, Any]]] = {}
    for told in views.effects(controller):
        late.setdefault(told["engine"], {})[told["query"]] = told
    for engine, rows in shown(controller.engines.values(), common):
        now = engine.snapshot
        if now is None or (now.topology.operators and not len(rows)):
            continue
        engine.limits.look(sorted(now.topology.pids))
        window = Window(now, _then(engine, now))
        windows = [window, *_longer(engine, window)]
        missed = _missed(controller, engine)
        engine.unserved.look(_without_turns(window, rows), time.monotonic())
        each = [operator.threads for operator in now.topology.operators]
        first, *longer = (
            verdicts.assess(
                one,
                _queue(one),
                pressure,
                longer=windows[-1],
                missed=missed,
                unserved=engine.unserved.waited(each, one.seconds),
            )
            for one, pressure in zip(windows, _memory_pressure(engine), strict=False)
        )
        engine.clocks.look(_always_at_work(window, first, rows))
        mine = late.get(engine.name, {})
        yield Found(engine, window, first, controller.waits, tuple(longer), mine, rows)


def _without_turns(window: Window, rows: Index) -> list[Thread]:
    """The threads of those of these operators that have not run in the window."""
    ran = window.gain("thread_cpu_time")[rows]
    operators = window.now.topology.operators
    return [thread for row in rows[ran == 0].tolist() for thread in operators[row].threads]


def _always_at_work(window: Window, found: Assessment, rows: Index) -> Iterator[Thread]:
    """The threads of those of these operators that run all the time: a clock counts for them."""
    operators = window.now.topology.operators
    busy = found.run[rows] >= verdicts.SATURATED
    return (thread for row in rows[busy].tolist() for thread in operators[row].threads)


def _longer(engine: Engine, window: Window) -> Iterator[Window]:
    """Windows that began earlier, as far as anybody has looked."""
    seconds = window.seconds
    for horizon_s in HORIZONS_S:
        wider = Window(window.now, engine.horizons.then(horizon_s))
        if wider.seconds > seconds + LONGER_S:
            seconds = wider.seconds
            yield wider


def _missed(controller: Controller, engine: Engine) -> npt.NDArray[np.bool_] | None:
    """(n,) whether an operator's query misses its target; None where none does."""
    missed = {
        row["query"]
        for row in targets.rows(controller, engine.name)
        if row["met"] is not None and row["met"] < row["share"]
    }
    if not missed or engine.snapshot is None:
        return None
    return np.array([o.query in missed for o in engine.snapshot.topology.operators])


def bottlenecks(found: list[Found]) -> list[dict[str, Any]]:
    """One entry for each query: what holds it, its operators with their evidence, and how many
    replicas and CPUs what its sources emit needs.
    """
    needs = {id(one): parallelism.wanted(one.window, one.assessment) for one in found}
    cpus = {id(one): round(cpus_of(one.window.now.topology.pids), 2) for one in found}
    return [
        query
        | _parallelism(needs[id(one)], rows)
        | {"cpus": cpus[id(one)]}
        | {"operators": [operator(one, row) for row in rows.tolist()]}
        for one, rows, query in _queries(found)
    ]


def _parallelism(wanted: parallelism.Wanted, rows: Index) -> dict[str, Any]:
    """Of the stages of one query's operators; rates in tuples/s, None = unknown."""
    parts = wanted.stages
    mine = distinct(parts.of[rows]).tolist()
    cpus = float(np.nansum(wanted.cpus[mine]))
    return {
        "needed_cpus": _known(cpus) if cpus > 0 else None,
        "source_held": bool(wanted.source_held[mine].any()),
        "parallelism": [
            {
                "operator": parts.names[stage],
                "replicas": int(parts.replicas[stage]),
                "needed": int(wanted.replicas[stage]),
                "rate": _known(float(wanted.rate[stage])),
                "true_rate": _known(float(wanted.true_rate[stage])),
                "source_held": bool(wanted.source_held[stage]),
            }
            for stage in mine
        ],
    }


def _queries(found: list[Found]) -> Iterator[tuple[Found, Index, dict[str, Any]]]:
    """Each query, with the rows of its operators that are looked at, and what holds it."""
    now_s = time.monotonic()
    for one in found:
        topology = one.window.now.topology
        for gone in one.engine.said.keys() - set(topology.queries):
            del one.engine.said[gone]
        for place, rows, looked_at in _rows(one):
            query = topology.queries[place]
            judged = [verdicts.judged(each, rows) for each in (one.assessment, *one.longer)]
            readings = [_reading(one, each, rows) for each in judged]
            said = settle(one.engine.said.get(query), now_s, readings)
            one.engine.said[query] = said
            named = [row for row in rows.tolist() if topology.operators[row].label == said.about]
            told = _query(one, query, said, readings, np.array(named, dtype=np.intp))
            yield one, looked_at, told


def _rows(one: Found) -> Iterator[tuple[int, Index, Index]]:
    """The queries of which an operator is looked at: place, rows, and those that are."""
    query = one.window.now.topology.query_rows
    is_looked_at = np.zeros(len(query), dtype=np.bool_)
    is_looked_at[one.rows] = True
    rows = np.flatnonzero(np.isin(query, query[one.rows]))
    places, group = np.unique(query[rows], return_inverse=True)
    for number, mine in verdicts.rows_by(group, len(places)):
        all_rows = rows[mine]
        yield int(places[number]), all_rows, all_rows[is_looked_at[all_rows]]


def _reading(one: Found, judged: Judged, rows: Index) -> Reading:
    """rows: of the query's operators."""
    label = one.window.now.topology.operators[judged.row].label
    verdict = judged.verdict
    if verdict in ASLEEP:
        verdict = _by_place(one, verdict, judged.row, _stage(one, judged.row, rows))
    return Reading(judged.seconds, verdict, label, judged.confidence)


def _verdict(one: Found, row: int) -> Verdict:
    verdict = Verdict(one.assessment.verdict[row])
    return _by_place(one, verdict, row, np.array([row])) if verdict in ASLEEP else verdict


def _by_place(one: Found, verdict: Verdict, row: int, rows: Index) -> Verdict:
    """The verdict on an operator that sleeps with work in hand, by where these are seen to sleep.

    Pressure on memory may be others': it counts only for who sleeps where memory is waited for,
    unless the kernel or the JVM tells of the operator itself.
    """
    found = one.assessment
    told = not np.isnan(found.memory[row]) or found.gc[row] >= found.blocked[row] / 2
    if verdict is Verdict.MEMORY_BOUND and not told and _share(one, rows, ELSEWHERE) >= MOSTLY:
        verdict = Verdict.IO_BOUND
    if verdict is Verdict.IO_BOUND and _at_lock(one, rows):
        verdict = Verdict.LOCK_BOUND
    return verdict


def _stage(one: Found, row: int, rows: Index) -> Index:
    """The replica's own row and those of its siblings that sleep with work in hand, too.

    Of replicas that share a lock one may hold it most of the time: by itself it sleeps elsewhere.
    """
    operators = one.window.now.topology.operators
    logical = operators[row].logical
    asleep = rows[one.assessment.blocked[rows] >= LEAST_ASLEEP]
    mine = [r for r in asleep.tolist() if operators[r].logical == logical]
    return np.array(mine, dtype=np.intp)  # none, where only a longer window saw it sleep


def _at_lock(one: Found, rows: Index) -> bool:
    """Whether operators that sleep with work in hand do so at locks, for the most part.

    Only where the engine tells when they have no input, for which threads wait at conditions, too,
    or its queues do: theirs were not empty, and none is full that they feed.
    """
    told = ~np.isnan(one.window.rate("idle_time"))
    told |= ~np.isnan(one.window.value("queue_capacity")) & (one.assessment.idle == 0)
    if not told[rows].all():
        return False
    return _share(one, rows, {sleeping.LOCK}) >= MOSTLY


def _share(one: Found, rows: Index, where: Collection[str]) -> float:
    """Of the time asleep with work in hand, at these places; 0 where few looks are."""
    slept = _sleeps(one, rows)
    return float(sum(p["share"] for p in slept["places"] if p["where"] in where)) if slept else 0.0


def _limit(one: Found, rows: Index) -> Limit | None:
    """What stopped the processes of these operators, if it was a limit."""
    operators = one.window.now.topology.operators
    return one.engine.limits.of({t.pid for row in rows.tolist() for t in operators[row].threads})


def _clock(one: Found, rows: Index) -> Clock | None:
    """What holds the clock down of those of these operators that run all the time, if it does."""
    operators = one.window.now.topology.operators
    busy = rows[one.assessment.run[rows] >= verdicts.SATURATED]
    return one.engine.clocks.of([t for row in busy.tolist() for t in operators[row].threads])


def _advice(verdict: Verdict, limit: Limit | None, clock: Clock | None) -> str:
    if verdict is Verdict.CPU_STARVED and limit and limit.stopped >= verdicts.LEAST_SHARE:
        return LIMITED.format(limit)
    if verdict is Verdict.SINGLE_THREAD_BOUND and clock:
        return SLOWED.format(clock)
    return ADVICE[verdict]


def _query(
    one: Found, name: str, said: Said, readings: list[Reading], named: Index
) -> dict[str, Any]:
    """named: rows of the operator that it is about."""
    late = one.late.get(name, {})
    limit, clock = _limit(one, named), _clock(one, named)
    return {
        "engine": one.engine.name,
        "query": name,
        "verdict": said.verdict.word,
        "operator": said.about,
        "confidence": round(said.confidence, 3),
        "settled": said.settled,
        "late_s": late.get("time_s"),
        "late_p99_s": late.get("p99_s"),
        "horizons": [
            {"seconds": _known(r.seconds), "verdict": r.verdict.word, "operator": r.about}
            for r in readings
        ],
        "limit": None if limit is None else asdict(limit),
        "clock": None if clock is None else asdict(clock),
        "advice": _advice(said.verdict, limit, clock),
    }


def screen(
    controller: Controller,
    found: list[Found],
    common: Most = ALL,
    status: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """All that `sched-ctl top` draws: one row for each scheduled thread that is looked at.

    common: as for `assessed`. status: the controller's, if it is known.
    """
    labels = _labels(found)
    served = _served(found)
    rows = []
    left = dict(labels)
    for rule, schedule, only in _scheduled(controller, found, labels):
        threads = [schedule.threads[at] for at in only]
        for thread, plan in zip(threads, views.rows(schedule, only), strict=True):
            place = labels.get(thread)
            left.pop(thread, None)
            verdict = {} if place is None else operator(found[place[0]], place[1])
            rows.append(
                {**_nothing(), **verdict}
                | {
                    "operator": plan["operator"],
                    "tid": plan["tid"],
                    "thread": plan["name"],
                    "serves": served.get(thread),
                    "policy": rule.policy.name,
                    "queue": plan["queue_size"],
                    "head_age_s": plan["head_age_s"],
                    "urgency": plan["evaluated"],
                    "place": plan["normalised"],
                    "applied": views.applied(controller, rule, thread),
                }
                | (_place(found[place[0]], place[1]) if place else {})
            )
    rows += [_unordered(found[place], row, thread) for thread, (place, row) in left.items()]
    status = status or views.status(controller)
    missing = [*left_out(controller.engines.values(), common).values()]
    return {
        "only_looks": controller.observes,
        "runs_in": {e["engine"]: e["runs_in"] for e in status["engines"] if e["runs_in"]},
        "order": status["queries"],
        "idle": idle(status),
        "policies": [
            {
                "name": rule.called,
                "policy": rule.policy.name,
                "backend": rule.backend,
                "own": rule.instead.own,
                "phase": rule.instead.phase,
            }
            for rule in controller.rules
        ],
        "targets": targets.rows(controller),
        "replicas": views.replicas(controller),
        "pressure": views.stalls(None),
        "queries": [query for _, _, query in _queries(found)],
        "effects": status["effects"],
        "rows": rows,
        "left_out": {
            "queries": sum(most.queries for most in missing),
            "operators": sum(most.operators for most in missing),
        },
    }


def _scheduled(
    controller: Controller, found: list[Found], labels: Mapping[Thread, tuple[int, int]]
) -> Iterator[tuple[Rule, Schedule, Sequence[int]]]:
    """Each schedule with its rows that are looked at: threads of operators first, then helpers, of
    other than the common owners as many in all as there may be operators.
    """
    helpers = {
        helper.thread
        for one in found
        if one.engine.domain != COMMON
        for helper in one.window.now.topology.helpers
    }
    for rule in controller.rules:
        for domain, schedule in rule.schedules.items():
            only: Sequence[int] = range(len(schedule.threads))
            if domain != COMMON:
                mine = [at for at in only if schedule.threads[at] in labels]
                more = [at for at in only if schedule.threads[at] in helpers]
                only = [*mine, *more][: 2 * OTHERS.operators]
            yield rule, schedule, only


def _unordered(one: Found, row: int, thread: Thread) -> dict[str, Any]:
    """The row of an operator's thread that no rule orders (now)."""
    of = operator(one, row)
    queue = _queue(one.window)
    unknown = dict.fromkeys(("policy", "head_age_s", "urgency", "place"))
    return (
        {**_nothing(), **of, **unknown}
        | {"tid": thread.tid or None, "thread": thread.name, "serves": None, "applied": {}}
        | {"queue": None if queue is None else _known(queue[row])}
        | _place(one, row)
    )


def exposed(controller: Controller, *, openly: bool = False) -> str:
    """The page for Prometheus. Verdicts come with the second scrape, locks with the third."""
    began_s = time.thread_time()
    controller.probe(SCRAPED_S)
    most = Most(exposition.MOST_QUERIES, exposition.MOST_OPERATORS)
    found = list(assessed(controller, most))
    for one in found:
        _looked_for_sleep(one, SCRAPED_S)
    threads: dict[tuple[str, str], list[Thread]] = {}
    for one in found:
        for row in one.rows.tolist():
            operator = one.window.now.topology.operators[row]
            threads.setdefault((one.engine.name, operator.query), []).extend(operator.threads)
    waits = {key: counts.tolist() for key, counts in controller.waits.totals(threads).items()}
    status = views.status(controller)
    text = exposition.page(status, screen(controller, found, most, status), waits, openly=openly)
    controller.spent_on_others(time.thread_time() - began_s)
    return text


def operator(one: Found, row: int) -> dict[str, Any]:
    """The verdict of one operator with its evidence; shares of the time, None = unknown."""
    found, topology = one.assessment, one.window.now.topology
    limit, stopped = int(found.limit[row]), _limit(one, np.array([row]))
    clock = _clock(one, np.array([row]))
    return {
        "engine": one.engine.name,
        "operator": topology.operators[row].label,
        "replica": topology.operators[row].replica,
        "verdict": _verdict(one, row).word,
        "by": None if limit < 0 else topology.operators[limit].label,
        "confidence": round(float(found.confidence[row]), 3),
        "run": _known(found.run[row]),
        "stolen": _known(found.stolen[row]),
        "wait": _known(found.wait[row]),
        "backpressured": _known(found.backpressured[row]),
        "blocked": _known(found.blocked[row]),
        "idle": _known(found.idle[row]),
        "io": _known(found.io[row]),
        "memory": _known(found.memory[row]),
        "gc": _known(found.gc[row]),
        "backlog": _known(found.backlog[row]),
        "queue": _known(found.queue[row]),
        "queue_before": _known(found.queue_before[row]),
        "seconds": _known(found.seconds),
        "limit": None if stopped is None else asdict(stopped),
        "clock": None if clock is None else asdict(clock),
        "waits": _traced(one.waits.lately(topology.operators[row].threads)),
        "sleeps": _sleeps(one, np.array([row])),
    }


def _sleeps(one: Found, rows: Index) -> dict[str, Any] | None:
    """Where operators sleep with work in hand; None if they do not, or too few looks saw it."""
    if not (len(rows) and (one.assessment.blocked[rows] >= LEAST_ASLEEP).all()):
        return None
    operators = one.window.now.topology.operators
    places = one.engine.sleeps.lately(thread for row in rows for thread in operators[row].threads)
    if places is None:
        return None
    blocked, idle, full = (
        float(np.nan_to_num(share[rows]).mean())
        for share in (
            one.assessment.blocked,
            one.assessment.idle,
            one.assessment.backpressured,
        )
    )
    told = sleeps.at_work(places, (idle + full) / (idle + full + blocked))
    where = [{"where": p.what, "peer": p.peer, "share": _known(share)} for p, share in told]
    return {"looks": places.looks, "places": where} if where else None


def _traced(lately: Lately | None) -> dict[str, Any] | None:
    """Waits for a CPU, counted and told by their quantiles; None if nothing is traced."""
    if lately is None:
        return None
    return {
        "count": lately.waits,
        "seconds": _known(lately.seconds),
        "median_s": _known(lately.shorter_than_s(0.5), 6),
        "long_s": _known(lately.shorter_than_s(0.99), 6),
    }


ADVICE = {
    Verdict.UNKNOWN: "too little is known: neither the kernel nor the engine tells enough",
    Verdict.IDLE: "nothing arrives",
    Verdict.INPUT_BOUND: "it keeps up with its input",
    Verdict.KEEPS_UP: "it keeps up with its input; this operator has the least time to spare",
    Verdict.CPU_STARVED: "a larger priority or share, or more CPUs, would speed it up",
    Verdict.SINGLE_THREAD_BOUND: "its thread is always at work: more replicas would help, "
    "priority would not",
    Verdict.IO_BOUND: "it sleeps with work in hand (I/O, a lock, a remote service): more replicas "
    "or asynchronous calls would help, priority would not",
    Verdict.LOCK_BOUND: "it waits for a lock that others hold: hold it for shorter, or give each "
    "its own part of what it guards; more replicas would wait for it, too; who holds it: "
    "sched-ctl waits QUERY/OPERATOR --stacks",
    Verdict.MEMORY_BOUND: "it waits for memory: give it more, or keep less state",
    Verdict.BACKPRESSURED: "a queue downstream is full: look at the operator that holds it",
}


LIMITED = (
    "its cgroup may use {0.cpus:.3g} CPUs, and was stopped in {0.stopped:.0%} of the periods: a "
    "larger limit (cpu.max) would speed it up, a priority only takes from others in that cgroup"
)
SLOWED = (
    "its thread is always at work, on a CPU at {0.ghz:.2g} of {0.of_ghz:.2g} GHz ({0.by}): a "
    "faster clock would speed it up, and so would more replicas; priority would not"
)


def _labels(found: list[Found]) -> dict[Thread, tuple[int, int]]:
    """Thread -> which of `found`, and the row of its operator there."""
    return {
        thread: (place, row)
        for place, one in enumerate(found)
        for row in one.rows.tolist()
        for thread in one.window.now.topology.operators[row].threads
    }


def _served(found: list[Found]) -> dict[Thread, str]:
    """Helper thread -> the operator that it works for."""
    return {
        helper.thread: one.window.operators[helper.serves].name
        for one in found
        for helper in one.window.now.topology.helpers
        if helper.serves is not None
    }


def _place(one: Found, row: int) -> dict[str, Any]:
    """An operator's place in its query's graph: steps from the farthest source, whom it feeds."""
    topology = one.window.now.topology
    graph = topology.graph
    fed = graph.target[graph.source == row]
    return {
        "query": topology.operators[row].query,
        "depth": int(graph.reversed.height[row]),
        "feeds": sorted({topology.operators[target].label for target in fed.tolist()}),
    }


def _nothing() -> dict[str, Any]:
    """The verdict of a thread that runs no operator, such as a helper."""
    shares = ("run", "wait", "backpressured", "blocked", "idle", "confidence")
    more = ("backlog", "limit", "clock", "waits", "sleeps")
    place: dict[str, Any] = {"query": None, "depth": None, "feeds": []}
    return dict.fromkeys(shares + more) | {"engine": None, "verdict": "unknown", "by": None} | place


def _looked_for_sleep(one: Found, seconds: float = WATCH_S) -> bool:
    """Look at the threads that sleep with work in hand, for so many more seconds; whether that has
    gone on for long enough.
    """
    operators = one.window.now.topology.operators
    rows = one.rows[one.assessment.blocked[one.rows] >= LEAST_ASLEEP].tolist()
    asleep = [thread for row in rows for thread in operators[row].threads if thread.tid]
    one.engine.sleeps.follow(asleep, seconds)
    return not asleep or one.engine.sleeps.looks >= FIRST_LOOKS


def _ready(one: Found, first_s: float) -> bool:
    """Whether it is looked for long enough, with the times of the threads at both ends."""
    if not one.engine.limits.ready:
        return False
    if "run_delay" not in one.window.now.columns:
        return not threads.available() and one.window.seconds >= SHORT_S
    longest_s = max(one.window.seconds, *(each.seconds for each in one.longer), 0.0)
    return longest_s >= first_s


def _then(engine: Engine, now: Snapshot) -> Snapshot | None:
    """The newest snapshot a window old, else the oldest; of those with the threads' times."""
    probed = "run_delay" in now.columns
    old = [
        snapshot
        for snapshot in engine.history
        if snapshot is not now and ("run_delay" in snapshot.columns) >= probed
    ]
    far = [snapshot for snapshot in old if now.time_s - snapshot.time_s >= WINDOW_S]
    return far[-1] if far else old[0] if old else None


def _queue(window: Window) -> Array | None:
    """Queue sizes as policies see them: reported, else derived."""
    now = window.now
    try:
        steps = resolve({"queue_size"}, now.columns, policy="verdicts", engine=now.topology.engine)
    except MissingMetric:
        return None
    return evaluate(steps, window)["queue_size"]


def _memory_pressure(engine: Engine) -> tuple[float, float, float]:
    """Of the engine's cgroup where the unified hierarchy has one, else of the machine.

    Of the last 10, 60 and 300 s, for windows of 2, 30 and 300 s.
    """
    pid = engine.target.pid
    group = None if pid is None else psi.group_of(pid)
    pressure = psi.read(psi.path_of("memory", group))
    if pressure is None:
        return (float("nan"),) * 3
    some = pressure.some
    return some.avg10_share, some.avg60_share, some.avg300_share


def words(operator: dict[str, Any]) -> str:
    """The evidence of a verdict in words."""
    shares = {
        "ran": operator["run"],
        "of that on a CPU that the hypervisor had": operator["stolen"],
        "waited for a CPU": operator["wait"],
        "held by a full queue": operator["backpressured"],
        "asleep with work in hand": operator["blocked"],
        "of that for block I/O": operator["io"],
        "for memory": operator["memory"],
        "stopped by its garbage collector": operator["gc"],
        "without input": operator["idle"],
    }
    # Unless they have taken some
    hidden = (
        "of that on a CPU that the hypervisor had",
        "of that for block I/O",
        "for memory",
        "stopped by its garbage collector",
    )
    places = sleeping.in_words(operator["sleeps"])
    told = ", ".join(
        f"{word} {share:.0%}"
        + (f" (of that {places})" if places and word == "asleep with work in hand" else "")
        for word, share in shares.items()
        if share is not None and (share >= 0.005 or word not in hidden)
    )
    queue, before = operator["queue"], operator["queue_before"]
    moved = "" if queue is None or before is None else f"; queue {before:g} -> {queue:g}"
    waiting = operator["backlog"]
    moved += f"; {waiting / 1024:.0f} KiB wait in its sockets" if waiting else ""
    by = f" by {operator['by']}" if operator["by"] else ""
    over = "" if operator["seconds"] is None else f" of {operator['seconds']:.1f} s"
    if (limit := operator["limit"]) and limit["stopped"] >= 0.005:
        moved += f"; stopped in {limit['stopped']:.0%} of the periods: its cgroup may use "
        moved += f"{limit['cpus']:.3g} CPUs"
    if clock := operator["clock"]:
        moved += f"; on a CPU at {clock['ghz']:.2g} of {clock['of_ghz']:.2g} GHz ({clock['by']})"
    if (traced := operator["waits"]) and traced["count"]:
        moved += (
            f"; {traced['count']} waits for a CPU in {traced['seconds']:.0f} s, half of them below "
            f"{show.number(traced['median_s'] * 1e3)} ms, 99% below "
            f"{show.number(traced['long_s'] * 1e3)} ms"
        )
    return f"{operator['verdict']}{by} ({operator['confidence']:.0%} sure): {told}{over}{moved}"


def explained(found: list[Found], tid: int) -> str | None:
    """The verdict of the operator that a thread runs, with its evidence; None if it runs none."""
    for thread, (place, row) in _labels(found).items():
        if thread.tid == tid:
            one = found[place]
            lately = one.waits.lately((thread,), behind=True)
            most = () if lately is None else lately.behind[:NAMED]
            behind = ", ".join(f"{_name_of(who)} {share:.0%}" for who, share in most)
            return words(operator(one, row)) + (f", behind {behind}" if behind else "")
    return None


def _name_of(tid: int) -> str:
    return procfs.name_of(tid) if tid else "an idle CPU"


def replicas(found: list[Found], tid: int) -> str | None:
    """How many replicas a thread's operator needs, in words; None where it has as many."""
    for thread, (place, row) in _labels(found).items():
        if thread.tid == tid:
            return needs(parallelism.wanted(found[place].window, found[place].assessment), row)
    return None


def wanting(found: Iterable[Found]) -> list[dict[str, Any]]:
    """Operators that need other numbers of replicas than they have, and why."""
    return [
        {
            "engine": one.engine.name,
            "query": parts.queries[stage],
            "operator": parts.names[stage],
            "replicas": int(parts.replicas[stage]),
            "needed": int(wanted.replicas[stage]),
            "source_held": bool(wanted.source_held[stage]),
            "says": told,
        }
        for one in found
        for wanted in (parallelism.wanted(one.window, one.assessment),)
        for parts in (wanted.stages,)
        for stage in range(len(parts.names))
        if (told := _needs(wanted, stage)) is not None
    ]


def needs(wanted: parallelism.Wanted, row: int) -> str | None:
    """The same, of a physical operator."""
    return _needs(wanted, int(wanted.stages.of[row]))


def _needs(wanted: parallelism.Wanted, stage: int) -> str | None:
    now, needed = int(wanted.stages.replicas[stage]), int(wanted.replicas[stage])
    is_held = bool(wanted.source_held[stage])
    if needed == now or (needed < now and is_held):
        return None
    rates = (float(wanted.rate[stage]), float(wanted.true_rate[stage]))
    rate, could = (show.number(value, 4) for value in rates)
    if is_held:
        return f"{needed} at first, has {now}; one can do {could} of up to {rate} tuples/s"
    return f"{needed} for {rate} tuples/s, has {now}; one can do {could}"


def _known(value: float, digits: int = 4) -> float | None:
    number = float(value)
    return round(number, digits) if np.isfinite(number) else None
