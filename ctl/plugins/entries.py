"""What installed distributions offer under a name, by entry points.

Each is imported only when it is asked for, and one that cannot be imported is an error only for
who asks for it.
"""

from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from sched_ctl.errors import UserError

__all__ = ["entries", "load", "problems", "usable"]

OURS = "sched-ctl"


def problems(group: str, check: Callable[[object], bool]) -> dict[str, str]:
    """Entry points that cannot be used -> why, in words."""
    found: dict[str, str] = {}
    for name, entry in entries(group).items():
        try:
            load(entry, check)
        except UserError as error:
            found[f"{group.removeprefix('sched_ctl.')}: {name}"] = error.message
    for name, ignored in _shadowed(group).items():
        found[f"{group.removeprefix('sched_ctl.')}: {name} of {ignored}"] = (
            "ignored: another distribution has this name"
        )
    return found


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "?"


@cache
def all_entries(group: str) -> tuple[EntryPoint, ...]:
    """Each once, ours first: nobody replaces a policy of ours by installing a package."""
    found = {(entry.name, entry.value): entry for entry in entry_points(group=group)}
    return tuple(sorted(found.values(), key=lambda e: (_distribution(e) != OURS, e.name, e.value)))


def entries(group: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in reversed(all_entries(group))}


def _shadowed(group: str) -> dict[str, str]:
    used = entries(group)
    return {e.name: _distribution(e) for e in all_entries(group) if used[e.name] is not e}


def usable(group: str, check: Callable[[object], bool]) -> dict[str, Any]:
    found = {}
    for name, entry in sorted(entries(group).items()):
        try:
            found[name] = load(entry, check)
        except UserError:
            continue  # told by problems(), and by policy() to who asks for this one
    return found


def load(entry: EntryPoint, check: Callable[[object], bool]) -> Any:
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
