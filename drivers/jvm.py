"""A Java process that runs operators, and what its threads are called."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from sched_ctl.drivers import threadnames
from sched_ctl.drivers.threadnames import ThreadName
from sched_ctl.drivers.threads import thread_of
from sched_ctl.kernel import hotspot, identity, procfs
from sched_ctl.model.topology import Thread

__all__ = ["JavaProcess"]

# A dump stops the virtual machine for milliseconds, so a process that keeps starting threads of
# unknown purpose gets one a second at most.
DUMP_EVERY_S = 1.0
REAPER = "process reaper"
RETRY_S = 10.0  # after a dump that failed


@dataclass(eq=False)
class JavaProcess:
    """engine: whose grammars say what a thread's name means, see `threadnames`.

    names: every thread whose name some grammar knows. others: those that none knows. trouble: why
    the virtual machine does not tell its threads, in words.
    """

    pid: int
    start_time: int
    engine: str
    names: dict[Thread, ThreadName] = field(default_factory=dict)
    others: tuple[Thread, ...] = ()
    trouble: str = ""
    _seen: dict[int, str] = field(default_factory=dict)  # tid -> comm at the last look
    _next_dump: float = 0.0
    _due: bool = True
    _lost: bool = False

    @property
    def alive(self) -> bool:
        return identity.runs(self.pid, self.start_time)

    @property
    def starts_processes(self) -> bool:
        """Whether it has, or lately had, other processes: a thread of its own waits for each."""
        return any(thread.name.startswith(REAPER) for thread in self.names)

    def changed(self, *, wanted: bool) -> bool:
        """Look whether threads came or went that may be operators'; some 0.1 ms.

        wanted: some operator's thread is missing, so look again whatever came.
        """
        tids = set(procfs.tids(self.pid))
        went = self._seen.keys() - tids
        known: Iterable[Thread] = self.names
        if went and not threadnames.tells_operators(self.engine):
            known = (*self.names, *self.others)
        lost = went and any(thread.tid in went for thread in known)
        for tid in went:
            del self._seen[tid]
        for tid in tids - self._seen.keys():
            if (thread := thread_of(self.pid, tid)) is not None:
                self._seen[tid] = thread.name
                # A thread just born still has its parent's name: that counts as unknown.
                if not threadnames.certainly_helper(self.engine, thread.name):
                    self._due = True
        self._lost |= bool(lost)
        self._due |= wanted
        return self._lost or self._may_ask()

    def _may_ask(self) -> bool:
        return self._due and time.monotonic() >= self._next_dump

    def look(self, timeout_s: float) -> None:
        """Ask the virtual machine for the names of its threads. Failures end up in `trouble`.

        Which of them ended is known without asking, which stops the machine.
        """
        if self._lost:
            self._lost = False
            self.names = {t: said for t, said in self.names.items() if t.tid in self._seen}
            self.others = tuple(thread for thread in self.others if thread.tid in self._seen)
        if not self._may_ask():
            return
        try:
            threads = hotspot.threads(self.pid, timeout_s)
        except hotspot.AttachError as error:
            self.trouble = error.message + (f" ({error.hint})" if error.hint else "")
            self._next_dump = time.monotonic() + RETRY_S
            return
        self.trouble = ""
        self._due = False
        self._next_dump = time.monotonic() + DUMP_EVERY_S
        before = {thread: thread for thread in (*self.names, *self.others)}
        names, others = {}, []
        for java in threads:
            start = thread_of(self.pid, java.tid)
            if start is None:
                continue
            thread = Thread(self.pid, java.tid, start.start_time, java.name)
            if (old := before.get(thread)) is not None and old.name == java.name:
                thread = old  # the same object as before, where it is the same thread
            said = threadnames.read(self.engine, java.name)
            if said is None:
                others.append(thread)
            else:
                names[thread] = said
        self.names, self.others = names, tuple(others)
