"""The published rule of Lachesis for queue sizes, in our own words, to be measured beside.

    python -m bench.lachesis TOPOLOGY PID     on Storm, until SIGTERM, which puts nice 0 back

Once a second, on means over ten seconds: who has the longest queue gets nice -20, and a factor of
1.25 between two queues, of one tuple and upwards, is a nice level (Palyvos-Giannas et al. 2021,
sections 4 and 5.1). Nothing is journalled, and what the threads had before is taken to be 0: for
threads that the measurement started.
"""

import math
import signal
import sys
import threading
from collections import deque
from contextlib import suppress

import numpy as np

from sched_ctl.drivers import Driver, Target
from sched_ctl.drivers.storm.driver import connect
from sched_ctl.kernel import sched
from sched_ctl.model.graph import Array, Index
from sched_ctl.model.normalise import NICE_STEP

__all__ = ["BEST", "PERIOD_S", "REPORTS", "WORST", "Rule", "nice_values"]

BEST, WORST = -20, 19
PERIOD_S = 1.0
REPORTS = 10


def nice_values(queues: Array) -> Index:
    """(n,) nice values for mean queue sizes (n,), in tuples; NaN = none."""
    waiting = np.log1p(np.maximum(np.nan_to_num(queues), 0.0)) / math.log(NICE_STEP)
    levels = BEST + waiting.max(initial=0.0) - waiting
    return np.asarray(np.rint(np.clip(levels, BEST, WORST)), dtype=np.intp)


class Rule:
    """The rule at work on one engine; `step` is due each `PERIOD_S`."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._seen: deque[Array] = deque(maxlen=REPORTS)
        self._given: dict[int, int] = {}

    def step(self) -> None:
        snapshot = self._driver.poll(PERIOD_S)
        self._seen.append(np.nan_to_num(snapshot.columns["queue_size"]))
        alike = [one for one in self._seen if len(one) == len(self._seen[-1])]
        levels = nice_values(np.mean(alike, axis=0)).tolist()
        for operator, level in zip(snapshot.topology.operators, levels, strict=True):
            for thread in operator.threads:
                if self._given.get(thread.tid) != level:
                    with suppress(ProcessLookupError):
                        sched.set_nice(thread.tid, level)
                        self._given[thread.tid] = level

    def end(self) -> None:
        for tid in self._given:
            with suppress(ProcessLookupError):
                sched.set_nice(tid, 0)
        self._driver.close()


def main() -> None:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    rule = Rule(connect(Target("storm", sys.argv[1], int(sys.argv[2]))))
    try:
        while not stop.wait(PERIOD_S):
            rule.step()
    finally:
        rule.end()


if __name__ == "__main__":
    main()
