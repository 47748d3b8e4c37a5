"""Whether all that the configuration names exists: policies, backends, metrics, rules, profiles."""

from sched_ctl.adapt.race import OS
from sched_ctl.config.settings import Section, SettingError, Settings, Switch
from sched_ctl.config.settings import resolve as resolve_settings
from sched_ctl.controller.rule import make_policy
from sched_ctl.controller.switches import PRESSURE, fault
from sched_ctl.decide.decision import HELPER_RULES
from sched_ctl.engines.owners import Owners
from sched_ctl.errors import UserError, near_miss
from sched_ctl.metrics.catalogue import METRICS
from sched_ctl.model.options import by_name
from sched_ctl.plugins import registry
from sched_ctl.service import endpoint
from sched_ctl.telemetry import profiles

__all__ = ["check_sections"]


def check_sections(settings: Settings) -> None:
    """Raises SettingError for a policy, a backend, an option or a rule that does not exist.

    So that a misspelt word is an error at once, and not when it is needed first. A file that cannot
    be read is a UserError: it may come later, with its mount, and a service is started again.
    """
    for section in resolve_settings(settings):
        for switch in section.switch:  # first: the policy is made with all that they need
            _check_switch(section, switch)
        try:
            make_policy(section, "nice")
        except UserError as error:
            known = section.policy == "auto" or section.policy in registry.policies()
            raise SettingError(
                ("policy", section.name, "options" if known else "policy"),
                error.message,
                error.hint,
            ) from error
    for prior in settings.prior:
        if prior.policy != OS:
            try:
                registry.policy(prior.policy)
            except UserError as error:
                where = ("prior", prior.policy)
                raise SettingError(where, error.message, error.hint) from error
    for role, rule in settings.helpers.items():
        if rule not in HELPER_RULES:
            raise SettingError(
                ("helpers", role),
                f"there is no rule {rule!r}{near_miss(rule, HELPER_RULES)}",
                f"one of: {', '.join(HELPER_RULES)}",
            )
    Owners(settings.users)
    if settings.metrics:
        endpoint.parsed(settings.metrics)
    try:
        profiles.of_file(settings.profiles)
    except profiles.NoProfile as error:
        raise SettingError(("profiles",), error.message, error.hint) from error
    _check_backends(settings)


def _check_switch(section: Section, switch: Switch) -> None:
    try:
        registry.policy(switch.policy, switch.options)
    except UserError as error:
        raise SettingError(("policy", section.name, "switch"), error.message, error.hint) from error
    known = [PRESSURE, *METRICS]
    if switch.metric not in known:
        raise SettingError(
            ("policy", section.name, "switch"),
            f"there is no metric {switch.metric!r}{near_miss(switch.metric, known)}",
            f"one of: {', '.join(sorted(known))}",
        )
    if (wrong := fault(switch)) is not None:
        raise SettingError(("policy", section.name, "switch"), wrong)


def _check_backends(settings: Settings) -> None:
    kinds = list(by_name(settings.backends))
    for section in resolve_settings(settings):
        if section.backend not in (None, "auto", *kinds):
            raise SettingError(
                ("policy", section.name, "backend"),
                f"there is no backend {section.backend!r}{near_miss(str(section.backend), kinds)}",
                f"one of: auto, {', '.join(kinds)}",
            )
