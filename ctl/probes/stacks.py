"""Where threads sleep, with their stacks, who wakes them, and who holds the lock they wait for.

For a look of some seconds that somebody asked for. It walks stacks at each sleep, in
bpf/stacks.bpf.c, looks for owners of mutexes, and asks Java machines for three thread dumps.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from sched_ctl.kernel import hotspot, procfs, symbols
from sched_ctl.kernel.stacks import Addresses, Sleeps, Stacks
from sched_ctl.probes import holders
from sched_ctl.probes.holders import Held, JavaStack

__all__ = ["Place", "Waker", "folded", "holders_of", "look"]

DUMPS = 3  # of each Java machine
LOOK_S = 0.05  # from one look for owners of mutexes to the next
LOOKS = 20  # where nothing else is looked at
MOST_THREADS = 200  # in one look
# The innermost frames that all sleeps and wake-ups have in common end with one of these.
INNERMOST = 8
COMMON = ("bpf_trace_run1", "bpf_trace_run4", "__schedule", "schedule", "try_to_wake_up")


@dataclass(frozen=True, slots=True)
class Waker:
    """tid: 0 = an interrupt, or nobody of these processes; -1 = nobody yet. frames: of its user
    stack, else of the kernel's.
    """

    tid: int
    name: str
    times: int
    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Sleeps of one thread at one place. seconds: in all of them, times: how many.

    kernel, user, java: its stacks, innermost first; java is of one moment, and empty of no Java
    thread. held: who has the lock, where that was seen; share: in which part of the looks at it.
    """

    tid: int
    name: str
    seconds: float
    times: int
    kernel: tuple[str, ...]
    user: tuple[str, ...]
    java: tuple[str, ...]
    wakers: tuple[Waker, ...]
    held: Held | None
    share: float


def look(pids: Collection[int], tids: Collection[int] | None, seconds: float) -> list[Place]:
    """What these threads (all of the processes without) did in so many seconds, longest first.

    Raises `tracing.Unavailable`.
    """
    java: dict[int, JavaStack] = {}
    seen = _Seen()
    with Stacks(pids) as stacks:
        begin_s = time.monotonic()
        dumps = [begin_s + seconds * (i + 1) / (DUMPS + 1) for i in range(DUMPS)]
        machines = [pid for pid in pids if hotspot.is_hotspot(pid)]
        while (now_s := time.monotonic()) < begin_s + seconds:
            if dumps and now_s >= dumps[0]:
                dumps.pop(0)
                for pid in machines:
                    with suppress(hotspot.AttachError):
                        told = holders.java_stacks(pid)
                        java |= told
                        seen.note(told, holders.who_holds(told))
            for pid in set(pids) - set(machines):
                mine = [t for t in procfs.tids(pid) if tids is None or t in tids][:MOST_THREADS]
                found = {tid: holders.mutex(pid, tid) for tid in mine}
                seen.note(mine, {tid: one for tid, one in found.items() if one})
            time.sleep(min(LOOK_S, max(0.0, begin_s + seconds - time.monotonic())))
        sleeps = [one for one in stacks.read() if tids is None or one.tid in tids]
    return _named(sleeps, java, seen, pids)


class _Seen:
    """Who held what other threads waited for, over several looks."""

    def __init__(self) -> None:
        self._looks: Counter[int] = Counter()  # by thread
        self._times: dict[int, Counter[int]] = {}  # by thread that waits, and holder
        self._last: dict[tuple[int, int], Held] = {}

    def note(self, looked: Iterable[int], found: Mapping[int, Held]) -> None:
        self._looks.update(list(looked))
        for tid, held in found.items():
            self._times.setdefault(tid, Counter())[held.holder] += 1
            self._last[tid, held.holder] = held

    def most(self, tid: int) -> tuple[Held | None, float]:
        """Who held it most often, as seen last, and in which part of all looks."""
        times = self._times.get(tid)
        if not times:
            return None, 0.0
        [(holder, count)] = times.most_common(1)
        return self._last[tid, holder], count / self._looks[tid]


def _named(
    sleeps: Iterable[Sleeps], java: Mapping[int, JavaStack], seen: _Seen, pids: Iterable[int]
) -> list[Place]:
    """One row a thread and place, with all that woke it there."""
    in_kernel = symbols.kernel_functions().at
    by_process: dict[int, Callable[[int], str]] = {}
    # Who wakes others may belong to anybody, and anybody may have thousands of user ids.
    owners = {0, *map(procfs.owner, pids)}
    rooms: dict[int | None, symbols.Room] = {}

    def in_process(tid: int, addresses: Addresses) -> tuple[str, ...]:
        pid = procfs.process_of(tid)
        if pid is None or not addresses:
            return ()
        if pid not in by_process:
            owner = procfs.owner(pid)
            room = rooms.setdefault(owner if owner in owners else None, symbols.Room())
            try:
                by_process[pid] = symbols.of_process(pid, room)
            except OSError:  # gone, or not ours to look into
                by_process[pid] = hex
        return tuple(by_process[pid](address) for address in addresses)

    def whence(waker: int, user: Addresses, kernel: Addresses) -> tuple[str, ...]:
        return in_process(waker, user) or _plain(in_kernel, kernel) if waker > 0 else ()

    grouped: dict[tuple[int, Addresses, Addresses], list[Sleeps]] = {}
    for one in sleeps:
        grouped.setdefault((one.tid, one.kernel, one.user), []).append(one)
    found = []
    for (tid, kernel, user), group in grouped.items():
        woken: Counter[tuple[int, tuple[str, ...]]] = Counter()
        for one in group:
            stack_of_waker = one.waker_user, one.waker_kernel
            woken[one.waker, whence(one.waker, *stack_of_waker)] += one.times
        wakers = (Waker(by, _name(by), n, frames) for (by, frames), n in woken.most_common())
        held, share = seen.most(tid)
        stack = java.get(tid)
        found.append(
            Place(
                tid,
                stack.name if stack else procfs.name_of(tid),
                sum(one.seconds for one in group),
                sum(one.times for one in group),
                _plain(in_kernel, kernel),
                in_process(tid, user),
                tuple(stack.frames) if stack else (),
                tuple(wakers),
                held,
                share,
            )
        )
    found.sort(key=lambda place: -place.seconds)
    told: set[int] = set()
    for i, place in enumerate(found):  # it waited where it slept longest
        if place.tid in told:
            found[i] = replace(place, held=None, share=0.0)
        told.add(place.tid)
    return found


def _name(tid: int) -> str:
    return {0: "from outside", -1: "nobody yet"}.get(tid) or procfs.name_of(tid)


def _plain(name: Callable[[int], str | None], addresses: Addresses) -> tuple[str, ...]:
    """Kernel frames without those of tracing, of the switch and of waking up, that all have."""
    names = [name(address) or f"{address:#x}" for address in addresses]
    common = [i for i, one in enumerate(names[:INNERMOST]) if one in COMMON]
    return tuple(names[common[-1] + 1 :] if common else names)


def holders_of(pid: int, tids: Collection[int]) -> dict[int, Held]:
    """Who most often has the lock that each of these threads waits for, where that was seen.

    A few looks at all of them; of a Java machine one thread dump, as each stops it.
    """
    seen = _Seen()
    if hotspot.is_hotspot(pid):
        with suppress(hotspot.AttachError):
            stacks = holders.java_stacks(pid)
            seen.note(stacks, holders.who_holds(stacks))
    else:
        for _ in range(LOOKS):
            found = {tid: holders.mutex(pid, tid) for tid in tids}
            seen.note(tids, {tid: held for tid, held in found.items() if held})
            time.sleep(LOOK_S / 2)
    return {tid: held for tid in tids if (held := seen.most(tid)[0]) is not None}


def folded(places: Iterable[Place]) -> dict[tuple[str, ...], int]:
    """Stacks, outermost first and beginning with the thread's name -> microseconds asleep there.

    The form that flame graphs are drawn from. Of a Java thread its Java stack, where there is one.
    """
    found: Counter[tuple[str, ...]] = Counter()
    for place in places:
        frames = (place.name, *reversed(place.java or place.user), *reversed(place.kernel))
        found[frames] += round(place.seconds * 1e6)
    return dict(found)
