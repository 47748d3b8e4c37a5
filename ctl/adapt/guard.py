"""Does scheduling help? Short phases of the system's own scheduling, compared with ours.

An order that helps one workload harms another, so whoever schedules should look at what comes of
it. Each phase of the system's own lies between two of ours, and their effects (`adapt.effect`) are
compared as ratios, so that a load that rises or falls does not count: what the queries take in, and
the time in the system and its median, as a race compares them. What is compared is equally long:
the mean of a long stretch with bursts in it lies above that of most short ones.

Ours is called worse only when the ratios say so beyond their own spread; there is a look at each
comparison for as long as it runs, and a day of them (`DAY`) that are independent errs with 5%: half
of that for what is plain from the last few (`worse`), half for what all of them say (`staked`).
Near saturation queues are long for seconds by chance, and comparisons of the same differ by half:
no few of them tell of harm by less, while their sum does within the hour.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sched_ctl.adapt.effect import PATIENCE_S, Effect, Span, all_effects, few, seen
from sched_ctl.adapt.race import ALPHA, MEDIAN, Figures, Objective, compared, is_worse
from sched_ctl.metrics.window import Window

__all__ = ["Guard", "staked", "worse"]

MARGIN = 0.05  # that much worse is not worth a step back
LASTS = (8, 16, 32)  # comparisons that count: so many of the last ones, each number by itself
MOST = max(LASTS)
TOLD = 8  # phases that are told of in the log
WHAT = ("throughput", "wait", "median")
DAY = 1440  # comparisons, one a minute
SHARE = ALPHA / 2 / len(WHAT)  # that one figure errs by the last comparisons, or by all, in a day
LEVEL = SHARE / DAY  # of each look at the last: looks of the same comparisons err together
STAKES = (0.1, 0.2, 0.4, 0.8)  # parts of the capital; the best is the larger, the plainer the harm
AT_FIRST = 0.5  # of the capital; as much comes by and by, in a day
WIDE = 2.0  # spreads beyond which a comparison counts no more
UNKNOWN, LEAST = 0.3, 0.02  # spread of the logarithms where little is known, and at least
TO_NORMAL = 1.4826  # from the median of what lies apart to the standard deviation
SETTLE = 0.3  # of a phase, in which what was queued under the other regime goes


def worse(ratios: Sequence[float], margin: float = MARGIN) -> int:
    """How many of these ratios (1: the same, above: worse) say worse beyond their spread; 0: none.

    The mean of their logarithms must exceed the margin, by Student's t: of the last few, where harm
    is new and great, or of more.
    """
    logs = [math.log(ratio) for ratio in ratios if ratio > 0 and math.isfinite(ratio)]
    level = math.log1p(margin)
    return next((count for count in LASTS if is_worse(logs[-count:], level, LEVEL)), 0)


def staked(
    capital: Sequence[float],
    ratios: Sequence[float],
    before: Sequence[float],
    margin: float = MARGIN,
) -> tuple[float, ...]:
    """What a gambler has after this comparison, by stake (`STAKES`), who bets on worse each time.

    Where ours is not worse the logarithms lie around the margin or below, above it no further and
    no more often than below, and no such game can be expected to gain: whoever is given 1 in all
    has 1 / x at some time with a chance of x at most, however often one looks (Ville 1939; Shafer
    2021). What lies far out wins or loses no more than the stake. What is given later bets on harm
    that began later, whatever was lost before.

    capital: () before the first one. ratios: of each piece of ours to the one of the system's
    own; a part of the stake is on each. Their mean would be no fair bet: one of two pieces has a
    burst twice as often as the one between, and either counts for the stake at most. before: ratios
    that came before, which tell the spread; only they may, as the rule of a bet is made before it.
    """
    given = (1 - AT_FIRST) / DAY if capital else AT_FIRST
    wide = WIDE * _spread([math.log(one) for one in before])
    won = statistics.fmean(
        min(max((math.log(ratio) - math.log1p(margin)) / wide, -1.0), 1.0) for ratio in ratios
    )
    each = given / len(STAKES)
    return tuple(
        (had + each) * (1 + stake * won)
        for had, stake in zip(capital or [0.0] * len(STAKES), STAKES, strict=True)
    )


def _spread(logs: Sequence[float]) -> float:
    """Of the last comparisons, by the median of what they lie apart: some may lie far out."""
    middle = statistics.median(logs) if logs else 0.0
    apart = [TO_NORMAL * abs(one - middle) for one in logs]
    return max(statistics.median([*apart, UNKNOWN, UNKNOWN]), LEAST)


@dataclass
class Guard:
    """The phases of one rule. every_s: from one phase of the system's own to the next; longer where
    two pieces of ours do not fit in between.

    ratios: of the last of so many comparisons. The median counts where no one figure is the
    objective.
    """

    every_s: float
    phase_s: float
    objective: Objective = "all"
    own: bool = False  # the system's own scheduling is on
    changes_s: float = math.nan
    ratios: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in WHAT})
    _from_s: float = math.nan  # of the piece that is looked at, and until when
    _until_s: float = math.nan
    _first: bool = False  # it is the first one of a phase of ours
    _alone: bool = True  # nobody else tried anything meanwhile
    _spans: dict[str, Span] = field(default_factory=dict)
    _kept: list[Figures] = field(default_factory=list)  # the last of ours, the system's own
    _looks: int = 0  # phases of the system's own so far
    _capital: dict[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def trying(self) -> bool:
        """Whether nobody else may try anything: the system's own is looked at, or what follows."""
        return self.own or self._first

    def look(
        self,
        now_s: float,
        windows: Mapping[str, Window],
        wanted: Callable[[Effect], bool] = lambda _: True,
        targets: Callable[[], Mapping[str, Mapping[str, float]]] | None = None,
        *,
        alone: bool = True,
    ) -> str | None:
        """To be called at each pass. Returns in what ours is worse, in words, or None.

        wanted: which effects count. targets: by engine. alone: nobody else tries anything. Until
        then ours stays, as two that try at once would take each other for what they look at.
        """
        if not windows:
            if self.trying:  # nobody is left to compare it with
                self.own, self._first, self.changes_s, self._kept = False, False, math.nan, []
            return None
        if math.isnan(self.changes_s):
            self._begin(now_s, own=False)
            self._last_piece(now_s)
        for name, window in windows.items():
            if window.now.time_s >= self._from_s:
                self._spans[name] = seen(self._spans.get(name), window.now)
        self._alone = self._alone and alone
        late_s = now_s - self._until_s
        if late_s < 0 or (few(self._spans, windows) and late_s < PATIENCE_S):
            return None
        if not (self.trying or self._alone):
            self._last_piece(now_s)
            return None
        spans = {name: span for name, span in self._spans.items() if name in windows}
        found = all_effects(spans, wanted, {} if targets is None else targets())
        self._kept.append(Figures(found))
        if self._first:
            worse_in, self._kept = self._compare(), []
            self._last_piece(now_s)
            return worse_in
        self._begin(now_s, own=not self.own)
        return None

    def forget(self) -> None:
        """Something else is compared from now on."""
        self.own, self._first, self.changes_s = False, False, math.nan
        self.ratios = {name: [] for name in WHAT}
        self._kept, self._looks, self._capital = [], 0, {}

    @property
    def words(self) -> str:
        """How ours compares so far, for `status`."""
        phase = "the system's own scheduling at the moment; " if self.own else ""
        return f"{phase}{self._compared}"

    @property
    def phase(self) -> str:
        """The phase that has begun, for the log; empty once it has told of as many as count."""
        if self._looks > TOLD:
            return ""
        if self.own:
            return f"the system's own scheduling for {self.phase_s:g} s; {self._compared}"
        return "the policy's order again"

    @property
    def _compared(self) -> str:
        parts = [
            f"{name} {math.exp(statistics.fmean(map(math.log, ratios))):.2f}"
            for name, ratios in self.ratios.items()
            if ratios
        ]
        if not parts:
            return "nothing compared yet"
        count = max(map(len, self.ratios.values()))
        times = "1 comparison" if count == 1 else f"{count} comparisons"
        return f"over the system's own in {times}: {', '.join(parts)}"

    def _begin(self, now_s: float, *, own: bool) -> None:
        self.own, self._first = own, not own
        self._looks += own
        self.changes_s = now_s + (self.phase_s if own else self.every_s - self.phase_s)
        self._from_s, self._until_s = now_s + SETTLE * self.phase_s, now_s + self.phase_s
        self._spans, self._alone = {}, True

    def _last_piece(self, now_s: float) -> None:
        """Look at what is left of this phase, at its end."""
        piece_s = (1 - SETTLE) * self.phase_s
        self._first, self._spans, self._alone = False, {}, True
        self._from_s = max(now_s, self.changes_s - piece_s)
        self._until_s = max(self.changes_s, now_s + piece_s)

    def _compare(self) -> str | None:
        """A piece of ours, one of the system's own and one of ours again."""
        if len(self._kept) < 3:
            return None
        before, system, after = self._kept[-3:]
        scores = compared([before, after], [system], self.objective)
        throughput = self.counts("throughput", [math.exp(-score.lost) for score in scores])
        wait = self.counts("wait", [math.exp(score.time) for score in scores])
        median = self.counts("median", [math.exp(score.median) for score in scores])
        if throughput:
            return f"throughput is {1 - throughput:.0%} lower than by the system's own scheduling"
        if wait:
            late = any(math.isfinite(effect.within_target) for effect in system.effects)
            what = "tuples wait, missed targets counted," if late else "tuples wait"
            return f"{what} {wait:.2f} times as long as by the system's own scheduling"
        if median and self.objective == "all":
            return f"the median is {median:.2f} times that by the system's own scheduling"
        return None

    def counts(self, name: str, ratios: Sequence[float]) -> float | None:
        """Whether ours is worse in this figure (`WHAT`) with one comparison more, and then by what
        ratio: of those of the last that say so, or of all that are kept where only their sum does.

        ratios: of each piece of ours to the one of the system's own.
        """
        if not all(ratio > 0 and math.isfinite(ratio) for ratio in ratios):
            return None
        turn = -1 if name == "throughput" else 1
        margin = math.expm1(MEDIAN) if name == "median" else MARGIN
        before = [one**turn for one in self.ratios[name]]
        capital = staked(self._capital.get(name, ()), [one**turn for one in ratios], before, margin)
        self._capital[name] = capital
        kept = self.ratios[name] = [*self.ratios[name], statistics.geometric_mean(ratios)][-MOST:]
        plain = worse([one**turn for one in kept], margin)
        if plain or sum(capital) * SHARE >= 1:
            return statistics.geometric_mean(kept[-(plain or MOST) :])
        return None
