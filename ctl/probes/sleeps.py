"""Where operators' threads sleep: looks at random times, in a thread of their own.

What share of a thread's looks finds it at a place is the share of its sleep that it spends there:
the times of the looks have nothing to do with its work. A look at a thread reads two files, and
may have to wait for whoever owns the process (it may read its memory, to learn which descriptor it
polls); so each engine has a thread of its own, for which nobody waits.
"""

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sched_ctl.kernel import sleeping, sockdiag
from sched_ctl.kernel.sleeping import Sleep
from sched_ctl.kernel.threadname import be_called
from sched_ctl.model.topology import Thread

__all__ = ["AT_ONCE", "ENOUGH", "Place", "Places", "SleepPlaces", "at_work"]

AT_ONCE = 50  # threads in one look, drawn anew each time: 0.7 ms
# From one look at so many to the next, and of fewer threads as often as costs the same, to a fifth
# of it: on average, and between half and three halves of it.
EVERY_S = 0.1
LATE_S = 10.0  # looks are kept for so long
ENOUGH = 10  # times found asleep with work in hand, or nothing is said
CONNECTIONS_S = 1.0  # from one list of a process's connections to the next: 1 ms and more
# Where threads wait for each other, and so for input and for room in a queue.
QUEUES = frozenset({sleeping.LOCK, sleeping.TIMED, sleeping.EVENTS})


@dataclass(frozen=True, slots=True)
class Place:
    """what: see `sleeping.Sleep`. peer: address and port at the other end of a socket."""

    what: str
    peer: str | None = None


@dataclass(frozen=True, slots=True)
class Places:
    """looks: how often some threads were found asleep. shares: of these, most first."""

    looks: int
    shares: tuple[tuple[Place, float], ...]


class SleepPlaces:
    """Looks at some threads of one engine, while it is told to."""

    def __init__(
        self, where: Callable[..., Sleep | None] = sleeping.where, every_s: float = EVERY_S
    ) -> None:
        self._where, self._every_s = where, every_s
        self._threads: Sequence[Thread] = ()
        self._until_s = 0.0
        self._worker: threading.Thread | None = None
        self._stop = threading.Event()
        # Written by the worker alone; a deque may be copied meanwhile.
        self._seen: deque[tuple[float, dict[Thread, Place]]] = deque()
        self._untold: set[int] = set()  # processes whose calls may not be read
        self._peers: dict[int, dict[int, str]] = {}  # by process and inode
        self._listed_s: dict[int, float] = {}

    def follow(self, threads: Sequence[Thread], seconds: float) -> None:
        """These for so long, or for as long as asked before, instead of those before."""
        self._threads = threads
        if not threads:
            return
        self._until_s = max(self._until_s, time.monotonic() + seconds)
        if self._worker is None or not self._worker.is_alive():
            self._stop = threading.Event()
            self._worker = threading.Thread(
                target=self._work, args=(self._stop,), name="sleeps", daemon=True
            )
            self._worker.start()

    @property
    def looks(self) -> int:
        """How many were made lately, whatever they found."""
        oldest_s = time.monotonic() - LATE_S
        return sum(time_s >= oldest_s for time_s, _ in self._seen.copy())

    def lately(self, threads: Iterable[Thread]) -> Places | None:
        """Of these together, over the last 10 s; None if they were never found asleep."""
        oldest_s = time.monotonic() - LATE_S
        mine = tuple(threads)
        found = Counter(
            seen[thread]
            for time_s, seen in self._seen.copy()
            if time_s >= oldest_s
            for thread in mine
            if thread in seen
        )
        looks = found.total()
        if not looks:
            return None
        return Places(looks, tuple((place, n / looks) for place, n in found.most_common()))

    def close(self) -> None:
        self._stop.set()

    # --- in the worker ---

    def _work(self, stop: threading.Event) -> None:
        be_called("sleeps")
        while not stop.is_set() and (now_s := time.monotonic()) < self._until_s:
            threads = self._threads
            if len(threads) > AT_ONCE:
                threads = random.sample(threads, AT_ONCE)
            self._seen.append((now_s, self._look(threads)))
            while self._seen[0][0] < now_s - LATE_S:
                self._seen.popleft()
            load = min(1.0, max(0.2, len(threads) / AT_ONCE))
            stop.wait(self._every_s * load * random.uniform(0.5, 1.5))

    def _look(self, threads: Iterable[Thread]) -> dict[Thread, Place]:
        found = {}
        for thread in threads:
            sleep = self._asked(thread)
            if sleep is not None:
                peer = None if sleep.inode is None else self._peer(thread.pid, sleep.inode)
                found[thread] = Place(sleep.what, peer)
        return found

    def _asked(self, thread: Thread) -> Sleep | None:
        if thread.pid not in self._untold:
            try:
                return self._where(thread.pid, thread.tid)
            except PermissionError:  # asked once: some kernels write each refusal into their log
                self._untold.add(thread.pid)
        return self._where(thread.pid, thread.tid, calls=False)

    def _peer(self, pid: int, inode: int) -> str | None:
        """None: it is no connection, or not one that is known yet."""
        known, now_s = self._peers.get(pid, {}), time.monotonic()
        if inode not in known and now_s >= self._listed_s.get(pid, 0.0):
            self._listed_s[pid] = now_s + CONNECTIONS_S
            with suppress(OSError, sockdiag.Crowded):
                found = sockdiag.peers(pid, sockdiag.inodes(pid))
                known = self._peers[pid] = {one: _address(there) for one, there in found.items()}
        return known.get(inode)


def at_work(places: Places, waiting: float) -> tuple[tuple[Place, float], ...]:
    """The shares of the sleep with work in hand, most first; empty if there was too little.

    waiting: share of the sleep that was for input, or for room in a full queue. Threads do that
    where they wait for each other, so it is taken off there.
    """
    if places.looks * (1.0 - waiting) < ENOUGH:
        return ()
    queues = sum(share for place, share in places.shares if place.what in QUEUES)
    left = max(0.0, queues - waiting) / queues if queues else 1.0
    shares = [(p, s * left if p.what in QUEUES else s) for p, s in places.shares]
    total = sum(share for _, share in shares)
    known = [(place, share / total) for place, share in shares if share > 0.0]
    return tuple(sorted(known, key=lambda pair: -pair[1]))


def _address(place: tuple[str, int]) -> str:
    host, port = place
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
