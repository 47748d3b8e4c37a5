"""Closed files of many nodes into the tables of the fleet, each good record exactly once.

One stage, no shuffle: each task takes some files, makes rows of them and writes these by kind,
date and node. What has been read is known by name, size and time; what is in twice all the same
(sent under another name, or copied and then finished) shows in the numbers of its lines: only if
those of a file overlap with what is there, the batch is written once more without the rows that
are (one shuffle of the rows of these nodes by node and number).

A busy node has more files, none of which is larger than the recorder lets it be, so no task is
much longer than the others.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from sched_ctl.errors import UserError
from sched_ctl.pipeline import parse
from sched_ctl.pipeline.store import Batch, Fleet, Source, Taken
from sched_ctl.pipeline.tables import COLUMNS, WIDE
from sched_ctl.telemetry.records import FileName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Done", "follow", "ingest", "listed"]

MOST_BYTES = 64 << 20  # of a file: the recorder closes them at 16 MB
MOST_FILES = 4000  # of a batch
BATCH_BYTES = 2 << 30
TRIES = 20
PARTITIONS = ("kind", "date", "node")
# What makes a line one of its kind, whatever the file that it came in is called, and where it lies:
# a node that numbers anew is of another boot or run, and so is another machine of its name.
OLDER = ("node", "seq", "t")
KEY = (*OLDER, "boot", "run")
READ = {"recursiveFileLookup": "true"}

Files = list[tuple[str, Source]]  # with their paths


@dataclass
class Done:
    """What an ingest did. named: files that were not read, and why, the first of them."""

    files: int = 0
    lines: int = 0
    rows: int = 0
    bad: int = 0
    repeated: int = 0
    set_aside: int = 0
    known: int = 0
    batches: int = 0
    named: list[str] = field(default_factory=list)

    def add(self, batch: Batch) -> None:
        self.files += len(batch.files)
        self.lines += batch.lines
        self.rows += batch.rows.get("operator", 0)
        self.bad += batch.bad
        self.repeated += batch.repeated
        self.set_aside += len(batch.set_aside)
        self.batches += 1
        self.named += [f"{source.name}: {why}" for source, why in batch.set_aside][:20]


def ingest(
    spark: "SparkSession",
    source: str,
    out: str,
    batch_bytes: int = BATCH_BYTES,
    told: Callable[[Done], None] = lambda _: None,
) -> Done:
    """Take in what is new. source: a folder, or a pattern of folders; told: after each batch.

    Raises UserError if there is nothing at all.
    """
    fleet = Fleet(spark, out)
    fleet.clean()
    done = Done()
    files = listed(spark, source)
    if not files:
        raise UserError(
            f"there are no recorded files in {source}",
            "sched-ctl load --record writes them; closed ones are called NODE-START-SEQ.jsonl.gz",
        )
    known = fleet.known()
    new = [file for file in files if file[1] not in known]
    done.known = len(files) - len(new)
    for part in _parts(new, batch_bytes):
        _take(fleet, part, done)
        told(done)
    fleet.clean()
    return done


def follow(
    spark: "SparkSession",
    source: str,
    out: str,
    checkpoint: str,
    *,
    once: bool = False,
    told: Callable[[Done], None] = lambda _: None,
) -> Done:
    """A streaming query that takes in files as they come, by the same commit.

    once: end when all that is there is in. The checkpoint only saves listing what is known; losing
    it costs nothing, for the manifest decides.
    """
    fleet = Fleet(spark, out)
    fleet.clean()
    done = Done()

    def commit(frame: "DataFrame", _: int) -> None:
        fleet.refresh()
        known = fleet.known()
        files = [file for file in _sources(frame) if file[1] not in known]
        for part in _parts(files, BATCH_BYTES):
            _take(fleet, part, done)
            told(done)

    stream = (
        spark.readStream.format("binaryFile")
        .schema("path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY")
        .options(**READ)
        .option("maxFilesPerTrigger", MOST_FILES)
        .option("pathGlobFilter", "*.jsonl.gz")
        .load(source)
        .writeStream.foreachBatch(commit)
        .option("checkpointLocation", checkpoint)
    )
    query = (
        stream.trigger(availableNow=True) if once else stream.trigger(processingTime="10 seconds")
    ).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
        fleet.clean()
    return done


def listed(spark: "SparkSession", source: str) -> Files:
    """All closed files, and whatever else lies there; those that still grow are left out."""
    from pyspark.errors import AnalysisException

    reader = spark.read.format("binaryFile").options(**READ)
    try:
        frame = reader.load(source)
        found = _sources(frame)
        # Spark reads no empty files, and so has no rows of them.
        with_rows = {_place(path) for path, _ in found}
        empty = [path for path in frame.inputFiles() if _place(path) not in with_rows]
        named = [(path, Source(path.rpartition("/")[2], 0, 0)) for path in empty]
        return found + [file for file in named if FileName.parse(file[1].name) is not None]
    except AnalysisException as error:
        if "PATH_NOT_FOUND" in str(error):
            raise UserError(f"there is no {source}") from None
        raise


def _place(path: str) -> str:
    """Without what Spark writes in several ways: file:/a and file:///a, %20 and a blank."""
    return unquote(urlsplit(path).path)


def _sources(frame: "DataFrame") -> Files:
    """Names, sizes and times; the contents are not read."""
    rows = frame.selectExpr("path", "length", "unix_millis(modificationTime) AS modified").collect()
    files = [
        (row["path"], Source(row["path"].rpartition("/")[2], row["length"], row["modified"]))
        for row in rows
        if not row["path"].endswith(".part")
    ]
    return sorted(files, key=lambda file: (file[1].name, file[0]))


def _parts(files: Files, most_bytes: int) -> Iterator[Files]:
    """In portions that a commit can take."""
    part: Files = []
    size = 0
    for file in files:
        if part and (len(part) >= MOST_FILES or size + file[1].size > most_bytes):
            yield part
            part, size = [], 0
        part.append(file)
        size += file[1].size
    if part:
        yield part


def _take(fleet: Fleet, files: Files, done: Done) -> None:
    """One batch, from the files to the manifest."""
    for _ in range(TRIES):
        known = fleet.known()
        left = [file for file in files if file[1] not in known]
        done.known += len(files) - len(left)
        if not left:
            return
        batch = _written(fleet, left)
        try:
            fleet.commit(batch)
        except Taken:
            fleet.remove(batch.folder)
            fleet.refresh()
            continue
        done.add(batch)
        return
    raise UserError("others commit all the time: try again later")


def _written(fleet: Fleet, files: Files) -> Batch:
    """Rows of these files in a folder of their own, none of which is in the fleet already."""
    set_aside = [(source, why) for _, source in files if (why := _refused(source))]
    refused = {source for source, _ in set_aside}
    good = [(path, source) for path, source in files if source not in refused]
    batch = Batch(
        folder=fleet.new_folder(), files=[source for _, source in good], set_aside=set_aside
    )
    if not good:
        return batch
    frame = (
        fleet.spark.read.format("binaryFile")
        .option("ignoreMissingFiles", "true")  # rotated away since it was listed
        .load([path for path, _ in good])
        .select("path", "content")
        .mapInArrow(parse.rows, WIDE)
    )
    _write(frame, fleet.data(batch.folder))
    stats = fleet.read("file", [batch.folder]).collect()
    overlapping = _overlapping(fleet, stats)
    if overlapping:
        first, batch.folder = batch.folder, fleet.new_folder()
        _write(_deduplicated(fleet, first, overlapping), fleet.data(batch.folder))
        batch.repeated = _numbers(fleet, first) - _numbers(fleet, batch.folder)
        fleet.remove(first)
    counted = (
        fleet.spark.read.schema("kind STRING")
        .parquet(fleet.data(batch.folder))
        .groupBy("kind")
        .count()
    )
    batch.rows = {row["kind"]: row["count"] for row in counted.collect()}
    batch.lines = sum(row["good"] for row in stats)
    batch.bad = sum(row["bad"] for row in stats)
    batch.repeated += sum(row["repeated"] for row in stats)
    for row in stats:
        if row["seq"] is not None:
            batch.spans.setdefault(row["node"], []).append((row["seq"], row["last_seq"]))
    return batch


def _refused(source: Source) -> str | None:
    if FileName.parse(source.name) is None:
        return "not called as a recorded file is"
    if source.size == 0:
        return "empty"
    return f"larger than {MOST_BYTES >> 20} MB" if source.size > MOST_BYTES else None


def _write(frame: "DataFrame", folder: str) -> None:
    frame.write.mode("overwrite").partitionBy(*PARTITIONS).parquet(folder)


def _numbers(fleet: Fleet, folder: str) -> int:
    """How many lines the rows of a batch are of, those of several files each for itself."""
    rows = fleet.spark.read.schema(WIDE).parquet(fleet.data(folder))
    lines = rows.where("seq IS NOT NULL AND kind <> 'file'").select("source", "seq").distinct()
    return int(lines.count())


def _overlapping(fleet: Fleet, stats: Sequence[Any]) -> list[str]:
    """Nodes with lines whose numbers occur in another file, of this batch or before."""
    spans = fleet.spans()
    found = set()
    for row in stats:
        if row["seq"] is None:
            continue
        mine = spans.setdefault(row["node"], [])
        if any(first <= row["last_seq"] and row["seq"] <= last for first, last in mine):
            found.add(row["node"])
        mine.append((row["seq"], row["last_seq"]))
    return sorted(found)


def _deduplicated(fleet: Fleet, folder: str, nodes: list[str]) -> "DataFrame":
    """A batch without lines that are there already; of several in the batch, one."""
    from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

    everything = fleet.spark.read.schema(WIDE).parquet(fleet.data(folder)).select(*COLUMNS)
    numbered = F.col("kind").isin("operator", "event", "topology") & F.col("node").isin(nodes)
    mine = everything.where(numbered)
    chosen = mine.groupBy(*KEY).agg(F.min("source").alias("source"))
    for kind in ("operator", "event", "topology"):
        there = fleet.read(kind).where(F.col("node").isin(nodes)).select(*KEY).distinct()
        chosen = chosen.join(there.where("run IS NOT NULL"), [*KEY], "left_anti")
        # Of before boots and runs were kept: what is left is a line's number and its time.
        older = there.where("run IS NULL").select(*OLDER)
        chosen = chosen.join(older, [*OLDER], "left_anti")
    kept = mine.join(chosen, [*KEY, "source"], "left_semi")
    return everything.where(~numbered).unionByName(kept)
