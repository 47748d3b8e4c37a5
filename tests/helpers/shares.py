"""What stages need, from made-up shares of time."""

from collections.abc import Sequence

import numpy as np

from plans import array
from sched_ctl.adapt.parallelism import Wanted, wanted
from sched_ctl.metrics.verdicts import assess
from sched_ctl.metrics.window import Window
from sched_ctl.model.topology import (
    Edge,
    LogicalOperator,
    PhysicalOperator,
    Snapshot,
    Thread,
    Topology,
)

__all__ = ["of", "replicated"]

S = 4.0


def of(
    topology: Topology,
    taken: Sequence[float],
    sent: Sequence[float],
    run: Sequence[float],
    full: Sequence[float] | None = None,
    wait: Sequence[float] | None = None,
    cpu: str = "thread_cpu_time",
) -> Wanted:
    """From rates in tuples/s and shares of the time; what is left was without input.

    cpu: the counter that tells what ran, of all threads of an operator.
    """
    none = [0.0] * len(taken)
    full, wait = full or none, wait or none
    idle = [1.0 - sum(shares) for shares in zip(run, full, wait, strict=True)]
    rates = {
        "tuples_in": taken,
        "tuples_out": sent,
        cpu: run,
        "run_delay": wait,
        "backpressured_time": full,
        "idle_time": idle,
    }

    def at(time_s: float) -> Snapshot:
        return Snapshot(
            topology, time_s, {k: array(*(100 + x * time_s for x in v)) for k, v in rates.items()}
        )

    window = Window(at(10.0 + S), at(10.0))
    return wanted(window, assess(window))


def replicated(*counts: int) -> Topology:
    """A chain a, b, c ... of so many replicas each, every one feeding all of the next."""
    names = "abcdef"
    operators = [
        PhysicalOperator("q", f"{name}.{i}", (name,), i, count, (Thread(1, 100 * at + i + 1, 7),))
        for at, (name, count) in enumerate(zip(names, counts, strict=False))
        for i in range(count)
    ]
    rows = np.cumsum([0, *counts]).tolist()
    edges = [
        Edge(source, target, 1.0 / counts[at + 1])
        for at in range(len(counts) - 1)
        for source in range(rows[at], rows[at + 1])
        for target in range(rows[at + 1], rows[at + 2])
    ]
    logical = tuple(LogicalOperator("q", name) for name in names[: len(counts)])
    return Topology("lab:1", tuple(operators), tuple(edges), logical, ())
