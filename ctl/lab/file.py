"""The shared-memory file of a running `labspe`.

A file describes its own layout (made by `engine/layout.h`, the only source of it), so no offset is
written here. The file is hostile until checked: anybody may put one into /dev/shm. It must belong
to the user of the process that it names; the threads that it names must be that process's; and a
file of another user is read with one bounded read(2) a poll, since its owner could truncate it,
which kills a process that has it mapped. Our own user's files are mapped, and polled without a
system call.
"""

import json
import mmap
import os
import stat
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sched_ctl.errors import EngineError
from sched_ctl.kernel import identity, procfs
from sched_ctl.model.graph import Array
from sched_ctl.model.topology import LiveOffer

__all__ = [
    "STATES",
    "LabFile",
    "path_of",
    "pids",
]

FOLDER = Path("/dev/shm")
PREFIX = "labspe."
MAGIC = int.from_bytes(b"LABSPE1", "little")
VERSION = 2
MAX_BYTES = 1 << 30
MAX_POLLED_BYTES = 1 << 24
MAX_LAYOUT_BYTES = 1 << 16
MAX_ROWS = 1 << 15
MOST_FILES = 64  # of one user that are looked at
MAX_ROW_BYTES = 1 << 20
POLLED_FIELDS = ("generation", "state", "heartbeat_ns", "urgency_offset", "urgency_epoch")
STATES = ("starting", "running", "draining", "done")


def _dtypes(layout: bytes) -> dict[str, np.dtype[np.void]]:
    """Section name -> dtype of its rows, from the description in a file."""
    try:
        described = json.loads(layout)
        name_bytes, buckets = int(described["name_bytes"]), int(described["histogram_buckets"])
        if not (0 < name_bytes <= 1024 and 0 < buckets <= 1 << 16):
            raise ValueError("sizes out of range")
        sections = described["sections"]
        if any(not 0 < section["bytes"] <= MAX_ROW_BYTES for section in sections.values()):
            raise ValueError("a row's size is out of range")
        types = {
            "u64": "<u8",
            "f64": "<f8",
            "text": f"S{name_bytes}",
            "histogram": ("<u8", (buckets,)),
        }
        return {
            str(name): np.dtype(
                {
                    "names": [str(field[0]) for field in section["fields"]],
                    "formats": [types[field[1]] for field in section["fields"]],
                    "offsets": [int(field[2]) for field in section["fields"]],
                    "itemsize": int(section["bytes"]),
                }
            )
            for name, section in sections.items()
        }
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise EngineError(f"its layout cannot be read: {error}") from error


def _bucket_low_s(layout: bytes) -> Array:
    """(b,) the least value of each bucket of the latencies' histograms, engine/histogram.h."""
    described = json.loads(layout)
    bits, buckets = int(described["histogram_sub_bits"]), int(described["histogram_buckets"])
    if not 0 < bits <= 16:
        raise EngineError("its layout cannot be read: sizes out of range")
    bucket = np.arange(buckets)
    shift = np.maximum(bucket >> bits, 1) - 1.0
    inside = np.where(bucket >> bits > 0, (1 << bits) + bucket % (1 << bits), bucket)
    with np.errstate(over="ignore"):
        low_s: Array = inside * 2.0**shift * 1e-9
    return low_s


class LabFile:
    """The shared-memory file of one engine, checked. Raises EngineError for any other file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise EngineError(f"cannot open {path}: {error.strerror}") from error
        self._map: mmap.mmap | None = None
        try:
            self._open()
        except BaseException as error:
            self.close()
            # What the layout promises and the file does not hold, in all its variety
            if isinstance(error, KeyError | ValueError | TypeError | OverflowError):
                raise self._error(f"its layout is not one that we can read: {error}") from error
            raise

    def _open(self) -> None:
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode) or not 64 <= status.st_size <= MAX_BYTES:
            raise self._error("it is no file of a lab engine")
        self.size = status.st_size
        magic, version, size, offset, length = (
            int(number) for number in np.frombuffer(self._read(40, 0), "<u8")
        )
        if magic != MAGIC:
            raise self._error("it is no file of a lab engine, or of one that is still starting")
        if version != VERSION:
            raise self._error(f"its layout has version {version}, this sched-ctl reads {VERSION}")
        if size != self.size or not (0 < length <= MAX_LAYOUT_BYTES and offset + length <= size):
            raise self._error("its header and its size do not agree")
        try:
            layout = self._read(length, offset)
            self._dtypes = _dtypes(layout)
            self.bucket_low_s = _bucket_low_s(layout)
            header = self._header_from(self._read(self._dtypes["header"].itemsize, 0))
        except EngineError as error:
            raise self._error(error.message) from error
        self.pid, self.start_time = header["pid"], header["start_time"]
        self.pool = header["workers"] > 0
        self._check_owner(status.st_uid)
        self._header_values = header
        self._polled = self._polled_bytes()
        self._buffer: bytearray | mmap.mmap
        if status.st_uid == os.geteuid():
            self._map = mmap.mmap(self._fd, self.size, access=mmap.ACCESS_READ)
            self._buffer = self._map
        else:
            self._buffer = bytearray(self._polled)
        self.refresh()
        self.header = self._rows("header", 0, 1)
        for field in POLLED_FIELDS:
            self[field]
        self.queries = self._section("queries")
        self.operators = self._section("operators")
        self.activity = self._section("activity", "operators")
        self.edges = self._section("edges")
        self.produced = self._section("produced", "edges")
        self.consumed = self._section("consumed", "edges")
        self.threads = self._section("threads")
        # Latencies are large: there only where they need not be copied.
        self.egresses = self._section("egresses") if self._map else None

    def _check_owner(self, uid: int) -> None:
        """The process that the file names must be there and belong to the file's owner."""
        if not self.alive:
            raise self._error(f"its engine, process {self.pid}, is gone")
        owner = procfs.owner(self.pid)
        if owner is None:
            raise self._error(f"its engine, process {self.pid}, is gone")
        if owner != uid:
            raise self._error(f"user {uid} owns it, but user {owner} the process {self.pid}")

    def _error(self, what: str) -> EngineError:
        return EngineError(f"{self.path}: {what}")

    def _read(self, count: int, offset: int) -> bytes:
        data = os.pread(self._fd, count, offset)
        if len(data) != count:
            raise self._error("it is cut off")
        return data

    def _header_from(self, data: bytes) -> dict[str, int]:
        row = np.frombuffer(data, self._dtypes["header"], 1)[0]
        names = self._dtypes["header"].names or ()
        return {name: int(row[name]) for name in names if row.dtype[name].kind == "u"}

    def _rows(self, name: str, offset: int, count: int) -> npt.NDArray[np.void]:
        dtype = self._dtypes[name]
        if not (
            0 <= count <= MAX_ROWS and 0 <= offset <= len(self._buffer) - count * dtype.itemsize
        ):
            raise self._error(f"its section {name} lies outside of it")
        return np.frombuffer(self._buffer, dtype, count, offset)

    def _section(self, name: str, counted: str | None = None) -> npt.NDArray[np.void]:
        try:
            header = self._header_values
            return self._rows(name, header[f"{name}_offset"], header[f"{counted or name}_count"])
        except KeyError as error:
            raise self._error(f"its layout lacks {error}") from error

    def _polled_bytes(self) -> int:
        """How much of the file a poll needs: all sections but the last."""
        try:
            needed = self._header_values["egresses_offset"]
        except KeyError as error:
            raise self._error(f"its layout lacks {error}") from error
        if not 0 < needed <= min(self.size, MAX_POLLED_BYTES):
            raise self._error("its section egresses lies outside of it")
        return needed

    def refresh(self) -> None:
        """Make the rows show the present. No system call where the file is mapped."""
        if self._map is None and os.preadv(self._fd, [memoryview(self._buffer)], 0) != self._polled:
            raise self._error("it is cut off")

    def live_offer(self) -> LiveOffer | None:
        """Whether the engine writes what waits for its operators into memory that it is handed."""
        socket = self.texts("header", "live_socket")[0]
        if not socket or "live" not in self._dtypes:
            return None
        return LiveOffer(self.pid, socket, len(self.operators) + 1, self._dtypes["live"])

    def offset(self, field: str) -> int:
        """Where a header field lies in the file."""
        fields: Mapping[str, Any] = self._dtypes["header"].fields or {}
        return int(fields[field][1])

    def writable(self) -> int:
        """Another descriptor of this very file, open for writing. Raises OSError."""
        return os.open(f"/proc/self/fd/{self._fd}", os.O_RDWR | os.O_CLOEXEC)

    def __getitem__(self, field: str) -> int:
        """A header field, as of the last refresh."""
        return int(self.header[field][0])

    @property
    def alive(self) -> bool:
        """True if the engine's process still runs."""
        return identity.runs(self.pid, self.start_time)

    def numbers(self, section: str, field: str) -> npt.NDArray[np.uint64]:
        """A column of whole numbers."""
        return self._column(section, field, np.dtype(np.uint64))

    def texts(self, section: str, field: str) -> list[str]:
        """A column of names, printable whatever is in there."""
        raw = self._column(section, field, np.dtype(np.bytes_))
        decoded = (bytes(text).decode("utf-8", "replace") for text in raw)
        return [
            text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)
            for text in decoded
        ]

    def reals(self, section: str, field: str) -> Array:
        """A column of floating point numbers."""
        return self._column(section, field, np.dtype(np.float64))

    def histograms(self, section: str, field: str) -> npt.NDArray[np.uint64]:
        """A column of histograms, (rows, buckets)."""
        return self._column(section, field, np.dtype(np.uint64))

    def _column(self, section: str, field: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        rows: npt.NDArray[np.void] = getattr(self, section)
        if field not in (rows.dtype.names or ()) or rows.dtype[field].base.kind != dtype.kind:
            raise self._error(f"its layout lacks {section}.{field}")
        return rows[field]

    def close(self) -> None:
        """The rows must not be used any more."""
        os.close(self._fd)  # the mapping goes when the last array over it does


def _files() -> Sequence[Path]:
    """Files named after a process that runs: anybody may make any number of others."""
    named = {f"{PREFIX}{pid}" for pid in procfs.pids()}
    with os.scandir(FOLDER) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.name in named)


def path_of(address: str) -> Path:
    """Where an engine's file is: the address is its pid, or the path itself."""
    return Path(address) if "/" in address else FOLDER / f"{PREFIX}{address}"


def pids(files: Callable[[], Sequence[Path]] = _files) -> list[int]:
    """The lab engines that run on this machine. Files of dead ones, and other files, are passed."""
    found = []
    looked: Counter[int] = Counter()
    for path in files():
        try:
            looked[uid := path.lstat().st_uid] += 1
            if looked[uid] > MOST_FILES:
                continue
            file = LabFile(path)
        except (OSError, EngineError):
            continue
        if path.name == f"{PREFIX}{file.pid}":
            found.append(file.pid)
        file.close()
    return found
