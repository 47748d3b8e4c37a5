"""Another configuration for a running controller: all of it is in force, or none.

Whatever can be wrong with it is looked at first, with the engines that are here. Then threads of
rules that are no more, or that rule something else now, are put back to what they were; those of
all others keep what they have until the next pass, which follows at once.
"""

import dataclasses
import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

from msgspec.structs import replace

from sched_ctl.config.settings import Settings, resolve
from sched_ctl.controller.loop import Controller, claims_of
from sched_ctl.controller.rule import Rule
from sched_ctl.engines.roster import wanted_kinds
from sched_ctl.errors import UserError
from sched_ctl.model.options import by_name
from sched_ctl.service.sections import check_sections

__all__ = ["ReadAgain", "reload", "reloaded"]

log = logging.getLogger(__name__)
T = TypeVar("T")

# What is open while the controller runs
FIXED = (
    "run_dir",
    "metrics",
    "program",
    "record",
    "record_period",
    "record_limit",
    "record_rotate",
    "node",
    "profiles",
)


class ReadAgain(Protocol):
    """Reads files and flags anew; errors of what it is used for are told with their place."""

    def __call__(self, use: Callable[[Settings], T]) -> T: ...


def reloaded(controller: Controller, read_again: ReadAgain | None) -> list[str]:
    """Read the configuration again and use it; names of the settings that differ.

    Raises UserError for one that cannot be used: the old one stays in force then.
    """
    try:
        if read_again is None:
            raise UserError("this controller was not started from a configuration")
        changed = read_again(lambda settings: reload(controller, settings))
    except UserError as error:
        controller.not_reloaded = error.message
        log.error("the old configuration stays in force: %s", error.message)
        raise
    controller.not_reloaded = None
    log.info("configuration read again; changed: %s", ", ".join(changed) or "nothing")
    return changed


def reload(controller: Controller, settings: Settings) -> list[str]:
    """Use other settings; names of those that differ from what is in force. Raises UserError, and
    nothing has changed.
    """
    old = controller.settings
    changed = [name for name in settings.__struct_fields__ if _differs(old, settings, name)]
    if fixed := [name for name in FIXED if name in changed]:
        raise UserError(
            f"{' and '.join(fixed)} cannot change while the controller runs",
            "end it and start it again, or set it back",
        )
    check_sections(replace(settings, profiles=""))  # it is read once, at the start
    kinds = wanted_kinds(settings, controller.all_kinds)
    claims = claims_of(settings, kinds)
    before = {rule.name: rule for rule in controller.rules}
    if "policy" not in changed and _was_set(controller):
        changed.append("policy")
    made = {section.name: controller.rule(section, settings) for section in resolve(settings)}
    for name, rule in made.items():
        queries = before[name].queries if name in before else {}
        controller.try_out(dataclasses.replace(rule, queries=queries), claims)

    # From here on nothing is refused.
    same_claims = not {"exclude", "helpers", "users"} & set(changed) and _claimed(old) == _claimed(
        settings
    )
    for name, rule in before.items():
        if not same_claims or name not in made or made[name].backend != rule.backend:
            if controller.enforcement is not None:
                controller.enforcement.release(rule)
            rule.schedules = {}
    if controller.backends is not None and "backends" in changed:
        for problem in controller.backends.use_options(by_name(settings.backends)):
            log.error("not put back: %s", problem)
    for name, rule in made.items():
        if name in before:
            _continue(rule, before[name])
    controller.use(settings, kinds, tuple(made.values()))
    return changed


def _was_set(controller: Controller) -> bool:
    """Whether a policy was set while it ran, which ends now."""
    configured = {section.name: section for section in resolve(controller.settings)}
    said = ((rule.name, rule.instead.said or rule.section) for rule in controller.rules)
    return any(section != configured[name] for name, section in said)


def _differs(old: Settings, new: Settings, name: str) -> bool:
    return bool(getattr(old, name) != getattr(new, name))


def _claimed(settings: Settings) -> list[tuple[object, ...]]:
    """What decides which rule has which query."""
    return [(s.name, s.queries, s.engines) for s in resolve(settings)]


def _continue(rule: Rule, before: Rule) -> None:
    """A rule of that name was there: go on with what it has, and with its counts."""
    rule.schedules, rule.applied, rule.windows = before.schedules, before.applied, before.windows
    rule.passes, rule.writes, rule.repaired = before.passes, before.writes, before.repaired
    rule.fair = before.fair
    instead, old = rule.instead, before.instead
    if instead.guard is not None and rule.section == old.said:  # what it found harmful stays out
        rule.section, instead.said = before.section, old.said
        instead.stepped_back, instead.resting = old.stepped_back, old.resting
        instead.whose = old.whose
        instead.guard = None if old.resting else instead.guard
        rule.enforce_by(rule.backend)
    elif rule.section == before.section:
        instead.trial, instead.past = old.trial, old.past
        instead.watches, instead.switched, instead.whose = old.watches, old.switched, old.whose
        rule.enforce_by(rule.backend)
    rule.count(before.queries)
