"""When the loop that decides stands still, what it decided last fades.

A sample tells of the moment it was taken in. A loop that hangs, or gets no CPU, would leave its
last order in force for as long as the process lives. So a thread of its own, which needs next to
nothing and goes first, puts the system's own order back when no pass has ended in time; the journal
has that like any other change. The loop brings its order into force again when it goes on. The BPF
scheduler needs no help: it forgets hints whose sign of life is old, and that is this loop's.

What it cannot do: interrupt a backend that hangs while it changes the machine.
"""

import contextlib
import logging
import os
import threading

from sched_ctl.backends.in_use import Backends
from sched_ctl.kernel.threadname import be_called

__all__ = ["LATE_PERIODS", "LATE_S", "Standstill"]

log = logging.getLogger(__name__)

LATE_S = 10.0  # the loop may be so late,
LATE_PERIODS = 10  # or so many periods, whichever is longer
LOOK_S = 0.5


class Standstill(threading.Thread):
    """Looks after the backends in use until it is stopped."""

    def __init__(self, backends: Backends, look_s: float = LOOK_S) -> None:
        super().__init__(name="standstill", daemon=True)
        self._backends, self._look_s = backends, look_s
        self._stopped = threading.Event()

    def run(self) -> None:
        be_called(self.name)
        # In time, whoever has the CPUs: beside them is where it is needed.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        before = False
        while not self._stopped.wait(self._look_s):
            # Two looks: a process that was stopped and goes on is late at the first one only.
            late = self._backends.late
            if late and before:
                self._put_back()
            before = late

    def _put_back(self) -> None:
        problems = self._backends.lapse(self._look_s)
        if problems is None:
            return
        log.warning(
            "the controller's loop stands still: threads have the system's own order until it "
            "goes on"
        )
        for problem in problems:
            log.warning("not put back: %s", problem)

    def stop(self) -> None:
        self._stopped.set()
        self.join()
