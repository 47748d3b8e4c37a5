"""The folder that is recorded into: one file that grows, closed ones, and a bound for them all.

The file that grows is called NAME.part. Each line goes out by itself, compressed and flushed, so
that a crash costs at most the last one. (A power cut costs what the kernel had not yet written to
the disk, half a minute as a rule: a sync each line would wear out the flash of a small machine.)
A closed file has its final name and never changes. The one that grows is locked: another recorder
leaves it alone.
"""

import fcntl
import os
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sched_ctl.errors import UserError
from sched_ctl.telemetry import reading
from sched_ctl.telemetry.records import FileName

__all__ = ["Store", "is_recorded", "prepare"]

PART = ".part"
LEVEL = 6  # of compression
MOST_FILE_BYTES = 16 << 20
GZIP = 31


def prepare(folder: Path) -> None:
    """Make the folder if it is not there. Raises UserError if it cannot be written to."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot record into {folder}: {error.strerror}", "name another folder: --record DIR"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"cannot record into {folder}: permission denied")


def is_recorded(folder: Path, node: str) -> bool:
    """Whether a recorder of this node has a file open there."""
    return any(map(_is_locked, folder.glob(f"{node}-*.jsonl.gz{PART}")))


def _is_locked(part: Path) -> bool:
    try:
        fd = os.open(part, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # nothing can be locked there
        return False
    finally:
        os.close(fd)
    return False


class Store:
    """Appends lines. For one thread.

    limit_bytes: of all files of this node in the folder. first: lines that each new file begins
    with, asked for when it is opened; they get the number and the time of the file's name.
    """

    def __init__(self, folder: Path, node: str, limit_bytes: int) -> None:
        self.folder, self.node, self.limit_bytes = folder, node, limit_bytes
        self.largest = min(MOST_FILE_BYTES, max(4096, limit_bytes // 8))
        self.opened_ms = 0
        self._fd = -1
        self._path: Path | None = None
        self._bytes = 0
        self._packer = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP)

    def recover(self) -> int:
        """Close what a killed recorder left. Returns the largest number in the folder, or -1."""
        for part in self.folder.glob(f"{self.node}-*.jsonl.gz{PART}"):
            final = part.with_name(part.name.removesuffix(PART))
            if FileName.parse(final.name) is None or _is_locked(part):
                continue
            with suppress(OSError):
                if final.exists() or part.stat().st_size == 0:
                    part.unlink()
                else:
                    part.rename(final)
        last = -1
        for name in self.closed()[-1:]:
            last = name.seq
            with suppress(UserError):
                for found in reading.read(self.folder / str(name)):
                    if not isinstance(found, reading.Bad):
                        last = max(last, found[1].seq)
        return last

    def closed(self) -> list[FileName]:
        """The closed files of this node, oldest first."""
        names = (FileName.parse(path.name) for path in self.folder.iterdir())
        mine = [name for name in names if name is not None and name.node == self.node]
        return sorted(mine, key=lambda name: name.seq)

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    @property
    def is_large(self) -> bool:
        return self._bytes >= self.largest

    def open(self, t_ms: int, seq: int) -> None:
        """A new file whose first line has this time and number. Raises OSError."""
        self.bound()
        path = self.folder / f"{FileName.of(self.node, t_ms, seq)}{PART}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)
        with suppress(OSError):  # not every file system can
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._path, self._bytes, self.opened_ms = path, 0, t_ms
        self._packer = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP)

    def append(self, lines: Iterable[bytes]) -> None:
        """All of these lines, or none: on OSError the file is closed as it was before."""
        data = b"".join(map(self._packer.compress, lines))
        data += self._packer.flush(zlib.Z_SYNC_FLUSH)
        try:
            self._write(data)
        except OSError:
            # What the packer remembers is not in the file: nothing can follow in this one.
            with suppress(OSError):
                os.ftruncate(self._fd, self._bytes)
            self._leave()
            raise
        self._bytes += len(data)

    def close(self) -> None:
        """Give the file its final name; does nothing if none is open. Never raises."""
        if self._fd < 0:
            return
        with suppress(OSError):
            self._write(self._packer.flush(zlib.Z_FINISH))
            os.fsync(self._fd)
        self._leave()

    def bound(self) -> int:
        """Delete the oldest closed files beyond the limit. Returns how many went."""
        names = self.closed()
        sizes = []
        for name in names:
            try:
                sizes.append((self.folder / str(name)).stat().st_size)
            except OSError:
                sizes.append(0)
        excess = sum(sizes) - max(0, self.limit_bytes - self.largest)
        gone = 0
        for name, size in zip(names, sizes, strict=True):
            if excess <= 0:
                break
            with suppress(OSError):
                (self.folder / str(name)).unlink()
                excess -= size
                gone += 1
        return gone

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while len(view):
            view = view[os.write(self._fd, view) :]

    def _leave(self) -> None:
        fd, path, self._fd = self._fd, self._path, -1
        with suppress(OSError):
            os.close(fd)
        if path is not None:
            with suppress(OSError):
                if self._bytes:
                    path.rename(path.with_name(path.name.removesuffix(PART)))
                else:
                    path.unlink()
