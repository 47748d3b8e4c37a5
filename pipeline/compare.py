"""Policies that ran, against each other: latency, throughput and fairness at equal load.

Records of one node and query are compared where the node's load was the same, in steps of 5% of
its CPUs: the difference of two policies is taken inside each such step, then averaged over the
steps of a node. Nodes are the independent observations, so the interval is over nodes. What no
node saw under both policies at one load does not count; with fewer than three nodes nothing is
said at all.

Three shuffles, each smaller: rows to records (by node and number), records to steps, steps to
nodes.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sched_ctl.errors import UserError
from sched_ctl.pipeline.store import Fleet
from sched_ctl.sim.result import student

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Compared", "compare"]

STEP = 0.05  # of the load
LEAST_NODES = 3
LEAST_RECORDS = 3  # of a policy in a step
# figure -> whether it is a ratio; a difference otherwise
FIGURES = {
    "time": True,
    "latency": True,
    "age": True,
    "queue": True,
    "throughput": True,
    "fairness": False,
}


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


def compare(fleet: Fleet, base: str | None = None) -> list[Compared]:
    """Each policy against `base`: None = the system's own scheduling, else the most recorded.

    Raises UserError where only one policy ran, or nothing was taken in.
    """
    from pyspark.sql import functions as F  # noqa: N812

    fleet.require()
    steps = _steps(_records(fleet)).cache()
    try:
        counts = {
            row["policy"]: row["n"]
            for row in steps.groupBy("policy").agg(F.sum("n").alias("n")).collect()
        }
        if len(counts) < 2:
            raise UserError(
                f"only one policy was recorded: {', '.join(counts) or 'none'}",
                "let several take turns: sched-ctl policy set, or --guard",
            )
        chosen = base or ("os" if "os" in counts else max(counts, key=lambda name: counts[name]))
        if chosen not in counts:
            raise UserError(f"no record is of policy {chosen}", f"there are: {', '.join(counts)}")
        rows = _differences(steps, chosen)
    finally:
        steps.unpersist()
    return [
        _interval(row, chosen, figure)
        for row in sorted(rows, key=lambda row: str(row["policy"]))
        for figure in FIGURES
        if row[f"{figure}_n"]
    ]


def _records(fleet: Fleet) -> "DataFrame":
    """One row for each query in each record: policy, load of the node, and the figures.

    Load is the CPU time of all its operators over the CPUs of the node.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    cpus = F.regexp_extract("machine", r", (\d+) CPUs$", 1).cast("int")
    by_query = (
        fleet.read("operator")
        .where("d > 0 AND policy IS NOT NULL")
        .groupBy("node", "engine", "seq", "query", "policy")
        .agg(
            F.max("time_us").alias("time"),
            F.max("latency_us").alias("latency"),
            F.max("age_ms").alias("age"),
            F.sum("queue").alias("queue"),
            (F.sum("tuples_out") * 1e3 / F.max("d")).alias("throughput"),
            F.try_divide(F.sum("cpu_us"), F.max("d") * 1e3 * F.max(cpus)).alias("part"),
        )
    )
    record = Window.partitionBy("node", "engine", "seq")
    each = F.coalesce("time", "latency", "age").cast("double")
    jain = F.try_divide(
        F.sum(each).over(record) ** 2, F.count(each).over(record) * F.sum(each**2).over(record)
    )
    return by_query.withColumn("load", F.sum("part").over(record)).withColumn(
        "fairness", F.when(F.count(each).over(record) > 1, jain)
    )


def _steps(records: "DataFrame") -> "DataFrame":
    """One row for each node, query, policy and step of the load: means of the (log) figures."""
    from pyspark.sql import functions as F  # noqa: N812

    def figure(name: str) -> Any:
        column = F.col(name)
        return F.log(F.when(column > 0, column)) if FIGURES[name] else column

    return (
        records.withColumn("step", F.floor(F.col("load") / STEP))
        .groupBy("node", "query", "step", "policy")
        .agg(F.count("*").alias("n"), *(F.avg(figure(name)).alias(name) for name in FIGURES))
        .where(F.col("n") >= LEAST_RECORDS)
    )


def _differences(steps: "DataFrame", base: str) -> list[Any]:
    """For each policy the mean over nodes of its distance from the base, and its spread.

    A row a policy comes to the driver.
    """
    from pyspark.sql import functions as F  # noqa: N812

    keys = ["node", "query", "step"]
    of_base = steps.where(F.col("policy") == base).select(
        *keys, F.col("n").alias("n_base"), *(F.col(name).alias(f"{name}_base") for name in FIGURES)
    )
    both = steps.where(F.col("policy") != base).join(of_base, keys)
    weight = F.least("n", "n_base")

    def mean(name: str) -> Any:
        apart = F.col(name) - F.col(f"{name}_base")
        known = F.when(apart.isNotNull(), weight)
        return (F.sum(apart * weight) / F.sum(known)).alias(name)

    by_node = both.groupBy("policy", "node").agg(
        F.sum(weight).alias("n"), *(mean(name) for name in FIGURES)
    )
    rows: list[Any] = (
        by_node.groupBy("policy")
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
