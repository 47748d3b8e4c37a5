"""The main loop: find engines, ask them, decide, apply; until told to stop, then put all back.

One pass goes left to right (ask, metrics, policy, schedule, backend) and is run for all policies
that are due together. Nothing that one engine or one policy does wrong stops the others: it shows
in `status` and in the log, and is tried again.
"""

import asyncio
import functools
import gc
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

from sched_ctl.bindings import Claims, Rule, make_policy, without
from sched_ctl.config import Binding, Settings, resolve
from sched_ctl.deadlines import Timer, earliest
from sched_ctl.drivers import DriverKind, Target
from sched_ctl.enforcing import Backends
from sched_ctl.engines import Engine, Worker
from sched_ctl.errors import UserError, near_miss
from sched_ctl.metrics import MissingMetric
from sched_ctl.model import Snapshot

__all__ = ["Controller"]

log = logging.getLogger(__name__)

LEAST_PATIENCE_S = 0.02


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
        self.kinds = _wanted_kinds(settings, kinds)
        self.backends = backends
        self._assumed = assumed
        bindings = resolve(settings)
        self.claims = Claims(bindings, settings.exclude, settings.helpers)
        self.engines: dict[str, Engine] = {}
        self.rules: list[Rule] = []
        self.started_s = time.monotonic()
        self.started_cpu_s = time.process_time()
        self.stopping: str | None = None  # why, once it is
        self.restored: tuple[str, ...] | None = None  # what could not be, once all is put back
        self._said: dict[str, str] = {}
        self._finding: dict[str, asyncio.Future[Sequence[Target]]] = {}
        self._finders: dict[str, Worker[Sequence[Target]]] = {}
        self._discovery = Timer(settings.discover, self.started_s)
        self._wake = asyncio.Event()
        for binding in bindings:
            self.rules.append(self._rule(binding))

    # --- what the outside may ask for ---

    def stop(self, why: str) -> None:
        """End the loop after the step it is at."""
        self.stopping = self.stopping or why
        self._wake.set()

    def set_policy(self, rule: Rule, name: str, options: Mapping[str, object]) -> None:
        """Rule with another policy from now on. Raises UserError, and then nothing has changed."""
        binding = msgspec.structs.replace(rule.binding, policy=name, options=dict(options))
        policy = make_policy(binding, rule.backend, rule.queries)
        trial = replace(rule, policy=policy, resolutions={})
        for engine in self.engines.values():
            if engine.snapshot is not None and self.claims.covers(binding, engine.name):
                trial.resolve(engine)
        rule.binding, rule.policy, rule.resolutions = binding, trial.policy, trial.resolutions
        rule.problem = None
        rule.urgent = True
        for engine in self.engines.values():
            engine.refused.pop(rule.name, None)
        self._wake.set()

    # --- the loop ---

    async def start(self) -> None:
        """Find the engines, connect, and make sure that the policies can work with them.

        Raises UserError if a policy misses a metric of an engine that is here.
        """
        await self.discover(patience_s=max(2.0, self.settings.poll_timeout))
        await self._ask(list(self.engines.values()), max(3.0, self.settings.poll_timeout))
        self._check_engines()
        self._count_queries()
        self._admit(strict=True)
        fresh = [engine for engine in self.engines.values() if engine.probing]
        if fresh:
            await self._ask(fresh, self.settings.poll_timeout)
        gc.collect()
        gc.freeze()  # what is here now stays; the collector need not look at it again and again

    async def run(self, duration_s: float = float("inf")) -> None:
        """Passes until `stop`, or for a time. Call `start` first."""
        end_s = time.monotonic() + duration_s
        for rule in self.rules:
            rule.timer = Timer(rule.timer.period_s, time.monotonic())
        while self.stopping is None and time.monotonic() < end_s:
            self._climb()
            now_s = time.monotonic()
            due = [rule for rule in self.rules if rule.urgent or rule.timer.is_due(now_s)]
            if due:
                await self.step(due)
            if self._discovery.is_due(time.monotonic()):
                self._discovery.done(time.monotonic())
                await self.discover(patience_s=0.0)
            self._check_engines()
            timers = [self._discovery, *(rule.timer for rule in self.rules)]
            now_s = time.monotonic()
            pause_s = min(earliest(timers, now_s), max(0.0, end_s - now_s))
            if not any(rule.urgent for rule in self.rules):
                await self._sleep(pause_s)

    async def step(self, rules: Sequence[Rule]) -> None:
        """One pass of these rules."""
        began_s = time.perf_counter()
        concerned = [
            engine
            for engine in self.engines.values()
            if any(self.claims.covers(rule.binding, engine.name) for rule in rules)
        ]
        patience_s = min(
            self.settings.poll_timeout,
            max(LEAST_PATIENCE_S, min(rule.timer.period_s for rule in rules) / 2),
        )
        await self._ask(concerned, patience_s)
        self._check_engines()
        self._count_queries()
        self._admit(strict=False)
        asked_s = time.perf_counter() - began_s
        for rule in rules:
            if self.stopping is not None:
                return
            rule.urgent = False
            rule.stage_s = {"ask": asked_s}
            self._pass(rule)
            rule.timer.done(time.monotonic())
            rule.passes += 1
            if len(rules) > 1:  # a slow one keeps neither socket nor signals waiting
                await asyncio.sleep(0)

    async def discover(self, patience_s: float) -> None:
        """Look for engines that came and went; wait for the answer at most so long."""
        for name, kind in self.kinds.items():
            if name in self._finding:
                continue
            finder = self._finders.get(name)
            if finder is None:
                finder = self._finders[name] = Worker(f"find {name}")
            future = finder.call(kind.find)
            self._finding[name] = future
            future.add_done_callback(functools.partial(self._found, name))
        if patience_s and self._finding:
            await asyncio.wait(list(self._finding.values()), timeout=patience_s)
            await asyncio.sleep(0)  # the callbacks

    def close(self) -> tuple[str, ...]:
        """Put everything back and let go of the engines. Returns what could not be, in words."""
        self.restored = () if self.backends is None else self.backends.restore()
        for engine in self.engines.values():
            engine.close()
        for finder in self._finders.values():
            finder.stop()
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
        now_s = time.monotonic()
        waiting: dict[asyncio.Future[Snapshot], Engine] = {}
        for engine in engines:
            question = engine.ask(now_s, self.settings.poll_timeout)
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

    def _pass(self, rule: Rule) -> None:
        began_s = time.perf_counter()
        try:
            schedule = rule.decide(list(self.engines.values()), self.claims)
        except Exception as error:
            log.debug("policy %s", rule.name, exc_info=error)
            rule.problem = (
                error.message
                if isinstance(error, UserError)
                else f"{type(error).__name__}: {error}"
            )
            self._say(f"rule {rule.name}", f"policy {rule.name}: {rule.problem}")
            return
        decided_s = time.perf_counter()
        rule.stage_s["decide"] = decided_s - began_s
        before = rule.schedule
        rule.schedule = schedule
        rule.problem = None
        if self.backends is not None and (schedule.threads or (before and before.threads)):
            self._apply(rule)
        rule.stage_s["apply"] = time.perf_counter() - decided_s
        self._report(rule)

    def _apply(self, rule: Rule) -> None:
        assert self.backends is not None and rule.schedule is not None
        try:
            rule.applied = self.backends[rule.backend].apply(rule.schedule)
        except Exception as error:
            log.debug("backend %s", rule.backend, exc_info=error)
            why = f"{type(error).__name__}: {error}"
            self._step_down(rule.backend, error.message if isinstance(error, UserError) else why)
            return
        rule.writes += rule.applied.writes
        rule.repaired += rule.applied.repaired

    def _step_down(self, failed: str, why: str) -> None:
        """A backend failed: its rules go to the next one if they asked for auto."""
        assert self.backends is not None
        log.error("backend %s failed: %s", failed, why)
        for problem in self.backends.give_up(failed, why):
            log.error("backend %s: not put back: %s", failed, problem)
        for rule in self.rules:
            if rule.backend != failed:
                continue
            try:
                rule.enforce_by(self.backends.get(rule.binding.backend or "auto").name)
                log.warning("policy %s: now enforced by %s", rule.name, rule.backend)
                rule.urgent = True
            except UserError as error:
                rule.problem = error.message
                self._say(f"rule {rule.name}", f"policy {rule.name}: {error.message}")

    def _lost(self, name: str) -> None:
        """A backend no longer works: find out why now, not at the next deadline."""
        for rule in self.rules:
            rule.urgent = rule.urgent or rule.backend == name
        self._wake.set()

    def _climb(self) -> None:
        """Go back to a better backend that failed and works again."""
        better = None if self.backends is None else self.backends.climb()
        if better is None:
            return
        assert self.backends is not None
        for rule in self.rules:
            if (rule.binding.backend or "auto") != "auto" or rule.backend == better:
                continue
            log.warning("policy %s: back to %s from %s", rule.name, better, rule.backend)
            if rule.schedule is not None:
                nobody = without(rule.schedule, set(rule.schedule.threads))
                self.backends[rule.backend].apply(nobody)
            rule.enforce_by(better)
            rule.urgent = True

    def _rule(self, binding: Binding) -> Rule:
        asked = binding.backend or "auto"
        backend = self._assumed(asked) if self.backends is None else self.backends.get(asked).name
        return Rule(
            binding,
            make_policy(binding, backend),
            backend,
            Timer(binding.period or 1.0, time.monotonic()),
        )

    # --- engines ---

    def _found(self, name: str, future: "asyncio.Future[Sequence[Target]]") -> None:
        self._finding.pop(name, None)
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            log.debug("%s", name, exc_info=error)
            self._say(f"find {name}", f"{name}: cannot look for engines: {error}")
        targets = list(future.result()) if error is None else []
        for wanted in self.settings.engine:
            kind, _, address = wanted.partition(":")
            if kind == name and address and wanted not in [t.engine for t in targets]:
                targets.append(Target(kind, address))
        for target in targets:
            if self._is_wanted(target) and target.engine not in self.engines:
                if len(self.engines) >= 256:
                    self._say("engines", "more than 256 engines: the others are left alone")
                    return
                engine = Engine(target, self.kinds[name], self.settings.window)
                self.engines[target.engine] = engine
                log.info("%s: found%s", engine.name, f", pid {target.pid}" if target.pid else "")
                for rule in self.rules:
                    rule.urgent = rule.urgent or self.claims.covers(rule.binding, engine.name)
                self._wake.set()

    def _is_wanted(self, target: Target) -> bool:
        wanted = self.settings.engine
        return not wanted or target.kind in wanted or target.engine in wanted

    def _check_engines(self) -> None:
        now_s = time.monotonic()
        for engine in list(self.engines.values()):
            before = engine.state
            change = engine.check(now_s, self.settings.poll_timeout, self.settings.stale_after)
            if change:
                log.warning("%s: %s", engine.name, change)
            if engine.state != before and engine.state in ("gone", "released"):
                for rule in self.rules:
                    rule.urgent = rule.urgent or engine.name in rule.windows
            if engine.state == "gone":
                engine.close()
                self.claims.forget(engine.name)
                for rule in self.rules:
                    rule.resolutions.pop(engine.name, None)
                del self.engines[engine.name]

    def _count_queries(self) -> None:
        """Let "auto" follow the queries that come and go; say which policy it takes, and why."""
        for rule in self.rules:
            queries = sum(
                self.claims.queries(rule, engine.name, engine.snapshot.topology)
                for engine in self.engines.values()
                if engine.snapshot is not None
            )
            if queries != rule.queries and rule.count(queries):
                for engine in self.engines.values():
                    engine.refused.pop(rule.name, None)
            if queries and rule.chosen is not None:
                message = f"policy {rule.name}: {rule.policy.name} ({rule.chosen})"
                if self._said.get(f"choice {rule.name}") != message:
                    self._said[f"choice {rule.name}"] = message
                    log.info("%s", message)

    def _admit(self, *, strict: bool) -> None:
        """See that each policy finds its metrics in each engine that it rules."""
        for engine in self.engines.values():
            snapshot = engine.snapshot
            if snapshot is None:
                continue
            for rule in self.rules:
                if rule.name in engine.refused or not self.claims.of(
                    rule, engine.name, snapshot.topology
                ):
                    continue
                try:
                    rule.resolve(engine)
                except MissingMetric as error:
                    if strict:
                        raise
                    engine.refused[rule.name] = error.message
                    log.error("%s", error.message)
            engine.probing = any(rule.uses_probes(engine) for rule in self.rules)

    # --- telling ---

    def _say(self, about: str, message: str) -> None:
        """Log a problem once, until it is another one."""
        if self._said.get(about) != message:
            self._said[about] = message
            if message:
                log.warning("%s", message)

    def _report(self, rule: Rule) -> None:
        assert rule.schedule is not None
        threads = len(rule.schedule.threads)
        engines = ", ".join(rule.windows) or "no engine"
        message = f"policy {rule.name}: {threads} threads of {engines}"
        if self._said.get(f"threads {rule.name}") != message:
            self._said[f"threads {rule.name}"] = message
            log.info("%s", message)
        self._say(
            f"problems {rule.name}",
            f"policy {rule.name}: " + "; ".join(rule.applied.problems[:5])
            if rule.applied.problems
            else "",
        )
        for engine, window in rule.windows.items():
            notes = "; ".join(window.now.topology.notes[:5])
            self._say(f"notes {engine}", f"{engine}: {notes}" if notes else "")
        # Once, not each pass: what fights us may do so for days. `status` has the count.
        self._say(
            f"repaired {rule.name}",
            f"policy {rule.name}: somebody else changes its threads; they are set again"
            if rule.repaired
            else "",
        )


def _on_time(engine: Engine, patience_s: float, _: object) -> None:
    engine.late = engine.poll_s > patience_s


def _wanted_kinds(settings: Settings, kinds: Mapping[str, DriverKind]) -> dict[str, DriverKind]:
    wanted = {text.partition(":")[0] for text in settings.engine}
    for kind in sorted(wanted - kinds.keys()):
        raise UserError(
            f"there is no driver for engines of kind {kind!r}{near_miss(kind, kinds)}",
            f"kinds: {', '.join(sorted(kinds)) or 'none'}",
        )
    return {name: kind for name, kind in kinds.items() if not wanted or name in wanted}
