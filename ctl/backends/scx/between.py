"""What schedules weigh against each other: what the kernel's fair class would give their threads.

It knows of no schedules. Threads share a CPU by weight, and at each level of cgroups the groups do;
who sleeps has no share. So a schedule's weight is made of what its threads weigh while it wants a
CPU (`weight.Lately`), added up by cgroup, and divided from the root down as the kernel would among
these threads. Until they have run, or waited, it counts as one thread of nice 0.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from sched_ctl.backends.scx.weight import Lately
from sched_ctl.kernel import cgroup
from sched_ctl.model.graph import Array, Index
from sched_ctl.model.topology import Thread

__all__ = ["Between", "divided"]

Chain = tuple[Path, ...]  # cgroups that have a weight, from the root down

RECHECK_S = 10.0  # for how long a process is believed to be in a cgroup


class Between:
    """Weights of the schedules of one loaded scheduler, by scope."""

    def __init__(
        self,
        chain_of: Callable[[int], Chain] = cgroup.weighed,
        weight_of: Callable[[Path], float] = cgroup.relative_weight,
    ) -> None:
        self._chain_of, self._weight_of = chain_of, weight_of
        self._wants: dict[str, Mapping[Chain, float]] = {}  # in threads of nice 0
        self._there: dict[str, Mapping[Chain, float]] = {}  # the same whatever their nice values
        self._given: dict[str, float] = {}  # by what they want, as long as nothing new is known
        self._chains: dict[int, Chain] = {}
        self._rows: dict[str, tuple[Sequence[Thread], list[int], Index]] = {}  # processes
        self._read_s = time.monotonic()

    def weights(self, scopes: Mapping[str, Sequence[Thread]]) -> list[float]:
        """The part that each has of what all get together."""
        used = {name: threads for name, threads in scopes.items() if threads}
        if self._given.keys() != used.keys():
            self._wants = {name: wants for name, wants in self._wants.items() if name in used}
            self._there = {name: there for name, there in self._there.items() if name in used}
            self._rows = {name: rows for name, rows in self._rows.items() if name in used}
            self._given = {}
        if len(used) < 2:
            return [1.0] * len(scopes)
        if not self._given:
            alike = {
                name: np.full(len(threads), 1 / len(threads)) for name, threads in used.items()
            }
            known = {
                name: self._wants.get(name) or self._by_chain(name, threads, alike[name])
                for name, threads in used.items()
            }
            there = {name: self._there.get(name, known[name]) for name in used}
            self._given = dict(divided(known, self._weight_of, there))
        return [self._given.get(name, 0.0) for name in scopes]

    def look(self, scopes: Mapping[str, Sequence[Thread]], lately: Lately) -> None:
        """lately: of the threads of all scopes, one scope after the other."""
        now_s = time.monotonic()
        if now_s - self._read_s > RECHECK_S:
            self._chains, self._read_s = {}, now_s
        first = 0
        for name, threads in scopes.items():
            rows = slice(first, first + len(threads))
            first += len(threads)
            if (weighs := lately.while_wanting(rows)) is None:
                continue
            self._given = {}
            for kept, each in (
                (self._wants, weighs),
                (self._there, weighs / lately.own[rows]),
            ):
                now = self._by_chain(name, threads, each)
                kept[name] = _smoothed(kept.get(name, now), now, lately.smooth)

    def _by_chain(
        self, name: str, threads: Sequence[Thread], weighs: Array
    ) -> Mapping[Chain, float]:
        known = self._rows.get(name)
        if known is None or known[0] is not threads:
            pids, at = np.unique([thread.pid for thread in threads], return_inverse=True)
            known = self._rows[name] = threads, pids.tolist(), at.ravel()
        _, processes, of = known
        found: defaultdict[Chain, float] = defaultdict(float)
        for pid, weight in zip(processes, np.bincount(of, weighs).tolist(), strict=True):
            if pid not in self._chains:
                self._chains[pid] = self._chain_of(pid)
            found[self._chains[pid]] += weight
        return found


def _smoothed(
    before: Mapping[Chain, float], now: Mapping[Chain, float], part: float
) -> Mapping[Chain, float]:
    return {
        chain: (1 - part) * before.get(chain, 0.0) + part * now.get(chain, 0.0)
        for chain in {**before, **now}
    }


def divided(
    wants: Mapping[str, Mapping[Chain, float]],
    weight_of: Callable[[Path], float],
    there: Mapping[str, Mapping[Chain, float]] | None = None,
) -> Mapping[str, float]:
    """The part of the CPU time that each gets, by weights of threads in cgroups.

    wants: what weighs in which cgroup, in threads of nice 0. weight_of: of a cgroup, 1 = as such a
    thread. there: how many threads want a CPU at a time; below one it counts as little.
    """
    below: defaultdict[Chain, float] = defaultdict(float)
    sums: defaultdict[Chain, float] = defaultdict(float)
    for places in wants.values():
        for chain, weight in places.items():
            sums[chain] += weight
    for places in (there or wants).values():
        for chain, threads in places.items():
            for level in range(1, len(chain) + 1):
                below[chain[:level]] += threads
    own = {chain: weight_of(chain[-1]) * min(1.0, n) for chain, n in below.items()}
    for chain, weight in own.items():
        sums[chain[:-1]] += weight
    found: defaultdict[str, float] = defaultdict(float)
    for name, places in wants.items():
        for chain, weight in places.items():
            part = weight
            for level in range(len(chain), 0, -1):
                part *= own[chain[:level]] / (sums[chain[:level]] or 1.0)
            found[name] += part / (sums[()] or 1.0)
    return found
