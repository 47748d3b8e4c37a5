"""How many threads pay off: a level that follows throughput, by the paper's rule and by our own.

Pure: a step takes a state and what one period at its level gave, and returns the state with the
level of the next period. throughput: tuples/s of all operators together, not of the sinks alone.
busy: share of the system's CPUs, 0..1. A period in which threads that were told to stop did not is
not to be told at all.

*The paper's* (Schneider and Wu, PLDI 2017, figures 7 and 8), `rule`: what each level gave; up while
throughput grew by more than `SENS` from the level below, down where it did not. Left open there and
decided here: the load has changed when throughput differs by more than `SENS` from what this level
gave last; at both ends there is nothing beyond, and nothing to trust; and the steps. Of +1 each, a
straight line is climbed to level 20, where one thread more is 1 / 20 = `SENS`. So levels grow by
half until the rule first goes down or stays, and from then on by steps of which a straight line
still shows twice `SENS`: of 1 up to level 10. Noise alone is a change in load again and again, so
that one does not bring the large steps back.

*Our own*, `weighed`: the same ladder, but each two levels take turns (kept, other, other, kept,
kept, other ...) until Student's t tells on which side of `WORTH` the logarithm of their ratio lies;
where that cannot be told within `MOST_LOOKS`, more threads have to bring half of what as many more
would on a straight line. What periods at one level differ by
is the noise, so no threshold is trusted before it is known. The i-th look at two levels errs with
`race.spending(i, 1)`: each comparison with `race.ALPHA` at most. It searches
again when two periods in a row are beyond what is usual, which noise alone hardly ever does, and
now and then: where more threads have become worth it, the throughput of few does not tell.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sched_ctl.adapt import race

__all__ = ["BUSY", "SENS", "Elastic", "Rule", "begun", "rule", "ruled", "weighed"]

SENS = 0.05  # section 4.2 there
BUSY = 0.80  # of the system's CPUs: no more threads above that, in both rules
GROWTH = 1.5
WORTH = math.log(1.02)  # what more threads have to bring
NOISE_PERIODS = 4  # at the first level, to know the noise
MOST_LOOKS = 12
NOISE_KEPT = 60  # degrees of freedom: older differences count less
USUAL = 16  # periods that say what is usual
PAUSE, LONGEST_PAUSE = 20, 160  # periods from settled to a new look
ODD = 1e-3  # chance that a period is taken for another than usual; it takes two in a row


# --- the paper's rule ---


@dataclass(frozen=True)
class Rule:
    """The paper's state. least: at least 1 + the most inputs of an operator, where operators may
    block; most: at most the CPUs. single: steps of 1 always. fine: small steps now. gave: what the
    trusted levels gave last, tuples/s.
    """

    least: int
    most: int
    level: int
    single: bool = False
    fine: bool = False
    gave: Mapping[int, float] = field(default_factory=dict)
    busy_limit: float = BUSY


def ruled(least: int, most: int, *, single: bool = False, busy_limit: float = BUSY) -> Rule:
    """The paper's rule, at its least level."""
    _check(least, most)
    return Rule(least, most, least, single, busy_limit=busy_limit)


def rule(state: Rule, throughput: float, busy: float = 0.0) -> Rule:
    """One period of figure 8. A throughput that is not known changes nothing."""
    if not (math.isfinite(throughput) and throughput >= 0):
        return state
    last = state.gave.get(state.level, throughput)
    is_other_load = abs(throughput - last) > SENS * last
    known = {} if is_other_load else state.gave
    state = replace(state, gave={**known, state.level: throughput})
    level = _wanted(state, throughput, busy)
    return replace(state, level=level, fine=state.fine or level <= state.level)


def _wanted(state: Rule, throughput: float, busy: float) -> int:
    """The level that the trends to both sides ask for."""
    small = state.fine or state.single
    below = below_of(state.level, state.least, small=small, single=state.single)
    above = above_of(state.level, state.most, small=small, single=state.single)
    under = state.gave.get(below) if below < state.level else None
    over = state.gave.get(above) if above > state.level else None
    rises_here = under is not None and throughput - under > SENS * under
    rises_above = over is not None and over - throughput > SENS * throughput
    is_new_above = above > state.level and over is None
    is_tried = (rises_here or state.level == state.least) and is_new_above
    if busy <= state.busy_limit and (rises_above or is_tried):
        return above
    return state.level if rises_here else below


# --- our own ---


@dataclass(frozen=True)
class Elastic:
    """Our state. level: of this period. kept: who stays unless another is better. other: who is
    compared with it; None while nothing is tried.

    ours, theirs: logarithms of throughput at `kept` and at `other` in this comparison. squares,
    freedom: half the sum of squares of differences between periods in a row at one level, and how
    many. fine: small steps. usual: at `kept`, since it settled. odd: periods in a row unlike those.
    quiet: periods since then, pause: until it looks again. before: where it settled the last time.
    comparisons, reopened: counts of what happened.
    """

    least: int
    most: int
    level: int
    kept: int
    other: int | None = None
    fine: bool = False
    seeks_up: bool = True
    moved: bool = False  # in this direction, so the way back is known to be worse
    ours: tuple[float, ...] = ()
    theirs: tuple[float, ...] = ()
    usual: tuple[float, ...] = ()
    last: tuple[int, float] | None = None
    squares: float = 0.0
    freedom: int = 0
    settled: bool = False
    odd: int = 0
    quiet: int = 0
    pause: int = PAUSE
    before: int = 0
    comparisons: int = 0
    reopened: int = 0
    busy_limit: float = BUSY

    @property
    def noise(self) -> float:
        """Standard deviation of the logarithm of one period's throughput; NaN before two."""
        return math.sqrt(self.squares / self.freedom) if self.freedom else math.nan


def begun(least: int, most: int, *, level: int | None = None, busy_limit: float = BUSY) -> Elastic:
    """Our own rule, at a level: the least, if not told."""
    _check(least, most)
    first = least if level is None else min(max(level, least), most)
    return Elastic(least, most, first, first, busy_limit=busy_limit)


def weighed(state: Elastic, throughput: float, busy: float = 0.0) -> Elastic:
    """One period. A throughput that is 0 or not known tells nothing, and keeps the level."""
    if not (math.isfinite(throughput) and throughput > 0):
        return replace(state, last=None)
    value = math.log(throughput)
    state = _with_noise(state, value)
    other = state.other
    if other is None:
        return _steady(state, value, busy)
    if state.level == state.kept:
        state = replace(state, ours=(*state.ours, value))
    else:
        state = replace(state, theirs=(*state.theirs, value))
    if not (state.ours and state.theirs):
        return replace(state, level=other)
    higher_wins = _judged(state)
    if higher_wins is None:
        return replace(state, level=_turn(state))
    return _decided(state, higher_wins == (other > state.kept), value, busy)


def _with_noise(state: Elastic, value: float) -> Elastic:
    """With what two periods in a row at one level differ by. A change in load is no noise, so a
    difference counts as three times what is known by then at most.
    """
    last, state = state.last, replace(state, last=(state.level, value))
    if last is None or last[0] != state.level:
        return state
    apart = abs(value - last[1])
    if state.freedom >= NOISE_PERIODS - 1:
        apart = min(apart, max(SENS, 3 * math.sqrt(2) * state.noise))
    keep = min(1.0, NOISE_KEPT / (state.freedom + 1))
    squares = keep * (state.squares + apart**2 / 2)
    return replace(state, squares=squares, freedom=min(state.freedom + 1, NOISE_KEPT))


def _judged(state: Elastic) -> bool | None:
    """Whether the higher of the two levels is worth it; None if that cannot be told yet."""
    assert state.other is not None
    gain = statistics.fmean(state.theirs) - statistics.fmean(state.ours)
    if state.other < state.kept:
        gain = -gain
    looks = len(state.ours) + len(state.theirs) - 1
    error = state.noise * math.sqrt(1 / len(state.ours) + 1 / len(state.theirs))
    sure = race.spending(looks, 1)
    for above, answer in ((gain - WORTH, True), (WORTH - gain, False)):
        if race.is_sure(above, error, state.freedom, sure):
            return answer
    if looks < MOST_LOOKS:
        return None
    lower, higher = sorted((state.kept, state.other))
    return gain > math.log(higher / lower) / 2


def _turn(state: Elastic) -> int:
    """Kept, other, other, kept, kept, other ...: what drifts counts for nobody."""
    assert state.other is not None
    done = len(state.ours) + len(state.theirs)
    return state.other if (done + 1) // 2 % 2 else state.kept


def _decided(state: Elastic, wins: bool, value: float, busy: float) -> Elastic:
    """A comparison is over: what is kept, and who is compared next."""
    assert state.other is not None
    kept = state.other if wins else state.kept
    here = value if state.level == kept else statistics.fmean(state.theirs if wins else state.ours)
    state = replace(
        state, kept=kept, other=None, ours=(here,), theirs=(), comparisons=state.comparisons + 1
    )
    if wins:
        return _next(replace(state, moved=True), busy)
    if state.seeks_up and not state.moved:
        return _next(replace(state, seeks_up=False), busy)
    return _turned(state, busy)


def _turned(state: Elastic, busy: float) -> Elastic:
    """No way further in large steps: small ones, up and then down; after these it has settled."""
    if not state.fine:
        return _next(replace(state, fine=True, seeks_up=True, moved=False), busy)
    same = state.kept == state.before
    pause = min(2 * state.pause, LONGEST_PAUSE) if same else PAUSE
    state = replace(state, settled=True, quiet=0, pause=pause, before=state.kept)
    return replace(state, level=state.kept, usual=(), ours=())


def _next(state: Elastic, busy: float) -> Elastic:
    """The next level in the direction of the search."""
    if state.seeks_up:
        other = above_of(state.kept, state.most, small=state.fine)
        if other == state.kept or busy > state.busy_limit:
            if state.moved:
                return _turned(state, busy)
            return _next(replace(state, seeks_up=False), busy)
    else:
        other = below_of(state.kept, state.least, small=state.fine)
        if other == state.kept:
            return _turned(state, busy)
    return replace(state, other=other, level=other)


def _steady(state: Elastic, value: float, busy: float) -> Elastic:
    """A period in which nothing is tried: to know the noise, or settled."""
    if not state.settled:
        seen = (*state.usual, value)
        if len(seen) < NOISE_PERIODS:
            return replace(state, usual=seen)
        return _next(replace(state, usual=(), ours=(value,)), busy)
    state = replace(state, quiet=state.quiet + 1)
    if state.quiet >= state.pause:
        return _again(state, value, busy)
    if not _is_odd(state, value):
        return replace(state, usual=(*state.usual, value)[:USUAL], odd=0)
    if state.odd == 0:
        return replace(state, odd=1, last=None)
    state = replace(state, before=0, reopened=state.reopened + 1)
    return _again(state, value, busy)


def _is_odd(state: Elastic, value: float) -> bool:
    """Whether a period is not as usual at this level."""
    if len(state.usual) < race.FEWEST:
        return False
    apart = abs(value - statistics.fmean(state.usual))
    error = state.noise * math.sqrt(1 + 1 / len(state.usual))
    return apart > SENS and race.is_sure(apart, error, state.freedom, ODD / 2)


def _again(state: Elastic, value: float, busy: float) -> Elastic:
    """Search again from what is kept, in large steps first."""
    state = replace(state, settled=False, fine=False, seeks_up=True, moved=False, odd=0)
    return _next(replace(state, usual=(), ours=(value,)), busy)


# --- the ladder ---


def above_of(level: int, most: int, *, small: bool, single: bool = False) -> int:
    """The level above; the same at the top."""
    return min(most, level + _width(level, small=small, single=single))


def below_of(level: int, least: int, *, small: bool, single: bool = False) -> int:
    """The level from which `above_of` leads here or further; the same at the bottom."""
    below = level
    while below > least:
        below -= 1
        if below + _width(below, small=small, single=single) <= level:
            break
    return below


def _width(level: int, *, small: bool, single: bool) -> int:
    """A step of which a straight line shows twice `SENS`, or half of the level."""
    if single:
        return 1
    return max(1, math.ceil(level * (2 * SENS if small else GROWTH - 1)))


def _check(least: int, most: int) -> None:
    if not 1 <= least <= most:
        raise ValueError(f"levels from {least} to {most}: there are none")
