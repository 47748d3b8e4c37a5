"""Nodes whose word is doubtful: a clock that was not set, counters that cannot be, lines of other
versions, files that end early, two machines of one name.

Their bad lines count nowhere; what else they say does, and is as good as they are: each verb tells
of them, and `--node` leaves them out.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sched_ctl.pipeline.profile import alone, by_day
from sched_ctl.pipeline.store import Fleet

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["ABOUT", "COLUMNS", "OTHER", "Doubt", "doubts", "warned"]

MOST = 100  # rows that come to the driver
COLUMNS = ("node", "what about", ">lines", "for example")
# what about -> the reasons of bad lines (`parse`, `plausible`, `reading`), as a pattern of Java's
ABOUT = {
    "its clock": "clock was not set|^time .* is none|^before its file|^longer than a day",
    "its counters": "^(cpu|wait|busy|idle|full|tuples_in|tuples_out|q|qmax|age|lat|psi|verdict) "
    "[0-9]+ in ",
    "its version": "^version ",
    "its name": "^of another node|^no node|^a node's name",
    "its files": "^torn|^not gzip|bytes when decompressed|^a line longer",
}
OTHER = "its lines"
HARMLESS = (OTHER, "its files")  # of what is left out no sum is wrong
NAMED = 5
CLOCK_MS = 60_000  # between a recorder's first number and the time of its first line
SAVED_MS = 2 * 3600_000


@dataclass(frozen=True)
class Doubt:
    """lines: how many, at least (of each file a thousand are named)."""

    node: str
    about: str
    lines: int
    example: str


def doubts(fleet: Fleet) -> list[Doubt]:
    """Those with the most lines first."""
    from pyspark.sql import functions as F  # noqa: N812

    told = _of_bad_lines(fleet).unionByName(_of_other_days(fleet)).unionByName(_of_two(fleet))
    rows = told.orderBy(F.desc("lines"), "node", "about").limit(MOST).collect()
    return [Doubt(row["node"], row["about"], row["lines"], row["example"]) for row in rows]


def warned(fleet: Fleet) -> str:
    """Of whom a verb's figures are all the same, in a line; "" where all can be trusted."""
    known: dict[str, list[str]] = {}
    for doubt in doubts(fleet):
        if doubt.about not in HARMLESS:
            known.setdefault(doubt.node, []).append(doubt.about)
    if not known:
        return ""
    named = [f"{node} ({', '.join(abouts)})" for node, abouts in sorted(known.items())[:NAMED]]
    more = f" and {len(known) - NAMED} more" if len(known) > NAMED else ""
    return f"not to trust, though counted here: {', '.join(named)}{more}; --node '!NAME' is without"


def _of_bad_lines(fleet: Fleet) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812

    about: Column = F.lit(OTHER)
    for name, pattern in ABOUT.items():
        about = F.when(F.col("why").rlike(pattern), F.lit(name)).otherwise(about)
    return (
        fleet.read("bad")
        .dropDuplicates(["node", "file", "line", "why"])  # of one that was sent again
        .groupBy("node", about.alias("about"))
        .agg(F.count("*").alias("lines"), F.max("why").alias("example"))
    )


def _of_other_days(fleet: Fleet) -> "DataFrame":
    """Records of days far from all on which several nodes were there."""
    from pyspark.sql import functions as F  # noqa: N812

    return (
        fleet.rolled("hour")
        .where(F.col("date").isin(alone(*by_day(fleet))))
        .groupBy("node")
        .agg(
            F.lit("its clock").alias("about"),
            F.sum("n").alias("lines"),
            F.concat(F.lit("records of "), F.min("date"), F.lit(", as of no other node")).alias(
                "example"
            ),
        )
    )


def _of_two(fleet: Fleet) -> "DataFrame":
    """Names that two machines have at the same time: boots that overlap.

    A recorder numbers its lines from its clock (ms) when it begins, or on from the last number of
    its folder where that is more: then the clock was wrong, and the number is nearer to the time.
    A clock that was saved at times, and goes on from there, is behind by less than `SAVED_MS`.
    Each file repeats its topology, so that tells from when to when a boot lasts.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    def over(last: str, first: str) -> "Column":
        before = Window.partitionBy("node").orderBy(first, "boot")
        return F.max(last).over(before.rowsBetween(Window.unboundedPreceding, -1)) - F.col(first)

    set_later = F.col("first_seq") > F.col("first_t") + CLOCK_MS
    long = (F.col("times") > SAVED_MS) & ~set_later
    two = F.max((F.col("times") > 0) & (long | (F.col("numbers") > 0)))
    return (
        fleet.read("topology")
        .where("boot <> ''")
        .groupBy("node", "boot")
        .agg(
            *(F.min(name).alias(f"first_{name}") for name in ("t", "seq")),
            *(F.max(name).alias(f"last_{name}") for name in ("t", "seq")),
            F.count("*").alias("lines"),
        )
        .withColumn("begin", F.greatest("first_t", "first_seq"))
        .withColumn("times", over("last_t", "begin"))
        .withColumn("numbers", over("last_seq", "first_seq"))
        .groupBy("node")
        .agg(
            F.when(two, "its name").otherwise("its clock").alias("about"),
            F.sum(F.when(F.col("times") > 0, F.col("lines"))).alias("lines"),
            F.when(two, "two machines call themselves so")
            .otherwise("it booted with an earlier time than it had")
            .alias("example"),
        )
        .where("lines > 0")
    )
