"""Policies and drivers by name, ours and those of other distributions, through entry points.

Groups `sched_ctl.policies` and `sched_ctl.drivers`. A policy entry point names a `Policy`, or a
function `(**options) -> Policy` with keyword options; a driver entry point names a `DriverKind`.
Each is imported only when it is asked for, and one that cannot be imported is an error only for
who asks for it.
"""

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType

import msgspec

from sched_ctl.drivers import DriverKind
from sched_ctl.errors import UserError, near_miss
from sched_ctl.policy import Policy

__all__ = ["PolicyFactory", "drivers", "options_of", "policies", "policy", "problems"]

PolicyFactory = Policy | Callable[..., Policy]

OURS = "sched-ctl"


def policies() -> Mapping[str, PolicyFactory]:
    """All policies that can be imported, by name; see `problems` for the others."""
    return MappingProxyType(_usable("sched_ctl.policies", _is_policy))


def drivers() -> Mapping[str, DriverKind]:
    """All drivers that can be imported, by name; see `problems` for the others."""
    return MappingProxyType(_usable("sched_ctl.drivers", _is_driver))


def policy(name: str, options: Mapping[str, object] = MappingProxyType({})) -> Policy:
    """The policy of this name with these options.

    Text is converted to what the option's annotation says, so options may come from a command
    line. Raises UserError for an unknown name or option, for a value that the policy refuses, and
    for a policy that cannot be imported.
    """
    found = _entries("sched_ctl.policies")
    if name not in found:
        raise UserError(
            f"there is no policy {name!r}{near_miss(name, found)}",
            "sched-ctl policies lists them",
        )
    made = _load(found[name], _is_policy)
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
    found: dict[str, str] = {}
    groups = {"sched_ctl.policies": _is_policy, "sched_ctl.drivers": _is_driver}
    for group, check in groups.items():
        for name, entry in _entries(group).items():
            try:
                _load(entry, check)
            except UserError as error:
                found[f"{group.removeprefix('sched_ctl.')}: {name}"] = error.message
        for name, ignored in _shadowed(group).items():
            found[f"{group.removeprefix('sched_ctl.')}: {name} of {ignored}"] = (
                "ignored: another distribution has this name"
            )
    return found


def _is_policy(thing: object) -> bool:
    return isinstance(thing, Policy) or callable(thing)


def _is_driver(thing: object) -> bool:
    return isinstance(thing, DriverKind)


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "?"


@cache
def _all_entries(group: str) -> tuple[EntryPoint, ...]:
    """Each once, ours first: nobody replaces a policy of ours by installing a package."""
    found = {(entry.name, entry.value): entry for entry in entry_points(group=group)}
    return tuple(sorted(found.values(), key=lambda e: (_distribution(e) != OURS, e.name, e.value)))


def _entries(group: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in reversed(_all_entries(group))}


def _shadowed(group: str) -> dict[str, str]:
    used = _entries(group)
    return {e.name: _distribution(e) for e in _all_entries(group) if used[e.name] is not e}


def _usable(group: str, check: Callable[[object], bool]) -> dict[str, typing.Any]:
    found = {}
    for name, entry in sorted(_entries(group).items()):
        try:
            found[name] = _load(entry, check)
        except UserError:
            continue  # told by problems(), and by policy() to who asks for this one
    return found


def _load(entry: EntryPoint, check: Callable[[object], bool]) -> typing.Any:
    try:
        thing = entry.load()
    except Exception as error:  # anything can go wrong in somebody else's module
        raise UserError(
            f"cannot import {entry.name!r} ({entry.value}) of the distribution "
            f"{_distribution(entry)}: {type(error).__name__}: {error}",
            "repair or uninstall that distribution; the other policies and drivers still work",
        ) from error
    if not check(thing):
        raise UserError(
            f"{entry.name!r} ({entry.value}) of the distribution {_distribution(entry)} is a "
            f"{type(thing).__name__}, which cannot be used as one of {entry.group}",
            "repair or uninstall that distribution; the other policies and drivers still work",
        )
    return thing


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
