"""The graph of a set of operators, as arrays.

Everything that walks from an operator to the egress (global cost, global selectivity, depth)
works on whole levels of this graph at once, so that ten thousand operators are cheap.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "Graph", "Index", "distinct"]

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True, eq=False)
class Graph:
    """Operators 0..n-1 and their edges.

    source, target: (m,) row of the producing and of the consuming operator of each edge.
    share: (m,) part of the producer's output tuples that take this edge. 1 where every branch
    gets every tuple; less where the edge splits the stream.
    """

    n: int
    source: Index
    target: Index
    share: Array

    def __post_init__(self) -> None:
        if not (self.source.shape == self.target.shape == self.share.shape):
            raise ValueError("source, target and share must have one entry an edge")
        if self.source.size and not (
            min(self.source.min(), self.target.min()) >= 0
            and max(self.source.max(), self.target.max()) < self.n
        ):
            raise ValueError(f"an edge names an operator outside 0..{self.n - 1}")

    @cached_property
    def ingress(self) -> npt.NDArray[np.bool_]:
        """(n,) true for operators without upstream."""
        return np.asarray(np.bincount(self.target, minlength=self.n) == 0)

    @cached_property
    def egress(self) -> npt.NDArray[np.bool_]:
        """(n,) true for operators without downstream."""
        return np.asarray(np.bincount(self.source, minlength=self.n) == 0)

    @cached_property
    def height(self) -> Index:
        """(n,) edges on the longest path to an egress; -1 for operators on or above a cycle."""
        height = np.where(self.egress, 0, -1).tolist()
        waiting = np.bincount(self.source, minlength=self.n).tolist()
        by_target = np.argsort(self.target, kind="stable")
        above = self.source[by_target].tolist()
        first = np.searchsorted(self.target[by_target], np.arange(self.n + 1)).tolist()
        ready = np.flatnonzero(self.egress).tolist()
        for row in ready:  # which grows, by rising height
            for source in above[first[row] : first[row + 1]]:
                waiting[source] -= 1
                if waiting[source] == 0:
                    height[source] = height[row] + 1
                    ready.append(source)
        return np.array(height, dtype=np.intp)

    @cached_property
    def levels(self) -> tuple[tuple[Index, Index], ...]:
        """From the egresses up: (operators of the level, edges that leave them).

        Operators on a cycle, and all above them, are in no level.
        """
        numbers = np.arange(int(self.height.max(initial=-1)) + 2)

        def of_each(height: Index) -> list[Index]:
            order = np.argsort(height, kind="stable")
            return np.split(order, np.searchsorted(height[order], numbers))[1:-1]

        return tuple(zip(of_each(self.height), of_each(self.height[self.source]), strict=True))

    @cached_property
    def shared(self) -> npt.NDArray[np.bool_]:
        """(n,) true for operators with several branches after them, at once or further down."""
        shared = np.bincount(self.source, minlength=self.n) > 1
        for _, edges in self.levels[1:]:
            shared[self.source[edges][shared[self.target[edges]]]] = True
        return np.asarray(shared)

    @cached_property
    def reversed(self) -> "Graph":
        """The same with every edge turned round: its levels go from the ingresses down."""
        return Graph(self.n, self.target, self.source, self.share)

    @property
    def cyclic(self) -> bool:
        """True if some operator can reach itself."""
        return bool((self.height < 0).any())

    def sum_downstream(self, values: Array) -> Array:
        """(n,) for each operator, the sum of share * values over its direct downstream ones.

        values: (n,), anything per operator. An egress gets 0.
        """
        return np.bincount(
            self.source, weights=self.share * values[self.target], minlength=self.n
        ).astype(np.float64)


def distinct(values: npt.NDArray[T]) -> npt.NDArray[T]:
    """The values that occur, lowest first.

    Without an index np.unique would load all of numpy.ma: a megabyte, and 2% of a start.
    """
    found: npt.NDArray[T] = np.unique(values, return_index=True)[0]
    return found
