"""Who sleeps with work in hand at a lock is told from who waits for I/O."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from plans import array, plan
from sched_ctl.metrics.verdicts import assess, judged
from sched_ctl.metrics.window import Window
from sched_ctl.model.topology import Snapshot, Thread
from sched_ctl.probes.clocks import Clocks
from sched_ctl.probes.limits import Limits
from sched_ctl.probes.sleeps import Place, Places
from sched_ctl.probes.waits import WaitTimes
from sched_ctl.service import bottlenecks
from sched_ctl.service.bottlenecks import Found


@dataclass
class Looked:
    """An engine whose threads were found asleep at such places."""

    shares: dict[str, float]
    holder: int | None = None  # thread that is never found at the lock
    name: str = "e"
    said: dict[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    clocks: Clocks = field(default_factory=Clocks)

    @property
    def sleeps(self) -> "Looked":
        return self

    def lately(self, threads: Iterable[Thread]) -> Places:
        told = [{"file": 1.0} if t.tid == self.holder else self.shares for t in threads]
        total = {what: sum(one.get(what, 0.0) for one in told) for what in ("lock", "file")}
        shares = tuple((Place(what), share / len(told)) for what, share in total.items())
        return Places(100 * len(told), shares)


def found(
    lock: float,
    idle: float | None = 0.05,
    held: bool = False,
    pressure: float = 0.0,
    memory: dict[str, float] | None = None,
    room: float | None = None,
) -> Found:
    """Of an operator between two that keep up, asleep for 85%; a part of that at a lock.

    held: it is the first of three replicas, of which it has the lock all the time. pressure: on
    memory, of whoever. memory: columns that tell of it, as shares of the time. room: tuples that a
    queue can hold, of which its own has 9.
    """
    topology = plan({"q": ["a", "b", "c"]})
    if held:
        topology = plan({"q": ["a", "b", "c", "b2", "b3"]}, [(0, 1), (0, 3), (0, 4), (1, 2)])
        a, b, c, *more = topology.operators
        siblings = [replace(b, name=o.name, threads=o.threads) for o in more]
        topology = replace(topology, operators=(a, b, c, *siblings))

    def at(time_s: float) -> Snapshot:
        n = len(topology.operators)
        columns = {
            "thread_cpu_time": array(*[0.1 * time_s] * n),
            "run_delay": array(*[0] * n),
            "tuples_in": array(*[100 * time_s] * n),
            "queue_size": array(0, 9, 0, *[9] * (n - 3)),
        }
        for name, share in (memory or {}).items():
            columns[name] = array(*[share * time_s] * n)
        if room is not None:
            columns["queue_capacity"] = array(*[room] * n)
        if idle is not None:
            shares = (0.9, idle, 0.9, *[idle + 0.01] * (n - 3))
            columns["idle_time"] = array(*(share * time_s for share in shares))
        return Snapshot(topology, time_s, columns)

    window = Window(at(14.0), at(10.0))
    places = {"lock": lock, "file": 1 - lock}
    engine: Any = Looked(places, topology.operators[1].threads[0].tid if held else None)
    return Found(engine, window, assess(window, memory_pressure=pressure), WaitTimes())


@pytest.mark.parametrize(
    ("lock", "idle", "room", "word"),
    [
        (0.9, 0.05, None, "lock-bound"),
        (0.2, 0.05, None, "io-bound"),
        (0.9, None, None, "io-bound"),  # it may wait for room
        (0.9, None, 64, "lock-bound"),
        (0.2, None, 64, "io-bound"),
    ],
)
def test_most_of_its_sleep_decides(
    lock: float, idle: float | None, room: float | None, word: str
) -> None:
    one = found(lock, idle, room=room)
    assert bottlenecks.operator(one, 1)["verdict"] == word
    [query] = bottlenecks.bottlenecks([one])
    assert (query["verdict"], query["operator"]) == (word, "q/b")
    assert ("more replicas would wait" in query["advice"]) == (word == "lock-bound")
    assert judged(one.assessment, np.arange(3)).verdict.word == "io-bound"


def test_a_query_is_held_by_a_lock_that_one_replica_has_all_the_time() -> None:
    one = found(0.9, held=True)
    assert bottlenecks.operator(one, 1)["verdict"] == "io-bound"
    [query] = bottlenecks.bottlenecks([one])
    assert (query["verdict"], query["operator"]) == ("lock-bound", "q/b")


def test_of_nobody_who_sleeps_now_no_lock_is_looked_for() -> None:
    """The last seconds say that it keeps up, more than these that it slept."""
    before, now = found(0.9), found(0.9, idle=0.9)
    [query] = bottlenecks.bottlenecks([replace(now, longer=(before.assessment,))])
    assert (query["verdict"], query["operator"]) == ("io-bound", "q/b")
    assert [one["verdict"] for one in query["horizons"]] == ["keeps-up", "io-bound"]


@pytest.mark.parametrize(
    ("lock", "memory", "word"),
    [
        (0.9, {}, "lock-bound"),  # the pressure is somebody else's
        (0.2, {}, "memory-bound"),  # of pages of files, which are read anew
        (0.9, {"memory_delay": 0.8}, "memory-bound"),
        (0.9, {"memory_delay": 0.01}, "lock-bound"),
        (0.9, {"gc_time": 0.8}, "memory-bound"),  # it stands still at a lock of its JVM's
    ],
)
def test_pressure_on_memory_is_no_reason_to_sleep_elsewhere(
    lock: float, memory: dict[str, float], word: str
) -> None:
    one = found(lock, pressure=0.9, memory=memory)
    assert bottlenecks.operator(one, 1)["verdict"] == word
    [query] = bottlenecks.bottlenecks([one])
    assert (query["verdict"], query["operator"]) == (word, "q/b")
