"""Who decides in place of a section's own policy: a switch, a race, or the guard."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from sched_ctl.adapt.guard import Guard
from sched_ctl.adapt.race import Race, told
from sched_ctl.config.settings import Section, Switch
from sched_ctl.controller.switches import PRESSURE, Watch
from sched_ctl.controller.trial import Terms, Trial
from sched_ctl.engines.owners import COMMON

__all__ = ["Instead"]


@dataclass
class Instead:
    """What there is of these for one rule, and which of them decides now.

    whose: the domain by whose engines switches and the guard go. What they find there is for all if
    it is the common one, else for that domain alone.
    """

    guard: Guard | None = None
    trial: Trial | None = None  # the race that finds the policy, for "auto"
    # Where it was when other queries ran, by who took part and those queries; the latest last
    past: dict[tuple[Terms, frozenset[tuple[str, str]]], Race] = field(default_factory=dict)
    watches: tuple[Watch, ...] = ()  # of the section's switches
    switched: Watch | None = None  # the one whose policy is in force
    resting: bool = False  # nothing is enforced: the guard found that all of it harms
    stepped_back: tuple[str, ...] = ()  # by the guard: what it found, each time
    said: Section | None = None  # the section, before it did so
    whose: str = COMMON

    def acting(self, section: Section) -> Section:
        """The section, with the policy of the switch that is on, or whose turn it is in a race."""
        if self.switched is None:
            return section if self.trial is None else self.trial.section(section)
        switch = self.switched.switch
        return msgspec.structs.replace(section, policy=switch.policy, options=switch.options)

    def turns_to(self, whose: str) -> bool:
        """Whether what was found so far is void once the engines of this domain are heard.

        What the guard found at the common ones holds, also while none of them is there.
        """
        return whose != self.whose and not (self.stepped_back and self.whose == COMMON)

    def counts_in(self, domain: str) -> bool:
        """Whether what is found is for this domain."""
        return self.whose in (COMMON, domain)

    def decides_in(self, domain: str) -> bool:
        """Whether a switch decides there, or a race, whose orders are for one domain alone."""
        if self.switched is not None:
            return self.counts_in(domain) or self.switched.switch.metric == PRESSURE
        return self.trial is not None and self.trial.whose == domain

    def own_in(self, domain: str) -> bool:
        """Whether the system's own scheduling is in force in this domain."""
        if self.trial is None or self.resting:
            return self.own and self.counts_in(domain)
        return self.own and self.trial.whose == domain

    @property
    def own(self) -> bool:
        """Whether the system's own scheduling is in force: nothing is enforced."""
        if self.trial is not None:
            return self.resting or self.trial.own
        return self.resting or (self.guard is not None and self.guard.own)

    @property
    def looking(self) -> bool:
        """Whether what is in force is so for a phase, to see what comes of it."""
        if self.trial is not None:
            return self.trial.trying
        return self.guard is not None and self.guard.own

    @property
    def phase(self) -> str | None:
        """Why what is in force is not what the rule's policy orders, in words; None where it is."""
        if self.resting:
            return "all else did harm"
        if self.looking:
            return "a phase of the guard" if self.trial is None else "a phase of a race"
        if self.trial is None or not self.trial.own:
            return None
        if self.trial.race.races:
            return "a race found none better"
        why = self.trial.left and f": auto {self.trial.left}"
        return f"until a race finds better{why}"

    @property
    def calm(self) -> bool:
        """Whether none of them may decide otherwise at the next pass. Switches are not asked."""
        return self.guard is None and (self.trial is None or self.trial.calm)

    @property
    def leaves_all(self) -> bool:
        """Whether the system's own scheduling stays, as far as is known."""
        return self.resting or (self.trial is not None and self.trial.leaves_all)

    @property
    def lifts(self) -> bool:
        """Whether an operator may come to be above what it had."""
        return self.trial is None or self.trial.lifts

    @property
    def compares(self) -> bool:
        """Whether somebody notices what a policy does that goes by guesses."""
        return self.guard is not None or self.trial is not None

    def why(self, *, auto: bool) -> str | None:
        """Why the policy in force is, by a switch, or by a race where the section says "auto"."""
        if self.switched is not None:
            return self.switched.why
        if not auto or self.trial is None:
            return None
        if self.trial.race.races:
            return told(self.trial.race)
        return self.phase if self.looking and not self.own else None

    def watch(self, switches: Sequence[Switch]) -> tuple[Watch, ...]:
        """A watch for each switch; what the ones there are have seen stays if all are the same."""
        if tuple(watch.switch for watch in self.watches) != tuple(switches):
            self.watches = tuple(map(Watch, switches))
        return self.watches

    def turn(self) -> bool:
        """Let the first switch that is on decide, else none. Whether that is a change."""
        wanted = next((watch for watch in self.watches if watch.on), None)
        if wanted is self.switched:
            return False
        self.switched = wanted
        if self.guard is not None:
            self.guard.forget()
        return True

    def give_up(self) -> None:
        """Nothing is enforced from now on."""
        self.resting, self.guard = True, None
