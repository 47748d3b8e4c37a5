"""What a policy is: a function from operators to urgency forms.

An urgency form says how urgent an operator is at any later moment, without asking the policy
again:

    u(t) = static + per_second * W(t) + per_tuple * Q(t)

with `W` the operator's head age (s) and `Q` its queue size (tuples). Operators are compared by
`rank` first, then by `u`; larger is more urgent. Whoever enforces the form evaluates it at its
own resolution: the nice and cgroup backends once a period with the measured `W` and `Q`, the BPF
scheduler at each dispatch, the simulator at each scheduling point, the lab engine's pool at each
pick. So a policy is written once and the same object runs everywhere.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from types import MappingProxyType

import numpy as np

from sched_ctl.model.graph import Array, Graph, Index
from sched_ctl.model.targets import Target
from sched_ctl.model.topology import LogicalOperator, PhysicalOperator

__all__ = [
    "NOTHING",
    "Level",
    "Memory",
    "OperatorFrame",
    "Policy",
    "Query",
    "Remember",
    "Spacing",
    "UrgencyForm",
    "form",
]

Query = tuple[str, str]  # engine, query
Memory = Mapping[str, Mapping[Query, float]]  # by name: a number for each query that is remembered
NOTHING: Memory = MappingProxyType({})
# Who wakes whom says nothing of how many tuples come of one (docs/engines.md).
SELECTIVE = frozenset({"selectivity", "global_selectivity", "global_cost", "tuple_size"})
_CACHED = {"query", "queries"}  # of a frame, whatever is remembered


class Spacing(Enum):
    """How a policy's priorities are spread; a normaliser needs to know (Lachesis, section 4)."""

    LINEAR = "linear"
    LOGARITHMIC = "logarithmic"
    # Ranks of slack are logarithmic in it, others as named; what is in one rank is close together
    RANKED = "ranked"
    RANKED_LOGARITHMIC = "ranked-logarithmic"


class Level(Enum):
    """Whose priorities a policy computes: see `metrics.levels` for logical ones."""

    PHYSICAL = "physical"
    LOGICAL = "logical"


@dataclass(frozen=True, eq=False)
class OperatorFrame:
    """The metrics of n operators, as columns.

    operators: n physical (or, for `Level.LOGICAL`, n logical) operators.
    columns: metric name -> (n,) array, NaN = unknown. Only what the policy `needs` is promised.
    engine: (n,) a number for the engine of each; None: all are of one. engines: their names.
    memory: what the policy remembers, this frame included, see `Policy.remembers`.
    """

    operators: tuple[PhysicalOperator, ...] | tuple[LogicalOperator, ...]
    graph: Graph
    columns: Mapping[str, Array]
    engine: Index | None = None
    engines: tuple[str, ...] = ("",)
    memory: Memory = field(default_factory=lambda: NOTHING)

    def __getitem__(self, metric: str) -> Array:
        return self.columns[metric]

    def __len__(self) -> int:
        return len(self.operators)

    @cached_property
    def query(self) -> Index:
        """(n,) a number from 0 for the query of each; those of two engines are two."""
        number: dict[tuple[int, str], int] = {}
        engine = [0] * len(self) if self.engine is None else self.engine.tolist()
        names = (operator.query for operator in self.operators)
        found = [number.setdefault(key, len(number)) for key in zip(engine, names, strict=True)]
        return np.array(found, dtype=np.intp)

    def remembering(self, memory: Memory) -> "OperatorFrame":
        """The same frame, with this memory."""
        if memory == self.memory:
            return self
        made = replace(self, memory=memory)
        made.__dict__.update({name: self.__dict__[name] for name in _CACHED & self.__dict__.keys()})
        return made

    @cached_property
    def queries(self) -> tuple[Query, ...]:
        """Engine and name of each query, by the numbers of `query`."""
        first = np.unique(self.query, return_index=True)[1].tolist()
        engine = [0] * len(self) if self.engine is None else self.engine.tolist()
        return tuple((self.engines[engine[row]], self.operators[row].query) for row in first)


@dataclass(frozen=True, eq=False)
class UrgencyForm:
    """Columns (n,) over the frame's operators. NaN in `static` = unknown: treated as neutral."""

    rank: Array
    static: Array
    per_second: Array
    per_tuple: Array

    def __len__(self) -> int:
        return len(self.static)

    def at(self, head_age_s: Array, queue_size: Array) -> Array:
        """(n,) urgency inside each rank. An unknown W or Q counts only where it has a weight."""
        urgency = self.static
        for weight, value in ((self.per_second, head_age_s), (self.per_tuple, queue_size)):
            if weight.any():
                urgency = urgency + np.where(weight == 0, 0.0, weight * value)
        return urgency

    def take(self, rows: "np.typing.NDArray[np.intp]") -> "UrgencyForm":
        return UrgencyForm(
            self.rank[rows], self.static[rows], self.per_second[rows], self.per_tuple[rows]
        )


def form(
    n: int,
    *,
    rank: Array | float = 0.0,
    static: Array | float = 0.0,
    per_second: Array | float = 0.0,
    per_tuple: Array | float = 0.0,
) -> UrgencyForm:
    """An urgency form over n operators from the parts that a policy uses; the others are 0."""

    def column(part: Array | float) -> Array:
        if isinstance(part, float) and part == 0:
            return np.zeros(n)
        return np.full(n, part, dtype=np.float64)

    return UrgencyForm(column(rank), column(static), column(per_second), column(per_tuple))


# From a frame, with what was remembered before, and the time of its metrics (CLOCK_MONOTONIC, s)
Remember = Callable[[OperatorFrame, float], Mapping[Query, float]]


@dataclass(frozen=True)
class Policy:
    """A scheduling policy.

    urgency: pure function of the frame.
    needs: metrics whose columns it reads; resolved before anything is applied.
    wants: metrics that it reads where there are any: their columns may be absent, or unknown.
    goal: what it is best at, in a few words, for `sched-ctl policies`.
    options: what the user set, for `config` and `explain`.
    groups: engine and query -> (group, share), for a policy that divides the CPU among groups of
    queries and orders operators only inside them (round robin); its urgencies then need not be
    comparable between groups. Shares that the user sets go before. None: no groups.
    remembers: what it wants to know of queries from frame to frame: by name, a function of a frame,
    whose `memory` has what was remembered before, and of the time. `urgency` gets the frame with
    what it returns. Each rule has a memory of its own; what is of queries that there are no more is
    for the function to leave out. Names meet where a policy is made of others, so they begin with
    that of the module or package: "backlog.heavy".
    steady: whether the same frame always has the same answer.
    targets: of its queries; how these stand with them is told to it with the frame, as the columns
    of `metrics.feasibility.tell`.
    judged: targets of its queries that it does not go by: how these stand is told to the user.
    strict: whether the order counts even where it keeps a query from the share of the CPU that it
    would have without one. Else that share is a floor below which no order takes a query that has
    work, where the backend can hold one (bpf/floor.bpf.h).
    """

    name: str
    urgency: Callable[[OperatorFrame], UrgencyForm]
    needs: frozenset[str]
    goal: str
    spacing: Spacing = Spacing.LINEAR
    level: Level = Level.PHYSICAL
    options: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    groups: Callable[[str, str], tuple[str, float]] | None = None
    wants: frozenset[str] = frozenset()
    remembers: Mapping[str, Remember] = field(default_factory=lambda: MappingProxyType({}))
    steady: bool = True
    strict: bool = False
    targets: tuple[Target, ...] = ()
    judged: tuple[Target, ...] = ()

    @property
    def aims(self) -> tuple[Target, ...]:
        """The targets of its queries, whether it goes by them or not."""
        return self.targets or self.judged

    @property
    def beyond_wake_ups(self) -> tuple[str, ...]:
        """What it needs that wake-ups of threads do not tell, where nobody counts tuples."""
        return tuple(sorted(self.needs & SELECTIVE))

    def remember(self, frame: OperatorFrame, now_s: float) -> Memory:
        """All that is to be remembered from this frame on."""
        return {name: of_frame(frame, now_s) for name, of_frame in self.remembers.items()}
