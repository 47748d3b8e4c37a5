"""Closed files of many nodes into the tables of the fleet, each good record exactly once.

One stage, no shuffle: each task takes some files, makes rows of them and writes these by kind and
date. What has been read is known by name, size and time; what is in twice all the same
(sent under another name, or copied and then finished) shows in the numbers of its lines: only if
those of a run of a file overlap with what is there, the batch is written once more without the
rows that are (one shuffle of the rows of these nodes and days by node and number). Then roll-ups
are made of it, by the hour.

The driver holds the names of one batch's files, MOST_FILES of them; Spark itself lists all that lie
in the source.

A busy node has more files, none of which is larger than the recorder lets it be, so no task is
much longer than the others.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from sched_ctl.errors import UserError
from sched_ctl.pipeline import expire, parse, rollups
from sched_ctl.pipeline.store import LAYOUT, SOURCE, Batch, Fleet, Source, Taken
from sched_ctl.pipeline.tables import COLUMNS, WIDE, ddl
from sched_ctl.telemetry.records import FileName

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Done", "count", "entered", "follow", "ingest", "listed"]

MOST_BYTES = 64 << 20  # of a file: the recorder closes them at 16 MB
MOST_FILES = 4000  # of a batch
BATCH_BYTES = 2 << 30
TRIES = 20
MOST_DATES = 400  # of a batch by which older rows are looked for
PARTITIONS = ("kind", "date")
# What makes a line one of its kind, whatever the file that it came in is called, and where it lies:
# a node that numbers anew is of another boot or run, and so is another machine of its name.
OLDER = ("node", "seq", "t")
RUN = ("node", "boot", "run")
KEY = (*OLDER, *RUN[1:])
SPECIAL = re.compile(r"[][{}*?\\]")  # of a path, which Spark takes for a pattern
ENDING = ".jsonl.gz"
LOOK_S = 3600.0
READ = {"recursiveFileLookup": "true"}
EVER = "36500d"  # of a file's age: a gateway may come back after weeks, or have a clock of 2040

Files = list[tuple[str, Source]]  # with their paths


class Missing(UserError):
    """There is no such folder, or none of such a pattern."""


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

    def add(self, batch: Batch, set_aside: list[tuple[Source, str]]) -> None:
        self.files += batch.count
        self.lines += batch.lines
        self.rows += batch.rows.get("operator", 0)
        self.bad += batch.bad
        self.repeated += batch.repeated
        self.set_aside += len(set_aside)
        self.batches += 1
        self.named += [f"{source.name}: {why}" for source, why in set_aside][:20]


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
    found = listed(spark, source)
    total = found.count()
    if not total:
        raise UserError(
            f"there are no recorded files in {source}",
            "sched-ctl load --record writes them; closed ones are called NODE-START-SEQ.jsonl.gz",
        )
    new = 0
    for part in _parts(_new(fleet, found), batch_bytes):
        new += len(part)
        _take(fleet, part, done)
        told(done)
    done.known += total - new
    expire.by_rule(fleet)
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
    it costs nothing, for the manifest decides. Spark holds the names of all files that it has seen,
    and would never see one that was sent again, longer: for these all are listed when it begins,
    and each hour.
    """
    fleet = Fleet(spark, out)
    fleet.clean()
    done = Done()
    looked_s = 0.0

    def take(found: "DataFrame") -> None:
        fleet.refresh()
        for part in _parts(_new(fleet, found), BATCH_BYTES):
            _take(fleet, part, done)
            told(done)
            fleet.clean()
        expire.by_rule(fleet)

    def look() -> None:
        nonlocal looked_s
        take(listed(spark, source).where(f"endswith(file, '{ENDING}')"))
        looked_s = time.monotonic()

    def commit(frame: "DataFrame", _: int) -> None:
        take(_sources(frame))
        if time.monotonic() - looked_s >= LOOK_S:
            with suppress(Missing):  # it is away at the moment
                look()

    with suppress(Missing):  # of a pattern nothing may be there yet
        look()
    stream = (
        spark.readStream.format("binaryFile")
        .schema("path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY")
        .options(**READ)
        .option("maxFilesPerTrigger", MOST_FILES)
        .option("maxFileAge", EVER)
        .option("pathGlobFilter", f"*{ENDING}")
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


def listed(spark: "SparkSession", source: str) -> "DataFrame":
    """All closed files, and whatever else lies there; those that still grow are left out.

    Columns path, and SOURCE's.
    """
    from pyspark.errors import AnalysisException

    reader = spark.read.format("binaryFile").options(**READ)
    try:
        frame = reader.load(source)
        found = _sources(frame)
        # Spark reads no empty files, and so has no rows of them.
        paths = frame._jdf.inputFiles()
        if len(paths) > frame.select("path").count():
            with_rows = {_place(row["path"]) for row in frame.select("path").collect()}
            empty = [
                (path, _name(path), 0, 0)
                for path in paths
                if _place(path) not in with_rows and FileName.parse(_name(path)) is not None
            ]
            if empty:
                found = found.unionByName(spark.createDataFrame(empty, f"path STRING, {SOURCE}"))
        return found
    except AnalysisException as error:
        if "PATH_NOT_FOUND" in str(error):
            raise Missing(f"there is no {source}") from None
        raise


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _place(path: str) -> str:
    """Without what Spark writes in several ways: file:/a and file:///a, %20 and a blank."""
    return unquote(urlsplit(path).path)


def _sources(frame: "DataFrame") -> "DataFrame":
    """Names, sizes and times; the contents are not read."""
    return frame.where("NOT endswith(path, '.part')").selectExpr(
        "path",
        "substring_index(path, '/', -1) AS file",
        "length AS size",
        "unix_millis(modificationTime) AS modified",
    )


def _new(fleet: Fleet, found: "DataFrame") -> Iterator[tuple[str, Source]]:
    """Those that are not in the fleet, by name."""
    from pyspark.sql import functions as F  # noqa: N812

    left = found
    if since := fleet.since("file"):  # older ones were read, or would count for nothing
        day = F.regexp_extract("file", r"-(\d{8})T\d{6}Z-\d+\.jsonl\.gz$", 1)
        # Names are of when a file was begun, by a clock that may have been years behind.
        since_ms = round(datetime.fromisoformat(f"{since}T00:00Z").timestamp() * 1e3)
        late = F.col("modified") >= since_ms
        left = left.where(late | (day >= since.replace("-", "")) | (day < parse.FIRST_DAY))
    if fleet.batches:
        left = left.join(fleet.known(), ["file", "size", "modified"], "left_anti")
    for row in left.orderBy("file", "path").toLocalIterator():
        yield row["path"], Source(row["file"], row["size"], row["modified"])


def _parts(files: Iterable[tuple[str, Source]], most_bytes: int) -> Iterator[Files]:
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
    left = files
    for _ in range(TRIES):
        set_aside = [(source, why) for _, source in left if (why := _refused(source))]
        try:
            batch = entered(fleet, partial(_written, fleet, left, set_aside))
        except Taken:
            before = len(left)
            left = _still_new(fleet, left)
            done.known += before - len(left)
            if not left:
                return
            continue
        done.add(batch, set_aside)
        return
    raise UserError("others commit all the time: try again later")


def entered(fleet: Fleet, written: Callable[[], Batch]) -> Batch:
    """Write a batch and commit it. Raises Taken if somebody else has committed meanwhile."""
    number = len(fleet.batches)
    try:
        batch = written()
    except Exception as error:
        fleet.refresh()
        if len(fleet.batches) == number:
            raise
        raise Taken from error  # who takes the number may remove what lies under it
    try:
        fleet.commit(batch)
    except Taken:
        fleet.remove(batch.folder)
        fleet.refresh()
        raise
    return batch


def _still_new(fleet: Fleet, files: Files) -> Files:
    rows = [(path, *(getattr(source, name) for name in source.__struct_fields__))
            for path, source in files]  # fmt: skip
    return list(_new(fleet, fleet.spark.createDataFrame(rows, f"path STRING, {SOURCE}")))


def _written(fleet: Fleet, files: Files, set_aside: list[tuple[Source, str]]) -> Batch:
    """Rows of these files in a folder of their own, none of which is in the fleet already."""
    refused = {source for source, _ in set_aside}
    good = [path for path, source in files if source not in refused]
    batch = Batch(folder=fleet.new_folder(), layout=LAYOUT, count=len(good))
    if good:
        frame = (
            fleet.spark.read.format("binaryFile")
            .option("ignoreMissingFiles", "true")  # rotated away since it was listed
            .load([SPECIAL.sub(r"\\\g<0>", path) for path in good])
            .selectExpr("path", "content", "unix_millis(modificationTime) AS modified")
            .mapInArrow(parse.rows, WIDE)
        )
        _write(frame, fleet.data(batch.folder))
        overlapping = _overlapping(fleet, batch.folder)
        if overlapping:
            first, batch.folder = batch.folder, fleet.new_folder()
            _write(_deduplicated(fleet, first, overlapping), fleet.data(batch.folder))
            batch.repeated = _numbers(fleet, first) - _numbers(fleet, batch.folder)
            fleet.remove(first)
    if set_aside:
        _write(_named(fleet, set_aside), fleet.data(batch.folder), "append")
    count(fleet, batch)
    if batch.rows.get("operator"):
        rows = fleet.read("operator", [batch.folder], out=True)
        for kind, made in rollups.MADE.items():
            folder = f"{fleet.data(batch.folder)}/kind={kind}"
            made(rows).write.mode("overwrite").partitionBy("date").parquet(folder)
        count(fleet, batch)
    [sums] = (
        fleet.read("file", [batch.folder])
        .selectExpr(*(f"coalesce(sum({n}), 0) AS {n}" for n in ("good", "bad", "repeated")))
        .collect()
    )
    batch.lines, batch.bad = sums["good"], sums["bad"]
    batch.repeated += sums["repeated"]
    return batch


def count(fleet: Fleet, batch: Batch) -> None:
    """Enter how many rows the batch has in its folder, by table."""
    counted = (
        fleet.spark.read.schema("kind STRING")
        .parquet(fleet.data(batch.folder))
        .groupBy("kind")
        .count()
    )
    batch.rows = {row["kind"]: row["count"] for row in counted.collect()}


def _refused(source: Source) -> str | None:
    if FileName.parse(source.name) is None:
        return "not called as a recorded file is"
    if source.size == 0:
        return "empty"
    return f"larger than {MOST_BYTES >> 20} MB" if source.size > MOST_BYTES else None


def _write(frame: "DataFrame", folder: str, mode: str = "overwrite") -> None:
    frame.write.mode(mode).partitionBy(*PARTITIONS).parquet(folder)


def _named(fleet: Fleet, set_aside: list[tuple[Source, str]]) -> "DataFrame":
    """Rows of the table `file` for what was not read."""
    rows = [
        {"kind": "file", "date": "unknown", "node": "unknown", "file": source.name}
        | {"size": source.size, "modified": source.modified_ms, "why": why}
        for source, why in set_aside
    ]
    return fleet.spark.createDataFrame(rows, WIDE).coalesce(1)


def _numbers(fleet: Fleet, folder: str) -> int:
    """How many lines the rows of a batch are of, those of several files each for itself."""
    rows = fleet.spark.read.schema(WIDE).parquet(fleet.data(folder))
    numbered = rows.where("seq IS NOT NULL AND kind <> 'file'")
    return int(numbered.select("source", *KEY).distinct().count())


def _pieces(fleet: Fleet, folder: str) -> "DataFrame":
    """Numbers of the nodes of a batch, in pieces without holes: its own (`here`) and from before.

    Columns RUN, seq, last_seq, here; run is 0 where it is not known of which the lines are.
    """
    from pyspark.sql import functions as F  # noqa: N812

    here = fleet.read("file", [folder]).select(*RUN, "seq", "last_seq").where("seq IS NOT NULL")
    there = fleet.numbered().join(here.select("node").distinct(), "node", "left_semi")
    there = there.na.fill({"boot": "", "run": 0}).select(*here.columns)
    return here.withColumn("here", F.lit(True)).unionByName(there.withColumn("here", F.lit(False)))


def _reached(of: "Column", *by: str) -> "Column":
    """Whether a piece from before it, in the order of numbers, goes on to where this one begins."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    before = (
        Window.partitionBy(*by).orderBy("seq", "here").rowsBetween(Window.unboundedPreceding, -1)
    )
    last = F.max(F.when(of, F.col("last_seq"))).over(before)
    return F.coalesce(last >= F.col("seq"), F.lit(False))


def _overlapping(fleet: Fleet, folder: str) -> list[str]:
    """Nodes with a run whose numbers occur in another file, of this batch or before."""
    from pyspark.sql import functions as F  # noqa: N812

    here, unsure, each = F.col("here"), F.col("run") == 0, F.lit(True)
    met = (
        _reached(here, *RUN)
        | here & _reached(each, *RUN)
        # Where it is not known of which run lines are, it may be any of the node.
        | _reached(here & unsure, "node")
        | here & _reached(unsure, "node")
        | unsure & (_reached(here, "node") | here & _reached(each, "node"))
    )
    found = _pieces(fleet, folder).withColumn("met", met).where("met")
    return sorted(row["node"] for row in found.select("node").distinct().collect())


def _without_gone(fleet: Fleet, folder: str, late: "DataFrame") -> "DataFrame":
    """Lines whose numbers no file from before had: rows that went can be compared no more."""
    from pyspark.sql import functions as F  # noqa: N812

    lines = late.select(*KEY, F.col("seq").alias("last_seq"), F.lit(True).alias("here")).distinct()
    there = _pieces(fleet, folder).where("NOT here").withColumn("t", F.lit(None).cast("bigint"))
    before, unsure = ~F.col("here"), F.col("run") == 0
    had = (
        _reached(before, *RUN)
        | _reached(before & unsure, "node")
        | unsure & _reached(before, "node")
    )
    new = lines.unionByName(there).withColumn("had", had).where("here AND NOT had")
    return late.join(new.select(*KEY), [*KEY], "left_semi")


def _deduplicated(fleet: Fleet, folder: str, nodes: list[str]) -> "DataFrame":
    """A batch without lines that are there already; of several in the batch, one.

    One of a run that is not known is that of its number and time, whatever the run.
    """
    from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

    everything = fleet.spark.read.schema(WIDE).parquet(fleet.data(folder)).select(*COLUMNS)
    numbered = F.col("kind").isin("operator", "event", "topology") & F.col("node").isin(nodes)
    mine = everything.where(numbered)
    if since := fleet.since("operator"):
        gone = F.col("kind").isin("operator", "event") & (F.col("date") < since)
        mine = mine.where(~gone).unionByName(_without_gone(fleet, folder, mine.where(gone)))
    dates = [row["date"] for row in mine.select("date").distinct().collect()]
    there = fleet.spark.createDataFrame([], ddl(KEY))
    for kind in ("operator", "event", "topology"):
        rows = fleet.read(kind).where(F.col("node").isin(nodes))
        if len(dates) <= MOST_DATES:
            rows = rows.where(F.col("date").isin(dates))
        there = there.unionByName(rows.select(*KEY))
    there = there.na.fill({"boot": "", "run": 0}).distinct()
    lines = mine.groupBy(*KEY).agg(F.min("source").alias("source"))
    sure, unsure = lines.where("run <> 0"), lines.where("run = 0")
    sure = sure.join(there, [*KEY], "left_anti")
    sure = sure.join(there.where("run = 0"), [*OLDER], "left_anti")
    unsure = unsure.groupBy(*OLDER).agg(F.min(F.struct(*RUN[1:], "source")).alias("one"))
    unsure = unsure.select(*OLDER, "one.*")
    for known in (there, lines.where("run <> 0")):
        unsure = unsure.join(known, [*OLDER], "left_anti")
    return everything.where(~numbered).unionByName(
        mine.join(sure.unionByName(unsure), [*KEY, "source"], "left_semi")
    )
