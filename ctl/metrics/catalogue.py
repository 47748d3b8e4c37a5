"""Metrics: what is known about operators, and what can be derived from it.

Terms, symbols and units are those of Sharaf et al. 2006 and of Palyvos-Giannas et al. 2021
(Lachesis, section 5.1). `PRIMITIVES` come from engines and probes; every other metric is derived,
by the first of its derivations whose inputs are at hand. What an engine provides itself is always
taken from there (Lachesis, algorithm 3).

Which derivation is used is decided once for each policy and engine, by `resolve`, before anything
is applied; `evaluate` then computes the columns each period.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import numpy as np

from sched_ctl.errors import UserError
from sched_ctl.metrics import formulas, verdicts
from sched_ctl.metrics.levels import to_logical
from sched_ctl.metrics.window import Window, clean, divide
from sched_ctl.model.graph import Array
from sched_ctl.model.policy import Level

__all__ = [
    "DERIVATIONS",
    "METRICS",
    "PRIMITIVES",
    "Derivation",
    "Metric",
    "MissingMetric",
    "Resolution",
    "Step",
    "Window",
    "evaluate",
    "in_flight",
    "resolve",
]

SHORT_S = 1.0  # over less than that, what comes to a queue is not told from a burst


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
    Metric("cpu_steal", "s", "time that the hypervisor had this machine's CPUs (counter)"),
    Metric("cpu_busy", "s", "time that they ran something (counter)"),
    Metric("io_delay", "s", "time its threads waited for block I/O, taskstats (counter)"),
    Metric("memory_delay", "s", "time its threads waited for memory, taskstats (counter)"),
    Metric("gc_time", "s", "time that its JVM stood still for its garbage collector (counter)"),
    Metric("irq_delay", "s", "time that interrupts took from its threads, taskstats (counter)"),
    Metric("backlog", "bytes", "bytes waiting in the sockets of an ingress now, sock_diag"),
    Metric("queue_size", "tuples", "tuples waiting in the input queues now"),
    Metric("queue_capacity", "tuples", "tuples that its input queue holds at most"),
    Metric("head_age", "s", "age in the system of the oldest waiting tuple now; 0 if none waits"),
    Metric("head_age_estimate", "s", "the same, estimated by the driver"),
    Metric("wait_estimate", "s", "time that tuples spend in its own queue, by the driver"),
    Metric(
        "queue_size_estimate", "1", "larger where more waits, in no unit, estimated by the driver"
    ),
    Metric("latency", "s", "end-to-end latency at the egress, as the engine reports it"),
    Metric("window", "s", "length of the time window of a join; 0 for other operators"),
    Metric("tuple_size", "bytes", "mean size of an input tuple"),
)

METRICS = MappingProxyType(
    dict(PRIMITIVES)
    | dict(
        _table(
            Metric("arrival_age", "s", "age of tuples that come to it from another node, else 0"),
            Metric("arrival_rate", "tuples/s", "input tuples that come a second"),
            Metric("input_rate", "tuples/s", "input tuples processed a second"),
            Metric("output_rate", "tuples/s", "output tuples emitted a second"),
            Metric("cost", "s", "mean CPU time to process one input tuple (c)"),
            Metric("selectivity", "1", "output tuples per input tuple (s)"),
            Metric("global_selectivity", "1", "egress tuples per tuple entering here (S)"),
            Metric("global_cost", "s", "expected CPU time from here through the egress (C)"),
            Metric("path_cost", "s", "CPU time along the costliest path from here to the egress"),
            Metric("ideal_time", "s", "CPU time of a tuple that survives every filter (T)"),
            Metric("utilisation", "1", "share of time busy or with work waiting (rho)"),
            Metric("busy", "1", "share of time the operator says it was busy"),
            Metric("backpressured", "1", "share of time blocked by a full downstream queue"),
            Metric("idle", "1", "share of time without input"),
            Metric("cpu_use", "CPUs", "CPUs that the operator used"),
            Metric("cpu_wait", "1", "time its threads waited for a CPU, per second"),
            Metric("verdict", "", "what holds it back, a code of `metrics.verdicts.Verdict`"),
        )
    )
)


# Those that tell of now; all others are counters, or never change.
PRESENT = frozenset(
    {
        "backlog",
        "queue_size",
        "queue_size_estimate",
        "head_age",
        "head_age_estimate",
        "wait_estimate",
        "arrival_age",
        "arrival_rate",
        "latency",
        "verdict",
    }
)


class MissingMetric(UserError):
    """A policy needs a metric that this engine can neither give nor be made to give."""


Values = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Derivation:
    """One way to compute a metric.

    needs: the metrics it reads. how: in words, with what it is worth, for `explain`.
    compute: function of the window and of the columns of `needs`, to an (n,) array.
    estimate: True if it is a guess rather than a measurement.
    """

    needs: tuple[str, ...]
    how: str
    compute: Callable[[Window, Values], Array]
    estimate: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """How one metric is got. derivation: None if the engine provides it."""

    metric: str
    derivation: Derivation | None


@dataclass(frozen=True)
class Resolution:
    """How the metrics of a policy are got from an engine: steps in an order that can be run.

    derived: metrics that the driver works out from what the engine reports, and how, in words.
    """

    policy: str
    engine: str
    needs: frozenset[str]
    steps: tuple[Step, ...]
    derived: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @cached_property
    def averaged(self) -> frozenset[str]:
        """Metrics that stand on growth over a window alone, not on how it is now. A driver's own
        are no such ones, apart from what it works out that is no primitive, see `drivers`.
        """
        counted = PRIMITIVES.keys() - PRESENT
        worked_out = self.derived.keys() - PRIMITIVES.keys() - PRESENT
        found = {s.metric for s in self.steps if s.derivation is None and s.metric in worked_out}
        counted |= found
        for step in self.steps:
            if step.derivation is not None and step.metric not in PRESENT:
                inputs = [self.by_metric[need] for need in step.derivation.needs]
                if all(i.metric in (counted if i.derivation is None else found) for i in inputs):
                    found.add(step.metric)
        return frozenset(found)

    def goes_by(self, metric: str, needs: Iterable[str]) -> bool:
        """Whether one of these metrics is this one, or worked out from it."""
        todo = [*needs]
        while todo:
            step = self.by_metric.get(todo.pop())
            if step is not None and step.metric == metric:
                return True
            if step is not None and step.derivation is not None:
                todo += step.derivation.needs
        return False

    @cached_property
    def by_metric(self) -> Mapping[str, Step]:
        return {step.metric: step for step in self.steps}

    def how(self, metric: str) -> str:
        """How a metric is got, in words for `explain`."""
        derivation = self.by_metric[metric].derivation
        if derivation is not None:
            return derivation.how
        return self.derived.get(metric, "reported by the engine")

    def is_estimate(self, metric: str) -> bool:
        """True if the metric, or anything it stands on, is a guess."""
        derivation = self.by_metric[metric].derivation
        if derivation is None:
            return metric.endswith("_estimate")
        return derivation.estimate or any(map(self.is_estimate, derivation.needs))


def _ratio(counter: str) -> Callable[[Window, Values], Array]:
    return lambda window, _: window.ratio(counter, "tuples_in")


def _rate(counter: str) -> Callable[[Window, Values], Array]:
    return lambda window, _: window.rate(counter)


def in_flight(window: Window) -> Array:
    """What upstream emitted and this operator did not take in yet; NaN for an ingress."""
    graph = window.graph
    sent = graph.share * window.mean("tuples_out")[graph.source]
    arrived = np.bincount(graph.target, weights=sent, minlength=graph.n)
    waiting = np.maximum(arrived - window.mean("tuples_in"), 0.0)
    return np.where(graph.ingress, np.nan, waiting)


def _littles_law(window: Window, values: Values) -> Array:
    """W = Q / rate in each queue, added up from the ingress down the slowest way.

    The oldest tuple here came in Q / rate ago, and had then the age of upstream's oldest. A queue
    that waits while nothing is taken from it is taken to be as old as the window is long. An
    ingress whose queue is outside of the engine adds nothing, and so does another node of which
    nothing is known.
    """
    queue, rate = values["queue_size"], values["input_rate"]
    here = np.where(rate > 0, divide(queue, rate), np.where(rate == 0, window.seconds, np.nan))
    here = np.where(queue == 0, 0.0, here)
    here = np.where(window.graph.ingress & np.isnan(queue), 0.0, here)
    here = np.where(window.away & np.isnan(here), 0.0, here)
    age = formulas.costliest(window.graph.reversed, here)
    return np.where(queue == 0, 0.0, np.where(np.isnan(queue), np.nan, age))


def _thread_cost(window: Window, _: Values) -> Array:
    """schedstat knows no thread of another node: there it is the busy time that the engine tells,
    which holds waits for a CPU, and so is too high rather than unknown. Nor is a tuple free where
    its thread has not run since we look.
    """
    cost = window.ratio("thread_cpu_time", "tuples_in")
    cost = np.where(cost > 0, cost, np.nan)
    if not window.away.any():
        return cost
    return np.where(window.away, window.ratio("busy_time", "tuples_in"), cost)


def _busy(window: Window, _: Values) -> Array:
    """Of a logical operator, of its replicas: the counter is their sum, since costs need that."""
    if window.level is Level.PHYSICAL:
        return window.rate("busy_time")
    of_replicas = Window(window.now, window.then, recent=window.recent).rate("busy_time")
    return to_logical(window.now.topology, "busy", {"busy": of_replicas})


def _at_once(window: Window) -> Array:
    """(n,) threads of each operator that can run at the same time: no more than there are CPUs."""
    return np.clip(window.threads, 1.0, os.cpu_count() or 1)


def _arrival_age(window: Window, values: Values) -> Array:
    """Nothing comes from an operator that takes nothing in: its queue makes nothing older."""
    if not window.away.any():
        return np.zeros(len(window.operators))
    wait = values.get("wait_estimate")
    if wait is None:
        wait = divide(values["queue_size"], values["input_rate"])
    return formulas.arrival_age(window.graph, wait, window.away)


def _arrival_rate(window: Window, _: Values) -> Array:
    if window.seconds < SHORT_S:
        return np.full(len(window.operators), np.nan)  # of a burst
    return np.maximum(window.rate("tuples_in") + window.change("queue_size"), 0.0)


def _through(window: Window, values: Values) -> Array:
    return formulas.join_through(
        window.graph, values["selectivity"], values["window"], values["output_rate"]
    )


# metric -> how it can be had, best first. What the engine itself provides goes before all.
DERIVATIONS: Mapping[str, tuple[Derivation, ...]] = MappingProxyType(
    {
        "arrival_rate": (
            Derivation(
                ("tuples_in", "queue_size"), "growth of tuples_in and of its queue", _arrival_rate
            ),
        ),
        "input_rate": (Derivation(("tuples_in",), "growth of tuples_in", _rate("tuples_in")),),
        "output_rate": (Derivation(("tuples_out",), "growth of tuples_out", _rate("tuples_out")),),
        "cost": (
            Derivation(
                ("cpu_time", "tuples_in"),
                "CPU time that the engine measured, per input tuple",
                _ratio("cpu_time"),
            ),
            Derivation(
                ("thread_cpu_time", "tuples_in"),
                "CPU time of the operator's threads (schedstat), per input tuple; on other nodes, "
                "busy time",
                _thread_cost,
            ),
            Derivation(
                ("busy_time", "tuples_in"),
                "busy time per input tuple: too high where the thread waits for a CPU",
                _ratio("busy_time"),
                estimate=True,
            ),
        ),
        "selectivity": (
            Derivation(
                ("tuples_out", "tuples_in"), "output per input tuples", _ratio("tuples_out")
            ),
        ),
        "queue_size": (
            Derivation(
                ("queue_size_estimate",),
                "estimated by the driver, in no unit",
                lambda window, _: window.value("queue_size_estimate"),
                estimate=True,
            ),
            Derivation(
                ("tuples_out", "tuples_in"),
                "emitted upstream and not yet taken in; unknown at an ingress",
                lambda window, _: in_flight(window),
                estimate=True,
            ),
        ),
        "head_age": (
            Derivation(
                ("head_age_estimate",),
                "estimated by the driver",
                lambda window, _: window.value("head_age_estimate"),
                estimate=True,
            ),
            Derivation(
                ("queue_size", "input_rate"),
                "Little's law: queue size by input rate, added up from the ingress down",
                _littles_law,
                estimate=True,
            ),
        ),
        "arrival_age": (
            Derivation(
                ("wait_estimate",),
                "waits upstream, added up down the slowest way through other nodes",
                _arrival_age,
                estimate=True,
            ),
            Derivation(
                ("queue_size", "input_rate"),
                "Little's law: queue sizes by input rates, added up down the slowest way through "
                "other nodes",
                _arrival_age,
                estimate=True,
            ),
        ),
        "global_selectivity": (
            Derivation(
                ("selectivity", "window", "output_rate"),
                "product of the selectivities, summed over the paths to the egresses; at window "
                "joins by the rate of the other input",
                lambda window, v: formulas.global_selectivity(
                    window.graph, v["selectivity"], _through(window, v)
                ),
            ),
            Derivation(
                ("selectivity",),
                "product of the selectivities, summed over the paths to the egresses",
                lambda window, v: formulas.global_selectivity(window.graph, v["selectivity"]),
            ),
        ),
        "global_cost": (
            Derivation(
                ("cost", "selectivity", "window", "output_rate"),
                "costs downstream, weighted by the tuples that get there; at window joins by the "
                "rate of the other input",
                lambda window, v: formulas.global_cost(
                    window.graph, v["cost"], v["selectivity"], _through(window, v)
                ),
            ),
            Derivation(
                ("cost", "selectivity"),
                "costs downstream, weighted by the tuples that get there",
                lambda window, v: formulas.global_cost(window.graph, v["cost"], v["selectivity"]),
            ),
        ),
        "path_cost": (
            Derivation(
                ("cost",),
                "costs along the costliest path from here on",
                lambda window, v: formulas.costliest(window.graph, v["cost"]),
            ),
        ),
        "ideal_time": (
            Derivation(
                ("cost", "window"),
                "costs along the costliest path through here, at window joins of all inputs",
                lambda window, v: formulas.ideal_time(window.graph, v["cost"], v["window"]),
            ),
            Derivation(
                ("cost",),
                "costs along the costliest path through here",
                lambda window, v: formulas.ideal_time(window.graph, v["cost"]),
            ),
        ),
        "tuple_size": (
            Derivation(
                (),
                "unknown: taken to be 1 everywhere, so memory counts tuples",
                lambda window, _: np.ones(len(window.operators)),
                estimate=True,
            ),
        ),
        "utilisation": (
            Derivation(
                ("idle_time",),
                "1 - share of time without input",
                lambda window, _: np.clip(1.0 - window.rate("idle_time"), 0.0, 1.0),
            ),
            Derivation(
                ("input_rate", "cost"),
                "input rate times cost, by thread, or by CPU where there are more threads: without "
                "the time that work waited",
                lambda window, v: np.clip(v["input_rate"] * v["cost"] / _at_once(window), 0.0, 1.0),
                estimate=True,
            ),
        ),
        "busy": (Derivation(("busy_time",), "growth of busy_time", _busy),),
        "backpressured": (
            Derivation(
                ("backpressured_time",), "growth of backpressured_time", _rate("backpressured_time")
            ),
        ),
        "idle": (Derivation(("idle_time",), "growth of idle_time", _rate("idle_time")),),
        "cpu_use": (
            Derivation(("cpu_time",), "growth of cpu_time", _rate("cpu_time")),
            Derivation(("thread_cpu_time",), "growth of thread_cpu_time", _rate("thread_cpu_time")),
            Derivation(
                ("input_rate", "cost"),
                "input rate times cost",
                lambda _, v: v["input_rate"] * v["cost"],
                estimate=True,
            ),
        ),
        "verdict": (
            Derivation(
                ("thread_cpu_time", "run_delay", "queue_size"),
                "by how its threads spent their time, and its queue",
                lambda window, v: verdicts.codes(window, v["queue_size"]),
            ),
            Derivation(
                ("thread_cpu_time", "run_delay"),
                "by how its threads spent their time",
                lambda window, _: verdicts.codes(window),
            ),
        ),
        "cpu_wait": (Derivation(("run_delay",), "growth of run_delay", _rate("run_delay")),),
    }
)


def resolve(
    needs: Iterable[str],
    provides: Iterable[str],
    *,
    policy: str,
    engine: str,
    derived: Mapping[str, str] = MappingProxyType({}),
    wants: Iterable[str] = (),
) -> Resolution:
    """Decide how each metric is got: from the engine, else by the best derivation that works.

    derived: see `Resolution`. wants: metrics that are left out where they cannot be had. Raises
    MissingMetric, naming for each metric every way to get it and what each way lacks.
    """
    wanted, provided = frozenset(needs), frozenset(provides)
    if unknown := wanted - METRICS.keys():
        raise MissingMetric(
            f"policy {policy} needs {', '.join(sorted(unknown))}, which is no metric",
            f"the metrics: {', '.join(sorted(METRICS))}",
        )
    steps: dict[str, Step] = {}
    for metric in sorted(wanted):
        if _find(metric, provided, steps):
            ways = "; ".join(_ways(metric, provided))
            raise MissingMetric(
                f"policy {policy} needs {metric}, which {engine} does not report "
                f"and which cannot be derived",
                f"to get {ways}; or choose a policy that needs less (sched-ctl policies)",
            )
    had = {metric for metric in sorted(set(wants)) if not _find(metric, provided, steps)}
    return Resolution(policy, engine, wanted | had, tuple(steps.values()), derived)


def evaluate(resolution: Resolution, window: Window) -> Mapping[str, Array]:
    """Metric -> (n,) column over the window's operators, NaN = unknown.

    Has what the policy needs and everything that was computed on the way there.
    """
    columns: dict[str, Array] = {}
    with np.errstate(all="ignore"):
        for step in resolution.steps:
            kept = window.averages.get(step.metric)
            if kept is not None:
                columns[step.metric] = kept
                continue
            if step.derivation is None:
                column = window.value(step.metric)
            else:
                column = clean(step.derivation.compute(window, columns))
            columns[step.metric] = window.or_prior(step.metric, column)
            if step.metric in resolution.averaged:
                window.averages[step.metric] = columns[step.metric]
    return columns


def _find(metric: str, provided: frozenset[str], steps: dict[str, Step]) -> frozenset[str]:
    """Add the steps to get the metric; returns the primitives that are missing for it, if any."""
    if metric in steps:
        return frozenset()
    if metric in provided:
        steps[metric] = Step(metric, None)
        return frozenset()
    lacking: frozenset[str] = frozenset()
    for derivation in DERIVATIONS.get(metric, ()):
        trial = dict(steps)
        lacks = [_find(need, provided, trial) for need in derivation.needs]
        if not any(lacks):
            steps.update(trial)
            steps[metric] = Step(metric, derivation)
            return frozenset()
        lacking = lacking.union(*lacks)
    return lacking or frozenset({metric})


def _ways(metric: str, provided: frozenset[str]) -> list[str]:
    """For each metric at which the search for `metric` ended: what would do, in words."""
    derivations = DERIVATIONS.get(metric, ())
    lacking = [
        {need for need in derivation.needs if _find(need, provided, {})}
        for derivation in derivations
    ]
    common = sorted(set.intersection(*lacking) & DERIVATIONS.keys()) if lacking else []
    if common:  # whichever way, it needs these
        return list(dict.fromkeys(way for need in common for way in _ways(need, provided)))
    options = [metric] + [
        " and ".join(sorted(_find_all(derivation.needs, provided))) for derivation in derivations
    ]
    return [f"{metric}, it must report {', or '.join(dict.fromkeys(options))}"]


def _find_all(needs: Iterable[str], provided: frozenset[str]) -> frozenset[str]:
    return frozenset[str]().union(*(_find(need, provided, {}) for need in needs))
