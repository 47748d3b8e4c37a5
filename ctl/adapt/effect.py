"""What came of it: what each query took in and gave, and how long its tuples were in the system.

Of one engine, over a stretch of time in which one topology ran: `begin` with a snapshot, `seen`
with each later one, `effects` whenever somebody wants to know. The time in the system is, best
first,

* what the engine counts (`Snapshot.latencies`), which may tell percentiles as well;
* what it reports as a mean of its own (the metric `latency`);
* of an engine that counts no tuples, for how long its threads are awake after each wake-up, added
  up along the way (CPU time and waits for a CPU, over wake-ups);
* Little's law: the tuples that waited in each queue, over the tuples that were taken from it, added
  up along the way from ingress to egress. What waits before a source that tells no queue is not in
  it, and neither is the time that an operator works on a tuple.

The last one knows a median, too: of tuples that come at each sample and take each way through the
query, and meet the queues of that sample. Where one branch or moment has all that waits, half of
all tuples may wait for nothing. It stands beside a reported mean as well.

Each effect names its source, because two sources cannot be compared with each other. An engine that
stops telling latencies is judged by the next source from then on. A clock that goes back, or jumps
by more than `LONGEST_GAP_S` and half as much again as it did before, begins a new span: nothing is
concluded across it.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from sched_ctl.metrics.catalogue import in_flight
from sched_ctl.metrics.window import LARGEST, Window, divide
from sched_ctl.model.graph import Array, Graph, Index, distinct
from sched_ctl.model.topology import Snapshot

__all__ = [
    "AWAKE",
    "COUNTED",
    "FEWEST_SAMPLES",
    "LITTLE",
    "PATIENCE_S",
    "REPORTED",
    "UNKNOWN",
    "Effect",
    "Span",
    "all_effects",
    "begin",
    "effects",
    "few",
    "seen",
]

COUNTED, REPORTED, AWAKE, LITTLE, UNKNOWN = "counted", "reported", "awake", "little", "unknown"
LONGEST_GAP_S = 30.0  # between two snapshots; more is silence, or a long period
LONGEST_S = 1e9  # in the system, thirty years; who tells more does not know it
FEWEST_SAMPLES = 3  # that tell of anything
PATIENCE_S = 120.0  # that a phase lasts longer for an engine which tells nothing new
FOLLOWED = 61  # tuples that stand for all of a query, a prime
ORDERS = np.array([16, 17, 19, 22, 23, 25, 27])  # in which they take ways: neighbours far apart
MOST_LENGTHS = 32  # samples of each queue that are kept; beyond, every other one goes
MOST_SAMPLES = 1024  # of queues that are kept; beyond, every other one goes


@dataclass(frozen=True, slots=True)
class Effect:
    """What came of it for one query, over `seconds`. NaN where nobody tells.

    tuples_in, tuples_out: a second, into its ingresses and out of its egresses.
    time_s: mean time of a tuple in the system, by `source`: the engine's own latency ("counted",
    "reported"), by wake-ups ("awake"), Little's law over its queues ("little"), or "unknown".
    error: standard error of time_s as a part of it; of sources other than "counted" by its samples,
    taken to be independent.
    p50_s, p99_s: of the same, where the engine counts a histogram; p50_s by Little's law where it
    counts nothing and tells queues.
    within_target: share of tuples that met the query's target; without a histogram the share of
    samples.
    cpu_wait_s: how long a tuple waited on its way for threads to get a CPU.
    cpus: CPUs that its operators used.
    """

    engine: str
    query: str
    seconds: float
    tuples_in: float = math.nan
    tuples_out: float = math.nan
    time_s: float = math.nan
    source: str = UNKNOWN
    error: float = math.nan
    p50_s: float = math.nan
    p99_s: float = math.nan
    within_target: float = math.nan
    cpu_wait_s: float = math.nan
    cpus: float = math.nan

    @property
    def cost_s(self) -> float:
        """CPU time of the query, per tuple that it took in."""
        return self.cpus / self.tuples_in if self.tuples_in > 0 else math.nan

    @property
    def key(self) -> tuple[str, str]:
        return self.engine, self.query


@dataclass(frozen=True, eq=False)
class Span:
    """An engine from one snapshot to another, of the same topology.

    waiting: (n,) integral of the queues' lengths over the time in which they were told, known_s,
    tuple-seconds. queues: of each sample (q,) tuples in all queues of a query, NaN if one that was
    told before is not. latency: of each, (q,) the mean that the engine reports, s. stride: one
    sample of so many is kept. lengths: (n,) tuples in each queue, NaN if it is not told, of one
    sample of `apart`. gap_s: from the snapshot before `now` to it.
    """

    first: Snapshot
    now: Snapshot
    waiting: Array
    known_s: Array
    queues: tuple[Array, ...] = ()
    latency: tuple[Array, ...] = ()
    samples: int = 0
    stride: int = 1
    lengths: tuple[Array, ...] = ()
    apart: int = 1
    gap_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.now.time_s - self.first.time_s


def begin(snapshot: Snapshot, gap_s: float = 0.0) -> Span:
    n = len(snapshot.topology.operators)
    return Span(snapshot, snapshot, np.zeros(n), np.zeros(n), gap_s=gap_s)


def seen(span: Span | None, snapshot: Snapshot) -> Span:
    """The span with one snapshot more; a new one if nothing can be said across the two."""
    if span is None or snapshot.topology is not span.now.topology:
        return begin(snapshot)
    gap_s = snapshot.time_s - span.now.time_s
    if gap_s == 0:  # the same answer again
        return span
    if not 0 < gap_s <= max(LONGEST_GAP_S, 1.5 * span.gap_s):
        return begin(snapshot, gap_s)
    window = Window(snapshot)
    queue = queues_of(window)
    told = np.isfinite(queue)
    waiting = span.waiting + np.where(told, queue, 0.0) * gap_s
    known_s = span.known_s + told * gap_s
    samples = span.samples + 1
    span = replace(
        span, now=snapshot, gap_s=gap_s, waiting=waiting, known_s=known_s, samples=samples
    )
    if span.samples % span.apart == 0:
        lengths = (*span.lengths, queue)
        crowded = len(lengths) > MOST_LENGTHS
        span = replace(
            span,
            lengths=lengths[1::2] if crowded else lengths,
            apart=span.apart * (2 if crowded else 1),
        )
    if span.samples % span.stride:
        return span
    rows, n = snapshot.topology.query_rows, len(snapshot.topology.queries)
    queues = (*span.queues, _sum(rows, n, np.where(known_s > 0, queue, 0.0)))
    latency = (*span.latency, _reported(window, rows, n))
    if len(queues) > MOST_SAMPLES:
        queues, latency = queues[::2], latency[::2]
        return replace(span, queues=queues, latency=latency, stride=2 * span.stride)
    return replace(span, queues=queues, latency=latency)


def few(spans: Mapping[str, Span], engines: Iterable[str]) -> bool:
    """Whether some of these engines have told too little yet."""
    return any(n not in spans or spans[n].samples + 1 < FEWEST_SAMPLES for n in engines)


def effects(span: Span, targets: Mapping[str, float] = MappingProxyType({})) -> tuple[Effect, ...]:
    """One a query. targets: query -> s, of those that have one."""
    topology = span.now.topology
    window = Window(span.now, span.first)
    rows, n = topology.query_rows, len(topology.queries)
    graph = topology.graph
    taken, given = window.rate("tuples_in"), window.rate("tuples_out")
    tuples_in, tuples_out = (
        _sums(rows, n, np.where(ends, rate, np.nan))
        for ends, rate in ((graph.ingress, taken), (graph.egress, given))
    )
    little, half_s = _little(span, taken, rows, n)
    source = LITTLE
    if topology.guessed:
        little, source = _awake(window, given, taken, rows, n), AWAKE
        half_s = np.full(n, np.nan)
    counted = _Counted.of(span, rows, n)
    reported = _over_time(span.latency, n)
    delay = _along(graph, divide(window.gain("run_delay"), window.gain("tuples_in")), given)
    delays = _means(rows, n, np.where(graph.egress, delay, np.nan), taken)
    use = window.rate("cpu_time")
    use = _sums(rows, n, np.where(np.isnan(use), window.rate("thread_cpu_time"), use))
    found = []
    for q, query in enumerate(topology.queries):
        target = targets.get(query, math.nan)
        effect = Effect(
            topology.engine, query, span.seconds, float(tuples_in[q]), float(tuples_out[q])
        )
        if not span.seconds > 0:
            found.append(effect)
            continue
        series = _series(span.queues, q)
        if counted is not None and counted.tuples[q] > 0:
            effect = counted.tell(effect, q, target)
        elif math.isfinite(reported[q]):
            effect = _sampled(
                effect, float(reported[q]), REPORTED, _series(span.latency, q), target
            )
            effect = replace(effect, p50_s=float(half_s[q]))
        elif math.isfinite(little[q]):
            effect = _sampled(effect, float(little[q]), source, series, target)
            effect = replace(effect, p50_s=float(half_s[q]))
        if not effect.time_s <= LONGEST_S:
            effect = Effect(effect.engine, query, span.seconds, effect.tuples_in, effect.tuples_out)
        found.append(replace(effect, cpu_wait_s=float(delays[q]), cpus=float(use[q])))
    return tuple(found)


def all_effects(
    spans: Mapping[str, Span],
    wanted: Callable[[Effect], bool],
    targets: Mapping[str, Mapping[str, float]],
) -> tuple[Effect, ...]:
    """Those that are wanted, of several engines. targets: by engine."""
    return tuple(
        effect
        for engine, span in spans.items()
        for effect in effects(span, targets.get(engine, {}))
        if wanted(effect)
    )


def queues_of(window: Window) -> Array:
    """(n,) tuples that wait now; counted, where that can be done, if the engine does not tell."""
    queue = window.value("queue_size")
    return queue if np.isfinite(queue).any() else in_flight(window)


def _little(span: Span, taken: Array, rows: Index, n: int) -> tuple[Array, Array]:
    """(n,) by query: W = Q / rate in each queue, added up along the way, in s; the mean, and what
    half of the tuples are not above.

    A queue that nothing is taken from while tuples wait has kept them for as long as we look; one
    of which nobody knows what is taken adds nothing. NaN where one that is told now and then was
    not for more than half of the time.
    """
    graph, seconds = span.now.topology.graph, span.seconds
    mean = divide(span.waiting, span.known_s)

    def wait(queue: Array) -> Array:
        stuck = np.where((taken == 0) & (queue > 0), seconds, np.nan)
        waits = np.where(taken > 0, divide(queue, taken), stuck)
        return np.where(queue == 0, 0.0, waits)

    waits = wait(mean)
    rarely = (span.known_s > 0) & (2 * span.known_s < seconds)
    known = (np.bincount(rows, np.isfinite(waits), n) > 0) & (np.bincount(rows, rarely, n) == 0)
    given = Window(span.now, span.first).rate("tuples_out")
    ends = np.where(graph.egress, _along(graph, np.nan_to_num(waits), given), np.nan)
    mean_s = np.where(known, _means(rows, n, ends, taken), np.nan)
    met = [np.nan_to_num(wait(np.where(np.isfinite(one), one, mean))) for one in span.lengths]
    if not met:
        return mean_s, np.full(n, np.nan)
    times = _followed(graph, np.array(met), given)[graph.egress]
    half_s = _halves(times, taken[graph.egress], rows[graph.egress], n)
    return mean_s, np.where(np.isfinite(mean_s), half_s, np.nan)


def _awake(window: Window, given: Array, taken: Array, rows: Index, n: int) -> Array:
    """(n,) by query: how long threads are awake after a wake-up, along the way, in s."""
    graph = window.now.topology.graph
    spent_s = window.gain("run_delay") + window.gain("thread_cpu_time")
    each = divide(spent_s, np.maximum(window.gain("tuples_in"), 1.0))  # it may never have slept
    known = np.bincount(rows, np.isfinite(each), n) > 0
    ends = np.where(graph.egress, _along(graph, np.nan_to_num(each), given), np.nan)
    return np.where(known, _means(rows, n, ends, taken), np.nan)


def _along(graph: Graph, each: Array, given: Array) -> Array:
    """(n,) what a tuple has met from its ingress through each operator; of several ways there the
    mean, by the tuples that take them. NaN on and below a cycle.
    """
    part = _parts(graph, given)
    until = np.full(graph.n, np.nan)
    arrived = np.zeros(graph.n)
    for operators, edges in graph.reversed.levels:
        np.add.at(arrived, graph.target[edges], part[edges] * until[graph.source[edges]])
        until[operators] = arrived[operators] + each[operators]
    return until


def _followed(graph: Graph, each: Array, given: Array) -> Array:
    """(n, FOLLOWED) the same, of single tuples: each comes at one sample, and of several ways takes
    one. each: (samples, n).

    Ways are taken in proportion, also by the tuples of one sample, and at each operator in another
    order.
    """
    part, number = _parts(graph, given), np.arange(FOLLOWED)
    meets = each[number * len(each) // FOLLOWED].T
    until, arrived = np.full(meets.shape, np.nan), np.zeros(meets.shape)
    for operators, edges in graph.reversed.levels:
        if edges.size:
            edges = edges[np.argsort(graph.target[edges], kind="stable")]
            to = distinct(graph.target[edges])
            place = (ORDERS[to % len(ORDERS), None] * number + to[:, None]) % FOLLOWED
            drawn = np.arange(len(to))[:, None] + (place + 0.5) / FOLLOWED
            by = np.searchsorted(np.cumsum(part[edges]), drawn)
            source = graph.source[edges[np.minimum(by, len(edges) - 1)]]
            arrived[to] = until[source, number]
        until[operators] = arrived[operators] + meets[operators]
    return until


def _halves(times: Array, taken: Array, rows: Index, n: int) -> Array:
    """(n,) what half of the tuples of each query are not above. times: (m, k) of operators in rows;
    NaN where one is not known.
    """
    found = np.full(n, np.nan)
    known = np.isfinite(times).all(axis=1)
    query, weight, times = rows[known], np.nan_to_num(taken[known]), times[known]
    total = np.bincount(query, weight, n)
    with np.errstate(all="ignore"):
        weight = np.where(total[query] > 0, weight / total[query], 1 / np.bincount(query)[query])
    whose = np.repeat(query, times.shape[1])
    order = np.lexsort((times.ravel(), whose))
    each = np.cumsum(np.repeat(weight, times.shape[1])[order]) / times.shape[1]
    here = distinct(query)  # each of which weighs 1
    middle = np.searchsorted(each, np.arange(len(here)) + 0.5)
    found[here] = times.ravel()[order][np.minimum(middle, len(order) - 1)]
    return found


def _parts(graph: Graph, given: Array) -> Array:
    """(m,) of the tuples that come to an edge's target, the part that comes by the edge."""
    flow = graph.share * np.nan_to_num(given)[graph.source]
    total = np.bincount(graph.target, flow, graph.n)
    ways = np.bincount(graph.target, minlength=graph.n)
    with np.errstate(all="ignore"):
        return np.where(total[graph.target] > 0, flow / total[graph.target], 1 / ways[graph.target])


@dataclass(frozen=True, eq=False)
class _Counted:
    """Latencies that an engine counted itself in a span. tuples, total_s: (q,); counts: (q, b)."""

    tuples: Array
    total_s: Array
    low_s: Array
    counts: Array

    @staticmethod
    def of(span: Span, rows: Index, n: int) -> "_Counted | None":
        now, then = span.now.latencies, span.first.latencies
        if now is None or then is None or not np.array_equal(now.rows, then.rows):
            return None
        query = rows[now.rows]
        tuples, total_s = now.tuples - then.tuples, now.total_s - then.total_s
        fine = (tuples >= 0) & (tuples <= LARGEST) & (total_s >= 0)  # else: a restart
        counts = np.zeros((n, len(now.low_s)))
        if now.low_s.shape == then.low_s.shape:
            np.add.at(counts, query, np.where(fine[:, None], now.counts - then.counts, 0.0))
        return _Counted(
            _sum(query, n, np.where(fine, tuples, 0.0)),
            _sum(query, n, np.where(fine, total_s, 0.0)),
            now.low_s,
            np.maximum(counts, 0.0),
        )

    def tell(self, effect: Effect, q: int, target_s: float) -> Effect:
        mean_s = float(self.total_s[q] / self.tuples[q])
        effect = replace(effect, time_s=mean_s, source=COUNTED, error=0.0)
        counts = self.counts[q]
        total = counts.sum()
        if not total > 0:
            return effect
        below = np.cumsum(counts) / total
        met = counts[self.low_s < target_s].sum() / total
        return replace(
            effect,
            p50_s=_quantile(self.low_s, below, 0.5),
            p99_s=_quantile(self.low_s, below, 0.99),
            within_target=float(met) if math.isfinite(target_s) else math.nan,
        )


def _quantile(low_s: Array, below: Array, quantile: float) -> float:
    """The middle of the bucket where so many of the counts lie below."""
    bucket = min(int(np.searchsorted(below, quantile)), len(low_s) - 1)
    high_s = low_s[min(bucket + 1, len(low_s) - 1)]
    return float(low_s[bucket] + high_s) / 2


def _sampled(effect: Effect, time_s: float, source: str, samples: Array, target_s: float) -> Effect:
    """By samples that are in proportion to the time in the system."""
    mean = samples.mean() if len(samples) else math.nan
    error = within = math.nan
    if len(samples) > 1 and mean > 0:
        error = float(samples.std(ddof=1) / mean / math.sqrt(len(samples)))
    if math.isfinite(target_s) and len(samples):
        times_s = samples * (time_s / mean) if mean > 0 else samples
        within = float((times_s <= target_s).mean())
    return replace(effect, time_s=time_s, source=source, error=error, within_target=within)


def _series(samples: tuple[Array, ...], q: int) -> Array:
    column = np.array([sample[q] for sample in samples], dtype=np.float64)
    return column[np.isfinite(column)]


def _over_time(samples: tuple[Array, ...], n: int) -> Array:
    """(n,) mean of the samples in which something is known. NaN if the last one tells nothing: then
    the engine has stopped."""
    if not samples:
        return np.full(n, np.nan)
    column = np.array(samples)
    known = np.isfinite(column)
    mean = divide(np.nan_to_num(column).sum(axis=0), known.sum(axis=0).astype(np.float64))
    return np.where(known[-1], mean, np.nan)


def _reported(window: Window, rows: Index, n: int) -> Array:
    """(n,) by query: the mean latency that the engine reports, weighted by what left so far."""
    latency = window.value("latency")
    return _means(rows, n, latency, window.value("tuples_out"))


def _sums(rows: Index, n: int, values: Array) -> Array:
    """(n,) sums of what is known; NaN where nothing is."""
    known = np.isfinite(values)
    return np.where(
        np.bincount(rows, known, n) > 0, np.bincount(rows, np.where(known, values, 0.0), n), np.nan
    )


def _means(rows: Index, n: int, values: Array, weights: Array) -> Array:
    """(n,) weighted means of what is known; plain ones where no weight is."""
    known = np.isfinite(values)
    values = np.where(known, values, 0.0)
    weight = np.where(known, np.nan_to_num(weights), 0.0)
    total = _sum(rows, n, weight)
    plain = divide(_sum(rows, n, values), _sum(rows, n, known))
    return np.where(total > 0, divide(_sum(rows, n, values * weight), total), plain)


def _sum(rows: Index, n: int, values: npt.ArrayLike) -> Array:
    total: Array = np.bincount(rows, np.asarray(values), n).astype(np.float64)
    return total
