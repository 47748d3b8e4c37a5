"""A schedule as the BPF scheduler takes it: queues, and a hint for each thread.

The scheduler compares the heads of its queues by `base + slope * (now - key)` and keeps each queue
in the order of `key = origin - lead` (bpf/sched_ctl.h). What a policy asks for becomes:

* order only (HR, HNR, Chain, nice by hand): one queue; `lead` is the place in the order of (rank,
  urgency), times `gap_s`. A thread overtakes a more urgent one when its work is older by the
  difference of their leads.
* waiting time only (FCFS, LSF, BSD): per rank, one queue for each of `clusters` logarithmic
  classes of the slope (REFERENCE: dynamic policies made cheap); a rank is the upper byte of `base`.
* both at once: static + slope * W = slope * (W + static / slope), so the same clusters with
  `lead = static / slope`; where some threads do not age at all, one exact queue, all of whose
  threads are compared by their own forms at each dispatch, which takes time in proportion to them;
* queue lengths (QS): one exact queue, where an engine writes them for the scheduler to read. Of
  others they count as they were when the engine was last asked.

Several groups of one schedule, or several schedules, get queues of their own and share the CPU by
group first. So do queries with a concurrency cap, which are compared by urgency all the same where
nothing else is shared.
"""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from sched_ctl.model.clusters import logarithmic_clusters
from sched_ctl.model.graph import Array, Index
from sched_ctl.model.patterns import first, names_of
from sched_ctl.model.policy import UrgencyForm
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.unknown import known

__all__ = ["Hints", "Limits", "Part", "capped", "hints", "merged"]

U64 = NDArray[np.uint64]
Mask = NDArray[np.bool_]
Query = tuple[str, str]  # engine, query
# A tie-break by waiting time is one that could not change the order of others in this time.
TIE_S = 1e5
MIXED = 2  # times as many clusters for forms with a static and a growing part
AGE_UNIT_S = 1.024e-6  # of slopes, see sched_ctl.h


@dataclass(frozen=True)
class Limits:
    """enum limits of bpf/sched_ctl.h, as read from the object."""

    queues: int
    groups: int
    max_slope: int
    max_lead_us: int
    max_tuples: int
    rank_shift: int
    share_one: int

    @classmethod
    def of(cls, enum: Mapping[str, int]) -> "Limits":
        return cls(
            queues=enum["MAX_QUEUES"],
            groups=enum["MAX_GROUPS"],
            max_slope=enum["MAX_SLOPE"],
            max_lead_us=enum["MAX_LEAD_US"],
            max_tuples=enum["MAX_TUPLES"],
            rank_shift=enum["RANK_SHIFT"],
            share_one=enum["SHARE_ONE"],
        )


@dataclass
class Part:
    """Some threads with queues of their own. queue: (m,) index into this part's queues.

    exact: whether its one queue compares threads by their own base, slope and per_tuple, of which
    the last counts tuples that an engine tells of. by_age: whether what waits longer comes first.
    share: of the CPU, relative to other parts; 0 = by urgency. cap: how many of them may run at
    once; 0 = any number.
    """

    rows: Index
    queue: Index
    lead_us: U64
    queue_base: U64
    queue_slope: U64
    base: U64
    slope: U64
    per_tuple: U64
    exact: bool = False
    by_age: bool = False
    share: float = 0.0
    cap: int = 0


@dataclass
class Hints:
    """What is written: columns over all threads, over queues, and over groups (shares, caps)."""

    queue: Index
    lead_us: U64
    base: U64
    slope: U64
    per_tuple: U64
    by_age: Mask
    queue_base: U64
    queue_slope: U64
    queue_group: Index
    queue_exact: Mask
    shares: list[int] = field(default_factory=list)
    caps: list[int] = field(default_factory=list)


def hints(
    schedule: Schedule,
    limits: Limits,
    *,
    clusters: int = 12,
    gap_s: float = 1.0,
    caps: Mapping[Query, int] = MappingProxyType({}),
    live: Mask | None = None,
) -> list[Part]:
    """The parts of one schedule: one for each of its groups, one for the threads in none.

    caps: how many of a query's threads may run at once, see `capped`. A query that has one gets a
    part of its own.
    live: (m,) whether the thread's engine writes its queue's length for the scheduler to read.
    """
    if live is None:
        live = np.zeros(len(schedule.threads), dtype=np.bool_)
    parts = _wholes(schedule)
    apart = sum(_parts_of(schedule, caps).values()) if caps else 0
    budget = max(1, limits.queues // max(1, len(parts) + apart))
    made = []
    for rows, share in parts:
        # The middle of those that it is compared with: inside the group.
        sure = known(schedule.form.take(rows), schedule.head_age_s[rows], schedule.queue_size[rows])
        form = sure.form
        part = _part(form, sure.queue_size, live[rows], limits, min(clusters, budget), gap_s)
        if len(part.queue_base) > budget:
            part = _ordered(_lexicographic(form.rank, form.static), limits, gap_s)
        part.rows, part.share = rows, share
        made += _apart(part, schedule.queries, caps)
    return made


def _wholes(schedule: Schedule) -> list[tuple[Index, float]]:
    """The rows of each part, with capped queries still in it, and its share."""
    free = np.ones(len(schedule.threads), dtype=bool)
    found = []
    for group in schedule.groups.values():
        rows = np.asarray(group.rows, dtype=np.intp)
        free[rows] = False
        if len(rows):
            found.append((rows, group.share))
    rest = np.flatnonzero(free)
    if len(rest):
        shares = [share for _, share in found]
        found.append((rest, float(np.mean(shares)) if shares else 0.0))
    return found


def _parts_of(schedule: Schedule, queries: Container[Query]) -> Counter[Query]:
    """How many parts each of these queries has threads in."""
    found: Counter[Query] = Counter()
    for rows, _ in _wholes(schedule):
        inside = {schedule.queries[row] for row in rows.tolist()}
        found.update(query for query in inside if query is not None and query in queries)
    return found


def capped(
    schedule: Schedule, caps: Mapping[str, int], room: int
) -> tuple[Mapping[Query, int], tuple[str, ...]]:
    """The schedule's queries that have a cap, and a problem in words where not all have room.

    caps: query pattern (see `patterns`) -> how many of the query's threads may run at once.
    room: how many groups there may be of this schedule.
    """
    named = {query for query in schedule.queries if query is not None} if caps else ()
    found = {query: first(caps, *names_of(*query)) for query in sorted(named)}
    wanted = {query: cap for query, cap in found.items() if cap is not None}
    if not wanted:
        return {}, ()
    parts = _parts_of(schedule, wanted)
    room -= len(_wholes(schedule))
    given = {}
    for query, cap in wanted.items():
        room -= parts[query]
        if room >= 0:
            given[query] = cap
    without = [":".join(query) for query in wanted if query not in given]
    if not without:
        return given, ()
    return given, (f"no room for the caps of {len(without)} queries, from {without[0]} on",)


def _apart(whole: Part, query: Sequence[Query | None], cap_of: Mapping[Query, int]) -> list[Part]:
    """The part, and its capped queries apart, in queues that compare as those of the whole do."""
    if not cap_of:
        return [whole]
    members: dict[Query | None, list[int]] = {}
    for place, row in enumerate(whole.rows.tolist()):
        members.setdefault(query[row] if query[row] in cap_of else None, []).append(place)
    found = []
    for name, places in members.items():
        at = np.array(places, dtype=np.intp)
        used, queue = np.unique(whole.queue[at], return_inverse=True)
        found.append(
            replace(
                whole,
                rows=whole.rows[at],
                queue=queue.ravel(),
                lead_us=whole.lead_us[at],
                queue_base=whole.queue_base[used],
                queue_slope=whole.queue_slope[used],
                base=whole.base[at],
                slope=whole.slope[at],
                per_tuple=whole.per_tuple[at],
                share=whole.share * len(at) / len(whole.rows),
                cap=0 if name is None else cap_of[name],
            )
        )
    return found


def merged(
    parts: Sequence[tuple[int, Part]],
    total: int,
    limits: Limits,
    weights: Mapping[int, float] = MappingProxyType({}),
) -> Hints:
    """One set of hints from the parts of all schedules.

    parts: with the offset of each part's schedule in the columns. A single part needs no groups.
    weights: of each schedule beside the others, by its offset; without one, 1.
    """
    if len(parts) == 1 and _is_all(parts[0], total) and not parts[0][1].cap:
        return _alone(parts[0][1])
    result = Hints(
        queue=np.zeros(total, dtype=np.intp),
        lead_us=np.zeros(total, dtype=np.uint64),
        base=np.zeros(total, dtype=np.uint64),
        slope=np.zeros(total, dtype=np.uint64),
        per_tuple=np.zeros(total, dtype=np.uint64),
        by_age=np.zeros(total, dtype=np.bool_),
        queue_base=np.zeros(0, dtype=np.uint64),
        queue_slope=np.zeros(0, dtype=np.uint64),
        queue_group=np.zeros(0, dtype=np.intp),
        queue_exact=np.zeros(0, dtype=np.bool_),
    )
    parts, given = _fitting(parts, _shares(parts, weights), limits)
    grouped = len(parts) > 1 or any(part.cap for _, part in parts)
    largest = max(given, default=0.0) or 1.0
    for index, ((offset, part), share) in enumerate(zip(parts, given, strict=True)):
        rows = part.rows + offset
        first, more = len(result.queue_base), len(part.queue_base)
        result.queue[rows] = part.queue + first
        result.lead_us[rows] = part.lead_us
        result.base[rows] = part.base
        result.slope[rows] = part.slope
        result.per_tuple[rows] = part.per_tuple
        result.by_age[rows] = part.by_age
        result.queue_base = np.append(result.queue_base, part.queue_base)
        result.queue_slope = np.append(result.queue_slope, part.queue_slope)
        result.queue_group = np.append(result.queue_group, np.full(more, index * grouped))
        result.queue_exact = np.append(result.queue_exact, np.full(more, part.exact))
        if grouped:
            scaled = round(share / largest * limits.share_one * 16)
            result.shares.append(max(1, scaled) if share else 0)
            result.caps.append(part.cap)
    return result


def _shares(parts: Sequence[tuple[int, Part]], weights: Mapping[int, float]) -> list[float]:
    """What each part gets; all zero if urgency alone decides between them.

    Schedules share the CPU by their weights. Its groups divide what one gets by their shares; the
    parts of one without groups (for caps) have as much each.
    """
    schedules = {offset for offset, _ in parts}
    if len(schedules) < 2 and not any(part.share for _, part in parts):
        return [0.0] * len(parts)
    without = [offset for offset, part in parts if not part.share]
    given = [part.share or 1 / without.count(offset) for offset, part in parts]
    if len(schedules) < 2:
        return given
    sums = dict.fromkeys(schedules, 0.0)
    for (offset, _), share in zip(parts, given, strict=True):
        sums[offset] += share
    return [
        weights.get(offset, 1.0) * share / sums[offset]
        for (offset, _), share in zip(parts, given, strict=True)
    ]


def _is_all(part: tuple[int, Part], total: int) -> bool:
    """Whether it is every thread, in order, and fits: then its columns are those of the whole."""
    offset, only = part
    rows = only.rows
    return offset == 0 and len(rows) == total and bool((rows == np.arange(total)).all())


def _alone(part: Part) -> Hints:
    n = len(part.queue_base)
    return Hints(
        queue=part.queue,
        lead_us=part.lead_us,
        base=part.base,
        slope=part.slope,
        per_tuple=part.per_tuple,
        by_age=np.full(len(part.rows), part.by_age),
        queue_base=part.queue_base,
        queue_slope=part.queue_slope,
        queue_group=np.zeros(n, dtype=np.intp),
        queue_exact=np.full(n, part.exact),
    )


def _fitting(
    parts: Sequence[tuple[int, Part]], given: list[float], limits: Limits
) -> tuple[list[tuple[int, Part]], list[float]]:
    """The parts, and what each gets, with one queue each where all together would be too many."""
    parts = list(parts)
    most = min(limits.queues, limits.groups)
    if len(parts) > most:
        # More groups than there can be: those beyond share the last one, in order of age.
        rest = [(offset, part) for offset, part in parts[most - 1 :]]
        rows = np.concatenate([part.rows + offset for offset, part in rest])
        last = _ordered(np.zeros(len(rows)), limits, 0.0)
        last.rows = rows
        parts = [*parts[: most - 1], (0, last)]
        given = [*given[: most - 1], sum(given[most - 1 :])]
    if sum(len(part.queue_base) for _, part in parts) <= limits.queues:
        return parts, given
    for _, part in parts:
        if not part.exact and len(part.queue_base) > 1:
            # Queues in the order that they have at equal age.
            keys = _lexicographic(part.queue_base.astype(float), part.queue_slope.astype(float))
            one = _ordered(keys[part.queue], limits, 1.0)
            part.queue, part.lead_us = one.queue, one.lead_us
            part.queue_base, part.queue_slope = one.queue_base, one.queue_slope
    return parts, given


def _part(
    form: UrgencyForm, queue_size: Array, live: Mask, limits: Limits, clusters: int, gap_s: float
) -> Part:
    told = live & (form.per_tuple > 0)
    static = form.static + np.where(told, 0.0, form.per_tuple * queue_size)
    slope = np.maximum(form.per_second, 0.0)
    if told.any():
        return _exact(form.rank, static, slope, np.where(told, form.per_tuple, 0.0), limits)
    if _is_order(form.rank, static, slope):
        return _ordered(_lexicographic(form.rank, static), limits, gap_s)
    if np.ptp(static) == 0:
        return _clustered(form.rank, slope, limits, clusters)
    if slope.min() > 0:
        lead_us = _above_least(form.rank, static) / slope * 1e6
        if lead_us.max() <= limits.max_lead_us:
            # Two parts are quantised at once here: more clusters, as many as there may be.
            part = _clustered(form.rank, slope, limits, MIXED * clusters)
            part.lead_us = lead_us.astype(np.uint64)
            return part
    return _exact(form.rank, static, slope, np.zeros(len(static)), limits)


def _above_least(rank: Array, static: Array) -> Array:
    """(m,) how far each lies above the least of its rank: only these are compared."""
    above = np.empty(len(static))
    for value in set(rank.tolist()):
        inside = rank == value
        above[inside] = static[inside] - static[inside].min()
    return above


def _is_order(rank: Array, static: Array, slope: Array) -> bool:
    """Whether waiting never decides, or only between equals."""
    if not slope.any():
        return True
    apart = np.diff(np.sort(static))
    apart = apart[apart > 0]
    if not len(apart):
        return False
    return bool(slope.max() * TIE_S < apart.min())


def _lexicographic(rank: Array, static: Array) -> Array:
    """(m,) place in the order of (rank, static), equal for equal ones, 0 = last."""
    if not len(rank):
        return np.zeros(0)
    order = np.lexsort((static, rank))
    steps = (np.diff(rank[order]) != 0) | (np.diff(static[order]) != 0)
    place = np.empty(len(rank))
    place[order] = np.concatenate([[0.0], np.cumsum(steps)])
    return place


def _ordered(place: Array, limits: Limits, gap_s: float) -> Part:
    n = len(place)
    highest = float(place.max(initial=0.0))
    gap_us = min(gap_s * 1e6, limits.max_lead_us / max(1.0, highest))
    zeros = np.zeros(n, dtype=np.uint64)
    return Part(
        rows=np.arange(n),
        queue=np.zeros(n, dtype=np.intp),
        lead_us=(place * gap_us).astype(np.uint64),
        queue_base=np.zeros(1, dtype=np.uint64),
        queue_slope=np.full(1, 1024, dtype=np.uint64),
        base=zeros,
        slope=zeros,
        per_tuple=zeros,
    )


def _clustered(rank: Array, slope: Array, limits: Limits, clusters: int) -> Part:
    """A queue for each rank and logarithmic class of slopes that has threads.

    Threads without slope, where others have one, have a class of their own: they never gain.
    """
    place = np.unique(rank, return_inverse=True)[1]
    top = 1 << (63 - limits.rank_shift)
    place = np.minimum(place.ravel(), top)
    flat = (slope == 0) & slope.any()
    clusters = max(1, clusters - bool(flat.any()))
    cluster, edges = logarithmic_clusters(slope, clusters)
    if edges[0] == edges[-1]:  # no slopes, or all the same
        representative = np.full(1, float(limits.max_slope >> 10))
    else:
        middle = np.sqrt(edges[:-1] * edges[1:])
        representative = np.maximum(1.0, middle / middle.max() * limits.max_slope)
    cluster = np.where(flat, len(representative), cluster)
    representative = np.append(representative, 0.0)
    pairs = place.astype(np.int64) * (clusters + 1) + cluster
    used, queue = np.unique(pairs, return_inverse=True)
    zeros = np.zeros(len(slope), dtype=np.uint64)
    base = (used // (clusters + 1)).astype(np.uint64) << np.uint64(limits.rank_shift)
    return Part(
        rows=np.arange(len(slope)),
        queue=queue.ravel().astype(np.intp),
        lead_us=zeros,
        queue_base=base,
        queue_slope=representative[used % (clusters + 1)].astype(np.uint64),
        base=zeros,
        slope=zeros,
        per_tuple=zeros,
        by_age=bool(slope.any()),
    )


def _exact(rank: Array, static: Array, slope: Array, per_tuple: Array, limits: Limits) -> Part:
    """One queue of threads that are compared by their own forms."""
    n = len(static)
    place = np.unique(rank, return_inverse=True)[1].ravel()
    place = np.minimum(place, 1 << (63 - limits.rank_shift)).astype(np.uint64)
    per_unit = slope * AGE_UNIT_S
    above = _above_least(rank, static)
    # One scale a rank: as fine as fits into a slope of 20 bits, and so that base and tuples stay
    # below a rank.
    below = 2.0 ** (limits.rank_shift - 2)
    most_per_tuple = min(2.0**32 - 1, below / limits.max_tuples)
    bounds = ((per_unit, limits.max_slope), (above, below), (per_tuple, most_per_tuple))
    scale = np.ones(n)
    for value in set(rank.tolist()):
        inside = rank == value
        fits = [most / float(part[inside].max()) for part, most in bounds if part[inside].any()]
        scale[inside] = min(fits, default=1.0)
    base = (above * scale).astype(np.uint64) + (place << np.uint64(limits.rank_shift))
    return Part(
        rows=np.arange(n),
        queue=np.zeros(n, dtype=np.intp),
        lead_us=np.zeros(n, dtype=np.uint64),
        queue_base=np.zeros(1, dtype=np.uint64),
        queue_slope=np.ones(1, dtype=np.uint64),
        base=base,
        slope=(per_unit * scale).astype(np.uint64),
        per_tuple=(per_tuple * scale).astype(np.uint64),
        exact=True,
        by_age=bool(slope.any()),
    )
