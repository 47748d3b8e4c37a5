"""Rows of operators by the hour: what a verb reads that looks at 90 days.

They are made of the rows of a batch when it is taken in, in its folder, by its commit. Rows of
one hour that come in another batch have an entry of their own there, which adds up with the first:
all columns are sums, least or largest values, or means that are weighted again.

No record can move an hour: its rows are parted by their numbers into PARTS, and what an hour says
of cost, selectivity and rate is the median of what the parts say (the median of means). A counter
that wrapped round spoils one part. Only who emits seldom, as a window by the hour does, is told by
sums, and not beyond what came in. Sums are floating: they do not overflow.
"""

from typing import TYPE_CHECKING, Any

from sched_ctl.metrics.verdicts import HOLDS, Verdict
from sched_ctl.pipeline.choice import HOUR_MS
from sched_ctl.pipeline.tables import ROLLUPS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["BINS", "FIGURES", "MADE", "RATIOS", "hours", "joined", "merged", "spans", "turns"]

PARTS = 7
LEAST_TUPLES = 20  # of a part: with fewer, the hour as a whole
GAP = 1.5  # lengths of a record that are missing, at most, inside a span
STEP = 0.05  # of the load of a node: its CPU time over its CPUs
BINS = 4  # in which times are counted, for each factor of two
# figure of a policy -> whether it is compared by its logarithm
FIGURES = {
    "time": True,
    "latency": True,
    "age": True,
    "queue": True,
    "throughput": True,
    "fairness": False,
}

OPERATOR = ("date", "hour", "node", "machine", "engine", "query", "operator")
TURN = ("date", "hour", "node", "query", "policy", "step", "bin", "time_source")
RATIOS = ("cost_us", "selectivity", "rate", "needed")
WEIGHTS = {"cost_us": "counted_in", "selectivity": "tuples_in", "rate": "ms"}  # of several entries
MOST = 8.0  # times the middle entry, of which there are three at least
ADDED = (
    *("n", "d", "ms", "tuples_in", "tuples_out", "cpu_us", "counted_in", "wait_us", "waited_ms"),
    *("held_ms", "judged_ms", "queues", "queues_n", "psi", "psi_n", "lat_log", "lat_n"),
)


def _hour(time: str = "t") -> "Column":
    from pyspark.sql import functions as F  # noqa: N812

    return (F.floor(F.col(time) / HOUR_MS) * HOUR_MS).cast("bigint")


def hours(rows: "DataFrame") -> "DataFrame":
    """Table `hour`: one row for each operator, node and hour; replicas of one name are together.

    d: time of all replicas of that name; ms: of one of them, so that which they are matters not.
    waited_ms: of d that in which waits for a CPU are known.
    """
    from pyspark.sql import functions as F  # noqa: N812

    fed = F.col("tuples_in").isNotNull()
    counted, passed = F.col("cpu_us").isNotNull() & fed, F.col("tuples_out").isNotNull() & fed
    holds = F.col("verdict").isin([int(v) for v in HOLDS])
    latency = F.coalesce(F.col("latency_us"), F.col("age_ms") * 1000)
    length = F.col("d").cast("double")
    copies = F.greatest(F.size(F.collect_set("replica")), F.lit(1))  # of one name

    def added(column: Any, name: str) -> "Column":
        return F.sum(column.cast("double")).alias(name)

    parts = (
        rows.where("d > 0")
        .withColumn("engine", F.split("engine", ":")[0])
        .withColumn("hour", _hour())
        .withColumn("part", F.pmod(F.coalesce("seq", F.lit(0)), F.lit(PARTS)).cast("int"))
        .groupBy(*OPERATOR, "part")
        .agg(
            F.count("*").alias("n"),
            F.min("t").alias("begin"),
            F.max(F.col("t") + F.col("d")).alias("end"),
            added(length, "d"),
            (F.sum(length) / copies).alias("ms"),
            (F.sum(F.when(fed, length)) / copies).alias("fed_ms"),
            F.max("replicas").cast("double").alias("replicas"),
            added(F.col("tuples_in"), "tuples_in"),
            added(F.col("tuples_out"), "tuples_out"),
            added(F.when(passed, F.col("tuples_in")), "passed_in"),
            added(F.when(passed, F.col("tuples_out")), "passed_out"),
            added(F.when(counted, F.col("cpu_us")), "cpu_us"),
            added(F.when(counted, F.col("tuples_in")), "counted_in"),
            added(F.col("wait_us"), "wait_us"),
            added(F.when(F.col("wait_us").isNotNull(), length), "waited_ms"),
            F.percentile("needed", F.lit(0.5)).alias("needed"),
            added(F.when(holds, length).when(F.col("verdict") > 0, 0.0), "held_ms"),
            added(F.when(F.col("verdict") > 0, length), "judged_ms"),
            added(F.col("queue"), "queues"),
            F.count("queue").alias("queues_n"),
            added(F.col("psi_cpu"), "psi"),
            F.count("psi_cpu").alias("psi_n"),
            F.sum(F.log(F.when(latency > 0, latency))).alias("lat_log"),
            F.count(F.when(latency > 0, latency)).alias("lat_n"),
        )
    )

    return (
        parts.groupBy(*OPERATOR)
        .agg(
            F.min("begin").alias("begin"),
            F.max("end").alias("end"),
            *(F.sum(name).alias(name) for name in ADDED),
            _middle("cpu_us", "counted_in", LEAST_TUPLES).alias("cost_us"),
            _selectivity().alias("selectivity"),
            (_middle("tuples_in", "fed_ms", 1.0) * 1e3).alias("rate"),
            (F.percentile("needed", F.lit(0.5)) / 1e3).alias("needed"),
            F.max("replicas").alias("replicas"),
        )
        .select(*ROLLUPS["hour"])
    )


def _middle(a: str, b: str, least: float) -> "Column":
    """Median over the parts of a / b; of all together where they have too little of b."""
    from pyspark.sql import functions as F  # noqa: N812

    enough = F.count(F.when(F.col(b) >= least, 1)) * 2 > F.lit(PARTS)
    return F.when(
        enough, F.percentile(F.when(F.col(b) >= least, F.col(a) / F.col(b)), F.lit(0.5))
    ).otherwise(F.try_divide(F.sum(a), F.sum(b)))


def _selectivity() -> "Column":
    """The same of outputs by inputs; of all together where most parts emitted nothing."""
    from pyspark.sql import functions as F  # noqa: N812

    emitted, taken = F.sum("passed_out"), F.sum("passed_in")
    some = F.count(F.when(F.col("passed_out") > 0, 1)) * 2 <= F.lit(PARTS)
    seldom = some & (emitted > 0) & (emitted <= taken)
    middle = _middle("passed_out", "passed_in", LEAST_TUPLES)
    return F.when(seldom, F.try_divide(emitted, taken)).otherwise(middle)


def spans(rows: "DataFrame") -> "DataFrame":
    """Table `span`: who held, where, verdict, by whom, begin and end (Unix ms), held (ms)."""
    from pyspark.sql import functions as F  # noqa: N812

    holding = [int(v) for v in (*HOLDS, Verdict.BACKPRESSURED)]
    found = rows.where(F.col("verdict").isin(holding)).select(
        *("node", "engine", "query", "operator", "verdict", "held_by"),
        F.col("t").alias("begin"),
        (F.col("t") + F.col("d")).alias("end"),
        F.col("d").cast("double").alias("held"),
        F.col("d").alias("last_d"),
    )
    made = joined(found)
    day = F.date_format(F.timestamp_millis("begin"), "yyyy-MM-dd").alias("date")
    return made.withColumn("date", day).select(*ROLLUPS["span"])


def joined(found: "DataFrame") -> "DataFrame":
    """Pieces that follow each other with the same verdict are one. Idempotent."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    of_one = Window.partitionBy("node", "engine", "query", "operator").orderBy("begin", "end")
    begins = (
        F.lag("verdict").over(of_one).isNull()
        | (F.lag("verdict").over(of_one) != F.col("verdict"))
        | ~F.lag("held_by").over(of_one).eqNullSafe(F.col("held_by"))
        | (F.col("begin") - F.lag("end").over(of_one) > F.lag("last_d").over(of_one) * GAP)
    )
    return (
        found.withColumn("span", F.sum(begins.cast("int")).over(of_one))
        .groupBy("node", "engine", "query", "operator", "verdict", "held_by", "span")
        .agg(
            F.min("begin").alias("begin"),
            F.max("end").alias("end"),
            F.sum("held").alias("held"),
            F.max("last_d").alias("last_d"),
        )
        .drop("span")
    )


def turns(rows: "DataFrame") -> "DataFrame":
    """Table `turn`: records of a query by policy, step of the node's load, time taken, and by what
    it is measured.

    Load is the CPU time of all its operators over the CPUs of the node.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    # Not known where a file has lost its first line; a machine may also say what is no number.
    cpus = F.regexp_extract("machine", r", (\d+) CPUs$", 1).try_cast("int")
    length = F.max("d").cast("double")
    by_query = (
        rows.where("d > 0 AND policy IS NOT NULL")
        .groupBy("date", "node", "engine", "t", "seq", "query", "policy")
        .agg(
            (F.max("time_us") / 1e3).alias("time"),
            F.max(F.when(F.col("time_us").isNotNull(), F.col("time_source"))).alias("time_source"),
            (F.max("latency_us") / 1e3).alias("latency"),
            F.max("age_ms").cast("double").alias("age"),
            F.sum(F.col("queue").cast("double")).alias("queue"),
            (F.sum(F.col("tuples_out").cast("double")) * 1e3 / length).alias("throughput"),
            F.try_divide(F.sum(F.col("cpu_us").cast("double")), length * 1e3 * F.max(cpus)).alias(
                "part"
            ),
        )
    )
    record = Window.partitionBy("node", "engine", "t", "seq")
    each = F.coalesce("time", "latency", "age")
    jain = F.try_divide(
        F.sum(each).over(record) ** 2, F.count(each).over(record) * F.sum(each**2).over(record)
    )

    step = F.floor(F.least("load", F.lit(1000.0)) / STEP).cast("int")

    def figure(name: str) -> Any:
        column = F.col(name)
        return F.log(F.when(column > 0, column)) if FIGURES[name] else column

    return (
        by_query.withColumn("load", F.sum("part").over(record))
        .withColumn("fairness", F.when(F.count(each).over(record) > 1, jain))
        .withColumn("step", F.when(F.col("load").isNotNull(), step))
        .withColumn("bin", F.floor(F.log2(F.when(each > 0, each)) * BINS).cast("int"))
        .withColumn("hour", _hour())
        .groupBy(*TURN)
        .agg(
            F.count("*").alias("n"),
            *(F.sum(figure(name)).alias(name) for name in FIGURES),
            *(F.count(figure(name)).alias(f"{name}_n") for name in FIGURES),
        )
        .select(*ROLLUPS["turn"])
    )


def merged(kind: str, frame: "DataFrame") -> "DataFrame":
    """Entries of several batches of the same hour as one. Idempotent."""
    from pyspark.sql import functions as F  # noqa: N812

    if kind == "span":
        day = F.date_format(F.timestamp_millis("begin"), "yyyy-MM-dd")
        return joined(frame).withColumn("date", day).select(*ROLLUPS["span"])
    if kind == "turn":
        added = [name for name in ROLLUPS["turn"] if name not in TURN]
        made = frame.groupBy(*TURN).agg(*(F.sum(name).alias(name) for name in added))
        return made.select(*ROLLUPS["turn"])
    # Of before that was kept, the whole time.
    waited = F.when(F.col("wait_us").isNotNull(), F.coalesce("waited_ms", "d"))
    return (
        frame.groupBy(*OPERATOR)
        .agg(
            F.min("begin").alias("begin"),
            F.max("end").alias("end"),
            *(F.sum(waited if name == "waited_ms" else name).alias(name) for name in ADDED),
            *(_together(name).alias(name) for name in WEIGHTS),
            F.percentile("needed", F.lit(0.5)).alias("needed"),
            F.max("replicas").alias("replicas"),
        )
        .select(*ROLLUPS["hour"])
    )


def _together(name: str) -> "Column":
    """A ratio of an hour: the mean of what its entries say by what they say it of.

    One of three and more that is absurd cannot move it beyond MOST times what the middle one says.
    """
    from pyspark.sql import functions as F  # noqa: N812

    middle = F.percentile(name, F.lit(0.5))
    weight = F.when(F.col(name).isNotNull(), F.col(WEIGHTS[name]))
    mean = F.try_divide(F.sum(F.col(name) * weight), F.sum(weight))
    wild = (F.count(name) > 2) & (middle > 0) & (mean > middle * MOST)
    alone = (F.count(name) < 2) | mean.isNull()
    return F.when(alone, middle).when(wild, middle * MOST).otherwise(mean)


MADE = {"hour": hours, "span": spans, "turn": turns}
