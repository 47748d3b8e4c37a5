"""One `[[policy]]` section at work, and the schedule that follows."""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from sched_ctl.adapt.guard import Guard
from sched_ctl.backends import Applied
from sched_ctl.config.settings import Section
from sched_ctl.controller.claims import Claims
from sched_ctl.controller.instead import Instead
from sched_ctl.controller.switches import PRESSURE, Watch, joined
from sched_ctl.controller.trial import AT_EACH_PICK
from sched_ctl.decide.decision import decide
from sched_ctl.decide.starved import only_starved
from sched_ctl.engines.boundary import is_ours
from sched_ctl.engines.engine import Engine
from sched_ctl.engines.owners import COMMON, scope
from sched_ctl.engines.timers import Timer
from sched_ctl.kernel.cpus import cpus_of
from sched_ctl.metrics import feasibility
from sched_ctl.metrics.averages import Averages
from sched_ctl.metrics.averages import window as window_of
from sched_ctl.metrics.catalogue import MissingMetric, Resolution, evaluate, resolve
from sched_ctl.metrics.window import SAMPLES, Window
from sched_ctl.model.policy import NOTHING, Level, Policy
from sched_ctl.model.schedule import Schedule, without
from sched_ctl.model.topology import Thread, Topology
from sched_ctl.plugins import registry
from sched_ctl.probes import threads as probes

NO_ORDER = "constant"
# Objectives for which all branches of a query wait alike: the mean and p99 gain, the median pays
PAID_BY_HALF = ("mean", "p99", "worst")
BY_GUESSES = "goes by no guess, and only its wake-ups are known"
BACKING_OFF = (
    "knows no order that helps a single query whose operators sleep for a while without input"
)
SPARED = (
    "left as the system has it, for auto {}: "
    "--race 10 tries orders; --target, --share or --policy say what is wanted"
)
UNSURE = "left as the system has it until it is known what its operators cost"
BY_WORD = frozenset({"multi-class", "cqc"})  # the user says who goes first

__all__ = ["Rule", "automatic", "make_policy", "why_left"]


def why_left(topology: Topology, queries: int) -> str:
    """Why "auto" leaves an engine as the system has it, as words after its name, or "".

    queries: that its rule has in the engine's domain. Operators of a single one that back off: a
    thread that wakes by a timer finds what came meanwhile, whoever went first. Under each order
    that was tried tuples were in the system for longer, by nice and by sched_ext.
    """
    if topology.guessed:
        return BY_GUESSES
    return BACKING_OFF if topology.backoff_s and queries == 1 else ""


def automatic(backend: str, targets: bool = False) -> tuple[str, str]:
    """What the policy "auto" stands for, and why, in words. targets: whether queries have any.

    It is what measured best. Where the kernel, or the lab engine's pool, decides at each dispatch:
    one that weighs how long each has waited, but never by that alone (`light-first` is no more than
    that in the pool): what has waited for long beside a saturated query is that query's own backlog
    (`bsd` was seen to make a light one wait 3 to 55 times as long), and an
    order that never moves (`hr`) switches more often inside a query. Where nice values or cgroup
    weights are written now and then, ages have changed before they count: then light queries first,
    and nothing else. A single query is left as it is there: a saturated one lost 4% of its
    throughput under `hr`, and LR, STATS and ETL of the lab engine lose latency. What has a target
    goes by that, and the rest as it would without. Which options: `PAID_BY_HALF`.
    """
    if targets:
        return "deadline", "for the targets"
    if backend in AT_EACH_PICK:
        return "balanced", "order at each dispatch"
    return "light-first", f"{backend} cannot follow waiting times"


def _own_policy(section: Section, backend: str) -> Policy:
    """The policy that a section names, as it is."""
    targets = bool(section.target)
    name = automatic(backend, targets)[0] if section.policy == "auto" else section.policy
    options = dict(section.options)
    if name == "deadline":
        options.setdefault("targets", section.target or ())
        if section.policy == "auto":
            options.setdefault("others", automatic(backend)[0])
    if section.policy == "auto" and name == "balanced" and section.objective in PAID_BY_HALF:
        options.setdefault("branches", 0.0)
    return registry.policy(name, options)


def make_policy(section: Section, backend: str) -> Policy:
    """The policy that a section names, at the level it asks for."""
    policy = _own_policy(section, backend)
    # All that may be needed, so that what is missing is an error at once and not at a switch.
    needs = policy.needs.union(
        *(registry.policy(s.policy, s.options).needs for s in section.switch)
    )
    needs |= {switch.metric for switch in section.switch} - {PRESSURE}
    if needs != policy.needs:
        policy = replace(policy, needs=needs)
    if section.only_starved:
        policy = only_starved(policy)
    if section.level in (None, "auto"):
        return policy
    return replace(policy, level=Level(section.level))


@dataclass
class Rule:
    """A `[[policy]]` section at work: its policy, its clock, and what came of its last pass."""

    section: Section  # resolved: no None left, see config.settings.resolve
    policy: Policy
    backend: str  # the name of the one in force
    timer: Timer
    fair: dict[str, str] = field(default_factory=dict)  # backend -> that in its place for users
    queries: dict[str, int] = field(default_factory=dict)  # ruled, with threads here, by domain
    variants: dict[str, Policy] = field(default_factory=dict)  # what "auto" is, by domain
    made: list[tuple[Section, str, Policy]] = field(default_factory=list)  # of those
    # By engine, with what it provides and what is wanted of it
    resolutions: dict[str, tuple[tuple[frozenset[str], ...], Resolution]] = field(
        default_factory=dict
    )
    averages: dict[str, Averages] = field(default_factory=dict)  # by engine
    decided: dict[str, tuple["_Asked", Schedule]] = field(default_factory=dict)  # by domain
    schedules: dict[str, Schedule] = field(default_factory=dict)  # by domain, see `owners`
    spared: dict[str, str] = field(default_factory=dict)  # engine -> why, see `spares`
    applied: Applied = field(default_factory=Applied)
    windows: Mapping[str, Window] = field(default_factory=dict)
    passes: int = 0
    writes: int = 0
    repaired: int = 0
    urgent: bool = True  # something changed: do not wait for the deadline
    problem: str | None = None  # of the policy as a whole
    stage_s: dict[str, float] = field(default_factory=dict)  # of the last pass
    instead: Instead = field(default_factory=Instead)  # who else may decide
    since_s: float = field(default_factory=time.monotonic)  # that its policy is in force
    set_to: str = ""  # the policy that was set while it ran, if its name was that of a policy

    @property
    def name(self) -> str:
        return self.section.name

    @property
    def called(self) -> str:
        """Its name in words to the user: never that of a policy which another one has replaced."""
        return self.set_to or self.name

    @property
    def acting(self) -> Section:
        """The section with the policy that is in force."""
        return self.instead.acting(self.section)

    @property
    def chosen(self) -> str | None:
        """Why the policy in force is, for "auto" or by a switch; None where it was named."""
        auto = self.section.policy == "auto"
        if (why := self.instead.why(auto=auto)) is not None or not auto:
            return why
        queries = self.queries.get(self._first, 0)
        count = {0: "no query yet", 1: "a single query"}.get(queries, f"{queries} queries")
        return f"{count}, {automatic(self.backend, bool(self.section.target))[1]}"

    def holds(self, now_s: float) -> bool:
        """Whether a pass would find what the last one did: averages that are good for half a
        period yet.

        That nobody is born, ends or is put somewhere else meanwhile is for others to see.
        """
        return (
            bool(self.schedules)
            and not self.section.switch
            and self.instead.calm
            and not (self.problem or self.applied.problems)
            and all(
                self._holds(*item, now_s + self.timer.period_s / 2)
                for item in self.schedules.items()
            )
        )

    @property
    def leaves_all(self) -> bool:
        """Whether nothing is ordered, as a race or the guard found, nor will be at the next pass.

        What the user wants more than that is looked after at each pass.
        """
        section = self.section
        return (
            bool(self.schedules)
            and not (section.switch or section.shares or section.target)
            and not (self.problem or self.applied.problems)
            and self.instead.leaves_all
            and all(map(self.instead.own_in, self.schedules))
        )

    def _holds(self, domain: str, schedule: Schedule, then_s: float) -> bool:
        asked, decided = self.decided.get(domain, (None, None))
        return (
            asked is not None
            and decided is schedule
            and bool(asked.averages)  # else it waits for an engine to answer
            and all(averages.until_s > then_s for averages in asked.averages.values())
        )

    @property
    def threads(self) -> int:
        return sum(len(schedule.threads) for schedule in self.schedules.values())

    @property
    def _first(self) -> str:
        """The domain whose policy is shown as the rule's: the common one, where it has any."""
        return min(self.queries, default=COMMON)

    def backend_of(self, domain: str) -> str:
        """What enforces it there: other users than the common ones must not gain by it."""
        if domain == COMMON:
            return self.backend
        return self.fair.get(self.backend, "nice" if self.backend == "scx" else self.backend)

    def policy_of(self, domain: str) -> Policy:
        return self.variants.get(domain, self.policy)

    def spares(self, topology: Topology, domain: str) -> str:
        """Why an engine is left as the system has it, in words; "" where it is not: "auto" orders
        nothing where `why_left` says so, unless the user said what is wanted, or a race finds out.
        """
        section = self._section_in(domain)
        word = section.target or section.shares
        if section.policy != "auto" or word or self.instead.decides_in(domain):
            return ""
        why = why_left(topology, self.queries.get(domain, 0))
        return why and SPARED.format(why)

    def _doubts(self, engine: Engine, waits: bool) -> str:
        """Why an engine is left as the system has it for a while, in words, or "".

        An order by costs that are not known was seen to put the cheapest operator last. What the
        user wants more than that does not wait.
        """
        domain = engine.domain
        if not waits or not engine.unsure or self.instead.decides_in(domain):
            return ""
        section, policy = self._section_in(domain), self.policy_of(domain)
        if section.target or section.shares or policy.targets or policy.name in BY_WORD:
            return ""
        needs = policy.needs
        if section.switch:
            needs = _own_policy(section, self.backend_of(domain)).needs
        return UNSURE if self.resolve(engine).goes_by("cost", needs) else ""

    def count(self, queries: Mapping[str, int]) -> bool:
        """So many queries are ruled now, by domain. True: that makes it another policy."""
        domains = self.queries.keys()
        self.queries = dict(queries)
        if not self._varies or domains == queries.keys():
            return False
        before = {domain: self.policy_of(domain).name for domain in queries}
        self.enforce_by(self.backend)
        return any(self.policy_of(domain).name != name for domain, name in before.items())

    def enforce_by(self, backend: str) -> None:
        """Another backend from now on, and the policy that suits it."""
        before = self.backend, self.policy.name
        known, self.made = self.made, []
        self.backend = backend
        self.variants = {}
        self.policy = self._make(self.acting, backend, known)
        if before != (backend, self.policy.name):
            self.since_s = time.monotonic()
        if self._varies:
            self.variants = {
                domain: self._make(self._acting_in(domain), self.backend_of(domain), known)
                for domain in self.queries
            }
        self.resolutions = {}

    def _make(
        self, section: Section, backend: str, known: Sequence[tuple[Section, str, Policy]]
    ) -> Policy:
        """The very policy that it was, if no other is asked for: one that takes long goes on."""
        same = (p for s, by, p in (*known, *self.made) if (s, by) == (section, backend))
        policy = next(same, None)
        if policy is None:
            policy = make_policy(section, backend)
            # Whether targets can be met is told, and counts, whichever order a race tries or keeps.
            if section.target and not policy.targets and self.instead.trial is not None:
                wants = policy.wants | feasibility.WANTS
                policy = replace(policy, judged=section.target, wants=wants)
        self.made.append((section, backend, policy))
        return policy

    @property
    def _varies(self) -> bool:
        """Whether the policy depends on the domain: on who enforces it, or on who was heard."""
        raced = self.section.policy == "auto" and self.instead.trial is not None
        return self.acting.policy == "auto" or raced or self.instead.whose != COMMON

    def _acting_in(self, domain: str) -> Section:
        """An order that a race tries or has found is for the engines that it compares alone."""
        return self.acting if self.instead.decides_in(domain) else self._section_in(domain)

    def _section_in(self, domain: str) -> Section:
        """What the user said, or where the guard found harm there what it put in its place."""
        said = self.instead.said
        return self.section if said is None or self.instead.counts_in(domain) else said

    def hear(self, whose: str, guard: Guard | None) -> None:
        """Go by the engines of this domain from now on, see `Instead`: all begins anew, except
        what the machine's pressure has switched."""
        watches = tuple(
            watch if watch.switch.metric == PRESSURE else Watch(watch.switch)
            for watch in self.instead.watches
        )
        switched = next((watch for watch in watches if watch is self.instead.switched), None)
        self.section = self.instead.said or self.section
        self.instead = Instead(guard, watches=watches, switched=switched, whose=whose)
        self.enforce_by(self.backend)
        self.urgent = True

    def look(
        self,
        now_s: float,
        windows: Mapping[str, Window],
        resolutions: Mapping[str, Resolution],
        claims: Claims,
        pressure: float,
    ) -> str | None:
        """See whether another policy is to take over, by what engines told in this pass.

        Returns what changed, in words. windows: of those whose word counts. pressure: share of time
        in which threads waited for a CPU.
        """
        for watch in self.instead.watch(self.section.switch):
            parts = []
            for engine, window in windows.items():
                queries = claims.of(self, engine, window.now.topology)
                if watch.switch.metric != PRESSURE and engine in resolutions:
                    column = evaluate(resolutions[engine], window)[watch.switch.metric]
                    parts.append(column[[o.query in queries for o in window.operators]])
            watch.look(pressure if watch.switch.metric == PRESSURE else joined(watch, parts), now_s)
        if not self.instead.turn():
            return None
        before, wanted = self.policy.name, self.instead.switched
        self.enforce_by(self.backend)
        self.urgent = True
        why = "what called for it is over" if wanted is None else wanted.why
        return f"{self.policy.name} instead of {before}: {why}"

    def step_back(self, why: str) -> str:
        """The guard found harm: a policy that orders nothing, then nothing at all. In words."""
        instead = self.instead
        assert instead.guard is not None
        instead.stepped_back += (why,)
        instead.said = instead.said or self.section
        instead.guard.forget()
        instead.watches = ()  # nobody looks at them from now on
        self.urgent = True
        if self.policy.name != NO_ORDER and not instead.resting:
            self.section = msgspec.structs.replace(
                self.section, policy=NO_ORDER, options={}, switch=()
            )
            instead.switched = None
            self.enforce_by(self.backend)
            return f"{NO_ORDER} instead, which orders nothing"
        instead.give_up()
        return "nothing is enforced any more, until policy set"

    def resolve(self, engine: Engine) -> Resolution:
        """How this policy's metrics are got from the engine. Raises MissingMetric."""
        policy = self.policy_of(engine.domain)
        assert engine.provides is not None
        provides = engine.provides
        if probes.available():
            provides = provides | probes.PROVIDES
        wants = policy.wants
        if policy.needs & SAMPLES:
            wants |= {"cost"}  # a queue is long or short by the time that it takes
        if engine.snapshot is not None and engine.snapshot.topology.away.any():
            wants |= {"arrival_age"}
        known = self.resolutions.get(engine.name)
        if known is None or known[0] != (provides, wants):
            # Unless it is watched, which it will be where the guard has given up elsewhere; and
            # "auto" keeps the system's order where it must guess.
            elsewhere = self.instead.said and not self.instead.counts_in(engine.domain)
            if not (self.instead.compares or elsewhere or self.section.policy == "auto"):
                _refuse_guesses(policy, engine, provides)
            resolution = resolve(
                policy.needs,
                provides,
                policy=policy.name,
                engine=engine.name,
                derived=engine.derived,
                wants=wants,
            )
            known = self.resolutions[engine.name] = ((provides, wants), resolution)
        return known[1]

    def uses_probes(self, engine: Engine) -> bool:
        known = self.resolutions.get(engine.name)
        return known is not None and any(
            step.metric in probes.PROVIDES
            and step.derivation is None
            and step.metric not in (engine.provides or ())
            for step in known[1].steps
        )

    def prepare(
        self,
        engines: Sequence[Engine],
        claims: Claims,
        domain: str = COMMON,
        *,
        fair: bool = False,
        waits: bool = False,
    ) -> Callable[[], Schedule]:
        """What makes the schedule over those of these engines, all of a domain, that it rules.

        The function returned may be called from any thread. fair: of the backend, see there.
        waits: until costs are known.
        """
        policy = self.policy_of(domain)
        held = self.backend_of(domain) != "scx"  # which evaluates at each dispatch
        windows: dict[str, Window] = {}
        averages: dict[str, Averages] = {}
        resolutions: dict[str, Resolution] = {}
        select: dict[str, frozenset[str]] = {}
        spared: set[Thread] = set()
        for engine in engines:
            now = engine.snapshot
            if now is None or self.name in engine.refused:
                continue
            self.spared.pop(engine.name, None)
            queries = claims.of(self, engine.name, now.topology)
            if not queries:
                continue
            if why := self.spares(now.topology, domain) or self._doubts(engine, waits):
                self.spared[engine.name] = why
                continue
            resolution = resolutions[engine.name] = self.resolve(engine)
            known_averages, then = self.averages.get(engine.name), engine.then()
            lately = engine.lately() if held else ()
            windows[engine.name], averages[engine.name] = window_of(
                now, then, policy.level, engine.recent(then), resolution, known_averages, lately
            )
            select[engine.name] = queries
            spared |= claims.spared(engine.name, now.topology)
        self.windows = {**self.windows, **windows}
        self.averages.update(averages)
        asked = _Asked(policy, self.section, claims, fair, averages, select)
        known = self.decided.get(domain)
        if known is not None and known[0].same(asked):
            return lambda: known[1]
        before = self.schedules.get(domain)
        made = functools.partial(
            decide,
            scope(self.name, domain),
            policy,
            windows,
            resolutions,
            select,
            self.section.shares or {},
            claims.helpers(fair=fair),
            before.memory if before is not None else NOTHING,
            before.targets if before is not None else {},
            cpus_of(e.target.pid for e in engines if e.target.pid) if policy.aims else 1.0,
            before is not None and before.standing,
        )

        lifts = domain == COMMON and self.instead.lifts

        def answer() -> Schedule:
            schedule = without(made(), spared)
            if not lifts:
                schedule = replace(schedule, lifts=False)
            self.decided.pop(domain, None)
            if asked.is_of_averages:
                self.decided[domain] = asked, schedule
            return schedule

        return answer


@dataclass(frozen=True, eq=False)
class _Asked:
    """All that a schedule depends on, apart from how it is now at the engines."""

    policy: Policy
    section: Section
    claims: Claims
    fair: bool
    averages: Mapping[str, Averages]
    select: Mapping[str, frozenset[str]]

    def same(self, other: "_Asked") -> bool:
        return (
            self.policy is other.policy
            and self.section is other.section
            and self.claims is other.claims
            and self.fair == other.fair
            and self.select == other.select
            and list(self.averages.values()) == list(other.averages.values())
        )

    @property
    def is_of_averages(self) -> bool:
        """Whether the policy asked for nothing that tells of now, and answers for itself alone."""
        reads = self.policy.needs | self.policy.wants
        return (
            self.policy.steady
            and is_ours(self.policy)
            and all(
                reads & known.resolution.needs <= known.columns.keys()
                and not known.window.now.topology.idle_spins
                for known in self.averages.values()
            )
        )


def _refuse_guesses(policy: Policy, engine: Engine, provides: frozenset[str]) -> None:
    """Raises MissingMetric if the policy goes by what nobody knows: an order by it was seen to do
    harm, which nobody would notice.
    """
    guessed = provides & engine.guesses
    try:
        resolve(policy.needs, provides - guessed, policy=policy.name, engine=engine.name)
    except MissingMetric:
        resolve(policy.needs, provides, policy=policy.name, engine=engine.name)
        raise MissingMetric(
            f"policy {policy.name} needs {', '.join(sorted(guessed))}, which {engine.name} can "
            "only guess",
            "take min-cost or light-first, or have it compared with the OS's own order: --guard 60",
        ) from None
