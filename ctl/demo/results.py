"""What the phases of the demo gave, and what it adds up to."""

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from sched_ctl.config.settings import Settings
from sched_ctl.show import number, percent

__all__ = [
    "AUTO",
    "DISTURBED",
    "MEASURES",
    "OS",
    "Measure",
    "Options",
    "Phase",
    "Results",
    "sentences",
    "summary",
]

OS = "OS"
PAID = 1.05  # less is within the noise of a minute
AUTO = "auto"  # the policy that `load` would take with the backend of this machine
# A phase is called disturbed if others used more than this part of the engine's CPUs.
DISTURBED = 0.1


@dataclass(frozen=True, kw_only=True)
class Options:
    workload: str = "mixed"
    load: float = 1.2
    policy: str = AUTO
    backend: str = "auto"
    period_s: float = 0.5
    cpus: int = 1
    phases: int = 4
    phase_s: float = 6.0
    slow: bool = False
    seed: int = 1
    out: Path | None = Path("sched-ctl-demo")
    run_dir: Path = Path(Settings().run_dir)

    @property
    def delay_s(self) -> float:
        """Before tuples come. Less than what makes a query one that keeps up (metrics.backlog)."""
        return 5.0 if self.slow else 0.001

    @property
    def warm_up_s(self) -> float:
        """Of tuples that do not count: where none came before, until all of the window has some."""
        return 7.0 if self.slow else 1.0


class Distribution(msgspec.Struct):
    """As labspe reports it. histogram: (lower end of a bucket, count)."""

    mean: float
    p99: float
    p50: float = math.nan
    max: float = 0.0
    histogram: list[tuple[float, int]] = []


class Total(msgspec.Struct):
    departures: float
    latency_s: Distribution
    slowdown: Distribution


class Query(msgspec.Struct):
    name: str
    departures: float
    latency_s: Distribution


class Results(msgspec.Struct):
    throughput: float
    seconds: float
    drain_s: float  # that it worked on after the sources had stopped
    context_switches_per_s: float
    queue_mean: float
    queue_variance: float
    cpu: float
    total: Total
    queries: list[Query] = []


@dataclass
class Phase:
    """What one run gave. disturbed: part of the engine's CPUs that others used."""

    scheduler: str
    pair: int
    results: Results
    disturbed: float


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
    Measure("median latency", "ms", -1, lambda r: r.total.latency_s.p50, 1e3),
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
        "queries": _by_query(phases),
    }


def _median_of(at: int, results: Results) -> float:
    return results.queries[at].latency_s.p50


def _tail_of(at: int, results: Results) -> float:
    return results.queries[at].latency_s.p99


def _rate_of(at: int, results: Results) -> float:
    return results.queries[at].departures / (results.seconds + results.drain_s)


# What is told of a query: name, of the query's number and the results, scale
BY_QUERY: tuple[tuple[str, Callable[[int, Results], float], float], ...] = (
    ("p50_ms", _median_of, 1e3),
    ("p99_ms", _tail_of, 1e3),
    ("tuples_per_s", _rate_of, 1.0),
)


def _by_query(phases: list[Phase]) -> list[dict[str, Any]]:
    """What became of each query: medians over the phases, and the ratios' geometric means.

    tuples_per_s: until all that had come was handled, for in the end every phase handles all of it.
    """
    found = []
    for at, query in enumerate(phases[0].results.queries if phases else ()):
        row: dict[str, Any] = {"query": query.name}
        for name, of, scale in BY_QUERY:
            ratios = _ratios(phases, Measure(name, "", -1, partial(of, at)))
            row[name] = {
                "os": _median([of(at, p.results) for p in phases if p.scheduler == OS]) * scale,
                "policy": _median([of(at, p.results) for p in phases if p.scheduler != OS]) * scale,
                "ratio": math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None,
            }
        found.append(row)
    return found


def _median(values: list[float]) -> float:
    return statistics.median(values) if values else math.nan


def _loss(row: Mapping[str, Any]) -> float:
    """By which factor a query is worse off: in its median, or in its throughput."""
    return max(float(row["p50_ms"]["ratio"]), 1 / float(row["tuples_per_s"]["ratio"]))


def sentences(queries: list[dict[str, Any]]) -> list[str]:
    """In words: who gained most, and who paid. queries: as in `summary`."""
    told = [row for row in queries if row["p50_ms"]["ratio"] and row["tuples_per_s"]["ratio"]]
    if not told:
        return []
    best = min(told, key=lambda row: float(row["p50_ms"]["ratio"]))
    half, tail = best["p50_ms"], best["p99_ms"]
    found = [
        f"{best['query']}: half of its tuples take {number(half['policy'])} ms or less instead of "
        f"{number(half['os'])}; one in a hundred takes more than {number(tail['policy'])} ms "
        f"instead of {number(tail['os'])}."
    ]
    for payer in sorted((row for row in told if row is not best), key=_loss)[-1:]:
        found.append(
            ("Who pays: " if _loss(payer) > PAID else "Nobody pays; ")
            + f"{payer['query']}: {percent(payer['tuples_per_s']['ratio'])} of the tuples that "
            "it handles under the OS, and half of them take "
            f"{number(payer['p50_ms']['ratio'])} times as long."
        )
    return found


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
