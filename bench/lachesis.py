"""Published rules for queue sizes, in our own words, to be measured beside.

    python -m bench.lachesis [--real-time] storm TOPOLOGY PID      # of its worker
    python -m bench.lachesis [--real-time] flink HOST:PORT PID      # of its JobManager
    python -m bench.lachesis [--real-time] liebre PID PID
    python -m bench.lachesis [--real-time] lab PID PID

Until SIGTERM, which makes the threads ordinary again, with nice 0.

*Lachesis.* Once a second, on means over ten seconds: who has the longest queue gets nice -20, and a
factor of 1.25 between two queues, of one tuple and upwards, is a nice level (Palyvos-Giannas et al.
2021, sections 4 and 5.1).

*Real-time threads by actual load* (Frasca et al., CF 2023, and its published settings). Once a
second, on the newest lengths: all operators are SCHED_RR, the longest queue has priority 99, none
has 1, and in between it goes by the length.

Nothing is journalled, and what the threads had before is taken to be ordinary: for threads that the
measurement started.
"""

import argparse
import math
import signal
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

import numpy as np

from sched_ctl.drivers import Driver, Target
from sched_ctl.drivers.flink import driver as flink
from sched_ctl.drivers.lab import driver as lab
from sched_ctl.drivers.liebre import driver as liebre
from sched_ctl.drivers.storm import driver as storm
from sched_ctl.errors import EngineError
from sched_ctl.kernel import sched
from sched_ctl.model.graph import Array, Index
from sched_ctl.model.normalise import NICE_STEP

__all__ = [
    "BEST",
    "HIGHEST",
    "LOWEST",
    "PERIOD_S",
    "REPORTS",
    "WORST",
    "Rule",
    "nice_values",
    "real_time_priorities",
]

BEST, WORST = -20, 19
LOWEST, HIGHEST = 1, 99  # real-time priorities
PERIOD_S = 1.0
REPORTS = 10


def nice_values(queues: Array) -> Index:
    """(n,) nice values for mean queue sizes (n,), in tuples; NaN = none."""
    waiting = np.log1p(np.maximum(np.nan_to_num(queues), 0.0)) / math.log(NICE_STEP)
    levels = BEST + waiting.max(initial=0.0) - waiting
    return np.asarray(np.rint(np.clip(levels, BEST, WORST)), dtype=np.intp)


def real_time_priorities(queues: Array) -> Index:
    """(n,) priorities for queue sizes (n,), in tuples; NaN = none. All alike: the lowest."""
    waiting = np.maximum(np.nan_to_num(queues), 0.0)
    least = waiting.min(initial=np.inf)
    span = waiting.max(initial=0.0) - least
    place = (waiting - least) / span if span > 0 else np.zeros(len(waiting))
    return np.asarray(np.rint(LOWEST + place * (HIGHEST - LOWEST)), dtype=np.intp)


class Rule:
    """A rule at work on one engine; `step` is due each `PERIOD_S`."""

    def __init__(self, driver: Driver, *, real_time: bool = False) -> None:
        self._driver = driver
        self._real_time = real_time
        self._seen: deque[Array] = deque(maxlen=1 if real_time else REPORTS)
        self._given: dict[int, int] = {}

    def step(self) -> None:
        snapshot = self._driver.poll(PERIOD_S)
        self._seen.append(np.nan_to_num(snapshot.columns["queue_size"]))
        alike = [one for one in self._seen if len(one) == len(self._seen[-1])]
        mean = np.mean(alike, axis=0)
        levels = (real_time_priorities(mean) if self._real_time else nice_values(mean)).tolist()
        for operator, level in zip(snapshot.topology.operators, levels, strict=True):
            for thread in operator.threads:
                if self._given.get(thread.tid) != level:
                    with suppress(ProcessLookupError):
                        self._set(thread.tid, level)
                        self._given[thread.tid] = level

    def _set(self, tid: int, level: int) -> None:
        if self._real_time:
            sched.set_policy(tid, sched.RR, reset_on_fork=True, priority=level)
        else:
            sched.set_nice(tid, level)

    def end(self) -> None:
        for tid in self._given:
            with suppress(ProcessLookupError):
                if self._real_time:
                    sched.set_policy(tid, sched.OTHER)
                else:
                    sched.set_nice(tid, 0)
        self._driver.close()


CONNECT: Mapping[str, Callable[[Target], Driver]] = {
    "storm": storm.connect,
    "flink": flink.connect,
    "liebre": liebre.connect,
    "lab": lab.connect,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("engine", choices=CONNECT)
    parser.add_argument("address")
    parser.add_argument("pid", type=int)
    parser.add_argument("--real-time", action="store_true", help="the rule of CF 2023")
    asked = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    target = Target(asked.engine, asked.address, asked.pid)
    rule = Rule(CONNECT[asked.engine](target), real_time=asked.real_time)
    try:
        while not stop.wait(PERIOD_S):
            with suppress(EngineError):  # it was starved, or answered late
                rule.step()
    finally:
        rule.end()


if __name__ == "__main__":
    main()
