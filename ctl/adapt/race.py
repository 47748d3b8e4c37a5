"""`auto` as a race: what comes of each order, beside the system's own scheduling, decides.

Pure: `step` takes a race and what one phase gave, and returns the race with the arm whose turn it
is next. Arm 0 is the operating system's own scheduling, the others are orders that suit.

*Phases.* A half-round gives each arm that is left one phase, and no more than two in a row are not
the system's own. The next one goes the other way round, so that a load that rises or falls counts
for nobody:

    (dropped) os A B os C | C os B A os | os B C os A | A os C B os ...

Each half-round gives, for each arm, the logarithms of its ratios to the system's own (`Score`).

*Judgement.* After each round an arm is out when it is worse than the best or the system's own
beyond its own spread, or loses throughput (past saturation: of what leaves, see `by_output`); or,
unless one figure alone is the objective, the median or p99. It has won when it is the best, and
better than the system's own beyond its spread; the one that was expected to win a round sooner than
others. Both by Student's t on the half-rounds. A mistake has two prices. Who stays by mistake stays
for long, and looks are many: the i-th may err with `ALPHA / (arms * i * (i + 1))` alone, so that
all looks at all arms together err with `ALPHA` at most (Bonferroni over arms, a spending that adds
up to 1 over looks; Lan and DeMets 1983). Who is out by mistake takes part in the next race, while
one that is worse costs each phase it gets: `OUT` at each look. When nothing is told apart within
`MOST_ROUNDS`, the system's own stays; if the best seems to be better by then (`HOPE`), within twice
as many.

*Harm.* While arms are tried a phase with three times the time in the system of the system's own, in
the same stretch of time, is ended at once and costs a strike; the next phase is the system's own
and counts for nothing, as what queued must drain; two strikes are out. So it is with thirty times
the median beside each of the last three phases of the system's own there, once there are so many,
unless one figure is the objective: a mean that is less than half may hide it. A phase that is over
and took in less than a tenth, of all or of a query that it stopped, costs one, too. Smaller losses
are judged over half-rounds alone: of tuples that come in batches one phase may get a third of
another's.

*Calm.* Where nobody waits for a CPU nothing is tried and nothing changed. A half-round that ends so
goes on when somebody waits again; phases are compared with those of the same stretch alone. When
`MOST_BROKEN` stretches in a row were too short to compare anything, the system's own stays.

*Afterwards* the winner stays. A phase of the system's own now and then, the rarer the more it would
cost, is compared with those before and after; where that looks bad the next one comes soon, and
at once after a phase that is three times as bad as the last one of the system's own, however old
that is: a burst that slows all orders alike costs one such phase, and opens no race; none other is
called for until the next of the rare ones. When rates, costs, engines or times are no longer those
under which it won, the race opens again, and after `REOPEN` phases anyway.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from sched_ctl.adapt.effect import AWAKE, COUNTED, Effect

__all__ = [
    "ALPHA",
    "MEDIAN",
    "OS",
    "Arm",
    "Figures",
    "Objective",
    "Race",
    "Score",
    "by_output",
    "compare",
    "compared",
    "harms",
    "is_sure",
    "is_worse",
    "opened",
    "price",
    "spending",
    "step",
    "told",
]

OS = "os"
ALPHA = 0.05  # chance that an arm no better than the system's own is kept
OUT = 0.05  # at each look: that one is out which is no worse than the system's own, or the best
OUT_BY_LESS = 0.01  # ... that is out by its throughput, median or p99
HOPE = 0.05
LEAST_S = (
    1e-3  # below that, a time in the system is as good as none: whose is longer does not count
)
FEWEST = 4  # half-rounds before anything is said
ROUNDS = 3  # after so many the best is kept, if it is better than the system's own
MOST_ROUNDS = 12
MOST_BROKEN = 24  # stretches in a row that end before an arm could be compared
HARM = math.log(3.0)  # so much worse in one phase is ended at once
HARM_HALF = math.log(30.0)  # likewise of the median ...
OWN = 3  # ... beside each of so many phases of the system's own: one may have a short one by chance
STOPPED = math.log(10.0)  # so much less taken in over a whole phase counts like harm
LOST = -math.log(0.98)  # throughput
MEDIAN = math.log(1.2)  # of the queries' geometric mean
TAIL = math.log(1.05)
MISSED = 0.01  # share of tuples beyond their target that counts for nothing
WIDEST = math.log(1e3)  # ratios beyond it are not told apart
PRICE = 0.01  # of the time in the system, that the phases of the system's own may cost afterwards
RARE, RAREST = 20, 400  # phases from one of them to the next
SOON = 2
DOUBT = math.log(1.1)
REOPEN, REOPEN_AT_MOST = 180, 2160  # phases
USUAL = 16  # phases that say under what the winner won
LONG = 3.0  # phases that one of the system's own counts as at most, as it is one look
CHANGED_RATE, CHANGED_TIME = math.log(1.25), math.log(2.0)
ODD = 1e-4  # chance that a phase is taken for another than usual; it takes two in a row

Objective = Literal["all", "mean", "median", "p99", "worst"]
Mode = Literal["race", "kept"]


class Score(NamedTuple):
    """An arm beside the system's own: logarithms of ratios, above 0 = worse; NaN = not known.

    time: of what counts, see `compare`. lost: throughput. median, tail: p50 and p99 of latency.
    """

    time: float = math.nan
    lost: float = math.nan
    median: float = math.nan
    tail: float = math.nan


@dataclass(frozen=True)
class Figures:
    """What one phase gave. pressed: threads waited for a CPU. over: it was a whole phase; what one
    that ended early took in tells nothing. phases: how many of the usual length it was as long as.
    """

    effects: tuple[Effect, ...] = ()
    pressed: bool = True
    over: bool = True
    phases: float = 1.0


@dataclass(frozen=True)
class Arm:
    """One order, and how it compares. scores: by half-round. ratio: the last known mean of their
    times. phases: that it was in force. times: by query, what counts of it, summed up over so many
    seconds.
    """

    name: str
    scores: Mapping[int, Score] = field(default_factory=dict)
    strikes: int = 0
    out: str = ""  # why, in words
    ratio: float = math.nan
    phases: int = 0
    times: Mapping[tuple[str, str], tuple[float, float]] = field(default_factory=dict)

    @property
    def time(self) -> float:
        """Mean over the half-rounds; infinite where nothing is known."""
        known = _known(score.time for score in self.scores.values())
        return statistics.fmean(known) if known else math.inf


@dataclass(frozen=True)
class Race:
    """The state. turn: the arm in force, for one phase. kept: the one that stays while nothing is
    tried. expected: the one that was best elsewhere; 0 = none. drop: this phase does not count.
    left: turns of this half-round that are still to come, `seen`: what those that are over gave, in
    this stretch of time; os: the last of the system's own in it; owns: the last few, of more than
    one half-round. broken: stretches in a row in which nothing could be compared.

    Afterwards: checks: scores of the winner. before: its phase before one of the system's own.
    """

    arms: tuple[Arm, ...]
    objective: Objective = "all"
    kept: int = 1
    expected: int = 0
    turn: int = 1
    mode: Mode = "race"
    begun: bool = False
    drop: bool = True
    left: tuple[int, ...] = ()
    seen: tuple[tuple[int, Figures], ...] = ()
    half: int = 0
    broken: int = 0
    os: Figures = field(default_factory=Figures)
    owns: tuple[Figures, ...] = ()
    checks: tuple[Score, ...] = ()
    before: Figures | None = None
    own: Figures | None = None
    quiet: float = 0.0  # phases since the winner won, see `_length`
    check_in: int = RARE
    reopen_after: int = REOPEN
    usual: tuple[Figures, ...] = ()
    odd: int = 0  # phases in a row that were not as usual
    why: str = ""  # why the race is open, or why it ended, in words
    races: int = 0  # that have ended


def opened(
    names: Sequence[str], objective: Objective = "all", kept: int = 1, expected: int = 0
) -> Race:
    """A race of the system's own with these. kept: which is in force until somebody waits.
    expected: which may win a round sooner; 0 = none.
    """
    if not names:
        raise ValueError("nobody takes part in the race")
    return Race(tuple(Arm(name) for name in (OS, *names)), objective, kept, expected, kept)


def step(race: Race, figures: Figures) -> Race:
    """A phase of `race.turn` is over."""
    arm = race.arms[race.turn]
    race = _with_arm(race, race.turn, replace(arm, phases=arm.phases + 1))
    if not figures.pressed:
        return _calm(race)
    if race.mode == "kept":
        return _watch(race, figures)
    if not race.begun:
        return _begun(race, race.left or _order(race))
    if race.drop:
        return _next(replace(race, drop=False))
    if race.turn == 0:
        race = replace(race, os=figures, owns=(*race.owns, figures)[-OWN:])
    race = replace(race, seen=(*race.seen, (race.turn, figures)))
    race = _with_arm(race, race.turn, _timed(race.arms[race.turn], figures, race.objective))
    if race.turn and (harms(race, figures) or _stops_intake(race, figures)):
        return _struck(race)
    return _next(race)


def harms(race: Race, figures: Figures) -> bool:
    """Whether what is seen so far of this phase is so bad that it should end now."""
    if race.turn == 0 or not race.os.effects:
        return False
    figures = replace(figures, over=False)
    return compare(figures, race.os, race.objective).time > HARM or _harms_half(race, figures)


def _harms_half(race: Race, figures: Figures) -> bool:
    """Whether half of all tuples pay so much for the mean, beside each of `OWN` phases of the
    system's own in this stretch: a median is far from the next by chance where a queue is short and
    then not.
    """
    if race.mode != "race" or race.objective != "all":
        return False
    medians = _known(compare(figures, theirs).median for theirs in race.owns)
    return len(medians) >= OWN and min(medians) > HARM_HALF


def _stops_intake(race: Race, figures: Figures) -> bool:
    """Whether next to nothing was taken in, of all or of a query that counts for as much as harm.
    Of a phase that is over: by less, it may be batches."""
    score = compare(figures, race.os, race.objective)
    return score.lost > STOPPED or score.time > HARM


def compare(ours: Figures, theirs: Figures, objective: Objective = "all") -> Score:
    """Ours beside theirs, query by query; of queries that both tell of, times from the same source.

    A query that stops in one of them has no time from that source there, and one without bound.
    Whether one stops, and what is taken in, is told of whole phases alone.

    The objective says what is made of the queries' ratios: of the mean times in the system ("all"
    too), of p50 or p99 where they are told (their mean, so the ratio of geometric means), or the
    worst of them.
    Queries with a target count by the share of tuples that missed it, too.
    """
    known = {effect.key: effect for effect in theirs.effects}
    both = [(mine, known[mine.key]) for mine in ours.effects if mine.key in known]
    pairs = [(mine, other) for mine, other in both if mine.source == other.source]
    stopped = [(mine, other) for mine, other in both if _stops(mine, other) or _stops(other, mine)]
    over = ours.over and theirs.over
    time = _time(pairs, stopped if over else [], objective)
    missed = _known(
        _ratio(1 - mine.within_target, 1 - other.within_target, MISSED) for mine, other in pairs
    )
    if missed:
        time = statistics.fmean(missed) + (0.0 if math.isnan(time) else time)
    flows = [
        (mine.tuples_in, other.tuples_in)
        for mine, other in (*pairs, *stopped)
        if math.isfinite(mine.tuples_in + other.tuples_in)
    ]
    mine_in, other_in = (sum(column) for column in zip(*flows, strict=True)) if flows else (0, 0)
    return Score(
        time,
        _ratio(other_in, mine_in, other_in * 1e-3) if over and other_in > 0 else math.nan,
        _mean(_medians(mine, other) for mine, other in pairs),
        _mean(_ratio(mine.p99_s, other.p99_s, LEAST_S) for mine, other in pairs),
    )


def compared(
    ours: Sequence[Figures], theirs: Sequence[Figures], objective: Objective = "all"
) -> list[Score]:
    """Each of ours beside each of theirs, all of one stretch of time; throughput `by_output`."""
    pieces = by_output([*ours, *theirs])
    count = len(ours)
    return [compare(mine, other, objective) for mine in pieces[:count] for other in pieces[count:]]


def by_output(pieces: Sequence[Figures]) -> list[Figures]:
    """With what left in place of what was taken in, of queries with tuples older than each piece.

    Past saturation each order takes in what it can, and one that lets tuples in first has them wait
    inside. What is in the system for longer than a phase tells nothing of that phase: only what
    leaves does. It is told in tuples taken in, of which all pieces say how many come to one that
    leaves: queries are added up, and an aggregation gives few. Of others what is taken in tells
    more, as windows give much at a time. Threads that are guessed from wake-ups tell of no tuples.
    """
    told = [{effect.key: effect for effect in piece.effects} for piece in pieces]
    given = {
        key
        for key in set(told[0]).intersection(*told[1:])
        if all(one[key].tuples_out > 0 and one[key].time_s > one[key].seconds for one in told)
        and len({one[key].source for one in told}) == 1
        and told[0][key].source != AWAKE
        and sum(one[key].tuples_in for one in told) > 0
    }
    per_out = {
        key: sum(one[key].tuples_in for one in told) / sum(one[key].tuples_out for one in told)
        for key in given
    }
    return [
        replace(
            piece,
            effects=tuple(
                replace(effect, tuples_in=effect.tuples_out * per_out[effect.key])
                if effect.key in given
                else effect
                for effect in piece.effects
            ),
        )
        for piece in pieces
    ]


def _time(
    pairs: Sequence[tuple[Effect, Effect]],
    stopped: Sequence[tuple[Effect, Effect]],
    objective: Objective,
) -> float:
    """The log of the ratio of times in the system, ours to theirs; NaN where none is known."""
    ratios = _known(_levels(mine, other, objective) for mine, other in pairs)
    ratios += [WIDEST if _stops(mine, other) else -WIDEST for mine, other in stopped]
    if not ratios:
        return math.nan
    return max(ratios) if objective == "worst" else statistics.fmean(ratios)


def is_worse(values: Sequence[float], margin: float, level: float) -> bool:
    """Whether the mean of these is above the margin, by Student's t, at a level (0..1)."""
    known = _known(values)
    if len(known) < FEWEST:
        return False
    above = statistics.fmean(known) - margin
    if above <= 0:
        return False
    error = statistics.stdev(known) / math.sqrt(len(known))
    return is_sure(above, error, len(known) - 1, level)


def is_sure(above: float, error: float, freedom: int, level: float) -> bool:
    """Whether a mean is above 0, by Student's t, at a level (0..1). error: its standard error, from
    so many degrees of freedom.
    """
    if above <= 0 or freedom < 1:
        return False
    if error == 0:
        return True
    return _normal(above / error, freedom) > statistics.NormalDist().inv_cdf(1 - level)


def spending(look: int, arms: int) -> float:
    """The level of the look-th look, from 1 on, at one of so many arms: in all, `ALPHA`."""
    return ALPHA / (arms * look * (look + 1))


# --- the race ---


def _begun(race: Race, order: tuple[int, ...]) -> Race:
    """Arms are tried from now on: first the system's own, which what follows is compared with."""
    order = order if order[0] == 0 else (0, *order)
    race = replace(race, begun=True, turn=0, drop=True, left=order, seen=())
    return replace(race, os=Figures(), owns=())


def _calm(race: Race) -> Race:
    """Nobody waits any more: what this half-round gave so far counts, the rest is still to come."""
    if race.begun and race.mode == "race":
        undone = () if race.drop else (race.turn,)
        if not any(turn == 0 for turn, _ in race.seen):
            undone = (*(turn for turn, _ in race.seen if not race.arms[turn].out), *undone)
        compared = len(race.seen) > 1 and not undone[:-1]
        broken = 0 if compared else race.broken + 1
        race = replace(_reckoned(race), left=(*undone, *race.left), broken=broken)
        if not any(race.left):
            race = _ended(race)
        elif broken >= MOST_BROKEN:
            race = _kept(race, 0, "threads never wait for long enough to compare anything")
    race = replace(race, turn=race.kept, drop=True, begun=False, before=None, own=None)
    return replace(race, os=Figures(), owns=())


def _next(race: Race) -> Race:
    """The next turn; after the last one of a half-round the reckoning."""
    if not race.left:
        race = _ended(replace(_reckoned(race), broken=0))
        if race.mode == "kept":
            return race
    return replace(race, turn=race.left[0], left=race.left[1:])


def _reckoned(race: Race) -> Race:
    """With a score of each arm that was seen, beside what was seen of the system's own."""
    own = [figures for turn, figures in race.seen if turn == 0]
    arms = list(race.arms)
    for turn, figures in race.seen:
        if turn and own:
            beside = compared([figures], own, race.objective)
            score = _means(list(zip(*beside, strict=True)))
            arms[turn] = replace(arms[turn], scores={**arms[turn].scores, race.half: score})
    arms = [replace(arm, ratio=arm.time if math.isfinite(arm.time) else arm.ratio) for arm in arms]
    return replace(race, arms=tuple(arms), seen=())


def _ended(race: Race) -> Race:
    """A half-round is over: the next one, or after a whole round whoever has won by then."""
    race = replace(race, half=race.half + 1)
    if race.half % 2 == 0:
        race = _judged(race)
    return race if race.mode == "kept" else replace(race, left=_order(race))


def _order(race: Race) -> tuple[int, ...]:
    """The turns of the half-round that begins."""
    active = _active(race)
    by = (race.half // 2) % max(1, len(active))
    rotated = (*active[by:], *active[:by])
    pairs = [rotated[i : i + 2] for i in range(0, len(rotated), 2)]
    order = [turn for pair in pairs for turn in (0, *pair)]
    if len(rotated) % 2 == 0:
        order.append(0)
    return tuple(order if race.half % 2 == 0 else order[::-1])


def _active(race: Race) -> tuple[int, ...]:
    return tuple(turn for turn, arm in enumerate(race.arms) if turn and not arm.out)


def _struck(race: Race) -> Race:
    """The arm whose turn it was did harm: the system's own now, and what is queued drains."""
    turn = race.turn
    arm = race.arms[turn]
    arm = replace(arm, strikes=arm.strikes + 1)
    if arm.strikes > 1:
        score = compare(race.seen[-1][1], race.os, race.objective)
        arm = replace(arm, out=f"harmful: {_words(score)}", ratio=score.time)
    race = _with_arm(race, turn, arm)
    left = tuple(t for t in race.left if t != turn or not arm.out)
    kept = 0 if race.kept == turn else race.kept
    return replace(race, turn=0, drop=True, left=left, kept=kept)


def _judged(race: Race) -> Race:
    """After a round: who is out, and whether the race is over."""
    rounds, arms = race.half // 2, len(race.arms) - 1
    if rounds < FEWEST // 2:
        return race
    level = spending(rounds - FEWEST // 2 + 1, arms)
    for turn in _active(race):
        out = _fault(race, turn)
        if out:
            race = _with_arm(race, turn, replace(race.arms[turn], out=out))
    active = [turn for turn in _active(race) if _is_allowed(race, turn)]
    lead = min(active, key=lambda turn: race.arms[turn].time, default=0)
    gains = [-score.time for score in race.arms[lead].scores.values()]
    better = lead and is_worse(gains, 0.0, level)
    alone = len(_active(race)) <= 1
    if better and (alone or lead == race.expected or rounds >= ROUNDS):
        return _kept(race, lead, "better than the system's own beyond its spread")
    if not _active(race):
        return _kept(race, 0, "all others were worse")
    most = MOST_ROUNDS * (2 if lead and is_worse(gains, 0.0, HOPE) else 1)
    if rounds >= most:
        return _kept(race, 0, "nothing was better beyond its spread")
    return race


def _fault(race: Race, turn: int) -> str:
    """Why an arm is out; "" if it is not."""
    scores = race.arms[turn].scores
    columns = list(zip(*scores.values(), strict=True))
    if not columns:
        return ""
    for what, values, margin, level in zip(
        ("time in the system", "throughput", "the median", "p99"),
        columns,
        (0.0, LOST, MEDIAN, 0.0),
        (OUT, OUT_BY_LESS, OUT_BY_LESS, OUT_BY_LESS),
        strict=True,
    ):
        if what in ("the median", "p99") and race.objective != "all":
            continue
        if is_worse(values, margin, level):
            return f"{what} worse than the system's own: {_words(_means(columns))}"
    best = min(_active(race), key=lambda other: race.arms[other].time)
    both = scores.keys() & race.arms[best].scores.keys()
    if best != turn and _is_allowed(race, best):
        ahead = [scores[half].time - race.arms[best].scores[half].time for half in both]
        if is_worse(ahead, 0.0, OUT):
            return f"worse than {race.arms[best].name}: {_words(_means(columns))}"
    return ""


def _is_allowed(race: Race, turn: int) -> bool:
    """Whether an arm keeps throughput, and median and p99 unless another objective is asked for, as
    far as can be told: but for one standard error.
    """
    arm, limits = race.arms[turn], {"lost": LOST}
    if race.objective == "all":
        limits |= {"median": MEDIAN, "tail": TAIL}
    for what, limit in limits.items():
        known = _known(getattr(score, what) for score in arm.scores.values())
        if len(known) < 2:
            continue
        error = statistics.stdev(known) / math.sqrt(len(known))
        if statistics.fmean(known) - error > limit:
            return False
    return math.isfinite(arm.time)


def _kept(race: Race, winner: int, why: str) -> Race:
    """The race is over, and the winner stays."""
    ratio = race.arms[winner].ratio if winner else 0.0
    again = winner == race.kept and race.races > 0
    return replace(
        race,
        mode="kept",
        kept=winner,
        turn=winner,
        drop=True,
        left=(),
        seen=(),
        broken=0,
        checks=(),
        before=None,
        own=None,
        quiet=0.0,
        check_in=_pause(ratio),
        reopen_after=min(2 * race.reopen_after, REOPEN_AT_MOST) if again else REOPEN,
        usual=(),
        odd=0,
        why=why,
        races=race.races + 1,
    )


def _pause(ratio: float) -> int:
    """Phases from one of the system's own to the next, for what that costs."""
    cost = math.expm1(-ratio) if math.isfinite(ratio) else 1.0
    return round(min(max(cost / PRICE, RARE), RAREST))


# --- afterwards ---


def _watch(race: Race, figures: Figures) -> Race:
    """A phase after the race: of the winner, or of the system's own between two of the winner's."""
    race = replace(race, quiet=race.quiet + _length(race, figures))
    if race.drop and race.turn == race.kept:
        return replace(race, drop=False)
    if race.turn == 0 and race.kept:
        return replace(race, turn=race.kept, own=figures, os=figures)
    if race.own is not None:
        race = _checked(race, figures)
        if race.mode == "race":
            return race
    why = ""
    if sum(_length(race, one) for one in race.usual) < USUAL:
        race = replace(race, usual=(*race.usual, figures))
    else:
        why = changed(race.usual, figures)
    race = replace(race, odd=race.odd + 1 if why else 0)
    if race.odd >= 2:
        return _reopened(race, why)
    if race.quiet >= race.reopen_after:
        return _reopened(race, "it is time to look again")
    if race.kept == 0:
        return race
    if harms(race, figures):  # which is no part of the comparison that it calls for
        return replace(race, turn=0, before=None)
    if race.check_in <= 1:
        return replace(race, turn=0, before=figures, check_in=_pause(race.arms[race.kept].ratio))
    return replace(race, check_in=race.check_in - 1)


def _length(race: Race, figures: Figures) -> float:
    """Phases that one counts as: of the system's own, which is looked at rarely, by its length.

    An order pays for each race, and its phases are long where an engine, or a pass, takes long.
    """
    return min(max(1.0, figures.phases), LONG) if race.kept == 0 else 1.0


def _checked(race: Race, after: Figures) -> Race:
    """One comparison more of the winner with the system's own."""
    own = race.own
    assert own is not None
    around = [figures for figures in (race.before, after) if figures is not None]
    beside = compared(around, [own], race.objective)
    score = _means(list(zip(*beside, strict=True)))
    called = race.before is None  # for by a phase that seemed to do harm
    race = replace(race, checks=(*race.checks, score), before=None, own=None)
    # Of what leaves one phase gives much more than another by chance: it tells by all checks alone.
    taken = _mean(compare(figures, own, race.objective).lost for figures in around)
    if score.time > DOUBT or taken > 2 * LOST:
        race = replace(race, check_in=SOON)
    elif called:  # in vain: the next one is the rare one again
        race = replace(race, os=Figures(), check_in=_pause(race.arms[race.kept].ratio))
    looks = len(race.checks) - FEWEST + 1
    if looks < 1:
        return race
    level = spending(looks, 1)
    times, losses = ([s.time for s in race.checks], [s.lost for s in race.checks])
    if is_worse(times, 0.0, level / 2) or is_worse(losses, LOST, level / 2):
        return _reopened(
            replace(race, kept=0), f"{race.arms[race.kept].name} has become worse: {_words(score)}"
        )
    return race


def _reopened(race: Race, why: str) -> Race:
    """All take part again, from nothing."""
    arms = tuple(replace(arm, scores={}, strikes=0, out="") for arm in race.arms)
    race = replace(race, arms=arms, mode="race", half=0, why=why, checks=(), before=None, own=None)
    return _begun(replace(race, broken=0, odd=0), _order(race))


def changed(usual: Sequence[Figures], now: Figures) -> str:
    """In what a phase is not as usual; "" if it is."""
    if {e.key for e in now.effects} != {e.key for e in usual[-1].effects}:
        return "other queries run"
    sure = statistics.NormalDist().inv_cdf(1 - ODD / (2 * len(WORDS) * max(1, len(now.effects))))
    before: dict[tuple[str, str], list[Effect]] = {}
    for figures in usual:
        for effect in figures.effects:
            before.setdefault(effect.key, []).append(effect)
    for effect in now.effects:
        for what, least, limit in (
            ("tuples_in", 1e-9, CHANGED_RATE),
            ("cost_s", 1e-9, CHANGED_RATE),
            ("time_s", LEAST_S, CHANGED_TIME),
        ):
            known = _known(_log(getattr(one, what), least) for one in before[effect.key])
            value = _log(getattr(effect, what), least)
            if len(known) < FEWEST or math.isnan(value):
                continue
            apart = abs(value - statistics.fmean(known))
            error = statistics.stdev(known) * math.sqrt(1 + 1 / len(known))
            if apart > limit and (error == 0 or _normal(apart / error, len(known) - 1) > sure):
                return f"{WORDS[what]} of {effect.query} changed"
    return ""


WORDS = {"tuples_in": "the rate", "cost_s": "the cost", "time_s": "the time in the system"}


# --- numbers ---


def _stops(mine: Effect, other: Effect) -> bool:
    """Whether a query that the other took in stops here, so that no more is told of it as there.

    Where what is told instead says that nothing waits, it is the load that has ended.
    """
    little = mine.tuples_in * math.exp(STOPPED) < other.tuples_in
    return little and mine.source != other.source and not mine.time_s < LEAST_S


def _level(effect: Effect, objective: Objective) -> float:
    """What counts of a query."""
    value = {"median": effect.p50_s, "p99": effect.p99_s}.get(objective, math.nan)
    return value if math.isfinite(value) else effect.time_s


def _levels(mine: Effect, other: Effect, objective: Objective) -> float:
    """The log of the ratio of what counts; of the mean times where one tells nothing else."""
    ratio = math.nan
    if objective == "median":
        ratio = _medians(mine, other)
    elif objective == "p99":
        ratio = _ratio(mine.p99_s, other.p99_s, LEAST_S)
    return ratio if math.isfinite(ratio) else _ratio(mine.time_s, other.time_s, LEAST_S)


def _medians(mine: Effect, other: Effect) -> float:
    """The log of the ratio of the medians. By queues what is below the time of one tuple in them is
    that or nothing by chance.
    """
    rate = min(mine.tuples_in, other.tuples_in)
    tuple_s = 1 / rate if mine.source != COUNTED and rate > 0 else 0.0
    return _ratio(mine.p50_s, other.p50_s, max(LEAST_S, tuple_s))


def _ratio(above: float, below: float, least: float) -> float:
    """Logarithm of a ratio; what is below `least` counts as that."""
    if not (math.isfinite(above) and math.isfinite(below)):
        return math.nan
    ratio = math.log(max(above, least) / max(below, least))
    return min(max(ratio, -WIDEST), WIDEST)


def _log(value: float, least: float) -> float:
    return math.log(max(value, least)) if math.isfinite(value) else math.nan


def _known(values: Iterable[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _mean(values: Iterable[float]) -> float:
    known = _known(values)
    return statistics.fmean(known) if known else math.nan


def _means(columns: Sequence[Sequence[float]]) -> Score:
    return Score(*(_mean(column) for column in columns))


def price(race: Race) -> float:
    """What looking cost so far: share of the time in the system, above that of the winner; before
    there was one, of the system's own.

    Of mean times, not of their logarithms: a phase that did harm counts for as much as was waited.
    """
    phases = sum(arm.phases for arm in race.arms)
    best = _mean_times(race.arms[race.kept if race.races or race.mode == "kept" else 0])
    if not phases or not best:
        return math.nan
    above = 0.0
    for arm in race.arms:
        times = _mean_times(arm)
        ratios = [times[key] / best[key] for key in times.keys() & best.keys()]
        above += arm.phases * (statistics.fmean(ratios) - 1 if ratios else 0.0)
    return max(0.0, above / phases)


def _timed(arm: Arm, figures: Figures, objective: Objective) -> Arm:
    """With one more phase of it. Queries that have gone are left out."""
    times = {}
    for effect in figures.effects:
        total, seconds = arm.times.get(effect.key, (0.0, 0.0))
        level = _level(effect, objective)
        if math.isfinite(level) and effect.seconds > 0:
            total, seconds = total + level * effect.seconds, seconds + effect.seconds
        times[effect.key] = total, seconds
    return replace(arm, times=times)


def _mean_times(arm: Arm) -> dict[tuple[str, str], float]:
    return {
        key: max(total / seconds, LEAST_S)
        for key, (total, seconds) in arm.times.items()
        if seconds > 0
    }


def told(race: Race) -> str:
    """A sentence about it, for people."""
    kept = race.arms[race.kept]
    others = [
        f"{arm.name} {_times(arm.ratio)}{f' (out: {arm.out})' if arm.out else ''}"
        for turn, arm in enumerate(race.arms)
        if turn and turn != race.kept and math.isfinite(arm.ratio)
    ]
    tried = f"; of the OS's time in the system: {', '.join(others)}" if others else ""
    cost = price(race)
    cost_words = (
        "" if math.isnan(cost) or not race.half else f"; trying has cost {cost:.1%} of latency"
    )
    if race.mode == "race":
        if not race.begun:
            if not any(arm.phases for arm in race.arms):
                return f"{kept.name}; whether others suit better is tried once threads wait"
            return f"{kept.name}, as nobody waits; nothing is tried{tried}"
        at = race.arms[race.turn].name
        why = f" ({race.why})" if race.why else ""
        return f"trying{why}: {at} now, round {race.half // 2 + 1}{tried}{cost_words}"
    if race.kept == 0:
        return f"the system's own scheduling stays: {race.why}{tried}{cost_words}"
    halves = len(kept.scores)
    return (
        f"{kept.name} won: {_times(kept.ratio)} of the time in the system under the system's own "
        f"scheduling, in {halves} comparisons{tried}{cost_words}"
    )


def _times(ratio: float) -> str:
    return f"{math.exp(ratio):.2f}"


def _words(score: Score) -> str:
    parts = [
        f"{name} {math.exp(sign * value):.2f}"
        for name, value, sign in (
            ("time", score.time, 1),
            ("throughput", score.lost, -1),
            ("median", score.median, 1),
            ("p99", score.tail, 1),
        )
        if math.isfinite(value)
    ]
    return ", ".join(parts)


def _with_arm(race: Race, turn: int, arm: Arm) -> Race:
    return replace(race, arms=(*race.arms[:turn], arm, *race.arms[turn + 1 :]))


def _normal(t: float, freedom: int) -> float:
    """The standard normal deviate as rare as this t (Wallace 1959; within 2% from 3 on)."""
    scale = (8 * freedom + 1) / (8 * freedom + 3)
    return scale * math.sqrt(freedom * math.log1p(t * t / freedom))
