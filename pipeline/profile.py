"""What each operator is like: cost, selectivity, rates, waits, drift, and how sure that is.

From roll-ups by the hour, so that 90 days are read as fast as their hours; what comes to the
driver are as many rows as there are operators and kinds of machines, whatever the number of nodes
and days.

No record, hour or node can move a figure far: an hour tells the median of its parts (`rollups`),
cost and selectivity are medians over hours and nodes, a rate counts at most RATE times that of the
middle hour of its node, and the drift is Tukey's resistant line: medians of the first and the last
third of the days on which the fleet was there.
"""

import math
import time
from collections import Counter
from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, NamedTuple

from sched_ctl.errors import UserError
from sched_ctl.pipeline import rollups
from sched_ctl.pipeline.choice import HOUR_MS
from sched_ctl.pipeline.store import Fleet
from sched_ctl.telemetry import profiles, records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Day", "alone", "by_day", "days", "nodes", "profile", "shapes_of", "stretch"]

KEY = ("engine", "machine", "query", "operator")
RATE = 8.0
LEAST_TUPLES = 20  # an hour with fewer says nothing of a cost
SPREAD = [0.1, 0.5, 0.9]

WEEK = 7  # days
STEEPEST = 50.0  # drift of the logarithm in a day; beyond, a cost is no cost

Key = tuple[str, ...]
Shape = tuple[list[str], list[tuple[int, int, float]]]  # names of operators, and edges


def profile(fleet: Fleet) -> profiles.Profile:
    """Of all that is in, as chosen. Raises UserError if that is nothing."""
    fleet.require()
    window = days(fleet)
    rows = [] if window is None else _found(fleet, *window).collect()
    if window is None or not rows:
        raise UserError(f"there are no records in {fleet.out}", "sched-ctl fleet ingest first")
    return profiles.Profile(
        made=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        queries=_queries(rows, _shapes(fleet, window[1])),
    )


def _found(fleet: Fleet, begin_ms: int, end_ms: int) -> "DataFrame":
    """One row for each operator and kind of machine."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    own = Window.partitionBy(*KEY, "node")
    known = (F.col("counted_in") >= LEAST_TUPLES) & (F.col("cost_us") > 0)
    third = F.floor((F.col("hour") - begin_ms) * 3 / max(1, end_ms - begin_ms)).cast("int")
    day = F.col("hour") / (24 * HOUR_MS)
    wild = (F.col("most") > 0) & (F.col("rate") > F.col("most"))

    def of_third(column: Any, number: int) -> Any:
        part = F.when((F.col("third") == number) & F.col("moved").isNotNull(), column)
        return F.percentile_approx(part, 0.5)

    found = (
        rollups.merged("hour", fleet.rolled("hour"))
        .where((F.col("hour") >= begin_ms - HOUR_MS) & (F.col("hour") < end_ms))
        .withColumn("cost", F.when(known, F.col("cost_us") * 1e-6))
        .withColumn("log", F.log("cost"))
        # Each node against its own middle: nodes that came later are no trend, and the hours of a
        # node are much alike, so how sure a mean is goes by the nodes.
        .withColumn("own_log", F.percentile_approx("log", 0.5).over(own))
        .withColumn("most", F.percentile_approx("rate", 0.5).over(own) * RATE)
        .withColumn("moved", F.col("log") - F.col("own_log"))
        .withColumn("third", F.greatest(third, F.lit(0)))
        .withColumn("rate", F.when(wild, F.col("most")).otherwise(F.col("rate")))
        .withColumn("rated_ms", F.when(F.col("rate").isNotNull(), F.col("ms")))
        .withColumn("first", F.col("hour") == F.min("hour").over(own))
        .withColumn("day", day)
    )
    return found.groupBy(*KEY).agg(
        F.percentile_approx("cost", 0.5, 10_000).alias("cost"),
        F.percentile_approx("selectivity", 0.5, 10_000).alias("selectivity"),
        F.try_divide(F.sum(F.col("rate") * F.col("ms")), F.sum("rated_ms")).alias("rate"),
        F.try_divide(F.sum("wait_us") * 1e-3, F.sum("waited_ms")).alias("wait"),
        F.try_divide(F.sum("queues"), F.sum("queues_n")).alias("queue"),
        F.sum(F.col("first").cast("int")).alias("nodes"),
        (F.sum("ms") / HOUR_MS).alias("hours"),
        F.percentile_approx("cost", SPREAD).alias("costs"),
        F.percentile_approx("rate", SPREAD).alias("rates"),
        F.stddev_samp(F.when(F.col("first"), F.col("own_log"))).alias("by_node"),
        F.stddev_samp("moved").alias("by_hour"),
        F.count("log").alias("n"),
        F.try_divide(
            of_third(F.col("moved"), 2) - of_third(F.col("moved"), 0),
            of_third(F.col("day"), 2) - of_third(F.col("day"), 0),
        ).alias("drift"),
    )


class Day(NamedTuple):
    """A day (UTC) with records: by how many nodes, to some percent, from when to when (Unix ms)."""

    date: str
    nodes: int
    begin: int = 0
    end: int = 0


def days(fleet: Fleet) -> tuple[int, int] | None:
    """Begin and end (Unix ms) of the days on which the fleet was there; None = never."""
    there = stretch(*by_day(fleet))
    return (there[0].begin, there[-1].end) if there else None


def by_day(fleet: Fleet) -> tuple[list[Day], int]:
    """The days in order, and how many nodes there are in all."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = (
        fleet.rolled("hour")
        .rollup("date")
        .agg(
            F.approx_count_distinct("node").alias("n"),
            F.min("begin").alias("begin"),
            F.max("end").alias("end"),
        )
        .orderBy(F.desc("n"), F.desc("date"))
        .limit(10_000)
        .collect()
    )
    known = [Day(*row) for row in rows if row["date"] is not None]
    return sorted(known), max((row["n"] for row in rows), default=0)


def stretch(known: Sequence[Day], nodes: int) -> list[Day]:
    """The days of these, in order, on which the fleet was there; nodes: how many there ever were.

    A few with a wrong clock neither stretch it nor end it; a fleet that has become smaller is still
    there. So a day counts with a quarter of the nodes of the busiest day, or several that are a
    twentieth; of days without a gap of a week, the newest that rose to a quarter, and to two nodes
    where the fleet has three.
    """
    busiest = max((day.nodes for day in known), default=0)
    there = [d for d in known if d.nodes * 4 >= busiest or 1 < d.nodes >= busiest / 20]
    least = max(busiest / 4, _least(known, nodes))
    sure = [part for part in _stretches(there) if max(day.nodes for day in part) >= least]
    return sure[-1] if sure else []


def alone(known: Sequence[Day], nodes: int) -> list[str]:
    """Dates of stretches of days with the records of single nodes, where the fleet has three, or of
    a few of many: those without a clock may have one date.
    """
    least = max(_least(known, nodes), max((day.nodes for day in known), default=0) / 20)
    lonely = [part for part in _stretches(known) if max(day.nodes for day in part) < least]
    return [day.date for part in lonely for day in part]


def _least(known: Sequence[Day], nodes: int) -> int:
    """Nodes that have to agree on what day it is: two, but of fleets that never had that many."""
    return min(2 if nodes > 2 else 1, max((day.nodes for day in known), default=0))


def _stretches(known: Sequence[Day]) -> list[list[Day]]:
    """Parted where there was nobody for a week."""
    found: list[list[Day]] = []
    for day in known:
        if found and _number(day) - _number(found[-1][-1]) <= WEEK:
            found[-1].append(day)
        else:
            found.append([day])
    return found


def _number(day: Day) -> int:
    return date.fromisoformat(day.date).toordinal()


def nodes(fleet: Fleet) -> list[tuple[str, str]]:
    """Names of all that were there in the last of these days, with their kinds of machine.

    A row a node comes to the driver: each has a file made for it.
    """
    from pyspark.sql import functions as F  # noqa: N812

    fleet.require()
    _, end_ms = days(fleet) or (0, 0)
    rows = (
        fleet.rolled("hour")
        .where((F.col("end") > end_ms - 7 * 24 * HOUR_MS) & (F.col("begin") < end_ms))
        .groupBy("node")
        .agg(F.max("machine").alias("machine"))
        .orderBy("node")
        .collect()
    )
    return [(row["node"], row["machine"] or "") for row in rows]


def _queries(rows: list[Any], shapes: dict[tuple[str, str], Shape]) -> list[profiles.Query]:
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
        drift_a_day=_drift(row["drift"]),
        selectivity=row["selectivity"],
        input_rate=row["rate"],
        rate_quantiles=tuple(row["rates"] or (None, None, None)),
        wait=row["wait"],
        queue=row["queue"],
        nodes=row["nodes"],
        hours=round(row["hours"] or 0.0, 3),
    )


def _drift(a_day: float | None) -> float | None:
    """Of the logarithm, as a share."""
    return None if a_day is None or a_day > STEEPEST else math.expm1(a_day)


def _error(row: Any) -> float | None:
    """Half of the 95% interval of the mean, as a share: by nodes; of one alone, by its hours."""
    from sched_ctl.sim.result import student

    if row["nodes"] > 1 and row["by_node"] is not None:
        return float(student(row["nodes"] - 1) * row["by_node"] / math.sqrt(row["nodes"]))
    if row["n"] > 1 and row["by_hour"] is not None:
        return float(student(row["n"] - 1) * row["by_hour"] / math.sqrt(row["n"]))
    return None


def _shapes(fleet: Fleet, end_ms: int) -> dict[tuple[str, str], Shape]:
    """(engine, query) -> its shape, by the newest line before a moment (Unix ms) that has it.

    A row a query comes to the driver, and each of these lines once, whatever it has of them.
    """
    from pyspark.sql import functions as F  # noqa: N812

    lines = (
        fleet.read("topology")
        .where(F.col("t") < end_ms)
        .select(
            F.split("engine", ":")[0].alias("engine"), "t", "text", F.xxhash64("text").alias("id")
        )
    )
    names = F.from_json(F.get_json_object("text", "$.queries"), "array<string>")
    newest = (
        lines.select("engine", "t", "id", F.explode(names).alias("query"))
        .groupBy("engine", "query")
        .agg(F.max_by("id", "t").alias("id"))
        .collect()
    )
    wanted = sorted({row["id"] for row in newest})
    texts = lines.where(F.col("id").isin(wanted)).groupBy("id").agg(F.first("text").alias("text"))
    shapes = {row["id"]: shapes_of(row["text"]) for row in texts.collect()}
    return {
        (row["engine"], row["query"]): shapes[row["id"]][row["query"]]
        for row in newest
        if row["query"] in shapes[row["id"]]
    }


def shapes_of(text: str) -> dict[str, Shape]:
    """Query -> its shape, of a topology line; none of one that cannot be read any more.

    Replicas of one name are one; their edges are added up.
    """
    try:
        line = records.decode(text.encode())
    except ValueError:  # written anew, it is longer than a line may be
        return {}
    assert isinstance(line, records.Topology)
    copies = Counter(zip(line.query_of, line.ops, strict=True))
    names: dict[int, list[str]] = {number: [] for number in range(len(line.queries))}
    for number, name in copies:
        names[number].append(name)
    place = {(q, name): row for q, each in names.items() for row, name in enumerate(each)}
    edges: dict[int, dict[tuple[int, int], float]] = {number: {} for number in names}
    for a, b, share in line.edges:
        q = line.query_of[a]
        if q == line.query_of[b]:
            one, other = (q, line.ops[a]), (q, line.ops[b])
            key = (place[one], place[other])
            edges[q][key] = edges[q].get(key, 0.0) + share / copies[one]
    return {
        name: (names[number], [(a, b, share) for (a, b), share in edges[number].items()])
        for number, name in reversed(list(enumerate(line.queries)))
    }
