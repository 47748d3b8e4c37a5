"""How fresh is what the JobManager hands on: it fetches from TaskManagers now and then.

In between values stand still, and a TaskManager that is cut off leaves its last ones standing. A
rate of values that did not come anew would be 0, and a queue taken at one time and counted at
another is none. So where all values come that way, an answer is as old as the last renewal.
"""

import numpy as np
import numpy.typing as npt

from sched_ctl.drivers.flink.plan import Plan
from sched_ctl.model.graph import Array

__all__ = ["PATIENCE_S", "Renewals", "mixed"]

Mask = npt.NDArray[np.bool_]

PATIENCE_S = 30.0  # three times as often as Flink fetches unless told otherwise


class Renewals:
    """When the counters of each row came anew last."""

    def __init__(self, n: int) -> None:
        self._before: Array = np.full((1, n), np.nan)
        self._at_s: Array = np.full(n, np.nan)
        self._told = False  # whether anything was handed on
        self._news: Mask = np.zeros(n, dtype=np.bool_)  # what came anew since
        self._waited = False

    def update(self, time_s: float, counters: Array, asked: Mask) -> Mask:
        """(n,) whether they came anew. counters: (k, n), of which one moves in any case.

        asked: (n,) rows that were read through the JobManager; all others are new each time.
        """
        before, self._before = self._before, counters.copy()
        same = (counters == before) | (np.isnan(counters) & np.isnan(before))
        fresh: Mask = ~asked | ~same.all(axis=0)
        self._at_s = np.where(fresh | np.isnan(self._at_s), time_s, self._at_s)
        return fresh

    def complete(self, fresh: Mask, asked: Mask) -> bool:
        """Whether there is something to hand on: these came anew now.

        Several TaskManagers are fetched at once and answer one after the other: who has not yet is
        waited for until the next look, or its rate would be 0 now and twice as high then.
        """
        self._news |= fresh
        news = self._news[asked]
        whole = not self._told or bool(news.all()) or (self._waited and bool(news.any()))
        self._waited = not whole and bool(news.any())
        if whole:
            self._told, self._news = True, np.zeros_like(self._news)
        return whole

    def stale(self, time_s: float, patience_s: float) -> Mask:
        """(n,) rows of which nothing new came for longer than that."""
        return np.asarray(time_s - self._at_s > patience_s)


def mixed(plan: Plan, asked: Mask) -> Mask:
    """(n,) rows with an input from one that was read in the other way, so at another time."""
    found = np.zeros(len(plan.rows), dtype=np.bool_)
    if plan.edges and asked.any() and not asked.all():
        ends = np.array([(edge.source, edge.target) for edge in plan.edges], dtype=np.intp).T
        found[ends[1][asked[ends[0]] != asked[ends[1]]]] = True
    return found
