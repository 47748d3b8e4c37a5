"""Which policy rules which operators, and the schedule that follows.

A `Rule` is one `[[policy]]` section at work. The first rule whose patterns select a query has it;
what the user excluded has none, whatever the patterns say.
"""

import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

import msgspec
import numpy as np

from sched_ctl import probes, registry
from sched_ctl.backends import Applied
from sched_ctl.config import Binding, SettingError, Settings
from sched_ctl.config import resolve as resolve_settings
from sched_ctl.deadlines import Timer
from sched_ctl.engines import Engine
from sched_ctl.errors import UserError, near_miss
from sched_ctl.metrics import Resolution, resolve
from sched_ctl.model import Thread, Topology
from sched_ctl.policy import Level, Policy
from sched_ctl.schedule import Group, Schedule
from sched_ctl.scheduling import HELPER_RULES, decide
from sched_ctl.window import Window

__all__ = ["Claims", "Rule", "automatic", "check_bindings", "make_policy", "without"]


def automatic(backend: str, queries: int) -> tuple[str, str]:
    """What the policy "auto" stands for, and why, in words.

    It is what measured best. Where the kernel decides at each dispatch: for several queries one
    that weighs how long each has waited, for a single one the shortest mean latency. Where nice
    values or cgroup weights are written now and then, ages have changed before they count.
    queries: how many the policy rules that have threads here.
    """
    if backend != "scx":
        return "hr", f"{backend} cannot follow waiting times"
    if queries > 1:
        return "bsd", f"{queries} queries, order at each dispatch"
    return "hr", "a single query" if queries else "no query yet"


def make_policy(binding: Binding, backend: str, queries: int = 0) -> Policy:
    """The policy that a binding names, at the level it asks for. queries: see `automatic`."""
    name = binding.policy
    if name == "auto":
        name, _ = automatic(backend, queries)
    policy = registry.policy(name, binding.options)
    if binding.level in (None, "auto"):
        return policy
    return replace(policy, level=Level(binding.level))


@dataclass
class Rule:
    """A binding with its policy, its clock, and what came of its last pass."""

    binding: Binding  # resolved: no None left, see config.resolve
    policy: Policy
    backend: str  # the name of the one in force
    timer: Timer
    queries: int = 0  # that it rules and that have threads here
    resolutions: dict[str, tuple[frozenset[str], Resolution]] = field(default_factory=dict)
    schedule: Schedule | None = None
    applied: Applied = field(default_factory=Applied)
    windows: Mapping[str, Window] = field(default_factory=dict)
    passes: int = 0
    writes: int = 0
    repaired: int = 0
    urgent: bool = True  # something changed: do not wait for the deadline
    problem: str | None = None  # of the policy as a whole
    stage_s: dict[str, float] = field(default_factory=dict)  # of the last pass

    @property
    def name(self) -> str:
        return self.binding.name

    @property
    def chosen(self) -> str | None:
        """Why the policy "auto" stands for the one in force; None where it was named."""
        return automatic(self.backend, self.queries)[1] if self.binding.policy == "auto" else None

    def count(self, queries: int) -> bool:
        """So many queries are ruled now. True: that makes it another policy."""
        self.queries = queries
        before = self.policy.name
        if self.binding.policy == "auto":
            self.enforce_by(self.backend)
        return self.policy.name != before

    def enforce_by(self, backend: str) -> None:
        """Another backend from now on, and the policy that suits it."""
        self.backend = backend
        self.policy = make_policy(self.binding, backend, self.queries)
        self.resolutions = {}

    def resolve(self, engine: Engine) -> Resolution:
        """How this policy's metrics are got from the engine. Raises MissingMetric."""
        assert engine.provides is not None
        provides = engine.provides
        if probes.available():
            provides = provides | probes.PROVIDES
        known = self.resolutions.get(engine.name)
        if known is None or known[0] != provides:
            resolution = resolve(
                self.policy.needs, provides, policy=self.policy.name, engine=engine.name
            )
            known = self.resolutions[engine.name] = (provides, resolution)
        return known[1]

    def uses_probes(self, engine: Engine) -> bool:
        known = self.resolutions.get(engine.name)
        return known is not None and any(
            step.metric in probes.PROVIDES
            and step.derivation is None
            and step.metric not in (engine.provides or ())
            for step in known[1].steps
        )

    def decide(self, engines: Sequence[Engine], claims: "Claims") -> Schedule:
        """The schedule over all engines that this rule has operators of."""
        windows: dict[str, Window] = {}
        resolutions: dict[str, Resolution] = {}
        select: list[str] = []
        spared: set[Thread] = set()
        for engine in engines:
            now = engine.snapshot
            if now is None or self.name in engine.refused:
                continue
            patterns = claims.of(self, engine.name, now.topology)
            if not patterns:
                continue
            windows[engine.name] = Window(now, engine.then(), self.policy.level)
            resolutions[engine.name] = self.resolve(engine)
            select += patterns
            spared |= claims.spared(engine.name, now.topology)
        schedule = decide(
            self.name,
            self.policy,
            windows,
            resolutions,
            select,
            self.binding.shares or {},
            claims.helpers,
        )
        self.windows = windows
        return without(schedule, spared) if spared else schedule


@dataclass
class _Owned:
    """What each rule has of one topology, by the names of the rules."""

    topology: Topology
    spared: set[Thread]
    patterns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)  # how many queries with threads here


class Claims:
    """Who rules what: derived from the patterns once for each topology."""

    def __init__(
        self, bindings: Sequence[Binding], exclude: Sequence[str], helpers: Mapping[str, str]
    ) -> None:
        self.bindings = tuple(bindings)
        self.exclude = tuple(exclude)
        self.helpers = helpers
        self._known: dict[str, _Owned] = {}

    def of(self, rule: Rule, engine: str, topology: Topology) -> tuple[str, ...]:
        """Patterns of exactly the queries that the rule has in this engine."""
        return self._of(engine, topology).patterns.get(rule.name, ())

    def queries(self, rule: Rule, engine: str, topology: Topology) -> int:
        """How many queries the rule has in this engine that have threads here."""
        return self._of(engine, topology).running.get(rule.name, 0)

    def spared(self, engine: str, topology: Topology) -> set[Thread]:
        """Threads that no schedule may hold."""
        return self._of(engine, topology).spared

    def covers(self, binding: Binding, engine: str) -> bool:
        """Whether the binding may rule anything in this engine."""
        kind = engine.partition(":")[0]
        return any(fnmatchcase(engine, p) or kind == p for p in binding.engines)

    def forget(self, engine: str) -> None:
        self._known.pop(engine, None)

    def _of(self, engine: str, topology: Topology) -> "_Owned":
        known = self._known.get(engine)
        if known is None or known.topology is not topology:
            known = self._known[engine] = _Owned(topology, self._spared(engine, topology))
            here = {operator.query for operator in topology.operators if operator.threads}
            for query in topology.queries:
                owner = self._owner(engine, query)
                if owner is not None:
                    exact = glob.escape(f"{engine}/{query}")
                    known.patterns[owner] = (*known.patterns.get(owner, ()), exact)
                    known.running[owner] = known.running.get(owner, 0) + (query in here)
        return known

    def _owner(self, engine: str, query: str) -> str | None:
        if _matches(self.exclude, engine, query):
            return None
        for binding in self.bindings:
            if self.covers(binding, engine) and _matches(binding.queries, engine, query):
                return binding.name
        return None

    def _spared(self, engine: str, topology: Topology) -> set[Thread]:
        if not self.exclude:
            return set()
        spared = set()
        for operator in topology.operators:
            whole = _matches(self.exclude, engine, operator.label)
            whole = whole or _matches(self.exclude, engine, operator.query)
            spared |= {
                thread
                for thread in operator.threads
                if whole or _matches(self.exclude, engine, thread.name)
            }
        return spared | {
            helper.thread
            for helper in topology.helpers
            if _matches(self.exclude, engine, helper.thread.name)
            or (
                helper.serves is not None
                and _matches(self.exclude, engine, topology.operators[helper.serves].query)
            )
        }


def _matches(patterns: Sequence[str], engine: str, name: str) -> bool:
    """A pattern is of the name, or of engine:name or engine/name, or of kind:name."""
    kind = engine.partition(":")[0]
    names = (name, f"{engine}:{name}", f"{engine}/{name}", f"{kind}:{name}")
    return any(fnmatchcase(text, pattern) for pattern in patterns for text in names)


def without(schedule: Schedule, spared: set[Thread]) -> Schedule:
    """The schedule without some threads."""
    keep = [row for row, thread in enumerate(schedule.threads) if thread not in spared]
    if len(keep) == len(schedule.threads):
        return schedule
    rows = np.array(keep, dtype=np.intp)
    place = {old: new for new, old in enumerate(keep)}
    groups = {
        name: Group(group.share, tuple(place[row] for row in group.rows if row in place))
        for name, group in schedule.groups.items()
    }
    return replace(
        schedule,
        threads=tuple(schedule.threads[row] for row in keep),
        operators=tuple(schedule.operators[row] for row in keep),
        form=schedule.form.take(rows),
        head_age_s=schedule.head_age_s[rows],
        queue_size=schedule.queue_size[rows],
        groups={name: group for name, group in groups.items() if group.rows},
    )


def check_bindings(settings: Settings) -> None:
    """Raises SettingError for a policy, a backend, an option or a rule that does not exist.

    So that a misspelt word is an error at once, and not when it is needed first.
    """
    for binding in resolve_settings(settings):
        try:
            make_policy(binding, "nice")
        except UserError as error:
            known = binding.policy == "auto" or binding.policy in registry.policies()
            raise SettingError(
                ("policy", binding.name, "options" if known else "policy"),
                error.message,
                error.hint,
            ) from error
    for role, rule in settings.helpers.items():
        if rule not in HELPER_RULES:
            raise SettingError(
                ("helpers", role),
                f"there is no rule {rule!r}{near_miss(rule, HELPER_RULES)}",
                f"one of: {', '.join(HELPER_RULES)}",
            )
    _check_backends(settings)


def _check_backends(settings: Settings) -> None:
    from sched_ctl.backends import ladder  # only at the start: it looks for backends

    kinds = {kind.name: kind for kind in ladder.KINDS}
    named: list[tuple[tuple[str, ...], str]]
    named = [(("backends", name), name) for name in settings.backends]
    named += [
        (("policy", binding.name, "backend"), binding.backend)
        for binding in resolve_settings(settings)
        if binding.backend is not None and binding.backend != "auto"
    ]
    for where, name in named:
        if name not in kinds:
            raise SettingError(
                where,
                f"there is no backend {name!r}{near_miss(name, kinds)}",
                f"one of: auto, {', '.join(kinds)}",
            )
    for name, options in settings.backends.items():
        try:
            msgspec.convert(options, kinds[name].options)
        except msgspec.ValidationError as error:
            raise SettingError(
                ("backends", name),
                str(error),
                f"its options: {', '.join(kinds[name].options.__struct_fields__) or 'none'}",
            ) from error
