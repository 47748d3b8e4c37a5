"""Metrics: what is known about operators, and what can be derived from it.

Terms, symbols and units are those of Sharaf et al. 2006 and of Palyvos-Giannas et al. 2021
(Lachesis, section 5.1). `PRIMITIVES` come from engines and probes; every other metric is derived,
by the first of its derivations whose inputs are at hand.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["PRIMITIVES", "Metric"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A column: its name, its unit, and what it means."""

    name: str
    unit: str
    meaning: str


def _table(*metrics: Metric) -> Mapping[str, Metric]:
    return MappingProxyType({metric.name: metric for metric in metrics})


PRIMITIVES = _table(
    Metric("tuples_in", "tuples", "input tuples processed since start (counter)"),
    Metric("tuples_out", "tuples", "output tuples emitted since start, each once (counter)"),
    Metric("cpu_time", "s", "CPU time the operator says it used since start (counter)"),
    Metric(
        "busy_time", "s", "time the operator says it was busy, waiting for CPU included (counter)"
    ),
    Metric("backpressured_time", "s", "time blocked by a full downstream queue (counter)"),
    Metric("idle_time", "s", "time without input (counter)"),
    Metric("thread_cpu_time", "s", "CPU time of the operator's threads, schedstat (counter)"),
    Metric("run_delay", "s", "time its threads waited for a CPU, schedstat (counter)"),
    Metric("queue_size", "tuples", "tuples waiting in the input queues now"),
    Metric("head_age", "s", "age in the system of the oldest waiting tuple now; 0 if none waits"),
    Metric("head_age_estimate", "s", "the same, estimated by the driver"),
    Metric("latency", "s", "end-to-end latency at the egress, as the engine reports it"),
)
