"""What operators weigh together beside everybody else: as much as in the kernel's fair class.

There an engine weighs what its threads weigh that want a CPU at a time. An order changes who does:
whoever is last in it waits, and wants the CPU all the while. On a real Flink whose saturated query
was last, its source and its parser never slept for want of a turn, so the engine weighed 3 threads
instead of 1.4 and took 39% of a neighbour's CPU time.

What the fair class would give can be told from what the threads ran, for tuples tie the operators
of a query together, whatever the order. Its busiest thread wants a CPU for some part of the time,
all of it if the query is saturated. Beside it a thread that uses a tenth of its CPU time would want
one for a tenth of its time. So a query weighs

    N = (longest part of the time that one of its threads wants a CPU) * sum(C_i) / max(C_i / w_i)

with C_i the CPU time of its threads and w_i their weights (1 = nice 0). Where all threads together
were counted with more than the sum over the queries, that part of it counts from now on. Without
its first factor N is what the query weighs while it wants a CPU: by that its floor is reckoned.
"""

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sched_ctl.kernel.scheduler import Scheduler
from sched_ctl.model.graph import Array, Index

__all__ = ["Lately", "Weight", "fair_weight", "threads_of"]

LEAST_S = 0.5  # from one look to the next
SMOOTH_S = 2.0
LEAST_USE = 0.01  # of a CPU: below, it says nothing


@dataclass(frozen=True)
class Lately:
    """What (n,) threads did since the last look, as `fair_weight` has it.

    smooth: which part of it counts from now on.
    """

    queries: Index
    cpu: Array
    wanted: Array
    own: Array
    smooth: float

    def while_wanting(self, rows: slice) -> Array | None:
        """What each of these weighs in the fair class while any of them wants a CPU; None: they
        wanted none for long enough to tell. Queries come and go each for itself.
        """
        cpu, own = self.cpu[rows], self.own[rows]
        wants = np.maximum(self.wanted[rows], np.minimum(cpu, 1.0))
        if wants.sum() < LEAST_USE:
            return None
        query, _, most = _by_query(self.queries[rows], cpu, own)
        longest = np.zeros(len(most))
        np.maximum.at(longest, query, wants)
        some = 1.0 - float(np.prod(1.0 - longest))
        if cpu.sum() < LEAST_USE:  # who is kept from running weighs what it waits with
            return wants * own / some
        alike = 1 / np.bincount(query)[query]  # where none of the query ran, but one wanted to
        threads = np.divide(cpu, most[query], out=alike, where=most[query] > 0)
        return longest[query] * threads / some


class Weight:
    """What the scheduler is told of weights, by what its threads did since the last look.

    fair: whether others share the CPU with operators by weight: `control.weight_part`. In any case
    `weights`: of each query, for its floor (bpf/floor.bpf.h).
    """

    def __init__(self, scheduler: Scheduler, *, fair: bool = True) -> None:
        self._scheduler = scheduler
        self._fair = fair
        self._slots: Index = np.zeros(0, dtype=np.intp)
        self._queries: Index = np.zeros(0, dtype=np.intp)
        self._strict = np.zeros(0, dtype=np.bool_)
        self._own: Array = np.zeros(0)
        self._threads: Array = np.zeros(0)
        self._part = 1.0
        # Of each thread what it ran, and ran or waited; of all, as counted by the scheduler.
        self._seen: tuple[NDArray[np.int64], NDArray[np.int64], int, int]
        self._remember(time.monotonic())

    def of(self, slots: Index, queries: Index, strict: NDArray[np.bool_]) -> None:
        """To be called before the slots are filled.

        slots: (n,) of all adopted threads. queries: (n,) numbers of theirs, 0 = not known.
        strict: (n,) whether the thread's query has no floor.
        """
        same = np.array_equal(slots, self._slots)
        if not same:
            self._move(slots)
            self._threads = np.ones(len(slots))
        if not (same and np.array_equal(queries, self._queries)):
            self._threads = np.ones(len(slots))
            self._queries = queries.copy()
        elif np.array_equal(strict, self._strict):
            return
        self._strict = strict.copy()
        self._tell()

    def _move(self, slots: Index) -> None:
        """What is known of threads that stay is kept, whoever comes and goes."""
        place = np.full(len(self._scheduler.threads), -1, dtype=np.intp)
        place[self._slots] = np.arange(len(self._slots))
        at = place[slots]
        stays = at >= 0
        run_ns, wanted_ns, total_ns, weighed_ns = self._seen
        own, at_s = self._own, self._at_s
        self._slots, self._own = slots.copy(), np.ones(len(slots))
        self._own[stays] = own[at[stays]]
        self._remember(at_s)
        self._seen[0][stays], self._seen[1][stays] = run_ns[at[stays]], wanted_ns[at[stays]]
        self._seen = (*self._seen[:2], total_ns, weighed_ns)

    def _tell(self) -> None:
        """The floors' weights, as they are known now."""
        limits, weights = self._scheduler.limits, self._scheduler.weights
        told = np.zeros(len(weights), dtype=weights.dtype)
        one = np.maximum(1, np.rint(self._threads * limits["WEIGHT_ONE"]))
        told[self._queries % limits["MAX_QUERIES"]] = np.where(self._strict, 0, one)
        told[0] = 0
        weights[:] = told

    def look(self) -> Lately | None:
        """To be called now and then. Returns what was seen, if it is time and says something."""
        now_s = time.monotonic()
        elapsed_s = now_s - self._at_s
        if elapsed_s < LEAST_S:
            return None
        run_ns, wanted_ns, operator_ns, weighed_ns = self._seen
        self._remember(now_s)
        elapsed_ns = elapsed_s * 1e9
        used_ns, counted_ns = self._seen[2] - operator_ns, self._seen[3] - weighed_ns
        if used_ns < LEAST_USE * elapsed_ns:
            return None
        cpu = np.maximum(self._seen[0] - run_ns, 0) / elapsed_ns
        wanted = np.clip((self._seen[1] - wanted_ns) / elapsed_ns, 0, 1)
        smooth = min(1.0, elapsed_s / SMOOTH_S)
        threads, enough = threads_of(self._queries, cpu, self._own)
        self._threads += np.where(enough, threads - self._threads, 0.0) * smooth
        self._tell()
        if self._fair and counted_ns > 0:
            fair = fair_weight(self._queries, cpu, wanted, self._own)
            part = min(1.0, fair * counted_ns / used_ns)
            self._part += (part - self._part) * smooth
            one = self._scheduler.limits["WEIGHT_ONE"]
            self._scheduler.control["weight_part"] = max(1, round(self._part * one))
        return Lately(self._queries, cpu, wanted, self._own, smooth)

    def _remember(self, now_s: float) -> None:
        scheduler, slots = self._scheduler, self._slots
        self._at_s = now_s
        seen = scheduler.threads
        run_ns = seen["run_ns"][slots].astype(np.int64)
        queued_ns = seen["queued_ns"][slots].astype(np.int64)
        waits_ns = np.where(queued_ns > 0, np.maximum(scheduler.now_ns() - queued_ns, 0), 0)
        wanted_ns = run_ns + seen["wait_ns"][slots].astype(np.int64) + waits_ns
        weight = seen["weight"][slots]  # 0 while it sleeps
        self._own = np.where(weight > 0, weight / scheduler.limits["WEIGHT_ONE"], self._own)
        total_ns, weighed_ns = (scheduler.counter(name) for name in ("operator_ns", "weighed_ns"))
        self._seen = run_ns, wanted_ns, total_ns, weighed_ns


def fair_weight(queries: Index, cpu: Array, wanted: Array, own: Array) -> float:
    """What threads would weigh together in the fair class, in threads of nice 0.

    queries: (n,) numbers, 0 = a query of its own. cpu, wanted: (n,) parts of the time in which each
    ran, and ran or waited. own: (n,) weights, 1 = nice 0.
    """
    query, total, most = _by_query(queries, cpu, own)
    longest = np.zeros(len(total))
    np.maximum.at(longest, query, wanted)
    threads = np.divide(total, most, out=np.ones(len(total)), where=most > 0)
    return float((longest * threads).sum())


def threads_of(queries: Index, cpu: Array, own: Array) -> tuple[Array, NDArray[np.bool_]]:
    """(n,) what the thread's query weighs in the fair class while its busiest thread wants a CPU,
    in threads of nice 0; (n,) whether it used enough of a CPU to tell. As `fair_weight`.
    """
    query, total, most = _by_query(queries, cpu, own)
    enough = total >= LEAST_USE
    threads = np.divide(total, most, out=np.ones(len(total)), where=enough & (most > 0))
    return threads[query], enough[query]


def _by_query(queries: Index, cpu: Array, own: Array) -> tuple[Index, Array, Array]:
    """(n,) numbers from 0; of each query its CPU, and the most C_i / w_i."""
    numbers = np.where(queries == 0, -1 - np.arange(len(queries)), queries)
    query = np.unique(numbers, return_inverse=True)[1].reshape(-1)
    count = int(query.max(initial=-1)) + 1
    total, most = np.zeros(count), np.zeros(count)
    np.add.at(total, query, cpu)
    np.maximum.at(most, query, cpu / own)
    return query, total, most
