"""Urgency forms for the lab engine's own scheduler, `labspe --threads pool:K`.

No kernel is involved: the forms are written into the engine's shared-memory file, and its workers
evaluate them at each pick. This is the user-level scheduling of EdgeWise and Haren, under the same
policies as every other backend: a baseline, and the limit that the kernel is measured against.

Nothing is journalled, since nothing outlives the engine: forms are in force for `ttl` seconds and
renewed by each `apply`, so an engine whose controller was killed goes back to its own policy.
"""

import os
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sched_ctl.backends import Applied, Backend, Probe
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.errors import EngineError
from sched_ctl.kernel.identity import runs
from sched_ctl.lab import file as lab
from sched_ctl.model.graph import Array
from sched_ctl.model.options import PoolOptions
from sched_ctl.model.policy import UrgencyForm
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import Thread, UserThread
from sched_ctl.model.unknown import known_form

__all__ = ["Pool", "probe", "stacked"]

COLUMNS = ("rank", "static", "per_second", "per_tuple")


def probe() -> Probe:
    """Whether a lab engine runs here whose pool we could order."""
    engines = lab.pids()
    for pid in engines:
        try:
            file = lab.LabFile(lab.path_of(str(pid)))
        except EngineError:
            continue
        pool = file.pool
        file.close()
        if pool:
            return Probe(True, f"lab:{pid} runs its operators in a pool of workers")
    return Probe(
        False,
        "no lab engine on this machine runs its operators in a pool of workers"
        + (f" ({len(engines)} run one thread an operator)" if engines else ""),
        "start one: sched-ctl lab WORKLOAD --threads pool:1",
    )


@dataclass
class _Engine:
    """An engine whose pool we order. scopes: scope -> (rows, (4, rows) columns)."""

    file: lab.LabFile
    fd: int
    written: Array | None = None  # (4, n) as they are in force
    epoch: int = 0
    scopes: dict[str, tuple[list[int], Array]] = field(default_factory=dict)

    def close(self) -> None:
        os.close(self.fd)
        self.file.close()


class Pool(Backend):
    """Writes urgency forms into the files of lab engines in pool mode. See `backends.Backend`."""

    name: ClassVar[str] = "pool"
    user_level: ClassVar[bool] = True

    def __init__(self, journal: Journal | None = None, options: PoolOptions | None = None) -> None:
        """journal: not needed, see above."""
        self.options = options or PoolOptions()
        self._pools: dict[tuple[int, int], _Engine] = {}  # by (pid, start time) of the engine

    def apply(self, schedule: Schedule) -> Applied:
        rows: dict[tuple[int, int], list[tuple[int, int]]] = {}  # (row in the file, in schedule)
        kernel: list[tuple[Thread, str]] = []
        for index, thread in enumerate(schedule.threads):
            if isinstance(thread, UserThread):
                rows.setdefault((thread.pid, thread.start_time), []).append((thread.row, index))
            else:
                kernel.append((thread, schedule.operators[index]))
        pids = {pid for pid, _ in rows}
        # The pool's own threads (workers, sources) come along as helpers: nothing to do for them.
        problems = [
            f"{label}: a thread of the kernel; the backend 'pool' orders only the lab engine's pool"
            for thread, label in kernel
            if thread.pid not in pids
        ]
        total = Applied(problems=tuple(problems))
        for key in [*rows, *(key for key in self._pools if key not in rows)]:
            total += self._apply(key, schedule, rows.get(key, []))
        return total

    def _apply(
        self, key: tuple[int, int], schedule: Schedule, rows: list[tuple[int, int]]
    ) -> Applied:
        """Bring one engine in line with its part of the schedule."""
        if not rows and schedule.scope not in self._pools[key].scopes:
            return Applied()
        try:
            pool = self._pool(key)
            if not rows:
                del pool.scopes[schedule.scope]
            else:
                pool.scopes[schedule.scope] = _columns(schedule, rows, len(pool.file.operators))
            return self._write(pool, len(rows))
        except EngineError as error:
            # A process that is gone is no error, all else is.
            self._forget(key)
            if not runs(*key):
                return Applied(gone=len(rows))
            return Applied(problems=(error.message,))
        except OSError as error:
            return Applied(problems=(f"lab:{key[0]}: {error.strerror}",))

    def _pool(self, key: tuple[int, int]) -> _Engine:
        if key not in self._pools:
            file = lab.LabFile(lab.path_of(str(key[0])))
            try:
                if (file.pid, file.start_time) != key or not file.pool:
                    raise EngineError(f"lab:{key[0]} does not run its operators in a pool")
                self._pools[key] = _Engine(file, file.writable())
            except BaseException:
                file.close()
                raise
        pool = self._pools[key]
        pool.file.refresh()
        if not pool.file.alive:
            raise EngineError(f"lab:{key[0]} has ended")
        return pool

    def _write(self, pool: _Engine, rows: int) -> Applied:
        file = pool.file
        if not pool.scopes:
            _set_epoch(pool, 0, 0)
            pool.written = None
            return Applied(writes=1)
        columns = _merged(pool, len(file.operators))
        until_ns = time.monotonic_ns() + int(self.options.ttl * 1e9)
        drifted = pool.written is not None and file["urgency_epoch"] != pool.epoch
        if pool.written is not None and not drifted and np.array_equal(columns, pool.written):
            _set_epoch(pool, pool.epoch, until_ns)
            return Applied(unchanged=rows)
        # The bank that is in force is left alone until the other one is complete.
        epoch = file["urgency_epoch"] % (1 << 62) + 1
        bank = file["urgency_offset"] + (epoch & 1) * columns.nbytes
        if bank + columns.nbytes > file.size:  # the engine's word, who may say anything
            raise EngineError(f"lab:{file.pid}: the place for urgencies lies outside of its file")
        os.pwrite(pool.fd, columns.tobytes(), bank)
        _set_epoch(pool, epoch, until_ns)
        pool.written = columns
        return Applied(writes=2, repaired=rows if drifted else 0)

    def applied(self, thread: Thread) -> Mapping[str, str | float]:
        row = thread.row if isinstance(thread, UserThread) else None
        pool = self._pools.get((thread.pid, thread.start_time))
        if row is None or pool is None or pool.written is None or row >= pool.written.shape[1]:
            return {}
        if not any(row in rows for rows, _ in pool.scopes.values()):
            return {}
        return dict(zip(COLUMNS, map(float, pool.written[:, row]), strict=True))

    def restore(self) -> tuple[str, ...]:
        problems = []
        for key in list(self._pools):
            pool = self._pools[key]
            try:
                if pool.file.alive:
                    _set_epoch(pool, 0, 0)
            except OSError as error:
                problems.append(f"lab:{key[0]}: {error.strerror}")
            self._forget(key)
        return tuple(problems)

    def _forget(self, key: tuple[int, int]) -> None:
        if pool := self._pools.pop(key, None):
            pool.close()


def _set_epoch(pool: _Engine, epoch: int, until_ns: int) -> None:
    """`until` first, so that a fresh epoch never finds an old one."""
    os.pwrite(pool.fd, struct.pack("<Q", until_ns), pool.file.offset("urgency_until_ns"))
    os.pwrite(pool.fd, struct.pack("<Q", epoch), pool.file.offset("urgency_epoch"))
    pool.epoch = epoch


def _columns(
    schedule: Schedule, rows: list[tuple[int, int]], count: int
) -> tuple[list[int], Array]:
    """The part of a schedule that is one engine's: rows of its file, (4, rows) columns."""
    rows = [(row, index) for row, index in rows if row < count]
    indices = np.array([index for _, index in rows], dtype=np.intp)
    return [row for row, _ in rows], stacked(known_form(schedule.form.take(indices)))


def stacked(form: UrgencyForm) -> Array:
    return np.stack([form.rank, form.static, form.per_second, form.per_tuple])


def _merged(pool: _Engine, count: int) -> Array:
    """(4, count): all scopes together; operators that no scope has are in the middle."""
    columns = np.full((4, count), np.nan)
    for rows, part in pool.scopes.values():
        columns[:, rows] = part
    return stacked(known_form(UrgencyForm(*columns)))
