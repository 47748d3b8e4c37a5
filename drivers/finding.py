"""Which processes of this machine are a declared program, by its `find`."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

from sched_ctl.kernel import procfs
from sched_ctl.model.programs import Program

__all__ = ["found", "is_of", "processes"]

MOST_PROCESSES = 1000
MOST_FILES = 4096


def processes(program: Program) -> dict[int, list[int]]:
    """The program's processes, by the user who started each; eldest first."""
    return found([program])[program.name]


def found(programs: Iterable[Program]) -> dict[str, dict[int, list[int]]]:
    """Of each program its processes, by user, eldest first. /proc is read once for all."""
    known = {program.name: program for program in programs}
    born: dict[str, dict[int, list[tuple[int, int]]]] = {name: {} for name in known}
    for pid in procfs.pids():
        if pid <= 1 or pid == os.getpid():
            continue
        names = [name for name, program in known.items() if is_of(program, pid)]
        first, uid = (procfs.stat(pid), procfs.owner(pid)) if names else (None, None)
        if first is not None and uid is not None and first.state not in "ZX":
            for name in names:
                born[name].setdefault(uid, []).append((first.start_time, pid))
    return {
        name: {uid: [pid for _, pid in sorted(pids)[:MOST_PROCESSES]] for uid, pids in by.items()}
        for name, by in born.items()
    }


def is_of(program: Program, pid: int) -> bool:
    """Whether a process is the program's."""
    given = program.find.given
    return (
        all(fnmatchcase(text, given[key]) for key, text in _facts(pid, given))
        and ("file" not in given or any(fnmatchcase(path, given["file"]) for path in _files(pid)))
        and bool(procfs.command_line(pid))  # no kernel thread
    )


def _facts(pid: int, given: Iterable[str]) -> Iterable[tuple[str, str]]:
    """What is asked for of a process, cheapest first; read only as far as it is asked."""
    for key in given:
        if key == "file":
            continue
        if key == "comm":
            first = procfs.stat(pid)
            yield key, "" if first is None else first.name
        elif key == "exe":
            try:
                yield key, str(Path(f"/proc/{pid}/exe").readlink()).removesuffix(" (deleted)")
            except OSError:
                yield key, ""
        elif key == "args":
            yield key, " ".join(procfs.command_line(pid))
        else:
            yield key, _cgroup(pid, last=key == "unit")


def _files(pid: int) -> Iterator[str]:
    """Paths of files that it has open; the first ones, whatever their number."""
    with suppress(OSError):
        for _, path in procfs.open_files(pid, MOST_FILES):
            yield path


def _cgroup(pid: int, *, last: bool) -> str:
    """Path of a process's cgroup, of version 2 or else systemd's own; its unit, if `last`."""
    try:
        lines = [line.split(":", 2) for line in procfs.lines(f"/proc/{pid}/cgroup")]
    except OSError:
        return ""
    paths = {parts[1]: parts[2] for parts in lines if len(parts) == 3}
    path = paths.get("", "/")
    if path == "/":
        path = paths.get("name=systemd", path)
    if not last:
        return path
    units = [part for part in path.split("/") if part.endswith((".service", ".scope"))]
    return units[-1] if units else ""
