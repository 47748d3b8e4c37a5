"""Per-thread delay accounting: taskstats, by generic netlink (Documentation/accounting/).

It tells what no file of /proc does: how long a thread waited for block I/O, for pages to be swapped
in or read back, for memory to be reclaimed or compacted, and how long interrupts took its CPU. A
question takes 0.1 to 0.2 ms with pyroute2, so it is for now and then.

The kernel's structure grew at its end, but for version 15 (6.14), which put two fields into its
middle; version 16 moved them to the end. pyroute2 knows 15 and the first fields of all others;
here they are known up to version 14's last (interrupts), and read as far as an answer goes.

Delays are counted only if delay accounting is on (kernel.task_delayacct, off since 5.14), and only
of threads that were started since. The socket of pyroute2 has an event loop of its own: use it in a
thread in which none runs.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["Delays", "TaskStats", "Unavailable", "accounting", "obstacle"]

SWITCH = Path("/proc/sys/kernel/task_delayacct")
# What follows the fields that pyroute2 knows: linux/taskstats.h, versions 6 to 14.
TAIL = (
    ("freepages_count", "Q"),
    ("freepages_delay_total", "Q"),
    ("thrashing_count", "Q"),
    ("thrashing_delay_total", "Q"),
    ("ac_btime64", "Q"),
    ("compact_count", "Q"),
    ("compact_delay_total", "Q"),
    ("ac_tgid", "I"),
    ("__tgid_pad", "4x"),
    ("ac_tgetime", "Q"),
    ("ac_exe_dev", "Q"),
    ("ac_exe_inode", "Q"),
    ("wpcopy_count", "Q"),
    ("wpcopy_delay_total", "Q"),
    ("irq_count", "Q"),
    ("irq_delay_total", "Q"),
)
COUNTS = ("blkio", "swapin", "freepages", "thrashing", "compact", "wpcopy")


class Unavailable(Exception):
    """There is nothing to be read: why, in words."""


@dataclass(frozen=True, slots=True)
class Delays:
    """Of one thread since it started, s; NaN where the kernel is too old to tell.

    io_s includes what was read back for memory's sake. memory_s: reclaim, compaction, and the
    longer of swapping in and reading pages back, which overlap. cpu_s is schedstat's run delay.
    counted: whether any delay was ever counted; of threads older than the accounting, never.
    """

    version: int
    pid: int
    cpu_s: float
    io_s: float
    memory_s: float
    irq_s: float
    counted: bool


def accounting() -> bool | None:
    """Whether delays are counted; None where the kernel has no switch (it may be on for ever)."""
    try:
        return SWITCH.read_text().strip() != "0"
    except OSError:
        return None


def obstacle() -> str | None:
    """Why delays cannot be read, in words; None if they can."""
    try:
        with TaskStats() as stats:
            stats.of(1)
    except Unavailable as error:
        return str(error)
    return None


class TaskStats:
    """Asks the kernel. Raises Unavailable where it cannot be asked at all."""

    def __init__(self) -> None:
        try:
            socket_class = _socket_class()
        except ImportError as error:
            raise Unavailable(f"pyroute2 is not installed ({error})") from None
        self._socket: Any = None
        try:
            self._socket = socket_class()
            self._socket.bind()
        except Exception as error:  # NetlinkError, OSError, and what pyroute2 makes of them
            self.close()
            raise Unavailable(f"the kernel has no taskstats: {error}") from None

    def __enter__(self) -> "TaskStats":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def of(self, tid: int) -> Delays | None:
        """None if there is no such thread. Raises Unavailable if we may not ask."""
        try:
            answer = self._socket.get_pid_stat(tid)
        except Exception as error:
            code = getattr(error, "code", None)
            if code in (3, 22):  # ESRCH; EINVAL is what kernels say of an id that nobody has
                return None
            if code == 1:
                raise Unavailable("reading taskstats needs CAP_NET_ADMIN") from None
            raise Unavailable(f"taskstats: {error}") from None
        return _delays(answer)

    def all_of(self, tids: Iterable[int]) -> dict[int, Delays]:
        """Without the threads that are gone."""
        found = ((tid, self.of(tid)) for tid in tids)
        return {tid: delays for tid, delays in found if delays is not None}

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


def _delays(answer: Any) -> Delays | None:
    """What is known of an answer; None if it holds no statistics."""
    for message in answer:
        inner = message.get_attr("TASKSTATS_TYPE_AGGR_PID")
        stats = None if inner is None else inner.get_attr("TASKSTATS_TYPE_STATS")
        if stats is not None:
            break
    else:
        return None

    def seconds(name: str) -> float:
        value = stats.get(f"{name}_delay_total")
        return float("nan") if value is None else value * 1e-9

    swap, thrash = seconds("swapin"), seconds("thrashing")
    memory_s = sum(part for part in map(seconds, ("freepages", "compact")) if part == part)
    memory_s += max((part for part in (swap, thrash) if part == part), default=0.0)
    return Delays(
        version=stats["version"],
        pid=stats.get("ac_tgid") or stats["ac_pid"],
        cpu_s=seconds("cpu"),
        io_s=seconds("blkio"),
        memory_s=memory_s,
        irq_s=seconds("irq"),
        counted=any(stats.get(f"{name}_count") for name in COUNTS),
    )


@cache
def _socket_class() -> Any:
    """pyroute2's socket with messages that go on where its own end. Raises ImportError."""
    from pyroute2.netlink import genlmsg, nla
    from pyroute2.netlink.taskstats import AsyncTaskStats, TStatsBase
    from pyroute2.netlink.taskstats import TaskStats as Socket

    known = TStatsBase.tstats_vB

    @cache
    def as_long_as(length: int) -> Any:
        fields = list(known.fields)
        for field in TAIL:
            if struct.calcsize("".join(form for _, form in (*fields, field))) > length:
                break
            fields.append(field)
        return type("tstats", (known,), {"fields": tuple(fields)})

    def layout(self: Any, *_: Any, **place: Any) -> Any:
        length, _kind, version = struct.unpack_from("=HHH", place["data"], place["offset"])
        if version == 15:
            return TStatsBase.tstats_v15
        return as_long_as(length - 4)

    class Stats:
        versioned_stats = staticmethod(layout)

    class AggrPid(nla, Stats):  # type: ignore[misc]
        nla_map = (
            ("TASKSTATS_TYPE_UNSPEC", "none"),
            ("TASKSTATS_TYPE_PID", "uint32"),
            ("TASKSTATS_TYPE_TGID", "uint32"),
            ("TASKSTATS_TYPE_STATS", "versioned_stats"),
        )

    class Message(genlmsg, Stats):  # type: ignore[misc]
        nla_map = (*AggrPid.nla_map, ("TASKSTATS_TYPE_AGGR_PID", "aggr_pid"))
        aggr_pid = AggrPid

    class Asynchronous(AsyncTaskStats):  # type: ignore[misc]
        async def bind(self) -> None:
            await super(AsyncTaskStats, self).bind("TASKSTATS", Message)

    return type("TaskStatsSocket", (Socket,), {"async_class": Asynchronous})
