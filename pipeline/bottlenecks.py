"""What held which operator, for how long, on how many nodes, and what would help most.

One shuffle of the rows with a verdict that holds (a few per cent, as a rule), by operator and
node: rows that follow each other with the same verdict are a span. The gateways' verdicts are
taken as they were recorded.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sched_ctl.metrics.verdicts import HOLDS, Verdict
from sched_ctl.pipeline.store import Fleet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ADVICE", "Held", "held", "spans"]

GAP = 2.5  # records that are missing, at most, inside a span
MOST = 1000  # operators that come to the driver

ADVICE = {
    Verdict.CPU_STARVED: "placement: a node with more CPU, or a larger priority or share here",
    Verdict.SINGLE_THREAD_BOUND: "fission: more replicas; its thread is always at work",
    Verdict.IO_BOUND: "more replicas or asynchronous calls: it sleeps with work in hand",
    Verdict.MEMORY_BOUND: "placement: a node with more memory, or less state",
}


@dataclass(frozen=True)
class Held:
    """One operator and what held it. lost_s: of the operators that it held as well, all nodes."""

    engine: str
    query: str
    operator: str
    verdict: Verdict
    spans: int
    held_s: float
    lost_s: float
    longest_s: float
    nodes: int
    share: float  # of the time in which it was recorded

    @property
    def advice(self) -> str:
        return ADVICE[self.verdict]


def spans(fleet: Fleet) -> "DataFrame":
    """One row for each span: who, where, verdict, by whom, begin and end (Unix ms), held (ms)."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    holding = [int(v) for v in (*HOLDS, Verdict.BACKPRESSURED)]
    of_one = Window.partitionBy("node", "engine", "query", "operator").orderBy("t", "seq")
    begins = (
        F.lag("verdict").over(of_one).isNull()
        | (F.lag("verdict").over(of_one) != F.col("verdict"))
        | ~F.lag("held_by").over(of_one).eqNullSafe(F.col("held_by"))
        | (F.col("t") - F.lag("t").over(of_one) > F.lag("d").over(of_one) * GAP)
    )
    return (
        fleet.read("operator")
        .where(F.col("verdict").isin(holding))
        .withColumn("span", F.sum(begins.cast("int")).over(of_one))
        .groupBy("node", "engine", "query", "operator", "verdict", "held_by", "span")
        .agg(
            F.min("t").alias("begin"),
            F.max(F.col("t") + F.col("d")).alias("end"),
            F.sum("d").alias("held"),
        )
    )


def held(fleet: Fleet) -> list[Held]:
    """Operators that hold their query, those first that cost the fleet most time.

    Raises UserError where nothing was taken in.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    fleet.require()
    kind = F.split("engine", ":")[0].alias("engine")
    who = ("engine", "query", "operator")
    found = (
        spans(fleet)
        .select(kind, "node", "query", "operator", "verdict", "held_by", "begin", "end", "held")
        .cache()
    )
    try:
        own = (
            found.where(F.col("verdict").isin([int(v) for v in HOLDS]))
            .groupBy(*who, "verdict")
            .agg(
                F.count("*").alias("spans"),
                (F.sum("held") / 1e3).alias("held_s"),
                (F.max(F.col("end") - F.col("begin")) / 1e3).alias("longest_s"),
                F.countDistinct("node").alias("nodes"),
            )
        )
        others = (
            found.where("held_by IS NOT NULL")
            .groupBy("engine", "query", F.col("held_by").alias("operator"))
            .agg((F.sum("held") / 1e3).alias("others_s"))
        )
        time = (
            fleet.read("operator")
            .select(kind, "query", "operator", "d")
            .groupBy(*who)
            .agg((F.sum("d") / 1e3).alias("recorded_s"))
        )
        rows = (
            own.join(others, [*who], "left")
            .join(time, [*who])
            # Who was held by several things held others by each of them for its part.
            .withColumn(
                "part", F.try_divide("held_s", F.sum("held_s").over(Window.partitionBy(*who)))
            )
            .withColumn(
                "lost_s",
                F.col("held_s") + F.coalesce(F.col("others_s") * F.col("part"), F.lit(0.0)),
            )
            .orderBy(F.desc("lost_s"))
            .limit(MOST)
            .collect()
        )
    finally:
        found.unpersist()
    return [
        Held(
            row["engine"],
            row["query"],
            row["operator"],
            Verdict(row["verdict"]),
            row["spans"],
            row["held_s"],
            row["lost_s"],
            row["longest_s"],
            row["nodes"],
            row["held_s"] / row["recorded_s"] if row["recorded_s"] else 0.0,
        )
        for row in rows
    ]
