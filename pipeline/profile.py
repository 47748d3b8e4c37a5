"""What each operator is like: cost, selectivity, rates, waits, drift, and how sure that is.

Two shuffles. The first adds up the rows of each operator, node and hour, which Spark does to the
greater part before the shuffle; the second has as many rows as there are operators, nodes and
hours, and reads their spread. What comes to the driver are as many rows as there are operators
and kinds of machines, whatever the number of nodes and days.
"""

import math
import time
from typing import TYPE_CHECKING, Any

from sched_ctl.errors import UserError
from sched_ctl.pipeline.store import Fleet
from sched_ctl.telemetry import profiles, records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["cells", "profile"]

KEY = ("engine", "machine", "query", "operator")
HOUR_MS = 3_600_000
LEAST_TUPLES = 20  # an hour with fewer says nothing of a cost
SPREAD = [0.1, 0.5, 0.9]

Key = tuple[str, ...]


def cells(fleet: Fleet) -> "DataFrame":
    """One row for each operator (its replicas together), node and hour."""
    from pyspark.sql import functions as F  # noqa: N812

    counted = F.col("cpu_us").isNotNull() & F.col("tuples_in").isNotNull()
    return (
        fleet.read("operator")
        .withColumn("engine", F.split("engine", ":")[0])
        .withColumn("hour", F.floor(F.col("t") / HOUR_MS))
        .groupBy(*KEY, "node", "hour")
        .agg(
            F.sum("tuples_in").alias("tuples_in"),
            F.sum("tuples_out").alias("tuples_out"),
            F.sum(F.when(counted, F.col("cpu_us"))).alias("cpu_us"),
            F.sum(F.when(counted, F.col("tuples_in"))).alias("counted_in"),
            F.sum("wait_us").alias("wait_us"),
            F.avg("queue").alias("queue"),
            F.sum(F.when(F.col("replica") == 0, F.col("d"))).alias("ms"),
            F.sum("d").alias("thread_ms"),
        )
    )


def profile(fleet: Fleet) -> profiles.Profile:
    """Of all that is in. Raises UserError if that is nothing."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    own = Window.partitionBy(*KEY, "node")
    known = (F.col("counted_in") >= LEAST_TUPLES) & (F.col("cpu_us") > 0)
    found = (
        cells(fleet)
        .withColumn("cost", F.when(known, F.col("cpu_us") / F.col("counted_in") * 1e-6))
        .withColumn("rate", F.try_divide("tuples_in", F.col("ms") * 1e-3))
        .withColumn("log", F.log("cost"))
        .withColumn("day", F.when(F.col("log").isNotNull(), F.col("hour") / 24))
        # Each node against its own mean: nodes that came later are no trend, and the hours of a
        # node are much alike, so how sure a mean is goes by the nodes.
        .withColumn("mean_log", F.avg("log").over(own))
        .withColumn("moved", F.col("log") - F.col("mean_log"))
        .withColumn("since", F.col("day") - F.avg("day").over(own))
        .withColumn("first", F.col("hour") == F.min("hour").over(own))
    )
    rows = (
        found.groupBy(*KEY)
        .agg(
            (F.try_divide(F.sum("cpu_us"), F.sum("counted_in")) * 1e-6).alias("cost"),
            F.try_divide(F.sum("tuples_out"), F.sum("tuples_in")).alias("selectivity"),
            F.try_divide(F.sum("tuples_in"), F.sum("ms") * 1e-3).alias("rate"),
            F.try_divide(F.sum("wait_us") * 1e-3, F.sum("thread_ms")).alias("wait"),
            F.avg("queue").alias("queue"),
            F.sum(F.col("first").cast("int")).alias("nodes"),
            (F.sum("ms") / HOUR_MS).alias("hours"),
            F.percentile_approx("cost", SPREAD).alias("costs"),
            F.percentile_approx("rate", SPREAD).alias("rates"),
            F.stddev_samp(F.when(F.col("first"), F.col("mean_log"))).alias("by_node"),
            F.stddev_samp("moved").alias("by_hour"),
            F.count("log").alias("n"),
            F.try_divide(F.sum(F.col("moved") * F.col("since")), F.sum(F.col("since") ** 2)).alias(
                "drift"
            ),
        )
        .collect()
    )
    if not rows:
        raise UserError(f"there are no records in {fleet.out}", "sched-ctl fleet ingest first")
    return profiles.Profile(
        made=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        queries=_queries(rows, _shapes(fleet)),
    )


def _queries(rows: list[Any], shapes: dict[tuple[str, str], Any]) -> list[profiles.Query]:
    of: dict[Key, dict[str, profiles.Operator]] = {}
    for row in rows:
        key = (row["engine"], row["machine"], row["query"])
        of.setdefault(key, {})[row["operator"]] = _operator(row)
    made = []
    for (engine, machine, query), operators in sorted(of.items()):
        names, edges = shapes.get((engine, query), ([], []))
        order = [name for name in names if name in operators]
        order += [name for name in operators if name not in order]
        place = {name: row for row, name in enumerate(order)}
        made.append(
            profiles.Query(
                engine=engine,
                machine=machine,
                name=query,
                operators=[operators[name] for name in order],
                edges=[
                    (place[names[a]], place[names[b]], share)
                    for a, b, share in edges
                    if names[a] in place and names[b] in place
                ],
            )
        )
    return made


def _operator(row: Any) -> profiles.Operator:
    return profiles.Operator(
        name=row["operator"],
        cost=row["cost"],
        cost_quantiles=tuple(row["costs"] or (None, None, None)),
        cost_error=_error(row),
        drift_a_day=None if row["drift"] is None else math.expm1(row["drift"]),
        selectivity=row["selectivity"],
        input_rate=row["rate"],
        rate_quantiles=tuple(row["rates"] or (None, None, None)),
        wait=row["wait"],
        queue=row["queue"],
        nodes=row["nodes"],
        hours=round(row["hours"] or 0.0, 3),
    )


def _error(row: Any) -> float | None:
    """Half of the 95% interval of the mean, as a share: by nodes; of one alone, by its hours."""
    from sched_ctl.sim.result import student

    if row["nodes"] > 1 and row["by_node"] is not None:
        return float(student(row["nodes"] - 1) * row["by_node"] / math.sqrt(row["nodes"]))
    if row["n"] > 1 and row["by_hour"] is not None:
        return float(student(row["n"] - 1) * row["by_hour"] / math.sqrt(row["n"]))
    return None


def _shapes(fleet: Fleet) -> dict[tuple[str, str], tuple[list[str], list[tuple[int, int, float]]]]:
    """(engine, query) -> names of its operators and its edges, by the newest line that has it.

    A row a query comes to the driver.
    """
    from pyspark.sql import functions as F  # noqa: N812

    rows = (
        fleet.read("topology")
        .withColumn("engine", F.split("engine", ":")[0])
        .withColumn(
            "query", F.explode(F.from_json(F.get_json_object("text", "$.queries"), "array<string>"))
        )
        .groupBy("engine", "query")
        .agg(F.max_by("text", "t").alias("text"))
        .collect()
    )
    return {(row["engine"], row["query"]): _shape(row["text"], row["query"]) for row in rows}


def _shape(text: str, query: str) -> tuple[list[str], list[tuple[int, int, float]]]:
    """Replicas of one name are one; their edges are added up."""
    line = records.decode(text.encode())
    assert isinstance(line, records.Topology)
    number = line.queries.index(query)
    names = list(
        dict.fromkeys(n for n, q in zip(line.ops, line.query_of, strict=True) if q == number)
    )
    place = {name: row for row, name in enumerate(names)}
    shares: dict[tuple[int, int], float] = {}
    copies = dict.fromkeys(names, 0)
    for name, q in zip(line.ops, line.query_of, strict=True):
        if q == number:
            copies[name] += 1
    for a, b, share in line.edges:
        if line.query_of[a] == number == line.query_of[b]:
            key = (place[line.ops[a]], place[line.ops[b]])
            shares[key] = shares.get(key, 0.0) + share / copies[line.ops[a]]
    return names, [(a, b, share) for (a, b), share in shares.items()]
