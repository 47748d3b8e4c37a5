"""What the phases of the demo gave, and what it adds up to."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from sched_ctl.config.settings import Settings

__all__ = ["DISTURBED", "MEASURES", "OS", "Measure", "Options", "Phase", "Results", "summary"]

OS = "OS"
# A phase is called disturbed if others used more than this part of the engine's CPUs.
DISTURBED = 0.1


@dataclass(frozen=True, kw_only=True)
class Options:
    workload: str = "syn"
    load: float = 0.9
    policy: str = "hr"
    backend: str = "auto"
    period_s: float = 0.5
    cpus: int = 1
    phases: int = 4
    phase_s: float = 6.0
    seed: int = 1
    out: Path | None = Path("sched-ctl-demo")
    run_dir: Path = Path(Settings().run_dir)


class Distribution(msgspec.Struct):
    """As labspe reports it. histogram: (lower end of a bucket, count)."""

    mean: float
    p99: float
    max: float = 0.0
    histogram: list[tuple[float, int]] = []


class Total(msgspec.Struct):
    departures: float
    latency_s: Distribution
    slowdown: Distribution


class Results(msgspec.Struct):
    throughput: float
    context_switches_per_s: float
    queue_mean: float
    queue_variance: float
    cpu: float
    total: Total


@dataclass
class Phase:
    """What one run gave. times_s, queued: (k,) samples of the tuples in all queues."""

    scheduler: str
    pair: int
    results: Results
    disturbed: float
    times_s: list[float] = field(default_factory=list)
    queued: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Measure:
    """A line of the table. better: +1 if more is better, -1 if less is."""

    name: str
    unit: str
    better: int
    of: Any  # function from Results to a float
    scale: float = 1.0


MEASURES = (
    Measure("throughput", "tuples/s", +1, lambda r: r.throughput),
    Measure("mean latency", "ms", -1, lambda r: r.total.latency_s.mean, 1e3),
    Measure("p99 latency", "ms", -1, lambda r: r.total.latency_s.p99, 1e3),
    Measure("maximum latency", "ms", -1, lambda r: r.total.latency_s.max, 1e3),
    Measure("mean slowdown", "", -1, lambda r: r.total.slowdown.mean),
    Measure("maximum slowdown", "", -1, lambda r: r.total.slowdown.max),
    Measure("tuples waiting", "tuples", -1, lambda r: r.queue_mean),
    Measure("variance of queue sizes", "tuples²", -1, lambda r: r.queue_variance),
    Measure("context switches", "1/s", -1, lambda r: r.context_switches_per_s),
)


def _ratios(phases: list[Phase], measure: Measure) -> list[float]:
    """Policy over OS, for each pair."""
    found = []
    for pair in sorted({phase.pair for phase in phases}):
        of = {p.scheduler == OS: measure.of(p.results) for p in phases if p.pair == pair}
        if of[True] > 0 and of[False] > 0:
            found.append(of[False] / of[True])
    return found


def summary(options: Options, phases: list[Phase], backend: str) -> dict[str, Any]:
    """The table of measures as plain data with stable keys."""
    rows = []
    for measure in MEASURES:
        ours = [measure.of(p.results) for p in phases if p.scheduler != OS]
        theirs = [measure.of(p.results) for p in phases if p.scheduler == OS]
        ratios = _ratios(phases, measure)
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None
        rows.append(
            {
                "measure": measure.name,
                "unit": measure.unit,
                "os": sum(theirs) / len(theirs) * measure.scale,
                "policy": sum(ours) / len(ours) * measure.scale,
                "ratio": mean,
                "ratio_min": min(ratios, default=None),
                "ratio_max": max(ratios, default=None),
                "verdict": _verdict(ratios, mean, measure.better),
            }
        )
    return {
        "workload": options.workload,
        "load": options.load,
        "policy": options.policy,
        "backend": backend,
        "cpus": options.cpus,
        "period_s": options.period_s,
        "phase_s": options.phase_s,
        "phases": options.phases,
        "seed": options.seed,
        "disturbed_phases": sum(phase.disturbed > DISTURBED for phase in phases),
        "measures": rows,
    }


def _verdict(ratios: list[float], mean: float | None, better: int) -> str:
    """Better or worse only if all pairs agree, and by more than 2%."""
    if mean is None:
        return "unknown"
    if abs(math.log(mean)) < 0.02:
        return "same"
    signs = {(ratio > 1) == (better > 0) for ratio in ratios}
    if len(signs) > 1:
        return "unclear"
    return "better" if signs == {True} else "worse"
