"""Python processes in which operators of PyFlink do their work, and whom they work for.

A TaskManager has one for each slot with operators in Python. The thread of the operator that comes
first starts it, and all others of the slot, which are of the same job, use it, too; without managed
memory (`python.fn-execution.memory.managed: false`) each task in Python has one of its own. In its
threads mode (`python.execution-mode: thread`) Python runs on the operators' own threads instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sched_ctl.drivers.flink.plan import Row
from sched_ctl.drivers.threads import threads_of
from sched_ctl.kernel import procfs
from sched_ctl.model.topology import PYTHON, HelperThread, Thread

__all__ = ["Worker", "serving", "workers"]

MODULE = "pyflink.fn_execution.beam.beam_boot"
MOST = 1000  # of one TaskManager
# Its timers are threads, too, that live for a second each.
STAYS_S = 5.0


@dataclass(frozen=True)
class Worker:
    """starter: which thread of the TaskManager started it; None if that has ended, or the kernel
    does not tell (CONFIG_PROC_CHILDREN). threads: those that stay.
    """

    pid: int
    starter: int | None
    threads: tuple[Thread, ...]


def workers(manager: int) -> tuple[Worker, ...]:
    """Those of this TaskManager: some milliseconds."""
    found = [pid for pid in procfs.descendants(manager) if MODULE in procfs.command_line(pid)]
    if not found:
        return ()
    starters = {
        child: tid for tid in procfs.tids(manager) for child in procfs.children(manager, tid)
    }
    latest = procfs.boot_ticks() - STAYS_S * procfs.TICKS_PER_S
    return tuple(
        Worker(
            pid,
            starters.get(_below(manager, pid)),
            tuple(thread for thread in threads_of(pid) if thread.start_time <= latest),
        )
        for pid in sorted(found)[:MOST]
    )


def _below(manager: int, pid: int) -> int:
    """Its forefather that is the TaskManager's own child: a script starts Python."""
    while (stat := procfs.stat(pid)) is not None and stat.ppid > 1:
        if stat.ppid == manager:
            return pid
        pid = stat.ppid
    return 0


def serving(
    found: Sequence[Worker], runs: Mapping[int, int], rows: Sequence[Row]
) -> tuple[list[HelperThread], list[str]]:
    """Helper threads, and what could not be told.

    runs: thread id -> the row that it runs, of this TaskManager.
    """
    helpers = []
    notes = []
    for worker in found:
        serves = None if worker.starter is None else runs.get(worker.starter)
        helpers += [HelperThread(thread, PYTHON, serves) for thread in worker.threads]
        if serves is None:
            notes.append(
                f"for which operator Python process {worker.pid} works is not told: it is left as "
                "the OS has it"
            )
            continue
        row = rows[serves]
        beside = {place for place in runs.values() if rows[place].job == row.job} - {serves}
        if any(_may_be_python(rows[place]) for place in beside):
            notes.append(
                f"{row.query}: Python process {worker.pid} goes with {row.name!r}, which started "
                "it; other operators of its slot may use it, too"
            )
    return helpers, notes


def _may_be_python(row: Row) -> bool:
    """Flink's own sources and sinks are Java."""
    return len(row.logical) > 1 or not row.task.startswith(("Source: ", "Sink: "))
