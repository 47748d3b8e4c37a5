"""When tuples come: Poisson, constant, On/Off, or a trace.

Everything is drawn ahead of the simulation and independent of it, so each policy meets the same
arrivals with the same seed.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from sched_ctl.model.graph import Array
from sched_ctl.workloads.workload import Arrivals, trace_phases

__all__ = ["arrival_times"]

Generator = np.random.Generator


def arrival_times(
    arrivals: Arrivals, rate: float, duration_s: float, generator: Generator, folder: Path
) -> Array:
    """Ascending times in [0, duration_s) of a stream with this mean rate (tuples/s).

    A trace is stretched to the rate and repeated as often as it takes. folder: where a trace's
    relative file name is looked up.
    """
    if rate <= 0 or duration_s <= 0:
        return np.empty(0)
    if arrivals.kind == "constant":
        # A random phase: sources of equal rate do not all fire at once
        return np.asarray((np.arange(np.ceil(duration_s * rate)) + generator.random()) / rate)
    if arrivals.kind == "trace":
        return _trace(np.array(trace_phases(folder / arrivals.trace)), rate, duration_s)
    if arrivals.kind == "onoff":
        return _on_off(arrivals, rate, duration_s, generator)
    return _poisson(rate, duration_s, generator)


def _poisson(rate: float, duration_s: float, generator: Generator) -> Array:
    count = generator.poisson(rate * duration_s)
    return np.sort(generator.random(count) * duration_s)


def _trace(phases: Array, rate: float, duration_s: float) -> Array:
    """As the lab engine has them (`engine/sources.c`)."""
    length_s = len(phases) / rate
    copies = np.arange(np.ceil(duration_s / length_s))
    whole: Array = length_s * (copies[:, None] + phases).ravel()
    return whole[whole < duration_s]


def _on_off(arrivals: Arrivals, rate: float, duration_s: float, generator: Generator) -> Array:
    """Poisson arrivals in the On periods, so that the mean over On and Off is `rate`."""
    lengths = _lengths(arrivals.shape, generator)
    cycle = arrivals.on_s + arrivals.off_s
    n = int(np.ceil(2 * duration_s / cycle)) + 16
    on, off = lengths(arrivals.on_s, n), lengths(arrivals.off_s, n)
    while on.sum() + off.sum() < 2 * duration_s:  # heavy tails come late
        on = np.concatenate([on, lengths(arrivals.on_s, n)])
        off = np.concatenate([off, lengths(arrivals.off_s, n)])
    end = np.cumsum(on + off)
    begin = end - on - off - generator.random() * duration_s  # a stationary start, nearly
    first, last = np.clip(begin, 0, duration_s), np.clip(begin + on, 0, duration_s)
    # Poisson over the time that is On, put end to end
    total = (last - first).sum()
    count = generator.poisson(rate * cycle / arrivals.on_s * total)
    place = np.sort(generator.random(count) * total)
    before = np.cumsum(last - first)
    period = np.minimum(np.searchsorted(before, place, side="right"), len(before) - 1)
    return np.asarray(last[period] - (before[period] - place))


def _lengths(shape: float, generator: Generator) -> Callable[[float, int], Array]:
    """Draws of period lengths with a given mean: Pareto (self-similar traffic), or exponential."""
    if shape > 0:
        return lambda mean, n: mean * (shape - 1) / shape * (1 + generator.pareto(shape, n))
    return lambda mean, n: generator.exponential(mean, n)
