"""Medians by queues alone beside those of the tuples themselves, in the simulator."""

from dataclasses import replace

import numpy as np
import pytest
from closed import OS, Loop, with_times

from sched_ctl.adapt.effect import LITTLE, begin, effects, seen
from sched_ctl.model.targets import Target
from sched_ctl.sim import of_workload
from sched_ctl.sim.result import quantile
from sched_ctl.workloads.workload import parse

FORK = """
workload fork base_cost_us=200
query fork
op source cost=0.5
op heavy cost=5
op light cost=1
op sink cost=0.5
edge source heavy share=0.3
edge source light share=0.7
edge heavy sink
edge light sink
source source
"""
PHASE_S = 7
LEAST_S = 5e-3  # a tuple also is worked on for a while, which queues do not tell


def apart(load: float, policy: str) -> float:
    """Mean over phases of the logarithm of what is told over what was."""
    node = of_workload(parse(FORK), 1.0, base_cost_s=2e-4)
    node = replace(node, targets=(Target(queries=("fork",), latency="1h"),))
    loop = Loop(with_times(node, 160.0, 5, lambda _: load), 160.0, 5)
    found, span = [], None
    for second in range(160):
        told = replace(loop.step(policy).now, latencies=None)
        span = seen(span, told)
        if span.samples == PHASE_S:
            [effect] = effects(span)
            assert effect.source == LITTLE
            was = loop.counts[second + 1].buckets - loop.counts[second + 1 - PHASE_S].buckets
            half_s = quantile(was[0].astype(np.int64), 0.5)
            found.append(np.log(max(effect.p50_s, LEAST_S) / max(half_s, LEAST_S)))
            span = begin(told)
    loop.close()
    return float(np.mean(found[2:]))


@pytest.mark.parametrize(("load", "policy"), [(0.95, OS), (0.95, "qs"), (1.1, OS), (1.1, "qs")])
def test_the_half_by_queues_is_that_of_the_tuples(load: float, policy: str) -> None:
    """Within a quarter; at 1.1 the one order has hundreds of times the other's."""
    assert abs(apart(load, policy)) < np.log(1.25)
