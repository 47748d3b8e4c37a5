"""Control groups with the cpu controller, cgroups(7): version 1, version 2, or both (hybrid).

The two differ in file names, ranges and in who may be where; `Hierarchy` hides the names. Writes
go through `write`, whose OSError carries the path and words.
"""

import contextlib
import errno
import functools
import os
import re
import time
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Literal

from sched_ctl.kernel import procfs

__all__ = [
    "ROOT_NAME",
    "Hierarchy",
    "has_cpu",
    "hierarchies",
    "hierarchy_of",
    "in_use",
    "is_ours",
    "is_writable",
    "limited",
    "of_process",
    "processes",
    "relative_weight",
    "weighed",
    "with_cpu",
    "write",
]

ROOT_NAME = "sched-ctl"  # the cgroup of ours inside an engine's; all others lie in it
MOST_LEVELS = 16  # of cgroups that are told of
UNSEEN = (Path("unseen"),)  # in the place of cgroups that nobody can read: of the usual weight
_ESCAPE = re.compile(rb"\\([0-3][0-7]{2})")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A mounted cgroup tree that has, or could have, the cpu controller.

    mount: where. root: path of the mounted cgroup in its tree: not "/" inside a container that
    sees only its part. weight: limits and default are the kernel's (sched-cgroup, cgroup-v2.rst).
    """

    version: Literal[1, 2]
    mount: Path
    root: str = "/"

    @property
    def tasks(self) -> str:
        return "tasks" if self.version == 1 else "cgroup.threads"

    @property
    def weight(self) -> str:
        return "cpu.shares" if self.version == 1 else "cpu.weight"

    @property
    def weights(self) -> tuple[int, int, int]:
        """Smallest, largest and default weight."""
        return (2, 262144, 1024) if self.version == 1 else (1, 10000, 100)

    def folder_of(self, pid: int, tid: int, *, any_name: bool = False) -> Path | None:
        """The cgroup of a thread as a folder.

        None if it is gone, or in none that we see, or that has a name which is no text, unless
        `any_name`: whoever made it may call it anything.
        """
        try:
            text = procfs.text(f"/proc/{pid}/task/{tid}/cgroup")
            if not any_name:
                text.encode()
        except (FileNotFoundError, ProcessLookupError, UnicodeEncodeError):
            return None
        for line in text.split("\n"):
            if line.count(":") < 2:
                continue
            _, controllers, path = line.split(":", 2)
            if ("cpu" in controllers.split(",")) if self.version == 1 else not controllers:
                return self._folder(path.removesuffix(" (deleted)"))
        return None

    def _folder(self, path: str) -> Path | None:
        if self.root != "/":
            if path != self.root and not path.startswith(self.root + "/"):
                return None
            path = path[len(self.root) :]
        if ".." in path.split("/"):
            return None
        return self.mount / path.lstrip("/")

    def members(self, folder: Path) -> list[int]:
        """Threads in a cgroup, not in those below it. Raises OSError."""
        return [int(tid) for tid in _read(folder / self.tasks).split()]

    def move(self, tid: int, folder: Path) -> None:
        """Move a thread: about 80 us. ProcessLookupError if it is gone; OSError."""
        write(folder / self.tasks, str(tid))

    def remove(self, folder: Path, outside: Path, end_s: float) -> None:
        """Move what is left in a cgroup to `outside` and remove it; done if it is gone already.

        A member may fork while we move it, so this repeats until the cgroup is empty. Raises
        OSError, EBUSY if it is not by end_s (CLOCK_MONOTONIC); it is tried once in any case.
        """
        while True:
            try:
                for tid in self.members(folder):
                    try:
                        self.move(tid, outside)
                    except ProcessLookupError:
                        continue
                folder.rmdir()
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() >= end_s:
                    raise OSError(error.errno, error.strerror, str(folder)) from None
                time.sleep(0.005)  # an exiting member is not in the list, but holds the folder
            else:
                return


@functools.cache
def hierarchies() -> tuple[Hierarchy, ...]:
    """Mounted trees: version 2 first, and version 1 if the cpu controller is there.

    The cpu controller is in one of them only; which one, shows `cgroup.controllers` of version 2.
    """
    found: dict[int, Hierarchy] = {}
    for line in procfs.lines("/proc/self/mountinfo"):
        if mounted := _mounted(line):
            found.setdefault(mounted.version, mounted)
    return tuple(found[version] for version in (2, 1) if version in found)


def _mounted(line: str) -> Hierarchy | None:
    """The tree that a line of mountinfo tells of, proc_pid_mountinfo(5); None if of none.

    Others' mounts are of all kinds: a source may be empty, a path any bytes.
    """
    before, _, after = line.partition(" - ")
    where, what = before.split(" ")[3:5], after.split(" ", 2)
    if len(where) < 2 or len(what) < 3:
        return None
    kind, _, options = what
    if kind == "cgroup2":
        return Hierarchy(2, Path(_unescaped(where[1])), _unescaped(where[0]))
    if kind == "cgroup" and "cpu" in options.split(","):
        return Hierarchy(1, Path(_unescaped(where[1])), _unescaped(where[0]))
    return None


def of_process(pid: int, *, ours: bool = True) -> Path | None:
    """The cgroup of a process in the unified hierarchy; None if it is the root, or not seen.

    ours: a cgroup of ours counts, not only the one around it that the process has without us.
    """
    for found in hierarchies():
        if found.version == 2:
            try:
                folder = found.folder_of(pid, pid)
            except (OSError, ValueError):  # whoever owns the process may name its cgroup anyhow
                return None
            if folder is None:
                return None
            folder = folder if ours else _without_ours(found, folder)
            return None if folder == found.mount else folder
    return None


def _without_ours(hierarchy: Hierarchy, folder: Path) -> Path:
    """The cgroup that a process in this one has without us: that around ours, if it is ours."""
    parts = folder.relative_to(hierarchy.mount).parts
    return hierarchy.mount.joinpath(*takewhile(lambda part: part != ROOT_NAME, parts))


def hierarchy_of(folder: Path) -> Hierarchy | None:
    """The tree in which a folder lies (or lay), or None."""
    if ".." in folder.parts:
        return None
    inside = [found for found in hierarchies() if folder.is_relative_to(found.mount)]
    return max(inside, key=lambda found: len(found.mount.parts), default=None)


def has_cpu(hierarchy: Hierarchy) -> bool:
    """Whether the cpu controller is in this hierarchy."""
    if hierarchy.version == 1:
        return True
    try:
        return "cpu" in _read(hierarchy.mount / "cgroup.controllers").split()
    except FileNotFoundError:  # a cgroup of its own makes the mount's root: cgroup namespaces
        return False


def in_use() -> bool:
    """Whether CPU time is shared between cgroups at all: some cgroup has weights or limits."""
    for found in hierarchies():
        if not has_cpu(found):
            continue
        with contextlib.suppress(OSError):
            if found.version == 1:
                return any(entry.is_dir() for entry in found.mount.iterdir())
            if "cpu" in _read(found.mount / "cgroup.subtree_control").split():
                return True
    return False


def with_cpu(pid: int, *, ours: bool = True) -> tuple[Path, ...]:
    """The cgroups of the cpu controller that a process is in, from its own one up to the mounted
    one, which in a container may be the container's; the upper `MOST_LEVELS` and that one. None
    where they cannot be read. ours: with those of ours.
    """
    for found in hierarchies():
        if has_cpu(found):
            try:
                folder = found.folder_of(pid, pid)
            except (OSError, ValueError):  # whoever owns the process may name its cgroup anyhow
                return ()
            if folder is None:
                return ()
            folder = folder if ours else _without_ours(found, folder)
            return _inside(found, folder)[-MOST_LEVELS - 1 :]
    return ()


def _inside(hierarchy: Hierarchy, folder: Path) -> tuple[Path, ...]:
    """A cgroup and those around it, up to the mounted one."""
    return tuple(one for one in (folder, *folder.parents) if one.is_relative_to(hierarchy.mount))


def weighed(pid: int) -> tuple[Path, ...]:
    """The cgroups with a weight that a process is in, from the root down, without the root; of
    these the upper `MOST_LEVELS`. `UNSEEN` where they cannot be read: whoever owns the process may
    nest and call its cgroups anyhow.
    """
    for found in hierarchies():
        if not has_cpu(found):
            continue
        try:
            folder = found.folder_of(pid, pid, any_name=True)
            if folder is None:
                return UNSEEN
            upper = _inside(found, folder)[::-1][1 : MOST_LEVELS + 1]
            return tuple(one for one in upper if (one / found.weight).exists())
        except (OSError, ValueError):
            return UNSEEN
    return ()


def relative_weight(folder: Path) -> float:
    """A cgroup's weight, 1 = that of a thread of nice 0 beside it, and so if it is gone."""
    found = hierarchy_of(folder)
    try:
        weight = int(_read(folder / found.weight)) if found else 0
    except (OSError, ValueError):
        return 1.0
    least, _, usual = found.weights if found else (1, 1, 1)
    return max(weight, least) / usual  # cpu.idle shows as a weight of 0


def limited(folder: Path) -> list[Path]:
    """Cgroups right below this one that somebody has given a weight or a limit (version 2)."""
    with os.scandir(folder) as entries:
        children = sorted(Path(e.path) for e in entries if e.is_dir(follow_symlinks=False))
    return [child for child in children if any(_is_set(child / name) for name in _UNSET)]


# What cgroups have that nobody gave anything: the first word, cgroup-v2.rst.
_UNSET = {
    "cpu.weight": "100",
    "cpu.idle": "0",
    "cpu.max": "max",
    "cpu.max.burst": "0",
    "cpu.uclamp.min": "0.00",
    "cpu.uclamp.max": "max",
}


def _is_set(file: Path) -> bool:
    try:
        return _read(file).split()[:1] != [_UNSET[file.name]]
    except OSError:  # this kernel has no such file, or the cgroup is gone
        return False


def is_writable(mount: Path) -> bool:
    """Whether a thread could be moved there. Asked by opening: access(2) knows no capabilities."""
    for name in ("cgroup.procs", "tasks"):
        with contextlib.suppress(OSError):
            os.close(os.open(mount / name, os.O_WRONLY | os.O_CLOEXEC))
            return True
    return False


def is_ours(folder: Path) -> bool:
    """Whether the folder is, by its name, a cgroup that we make."""
    return ROOT_NAME in folder.parts


def processes(folder: Path, most: int) -> list[int]:
    """Ids of the processes in a cgroup and in those below it, in order; no more than `most`.

    Raises OSError if it is gone, or if it is threaded: its processes are those of a cgroup above.
    """
    found = {int(pid) for pid in _read(folder / "cgroup.procs").split()}
    for path, _, _ in os.walk(folder):
        if len(found) >= most:
            break
        with contextlib.suppress(OSError):  # gone meanwhile, or threaded: they are told above
            found |= {int(pid) for pid in _read(Path(path, "cgroup.procs")).split()}
    return sorted(found)[:most]


def write(path: Path, text: str) -> None:
    """Write to a control file that exists. Raises OSError with the path and what it means."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
    except OSError as error:
        number = error.errno or 0
        raise OSError(number, _meaning(number), f"{path} <- {text}") from None


def _meaning(number: int) -> str:
    return {
        errno.EOPNOTSUPP: "the cgroup cannot be threaded here, or its controllers forbid it",
        errno.EBUSY: "the cgroup has processes or children that forbid it",
        errno.EACCES: "not permitted: needs root, and a writable cgroup mount",
        errno.EPERM: "not permitted: needs root",
        errno.EROFS: "cgroups are mounted read-only here (a container?)",
    }.get(number, os.strerror(number))


def _read(path: Path) -> str:
    return path.read_text()


def _unescaped(text: str) -> str:
    """A field of mountinfo, where blanks are octal escapes of bytes."""
    return os.fsdecode(_ESCAPE.sub(lambda one: bytes([int(one[1], 8)]), os.fsencode(text)))
