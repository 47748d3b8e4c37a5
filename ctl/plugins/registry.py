"""Policies by name: our folder, and entry points `sched_ctl.policies` of other distributions.

Each names a `Policy`, or a function `(**options) -> Policy` with keyword options.
"""

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import msgspec

from sched_ctl.errors import UserError, near_miss
from sched_ctl.model.policy import Policy
from sched_ctl.plugins import entries

__all__ = ["PolicyFactory", "options_of", "policies", "policy", "problems"]

PolicyFactory = Policy | Callable[..., Policy]

GROUP = "sched_ctl.policies"


def policies() -> Mapping[str, PolicyFactory]:
    """All policies that can be imported, by name; see `problems` for the others."""
    return entries.Usable(GROUP, _is_policy)


def policy(name: str, options: Mapping[str, object] = MappingProxyType({})) -> Policy:
    """The policy of this name with these options.

    Text is converted to what the option's annotation says, so options may come from a command
    line. Raises UserError for an unknown name or option, for a value that the policy refuses, and
    for a policy that cannot be imported.
    """
    found = entries.entries(GROUP)
    if name not in found:
        raise UserError(
            f"there is no policy {name!r}{near_miss(name, found)}",
            "sched-ctl policies lists them",
        )
    made = entries.load(found[name], _is_policy)
    known = options_of(made)
    for option in options:
        if option not in known:
            raise UserError(
                f"policy {name} has no option {option!r}{near_miss(option, known)}",
                f"its options: {', '.join(known)}" if known else "it takes no options",
            )
    if isinstance(made, Policy):
        plain: Policy = made
        return plain
    given = {option: _convert(name, option, known[option], options[option]) for option in options}
    try:
        chosen: Policy = replace(made(**given), options=MappingProxyType(given))
        return chosen
    except (TypeError, ValueError) as error:
        raise UserError(f"policy {name}: {error}", f"its options: {_describe(known)}") from error


def options_of(made: PolicyFactory) -> Mapping[str, inspect.Parameter]:
    """Option name -> its annotation and default."""
    if isinstance(made, Policy):
        return {}
    hints = typing.get_type_hints(made)
    return {
        name: parameter.replace(annotation=hints.get(name, typing.Any))
        for name, parameter in inspect.signature(made).parameters.items()
    }


def problems() -> Mapping[str, str]:
    """Entry points that cannot be used -> why, in words."""
    return entries.problems(GROUP, _is_policy)


def _is_policy(thing: object) -> bool:
    return isinstance(thing, Policy) or callable(thing)


def _convert(policy_name: str, name: str, parameter: inspect.Parameter, value: object) -> object:
    """The value as what the option's annotation says; text may also be JSON, for tables."""
    kind = parameter.annotation
    if kind is typing.Any:
        return value
    try:
        if isinstance(value, str) and value.lstrip().startswith(("{", "[")) and kind is not str:
            return msgspec.json.decode(value, type=kind)
        return msgspec.convert(value, kind, strict=not isinstance(value, str))
    except msgspec.DecodeError as error:  # ValidationError is one of these
        raise UserError(f"policy {policy_name}, option {name}: {error}; got {value!r}") from error


def _describe(known: Mapping[str, inspect.Parameter]) -> str:
    return ", ".join(str(parameter) for parameter in known.values())
