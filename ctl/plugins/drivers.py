"""Drivers by name: ours from their folder, those of others by entry points `sched_ctl.drivers`."""

from collections.abc import Mapping

from sched_ctl.drivers import DriverKind
from sched_ctl.plugins import entries

__all__ = ["drivers", "problems"]

GROUP = "sched_ctl.drivers"  # each names a `DriverKind`


def drivers() -> Mapping[str, DriverKind]:
    """All drivers that can be imported, by name, each when it is asked for; see `problems`."""
    return entries.Usable(GROUP, _is_driver)


def problems() -> Mapping[str, str]:
    """Entry points that cannot be used -> why, in words."""
    return entries.problems(GROUP, _is_driver)


def _is_driver(thing: object) -> bool:
    return isinstance(thing, DriverKind)
