"""Many small files of a fleet into fewer: an ingest an hour makes a file an hour, node and table.

One shuffle of the rows of small batches by table, date and node, so that each of these is one file
again. The commit is that of an ingest: until the entry appears, nothing has happened, and nothing
is lost if it never does. The files that were replaced stay for a day, for those who read them.
"""

from collections import Counter

from sched_ctl.errors import UserError
from sched_ctl.pipeline.ingest import PARTITIONS, TRIES
from sched_ctl.pipeline.store import Batch, Fleet, Taken
from sched_ctl.pipeline.tables import COLUMNS, WIDE

__all__ = ["compact"]

SMALL = 5_000_000  # rows of operators: a larger batch is left as it is


def compact(fleet: Fleet, small: int = SMALL) -> tuple[int, int]:
    """Put small batches together. Returns how many there were, and their rows; (0, 0) if under 2.

    Raises UserError if others commit all the time, or nothing was taken in.
    """
    fleet.require()
    fleet.clean()
    for _ in range(TRIES):
        old = [batch for batch in fleet.live() if batch.rows.get("operator", 0) < small]
        old = [batch for batch in old if sum(batch.rows.values())]
        if len(old) < 2:
            return 0, 0
        rows: Counter[str] = Counter()
        for batch in old:
            rows.update(batch.rows)
        made = Batch(
            folder=fleet.new_folder(),
            files=[],
            rows=dict(rows),
            replaces=[batch.folder for batch in old],
        )
        (
            fleet.spark.read.schema(WIDE)
            .option("basePath", f"{fleet.out}/data")
            .parquet(*(fleet.data(batch.folder) for batch in old))
            .select(*COLUMNS)
            .repartition(*PARTITIONS)
            .write.mode("overwrite")
            .partitionBy(*PARTITIONS)
            .parquet(fleet.data(made.folder))
        )
        try:
            fleet.commit(made)
        except Taken:
            fleet.remove(made.folder)
            fleet.refresh()
            continue
        return len(old), sum(rows.values())
    raise UserError("others commit all the time: try again later")
