"""The main loop: find engines, ask them, decide, apply; until told to stop, then put all back.

One pass goes left to right (ask, metrics, policy, schedule, backend) and is run for all policies
that are due together. Nothing that one engine or one policy does wrong stops the others: it shows
in `status` and in the log, and is tried again.
"""

import asyncio
import contextlib
import functools
import gc
import logging
import operator
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

import msgspec

from sched_ctl.adapt.guard import Guard
from sched_ctl.backends.in_use import Backends
from sched_ctl.config.settings import Prior, Section, Settings, resolve
from sched_ctl.controller import races
from sched_ctl.controller.claims import Claims
from sched_ctl.controller.enforcement import Enforcement
from sched_ctl.controller.instead import Instead
from sched_ctl.controller.pace import Pace, tick_s
from sched_ctl.controller.rule import Rule, make_policy
from sched_ctl.controller.standstill import LATE_PERIODS, LATE_S, Standstill
from sched_ctl.controller.targets import TargetWatch
from sched_ctl.controller.trial import Outcomes
from sched_ctl.drivers import DriverKind
from sched_ctl.engines.boundary import is_ours, words
from sched_ctl.engines.budget import Allowance, Budget
from sched_ctl.engines.engine import CPU_SHARE, Engine
from sched_ctl.engines.owners import COMMON, Owners
from sched_ctl.engines.remarks import Remarks
from sched_ctl.engines.roster import Roster, wanted_kinds
from sched_ctl.engines.timers import Timer, earliest
from sched_ctl.engines.worker import Worker
from sched_ctl.errors import UserError
from sched_ctl.kernel.crowd import slowness
from sched_ctl.metrics.catalogue import MissingMetric
from sched_ctl.metrics.window import Window
from sched_ctl.model.policy import Policy
from sched_ctl.model.schedule import Schedule, without
from sched_ctl.model.topology import Snapshot
from sched_ctl.probes.waits import WaitTimes
from sched_ctl.telemetry import profiles
from sched_ctl.telemetry.recorder import kind_here

__all__ = ["Controller", "claims_of"]

log = logging.getLogger(__name__)

GARBAGE = (700, 10, 10)  # Python's own thresholds, see `start.WHILE_LOADING`
LEAST_PATIENCE_S = 0.02
LOOK_S = 1.0  # what somebody looks at is not older
POLICY_S = 0.005  # that a policy of others may take while the rest waits


class Controller:
    """Runs the policies of the settings over the engines of this machine.

    backends: None = decide only, apply nothing (`sched-ctl plan`); `assumed` then tells the
    backend that would be taken for a name from the configuration.
    """

    def __init__(
        self,
        settings: Settings,
        kinds: Mapping[str, DriverKind],
        backends: Backends | None,
        assumed: Callable[[str], str] = lambda _: "none",
    ) -> None:
        self.settings = settings
        self.all_kinds = kinds
        self.kinds = wanted_kinds(settings, kinds)
        self.backends = backends
        self._assumed = assumed
        sections = resolve(settings)
        self.claims = claims_of(settings, self.kinds)
        self.owners = Owners(settings.users)
        self.remarks = Remarks()
        self.roster = Roster(settings, self.kinds, self.owners, self.remarks, self._arrived)
        self.engines = self.roster.engines
        self.rules: list[Rule] = []
        self.enforcement = (
            None
            if backends is None
            else Enforcement(
                backends, self.rules, self.remarks, lambda: self.pace.rarest_s(self.rules)
            )
        )
        self._priors = profiles.of_file(settings.profiles)
        self.noted: Callable[[], None] | None = None  # called when the passes of a step are done
        self.started_s = time.monotonic()
        self.started_cpu_s = time.process_time()
        self.stopping: str | None = None  # why, once it is
        self.not_reloaded: str | None = None  # why a new configuration is not in force
        self.not_recorded: str | None = None  # why what is to be recorded is not, or not all of it
        self.restored: tuple[str, ...] | None = None  # what could not be, once all is put back
        # Policies of others, by rule and domain; and what each decides, with the policy
        self._thinkers: dict[tuple[str, str], Worker[Schedule]] = {}
        self._deciding: dict[tuple[str, str], tuple[Policy | None, asyncio.Future[Schedule]]] = {}
        self._wake = asyncio.Event()
        self._probe_until_s = 0.0
        self._seen: list[object] = []  # at the last step
        self._budgets: dict[tuple[str, str], Budget] = {}  # by rule and domain
        self._allowances: dict[str, Allowance] = {}  # by domain, for answers
        self._noting: dict[str, Allowance] = {}  # likewise, for what came of it
        self._theirs_s = (
            0.0  # CPU time of the loop that is no pass's: of users ordered alone, of pages
        )
        self.observes = False  # it has no backend, and runs on for those who look
        self.outcomes = Outcomes()
        self.replicas: dict[tuple[str, str], str] = {}  # by engine and query, in words
        self.waits = WaitTimes()
        self.targets = TargetWatch()
        self.pace = pace_of(settings)
        self._standstill: Standstill | None = None
        for section in sections:
            self.rules.append(self.rule(section, settings))

    # --- what the outside may ask for ---

    def stop(self, why: str) -> None:
        """End the loop after the step it is at."""
        self.stopping = self.stopping or why
        self._wake.set()

    def set_policy(self, rule: Rule, name: str, options: Mapping[str, object]) -> None:
        """Rule with another policy from now on. Raises UserError, and then nothing has changed.

        It is in force on return, by what is known of the engines; a pass that asks them follows.
        """
        section = msgspec.structs.replace(
            rule.section, policy=name, options=dict(options), switch=()
        )
        instead = replace(rule.instead, switched=None, trial=None, said=None)
        trial = replace(rule, section=section, instead=instead)
        trial.enforce_by(rule.backend)
        self.try_out(trial, self.claims)
        if rule.called == rule.section.policy:
            rule.set_to = name
        rule.section, rule.resolutions = section, trial.resolutions
        rule.policy, rule.variants, rule.made = trial.policy, trial.variants, trial.made
        rule.since_s = trial.since_s
        rule.problem = None
        rule.urgent = True
        rule.instead = Instead(_guard(self.settings, section, rule.timer.period_s))
        self._admit_anew(rule)
        self._admit(strict=False)
        self._budgets.clear()  # what the one before cost
        if rule.schedules:
            self._pass(rule)
        self._wake.set()

    def try_out(self, rule: Rule, claims: Claims) -> None:
        """Raises MissingMetric if an engine that is here has not what a new rule needs, but for
        those that are left out alone: users' own, and what the rule of that name leaves out now.
        """
        for engine in self.engines.values():
            known = engine.domain != COMMON or rule.name in engine.refused
            if not known and _is_ruled(engine, rule, claims):
                rule.resolve(engine)

    def watch(self, seconds: float) -> None:
        """Somebody looks: for so long read the times of all threads, and leave no pass out."""
        self.pace.look(seconds)
        self.probe(seconds)
        now_s = time.monotonic()
        for engine in self.engines.values():
            if now_s - (engine.answered_s or now_s) > LOOK_S and not engine.busy:
                for rule in self.rules:
                    rule.urgent = rule.urgent or self.claims.covers(rule.section, engine.name)
                self._wake.set()

    def probe(self, seconds: float) -> None:
        """Read the times of all threads for so long, whenever a pass is run."""
        self._probe_until_s = max(self._probe_until_s, time.monotonic() + seconds)
        for engine in self.engines.values():
            engine.probing = True

    def spent_on_others(self, spent_s: float) -> None:
        """CPU time of the loop for who may ask as often as he likes: it makes no pass rarer."""
        self._theirs_s += spent_s

    def use(
        self, settings: Settings, kinds: Mapping[str, DriverKind], rules: Sequence[Rule]
    ) -> None:
        """Other settings and rules from now on, see `reload`, which has tried them."""
        self.settings, self.kinds = settings, dict(kinds)
        self.claims, self.owners = claims_of(settings, kinds), Owners(settings.users)
        self.rules[:] = rules
        self._deciding.clear()  # what was begun under the old ones
        names = {rule.name for rule in rules}
        for key in [key for key in self._thinkers if key[0] not in names]:
            self._thinkers.pop(key).stop()
        self._budgets.clear()
        before = set(self.engines)
        self.roster.follow(settings, kinds, self.owners)
        for name in before - self.engines.keys():
            self._forget(name)
        if not settings.trace:
            self.waits.close()
        self.pace.close()
        self.pace = pace_of(settings)
        self._watch_pressure()
        self._wake.set()

    # --- the loop ---

    async def start(self, *, strict: bool = True) -> None:
        """Find the engines, connect, and make sure that the policies can work with them.

        Raises UserError if a policy misses a metric of an engine that is here; a user's own is left
        out alone, and without `strict` each, as if it had come later.
        """
        await self.roster.discover(patience_s=max(2.0, self.settings.poll_timeout))
        await self._ask(list(self.engines.values()), max(3.0, self.settings.poll_timeout))
        self._check_engines()
        self._count_queries()
        self._admit(strict=strict)

    async def run(self, duration_s: float = float("inf")) -> None:
        """Passes until `stop`, or for a time. Call `start` first."""
        # Not before an order is in force, as it takes a while.
        gc.collect()
        gc.freeze()  # what is here now stays; the collector need not look at it again and again
        gc.set_threshold(*GARBAGE)
        end_s = time.monotonic() + duration_s
        for rule in self.rules:
            rule.timer = Timer(rule.timer.period_s, time.monotonic())
        self._watch_pressure()
        if self.backends is not None:
            loop = asyncio.get_running_loop()
            self.backends.on_lost = lambda name: self._call_soon(loop, name)
            self._standstill = Standstill(self.backends)
            self._standstill.start()
        while self.stopping is None and time.monotonic() < end_s:
            if self.enforcement is not None:
                self.enforcement.climb()
                self.enforcement.rest()
            now_s = time.monotonic()
            for engine in self.roster.stirring():
                for rule in self.rules:
                    if self.claims.covers(rule.section, engine.name):
                        self.pace.stir(rule)
            looked_at = self.noted is not None or now_s < self._probe_until_s
            due = self.pace.due(self.rules, now_s, all_seen=looked_at)
            if due:
                await self.step(due)
            if self.roster.is_due(time.monotonic()):
                await self.roster.discover(patience_s=0.0)
            self._check_engines()
            timers = [self.roster.timer, *(rule.timer for rule in self.rules)]
            now_s = time.monotonic()
            pause_s = min(earliest(timers, now_s), max(0.0, end_s - now_s))
            self._confirm(now_s + pause_s)
            # Signals and the socket have their turn even if there is no pause.
            await self._sleep(0 if any(rule.urgent for rule in self.rules) else pause_s)

    def _confirm(self, next_s: float) -> None:
        """What is in force was decided just now; the loop is back at `next_s`, or it fades."""
        if self.backends is None:
            return
        period_s = min((rule.timer.period_s for rule in self.rules), default=0.0)
        if self.backends.trust(next_s + max(LATE_S, LATE_PERIODS * period_s)):
            log.warning("the controller's loop goes on: its order is brought into force again")
            for rule in self.rules:
                rule.urgent = True

    async def step(self, rules: Sequence[Rule]) -> None:
        """One pass of these rules."""
        began_s = time.perf_counter()
        concerned = [
            engine
            for engine in self.engines.values()
            if any(self.claims.covers(rule.section, engine.name) for rule in rules)
        ]
        patience_s = min(
            self.settings.poll_timeout,
            max(LEAST_PATIENCE_S, min(rule.timer.period_s for rule in rules) / 2),
        )
        await self._ask(list(self._known_or_next(concerned)), patience_s)
        self._check_engines()
        if not self._is_as_before():
            self._count_queries()
            self._admit(strict=False)
        if self.settings.trace and (self.observes or self.backends is not None):
            pids = {pid for engine in self.engines.values() for pid in engine.pids}
            self.waits.follow(pids)
        for engine in concerned:
            if engine.snapshot is not None:
                self._note(engine, engine.snapshot)
        asked_s = time.perf_counter() - began_s
        for rule in rules:
            if self.stopping is not None:
                return
            if all(rule is not known for known in self.rules):
                continue  # the configuration was read again meanwhile
            rule.urgent = False
            rule.stage_s = {"ask": asked_s}
            self._pass(rule)
            rule.timer.done(time.monotonic())
            rule.passes += 1
            if len(rules) > 1:  # a slow one keeps neither socket nor signals waiting
                await asyncio.sleep(0)
        self.targets.note(self, time.monotonic())
        if self.noted is not None:
            self.noted()
        # Engines pay for their answers themselves, and users for the order of what is theirs.
        self.pace.charge(time.thread_time() - self._theirs_s - self.roster.in_loop_s)

    def close(self) -> tuple[str, ...]:
        """Put everything back and let go of the engines. Returns what could not be, in words."""
        if self._standstill is not None:
            self._standstill.stop()
        self.restored = () if self.backends is None else self.backends.restore()
        self.pace.close()
        self.waits.close()
        self.roster.close()
        for thinker in self._thinkers.values():
            thinker.stop()
        return self.restored

    # --- steps ---

    async def _sleep(self, pause_s: float) -> None:
        if pause_s <= 0:
            await asyncio.sleep(0)
            return
        timer = asyncio.get_running_loop().call_later(pause_s, self._wake.set)
        await self._wake.wait()
        self._wake.clear()
        timer.cancel()

    async def _ask(self, engines: Sequence[Engine], patience_s: float) -> None:
        """Ask all of them at once; wait a while for those that usually answer in time."""
        now_s, timeout_s = time.monotonic(), self.settings.poll_timeout * slowness()
        waiting: dict[asyncio.Future[Snapshot], Engine] = {}
        self._share_out(now_s)
        for engine in engines:
            question = engine.ask(now_s, timeout_s)
            if question is None:
                continue
            if not engine.late:
                waiting[question] = engine
            question.add_done_callback(functools.partial(_on_time, engine, patience_s))
        if not waiting:
            return
        _, late = await asyncio.wait(waiting, timeout=patience_s)
        for question in late:
            # From now on its answers are taken when they come, until it is quick again.
            waiting[question].late = True

    def _known_or_next(self, engines: Sequence[Engine]) -> Iterator[Engine]:
        """Without those of users, but one of each at a time, whose cost nobody knows yet."""
        unknown = {e.domain for e in self.engines.values() if not e.polls and e.busy} - {COMMON}
        for engine in engines:
            if engine.polls or engine.domain not in unknown:
                yield engine
            if not engine.polls and engine.domain != COMMON:
                unknown.add(engine.domain)

    def _share_out(self, now_s: float) -> None:
        """What each engine's answers may cost: an owner's engines have `cpu_limit` together.

        While somebody looks, root's and the system's are asked at each pass.
        """
        limit, looked_at = self.settings.cpu_limit, now_s < self.pace.watched_until_s
        owners = Counter(engine.domain for engine in self.engines.values())
        for engine in self.engines.values():
            free = looked_at and engine.domain == COMMON
            engine.share = 0.0 if free else limit / owners[engine.domain]
            engine.allowance = self._allowances.setdefault(engine.domain, Allowance())
            engine.longest_s = self.pace.longest_s
            engine.remarkable_s = self.pace.remarkable_s(self.rules)

    def _note(self, engine: Engine, snapshot: Snapshot) -> None:
        """What came of it there. A user pays for his own, and is left out while he rests."""
        allowance, now_s = self._noting.setdefault(engine.domain, Allowance()), time.monotonic()
        if allowance.rests(now_s):
            return
        began_s = time.thread_time()
        latencies = functools.partial(races.latencies, engine, self.rules, self.claims)
        self.outcomes.note(snapshot, latencies)
        self.targets.count(self, engine, snapshot, now_s)
        if engine.domain != COMMON:
            spent_s = time.thread_time() - began_s
            self._theirs_s += spent_s
            share = min(CPU_SHARE, self.settings.cpu_limit or CPU_SHARE)
            allowance.spend(spent_s, time.monotonic(), share)

    def _rests(self, rule: Rule, domain: str) -> bool:
        """Whether a user's engines keep the order that they have, for what deciding costs."""
        budget = self._budgets.get((rule.name, domain))
        return budget is not None and time.monotonic() < budget.rests_until_s

    def _pay(self, rule: Rule, domain: str, spent_s: float) -> None:
        """What was done for a user's engines is his, and keeps nobody else waiting."""
        if domain == COMMON:
            return
        self._theirs_s += spent_s
        budget = self._budgets.setdefault((rule.name, domain), Budget())
        limit = self.settings.cpu_limit
        budget.charge(spent_s, time.monotonic(), limit, self.pace.longest_s)

    def _pass(self, rule: Rule) -> None:
        began_s = time.perf_counter()
        domains: dict[str, list[Engine]] = {domain: [] for domain in rule.schedules}
        for engine in self.engines.values():
            domains.setdefault(engine.domain, []).append(engine)
        self._stop_thinking(rule, domains.keys())
        seen, rule.windows = rule.windows, {}
        problems = []
        schedules = dict(rule.schedules)
        for domain, engines in domains.items():
            if self._rests(rule, domain):
                rule.windows |= _windows_of(engines, seen)
                continue
            deciding_s = time.thread_time()
            try:
                schedules[domain] = self._decide(rule, engines, domain, seen)
                if rule.section.target:
                    self.targets.say(self.engines.keys(), schedules[domain].targets)
            except Exception as error:
                log.debug("policy %s", rule.name, exc_info=error)
                problems.append(words(error))
            self._pay(rule, domain, time.thread_time() - deciding_s)
        rule.problem = "; ".join(problems) or None
        if rule.problem is not None:
            self.remarks.say(f"rule {rule.name}", f"policy {rule.called}: {rule.problem}")
        rule.stage_s["decide"] = time.perf_counter() - began_s
        self._race(rule)
        if not domains or len(problems) == len(domains):
            return
        began_s = time.perf_counter()
        self._hear(rule)
        self._guard_looks(rule)
        self._switch(rule)
        rule.schedules = {
            domain: self._guarded(rule, domain, schedule) for domain, schedule in schedules.items()
        }
        if self.enforcement is not None:
            self.enforcement.apply(rule)
        # What had threads stays for one more pass, so that they are released.
        rule.schedules = {
            domain: schedule
            for domain, schedule in rule.schedules.items()
            if schedule.threads or any(e.domain == domain for e in self.engines.values())
        }
        rule.stage_s["apply"] = time.perf_counter() - began_s
        if not rule.instead.looking:
            self.remarks.tell(
                rule.called,
                rule.threads,
                rule.windows,
                rule.applied.problems,
                repaired=bool(rule.repaired),
                own=(rule.instead.phase or "") if rule.instead.own else "",
            )
        for name in sorted(rule.spared.keys() & self.engines.keys()):
            self.remarks.say(f"spared {name} {rule.name}", f"{name}: {rule.spared[name]}")

    def _hear(self, rule: Rule) -> None:
        """Let switches and the guard go by the engines whose word counts now."""
        instead, whose = rule.instead, races.whose(rule, self.engines)
        if instead.trial is None and whose is not None and instead.turns_to(whose):
            section = instead.said or rule.section
            rule.hear(whose, _guard(self.settings, section, rule.timer.period_s))
            self._admit_anew(rule)

    def _guard_looks(self, rule: Rule) -> None:
        """Step back if the guard finds harm at the engines whose word counts."""
        guard = rule.instead.guard
        if guard is not None and rule.instead.trial is None and self.backends is not None:
            own, others = guard.own, [other for other in self.rules if other is not rule]
            now_s = time.monotonic()
            found = races.guarded(rule, others, self.engines, self.claims, now_s)
            if found:
                log.warning("policy %s: %s: %s", rule.called, found, rule.step_back(found))
            elif guard.own != own and guard.phase:
                log.info("policy %s: guard: %s", rule.called, guard.phase)

    def _race(self, rule: Rule) -> None:
        """Let it be another order's turn, where a race finds the policy."""
        others = [other for other in self.rules if other is not rule]
        now_s, pressure = time.monotonic(), self.pace.share_before(rule)
        if races.look(rule, others, self.engines, self.claims, now_s, pressure):
            self._admit_anew(rule)
            assert rule.instead.trial is not None
            if (news := rule.instead.trial.news) is not None:
                log.info("policy %s: %s", rule.called, news)

    def _switch(self, rule: Rule) -> None:
        """Let another policy take over from the next pass on, if a switch of the rule says so."""
        if not rule.section.switch or rule.instead.resting:
            return
        resolutions = {name: known[1] for name, known in rule.resolutions.items()}
        heard = races.compared(rule, self.engines)
        pressure = self.pace.some_share
        change = rule.look(time.monotonic(), heard, resolutions, self.claims, pressure)
        if change is not None:
            log.warning("policy %s: %s", rule.called, change)
            self._admit_anew(rule)

    def _guarded(self, rule: Rule, domain: str, schedule: Schedule) -> Schedule:
        """The schedule, or one of nobody while the system's own scheduling is looked at."""
        if rule.instead.own_in(domain):
            return without(schedule, set(schedule.threads))
        return schedule

    def _decide(
        self, rule: Rule, engines: Sequence[Engine], domain: str, seen: Mapping[str, Window]
    ) -> Schedule:
        """The rule's schedule of a domain. A policy that is not ours may take its time, alone:
        meanwhile, and once it is ready, windows are those seen when it began.
        """
        policy = rule.policy_of(domain)
        prepare = functools.partial(
            rule.prepare,
            engines,
            self.claims,
            domain,
            fair=self._is_fair(rule, domain),
            waits=self.enforcement is not None,
        )
        if is_ours(policy):
            return prepare()()
        key = rule.name, domain
        begun, deciding = self._deciding.pop(key, (None, None))
        if deciding is None or begun is not policy:
            thinker = self._thinkers.get(key)
            if thinker is None:
                thinker = self._thinkers[key] = Worker(f"policy {rule.name}")
            deciding = thinker.call(prepare(), POLICY_S)
            deciding.add_done_callback(functools.partial(self._decided, rule))
        else:
            rule.windows = {**rule.windows, **_windows_of(engines, seen)}
        if deciding.done():
            return deciding.result()
        self._deciding[key] = policy, deciding  # taken when it is ready
        raise UserError(
            f"{policy.name} is still deciding: what it decided before stays in force",
            f"it takes more than {POLICY_S * 1e3:g} ms, and so decides beside the main loop",
        )

    def _stop_thinking(self, rule: Rule, domains: Set[str]) -> None:
        """Of whom is not in one of these, once what is being decided is ready, and nobody's."""
        for key in list(self._thinkers):
            if key[0] != rule.name or key[1] in domains:
                continue
            _, deciding = self._deciding.pop(key, (None, None))
            if deciding is None or deciding.done():
                self._thinkers.pop(key).stop()
            else:
                self._deciding[key] = None, deciding

    def _is_fair(self, rule: Rule, domain: str) -> bool:
        """Whether what enforces the rule there is fair to threads that are not in its schedule."""
        if self.backends is None or domain != COMMON or rule.backend not in self.backends.names:
            return False
        return self.backends[rule.backend].fair

    def _decided(self, rule: Rule, done: object) -> None:
        """One that a pass waits for, not one that was ready within its own pass."""
        if any(deciding is done for _, deciding in self._deciding.values()):
            rule.urgent = True
            self._wake.set()

    def _call_soon(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody asks any more
            loop.call_soon_threadsafe(self._lost, name)

    def _lost(self, name: str) -> None:
        """A backend no longer works: find out why now, not at the next deadline."""
        for rule in self.rules:
            rule.urgent = rule.urgent or rule.backend == name
        self._wake.set()

    def _watch_pressure(self) -> None:
        if self.settings.pressure != "trigger":
            return
        try:
            self.pace.watch(self._pressed)
        except OSError as error:
            log.warning("no PSI trigger (%s): a look once a period must do", error)

    def _pressed(self) -> None:
        for rule in self.rules:
            rule.urgent = True
        self._wake.set()

    def rule(self, section: Section, settings: Settings) -> Rule:
        """A rule for a section of these settings, which need not be in force yet.

        Raises UserError if its backend cannot be had.
        """
        asked = section.backend or "auto"
        backend = self._assumed(asked) if self.backends is None else self.backends.get(asked).name
        period_s = section.period or 1.0
        policy = make_policy(section, backend)
        return Rule(
            section,
            policy,
            backend,
            Timer(tick_s(period_s, settings.pressed_period), time.monotonic()),
            made=[(section, backend, policy)],
            instead=Instead(_guard(settings, section, period_s)),
        )

    # --- engines ---

    def _arrived(self, engine: Engine) -> None:
        engine.priors = self._priors
        for rule in self.rules:
            rule.urgent = rule.urgent or self.claims.covers(rule.section, engine.name)
        self._wake.set()

    def _check_engines(self) -> None:
        for engine in self.roster.check():
            for rule in self.rules:
                rule.urgent = rule.urgent or engine.name in rule.windows
            self.outcomes.forget(engine.name)
            if engine.state == "gone":
                self._forget(engine.name)

    def _forget(self, engine: str) -> None:
        """It left, or is not wanted any more."""
        self.claims.forget(engine)
        self.remarks.forget(engine)
        self.outcomes.forget(engine)
        for rule in self.rules:
            rule.resolutions.pop(engine, None)
            rule.averages.pop(engine, None)
            rule.spared.pop(engine, None)

    def _is_as_before(self) -> bool:
        """Whether engines, what they run and what they tell are those of the last step."""
        seen: list[object] = [self.claims, time.monotonic() < self._probe_until_s]
        for engine in self.engines.values():
            snapshot = engine.snapshot
            seen += engine, snapshot and snapshot.topology, engine.provides
        for rule in self.rules:
            seen += rule, rule.policy, rule.section
        before, self._seen = self._seen, seen
        return len(seen) == len(before) and all(map(operator.is_, seen, before))

    def _count_queries(self) -> None:
        """Let "auto" follow the queries that come and go; say which policy it takes, and why."""
        for rule in self.rules:
            queries: Counter[str] = Counter()
            for engine in self.engines.values():
                if engine.snapshot is not None:
                    queries[engine.domain] += self.claims.queries(
                        rule, engine.name, engine.snapshot.topology
                    )
            counted = rule.count(+queries)  # by which a race goes
            raced = races.enter(rule, self.engines, self.claims, self._phase_s, self._priors_here)
            if counted | raced:
                self._admit_anew(rule)
            settled = not (rule.instead.looking or rule.instead.own)
            if rule.queries and rule.chosen is not None and settled:
                message = f"policy {rule.called}: {rule.policy.name} ({rule.chosen})"
                self.remarks.say(f"choice {rule.name}", message, logging.INFO)

    @property
    def _priors_here(self) -> Sequence[Prior]:
        """Orders that suited machines like this one."""
        return [p for p in self.settings.prior if p.machine in ("", kind_here())]

    @property
    def _phase_s(self) -> float:
        """Length of a phase of a race; 0: none is run."""
        return 0.0 if self.backends is None else self.settings.race

    def _admit_anew(self, rule: Rule) -> None:
        """Another policy is in force, or for others: the next step sees which engines it can rule,
        also where it is the very object that it was.
        """
        for engine in self.engines.values():
            engine.refused.pop(rule.name, None)
        self._seen = []

    def _admit(self, *, strict: bool) -> None:
        """See that each policy finds its metrics in each engine that it rules."""
        for engine in self.engines.values():
            if engine.snapshot is None:
                continue
            for rule in self.rules:
                if rule.name in engine.refused or not _is_ruled(engine, rule, self.claims):
                    continue
                try:
                    rule.resolve(engine)
                except MissingMetric as error:
                    if strict and engine.domain == COMMON:
                        raise
                    engine.refused[rule.name] = error.message
                    log.error("%s", error.message)
            watched = time.monotonic() < self._probe_until_s
            engine.probing = watched or any(rule.uses_probes(engine) for rule in self.rules)


def _is_ruled(engine: Engine, rule: Rule, claims: Claims) -> bool:
    """Whether the rule has queries in the engine, and does not leave it as the system has it."""
    if engine.snapshot is None:
        return False
    topology = engine.snapshot.topology
    return bool(claims.of(rule, engine.name, topology)) and not rule.spares(topology, engine.domain)


def _windows_of(engines: Sequence[Engine], seen: Mapping[str, Window]) -> dict[str, Window]:
    return {engine.name: seen[engine.name] for engine in engines if engine.name in seen}


def claims_of(settings: Settings, kinds: Mapping[str, DriverKind]) -> Claims:
    """Who rules what, by these settings and what the drivers say of their helper threads."""
    usual = {
        f"{name}:{role}": rule
        for name, kind in kinds.items()
        for role, rule in kind.helpers.items()
    }
    return Claims(resolve(settings), settings.exclude, settings.helpers, usual)


def _guard(settings: Settings, section: Section, period_s: float) -> Guard | None:
    """A phase of the system's own is long enough for a few passes, and short for the user."""
    every_s = settings.guard
    if not every_s:
        return None
    phase_s = min(every_s / 2, max(every_s / 10, 5 * period_s))
    return Guard(every_s, phase_s, section.objective or "all")


def pace_of(settings: Settings) -> Pace:
    longest_s = settings.stale_after / 2  # else rest looks like silence
    return Pace(
        min(settings.calm_period, longest_s),
        settings.pressed_period,
        cpu_limit=settings.cpu_limit,
        longest_s=longest_s,
    )


def _on_time(engine: Engine, patience_s: float, _: object) -> None:
    engine.late = engine.poll_s > patience_s
