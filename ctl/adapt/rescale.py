"""Other numbers of replicas for a query: what they would bring, and whether that pays.

DS2's step (`adapt.parallelism`) for all operators of the query at once, cut down to what this
machine's CPUs can feed: of four replicas that need four CPUs two do as well where there are two.
A query *holds* the part of its sources' rate that its narrowest operator takes in, and that the
CPUs suffice for. What a change brings is the part held after it over that before; what it costs
are the seconds without output of earlier restarts. Sources keep their replicas: how many
partitions there are to read is not known here.

Pure functions. Rates are in tuples/s, NaN = unknown.
"""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from sched_ctl.adapt.parallelism import LEAP, MOST_REPLICAS, Wanted, whole

__all__ = [
    "Change",
    "Done",
    "Step",
    "boundless",
    "changed",
    "cost_s",
    "is_worse",
    "refusal",
    "tried",
]

LIKE = 5  # restarts that the next one is judged by, the newest
UNKNOWN_S = 60.0  # what a restart is taken to cost before one was seen
GAIN = 1.05  # that a change by itself has to bring at least: figures are not more exact
FULL = 0.8  # of what fewer replicas could do at most: a little more would ask for the old number
WORSE = 0.9  # of what the query took in before, or less
SURE = 2.0  # times the error of a rate by which it must be less
OTHER = 1.5  # times the tuples of the last try are another demand
FAILED = {
    "back": "and was worse",
    "lost": "and no output came",
    "refused": "and the engine refused it",
}


@dataclass(frozen=True, slots=True)
class Step:
    """An operator that gets other replicas. logical: what it is fused from."""

    logical: tuple[str, ...]
    operator: str
    now: int
    to: int
    rate: float  # that it has to take in
    true_rate: float  # of one replica


@dataclass(frozen=True, slots=True)
class Change:
    """A query's next numbers of replicas. held, holds: of its sources' rate, now and then, 0..1.

    source_held: the sources may want more than is known. needed_cpus: for all they want. unseen:
    operators of which other replicas run than this machine is told of, as on another node.
    """

    engine: str
    query: str
    steps: tuple[Step, ...]
    held: float
    holds: float
    source_held: bool
    cpus: float
    needed_cpus: float
    unseen: tuple[str, ...] = ()

    @property
    def unchanged(self) -> str:
        """Why there are no steps, in words."""
        if self.unseen:
            return f"not all replicas of {', '.join(self.unseen)} are told of here"
        return "as many replicas as it needs"

    @property
    def gain(self) -> float:
        """Throughput after over before; NaN = unknown."""
        return self.holds / self.held if self.held > 0 else math.nan

    @property
    def replicas(self) -> dict[tuple[str, ...], int]:
        return {step.logical: step.to for step in self.steps}

    def pays_after_s(self, cost_s: float) -> float:
        """Until what it brings has made up for a restart of so many seconds; infinite if never."""
        more = self.holds - self.held
        return cost_s * self.held / more if more > 0 else math.inf


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """One change that was made, as it is remembered. at_s: Unix time.

    was, became: replicas by operator. silent_s: without output; before, after: tuples/s that the
    query took in. outcome: "asked" (under way, or nobody knows), "refused", "kept", "back" (it was
    worse), "lost" (no output came in time), "other" (it runs with others by now).
    by_itself: no user asked.
    """

    at_s: float
    engine: str
    query: str
    was: list[tuple[list[str], int]]
    became: list[tuple[list[str], int]]
    outcome: str = "asked"
    silent_s: float | None = None
    before: float | None = None
    after: float | None = None
    by_itself: bool = False


def changed(
    wanted: Wanted,
    engine: str,
    query: str,
    cpus: float,
    limits: Mapping[tuple[str, ...], tuple[int, int]],
    told: Mapping[tuple[str, ...], int] | None = None,
    most: int | None = None,
) -> Change:
    """What DS2 asks for, or what the user told. limits: now and the most, by operator; only these
    can be changed, and by DS2 those alone of which all replicas are known here: what it needs
    follows from what each could do. most: replicas of an operator, where DS2 decides.
    """
    parts = wanted.stages
    mine = [stage for stage, name in enumerate(parts.queries) if name == query]
    needed_cpus = float(np.nansum(wanted.cpus[mine]))
    enough = min(1.0, cpus / needed_cpus) if needed_cpus > 0 else 1.0
    steps, unseen, now, then = [], [], enough, enough
    for stage in mine:
        logical, replicas = parts.logical[stage], int(parts.replicas[stage])
        needed = float(wanted.needed[stage])
        to = replicas
        if logical in limits and not parts.graph.ingress[stage]:
            known, (replicas, limit) = replicas, limits[logical]
            if known != replicas:
                unseen.append(parts.names[stage])
                if told is None:
                    continue
            to = replicas
            if told is not None:
                to = told.get(logical, replicas)
            else:
                to = _enough(needed * enough, replicas)
                if to < replicas:
                    to = min(_enough(needed * enough / FULL, replicas), replicas)
                to = min(to, limit, most or limit)
                if wanted.source_held[stage]:
                    to = min(to, LEAP * replicas)
        if to != replicas:
            rate, true_rate = float(wanted.rate[stage]), float(wanted.true_rate[stage])
            steps.append(Step(logical, parts.names[stage], replicas, to, rate, true_rate))
        if math.isfinite(needed) and needed > 0 and not parts.graph.ingress[stage]:
            now, then = min(now, replicas / needed), min(then, to / needed)
    source_held = bool(wanted.source_held[mine].any())
    return Change(
        engine, query, tuple(steps), now, then, source_held, cpus, needed_cpus, tuple(unseen)
    )


def boundless(wanted: Wanted, query: str) -> dict[tuple[str, ...], tuple[int, int]]:
    """Limits of a query's operators by what is told here, before its engine was asked."""
    parts = wanted.stages
    return {
        parts.logical[stage]: (int(parts.replicas[stage]), MOST_REPLICAS)
        for stage, name in enumerate(parts.queries)
        if name == query
    }


def _enough(needed: float, replicas: int) -> int:
    """Whole replicas; as many as there are where it is not known."""
    return int(whole(np.array(needed))) if math.isfinite(needed) else replicas


def cost_s(before: Sequence[Done], engine: str, query: str) -> float:
    """Seconds without output of a restart, by earlier ones of this query, else of such engines;
    NaN before one was seen.
    """
    kind = engine.partition(":")[0]
    seen = [done for done in before if done.silent_s is not None]
    same = [done for done in seen if (done.engine, done.query) == (engine, query)]
    like = same or [done for done in seen if done.engine.partition(":")[0] == kind]
    return statistics.fmean([d.silent_s or 0.0 for d in like[-LIKE:]]) if like else math.nan


def refusal(change: Change, cost: float, within_s: float) -> str | None:
    """Why a change is not made by itself, in words; None if it is to be made.

    Fewer replicas bring no throughput; they are worth a restart of at most a tenth of the time in
    which more would have to pay.
    """
    cost = cost if math.isfinite(cost) else UNKNOWN_S
    if not change.steps:
        return change.unchanged
    more = any(step.to > step.now for step in change.steps)
    if not more:
        if change.source_held or change.holds < 1.0:
            return "a source is held, so fewer replicas are not known to do"
        return None if cost <= within_s / 10 else f"fewer do, but a restart costs {cost:.0f} s"
    if not change.gain >= GAIN:
        return f"it would bring {max(0.0, change.gain - 1):.0%}"
    after_s = change.pays_after_s(cost)
    if after_s > within_s:
        return f"a restart of {cost:.0f} s would pay after {after_s:.0f} s"
    return None


def tried(
    before: Sequence[Done], change: Change, rate: float, pause_s: float, now_s: float
) -> str | None:
    """Why a change that failed already is not made once more, in words; None if it may be.

    One that goes as far as it or farther is the same. Each failure in a row doubles the pause,
    unless the query takes in clearly more than then, or less where fewer replicas are asked for.
    rate: that it takes in, tuples/s. now_s: Unix time.
    """
    same = [done for done in before if done.outcome != "asked" and _as_far(change, done)]
    times = 0
    while times < len(same) and same[-1 - times].outcome in FAILED:
        times += 1
    if not times:
        return None
    last = same[-1]
    again_s = last.at_s + pause_s * 2.0**times
    more = any(step.to > step.now for step in change.steps)
    other = last.before and (rate >= OTHER * last.before if more else OTHER * rate <= last.before)
    if not last.at_s <= now_s < again_s or other:  # a clock that was set back tells nothing
        return None
    then, again = (time.strftime("%Y-%m-%d %H:%M", time.localtime(s)) for s in (last.at_s, again_s))
    return f"tried {then}, {FAILED[last.outcome]}: not again before {again}"


def _as_far(change: Change, done: Done) -> bool:
    """Whether it gives the same operators as many replicas, or more of more, or fewer of fewer."""
    became, was = (
        {tuple(logical): count for logical, count in told} for told in (done.became, done.was)
    )
    if (change.engine, change.query) != (done.engine, done.query):
        return False
    if became.keys() != change.replicas.keys():
        return False
    for step in change.steps:
        up, to = (1 if step.to > step.now else -1), became[step.logical]
        if not up * step.to >= up * to > up * was.get(step.logical, step.now):
            return False
    return True


def is_worse(before: float, after: float, error: float = 0.0) -> bool:
    """Whether a query takes in clearly less than before, in tuples/s.

    error: standard error of the difference. Storm counts a sample: of 200 tuples/s over five
    seconds it tells 200, give or take 20.
    """
    return before > 0 and after + SURE * error < WORSE * before
