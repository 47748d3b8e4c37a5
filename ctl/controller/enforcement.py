"""From a rule's schedules to backends, and along the ladder when one fails or works again."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence

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


PATIENCE_S = 60.0  # at least, for all who use a backend to have a pass that shows whether it works
IDLE_S = 3 * 3600.0  # the same of those who have nothing in force: a phase of a guard lasts less
PAUSE_S = 5.0  # between tries to let go of what no rule decides any more

_Key = tuple[str, str, str]  # names of a rule, a domain and a backend


class Enforcement:
    """Applies the schedules of rules by the backends in use.

    rarest_s: tells how far apart passes of a rule may be.
    """

    def __init__(
        self,
        backends: Backends,
        rules: Sequence[Rule],
        remarks: Remarks,
        rarest_s: Callable[[], float],
    ) -> None:
        self._backends, self._rules, self._remarks = backends, rules, remarks
        self._rarest_s = rarest_s
        self._in_force: dict[_Key, Schedule] = {}  # those that have threads
        self._works: dict[_Key, float] = {}  # when it last did, of those that did not fail since
        self._failing: dict[_Key, float] = {}  # since when: to apply, or to let go of it
        self._again_s: dict[_Key, float] = {}  # when to try anew what no rule decides any more

    def apply(self, rule: Rule) -> None:
        """Bring a rule's schedules into force, and let go of what is in none of them any more.

        What cannot be let go of is tried again at the next pass; at the second failure, but for a
        full disk, the backend is given up.
        """
        rule.applied = Applied()
        wanted = dict(self._in_charge(rule))
        for key in self._of(rule.name):
            if key in self._in_force and wanted.get(key[1]) != key[2]:
                rule.applied += self._let_go(key)
        gone = {k for k in self._failing if k[0] == rule.name and wanted.get(k[1]) != k[2]}
        for key in gone - self._in_force.keys():  # what fails later is no second time in a row
            del self._failing[key]
        for domain, backend in wanted.items():
            if backend not in self._backends.names or not self._enforce(rule, domain, backend):
                rule.urgent = True
                return
        rule.writes += rule.applied.writes
        rule.repaired += rule.applied.repaired

    def release(self, rule: Rule) -> None:
        """Its threads are as they were before; what cannot be put back stands in the journal."""
        for key in self._of(rule.name):
            if key in self._in_force:  # and no backend was given up meanwhile
                for problem in self._let_go(key).problems:
                    log.error("policy %s: %s", rule.called, problem)

    def rest(self) -> None:
        """Let go of what no rule decides any more, and of a machine on which nobody is ordered."""
        decided = {(rule.name, domain) for rule in self._rules for domain in rule.schedules}
        for key in [key for key in self._in_force if key[:2] not in decided]:
            if key in self._in_force and time.monotonic() >= self._again_s.get(key, 0.0):
                problems = self._let_go(key).problems
                message = f"rule {key[0]}: {'; '.join(problems)}" if problems else ""
                self._remarks.say(f"rest {key}", message)
        self._again_s = {k: at_s for k, at_s in self._again_s.items() if k in self._in_force}
        known = {key for key in self._failing if key in self._in_force or key[:2] in decided}
        self._failing = {key: self._failing[key] for key in known}
        used = {
            (r.name, domain, r.backend_of(domain)) for r in self._rules for domain in r.schedules
        }
        self._works = {key: at_s for key, at_s in self._works.items() if key in used}
        for problem in self._backends.rest():
            log.error("not put back: %s", problem)

    def climb(self) -> None:
        """Go back to a better backend that failed and works again."""
        better = self._backends.climb()
        if better is None:
            return
        left = set()
        for rule in self._rules:
            if (rule.section.backend or "auto") != "auto" or rule.backend == better:
                continue
            log.warning("policy %s: back to %s from %s", rule.called, better, rule.backend)
            left.add((rule.name, rule.backend))
            rule.enforce_by(better)
            rule.urgent = True
        # All of them before any goes on: two may have threads of one process.
        for key in [key for key in self._in_force if (key[0], key[2]) in left]:
            if key in self._in_force:  # what raises is tried again at its pass
                for problem in self._let_go(key).problems:
                    log.error("not put back: %s", problem)

    def _of(self, rule: str) -> list[_Key]:
        """What is in force of a rule."""
        return [key for key in self._in_force if key[0] == rule]

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
            first = key not in self._failing
            if domain == COMMON or self._is_given_up_at(key):
                self._step_down(backend, _words(error))
                return False
            since_s = self._failing[key]
            self._in_force.setdefault(key, schedule)  # some of it may be
            problem = f"{backend} failed for engines of {called(domain)}: {_words(error)}"
            rule.applied += self._let_go(key, counts=False) + Applied(problems=(problem,))
            self._failing[key] = since_s
            rule.urgent = rule.urgent or first
        else:
            self._in_force[key] = schedule
            self._works[key] = time.monotonic()
            self._failing.pop(key, None)
        return True

    def _is_given_up_at(self, key: _Key) -> bool:
        """Whether a backend that failed there is to be given up: at the second time in a row, and
        for a user who is ordered alone only if it has nobody else for whom it works. For others in
        whose schedules are threads it may, until they had their turn; and for those who have none
        now, as in a phase of the guard, for longer.
        """
        now_s = time.monotonic()
        self._works.pop(key, None)
        if key not in self._failing:
            self._failing[key] = now_s
            return False
        if key[1] == COMMON:
            return True
        since_s = self._failing[key]
        patience_s = max(PATIENCE_S, 3 * self._rarest_s())
        return not any(
            now_s - max(at_s, since_s) < (patience_s if other in self._in_force else IDLE_S)
            for other, at_s in self._works.items()
            if other[2] == key[2]
        )

    def _let_go(self, key: _Key, *, counts: bool = True) -> Applied:
        """Put back what a backend has of a rule in a domain. counts: a failure does, see
        `_is_given_up_at`.
        """
        backend, schedule = key[2], self._in_force[key]
        applied = Applied()
        if backend in self._backends.names:  # else all of it was put back
            try:
                applied = self._backends.apply(backend, without(schedule, set(schedule.threads)))
            except Exception as error:  # the others must still have their turn
                log.debug("backend %s", backend, exc_info=error)
                self._again_s[key] = time.monotonic() + PAUSE_S
                counts = counts and not isinstance(error, JournalError)
                if counts and self._is_given_up_at(key):
                    self._step_down(backend, _words(error))
                return Applied(problems=(f"not released by {backend}: {_words(error)}",))
        del self._in_force[key]
        self._failing.pop(key, None)
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
        self._works = {k: at_s for k, at_s in self._works.items() if k[2] != failed}
        self._failing = {k: since_s for k, since_s in self._failing.items() if k[2] != failed}
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
