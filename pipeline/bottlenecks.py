"""What held which operator, for how long, on how many nodes, and what would help most.

From spans, which an ingest makes of rows that follow each other with the same verdict: they are
joined once more, as a span may go on in the next ingest. The gateways' verdicts are taken as they
were recorded.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sched_ctl.adapt import parallelism
from sched_ctl.metrics.verdicts import HOLDS, Verdict
from sched_ctl.pipeline import rollups
from sched_ctl.pipeline.judge import FISSION
from sched_ctl.pipeline.store import Fleet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ADVICE", "Held", "held", "spans"]

MOST_NAMES = 20
NODES = 0.9  # of the nodes that it was held on have, and need, no more replicas
WHO = ("engine", "query", "operator")
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
    there: float = math.nan  # the same, on the nodes on which it was held
    begin_ms: int = 0  # of the first span, and end of the last one: Unix time
    end_ms: int = 0
    where: tuple[str, ...] = ()  # the first MOST_NAMES of these nodes
    replicas: int | None = None  # nine in ten of the nodes on which it was held have no more
    needed: int | None = None  # at first, for what its sources emit (`adapt.parallelism`)

    @property
    def advice(self) -> str:
        now = self.replicas or 1
        told = self.needed is not None and self.needed > now
        many = f"more replicas ({self.needed} at first, for {now})" if told else "more replicas"
        return ADVICE[self.verdict].replace("more replicas", many)


def spans(fleet: Fleet) -> "DataFrame":
    """One row for each span: who, where, verdict, by whom, begin and end (Unix ms), held (ms).

    Those that reach out of what is chosen are cut.
    """
    from pyspark.sql import functions as F  # noqa: N812

    found = rollups.joined(fleet.rolled("span"))
    choice = fleet.choice
    begin, end = F.col("begin"), F.col("end")
    if choice.since_ms is not None:
        begin = F.greatest(begin, F.lit(choice.since_ms))
    if choice.until_ms is not None:
        end = F.least(end, F.lit(choice.until_ms))
    part = F.try_divide(end - begin, F.col("end") - F.col("begin"))
    return found.select(
        *("node", "engine", "query", "operator", "verdict", "held_by"),
        begin.alias("begin"), end.alias("end"), (F.col("held") * part).alias("held"),
    ).where("begin < end")  # fmt: skip


def held(fleet: Fleet) -> list[Held]:
    """Operators that hold their query, those first that cost the fleet most time.

    Raises UserError where nothing was taken in.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    fleet.require()
    kind = F.split("engine", ":")[0].alias("engine")
    found = (
        spans(fleet)
        .select(kind, "node", "query", "operator", "verdict", "held_by", "begin", "end", "held")
        .cache()
    )
    others = (
        found.where("held_by IS NOT NULL")
        .groupBy("engine", "query", F.col("held_by").alias("operator"))
        .agg((F.sum("held") / 1e3).alias("others_s"))
    )
    by_node = _by_node(fleet)
    recorded = by_node.groupBy(*WHO).agg(F.sum("recorded_s").alias("recorded_s"))
    # Who was held by several things held others by each of them for its part.
    part = F.try_divide("held_s", F.sum("held_s").over(Window.partitionBy(*WHO)))
    lost = F.col("held_s") + F.coalesce(F.col("others_s") * F.col("part"), F.lit(0.0))
    try:
        rows = (
            _own(found, by_node)
            .join(others, [*WHO], "left")
            .join(recorded, [*WHO])
            .withColumn("part", part)
            .withColumn("lost_s", lost)
            .orderBy(F.desc("lost_s"))
            .limit(MOST)
            .collect()
        )
    finally:
        found.unpersist()
    return [_held(row) for row in rows]


def _by_node(fleet: Fleet) -> "DataFrame":
    """Of each operator on each node: for how long it was recorded, replicas it has and needs."""
    from pyspark.sql import functions as F  # noqa: N812

    of_one_name = F.max(F.try_divide("d", "ms"))  # all that older roll-ups tell
    return (
        fleet.rolled("hour")
        .groupBy(*WHO, "node")
        .agg(
            (F.sum("d") / 1e3).alias("recorded_s"),
            F.percentile("needed", F.lit(0.5)).alias("needed"),
            F.greatest(F.max("replicas"), of_one_name).alias("replicas"),
        )
    )


def _own(found: "DataFrame", by_node: "DataFrame") -> "DataFrame":
    """Of each operator and verdict that held it: for how long, where, when. found: `spans`."""
    from pyspark.sql import functions as F  # noqa: N812

    names = F.slice(F.sort_array(F.collect_set("node")), 1, MOST_NAMES)
    return (
        found.where(F.col("verdict").isin([int(v) for v in HOLDS]))
        .groupBy(*WHO, "verdict", "node")
        .agg(
            F.count("*").alias("spans"),
            (F.sum("held") / 1e3).alias("held_s"),
            (F.max(F.col("end") - F.col("begin")) / 1e3).alias("longest_s"),
            F.min("begin").alias("begin"),
            F.max("end").alias("end"),
        )
        .join(by_node, [*WHO, "node"])
        .groupBy(*WHO, "verdict")
        .agg(
            *(F.sum(name).alias(name) for name in ("spans", "held_s")),
            F.max("longest_s").alias("longest_s"),
            F.min("begin").alias("begin"),
            F.max("end").alias("end"),
            F.countDistinct("node").alias("nodes"),
            F.sum("recorded_s").alias("there_s"),
            *(F.percentile(n, F.lit(NODES)).alias(n) for n in ("needed", "replicas")),
            names.alias("names"),
        )
    )


def _held(row: Any) -> Held:
    verdict = Verdict(row["verdict"])
    helps = verdict in FISSION and row["needed"] is not None
    return Held(
        row["engine"],
        row["query"],
        row["operator"],
        verdict,
        row["spans"],
        row["held_s"],
        row["lost_s"],
        row["longest_s"],
        row["nodes"],
        row["held_s"] / row["recorded_s"] if row["recorded_s"] else 0.0,
        row["held_s"] / row["there_s"] if row["there_s"] else 0.0,
        row["begin"],
        row["end"],
        tuple(row["names"]),
        None if row["replicas"] is None else round(row["replicas"]),
        int(parallelism.whole(np.array(row["needed"]))) if helps else None,
    )
