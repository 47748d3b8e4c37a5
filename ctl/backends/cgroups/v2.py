"""cgroup v2: `cpu.weight` of threaded cgroups inside the engine's own.

A thread can never leave the threaded domain of its process, so our groups are threaded children of
the cgroup that the engine is in, its base (cgroup-v2.rst, "Threads"). For that

* the base must have the cpu controller: the cgroups above must pass it on;
* it must pass on to its children no controller that cannot be threaded (memory, io, ...), and have
  no child with processes: it becomes a "threaded domain", where both are forbidden.

Where this does not hold, `why_not` says which and what would help, before anything is changed.
When the last of our groups is removed the base becomes an ordinary domain again by itself.
"""

import os
from pathlib import Path
from typing import ClassVar

from sched_ctl.backends import BackendFailed, Probe
from sched_ctl.backends.cgroups.groups import Groups
from sched_ctl.backends.cgroups.places import probe_mount
from sched_ctl.kernel import cgroup
from sched_ctl.kernel.cgroup import ROOT_NAME
from sched_ctl.model.options import Cgroup2Options, GroupOptions

__all__ = ["Cgroup2", "Cgroup2Nice", "probe", "why_not"]

THREADED = {"cpu", "cpuset", "perf_event", "pids"}  # controllers with .threaded set in the kernel
CONTROL = "cgroup.subtree_control"


class Cgroup2(Groups):
    name: ClassVar[str] = "cgroup2"
    version: ClassVar[int] = 2
    with_nice: ClassVar[bool] = False
    options: Cgroup2Options

    @classmethod
    def default_options(cls) -> GroupOptions:
        return Cgroup2Options()

    def _prepare(self, base: Path) -> None:
        mount = self._tree.mount
        root = base / ROOT_NAME
        if str(root) in self._journal.state.groups:
            return
        ancestors = self.options.ancestors
        if problem := why_not(base, mount, ancestors=ancestors):
            raise BackendFailed(*problem)
        if ancestors:
            above = [parent for parent in base.parents if parent.is_relative_to(mount)]
            for folder in reversed(above):
                self._pass_on(folder)
        self._pass_on(base)
        self._make(root)

    def enter(self, folder: Path) -> None:
        cgroup.write(folder / "cgroup.type", "threaded")
        if folder.name == ROOT_NAME:
            cgroup.write(folder / CONTROL, "+cpu")

    def _pass_on(self, folder: Path) -> None:
        if "cpu" not in _words(folder / CONTROL):
            self.change(folder / CONTROL, "+cpu", undone="-cpu")


class Cgroup2Nice(Cgroup2):
    name: ClassVar[str] = "cgroup2+nice"
    with_nice: ClassVar[bool] = True


def probe() -> Probe:
    found = probe_mount(2)
    if not found.can:
        return found
    return Probe(True, found.because + "; whether an engine's own cgroup allows it, load will see")


def why_not(base: Path, mount: Path, *, ancestors: bool = False) -> tuple[str, str] | None:
    """Why a cgroup cannot be the base of threaded groups, and what would help; None if it can."""
    if base == mount and not (base / "cgroup.type").exists():
        return None  # the root of all is allowed everything
    kind = (base / "cgroup.type").read_text().strip()
    if kind == "domain invalid":
        return (
            f"the engine's cgroup {base} lies in a threaded subtree and is not threaded itself",
            "start the engine in a cgroup of its own",
        )
    if "cpu" not in _words(base / "cgroup.controllers") and not ancestors:
        return (
            f"the engine's cgroup {base} does not have the cpu controller",
            "give it a weight (systemctl set-property --runtime UNIT CPUWeight=100), or set "
            "ancestors = true for this backend",
        )
    if kind in ("threaded", "domain threaded"):
        return None
    if forbidden := _words(base / CONTROL) - THREADED:
        return (
            f"the engine's cgroup {base} passes on controllers that cannot be threaded: "
            + ", ".join(sorted(forbidden)),
            "start the engine in a cgroup without children of its own",
        )
    with os.scandir(base) as entries:
        children = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    for child in children:
        if child.name != ROOT_NAME and _is_populated_domain(child):
            return (
                f"the engine's cgroup {base} has a child with processes, {child.name}",
                "start the engine in a cgroup without children of its own",
            )
    return None


def _is_populated_domain(folder: Path) -> bool:
    try:
        kind = (folder / "cgroup.type").read_text().strip()
        events = (folder / "cgroup.events").read_text().split()
    except FileNotFoundError:
        return False
    return kind != "threaded" and events[events.index("populated") + 1] == "1"


def _words(path: Path) -> set[str]:
    return set(path.read_text().split())
