"""Many small files of a fleet into fewer: an ingest an hour makes a file an hour, node and table.

One shuffle of the rows of small batches by table and date, in the order of the nodes, so that a
reader of one node skips the rest. Roll-ups are made anew from the rows; those of hours whose rows
are gone are carried on. The commit is that of an ingest: until the entry appears, nothing has
happened, and nothing is lost if it never does. The files that were replaced stay for a day, for
those who read them. Folders of older versions come to today's form in this way.
"""

from functools import partial, reduce

from sched_ctl.errors import UserError
from sched_ctl.pipeline import rollups
from sched_ctl.pipeline.ingest import PARTITIONS, TRIES, count, entered
from sched_ctl.pipeline.store import LAYOUT, Batch, Fleet, Taken
from sched_ctl.pipeline.tables import COLUMNS, KINDS, ROLLUPS, WIDE

__all__ = ["compact"]

SMALL = 5_000_000  # rows of operators: a larger batch is left as it is


def compact(fleet: Fleet, small: int = SMALL) -> tuple[int, int]:
    """Put small batches together. Returns how many there were, and the rows now.

    (0, 0) if there is nothing to do. Raises UserError if others commit all the time, or nothing
    was taken in.
    """
    fleet.require()
    fleet.clean()
    for _ in range(TRIES):
        old = [
            batch
            for batch in fleet.live()
            if batch.layout < LAYOUT or batch.rows.get("operator", 0) < small
        ]
        old = [batch for batch in old if sum(batch.rows.values())]
        if len(old) < 2 and all(batch.layout == LAYOUT for batch in old):
            return 0, 0
        try:
            made = entered(fleet, partial(_written, fleet, old))
        except Taken:
            continue
        return len(old), sum(made.rows.values())
    raise UserError("others commit all the time: try again later")


def _written(fleet: Fleet, old: list[Batch]) -> Batch:
    """Rows and roll-ups of these, without days that are out, in a folder of their own."""
    from pyspark.sql import functions as F  # noqa: N812

    made = Batch(folder=fleet.new_folder(), layout=LAYOUT, replaces=[batch.folder for batch in old])
    out = fleet.data(made.folder)
    found = []
    for layout in {batch.layout for batch in old}:
        folders = [fleet.data(batch.folder) for batch in old if batch.layout == layout]
        reader = fleet.spark.read.schema(WIDE).option("basePath", f"{fleet.out}/data")
        found.append(reader.parquet(*folders).select(*COLUMNS))
    rows = reduce(lambda one, other: one.unionByName(other), found)
    counts = F.col("kind").isin(*KINDS)
    for kind in KINDS:
        if since := fleet.since(kind):
            counts &= (F.col("kind") != kind) | (F.col("date") >= since)
    (
        rows.where(counts)
        .repartitionByRange(*PARTITIONS, "node")
        .sortWithinPartitions(*PARTITIONS, "node", "t")
        .write.mode("overwrite")
        .partitionBy(*PARTITIONS)
        .parquet(out)
    )
    for kind in ROLLUPS:
        rolled = rollups.merged(kind, fleet.rolled_of(kind, old))
        rolled = rolled.repartition("date").sortWithinPartitions("date", "node")
        rolled.write.mode("overwrite").partitionBy("date").parquet(f"{out}/kind={kind}")
    count(fleet, made)
    return made
