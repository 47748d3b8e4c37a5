"""Putting back, in the order: threads, what they passed on, groups, files.

What is put back is taken from the journal only after it is put back, so an undo that is cut short
is simply repeated. A thread that is gone, or whose id means another thread now, is done with.

*What threads passed on.* A thread or process that is born of an adopted thread inherits its nice
value, policy and cgroup. It stands in no journal. So a process whose threads we let go is swept:
a thread in it, or in a process below it, that was born after we came and has a value that we set
there gets what the process's threads had before. A child whose parent died first belongs to init
and is not found.

*What others made.* A controller with another journal may have groups in the folder where ours
are. Then the folder stays, and goes with the last of them: each journal has it. A cgroup that we
made pass on the cpu controller goes on with it where others have given its children weights or
limits since, which would be lost. A container that ended while our folder was in its cgroup could
not be tidied up by its runtime, which tries once: so that cgroup goes, too.
"""

import contextlib
import errno
import functools
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Protocol

from sched_ctl.backends.undo.records import (
    Adopted,
    FileChanged,
    FileRestored,
    Group,
    GroupRemoved,
    Key,
    Moved,
    Process,
    ProcessReleased,
    Record,
    Released,
    Returned,
    State,
)
from sched_ctl.kernel import cgroup, containers, identity, procfs, sched

__all__ = [
    "Log",
    "everything",
    "files",
    "groups",
    "inherited",
    "moved",
    "parameters",
    "passed_on",
    "processes",
    "put_back",
]

logger = logging.getLogger(__name__)

LEAST_S = 0.05  # for each group, whatever those before it took
REMOVE_WITHIN_S = 2.0  # for the last members of groups to leave, and for exiting ones to be gone


class Log(Protocol):
    """What undoing needs of a journal."""

    state: State

    def done(self, records: Iterable[Record]) -> None: ...


def everything(log: Log) -> list[str]:
    """Undo all that the journal tells of. Returns what could not be undone, in words."""
    state = log.state
    adopted = list(state.adopted)
    return [
        *moved(log, list(state.moved)),
        *parameters(log, adopted),
        *processes(log, list(state.processes), {tid for tid, _ in adopted}),
        *groups(log, list(state.groups)),
        *files(log, list(state.files)),
    ]


def parameters(log: Log, keys: Iterable[Key]) -> list[str]:
    """Put back nice and policy of these threads, as far as the journal has them."""
    problems, done = [], []
    for key in keys:
        if (record := log.state.adopted.get(key)) is None:
            continue
        try:
            put_back(record, log.state)
        except (OSError, ValueError) as error:
            problems.append(_words(error))
        else:
            done.append(key)
    if done:
        log.done([Released(threads=done)])
    return problems


def put_back(record: Adopted, state: State) -> None:
    """Give the thread what it had, if it still lives. Raises OSError.

    What somebody else has set since stays, and the log says so.
    """
    if (found := identity.same(record)) is None:
        return
    process = state.processes.get(record.pid)
    policies = (record.policy, *(process.set_policies if process else ()))
    try:
        policy = sched.get_policy(record.tid)
        if policy[0] not in policies:
            name = sched.POLICY_NAMES.get(policy[0], str(policy[0]))
            logger.warning("thread %d stays %s: not set by us", record.tid, name)
        elif record.slice_ns is not None:
            sched.set_attributes(
                record.tid,
                sched.Attributes(
                    record.policy, record.reset_on_fork, found.nice, 0, record.slice_ns
                ),
            )
        elif policy != (record.policy, record.reset_on_fork):
            sched.set_policy(record.tid, record.policy, reset_on_fork=record.reset_on_fork)
        if found.nice == record.nice:
            return
        # A thread that was given none may have inherited one that we set in its process.
        given = state.given.get(record.key, process.set_nice if process else ())
        if found.nice not in given:
            logger.warning("thread %d keeps nice %d: not set by us", record.tid, found.nice)
            return
        sched.set_nice(record.tid, record.nice)
    except ProcessLookupError:
        return


def moved(log: Log, keys: Iterable[Key]) -> list[str]:
    """Move these threads back to the cgroups where they were, unless somebody else moved them."""
    problems, done = [], []
    for key in keys:
        if (record := log.state.moved.get(key)) is None:
            continue
        try:
            _move_back(record, log.state.groups)
        except (OSError, ValueError) as error:
            problems.append(_words(error))
        else:
            done.append(key)
    if done:
        log.done([Returned(threads=done)])
    return problems


def _move_back(record: Moved, ours: Collection[str]) -> None:
    if identity.same(record) is None:
        return
    hierarchy = cgroup.hierarchy_of(Path(record.cgroup))
    where = hierarchy and hierarchy.folder_of(record.pid, record.tid)
    if hierarchy is None or where is None or str(where) not in ours:
        return
    hierarchy.move(record.tid, _nearest(Path(record.cgroup)))


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest one above it that still exists."""
    while not folder.is_dir():
        folder = folder.parent
    return folder


def processes(
    log: Log,
    pids: Iterable[int],
    held: Collection[int] = (),
    children: Callable[[], procfs.Families] | None = None,
) -> list[str]:
    """Sweep these processes and those below them, and forget them.

    held: threads that are still ours, or were put back just now: what those have is their own,
    even if they were born in the clock tick in which we came. children: of all processes, for a
    caller who asks several times.
    """
    problems, done = [], []
    children = children or functools.cache(procfs.families)
    for pid in pids:
        if (record := log.state.processes.get(pid)) is None:
            continue
        try:
            failed = passed_on(record, held, children)
        except Exception as error:  # whatever it is, what follows is put back all the same
            logger.debug("process %d", pid, exc_info=error)
            failed = [f"process {pid}: {_words(error)}"]
        problems += failed
        if not failed:
            done.append(ProcessReleased(pid=pid))
    log.done(done)
    return problems


def passed_on(
    process: Process, held: Collection[int], children: Callable[[], procfs.Families]
) -> list[str]:
    """Put back what threads born in the process, or below it, have inherited from us."""
    if identity.same(process) is None:
        return []
    problems = []
    for pid in (process.pid, *procfs.below(process.pid, children())):
        problems += inherited(process, pid, (tid for tid in procfs.tids(pid) if tid not in held))
    return problems


def inherited(process: Process, pid: int, tids: Iterable[int]) -> list[str]:
    """Put back what these threads of a process (it, or one below it) have inherited from us."""
    problems = []
    for tid in tids:
        found = procfs.stat(pid, tid)
        if found is None or not is_inherited(process, found):
            continue
        try:
            if found.policy in _inheritable(process):
                reset = sched.get_policy(tid)[1]
                sched.set_policy(tid, process.policy, reset_on_fork=reset)
            if found.nice in process.set_nice and found.nice != process.nice:
                sched.set_nice(tid, process.nice)
        except ProcessLookupError:
            continue
        except OSError as error:
            problems.append(_words(error))
    return problems


def is_inherited(process: Process, found: procfs.Stat) -> bool:
    """Whether a thread born in (or below) the process has from us what it has."""
    return found.start_time >= process.since and (
        (found.nice in process.set_nice and found.nice != process.nice)
        or found.policy in _inheritable(process)
    )


def _inheritable(process: Process) -> set[int]:
    """Policies that are from us where a thread was born with them. Of a thread that we gave a
    real-time one none is born with it: it is reset on fork.
    """
    return {*process.set_policies} - {process.policy, sched.FIFO, sched.RR}


def groups(log: Log, paths: Iterable[str], within_s: float = REMOVE_WITHIN_S) -> list[str]:
    """Empty these groups of ours into the cgroup above, and remove them; innermost first.

    within_s: for all of them together. 0: each is tried once, and one that is busy is no problem:
    it stays in the journal for the next time.
    """
    problems: list[str] = []
    end_s = time.monotonic() + within_s
    done: list[Record] = []
    for path in sorted(paths, key=lambda path: -path.count("/")):
        if path not in log.state.groups:
            continue
        try:
            one_s = time.monotonic() + LEAST_S if within_s else end_s
            _remove(log.state.groups[path], log.state.groups, max(end_s, one_s))
        except (OSError, ValueError) as error:
            if within_s or getattr(error, "errno", 0) != errno.EBUSY:
                problems.append(_words(error))
        else:
            done.append(GroupRemoved(path=path))
    log.done(done)
    return problems


def _remove(group: Group, ours: Collection[str], end_s: float) -> None:
    folder = Path(group.path)
    hierarchy = cgroup.hierarchy_of(folder)
    if hierarchy is None or not cgroup.is_ours(folder):
        return  # not a cgroup (any more): a journal may not make us remove anything else
    if strangers := _strangers(folder, ours):
        logger.debug("%s stays: it holds %s, which we did not make", folder, ", ".join(strangers))
        return
    outside = folder.parent
    while str(outside) in ours:
        outside = outside.parent
    hierarchy.remove(folder, _nearest(outside), end_s)
    if folder.name == cgroup.ROOT_NAME:
        _remove_ended(outside)


def _remove_ended(base: Path) -> None:
    """Remove the cgroup of a container in which nobody lives any more, if this was in one."""
    of = next((one for one in (base, base.parent) if containers.is_container(one.name)), None)
    if of is None:
        return
    with contextlib.suppress(OSError):  # somebody else was first, or has something there
        if not any(_lives(Path(folder)) for folder, _, _ in os.walk(of)):
            base.rmdir()
            if base != of:
                of.rmdir()


def _lives(folder: Path) -> bool:
    return bool((folder / "cgroup.procs").read_bytes())


def _strangers(folder: Path, ours: Collection[str]) -> list[str]:
    """Names of the groups in a folder that are not in the journal."""
    try:
        with os.scandir(folder) as entries:
            found = [e for e in entries if e.is_dir(follow_symlinks=False) and e.path not in ours]
    except FileNotFoundError:
        return []
    return [entry.name for entry in found]


def files(log: Log, paths: Iterable[str]) -> list[str]:
    """Write back these files of the kernel, last changed first. One that is gone is done with."""
    problems: list[str] = []
    done: list[Record] = []
    for path in reversed(list(paths)):
        if (record := log.state.files.get(path)) is None:
            continue
        try:
            if not _is_kernels(path):
                raise OSError(errno.EPERM, "not a file of the kernel: left alone", path)
            if others := _needed_by(record):
                logger.warning("%s stays: others have set weights or limits in %s", path, others)
            else:
                _write(record)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno != errno.EBUSY or not _needed_by_others(log, Path(path)):
                problems.append(_words(error))
                continue
            logger.debug("%s stays as it is: groups that we did not make need it", path)
        done.append(FileRestored(path=path))
    log.done(done)
    return problems


def _write(record: FileChanged) -> None:
    fd = os.open(record.path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, record.undo.encode())
    finally:
        os.close(fd)


def _needed_by(record: FileChanged) -> str:
    """Cgroups that would lose what others have set in them since, by name; "" if none would."""
    file = Path(record.path)
    if (file.name, record.undo) != ("cgroup.subtree_control", "-cpu"):
        return ""
    found = cgroup.limited(file.parent)
    return ", ".join(folder.name for folder in found if not cgroup.is_ours(folder))


def _needed_by_others(log: Log, file: Path) -> bool:
    """Whether groups that we did not make may be why the kernel refuses to put this file back.

    It refuses others for reasons that pass: such as a deadline server's while its CPU is offline.
    """
    ours_inside = any(Path(group).is_relative_to(file.parent) for group in log.state.groups)
    return file.name == "cgroup.subtree_control" and not ours_inside


def _is_kernels(path: str) -> bool:
    """Whether the path leads into /proc or /sys, also after links and dots are resolved."""
    return os.path.realpath(path).startswith(("/proc/", "/sys/"))


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)  # ValueError: what nobody can open, of a journal from elsewhere
