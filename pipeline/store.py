"""The folder of a fleet, and the one moment at which data are in it.

    OUT/data/batch=ID/kind=operator/date=2026-11-22/*.parquet
    OUT/manifest/00000007.json

A batch of files is written to a folder of its own, which nobody reads; then its entry appears in
the manifest, at once and under a number that nobody else has. That is the commit: what no entry
names does not exist. Whoever is killed before leaves a folder that the next one removes; of two
at the same time one gets the number, and the other starts again. An entry may say that its folder
replaces those of others, which hold the same rows in more files; they are removed some time later,
as somebody may be reading them. (The way of Delta Lake and Iceberg, neither of which goes with this
Spark.) An entry may also say from which day on rows count, and roll-ups; what is older is removed
as late.

Entries tell how much there is, not what: which files are in stands in the table `file`, so what the
driver holds does not grow with nodes or files. Entries of older versions, whose folders have one
more level by node, are read as they are; `compact` makes folders of today's form of them.
"""

import os
import re
import secrets
import time
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from sched_ctl.errors import UserError
from sched_ctl.pipeline import rollups
from sched_ctl.pipeline.choice import Choice
from sched_ctl.pipeline.tables import KINDS, ROLLED, ROLLUPS, ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["LAYOUT", "Batch", "Fleet", "Keep", "Source", "Taken"]

GRACE_MS = 86_400_000  # that folders which were replaced stay
LAYOUT = 2  # of folders: 1 had one for each node
# Whose commit is a rename that fails where there is a file, or a link.
ATOMIC = ("file", "hdfs", "viewfs", "webhdfs")
SOURCE = "file STRING, size BIGINT, modified BIGINT"


class Source(Struct, frozen=True, array_like=True):
    """A file as it was when it was taken. Sent again with another content, it is another one."""

    name: str  # without its folder
    size: int
    modified_ms: int


class Keep(Struct, frozen=True):
    """A rule: days that rows of records stay, and days that roll-ups stay; 0 = for ever."""

    rows: int = 0
    hours: int = 0


class Batch(Struct, kw_only=True, omit_defaults=True):
    """An entry of the manifest.

    files, set_aside, spans: of layout 1 only, later ones have them in the table `file`.
    replaces: folders whose rows are in this one, and count there no more.
    since: table -> first date (UTC) whose rows count, from this entry on; keep: the rule that the
    next ingests follow.
    """

    folder: str
    layout: int = 1
    count: int = 0  # files that were read
    files: list[Source] = []
    set_aside: list[tuple[Source, str]] = []
    rows: dict[str, int] = {}  # by kind
    lines: int = 0
    bad: int = 0
    repeated: int = 0  # lines that were there already
    spans: dict[str, list[tuple[int, int]]] = {}  # node -> first and last number of each file
    replaces: list[str] = []
    since: dict[str, str] = {}
    keep: Keep | None = None


class Taken(Exception):
    """Somebody else has committed meanwhile."""


class Fleet:
    """The folder `out`, on a file system that Spark's Hadoop knows. choice: what reads show of it.

    Raises UserError where nothing there can be committed at once.
    """

    def __init__(self, spark: "SparkSession", out: str, choice: Choice | None = None) -> None:
        self.spark, self.out = spark, out.rstrip("/")
        self.choice = choice or Choice()
        jvm: Any = spark.sparkContext._jvm
        self._jvm = jvm
        self._conf = spark.sparkContext._jsc.hadoopConfiguration()
        self._path = jvm.org.apache.hadoop.fs.Path
        named = urlsplit(self.out).scheme  # whose library may not be there
        if named:
            _refuse(named)
        self._fs = self._path(self.out).getFileSystem(self._conf)
        _refuse(str(self._fs.getScheme()))
        self.batches: list[Batch] = []
        self.refresh()

    def refresh(self) -> None:
        """Read the entries that are new in the manifest. Raises UserError if one is broken."""
        while True:
            path = self._path(self._entry(len(self.batches)))
            if not self._fs.exists(path):
                return
            try:
                self.batches.append(msgspec.json.decode(self._read(path), type=Batch))
            except msgspec.DecodeError as error:
                raise UserError(f"{path}: no entry of a manifest: {error}") from None

    def require(self) -> None:
        """Raises UserError where nothing was ever taken in, as in a folder that is misspelt."""
        if not self.batches:
            raise UserError(f"there are no records in {self.out}", "sched-ctl fleet ingest first")

    def known(self) -> "DataFrame":
        """All files that are in, or were set aside, by name, size and time (columns SOURCE)."""
        folders = [b.folder for b in self.live() if b.layout > 1 and b.rows.get("file")]
        found = self.read("file", folders)
        known = found.where("size IS NOT NULL").select("file", "size", "modified")
        older = [
            (source.name, source.size, source.modified_ms)
            for batch in self.batches
            for source in (*batch.files, *(source for source, _ in batch.set_aside))
        ]
        if older:
            known = known.unionByName(self.spark.createDataFrame(older, SOURCE))
        return known

    def numbered(self) -> "DataFrame":
        """First and last numbers of the lines of each run in each file that is in, by pieces.

        Columns node, boot, run, seq, last_seq; run is null where it was not kept.
        """
        folders = [b.folder for b in self.live() if b.layout > 1 and b.rows.get("file")]
        columns = ("node", "boot", "run", "seq", "last_seq")
        found = self.read("file", folders).select(*columns)
        older = [
            (node, None, None, first, last)
            for batch in self.batches
            for node, each in batch.spans.items()
            for first, last in each
        ]
        if older:
            found = found.unionByName(self.spark.createDataFrame(older, ddl(columns)))
        return found.where("seq IS NOT NULL")

    def new_folder(self) -> str:
        return f"{len(self.batches):08}-{secrets.token_hex(4)}"

    def data(self, folder: str) -> str:
        return f"{self.out}/data/batch={folder}"

    def commit(self, batch: Batch) -> None:
        """Enter the batch. Raises Taken if its number has gone to somebody else."""
        final = self._entry(len(self.batches))
        text = msgspec.json.encode(batch)
        staged = f"{self.out}/manifest/.{batch.folder}"
        self._fs.mkdirs(self._path(f"{self.out}/manifest"))
        self._write(self._path(staged), text)
        try:
            self._put(staged, final)
        finally:
            self._fs.delete(self._path(staged), False)
        self.batches.append(batch)

    def live(self) -> list[Batch]:
        """Those whose rows count."""
        replaced = {folder for batch in self.batches for folder in batch.replaces}
        return [batch for batch in self.batches if batch.folder not in replaced]

    def clean(self) -> int:
        """Remove folders that no entry names and none can name any more. Returns how many."""
        root = self._path(f"{self.out}/data")
        if not self._fs.exists(root):
            return 0
        named = {batch.folder for batch in self.batches} - self._outlived()
        gone = 0
        for status in self._fs.listStatus(root):
            name = str(status.getPath().getName())
            match = re.fullmatch(r"batch=((\d{8})-[0-9a-f]{8})", name)
            # One with the next number may be somebody's who is at work.
            if match and match[1] not in named and int(match[2]) < len(self.batches):
                self._fs.delete(status.getPath(), True)
                gone += 1
        return gone + self._clean_dates()

    def _clean_dates(self) -> int:
        """Remove the folders of days that have counted no more for some time, of batches that are
        entered: roll-ups of one that is being written are made from them. Of layout 1 rows stay as
        long as roll-ups, which are made of them each time till `compact` does.
        """
        since: dict[str, str] = {}
        for number, batch in enumerate(self.batches):
            if batch.since and self._old(number):
                since.update(batch.since)
        gone = 0
        entered = {f"batch={batch.folder}": batch.layout for batch in self.batches}
        for kind, first in since.items():
            found = self._fs.globStatus(self._path(f"{self.out}/data/batch=*/kind={kind}/date=*"))
            for status in found or ():
                folder = str(status.getPath().getParent().getParent().getName())
                rolled = kind == "operator" and entered.get(folder) == 1
                out = f"date={since.get('hour', '') if rolled else first}"
                if folder in entered and str(status.getPath().getName()) < out:
                    self._fs.delete(status.getPath(), True)
                    gone += 1
        return gone

    def _old(self, number: int) -> bool:
        """Whether an entry is from so long ago that nobody reads what was before it."""
        entry = self._fs.getFileStatus(self._path(self._entry(number)))
        return bool(time.time() * 1e3 - entry.getModificationTime() > GRACE_MS)

    def _outlived(self) -> set[str]:
        """Folders that were replaced so long ago that nobody reads them any more."""
        found: set[str] = set()
        for number, batch in enumerate(self.batches):
            if batch.replaces and self._old(number):
                found.update(batch.replaces)
        return found

    def remove(self, folder: str) -> None:
        self._fs.delete(self._path(self.data(folder)), True)

    def since(self, kind: str) -> str | None:
        """First date whose rows of a table count, or None."""
        return max((b.since[kind] for b in self.batches if kind in b.since), default=None)

    @property
    def keep(self) -> Keep:
        """The rule in force."""
        return next((b.keep for b in reversed(self.batches) if b.keep is not None), Keep())

    def read(
        self, kind: str, folders: Sequence[str] | None = None, *, out: bool = False
    ) -> "DataFrame":
        """A table of rows. folders: of these batches; None = all that count, as chosen.

        The choice's span does not hold for topologies: a line holds till the next one. out: with
        rows of days that are out, as far as they are there: roll-ups of these days may count.
        """
        layouts = {batch.folder: batch.layout for batch in self.batches}
        wanted = folders
        if wanted is None:
            wanted = [batch.folder for batch in self.live() if batch.rows.get(kind)]
        schema = ddl(KINDS[kind])
        found = []
        for older in (True, False):  # the former have one more level of folders
            mine = [f for f in wanted if (layouts.get(f, LAYOUT) == 1) == older]
            if mine:
                found.append(self._parquet(kind, schema, mine).select(*KINDS[kind]))
        frame = self._counted(None if out else kind, found, schema)
        return frame if folders is not None else self._as_chosen(kind, frame)

    def _as_chosen(self, kind: str, frame: "DataFrame") -> "DataFrame":
        frame = self.choice.nodes_of(frame)
        if "t" in KINDS[kind] and kind != "topology":
            frame = self.choice.times_of(frame, "t")
        return self.choice.queries_of(frame) if "query" in KINDS[kind] else frame

    def rolled(self, kind: str) -> "DataFrame":
        """A roll-up, as chosen: hours that came in several batches have several entries."""
        frame = self.choice.queries_of(self.choice.nodes_of(self.rolled_of(kind, self.live())))
        return frame if kind == "span" else self.choice.times_of(frame, "hour")

    def rolled_of(self, kind: str, batches: Sequence[Batch]) -> "DataFrame":
        """A roll-up (`rollups`) of some batches; of older ones made of their rows."""
        found = []
        if newer := [b.folder for b in batches if b.layout > 1 and b.rows.get(kind)]:
            found.append(self._parquet(kind, ROLLED[kind], newer).select(*ROLLUPS[kind]))
        if older := [b.folder for b in batches if b.layout == 1 and b.rows.get("operator")]:
            found.append(rollups.MADE[kind](self.read("operator", older, out=True)))
        return self._counted(kind, found, ROLLED[kind])

    def _counted(self, kind: str | None, found: Sequence["DataFrame"], schema: str) -> "DataFrame":
        """Together, without days that are out of this table."""
        if not found:
            return self.spark.createDataFrame([], schema)
        frame = reduce(lambda one, other: one.unionByName(other), found)
        since = None if kind is None else self.since(kind)
        return frame if since is None else frame.where(f"date >= '{since}'")

    def _parquet(self, kind: str, schema: str, folders: Sequence[str]) -> "DataFrame":
        paths = [f"{self.data(folder)}/kind={kind}" for folder in folders]
        reader = self.spark.read.schema(schema).option("basePath", f"{self.out}/data")
        return reader.parquet(*paths)

    def _entry(self, number: int) -> str:
        return f"{self.out}/manifest/{number:08}.json"

    def _read(self, path: Any) -> bytes:
        stream = self._fs.open(path)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def _write(self, path: Any, data: bytes) -> None:
        stream = self._fs.create(path, True)
        try:
            stream.write(bytearray(data))
            stream.hflush()
        finally:
            stream.close()

    def _put(self, staged: str, final: str) -> None:
        """Give a file its final name, unless there is one of that name. At once, or not at all."""
        local = self._local(final)
        if local is not None:
            try:
                os.link(self._local(staged) or "", local)  # rename(2) would overwrite
            except FileExistsError:
                raise Taken from None
            return
        context = self._jvm.org.apache.hadoop.fs.FileContext
        rename = self._jvm.org.apache.hadoop.fs.Options.Rename
        none = self._jvm.java.lang.reflect.Array.newInstance(rename.NONE.getClass(), 0)
        from py4j.protocol import Py4JJavaError

        try:
            where = self._path(final)
            context.getFileContext(where.toUri(), self._conf).rename(
                self._path(staged), where, none
            )
        except Py4JJavaError as error:
            if "FileAlreadyExists" in str(error):
                raise Taken from None
            raise

    def _local(self, path: str) -> str | None:
        """The path of a file on this machine, or None."""
        if self._fs.getScheme() != "file":
            return None
        return str(Path(str(self._path(path).toUri().getPath())).absolute())


def _refuse(scheme: str) -> None:
    """Raises UserError where a commit could be lost to another one without a word."""
    if scheme not in ATOMIC:
        raise UserError(
            f"a fleet cannot be on {scheme}: it needs a rename that fails where there is a file, "
            "which object stores do not have",
            "a local folder or HDFS; the recorded files may be anywhere",
        )
