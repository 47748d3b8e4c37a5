"""Our BPF scheduler, loaded: the memory shared with it, its statistics, and why it ended.

What each part means is written in bpf/sched_ctl.h, whose layout and texts are read from the
object's BTF; nothing of it is repeated here.
"""

import contextlib
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sched_ctl.errors import UserError
from sched_ctl.kernel import schedext
from sched_ctl.kernel.btf import Btf, Kind
from sched_ctl.kernel.libbpf import BpfError, InnerArray, Link, Object, library

__all__ = ["OBJECT", "Exit", "LoadError", "Scheduler", "last_level_caches", "thread_pidfd"]

OBJECT = Path(__file__).resolve().parents[1] / "bin" / "sched_ctl.bpf.o"
NAME = "sched_ctl"
CPUS = Path("/sys/devices/system/cpu")
_PIDFD_THREAD = os.O_EXCL  # include/uapi/linux/pidfd.h, since Linux 6.9


class LoadError(UserError):
    """The scheduler cannot be loaded or attached; `log` is what libbpf and the verifier said."""

    def __init__(self, obstacle: schedext.Obstacle, log: str = "") -> None:
        super().__init__(obstacle.because, obstacle.hint)
        self.transient = obstacle.transient
        self.log = log


@dataclass(frozen=True, slots=True)
class Exit:
    """Why a scheduler is no longer attached.

    kind: name of the kernel's enum scx_exit_kind without prefix. restart: nothing is wrong, the
    kernel wants it loaded again (CPU hotplug).
    """

    kind: str
    code: int
    reason: str
    message: str

    @property
    def restart(self) -> bool:
        return bool(self.code & schedext.RESTART)

    def __str__(self) -> str:
        if self.restart:
            return "a CPU came or went: the scheduler has to be loaded again"
        words = schedext.EXIT_WORDS.get(self.kind, self.kind)
        detail = ": ".join(text for text in (self.reason, self.message) if text)
        return f"{words} ({detail})" if detail else words


class Scheduler:
    """Open, change `tunables` and memory, then `attach`. Close it, or use it as a context.

    control, slots, heads, arrivals, weights, threads, queues, groups: arrays over the shared
    memory, see sched_ctl.h.
    """

    def __init__(
        self,
        *,
        full: bool,
        cgroups: bool = False,
        tunables: Mapping[str, object] | None = None,
        path: Path = OBJECT,
        kernel: Btf | None = None,
        timeout_ms: int | None = None,
        trace_records: int = 0,
    ) -> None:
        """Open and load. full: every normal thread is ours, not only those of policy SCHED_EXT.

        cgroups: threads that are not adopted share by the weights and limits of their cgroups.
        trace_records: keep the last so many scheduling events, a power of two. Raises LoadError.
        """
        self.full = full
        self.cleared: list[str] = []
        self._link: Link | None = None
        if not path.exists():
            raise LoadError(
                schedext.Obstacle(
                    f"the BPF program was not built: {path} is missing",
                    "make -C bpf (needs clang), or install a package that has it",
                )
            )
        try:
            self._object = Object.open(path, library())
        except BpfError as error:
            raise LoadError(schedext.Obstacle(str(error)), error.log) from error
        try:
            types = kernel or schedext.kernel_types()
            self._load(types, tunables or {}, cgroups, timeout_ms, trace_records)
        except BaseException:
            self._object.close()
            raise

    def _load(
        self,
        kernel: Btf,
        tunables: Mapping[str, object],
        cgroups: bool,
        timeout_ms: int | None,
        trace_records: int,
    ) -> None:
        opened = self._object
        limits = opened.btf.enum("limits")
        sets = queue_sets(last_level_caches(), limits["SET_CPUS"], limits["MAX_LLCS"])
        if len(sets) <= limits["MAX_CPUS"]:
            of_cpu = np.zeros(limits["MAX_CPUS"], dtype=np.uint8)
            of_cpu[: len(sets)] = np.maximum(sets, 0)  # of those that are offline: any
            opened.set("llc_of_cpu", of_cpu)
            opened.set("nr_llcs", max(sets, default=0) + 1)
            opened.set("cpus_of_llc", members(sets, limits["MAX_LLCS"], limits["SET_CPUS"]).ravel())
        if possible := possible_cpus():
            opened.set("nr_cpus", min(possible, limits["MAX_CPUS"]))
        opened.set("base_slice_us", base_slice_us(os.cpu_count() or 1))
        for name, value in tunables.items():
            opened.set(name, value)
        if trace_records:
            opened.set("trace_records", trace_records)
            opened.resize("trace", trace_records)
        ops = opened.ops(NAME, kernel)
        flags = kernel.enum("scx_ops_flags")
        partial = flags["SCX_OPS_SWITCH_PARTIAL"]
        ops["flags"] = int(ops["flags"]) & ~partial | (0 if self.full else partial)
        self.cgroups = cgroups and kernel.find("task_group", Kind.STRUCT) is not None
        if self.cgroups:
            opened.set("use_cgroups", True)
            # Or the last thread of a CPU would run on, whatever its cgroup's limit.
            ops["flags"] = int(ops["flags"]) | flags["SCX_OPS_ENQ_LAST"]
        else:
            ops["runnable"] = ops["quiescent"] = 0
        if timeout_ms is not None:
            ops["timeout_ms"] = timeout_ms
        if "hotplug_seq" in ops and (sequence := schedext.hotplug_sequence()) is not None:
            ops["hotplug_seq"] = sequence
        self.cleared = ops.clear_unknown()
        try:
            opened.load()
        except BpfError as error:
            raise LoadError(schedext.explain_error(error, "load"), error.log) from error
        self.limits = limits
        self._maps()
        kinds = kernel.enum("scx_exit_kind")
        schedext.kernel_types.cache_clear()  # some 10 MB, needed again only for the next load
        self._exit_kinds = {number: name for name, number in kinds.items()}

    def _maps(self) -> None:
        """What the loaded program shares with us."""
        opened = self._object
        self.control = opened.array(".data.control", "control")
        self.slots = opened.array(".bss.slots", "slots")
        self.heads = opened.array(".bss.heads", "heads")
        self.arrivals = opened.array(".bss.arrivals", "arrivals")
        self.weights = opened.array(".bss.weights", "weights")
        self.threads = opened.array(".bss.threads", "threads")
        self.queues = opened.array(".bss.queues", "queues")
        self.groups = opened.array(".bss.groups", "groups")
        self._stats = opened.array(".bss.stats", "stats")
        self._exit = opened.array(".bss.exit", "exit_report")
        self._dump = opened.array(".bss.dump", "exit_dump")
        self.slot_flags = opened.btf.enum("slot_flags")
        self.queue_flags = opened.btf.enum("queue_flags")
        self.about = opened.btf.tags("stats")

    @property
    def libbpf(self) -> str:
        """Which libbpf is used, in words."""
        return self._object.library.origin

    @property
    def program(self) -> Object:
        """For what is not offered here: tests, benchmarks."""
        return self._object

    def attach(self) -> None:
        """Let it schedule. No PSI trigger may be made meanwhile (kernels 7.1-rc2 to 7.2 can hang).

        Raises LoadError.
        """
        self.beat()
        try:
            self._link = self._object.attach_ops(NAME)
        except BpfError as error:
            raise LoadError(schedext.explain_error(error, "attach"), error.log) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def detach(self) -> None:
        """Back to the kernel's scheduler; the shared memory stays readable."""
        if self._link is not None:
            self._link.destroy()
            self._link = None

    def close(self) -> None:
        self.detach()
        self._object.close()

    # -- the running scheduler ------------------------------------------------------------------

    def beat(self) -> None:
        """A sign of life; hints count while it is younger than `control.ttl_ms`."""
        self.control["heartbeat_ns"] = time.monotonic_ns()

    def adopt(self, pidfd: int, slot: int, flushes: int = 0) -> None:
        """Tie the thread to a slot, which must be filled. OSError ESRCH if it is gone.

        flushes: with a slot of 0, the slot of the operator whose flusher it is.
        """
        value = np.zeros((), dtype=self._object.btf.dtype("adoption"))
        value["slot"], value["flushes"] = slot, flushes
        self._object.update("adopted", pidfd.to_bytes(4, "little", signed=True), value.tobytes())

    def disown(self, pidfd: int) -> bool:
        return self._object.delete("adopted", pidfd.to_bytes(4, "little", signed=True))

    def adopted_slot(self, pidfd: int) -> int | None:
        """Slot that the thread is tied to, or None."""
        value = self._object.lookup("adopted", pidfd.to_bytes(4, "little", signed=True))
        return int.from_bytes(value[:4], "little") if value else None

    def live_rows(self, engine: int, rows: int) -> InnerArray:
        """Memory in which an engine (1..MAX_ENGINES-1) writes what its operators' queues hold."""
        return self._object.inner_array("live", engine, "live", rows)

    def drop_live_rows(self, engine: int) -> None:
        """They count no more; the memory is there as long as somebody maps it."""
        self._object.delete("live", engine.to_bytes(4, "little"))

    def live_index(self, engine: int, row: int) -> int:
        """What a slot has in `live` for this row."""
        return engine << self.limits["LIVE_ROW_BITS"] | row

    @property
    def live_row(self) -> np.dtype[Any]:
        """Layout of a live row."""
        return self._object.btf.dtype("live")

    def exit(self) -> Exit | None:
        """Why it ended; None while it is attached."""
        number = int(self._exit["kind"])
        if number == 0:
            return None
        return Exit(
            kind=self._exit_kinds.get(number, str(number)).removeprefix("SCX_EXIT_"),
            code=int(self._exit["exit_code"]),
            reason=self._exit["reason"].item().decode(errors="replace"),
            message=self._exit["message"].item().decode(errors="replace").strip(),
        )

    def dump(self) -> str:
        """What the kernel wrote down when it ended the scheduler for an error: its state, the
        threads of each CPU, and what the scheduler adds to them. Empty if there is none.
        """
        return str(self._dump.item().decode(errors="replace"))

    def now_ns(self) -> int:
        """The scheduler's clock, in which `threads` has its times; right to some microseconds."""
        offset = self._object.array(".bss", "monotonic_offset_ns").astype(np.int64)
        return time.monotonic_ns() - int(offset)

    def stats(self) -> dict[str, int]:
        """Counters since attaching, summed over the CPUs; `about` has a text for each."""
        return {name: self.counter(name) for name in self.about}

    def counter(self, name: str) -> int:
        return int(self._stats[name].sum(dtype=np.uint64))

    def trace(self) -> NDArray[Any]:
        """The recorded events, oldest first (a copy)."""
        records = self._object.map_array("trace", "trace_record")
        written = int(self._object.array(".bss", "trace_next"))
        size = len(records)
        start = written % size if written > size else 0
        return np.roll(records[: min(written, size)], -start)


def thread_pidfd(tid: int) -> int:
    """A descriptor of one thread. OSError ESRCH if there is none."""
    return os.pidfd_open(tid, _PIDFD_THREAD)


def base_slice_us(cpus: int) -> int:
    """How long the kernel's fair class leaves a thread alone, kernel/sched/fair.c."""
    return 700 * (1 + (min(cpus, 8).bit_length() - 1))


def possible_cpus(root: Path = CPUS) -> int:
    """How many CPUs there can be, as the kernel numbers them; 0 where unknown."""
    try:
        text = (root / "possible").read_text()
        return int(text.strip().rpartition(",")[2].rpartition("-")[2]) + 1
    except (OSError, ValueError):
        return 0


def queue_sets(caches: Sequence[int], most_cpus: int, most_sets: int) -> list[int]:
    """Index of each CPU's set of queues: one a cache, those of more CPUs than `most_cpus` divided
    evenly. Neighbours share one where there would be more than `most_sets`. -1 = it is offline.
    """
    sizes = Counter(caches)
    seen: Counter[int] = Counter()
    found: dict[tuple[int, int], int] = {}
    sets = []
    for cache in caches:
        parts = -(-sizes[cache] // most_cpus)
        part = seen[cache] * parts // sizes[cache]
        seen[cache] += 1
        sets.append(-1 if cache < 0 else found.setdefault((cache, part), len(found)))
    shared = -(-len(found) // most_sets) or 1
    return [index // shared if index >= 0 else -1 for index in sets]


def members(sets: Sequence[int], most_sets: int, most_cpus: int) -> NDArray[Any]:
    """The CPUs of each set, + 1, in rows of `most_cpus`; 0 = no more."""
    rows = np.zeros((most_sets, most_cpus), dtype=np.uint16)
    for index in set(sets) - {-1}:
        cpus = [cpu + 1 for cpu, of in enumerate(sets) if of == index][:most_cpus]
        rows[index, : len(cpus)] = cpus
    return rows


def last_level_caches(root: Path = CPUS) -> list[int]:
    """Index of each CPU's last-level cache, by the kernel's numbers; -1 = it is offline."""
    groups: dict[str, int] = {}
    found = [-1] * possible_cpus(root)
    for cpu in _online(root):
        if cpu >= len(found):
            break
        shared = "all"
        with contextlib.suppress(OSError, ValueError):
            folders = (root / f"cpu{cpu}" / "cache").glob("index*")
            by_level = {int((f / "level").read_text()): f for f in folders}
            if by_level:
                shared = (by_level[max(by_level)] / "shared_cpu_list").read_text().strip()
        found[cpu] = groups.setdefault(shared, len(groups))
    return found


def _online(root: Path) -> list[int]:
    """The kernel's numbers of all CPUs that are online, such as 0,2-3."""
    numbers: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        for part in (root / "online").read_text().strip().split(","):
            first, _, last = part.partition("-")
            numbers += range(int(first), int(last or first) + 1)
    return numbers
