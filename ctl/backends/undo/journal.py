"""The journal: what the machine was like before we changed it.

One JSON value a line, appended in one write *before* the changes it tells of, so that whoever
reads it after a SIGKILL knows at least what was changed. It lies on a tmpfs: what it speaks of
ends with the boot as well, and a journal of another boot is void.

What a reader does not understand (a line cut off by the SIGKILL, garbage) is skipped and reported:
a line that was not written whole tells of a change that was not begun.
"""

import contextlib
import logging
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from sched_ctl.backends.undo import put_back as undo
from sched_ctl.backends.undo.records import Record, State
from sched_ctl.errors import UserError
from sched_ctl.kernel import procfs
from sched_ctl.runfolder import RunFolder

__all__ = ["DEFAULT_PATH", "Journal", "JournalError", "restore"]

log = logging.getLogger(__name__)

DEFAULT_PATH = RunFolder().journal
VERSION = 1
COMPACT_ABOVE_BYTES = 1 << 20
LARGEST_BYTES = 256 << 20


class JournalError(UserError):
    """The journal cannot be read or written. Nothing may be changed without it."""


class Boot(msgspec.Struct, frozen=True, tag="boot", tag_field="is"):
    """The first line. boot: procfs.boot_id(). pid: who wrote it, for people."""

    boot: str
    pid: int
    version: int = VERSION


_decoder: msgspec.json.Decoder[Boot | Record] = msgspec.json.Decoder(Boot | Record)
_encoder = msgspec.json.Encoder()


class Journal:
    """An open journal. What an earlier controller left in it is in `state` from the start.

    problems: lines that could not be read, in words. The folder is for root alone, and so is the
    file. Raises JournalError.
    """

    def __init__(self, path: Path = DEFAULT_PATH) -> None:
        self.path = path
        self.state = State()
        self.problems: tuple[str, ...] = ()
        self._boot = procfs.boot_id()
        self._compact_above = COMPACT_ABOVE_BYTES
        self._cut = False  # whether the last line has no end
        self._fd = -1
        with self._explained("cannot open"):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = _open(path, os.O_APPEND)
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    def write(self, records: Iterable[Record]) -> None:
        """Append the records in one write, if there are any. Raises JournalError."""
        records = list(records)
        if not records:
            return
        lines = [_encoder.encode(record) for record in records]
        with self._explained("cannot write"):
            if self._size == 0:
                lines.insert(0, self._header())
            self._append(self._fd, b"\n".join(lines) + b"\n")
        for record in records:
            self.state.add(record)
        if self._size > self._compact_above:
            try:
                self._compact()
            except JournalError as error:  # it is as good as it was, only longer
                log.debug("%s", error.message)
                self._compact_above = 2 * self._size

    def done(self, records: Iterable[Record]) -> None:
        """Append records of what was put back; where they find no space, do without.

        Undoing must never need any. Whoever reads the journal then puts the same things back
        once more, which changes nothing.
        """
        records = list(records)
        try:
            self.write(records)
        except JournalError as error:
            log.debug("%s", error.message)
            for record in records:
                self.state.add(record)

    def clear(self) -> None:
        """Forget everything."""
        self.state = State()
        with self._explained("cannot write"):
            os.ftruncate(self._fd, 0)
        self._size = 0

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _load(self) -> None:
        with self._explained("cannot read"):
            self._size = os.fstat(self._fd).st_size
            if self._size > LARGEST_BYTES:
                raise JournalError(
                    f"{self.path} has {self._size} bytes: that is not one of our journals",
                    "Look what wrote it, and remove it.",
                )
            content = b""
            while part := os.pread(self._fd, 1 << 20, len(content)):
                content += part
        if not content:
            return
        first, *_ = content.split(b"\n", 1)
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
            header = _decoder.decode(first)
            if isinstance(header, Boot) and header.boot != self._boot:
                self.clear()  # the threads, cgroups and settings of another boot are gone
                return
        problems = []
        for number, line in enumerate(content.split(b"\n"), 1):
            if not line:
                continue
            try:
                record = _decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                problems.append(f"{self.path}:{number}: skipped, not one of our lines: {error}")
                continue
            if not isinstance(record, Boot):
                self.state.add(record)
        self.problems = tuple(problems)
        self._cut = not content.endswith(b"\n")

    def _header(self) -> bytes:
        return _encoder.encode(Boot(boot=self._boot, pid=os.getpid()))

    def _append(self, fd: int, data: bytes) -> None:
        """All or nothing: half a line would spoil the next one."""
        before = os.fstat(fd).st_size
        if self._cut and fd == self._fd:
            data = b"\n" + data
        try:
            while data:
                written = os.write(fd, data)
                data = data[written:]
        except OSError:
            self._cut = True
            with contextlib.suppress(OSError):
                os.ftruncate(fd, before)
                self._cut = False
            raise
        self._cut = False
        self._size = os.fstat(fd).st_size

    def _compact(self) -> None:
        """Write what still counts to a new file and put it in the place of the old one."""
        lines = [self._header(), *map(_encoder.encode, self.state.records())]
        fresh = self.path.with_name(self.path.name + ".new")
        with self._explained("cannot compact"):
            fresh.unlink(missing_ok=True)
            fd = _open(fresh, os.O_APPEND | os.O_EXCL)
            try:
                self._append(fd, b"\n".join(lines) + b"\n")
                fresh.rename(self.path)
            except BaseException:
                os.close(fd)
                fresh.unlink(missing_ok=True)
                raise
        os.close(self._fd)
        self._fd = fd
        self._compact_above = max(COMPACT_ABOVE_BYTES, 2 * self._size)

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise JournalError(
                f"{what} the journal {self.path}: {error.strerror}",
                "Without it nothing could be put back after a crash, so nothing is changed.",
            ) from error


def restore(journal: Journal) -> list[str]:
    """Put back everything that the journal tells of. Returns what could not be, in words.

    May be repeated, and may be cut short: what is not put back stays in the journal.
    """
    problems = [*journal.problems, *undo.everything(journal)]
    if not journal.state:
        journal.clear()
        journal.problems = ()
    return problems


def _open(path: Path, flags: int) -> int:
    """Open or make a file for root alone, wherever its name leads to now."""
    fd = os.open(path, flags | os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o022:
        os.close(fd)
        raise JournalError(
            f"{path} is not a file that only you can write",
            "Somebody else may have put it there: look at it, and remove it.",
        )
    return fd
