"""From a rule's schedules to backends, and along the ladder when one fails or works again."""

import logging
from collections.abc import Iterator, Sequence

from sched_ctl.backends import Applied
from sched_ctl.backends.in_use import Backends
from sched_ctl.backends.undo.journal import JournalError
from sched_ctl.controller.rule import Rule
from sched_ctl.engines.owners import COMMON, called
from sched_ctl.engines.remarks import Remarks
from sched_ctl.errors import UserError
from sched_ctl.model.schedule import Schedule, without

__all__ = ["Enforcement"]

log = logging.getLogger(__name__)


_Key = tuple[str, str, str]  # names of a rule, a domain and a backend


class Enforcement:
    """Applies the schedules of rules by the backends in use."""

    def __init__(self, backends: Backends, rules: Sequence[Rule], remarks: Remarks) -> None:
        self._backends, self._rules, self._remarks = backends, rules, remarks
        self._in_force: dict[_Key, Schedule] = {}  # as applied last; those that have threads
        self._failing: set[_Key] = set()  # at their last pass, of users who are ordered alone

    def apply(self, rule: Rule) -> None:
        """Bring a rule's schedules into force, and let go of what is in none of them any more.

        What cannot be let go of is tried again at the next pass.
        """
        rule.applied = Applied()
        wanted = dict(self._in_charge(rule))
        rules = {one.name for one in self._rules}
        for key in [*self._in_force]:
            name, domain, backend = key
            if name not in rules or (name == rule.name and wanted.get(domain) != backend):
                rule.applied += self._let_go(key)
        self._failing = {k for k in self._failing if k[0] != rule.name or wanted.get(k[1]) == k[2]}
        for domain, backend in wanted.items():
            if not self._enforce(rule, domain, backend):
                return
        rule.writes += rule.applied.writes
        rule.repaired += rule.applied.repaired

    def release(self, rule: Rule) -> None:
        """Its threads are as they were before; what cannot be put back stands in the journal."""
        for key in [key for key in self._in_force if key[0] == rule.name]:
            for problem in self._let_go(key).problems:
                log.error("policy %s: %s", rule.called, problem)

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
            rule.enforce_by(better)
            rule.urgent = True  # its pass lets go of what the other one has

    def _in_charge(self, rule: Rule) -> Iterator[tuple[str, str]]:
        """Domains in which the rule has threads, and what enforces it there."""
        for domain, schedule in rule.schedules.items():
            if schedule.threads:
                try:
                    yield domain, self._backend(rule, domain)
                except UserError as error:
                    self._tell(rule, error)

    def _backend(self, rule: Rule, domain: str) -> str:
        """What enforces the rule in a domain. Raises UserError."""
        if rule.backend not in self._backends.names:  # it failed, and nothing else was to be had
            rule.enforce_by(self._backends.get(rule.section.backend or "auto").name)
        if domain == COMMON:
            return rule.backend
        fair = self._backends.fair(rule.backend).name
        if rule.fair.get(rule.backend) != fair:
            rule.fair[rule.backend] = fair
            if fair != rule.backend:
                log.info(
                    "policy %s: %s for engines of %s: %s would put them before others",
                    rule.called,
                    fair,
                    called(domain),
                    rule.backend,
                )
        return fair

    def _enforce(self, rule: Rule, domain: str, backend: str) -> bool:
        """Apply the rule's schedule of a domain. Returns whether the backend is still in use."""
        key, schedule = (rule.name, domain, backend), rule.schedules[domain]
        try:
            rule.applied += self._backends.apply(backend, schedule)
        except JournalError as error:
            # No backend could do better, and what is in force stays.
            self._in_force.setdefault(key, schedule)
            self._tell(rule, error)
        except Exception as error:
            log.debug("backend %s", backend, exc_info=error)
            return self._bear(rule, key, _words(error))
        else:
            self._in_force[key] = schedule
            self._failing.discard(key)
        return True

    def _bear(self, rule: Rule, key: _Key, why: str) -> bool:
        """A backend failed there. Returns whether it is still in use.

        What fails for a user who is ordered alone is his own trouble, unless the backend has nobody
        else, once all others had their turn.
        """
        _, domain, backend = key
        before = key in self._failing
        self._failing.add(key)
        others = (k for k in self._in_force if k[2] == backend and k not in self._failing)
        if domain == COMMON or (before and not any(others)):
            self._step_down(backend, why)
            rule.urgent = True
            return False
        rule.urgent = rule.urgent or not before
        self._in_force[key] = rule.schedules[domain]  # some of it may be
        problem = f"{backend} failed for engines of {called(domain)}: {why}"
        rule.applied += self._let_go(key) + Applied(problems=(problem,))
        return True

    def _let_go(self, key: _Key) -> Applied:
        """Put back what a backend has of a rule in a domain."""
        backend, schedule = key[2], self._in_force[key]
        applied = Applied()
        if backend in self._backends.names:  # else all of it was put back
            try:
                applied = self._backends.apply(backend, without(schedule, set(schedule.threads)))
            except Exception as error:  # the others must still have their turn
                log.debug("backend %s", backend, exc_info=error)
                return Applied(problems=(f"not released by {backend}: {_words(error)}",))
        del self._in_force[key]
        return applied

    def _tell(self, rule: Rule, error: UserError) -> None:
        rule.problem = error.message
        self._remarks.say(f"rule {rule.name}", f"policy {rule.called}: {error.message}")

    def _step_down(self, failed: str, why: str) -> None:
        """A backend failed: its rules go to the next one if they asked for auto."""
        log.error("backend %s failed: %s", failed, why)
        for problem in self._backends.give_up(failed, why):
            log.error("backend %s: not put back: %s", failed, problem)
        self._in_force = {k: held for k, held in self._in_force.items() if k[2] != failed}
        self._failing = {k for k in self._failing if k[2] != failed}
        for rule in self._rules:
            if rule.backend != failed:
                continue
            try:
                rule.enforce_by(self._backends.get(rule.section.backend or "auto").name)
                log.warning("policy %s: now enforced by %s", rule.called, rule.backend)
                rule.urgent = True
            except UserError as error:
                self._tell(rule, error)


def _words(error: Exception) -> str:
    return error.message if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
