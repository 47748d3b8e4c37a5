"""The folder of a fleet, and the one moment at which data are in it.

    OUT/data/batch=ID/kind=operator/date=2026-11-22/node=gw-1/*.parquet
    OUT/manifest/00000007.json

A batch of files is written to a folder of its own, which nobody reads; then its entry appears in
the manifest, at once and under a number that nobody else has. That is the commit: what no entry
names does not exist. Whoever is killed before leaves a folder that the next one removes; of two
at the same time one gets the number, and the other starts again. An entry may say that its folder
replaces those of others, which hold the same rows in more files; they are removed some time later,
as somebody may be reading them. (The way of Delta Lake and Iceberg, neither of which goes with this
Spark.)
"""

import os
import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from sched_ctl.errors import UserError
from sched_ctl.pipeline.tables import KINDS, ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Batch", "Fleet", "Source", "Taken"]

GRACE_MS = 86_400_000  # that folders which were replaced stay


class Source(Struct, frozen=True, array_like=True):
    """A file as it was when it was taken. Sent again with another content, it is another one."""

    name: str  # without its folder
    size: int
    modified_ms: int


class Batch(Struct, kw_only=True):
    """An entry of the manifest. set_aside: files that were not read, and why.

    replaces: folders whose rows are in this one, and count there no more.
    """

    folder: str
    files: list[Source]
    set_aside: list[tuple[Source, str]] = []
    rows: dict[str, int] = {}  # by kind
    lines: int = 0
    bad: int = 0
    repeated: int = 0  # lines that were there already
    spans: dict[str, list[tuple[int, int]]] = {}  # node -> first and last number of each file
    replaces: list[str] = []


class Taken(Exception):
    """Somebody else has committed meanwhile."""


class Fleet:
    """The folder `out`, on any file system that Spark's Hadoop knows."""

    def __init__(self, spark: "SparkSession", out: str) -> None:
        self.spark, self.out = spark, out.rstrip("/")
        jvm: Any = spark.sparkContext._jvm
        self._jvm = jvm
        self._conf = spark.sparkContext._jsc.hadoopConfiguration()
        self._path = jvm.org.apache.hadoop.fs.Path
        self._fs = self._path(self.out).getFileSystem(self._conf)
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

    def known(self) -> set[Source]:
        """All files that are in, or were set aside."""
        return {
            source
            for batch in self.batches
            for source in (*batch.files, *(source for source, _ in batch.set_aside))
        }

    def spans(self) -> dict[str, list[tuple[int, int]]]:
        found: dict[str, list[tuple[int, int]]] = {}
        for batch in self.batches:
            for node, spans in batch.spans.items():
                found.setdefault(node, []).extend(spans)
        return found

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
        return gone

    def _outlived(self) -> set[str]:
        """Folders that were replaced so long ago that nobody reads them any more."""
        found: set[str] = set()
        for number, batch in enumerate(self.batches):
            if batch.replaces:
                entry = self._fs.getFileStatus(self._path(self._entry(number)))
                if time.time() * 1e3 - entry.getModificationTime() > GRACE_MS:
                    found.update(batch.replaces)
        return found

    def remove(self, folder: str) -> None:
        self._fs.delete(self._path(self.data(folder)), True)

    def read(self, kind: str, folders: Sequence[str] | None = None) -> "DataFrame":
        """A table. folders: None = all that are committed. Raises UserError if it is empty."""
        if folders is None:
            folders = [batch.folder for batch in self.live() if batch.rows.get(kind)]
        schema = ddl(KINDS[kind])
        if not folders:
            return self.spark.createDataFrame([], schema)
        paths = [f"{self.data(folder)}/kind={kind}" for folder in folders]
        reader = self.spark.read.schema(schema).option("basePath", f"{self.out}/data")
        return reader.parquet(*paths).select(*KINDS[kind])

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
