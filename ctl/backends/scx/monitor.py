"""The controller's sign of life for the BPF scheduler, and the first to notice its end."""

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sched_ctl.backends import BackendFailed
from sched_ctl.kernel.scheduler import Exit, Scheduler
from sched_ctl.kernel.threadname import be_called

__all__ = ["Ejected", "Monitor", "hurried", "save_dump"]

log = logging.getLogger(__name__)

HURRIED = -10  # nice: weight 9548, of ordinary ones 1024


class Ejected(BackendFailed):
    """The kernel no longer runs our scheduler. kind: as `Exit.kind`."""

    def __init__(self, exit_: Exit, details: str = "dmesg") -> None:
        super().__init__(
            f"the kernel ended the sched_ext scheduler: {exit_}",
            f"all threads are with the kernel's own scheduler; {details} has the details",
        )
        self.kind = exit_.kind


@contextlib.contextmanager
def hurried() -> Iterator[None]:
    """With nine times the weight of an ordinary thread, where that is permitted: beside hogs, too.

    Not before them all: to verify the programs takes a slow CPU seconds.
    """
    before = os.getpriority(os.PRIO_PROCESS, 0)  # of the calling thread, see setpriority(2)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, min(before, HURRIED))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, before)


class Monitor(threading.Thread):
    """Gives the sign of life, and notices at once when the kernel has ended the scheduler.

    good_until_s: until when what was decided last is good (CLOCK_MONOTONIC). The life is that of
    the loop that decides: when it stands still, there is no sign of it, and the hints expire.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        period_s: float,
        ended: Callable[[Exit], None],
        good_until_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        super().__init__(name="scx heartbeat", daemon=True)
        self._scheduler, self._period_s, self._ended = scheduler, period_s, ended
        self._good_until_s = good_until_s
        self._stopped = threading.Event()

    def run(self) -> None:
        be_called(self.name)
        # Next to nothing to do, but in time, whoever has the CPUs.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        while not self._stopped.wait(self._period_s):
            if time.monotonic() < self._good_until_s():
                self._scheduler.beat()
            exit_ = self._scheduler.exit()
            if exit_ is not None:
                # At once: before 7.1 the link of a scheduler that has ended, when it goes, ends the
                # one that is attached then (scx_disable in kernel/sched/ext.c), whosever it is.
                self._scheduler.detach()
                self._ended(exit_)
                return

    def stop(self) -> None:
        self._stopped.set()
        if self is not threading.current_thread():
            self.join()


def save_dump(scheduler: Scheduler, exit_: Exit, path: Path) -> str:
    """Write what the kernel says about the end to a file; returns its name, or ""."""
    dump = scheduler.dump()
    if not dump:
        return ""
    try:
        # Names of threads are in it: for the one who started us alone.
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(fd, "w", encoding="utf-8", errors="replace") as file:
            file.write(f"{exit_}\n\n{dump}")
    except OSError as error:
        log.warning("%s: %s: the kernel's dump is lost", path, error.strerror)
        return ""
    log.warning("the kernel's dump of the scheduler's end is in %s", path)
    return str(path)
