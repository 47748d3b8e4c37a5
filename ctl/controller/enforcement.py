"""From a rule's schedules to backends, and along the ladder when one fails or works again."""

import logging
from collections.abc import Mapping, Sequence

from sched_ctl.backends import Applied, Backend
from sched_ctl.backends.in_use import Backends
from sched_ctl.backends.undo.journal import JournalError
from sched_ctl.controller.rule import Rule
from sched_ctl.engines.owners import COMMON, called
from sched_ctl.engines.remarks import Remarks
from sched_ctl.errors import UserError
from sched_ctl.model.schedule import Schedule, without

__all__ = ["Enforcement"]

log = logging.getLogger(__name__)


class Enforcement:
    """Applies the schedules of rules by the backends in use."""

    def __init__(self, backends: Backends, rules: Sequence[Rule], remarks: Remarks) -> None:
        self._backends, self._rules, self._remarks = backends, rules, remarks

    def apply(self, rule: Rule, before: Mapping[str, Schedule]) -> None:
        """Bring a rule's schedules into force. before: those that are."""
        rule.applied = Applied()
        for domain, schedule in rule.schedules.items():
            if not schedule.threads and not (domain in before and before[domain].threads):
                continue
            try:
                backend = self._backend(rule, domain)
            except UserError as error:
                rule.problem = error.message
                self._remarks.say(f"rule {rule.name}", f"policy {rule.called}: {error.message}")
                continue
            try:
                rule.applied += self._backends.apply(backend.name, schedule)
            except JournalError as error:
                # Nothing was changed, no backend could do better, and what is in force stays.
                rule.problem = error.message
                self._remarks.say(f"rule {rule.name}", f"policy {rule.called}: {error.message}")
                return
            except Exception as error:
                log.debug("backend %s", backend.name, exc_info=error)
                why = f"{type(error).__name__}: {error}"
                why = error.message if isinstance(error, UserError) else why
                self._step_down(backend.name, why)
                return
        rule.writes += rule.applied.writes
        rule.repaired += rule.applied.repaired

    def rest(self) -> None:
        """Let go of a machine on which nobody is ordered any more."""
        for problem in self._backends.rest():
            log.error("not put back: %s", problem)

    def climb(self) -> None:
        """Go back to a better backend that failed and works again."""
        better = self._backends.climb()
        if better is None:
            return
        for rule in self._rules:
            if (rule.section.backend or "auto") != "auto" or rule.backend == better:
                continue
            log.warning("policy %s: back to %s from %s", rule.called, better, rule.backend)
            in_force = rule.schedules if rule.backend in self._backends.names else {}
            for domain, schedule in in_force.items():
                nobody = without(schedule, set(schedule.threads))
                self._backends.apply(self._backend(rule, domain).name, nobody)
            rule.enforce_by(better)
            rule.urgent = True

    def _backend(self, rule: Rule, domain: str) -> Backend:
        """What enforces the rule in a domain. Raises UserError."""
        if rule.backend not in self._backends.names:  # it failed, and nothing else was to be had
            rule.enforce_by(self._backends.get(rule.section.backend or "auto").name)
        if domain == COMMON:
            return self._backends[rule.backend]
        backend = self._backends.fair(rule.backend)
        before = rule.fair.get(rule.backend)
        if before != backend.name:
            self._leave(rule, before)
            rule.fair[rule.backend] = backend.name
            if backend.name != rule.backend:
                log.info(
                    "policy %s: %s for engines of %s: %s would put them before others",
                    rule.called,
                    backend.name,
                    called(domain),
                    rule.backend,
                )
        return backend

    def _leave(self, rule: Rule, backend: str | None) -> None:
        """Another one takes over from it the engines of users who are ordered alone."""
        if backend is None or backend not in self._backends.names:
            return
        for domain, schedule in rule.schedules.items():
            if domain == COMMON:
                continue
            try:
                self._backends.apply(backend, without(schedule, set(schedule.threads)))
            except Exception as error:  # the others must still have their turn
                log.error("policy %s: not released by %s: %s", rule.called, backend, error)

    def _step_down(self, failed: str, why: str) -> None:
        """A backend failed: its rules go to the next one if they asked for auto."""
        log.error("backend %s failed: %s", failed, why)
        for problem in self._backends.give_up(failed, why):
            log.error("backend %s: not put back: %s", failed, problem)
        for rule in self._rules:
            if rule.backend != failed:
                continue
            try:
                rule.enforce_by(self._backends.get(rule.section.backend or "auto").name)
                log.warning("policy %s: now enforced by %s", rule.called, rule.backend)
                rule.urgent = True
            except UserError as error:
                rule.problem = error.message
                self._remarks.say(f"rule {rule.name}", f"policy {rule.called}: {error.message}")
