"""What became of the targets that the user stated: hit rates, margins, and who is in the way.

Every few seconds the effects of the queries that have one (`adapt.effect`) are counted, whatever
policy is in force. Where no query has any, nothing is looked at.
"""

import itertools
import logging
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from sched_ctl.adapt import effect
from sched_ctl.adapt.effect import Effect, Span
from sched_ctl.adapt.hits import Hits, counted, share, silent
from sched_ctl.engines.engine import Engine
from sched_ctl.engines.owners import COMMON
from sched_ctl.metrics.feasibility import Judgement, Standing
from sched_ctl.metrics.window import Window
from sched_ctl.model.patterns import fits, names_of
from sched_ctl.model.targets import Target
from sched_ctl.model.topology import Snapshot, Topology

if TYPE_CHECKING:
    from sched_ctl.controller.loop import Controller

__all__ = ["TargetWatch", "rows"]

log = logging.getLogger(__name__)

SPAN_S = 5.0  # hits are counted over this time, at least
MOST_GONE = 1000  # queries that left, an engine or a domain with theirs, whose hits are kept
MOST_THEIRS = 2000  # queries of a user who is ordered alone, with those: each is of an hour
MOST_SAID = 20  # of changes at a time, in the log
NEVER_S = 30.0  # after which it is said that no query has appeared that a target is for
WAITS = 0.2  # share of its time that a query waits for CPUs, for others to be in its way

Query = tuple[str, str]  # engine, query


@dataclass
class TargetWatch:
    """Follows a controller: call `count` with each answer of an engine, and `note` after passes."""

    hits: dict[Query, Hits] = field(default_factory=dict)
    effects: dict[Query, Effect] = field(default_factory=dict)
    since_s: dict[Target, float] = field(default_factory=dict)  # that each is stated
    appeared: set[Target] = field(default_factory=set)
    _spans: dict[str, Span] = field(default_factory=dict)
    _last: dict[str, Span] = field(default_factory=dict)
    _known: dict[str, tuple[object, Topology, dict[str, Target], dict[str, str]]] = field(
        default_factory=dict
    )
    _stood: dict[Query, Standing] = field(default_factory=dict)
    _domains: dict[str, str] = field(default_factory=dict)  # of engines that have hits
    _now_s: float = math.nan

    def note(self, controller: "Controller", now_s: float) -> None:
        """A pass has ended, at now_s (CLOCK_MONOTONIC)."""
        stated = dict.fromkeys(_stated(controller))
        self.since_s = {target: self.since_s.get(target, now_s) for target in stated}
        if not stated:
            return
        self._now_s = now_s
        if self._known.keys() - controller.engines.keys():
            self._forget_all_but(controller.engines.keys())
        for engine in controller.engines.values():
            if engine.snapshot is None:
                self._spans.pop(engine.name, None)

    def count(
        self, controller: "Controller", engine: Engine, snapshot: Snapshot, now_s: float
    ) -> None:
        """What came of the targets there, by what it has told at now_s (CLOCK_MONOTONIC)."""
        if any(_stated(controller)):
            self._now_s = now_s
            targets, _ = self.of(controller, engine, snapshot.topology)
            if targets:
                self._count(engine, snapshot, targets, now_s)

    def of(
        self, controller: "Controller", engine: Engine, topology: Topology
    ) -> tuple[Mapping[str, Target], Mapping[str, str]]:
        """The targets of an engine's queries; and of those that have several, which counts."""
        known = self._known.get(engine.name)
        if known is None or known[0] is not controller.claims or known[1] is not topology:
            found: dict[str, Target] = {}
            double: dict[str, str] = {}
            for rule in controller.rules:
                stated = rule.section.target or ()
                for query in controller.claims.of(rule, engine.name, topology) if stated else ():
                    mine = [t for t in stated if fits(t.queries, *names_of(engine.name, query))]
                    if mine:
                        found[query] = mine[0]
                        self.appeared.update(mine)
                    if len(mine) > 1:
                        double[query] = f"{' '.join(mine[0].queries)}={mine[0].latency}"
            known = self._known[engine.name] = (controller.claims, topology, found, double)
            self._forget_but(engine.name, found.keys())
        return known[2], known[3]

    def _count(
        self, engine: Engine, snapshot: Snapshot, targets: Mapping[str, Target], now_s: float
    ) -> None:
        before = self._spans.get(engine.name)
        span = self._spans[engine.name] = effect.seen(before, snapshot)
        if span.seconds < SPAN_S:
            return
        self._spans[engine.name] = effect.begin(snapshot, span.gap_s)
        self._last[engine.name] = span
        self._domains[engine.name] = engine.domain
        latencies = {query: target.latency_s for query, target in targets.items()}
        stuck, kept = _stuck(span), self._kept(engine, targets.keys())
        for found in effect.effects(span, latencies):
            if found.query in targets:
                self.effects[found.key] = found
            if found.query in kept:
                hits = self.hits.get(found.key, Hits())
                tuples = found.tuples_out * found.seconds
                if not tuples > 0:  # or nobody tells how many
                    hits = silent(
                        hits,
                        now_s,
                        found.seconds,
                        latencies[found.query],
                        came=tuples == 0 and found.tuples_in > 0,
                        stuck=found.query in stuck,
                    )
                self.hits[found.key] = counted(hits, now_s, tuples, found.within_target)

    def _kept(self, engine: Engine, queries: Set[str]) -> Set[str]:
        """Of its queries those whose hits are kept: all, but of a user's own only so many, for
        which those of queries that have gone make room, the first of them first.
        """
        if engine.domain == COMMON:
            return queries
        held = [key for key in self.hits if self._domains[key[0]] == engine.domain]
        new = [query for query in queries if (engine.name, query) not in self.hits]
        room = MOST_THEIRS - len(held)
        gone = (key for key in held if not self._runs(key))
        for key in itertools.islice(gone, max(0, len(new) - room)):
            del self.hits[key]
            room += 1
        return queries - set(new[max(0, room) :])

    def _runs(self, query: Query) -> bool:
        """Whether it has a target, in an engine that is here."""
        known = self._known.get(query[0])
        return known is not None and query[1] in known[2]

    def hour(self, query: Query) -> float:
        """Share of the last hour's tuples that kept the target; NaN = unknown."""
        return share(self.hits.get(query, Hits()), self._now_s)

    def in_the_way(self, engine: Engine, query: str, rivals: Sequence[str]) -> str | None:
        """Who keeps a query from its target, in words: itself, or who used most of the CPU.

        rivals: names of the engines that it is ordered with.
        """
        found, span = self.effects.get((engine.name, query)), self._last.get(engine.name)
        if found is None or span is None:
            return None
        if found.cpu_wait_s < WAITS * found.time_s:
            return f"itself: most waits for {_longest(span, query)}"
        used = {
            (name, other): cpus
            for name in rivals
            for other, cpus in _used(self._last.get(name)).items()
            if (name, other) != (engine.name, query) and cpus > 0
        }
        if not used:
            return None
        (name, other), cpus = max(used.items(), key=lambda item: item[1])
        return f"{other if name == engine.name else f'{name}:{other}'} ({cpus:.2f} CPUs)"

    def notes(self, controller: "Controller") -> list[str]:
        """What a user should know of the targets themselves."""
        found = []
        for target in dict.fromkeys(_stated(controller)):
            passed_s = self._now_s - self.since_s.get(target, self._now_s)
            if target not in self.appeared and passed_s > NEVER_S:
                found.append(
                    f"target of {' '.join(target.queries)}: no query of that name that a policy "
                    f"rules has appeared in {passed_s:.0f} s"
                )
        for engine in controller.engines.values():
            if engine.snapshot is not None:
                _, double = self.of(controller, engine, engine.snapshot.topology)
                found += [
                    f"{engine.name}: several targets are for {query}: {first} counts, the first"
                    for query, first in double.items()
                ]
        return found

    def _forget_but(self, engine: str, queries: Set[str]) -> None:
        """Of queries that left an engine the hits of the last hour stay, of the last ones."""
        for by_query in (self.effects, self._stood):
            for key in [k for k in by_query if k[0] == engine and k[1] not in queries]:
                by_query.pop(key)
        self._thin([key for key in self.hits if key[0] == engine and key[1] not in queries])

    def _forget_all_but(self, engines: Set[str]) -> None:
        """Of those that left only the hits of the last hour stay: some come back."""
        for by_engine in (self._spans, self._last, self._known):
            for name in by_engine.keys() - engines:
                by_engine.pop(name)
        for by_query in (self.effects, self._stood):
            for query in [query for query in by_query if query[0] not in engines]:
                by_query.pop(query)
        gone: dict[str, list[Query]] = {}
        for query in self.hits:
            if query[0] not in engines:
                gone.setdefault(self._domains[query[0]], []).append(query)
        for queries in gone.values():
            self._thin(queries)
        left = {engine for engine, _ in self.hits}
        self._domains = {name: one for name, one in self._domains.items() if name in left}

    def _thin(self, gone: Sequence[Query]) -> None:
        """Of these, the first of which came first, keep those that tell of the last hour."""
        for place, key in enumerate(gone):
            if place < len(gone) - MOST_GONE or math.isnan(self.hour(key)):
                del self.hits[key]

    def say(self, engines: Set[str], judged: Mapping[Query, Judgement]) -> None:
        """How those stand with their targets that cannot meet them, in the log, when it changes.

        judged: of one domain, who pays for it.
        """
        changed = []
        for query, judgement in judged.items():
            if query[0] in engines:
                before = self._stood.get(query, Standing.MEETS)
                self._stood[query] = judgement.standing
                if before is not judgement.standing:
                    changed.append((query, judgement))
        for query, judgement in changed[:MOST_SAID]:
            log.warning("%s: target of %s: %s", *query, words(judgement))
        if len(changed) > MOST_SAID:
            log.warning("targets of %d more stand otherwise: see status", len(changed) - MOST_SAID)


def words(judgement: Judgement) -> str:
    """How a query stands with its target."""
    if not judgement.why:
        return "can be met"
    return f"{'cannot be met' if judgement.standing is Standing.OVER else 'late'}: {judgement.why}"


def rows(controller: "Controller", only: str | None = None) -> list[dict[str, Any]]:
    """Each query that has a target: what it is, what came of it, how it stands; None = unknown.

    only: those of the engine of this name. met, met_hour: share of tuples, of the last seconds and
    of the last hour; tuples, met_tuples: counts since the start. margin_s: what the target is above
    the p99, or above the mean where no percentile is told.
    """
    watch = controller.targets
    standings = {
        query: judgement
        for rule in controller.rules
        for schedule in rule.schedules.values()
        for query, judgement in schedule.targets.items()
    }
    found = []
    for engine in controller.engines.values():
        if engine.snapshot is None or only not in (None, engine.name):
            continue
        targets, _ = watch.of(controller, engine, engine.snapshot.topology)
        rivals = [e.name for e in controller.engines.values() if e.domain == engine.domain]
        for query, target in targets.items():
            key = engine.name, query
            hits, told = watch.hits.get(key, Hits()), watch.effects.get(key)
            judgement = standings.get(key)
            missed = hits.now < target.share or (judgement is not None and judgement.why)
            found.append(
                {
                    "engine": engine.name,
                    "query": query,
                    "latency_s": target.latency_s,
                    "share": target.share,
                    "weight": target.weight,
                    "met": _known(hits.now),
                    "met_hour": _known(watch.hour(key)),
                    "tuples": round(hits.tuples),
                    "met_tuples": round(hits.met),
                    **_times(told, target),
                    "standing": None if judgement is None else judgement.standing.name.lower(),
                    "says": None if judgement is None else words(judgement),
                    "in_the_way": watch.in_the_way(engine, query, rivals) if missed else None,
                }
            )
    return found


def _times(told: Effect | None, target: Target) -> dict[str, Any]:
    time_s, p50_s, p99_s = (
        (math.nan, math.nan, math.nan) if told is None else (told.time_s, told.p50_s, told.p99_s)
    )
    margin_s = target.latency_s - (p99_s if math.isfinite(p99_s) else time_s)
    return {
        "time_s": _known(time_s),
        "p50_s": _known(p50_s),
        "p99_s": _known(p99_s),
        "source": None if told is None else told.source,
        "margin_s": _known(margin_s),
    }


def _known(value: float) -> float | None:
    return round(float(value), 6) if math.isfinite(value) else None


def _stated(controller: "Controller") -> Iterator[Target]:
    for rule in controller.rules:
        yield from rule.section.target or ()


def _stuck(span: Span) -> set[str]:
    """Queries of which an operator has taken nothing, though tuples wait for it.

    By queues that the engine tells: what is counted between operators may only be split in another
    way than was thought.
    """
    window = Window(span.now, span.first)
    rows = (window.value("queue_size") > 0) & (window.gain("tuples_in") == 0)
    operators = span.now.topology.operators
    return {operators[row].query for row in np.flatnonzero(rows).tolist()}


def _longest(span: Span, query: str) -> str:
    """The operator of the query before which most tuples waited."""
    operators = span.now.topology.operators
    mine = [row for row, operator in enumerate(operators) if operator.query == query]
    waiting = np.nan_to_num(span.waiting)
    return operators[max(mine, key=lambda row: float(waiting[row]))].name


def _used(span: Span | None) -> dict[str, float]:
    """CPUs that each query used."""
    if span is None or not span.seconds > 0:
        return {}
    window = Window(span.now, span.first)
    cpu = window.gain("cpu_time")
    cpu = np.nan_to_num(np.where(np.isfinite(cpu), cpu, window.gain("thread_cpu_time")))
    found: dict[str, float] = {}
    for operator, seconds in zip(span.now.topology.operators, cpu.tolist(), strict=True):
        found[operator.query] = found.get(operator.query, 0.0) + seconds / span.seconds
    return found
