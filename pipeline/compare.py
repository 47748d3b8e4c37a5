"""Policies that ran, against each other: latency, throughput and fairness at equal load.

Records of one node and query are compared where the node's load was the same, in steps of 5% of
its CPUs: the difference of two policies is taken inside each such step, then averaged over the
steps of a node. Nodes are the independent observations, so the interval is over nodes. What no
node saw under both policies at one load does not count; with fewer than three nodes nothing is
said at all.

Records were counted by step and policy when they were taken in (`rollups.turns`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sched_ctl.errors import UserError
from sched_ctl.pipeline.rollups import FIGURES
from sched_ctl.pipeline.store import Fleet
from sched_ctl.sim.result import student

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["FIGURES", "Alone", "Compared", "by_query", "compare"]

OS = "os"
MOST = 10_000  # rows by query that come to the driver
LEAST_NODES = 3
LEAST_RECORDS = 3  # of a policy in a step


@dataclass(frozen=True)
class Compared:
    """A figure of one policy against another's: ratio, or difference, with its 95% interval."""

    policy: str
    base: str
    figure: str
    value: float
    low: float
    high: float
    nodes: int
    records: int

    @property
    def tells(self) -> bool:
        """Whether the interval leaves out that there is no difference."""
        nothing = 1.0 if FIGURES[self.figure] else 0.0
        return not (math.isnan(self.low) or self.low <= nothing <= self.high)


class Alone(UserError):
    """There is nothing to compare with."""


def compare(
    fleet: Fleet, base: str | None = None, since: tuple[str, int] | None = None
) -> list[Compared]:
    """Each policy against `base`: None = the system's own scheduling, else the most recorded.

    since: a policy whose records count only from this hour on (Unix ms), and which is no base
    unless it is named. Raises UserError where
    only one policy ran, or nothing was taken in.
    """
    from pyspark.sql import functions as F  # noqa: N812

    fleet.require()
    steps = _steps(fleet, since).cache()
    try:
        counts = {
            row["policy"]: row["n"]
            for row in steps.groupBy("policy").agg(F.sum("n").alias("n")).collect()
        }
        if len(counts) < 2:
            raise Alone(
                f"only one policy was recorded: {', '.join(counts) or 'none'}",
                "let several take turns: sched-ctl policy set, or --guard",
            )
        chosen = base or _base(counts, since[0] if since else None)
        if chosen not in counts:
            raise Alone(f"no record is of policy {chosen}", f"there are: {', '.join(counts)}")
        rows = _differences(steps, chosen)
    finally:
        steps.unpersist()
    return [
        _interval(row, chosen, figure)
        for row in sorted(rows, key=lambda row: str(row["policy"]))
        for figure in FIGURES
        if row[f"{figure}_n"]
    ]


def _base(counts: Mapping[str, int], judged: str | None) -> str:
    """What to compare with, of two policies or more with so many records."""
    if OS in counts and judged != OS:
        return OS
    return max((name for name in counts if name != judged), key=lambda name: counts[name])


def by_query(fleet: Fleet) -> dict[tuple[str, str], list[Compared]]:
    """The same against the system's own scheduling, of each (kind of machine, query) by itself."""
    from pyspark.sql import functions as F  # noqa: N812

    fleet.require()
    machines = fleet.rolled("hour").groupBy("node").agg(F.max("machine").alias("machine"))
    steps = _steps(fleet).join(machines.where("machine IS NOT NULL"), "node").cache()
    try:
        rows = _differences(steps, OS, ("machine", "query"))
    finally:
        steps.unpersist()
    found: dict[tuple[str, str], list[Compared]] = {}
    for row in rows:
        told = [_interval(row, OS, figure) for figure in FIGURES if row[f"{figure}_n"]]
        found.setdefault((row["machine"], row["query"]), []).extend(told)
    return found


def _steps(fleet: Fleet, since: tuple[str, int] | None = None) -> "DataFrame":
    """One row for each node, query, policy and step of the load: means of the (log) figures.

    Times in the system are by one source, as two cannot be compared: by which a query of a node
    tells under most policies, and of these most often.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    turns = fleet.rolled("turn")
    if since is not None:
        turns = turns.where((F.col("policy") != since[0]) | (F.col("hour") >= since[1]))
    query = Window.partitionBy("node", "query")
    source = Window.partitionBy("node", "query", "time_source")
    policies = F.size(F.collect_set(F.when(F.col("time_n") > 0, F.col("policy"))).over(source))
    often = F.sum("time_n").over(source)
    told = F.struct(policies, often, F.coalesce("time_source", F.lit("")))
    turns = turns.withColumn("told", told)
    turns = turns.withColumn("most", F.col("told") == F.max("told").over(query))
    for name in ("time", "time_n"):
        turns = turns.withColumn(name, F.when(F.col("most"), F.col(name)))
    return (
        turns.groupBy("node", "query", "step", "policy")
        .agg(
            F.sum("n").alias("n"),
            *(F.try_divide(F.sum(name), F.sum(f"{name}_n")).alias(name) for name in FIGURES),
        )
        .where(F.col("n") >= LEAST_RECORDS)
    )


def _differences(steps: "DataFrame", base: str, of: Sequence[str] = ()) -> list[Any]:
    """For each policy the mean over nodes of its distance from the base, and its spread.

    of: columns that tell apart what is compared by itself. A row for each, and policy, comes to the
    driver.
    """
    from pyspark.sql import functions as F  # noqa: N812

    keys = list(dict.fromkeys(["node", "query", "step", *of]))
    of_base = steps.where(F.col("policy") == base).select(
        *keys, F.col("n").alias("n_base"), *(F.col(name).alias(f"{name}_base") for name in FIGURES)
    )
    both = steps.where(F.col("policy") != base).join(of_base, keys)
    weight = F.least("n", "n_base")

    def mean(name: str) -> Any:
        apart = F.col(name) - F.col(f"{name}_base")
        known = F.when(apart.isNotNull(), weight)
        return (F.sum(apart * weight) / F.sum(known)).alias(name)

    by_node = both.groupBy("policy", "node", *of).agg(
        F.sum(weight).alias("n"), *(mean(name) for name in FIGURES)
    )
    rows: list[Any] = (
        by_node.groupBy("policy", *of)
        .agg(
            F.sum("n").alias("records"),
            *(
                made
                for name in FIGURES
                for made in (
                    F.avg(name).alias(name),
                    F.stddev_samp(name).alias(f"{name}_sd"),
                    F.count(name).alias(f"{name}_n"),
                )
            ),
        )
        .orderBy("policy", *of)
        .limit(MOST)
        .collect()
    )
    return rows


def _interval(row: Any, base: str, figure: str) -> Compared:
    mean, nodes, spread = row[figure], row[f"{figure}_n"], row[f"{figure}_sd"]
    half = math.nan
    if nodes >= LEAST_NODES and spread is not None:
        half = student(nodes - 1) * spread / math.sqrt(nodes)
    read = math.exp if FIGURES[figure] else float
    low, high = (math.nan, math.nan) if math.isnan(half) else (read(mean - half), read(mean + half))
    return Compared(row["policy"], base, figure, read(mean), low, high, nodes, row["records"])
