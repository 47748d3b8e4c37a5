"""A rule's race at work: its phases on the clock, what came of each, the order in force."""

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sched_ctl.adapt import race as races
from sched_ctl.adapt.effect import (
    FEWEST_SAMPLES,
    PATIENCE_S,
    Effect,
    Span,
    all_effects,
    begin,
    effects,
    few,
    seen,
)
from sched_ctl.adapt.race import OS, Figures, Race
from sched_ctl.config.settings import Section
from sched_ctl.metrics.window import Window
from sched_ctl.model.topology import Snapshot

__all__ = ["AT_EACH_PICK", "AUTO", "Outcomes", "Terms", "Trial", "candidates", "told"]

AUTO = "auto"
AT_EACH_PICK = frozenset({"scx", "pool"})  # backends that look at ages whenever they choose
EVERY_S = 5.0  # that a shown effect is over, at least; and `FEWEST_SAMPLES`
SETTLE = 0.3  # of a phase, in which what was queued under the other order goes
LOOK = 0.1  # of a phase, from one look for harm to the next
PRESSED = 0.05  # of the time some thread waited for a CPU: below, an order changes nothing
LEAST_S = 1e-3  # nor where the system's own has no tuple in the system for as long as this

NONE_LIFTED = " (none lifted)"  # of an order by nice values: no operator above what it had

Targets = Mapping[str, float]  # query -> s
Terms = tuple[frozenset[str], str, str]  # who takes part, the objective, whose engines


def candidates(first: str, backend: str, queries: int) -> tuple[str, ...]:
    """The orders that take part, by how they are enforced and how many queries there are.

    first: the one that "auto" takes without a race. By nice and cgroups `light-first` leaves a
    single query alone, which is what the system's own does. There it can matter whether operators
    come to be above their engine's helpers: on a Storm in overload `qs` has .63 of the system's
    mean where none does, .72 where some do.

    Of several queries `qs` lets the longest queue go first, and so makes all wait alike: simulated,
    with two to six, it was never the best. Past saturation what it lets wait in the light ones
    stays for minutes, in the phases of all others too, and who is best is not seen any more.
    """
    others: tuple[str, ...]
    each = backend in AT_EACH_PICK
    if each:
        others = ("hr", "light-first") if queries > 1 else ("hr", "qs")
    else:
        others = ("hr",) if queries > 1 else ("qs", f"qs{NONE_LIFTED}", "hr")
    if first == "deadline":
        return (first, "balanced" if each else "light-first", "hr")
    return (first, *others) if each or queries > 1 else others


@dataclass
class Outcomes:
    """What came of it lately, of all engines, for whoever looks. begun_s: of the spans of `found`,
    by the snapshots' clock."""

    spans: dict[str, Span] = field(default_factory=dict)
    found: dict[str, tuple[Effect, ...]] = field(default_factory=dict)
    begun_s: dict[str, float] = field(default_factory=dict)

    def note(self, snapshot: Snapshot, targets: Callable[[], Targets]) -> None:
        """To be called with each answer of an engine."""
        engine = snapshot.topology.engine
        span = self.spans[engine] = seen(self.spans.get(engine), snapshot)
        if span.seconds >= EVERY_S and span.samples >= FEWEST_SAMPLES:
            self.found[engine] = effects(span, targets())
            self.begun_s[engine] = span.first.time_s
            self.spans[engine] = begin(snapshot, span.gap_s)

    def forget(self, engine: str) -> None:
        self.spans.pop(engine, None)
        self.found.pop(engine, None)
        self.begun_s.pop(engine, None)


@dataclass
class Trial:
    """The race of one rule. first: what "auto" is without it. phase_s: length of a phase.

    whose: the domain whose engines are compared; others have what "auto" is for them, also while
    the system's own is in force there. left: why "auto" orders nothing until the race finds better,
    see `rule.why_left`. queries: that it is about, with their engines.
    """

    race: Race
    first: str
    phase_s: float
    left: str = ""
    whose: str = ""
    queries: frozenset[tuple[str, str]] = frozenset()
    began_s: float = math.nan
    spans: dict[str, Span] = field(default_factory=dict)
    pressure: list[float] = field(default_factory=list)
    next_s: float = 0.0  # when to see again whether a phase does harm
    said: tuple[object, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Who takes part beside the system's own."""
        return tuple(arm.name for arm in self.race.arms[1:])

    @property
    def terms(self) -> Terms:
        """What makes it another race, beside the queries."""
        return frozenset(self.names), self.race.objective, self.whose

    @property
    def rested(self) -> Race:
        """The race, with its phase broken off."""
        if math.isnan(self.began_s):
            return self.race
        return races.step(self.race, Figures(pressed=False))

    @property
    def trying(self) -> bool:
        """Whether something else than what is kept is being looked at."""
        race = self.race
        return race.turn != race.kept or (race.mode == "race" and race.begun)

    @property
    def lifts(self) -> bool:
        """Whether an operator may come to be above what it had."""
        return not self.race.arms[self.race.turn].name.endswith(NONE_LIFTED)

    @property
    def calm(self) -> bool:
        """Whether what is in force stays, as far as is known: nothing depends on the next pass."""
        race = self.race
        return not (race.begun and race.mode == "race") and not self.trying and race.own is None

    @property
    def own(self) -> bool:
        """Whether the system's own scheduling is in force."""
        return self.race.arms[self.race.turn].name == OS

    @property
    def leaves_all(self) -> bool:
        """Whether the system's own scheduling stays, as far as is known: it has won, or a phase has
        told that nobody waits.
        """
        return self.own and self.calm and self.race.arms[0].phases > 0

    def section(self, section: Section) -> Section:
        """The rule's section, with the policy whose turn it is."""
        turn = self.race.turn or self.race.kept or 1
        name = self.race.arms[turn].name.removesuffix(NONE_LIFTED)
        if name == self.first:
            return section
        return msgspec.structs.replace(section, policy=name, options={})

    @property
    def news(self) -> str | None:
        """About the race, if there is something to say that was not said."""
        race = self.race
        state = race.mode, race.begun, race.kept, race.why, tuple(arm.out for arm in race.arms)
        if state == self.said or not race.begun:
            return None
        self.said = state
        return races.told(race)

    def look(
        self,
        now_s: float,
        windows: Mapping[str, Window],
        pressure: float,
        wanted: Callable[[Effect], bool] = lambda _: True,
        targets: Callable[[], Mapping[str, Targets]] | None = None,
    ) -> bool:
        """To be called at each pass. Whether it is another arm's turn now.

        windows: of the engines that are compared. pressure: share of the time since the pass before
        in which threads waited. wanted: which effects count. targets: by engine.
        """
        if not windows:
            return self.trying and self.rest()
        if math.isnan(self.began_s):
            self.began_s = now_s
        passed_s = now_s - self.began_s
        if passed_s < SETTLE * self.phase_s:
            return False
        for name, window in windows.items():
            if window.now.time_s >= self.began_s + SETTLE * self.phase_s:
                self.spans[name] = seen(self.spans.get(name), window.now)
        self.pressure.append(pressure)
        # Where passes, or an engine's counts, are rare a phase is longer.
        rare = len(self.pressure) < FEWEST_SAMPLES
        waits = few(self.spans, windows) and passed_s < PATIENCE_S
        over = passed_s >= self.phase_s and not (rare or waits)
        if not over and (self.own or rare or now_s < self.next_s):
            return False
        self.next_s = now_s + LOOK * self.phase_s
        spans = self.spans
        if not over:  # harm at one engine waits for no other to tell
            spans = {name: span for name, span in spans.items() if not few(spans, (name,))}
        found = all_effects(spans, wanted, {} if targets is None else targets())
        figures = self._figures(found, over=over, phases=passed_s / self.phase_s)
        if not over and not races.harms(self.race, figures):
            return False
        turn, kept = self.race.turn, self.race.kept
        self.race = races.step(self.race, figures)
        self.began_s, self.spans, self.pressure = now_s, {}, []
        return (turn, kept) != (self.race.turn, self.race.kept)

    def rest(self) -> bool:
        """Another race is run: try nothing meanwhile. Whether that makes it another arm's turn."""
        if math.isnan(self.began_s):  # it rests already
            return False
        turn = self.race.turn
        self.race = self.rested
        self.began_s, self.spans, self.pressure = math.nan, {}, []
        return turn != self.race.turn

    def _figures(self, found: tuple[Effect, ...], *, over: bool, phases: float) -> Figures:
        known = [share for share in self.pressure if math.isfinite(share)]
        pressed = statistics.fmean(known) >= PRESSED if known else True
        # Whether tuples wait without an order: one by which none does is what a race looks for.
        tried = not self.own and self.race.begun and self.race.mode == "race"
        waited = tried or any(
            not effect.time_s < LEAST_S
            for effect in found
            if math.isfinite(effect.time_s) or math.isfinite(effect.tuples_in)
        )
        return Figures(found, pressed and waited, over, phases)


def told(trial: Trial) -> dict[str, Any]:
    """The race as plain data."""
    race = trial.race

    def number(value: float) -> float | None:
        return round(value, 5) if math.isfinite(value) else None

    return {
        "mode": race.mode if race.begun or race.mode == "kept" else "calm",
        "turn": race.arms[race.turn].name,
        "kept": race.arms[race.kept].name,
        "arms": [
            {
                "arm": arm.name,
                "time_ratio": number(math.exp(arm.ratio)),
                "comparisons": len(arm.scores),
                "phases": arm.phases,
                "out": arm.out or None,
            }
            for arm in race.arms
        ],
        "price": number(races.price(race)),
        "races": race.races,
        "why": race.why or None,
        "words": races.told(race),
    }
