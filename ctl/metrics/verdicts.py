"""What holds an operator back, from how its threads spent a window of time.

Each second of a thread is one of: running (where the machine is virtual: or robbed of its CPU by
the hypervisor); waiting for a CPU; asleep because a queue downstream is full; asleep with work in
hand (I/O, a lock, memory, a timer); asleep without input. The kernel measures the first two
(schedstat, /proc/stat), the engine says what the rest was, if it says anything; where it does not,
its queues tell: who sleeps while tuples wait does not sleep for lack of input, and who sleeps
before a queue that is full is held by it. An ingress that sleeps is not blamed unless something is
known to wait before it.
docs/bottlenecks.md has the rules with their sources. Pure functions over whole columns.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sched_ctl.metrics.window import Window
from sched_ctl.model.graph import Array, Graph, Index
from sched_ctl.model.policy import Level

__all__ = [
    "HOLDS",
    "NEEDED",
    "SATURATED",
    "Assessment",
    "Judged",
    "Verdict",
    "assess",
    "codes",
    "judged",
    "of_query",
    "rows_by",
    "worst",
]

Mask = npt.NDArray[np.bool_]

LEAST_SHARE = 0.10  # of the time: what takes less holds nobody back
STARVED_RATIO = 0.25  # of the time that it could run, it waited: with a CPU, a third faster
IDLE_RUN = 0.01  # CPU share of a thread that does nothing but look whether there is something
LOOKING_RUN = 0.02  # the same of one that looks again and again: Storm's take 1 to 1.5%
LOOKING_MOST = 0.10  # of one that has had no tuple: on a slow or crowded CPU looks take longer
SATURATED = 0.85  # runs or waits for a CPU so much of the time: never out of work
NEVER = 0.005  # of the time: less is none at all
LEAST_WINDOW_S = 0.25  # below, a scheduler tick is several per cent
GROWS = 4.0  # standard deviations of Poisson arrivals by which a queue that grows has grown
FULL = 0.9  # of its capacity: a queue that is longer is full but for a moment
GUESSED = 0.6  # what a share is worth that nobody tells

# Columns of snapshots that verdicts are made of
NEEDED = frozenset(
    {
        *("thread_cpu_time", "cpu_time", "run_delay", "idle_time", "backpressured_time"),
        *("io_delay", "memory_delay", "gc_time", "cpu_steal", "cpu_busy"),
        *("tuples_in", "tuples_out", "queue_size", "queue_size_estimate", "backlog"),
        "queue_capacity",
    }
)


class Verdict(IntEnum):
    """What an operator waits for. The numbers are those of the metric `verdict`."""

    UNKNOWN = 0
    IDLE = 1
    INPUT_BOUND = 2
    CPU_STARVED = 3
    SINGLE_THREAD_BOUND = 4
    IO_BOUND = 5
    MEMORY_BOUND = 6
    BACKPRESSURED = 7
    KEEPS_UP = 8  # of a query alone
    LOCK_BOUND = 9  # of who was looked at while it slept: to all others it is IO_BOUND

    @property
    def word(self) -> str:
        return self.name.lower().replace("_", "-")


# Those that hold a query back of themselves; a backpressured operator is held by another one.
HOLDS = frozenset(
    {
        Verdict.CPU_STARVED,
        Verdict.SINGLE_THREAD_BOUND,
        Verdict.IO_BOUND,
        Verdict.MEMORY_BOUND,
    }
)


@dataclass(frozen=True, eq=False)
class Assessment:
    """The n physical operators of one engine over one window.

    verdict: (n,) `Verdict` codes. confidence: (n,) 0..1, how far the share that decided stands out
    times how much was measured rather than guessed. limit: (n,) row of the operator that holds a
    backpressured one, -1 for all others. run .. idle: (n,) shares of the time of the operator's
    threads, which add up to 1 where all are known; NaN = unknown. keeps: (n,) 1 for who keeps up
    with its input, 0 for who does not, NaN = unknown. quality: (n,) 0..1, how much of its shares
    was measured. moved: (n,) tuples that it took in or gave out over the longest window looked at;
    NaN = nobody counts. stolen: (n,) what of `run` the hypervisor had. queue, queue_before: (n,)
    tuples at the end and at the begin of the window. io, memory:
    (n,) shares of the time asleep that the kernel says went to block I/O and to memory; the first
    may hold the second. gc: (n,) share of the time in which its JVM stood still for its garbage
    collector. backlog: (n,) bytes in the sockets of an ingress. seconds: the window's length.
    """

    verdict: npt.NDArray[np.int8]
    confidence: Array
    limit: Index
    run: Array
    wait: Array
    backpressured: Array
    blocked: Array
    idle: Array
    keeps: Array
    quality: Array
    moved: Array
    stolen: Array
    queue: Array
    queue_before: Array
    io: Array
    memory: Array
    gc: Array
    backlog: Array
    seconds: float

    @cached_property
    def severity(self) -> Array:
        """(n,) share of the time that the verdict speaks of; 0 where nothing holds."""
        by_code = {
            Verdict.CPU_STARVED: self.wait,
            Verdict.SINGLE_THREAD_BOUND: self.run,
            Verdict.IO_BOUND: self.blocked,
            Verdict.MEMORY_BOUND: self.blocked,
            Verdict.BACKPRESSURED: self.backpressured,
        }
        found = np.zeros(len(self.verdict))
        for code, share in by_code.items():
            found = np.where(self.verdict == code, share, found)
        return np.nan_to_num(found)


class _Spent(NamedTuple):
    """Where each operator's time went, as shares of it, (n,) each; NaN where nobody tells.

    known: of the time asleep, what the kernel counted for disks and memory. told: whether the
    engine says when the operator has no input.
    """

    run: Array
    wait: Array
    stolen: Array
    idle: Array
    full: Array
    blocked: Array
    io: Array
    memory: Array
    gc: Array
    known: Array
    told: Mask


def _spent(window: Window, queue: Array, before: Array, unserved: Array | None) -> _Spent:
    """queue, before: (n,) queue sizes at both ends of the window."""
    each, run, wait, stolen = _awake(window, unserved)
    asleep = np.maximum(1.0 - run - np.nan_to_num(wait), 0.0)  # not below, by rounding
    with np.errstate(all="ignore"):
        io, memory = (
            np.clip(window.rate(name) / each, 0.0, asleep) for name in ("io_delay", "memory_delay")
        )
        gc = np.clip(window.rate("gc_time"), 0.0, asleep)
    # What the kernel counted was neither idle nor held by a queue, whatever the engine says.
    counted = np.fmax(io, memory)
    known = np.nan_to_num(counted)
    works = _works(window, queue, before)
    idle, full, told = _asleep(window, asleep - known, asleep, queue, before, works)
    # Where nobody counts the wait for a CPU, what is left over may be that.
    blocked = np.where(np.isnan(wait), np.nan, np.clip(asleep - idle - full, 0.0, 1.0))
    # Who sleeps at the front, and says neither that it has no input nor what waits for it, may pace
    # itself.
    paced = window.graph.ingress & ~works & (blocked - known >= LEAST_SHARE)
    idle = np.where(paced & (idle < LEAST_SHARE), np.nan, idle)
    blocked = np.where(paced, np.fmax(counted, gc), np.where(np.isnan(blocked), counted, blocked))
    return _Spent(run, wait, stolen, idle, full, blocked, io, memory, gc, known, told)


def assess(
    window: Window,
    queue: Array | None = None,
    memory_pressure: float | Array = float("nan"),
    *,
    longer: Window | None = None,
    missed: Mask | None = None,
    unserved: Array | None = None,
) -> Assessment:
    """The verdicts of a window over physical operators.

    queue: (n,) queue sizes now, where they are not what the engine reports but derived; a driver's
    estimate is none, as it is above 0 for a thread that has just been woken.
    memory_pressure: share of the time in which some task waited for memory (PSI), of the engine's
    cgroup or of the machine; or (n,) of each operator's.
    longer: a window that began earlier; nothing arrives where nothing did in that one.
    missed: (n,) whether the operator's query misses its target: who keeps up may be starved, too.
    unserved: (n,) s of the window that its threads waited for a CPU, in waits that have not ended.
    """
    guessed = "queue_size_estimate" in window.now.columns
    queue_now = window.value("queue_size") if queue is None or guessed else queue
    before = _queue_before(window)
    late = np.zeros(len(queue_now), dtype=np.bool_) if missed is None else missed
    moved = _moved(window, longer, queue_now)
    spent = _spent(window, queue_now, before, unserved)
    spent = _without_looks(window, spent, queue_now, before, late, moved)
    run, wait, idle, full, blocked = spent.run, spent.wait, spent.idle, spent.full, spent.blocked
    keeps = _keeps_up(run, wait, idle, queue_now - before, window.gain("tuples_in"))
    verdict = _judge(run, wait, full, blocked, idle, moved, (keeps == 0) | late)
    with np.errstate(all="ignore"):
        for_memory = _for_memory(spent.memory, blocked, memory_pressure) | (spent.gc >= blocked / 2)
    verdict[(verdict == Verdict.IO_BOUND) & for_memory] = Verdict.MEMORY_BOUND
    lengths = window.seconds if window.lengths is None else window.lengths
    verdict[np.broadcast_to(~(np.asarray(lengths) >= LEAST_WINDOW_S), verdict.shape)] = (
        Verdict.UNKNOWN
    )
    asleep_at_work = (verdict == Verdict.IO_BOUND) | (verdict == Verdict.MEMORY_BOUND)
    sure = spent.told | (asleep_at_work & (spent.known >= np.nan_to_num(blocked) / 2))
    quality = np.where(sure, 1.0, GUESSED) * np.where(np.isnan(wait), 0.5, 1.0)
    return Assessment(
        verdict=verdict,
        confidence=quality * _margin(verdict, run, wait, full, blocked, idle),
        limit=_limits(window.graph, verdict, idle),
        run=run,
        wait=wait,
        backpressured=full,
        blocked=blocked,
        idle=idle,
        keeps=keeps,
        quality=quality,
        moved=moved,
        stolen=np.where(np.isnan(window.gain("cpu_steal")), np.nan, spent.stolen),
        queue=queue_now,
        queue_before=before,
        io=spent.io,
        memory=spent.memory,
        gc=spent.gc,
        backlog=window.value("backlog"),
        seconds=window.seconds if len(run) else float("nan"),
    )


def codes(window: Window, queue: Array | None = None) -> Array:
    """(n,) codes as a metric, over the operators of the window's level.

    A logical operator has that of its replica which is held most: the largest share counts, not
    the mean (as for the true processing rate in Kalavri et al. 2018, section 3.2).
    """
    if window.level is Level.PHYSICAL:
        return assess(window, queue).verdict.astype(np.float64)
    topology = window.now.topology
    found = assess(Window(window.now, window.then))
    physical, logical, _, _ = topology.logical_rows
    column = np.zeros(len(topology.logical))
    for row, mine in rows_by(logical, len(column)):
        column[row] = found.verdict[worst(found, physical[mine])]
    return column


def rows_by(group: Index, groups: int) -> Iterator[tuple[int, Index]]:
    """Each group that has members, with their positions in `group`, in order."""
    order = np.argsort(group, kind="stable")
    ends = np.searchsorted(group[order], np.arange(groups + 1))
    for number in range(groups):
        if ends[number] < ends[number + 1]:
            yield number, order[ends[number] : ends[number + 1]]


def worst(found: Assessment, rows: Index) -> int:
    """Which of these operators is held back most, by what they can be held; the first of equals."""
    severity = found.severity[rows]
    known = np.where(found.verdict[rows] == Verdict.UNKNOWN, -2.0, -1.0)
    active = np.where(found.verdict[rows] == Verdict.INPUT_BOUND, -0.5, known)
    return int(rows[np.argmax(np.where(severity > 0, severity, active))])


def of_query(found: Assessment, rows: Index) -> int:
    """The operator whose verdict is that of a query.

    It is the one that holds back most others, if one does; else the worst of those that are held
    by themselves; else the worst of all.
    """
    count = Counter(found.limit[rows].tolist())
    own = rows[np.isin(found.verdict[rows], [int(verdict) for verdict in HOLDS])]
    candidates = [row for row in own.tolist() if row in count]
    if candidates:
        return int(max(candidates, key=lambda row: count[row] + float(found.severity[row])))
    return worst(found, own if len(own) else rows)


@dataclass(frozen=True, slots=True)
class Judged:
    """What holds a query over a window of `seconds`. row: of the operator that it is about."""

    verdict: Verdict
    row: int
    confidence: float
    seconds: float


def judged(found: Assessment, rows: Index) -> Judged:
    """A query as a whole: it keeps up if all of its operators do that tell; else who holds it.

    That it keeps up is about the operator with the least to spare. One through which no tuple goes
    has nothing to keep up with.
    """
    held = of_query(found, rows)
    verdict = Verdict(found.verdict[held])
    keeps, codes_ = found.keeps[rows], found.verdict[rows]
    told = rows[keeps == 1]
    late = (codes_ == Verdict.CPU_STARVED).any()  # one that keeps up is, if a target is missed
    if (codes_ == Verdict.IDLE).all() or (keeps == 0).any() or late or not len(told):
        return Judged(verdict, held, float(found.confidence[held]), found.seconds)
    moved = found.moved[rows]
    uncounted = np.isnan(moved) & (found.run[rows] >= LOOKING_MOST)  # at work on what nobody counts
    if not ((moved > 0) | uncounted).any() and (moved == 0).any():
        return _silent(found, rows, held)
    spare = np.nan_to_num(found.idle[told])
    tightest = int(told[np.argmin(spare)])
    margin = float(np.clip(spare.min() / (2 * LEAST_SHARE), 0.0, 1.0))
    worth = float(found.quality[told].min())
    sure = margin * (worth if len(told) == len(rows) else min(worth, GUESSED))
    return Judged(Verdict.KEEPS_UP, tightest, sure, found.seconds)


def _silent(found: Assessment, rows: Index, held: int) -> Judged:
    """A query through which no tuple goes: idle, as far as its operators are known to be.

    One that works nevertheless, say at a timer, is not: then it has the verdict of who holds it.
    """
    verdict = Verdict(found.verdict[held])
    idle = rows[found.verdict[rows] == Verdict.IDLE]
    held_back = verdict not in (Verdict.IDLE, Verdict.INPUT_BOUND, Verdict.UNKNOWN)
    if not len(idle) or held_back or (found.run[rows] >= LOOKING_MOST).any():
        return Judged(verdict, held, float(found.confidence[held]), found.seconds)
    sure = GUESSED * float(found.confidence[idle].min())  # the others are not
    return Judged(Verdict.IDLE, int(idle[0]), sure, found.seconds)


def _awake(window: Window, unserved: Array | None = None) -> tuple[Array, Array, Array, Array]:
    """(n,) threads of each operator (NaN: none), and what they ran, waited, and were robbed of.

    unserved: s waited that the kernel has not counted yet.
    """
    threads = np.array([len(getattr(o, "threads", ())) for o in window.operators], dtype=float)
    each = np.where(threads > 0, threads, np.nan)
    with np.errstate(all="ignore"):
        run = np.clip(window.rate("thread_cpu_time") / each, 0.0, 1.0)
        told = np.clip(window.rate("cpu_time") / np.fmax(each, 1.0), 0.0, 1.0)
        run = np.where(np.isnan(run), told, run)
        delay = window.rate("run_delay")
        delay = delay if unserved is None else delay + unserved / window.seconds
        wait = np.clip(delay / each, 0.0, 1.0 - np.nan_to_num(run))
    stolen = _stolen(window, run, 1.0 - run - np.nan_to_num(wait))
    return each, run + stolen, wait, stolen


def _stolen(window: Window, run: Array, rest: Array) -> Array:
    """(n,) shares of the time in which a CPU that it had was the hypervisor's; `rest` at most.

    To the kernel such a thread neither runs nor waits. Whose thread it was is not known: each lost
    in proportion to what it ran.
    """
    with np.errstate(all="ignore"):
        lost = run * window.gain("cpu_steal") / window.gain("cpu_busy")
    return np.clip(np.nan_to_num(lost, posinf=0.0), 0.0, np.maximum(np.nan_to_num(rest), 0.0))


def _works(window: Window, queue: Array, before: Array) -> Mask:
    """(n,) whether something waits for it, at both ends: what was between, nobody saw.

    What comes while it backs off is no backlog.
    """
    known = ~np.isnan(queue) & ~np.isnan(before)
    usual = np.nan_to_num(window.rate("tuples_in")) * window.now.topology.backoff_s
    return np.where(known, (queue > usual) & (before > usual), _has_backlog(window))


def _asleep(
    window: Window, unknown: Array, asleep: Array, queue: Array, before: Array, works: Mask
) -> tuple[Array, Array, Mask]:
    """(n,) shares without input and held by a full queue, and whether the engine told the first.

    unknown: of the time asleep, what nobody but the engine can tell the reason of. NaN where it
    does not, and neither do queues.

    A thread that was woken and waits for a CPU is still idle, or blocked, in the engine's books:
    what it says is cut down to the time that the thread slept.
    """
    idle, full = window.rate("idle_time"), window.rate("backpressured_time")
    told = ~np.isnan(idle)
    known = works | (~np.isnan(queue) & ~np.isnan(before))
    with np.errstate(all="ignore"):
        said = np.nan_to_num(idle) + np.nan_to_num(full)
        fits = np.where(said > unknown, unknown / said, 1.0)
    # A producer that sleeps on its work, before a consumer that is never out of work
    before_busy = _feeds(window.graph, (1.0 - asleep >= SATURATED) & works)
    held = (works & before_busy) | _before_full(window, queue, before)
    guessed = np.where(held, unknown, np.where(known | told, 0.0, np.nan))
    full = np.where(np.isnan(full), guessed, full * fits)
    left = np.maximum(unknown - np.nan_to_num(full), 0.0)
    idle = np.where(told, idle * fits, np.where(works, 0.0, np.where(known, left, np.nan)))
    awake = unknown < NEVER  # what is not there needs nobody to tell it
    return np.where(awake & ~told, 0.0, idle), np.where(awake & np.isnan(full), 0.0, full), told


def _without_looks(
    window: Window, spent: _Spent, queue: Array, before: Array, late: Mask, moved: Array
) -> _Spent:
    """The same, where to wait for a CPU to look again is to be without input, or held.

    So it is with an engine whose threads look again and again whether there is any, or room, of
    those that had an empty queue at both ends, or a full one before them. What waits for an ingress
    its queue does not tell: that one has to sleep, too. Of who works and is late, each wait counts.
    """
    if not window.now.topology.idle_spins:
        return spent
    held = _before_full(window, queue, before, same=True)
    looks = (spent.idle >= LEAST_SHARE) | ~window.graph.ingress
    looks &= ~(late & (spent.run >= LOOKING_RUN))
    empty = (queue == 0) & (before == 0) & looks & ~held
    looked = np.nan_to_num(spent.wait)
    most = np.where(moved == 0, LOOKING_MOST, LOOKING_RUN)
    few = np.where(empty & (spent.run < most), spent.run, 0.0)
    return spent._replace(
        run=spent.run - few,
        wait=np.where(empty | held, 0.0, spent.wait),
        idle=np.where(empty, spent.idle + looked + few, spent.idle),
        full=np.where(held, spent.full + looked, spent.full),
    )


def _moved(window: Window, longer: Window | None, queue: Array) -> Array:
    """(n,) tuples taken in or given out, over the longer window if there is one; NaN = unknown.

    Storm, whose threads look for tuples all the time, counts none before the first: who tells its
    queue alone has had none, and one that has a count by now had its first ones.
    """
    names = ("tuples_in", "tuples_out")
    windows = [window] if longer is None else [window, longer]
    moved: Array = np.fmax.reduce([one.gain(name) for one in windows for name in names])
    if window.now.topology.idle_spins and window.now.columns.keys() & {*names}:
        first = np.nan_to_num(np.fmax(*(window.value(name) for name in names)))
        return np.where(np.isnan(moved) & ~np.isnan(queue), first, moved)
    return moved


def _before_full(window: Window, queue: Array, before: Array, *, same: bool = False) -> Mask:
    """(n,) whether a queue that it feeds was full at both ends. same: not one and then another."""
    with np.errstate(invalid="ignore"):
        most = FULL * window.value("queue_capacity")
        now, then = ((most > 0) & (size >= most) for size in (queue, before))
    if same:
        return _feeds(window.graph, now & then)
    return _feeds(window.graph, now) & _feeds(window.graph, then)


def _feeds(graph: Graph, which: Mask) -> Mask:
    """(n,) whether it feeds one of these."""
    found = np.zeros(len(which), dtype=np.bool_)
    np.logical_or.at(found, graph.source, which[graph.target])
    return found


def _keeps_up(run: Array, wait: Array, idle: Array, growth: Array, taken: Array) -> Array:
    """(n,) 1 for who has time to spare, and no queue that grows; 0 for who has not; NaN = unknown.

    growth: of its queue, tuples. taken: tuples that it took in. One that takes nothing while it
    waits for a CPU has tuples that wait for it.
    """
    more, done = np.nan_to_num(growth), np.nan_to_num(taken)
    grows = (more > LEAST_SHARE * done) & (more > GROWS * np.sqrt(np.maximum(done + more, 0.0)))
    moves = (done > 0) | (run >= IDLE_RUN) | ~(wait >= LEAST_SHARE)
    spare = np.where(np.isnan(idle), np.nan, (idle >= LEAST_SHARE) & moves)
    never_out = run + np.nan_to_num(wait) >= SATURATED
    spare = np.where(np.isnan(spare) & never_out, 0.0, spare)
    return np.where(grows, 0.0, spare)


def _queue_before(window: Window) -> Array:
    if window.base is None:
        return np.full(len(window.operators), np.nan)
    return Window(window.base).value("queue_size")


def _has_backlog(window: Window) -> Mask:
    """(n,) whether something waited in an ingress's sockets at both ends."""
    then = np.zeros(len(window.operators))
    if window.base is not None:
        then = Window(window.base).value("backlog")
    return (window.value("backlog") > 0) & (then > 0)


def _judge(
    run: Array, wait: Array, full: Array, blocked: Array, idle: Array, moved: Array, behind: Mask
) -> npt.NDArray[np.int8]:
    """The rules, last one first: each overrules those above it.

    behind: (n,) whether it is known not to keep up, or to be too late.
    """
    waits = np.nan_to_num(wait)
    losses = np.stack([waits, np.nan_to_num(full), np.nan_to_num(blocked)])
    largest = np.argmax(losses, axis=0)
    counts = losses.max(axis=0, initial=0.0) >= LEAST_SHARE
    verdict = np.full(len(run), Verdict.UNKNOWN, dtype=np.int8)

    def rule(where: Mask, code: Verdict) -> None:
        verdict[where] = code

    rule(idle >= LEAST_SHARE, Verdict.INPUT_BOUND)
    rule(run + waits >= SATURATED, Verdict.SINGLE_THREAD_BOUND)
    rule((idle < LEAST_SHARE) & (run >= losses.max(axis=0)), Verdict.SINGLE_THREAD_BOUND)
    starved = counts & (largest == 0) & (waits >= STARVED_RATIO * (run + waits))
    rule(starved & (idle >= LEAST_SHARE), Verdict.INPUT_BOUND)
    rule(starved & np.isnan(idle), Verdict.UNKNOWN)
    rule(starved & behind, Verdict.CPU_STARVED)
    rule(counts & (largest == 1), Verdict.BACKPRESSURED)
    rule(counts & (largest == 2), Verdict.IO_BOUND)
    nothing = (run < IDLE_RUN) & ~counts & (idle >= 1.0 - LEAST_SHARE)
    rule(nothing & ~(moved > 0), Verdict.IDLE)
    rule(np.isnan(run) & np.isnan(idle), Verdict.UNKNOWN)
    return verdict


def _for_memory(memory: Array, blocked: Array, pressure: float | Array) -> Mask:
    """Whether the time asleep with work in hand was spent on memory.

    By the kernel's own account of the thread where there is one, else by the pressure on memory,
    if that lasted for at least half as long.
    """
    with np.errstate(all="ignore"):
        pressed = (pressure >= LEAST_SHARE) & (pressure >= blocked / 2)
        return np.where(np.isnan(memory), pressed, memory >= blocked / 2)


def _margin(
    verdict: npt.NDArray[np.int8], run: Array, wait: Array, full: Array, blocked: Array, idle: Array
) -> Array:
    """(n,) the share that decided, over itself and the largest that spoke against it."""
    run, wait, full, blocked, idle = map(np.nan_to_num, (run, wait, full, blocked, idle))
    largest = np.maximum
    runs = run * STARVED_RATIO / (1 - STARVED_RATIO)  # as much as a wait that would be too short

    def over(share: Array, against: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.where(share > 0, share / (share + against), 0.0)

    margin = np.zeros(len(run))
    for code, share, against in (
        (Verdict.IDLE, np.ones(len(run)), largest(largest(wait, full), blocked)),
        (Verdict.INPUT_BOUND, idle, largest(largest(wait, full), blocked)),
        (Verdict.CPU_STARVED, wait, largest(largest(full, blocked), largest(idle, runs))),
        (Verdict.SINGLE_THREAD_BOUND, run, largest(largest(wait, full), largest(blocked, idle))),
        (Verdict.IO_BOUND, blocked, largest(wait, full)),
        (Verdict.MEMORY_BOUND, blocked, largest(wait, full)),
        (Verdict.BACKPRESSURED, full, largest(wait, blocked)),
    ):
        margin = np.where(verdict == code, over(share, against), margin)
    return margin


def _limits(graph: Graph, verdict: npt.NDArray[np.int8], idle: Array) -> Index:
    """(n,) for each backpressured operator the one that holds it, downstream; -1 for others.

    Of the operators that it feeds, the one with the least time without input; if that one is
    backpressured itself, the one that holds it.
    """
    limit = np.full(graph.n, -1, dtype=np.intp)
    held = np.flatnonzero(verdict == Verdict.BACKPRESSURED)
    if not len(held):
        return limit
    pressed = np.nan_to_num(1.0 - idle, nan=0.5)
    below = dict(rows_by(graph.source, graph.n))
    for row in held[np.argsort(graph.height[held], kind="stable")].tolist():
        if row in below:
            targets = graph.target[below[row]]
            fullest = int(targets[np.argmax(pressed[targets])])
            limit[row] = limit[fullest] if limit[fullest] >= 0 else fullest
    return limit
