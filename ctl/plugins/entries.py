"""What is offered under a name: by files in our own folders, by entry points of others.

A module of `policies/` that sets `policy` is the policy of its name, with hyphens for underscores;
one of `drivers/` that sets `kind`, in a folder `driver.py`, is a driver. Nothing lists them. Each
is imported only when it is asked for, and one that cannot be imported is an error only for who asks
for it.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

from sched_ctl.errors import UserError

__all__ = ["Entry", "Usable", "entries", "load", "problems"]

OURS = "sched-ctl"
SETS = {"sched_ctl.policies": "policy", "sched_ctl.drivers": "kind"}  # what a module is known by


@dataclass(frozen=True)
class Entry:
    """A thing by name. value: "module:thing". distribution: who offers it."""

    name: str
    value: str
    group: str
    distribution: str = OURS


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


@cache
def all_entries(group: str) -> tuple[Entry, ...]:
    """Each once, ours first: nobody replaces a policy of ours by installing a package."""
    others = {(entry.name, entry.value): entry for entry in _others(group)}
    return (*_own(group), *(others[key] for key in sorted(others)))


def _others(group: str) -> Iterator[Entry]:
    """Of other distributions.

    Most machines have none; reading the metadata of all takes a seventh of a start, so that is
    imported only where a file names the group.
    """
    folders = [Path(folder or ".") for folder in sys.path]
    files = (file for folder in folders for file in folder.glob("*-info/entry_points.txt"))
    if not any(_names(file, f"[{group}]") for file in files):
        return
    from importlib.metadata import entry_points

    for entry in entry_points(group=group):
        if entry.dist is not None and entry.dist.name != OURS:
            yield Entry(entry.name, entry.value, group, entry.dist.name)


def _names(file: Path, group: str) -> bool:
    try:
        return group.encode() in file.read_bytes()
    except OSError:  # somebody else's distribution is broken
        return False


def _own(group: str) -> Iterator[Entry]:
    """Those of our folder, by name. Reads the files, and imports none."""
    thing = SETS[group]
    sets = re.compile(rf"^(?:def {thing}\(|{thing}\b[^=\n]*=)", re.M)
    [*folders] = map(Path, import_module(group).__path__)
    files = [(path.stem, path.stem, path) for folder in folders for path in folder.glob("*.py")]
    files += [
        (path.parent.name, f"{path.parent.name}.driver", path)
        for folder in folders
        for path in folder.glob("*/driver.py")
    ]
    for name, module, path in sorted(files):
        if not name.startswith("_") and sets.search(path.read_text("utf-8", "replace")):
            yield Entry(name.replace("_", "-"), f"{group}.{module}:{thing}", group)


def entries(group: str) -> dict[str, Entry]:
    return {entry.name: entry for entry in reversed(all_entries(group))}


def _shadowed(group: str) -> dict[str, str]:
    used = entries(group)
    return {e.name: e.distribution for e in all_entries(group) if used[e.name] is not e}


class Usable(Mapping[str, Any]):
    """What of a group can be imported, by name; the others are told by `problems`.

    Each is imported when it is asked for: who names one kind of engine pays for no other.
    """

    def __init__(self, group: str, check: Callable[[object], bool]) -> None:
        self._group, self._check = group, check

    def __getitem__(self, name: str) -> Any:
        try:
            return load(entries(self._group)[name], self._check)
        except UserError as error:
            raise KeyError(name) from error

    def __iter__(self) -> Iterator[str]:
        return (name for name in sorted(entries(self._group)) if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def load(entry: Entry, check: Callable[[object], bool]) -> Any:
    try:
        module, _, name = entry.value.partition("[")[0].partition(":")  # [extras] behind it
        thing = attrgetter(name.strip())(import_module(module.strip()))
    except Exception as error:  # anything can go wrong in somebody else's module
        raise UserError(
            f"cannot import {entry.name!r} ({entry.value}) of the distribution "
            f"{entry.distribution}: {type(error).__name__}: {error}",
            "repair or uninstall that distribution; the other policies and drivers still work",
        ) from error
    if not check(thing):
        raise UserError(
            f"{entry.name!r} ({entry.value}) of the distribution {entry.distribution} is a "
            f"{type(thing).__name__}, which cannot be used as one of {entry.group}",
            "repair or uninstall that distribution; the other policies and drivers still work",
        )
    return thing
