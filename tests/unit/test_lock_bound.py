"""Who sleeps with work in hand at a lock is told from who waits for I/O."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from plans import array, plan
from sched_ctl.metrics.verdicts import assess, judged
from sched_ctl.metrics.window import Window
from sched_ctl.model.topology import Snapshot
from sched_ctl.probes.sleeps import Place, Places
from sched_ctl.probes.waits import WaitTimes
from sched_ctl.service import bottlenecks
from sched_ctl.service.bottlenecks import Found


@dataclass
class Looked:
    """An engine whose threads were found asleep at such places."""

    shares: tuple[tuple[Place, float], ...]
    name: str = "e"
    said: dict[str, Any] = field(default_factory=dict)

    @property
    def sleeps(self) -> "Looked":
        return self

    def lately(self, _: object) -> Places:
        return Places(100, self.shares)


def found(lock: float, idle: float | None = 0.05) -> Found:
    """Of an operator between two that keep up, asleep for 85%; a part of that at a lock."""
    places = ((Place("lock"), lock), (Place("file"), 1 - lock))
    topology = plan({"q": ["a", "b", "c"]})

    def at(time_s: float) -> Snapshot:
        columns = {
            "thread_cpu_time": array(*[0.1 * time_s] * 3),
            "run_delay": array(0, 0, 0),
            "tuples_in": array(*[100 * time_s] * 3),
            "queue_size": array(0, 9, 0),
        }
        if idle is not None:
            columns["idle_time"] = array(0.9 * time_s, idle * time_s, 0.9 * time_s)
        return Snapshot(topology, time_s, columns)

    window = Window(at(14.0), at(10.0))
    return Found(Looked(places), window, assess(window), WaitTimes())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lock", "idle", "word"),
    [(0.9, 0.05, "lock-bound"), (0.2, 0.05, "io-bound"), (0.9, None, "io-bound")],
)
def test_most_of_its_sleep_decides(lock: float, idle: float | None, word: str) -> None:
    one = found(lock, idle)
    assert bottlenecks.operator(one, 1)["verdict"] == word
    [query] = bottlenecks.bottlenecks([one])
    assert (query["verdict"], query["operator"]) == (word, "q/b")
    assert ("more replicas would wait" in query["advice"]) == (word == "lock-bound")
    assert judged(one.assessment, np.arange(3)).verdict.word == "io-bound"
