"""Takes back what threads inherited from ours, a little each pass.

Anybody may have tens of thousands of threads and processes, so no pass looks at all of them. A
thread has what it inherited from its birth, so each is looked at once when it is new, some a pass;
all of them now and then. What is below a process in which nobody has a thread any more takes a look
at each process of the machine: where that takes long it is done the more seldom. Until then the
process stands in the journal.
"""

import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator

from sched_ctl.backends.undo import put_back as undo
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.backends.undo.records import Adopted
from sched_ctl.kernel import identity, procfs
from sched_ctl.kernel.births import Births
from sched_ctl.model.topology import Thread

__all__ = ["Sweep"]

MOST = 500  # threads that one pass looks at, 20 us each
BELOW_S = 0.05  # of looks below processes in a pass, after which it begins with no further one
SELDOM = 100  # times what looks took that took longer, until the next: 1% of a CPU


class Sweep:
    """What is still to be looked at.

    pids: processes in which we have threads. held: threads of all backends.
    """

    def __init__(
        self,
        journal: Journal,
        recheck_s: float,
        pids: Callable[[], set[int]],
        held: Callable[[], Iterable[Thread | Adopted]],
    ) -> None:
        self._journal = journal
        self._pids, self._held = pids, held
        self._recheck_s = recheck_s
        self._all_at_s = time.monotonic()
        self._births = Births()
        self._seen: dict[int, frozenset[int]] = {}  # by process, as are the following
        self._due: dict[int, set[int]] = {}  # threads to look at
        self._left: dict[int, set[int]] = {}  # threads that were let go
        self._below_at_s = 0.0

    def let_go(self, threads: Iterable[Thread]) -> None:
        """These were put back. What they had is their own."""
        for thread in threads:
            self._left.setdefault(thread.pid, set()).add(thread.tid)

    def look(self) -> list[str]:
        """Once a pass. Returns what could not be put back, in words."""
        self._note()
        return (self._new() if self._due else []) + self.rest()

    def rest(self) -> list[str]:
        """What is late, also where nobody is ordered any more: once a pass, as `look`."""
        if self._left and time.monotonic() >= self._below_at_s:
            return self.below(BELOW_S)
        return []

    def _note(self) -> None:
        """Which threads are new; now and then, all."""
        now_s = time.monotonic()
        stirred = self._births.changed(self._pids)
        if now_s - self._all_at_s >= self._recheck_s:
            self._all_at_s = now_s
            self._seen, stirred = {}, self._pids()
        if not stirred:
            return
        pids, held = self._pids(), self._tids()
        self._seen = {pid: tids for pid, tids in self._seen.items() if pid in pids}
        self._due = {pid: tids for pid, tids in self._due.items() if pid in pids}
        for pid in stirred:
            tids = frozenset(procfs.tids(pid))
            new = tids - self._seen.get(pid, frozenset()) - held
            if due := (self._due.pop(pid, set()) & tids) | new:
                self._due[pid] = due
            self._seen[pid] = tids

    def _new(self) -> list[str]:
        """Look at some of the new threads, as many of each process."""
        held, share = self._tids(), max(1, MOST // len(self._due))
        problems: list[str] = []
        for pid, tids in list(self._due.items()):
            some = {tids.pop() for _ in range(min(share, len(tids)))}
            if not tids:
                del self._due[pid]
            process = self._journal.state.processes.get(pid)
            if process and identity.same(process):
                problems += undo.inherited(process, pid, some - held)
        return problems

    def below(self, within_s: float = math.inf) -> list[str]:
        """Sweep processes in which nobody has any thread left, with those below them."""
        for pid in {one.pid for one in self._held()} & self._left.keys():
            del self._left[pid]
        if not self._left:
            return []
        began_s, known = time.monotonic(), self._tids()
        children = functools.cache(procfs.families)
        children()  # as dear as all the rest where there are many processes: shared by all of them
        end_s = time.monotonic() + within_s

        def late() -> Iterator[int]:
            while self._left:
                pid = next(iter(self._left))
                known.update(self._left.pop(pid))
                yield pid
                if time.monotonic() > end_s:
                    return

        # All at once: where the journal has no space each addition is an attempt to write it anew.
        problems = undo.processes(self._journal, late(), known, children)
        took_s = time.monotonic() - began_s
        if took_s > BELOW_S:
            self._below_at_s = began_s + SELDOM * took_s
        return problems

    def _tids(self) -> set[int]:
        return {one.tid for one in self._held()}
