"""Who waits for a CPU and gets none: waits that have not ended yet.

The kernel counts a wait when it ends (schedstat, as in `probes.threads`), so who has had no turn
for as long as anybody looks seems to sleep. But a thread that could run at two looks, and had no
turn in between, has waited for all of that time: it cannot have gone to sleep meanwhile.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from sched_ctl.kernel import procfs
from sched_ctl.model.graph import Array
from sched_ctl.model.topology import Thread

__all__ = ["Unserved"]

EVERY_S = 0.5
# Whoever runs on a CPU without a tick (nohz_full) has its CPU time counted once a second.
LEAST_S = 1.2
MOST = 200  # threads at one look, 20 us each; the others' turn is at the next ones

Turns = tuple[int, int]  # CPU time, ns, and how often it has had a CPU


class _Ready(NamedTuple):
    """A thread that could run at all looks since then. had: of CPUs, by each of them."""

    had: Turns
    since_s: float
    last_s: float


class Unserved:
    """Looks at threads that have not run lately, while somebody wants to know."""

    def __init__(self, ready: Callable[[Thread], Turns | None] | None = None) -> None:
        """ready: what a thread has had so far; None if it could not run just now."""
        self._asked = _ready if ready is None else ready
        self._ready: dict[Thread, _Ready] = {}
        self._next, self._at_s = 0, -EVERY_S

    def look(self, threads: Sequence[Thread], now_s: float, most: int = MOST) -> None:
        """At these, and none else, at most so many now, unless that was done just now."""
        if now_s - self._at_s < EVERY_S:
            return
        self._at_s = now_s
        known = {thread: self._ready[thread] for thread in threads if thread in self._ready}
        first = self._next % max(1, len(threads))
        self._next = first + most
        for thread in [*threads[first:], *threads[:first]][:most]:
            had, before = self._asked(thread), known.pop(thread, None)
            if had is not None:
                same = before is not None and before.had == had
                known[thread] = _Ready(had, before.since_s if same and before else now_s, now_s)
        self._ready = known

    def goes_on_s(self) -> dict[Thread, float]:
        """For how long each thread has waited at its last look, s: no turn since it was seen first.

        Less than `LEAST_S` is left out.
        """
        waits = {thread: found.last_s - found.since_s for thread, found in self._ready.items()}
        return {thread: wait_s for thread, wait_s in waits.items() if wait_s >= LEAST_S}

    def waited(self, operators: Iterable[Sequence[Thread]], seconds: float) -> Array | None:
        """(n,) s that the threads of each have waited of the last `seconds` before the last look,
        together; None: no one has.
        """
        if not self._ready:
            return None
        begin_s = self._at_s - seconds
        waits = {
            one: max(0.0, r.last_s - max(r.since_s, begin_s)) for one, r in self._ready.items()
        }
        return np.array([sum(waits.get(t, 0.0) for t in threads) for threads in operators])


def _ready(thread: Thread) -> Turns | None:
    """First what it has had, then whether it could run: in between it may have had a turn, which
    the next look sees.
    """
    had = procfs.turns(thread.pid, thread.tid)
    state = procfs.stat(thread.pid, thread.tid)
    if had is None or state is None or state.start_time != thread.start_time:
        return None
    return had if state.state == "R" else None
