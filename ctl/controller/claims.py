"""Who rules what. The first rule whose patterns select a query has it; what the user excluded has
none, whatever the patterns say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from sched_ctl.config.settings import Section
from sched_ctl.model.patterns import engine_fits, fits, names_of
from sched_ctl.model.topology import Thread, Topology

if TYPE_CHECKING:
    from sched_ctl.controller.rule import Rule

__all__ = ["Claims"]


@dataclass
class _Owned:
    """What each rule has of one topology, by the names of the rules."""

    topology: Topology
    spared: set[Thread]
    queries: dict[str, frozenset[str]] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)  # how many queries with threads here


class Claims:
    """Who rules what: derived from the patterns once for each topology."""

    def __init__(
        self,
        sections: Sequence[Section],
        exclude: Sequence[str],
        helpers: Mapping[str, str],
        usual: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """helpers: what the user says of helper threads. usual: what their drivers say."""
        self.sections = tuple(sections)
        self.exclude = tuple(exclude)
        self._helpers = helpers
        # The first that fits counts.
        self._all_helpers = {**helpers, **{k: v for k, v in usual.items() if k not in helpers}}
        self._known: dict[str, _Owned] = {}

    def of(self, rule: "Rule", engine: str, topology: Topology) -> frozenset[str]:
        """The queries that the rule has in this engine."""
        return self._of(engine, topology).queries.get(rule.name, frozenset())

    def queries(self, rule: "Rule", engine: str, topology: Topology) -> int:
        """How many queries the rule has in this engine that have threads here."""
        return self._of(engine, topology).running.get(rule.name, 0)

    def spared(self, engine: str, topology: Topology) -> set[Thread]:
        """Threads that no schedule may hold."""
        return self._of(engine, topology).spared

    def covers(self, section: Section, engine: str) -> bool:
        """Whether a rule of this section may have anything in this engine."""
        return engine_fits(section.engines, engine)

    def helpers(self, *, fair: bool) -> Mapping[str, str]:
        """Rules of helper threads, for a backend that is fair to all other threads, or is not."""
        return self._helpers if fair else self._all_helpers

    def forget(self, engine: str) -> None:
        self._known.pop(engine, None)

    def _of(self, engine: str, topology: Topology) -> "_Owned":
        known = self._known.get(engine)
        if known is None or known.topology is not topology:
            known = self._known[engine] = _Owned(topology, self._spared(engine, topology))
            here = {operator.query for operator in topology.operators if operator.threads}
            owners = {query: self._owner(engine, query) for query in topology.queries}
            for owner in {owner for owner in owners.values() if owner is not None}:
                mine = frozenset(query for query, name in owners.items() if name == owner)
                known.queries[owner] = mine
                known.running[owner] = len(mine & here)
        return known

    def _owner(self, engine: str, query: str) -> str | None:
        names = names_of(engine, query)
        if fits(self.exclude, *names):
            return None
        for section in self.sections:
            if self.covers(section, engine) and fits(section.queries, *names):
                return section.name
        return None

    def _spared(self, engine: str, topology: Topology) -> set[Thread]:
        if not self.exclude:
            return set()

        def meant(*names: str) -> bool:
            """By all that a thing may be called, so that "!x" spares all but what is called x."""
            return fits(self.exclude, *(full for name in names for full in names_of(engine, name)))

        spared = {
            thread
            for operator in topology.operators
            for thread in operator.threads
            if meant(operator.query, operator.label, thread.name)
        }
        for helper in topology.helpers:
            serves = None if helper.serves is None else topology.operators[helper.serves].query
            if meant(helper.thread.name, *([] if serves is None else [serves])):
                spared.add(helper.thread)
        return spared
