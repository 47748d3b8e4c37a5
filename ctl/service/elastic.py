"""Replicas by themselves: looks, decides, and has it done, for the queries of `[[elastic]]`.

A change is made where `AGREE` looks in a row ask for one in the same direction, as far as all of
them do, where the price of the restart comes back in time, and not before the pause after the last
one is over; what failed waits for longer each time. While a change is under way, and for as long as
it is judged, nothing else is. One of which nobody knows what came of it is judged first: the
controller that asked for it has ended, or the engine has not answered.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sched_ctl.adapt import parallelism
from sched_ctl.adapt.rescale import Change, Done, boundless, changed, cost_s, refusal, tried
from sched_ctl.config.settings import Elastic
from sched_ctl.controller.loop import Controller
from sched_ctl.drivers import DriverKind, Target
from sched_ctl.engines.worker import Worker
from sched_ctl.errors import UserError
from sched_ctl.kernel.cpus import cpus_of
from sched_ctl.model.patterns import engine_fits, fits, names_of
from sched_ctl.service import bottlenecks, scaling
from sched_ctl.service.bottlenecks import Found
from sched_ctl.service.scaling import Busy, Memory

__all__ = ["agreed", "mind", "section_of"]

log = logging.getLogger(__name__)

EVERY_S = 15.0
AGREE = 3  # looks in a row
PATIENCE_S = 60.0
LONGEST_PAUSE_S = 86400.0
LATE_S = 1800.0  # how old a change may be whose outcome is still asked for: loads change
ONCE_MORE_S = 180.0  # from an attempt to judge one that failed to the next: others wait meanwhile

Key = tuple[str, str]  # engine, query
Limits = Mapping[tuple[str, ...], tuple[int, int]]


@dataclass
class _Seen:
    """What the last looks at one query asked for."""

    changes: list[Change] = field(default_factory=list)
    since_s: float = float("-inf")  # CLOCK_MONOTONIC of its last change


@dataclass
class _State:
    """What lasts from one round to the next. hands, rounds: by the engines' owner."""

    controller: Controller
    kinds: Mapping[str, DriverKind]
    memory: Memory
    seen: dict[Key, _Seen] = field(default_factory=dict)
    # Not threads that the end of the loop waits for: a change takes its time
    hands: dict[str, Worker[Any]] = field(default_factory=dict)
    rounds: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    changed_s: float = float("-inf")  # CLOCK_MONOTONIC of the last change of whatever query
    late: list[Done] = field(default_factory=list)  # changes that are still to be judged
    later_s: dict[Key, float] = field(default_factory=dict)  # not before, CLOCK_MONOTONIC


async def mind(controller: Controller, kinds: Mapping[str, DriverKind]) -> None:
    """Until it is cancelled. What is done, or why not, is in `controller.replicas`."""
    memory = scaling.memory_of(Path(controller.settings.run_dir))
    state = _State(controller, kinds, memory, late=unjudged(memory.read(), time.time()))
    try:
        while True:
            await asyncio.sleep(EVERY_S)
            if not controller.settings.elastic:
                controller.replicas.clear()
                continue
            try:
                await _round(state)
            except Exception:  # the order of the threads goes on
                log.exception("replicas")
    finally:
        for task in state.rounds.values():
            task.cancel()
        for hand in state.hands.values():
            hand.stop()


async def _round(state: _State) -> None:
    """Look at all queries, each owner's beside the others': one's engine may never answer."""
    controller, seen = state.controller, state.seen
    found = await bottlenecks.look(controller, every_s=EVERY_S)
    chosen = {
        (one.engine.name, query): (one, section)
        for one in found
        for query in one.window.now.topology.queries
        if (section := section_of(controller.settings.elastic, one.engine.name, query))
    }
    _forget(seen, seen.keys() - chosen.keys(), controller)
    controller.replicas = {k: w for k, w in controller.replicas.items() if k in chosen}
    owners = {one.engine.domain for one, _ in chosen.values()}
    state.late = unjudged(state.late, time.time())
    known = controller.engines
    owners |= {known[done.engine].domain for done in state.late if done.engine in known}
    for owner in {owner for owner, task in state.rounds.items() if task.done()} - owners:
        del state.rounds[owner]
        state.hands.pop(owner).stop()
    for owner in sorted(owners):  # root's first
        if owner not in state.rounds or state.rounds[owner].done():
            mine = {key: it for key, it in chosen.items() if it[0].engine.domain == owner}
            if owner not in state.hands:
                state.hands[owner] = Worker("replicas")
            state.rounds[owner] = asyncio.create_task(_of_owner(state, owner, mine))


async def _of_owner(state: _State, owner: str, chosen: Mapping[Key, tuple[Found, Elastic]]) -> None:
    """Never raises. Ends at a change: what was read before it tells nothing of other queries."""
    hand, began_s = state.hands[owner], time.monotonic()
    await _judge_late(state, owner, hand)
    if state.changed_s > began_s:
        return
    before = state.memory.read()
    for key, (one, section) in chosen.items():
        mine = state.seen.setdefault(key, _Seen())
        if time.monotonic() - mine.since_s < section.pause or _is_new(before, key, section.pause):
            mine.changes.clear()  # looks before a pause are in no row with those after it
            continue
        try:
            words = await _one(state, one, key[1], section, hand, mine)
        except UserError as error:
            words = error.message
            mine.changes.clear()
            mine.since_s = time.monotonic()  # not again at once
        except Exception:  # of one query
            log.exception("replicas")
            mine.since_s = time.monotonic()
            continue
        replicas = state.controller.replicas
        if replicas.get(key) != words:
            replicas[key] = words
            log.info("%s %s: replicas: %s", *key, words)
        if state.changed_s > began_s:
            return


def unjudged(before: Sequence[Done], now_s: float) -> list[Done]:
    """Queries' last changes, of no user's, of which nobody knows the outcome, not too old."""
    newest = {(done.engine, done.query): done for done in before}
    return [
        done
        for done in newest.values()
        if done.by_itself and done.outcome == "asked" and 0 <= now_s - done.at_s < LATE_S
    ]


async def _judge_late(state: _State, owner: str, hand: "Worker[Any]") -> None:
    engines = state.controller.engines
    for done in list(state.late):
        engine, key = engines.get(done.engine), (done.engine, done.query)
        if engine is None or engine.domain != owner or state.changing.locked():
            continue
        if time.monotonic() < state.later_s.get(key, 0.0):
            continue
        kind = state.kinds[engine.target.kind]
        judged = partial(scaling.judged_late, engine.target, kind, done, state.memory)
        async with state.changing:
            try:
                words = (await hand.call(partial(judged, patience_s=PATIENCE_S))).outcome
            except Busy:
                continue
            except Exception as error:
                words = str(error)
                if state.memory.last(*key) == done:  # nothing came of it: later once more
                    state.later_s[key] = time.monotonic() + ONCE_MORE_S
                    log.info("%s %s: what was asked for cannot be judged yet: %s", *key, words)
                    continue
            state.late = [other for other in state.late if other != done]
            _over(state, state.seen.setdefault(key, _Seen()))
        log.info("%s %s: what was asked for before the start: %s", done.engine, done.query, words)


def _forget(seen: dict[Key, _Seen], missing: set[Key], controller: Controller) -> None:
    """Queries that are not there now. One that was changed may be restarting: it keeps its pause,
    while its engine is known.
    """
    oldest_s = time.monotonic() - LONGEST_PAUSE_S
    for key in missing:
        if key[0] in controller.engines and seen[key].since_s > oldest_s:
            seen[key].changes.clear()
        else:
            del seen[key]


def section_of(sections: tuple[Elastic, ...], engine: str, query: str) -> Elastic | None:
    """The first that means the query."""
    names = names_of(engine, query)
    return next(
        (s for s in sections if fits(s.queries, *names) and engine_fits(s.engines, engine)), None
    )


async def _one(
    state: _State,
    one: Found,
    query: str,
    section: Elastic,
    hand: "Worker[Any]",
    seen: _Seen,
) -> str:
    """Look at one query, and do what is to be done. Words for it. Raises UserError."""
    target, engine = one.engine.target, one.engine.name
    kind = state.kinds[target.kind]
    wanted = parallelism.wanted(one.window, one.assessment)
    cpus = cpus_of(one.window.now.topology.pids)
    limits: Limits = boundless(wanted, query)
    change = changed(wanted, engine, query, cpus, limits, most=section.replicas)
    if change.steps:  # only then does its engine have to answer
        limits = await hand.call(lambda: _limits(target, kind, query))
        change = changed(wanted, engine, query, cpus, limits, most=section.replicas)
    seen.changes = [*seen.changes, change][-AGREE:]
    sure = agreed(seen.changes)
    if sure is None:
        if not change.steps:
            return change.unchanged
        return f"may need {scaling.in_words(change.replicas)}"
    before, rate = state.memory.read(), _taken(one, query)
    why = refusal(sure, cost_s(before, engine, query), section.within)
    why = why or tried(before, sure, rate, section.pause, time.time())
    if why is not None:
        return why
    waits = f"needs {scaling.in_words(sure.replicas)}, when no other query is being changed"
    if state.changing.locked():
        return waits
    async with state.changing:
        try:
            done = await hand.call(
                lambda: scaling.carried_out(
                    target,
                    kind,
                    sure,
                    state.memory,
                    patience_s=PATIENCE_S,
                    say=lambda line: log.info("%s %s: %s", engine, query, line),
                    by_itself=True,
                )
            )
        except Busy:  # by another process
            return waits
        except Exception:
            _over(state, seen)
            state.late = unjudged(state.memory.read(), time.time())
            raise
        _over(state, seen)
    return _told(sure, done)


def _over(state: _State, seen: _Seen) -> None:
    """A change of the query was made, or tried."""
    seen.changes.clear()
    seen.since_s = state.changed_s = time.monotonic()


def _is_new(before: Sequence[Done], key: Key, pause_s: float) -> bool:
    """Whether the query was changed within the pause, by hand or before this controller began."""
    now_s = time.time()
    return any(
        (done.engine, done.query) == key and 0 <= now_s - done.at_s < pause_s for done in before
    )


def _taken(one: Found, query: str) -> float:
    """Tuples/s that the query's sources emit."""
    topology = one.window.now.topology
    mine = np.array([o.query == query for o in topology.operators], dtype=np.bool_)
    return float(one.window.rate("tuples_out")[mine & topology.graph.ingress].sum())


def _limits(target: Target, kind: DriverKind, query: str) -> Limits:
    scaler = scaling.scaler_of(target, kind)
    try:
        return scaler.current(query)
    finally:
        scaler.close()


def agreed(changes: list[Change]) -> Change | None:
    """What all of the last looks ask for, by the last one; None where they do not agree."""
    if len(changes) < AGREE or not all(change.steps for change in changes):
        return None
    last = changes[-1]
    steps = []
    for step in last.steps:
        asked = [c.replicas.get(step.logical, step.now) for c in changes]
        to = min(asked) if step.to > step.now else max(asked)
        if (to > step.now) == (step.to > step.now) and to != step.now:
            steps.append(replace(step, to=to))
    if not steps:
        return None
    return replace(last, steps=tuple(steps), holds=min(change.holds for change in changes))


def _told(change: Change, done: Done) -> str:
    rates = ""
    if done.before and done.after is not None:
        rates = f", {done.after / done.before - 1:+.0%} tuples"
    return (
        f"{scaling.in_words(change.replicas)} {done.outcome}{rates}, "
        f"{done.silent_s or 0.0:.1f} s without output"
    )
