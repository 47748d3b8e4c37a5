"""The journal: what the machine was like before we changed it.

One JSON value a line, written in one piece *before* the changes it tells of, so that whoever
reads it after a SIGKILL knows at least what was changed. It lies on a tmpfs: what it speaks of
ends with the boot as well, and a journal of another boot is void.

Each line ends in a tab, its number and a checksum (CRC-32) of all that stands before; the second
line is the count of lines, which is overwritten in place after each addition. So what was changed
from outside is not believed, and what is missing is said, at its end as well. A last line that
has no end was cut off by the SIGKILL: it tells of a change that was not begun, and is no loss
unless the count speaks of it. Journals of version 1 have neither seals nor count; they are read,
and written anew before the next addition.

Who holds it open notices if its file, or the folder, is removed or written to by others (`check`,
and each `write`), and writes it anew from what is known. Any thread may write to it:
where the loop stands still another one puts back.
"""

import contextlib
import logging
import os
import re
import stat
import threading
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from sched_ctl.backends.undo import put_back as undo
from sched_ctl.backends.undo.records import Key, Record, State
from sched_ctl.errors import UserError
from sched_ctl.kernel import identity, procfs
from sched_ctl.kernel.identity import Identified
from sched_ctl.runfolder import RunFolder

__all__ = ["DEFAULT_PATH", "Journal", "JournalError", "had", "is_left", "restore"]

log = logging.getLogger(__name__)

DEFAULT_PATH = RunFolder().journal
VERSION = 2
COMPACT_ABOVE_BYTES = 1 << 20
LARGEST_BYTES = 256 << 20
MOST_PROBLEMS = 100
SEAL = re.compile(rb"\t(\d{1,12}) ([0-9a-f]{8})\Z")


class JournalError(UserError):
    """The journal cannot be read or written. Nothing may be changed without it."""


class Boot(msgspec.Struct, frozen=True, tag="boot", tag_field="is"):
    """The first line. boot: procfs.boot_id(). pid: who wrote it, for people."""

    boot: str
    pid: int
    version: int = VERSION


_decoder: msgspec.json.Decoder[Boot | Record] = msgspec.json.Decoder(Boot | Record)
_encoder = msgspec.json.Encoder()
UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


class Journal:
    """An open journal. What an earlier controller left in it is in `state` from the start.

    problems: what could not be read, or is missing, in words. blank: there was none, or nothing
    in it. The folder is for root alone, and so is the file. Raises JournalError.
    """

    def __init__(self, path: Path = DEFAULT_PATH) -> None:
        self.path = path
        self.state = State()
        self.problems: tuple[str, ...] = ()
        self._boot = procfs.boot_id()
        self._compact_above = COMPACT_ABOVE_BYTES
        self._count = 0  # lines with a number
        self._counted_at = 0  # where the line with the count is
        self._stale = False  # whether it is to be written anew before anything is added
        self._left: tuple[int, ...] = ()  # what its file is like, as we left it
        self._fd = -1
        self._writing = threading.RLock()  # held while the file is not as `_left` has it
        with self._explained("cannot open"):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = _open(path)
        try:
            self.blank = self._load()
            self._note()
            if self.blank:
                with contextlib.suppress(OSError):  # undoing needs no space
                    self._begin()
        except BaseException:
            self.close()
            raise

    def write(self, records: Iterable[Record]) -> None:
        """Add the records in one write, if there are any. Raises JournalError."""
        records = list(records)
        if not records:
            return
        with self._writing:
            if self._stale or not self._counted_at or not self._is_in_place():
                self._renew(records)
            else:
                with self._explained("cannot write"):
                    self._append(records)
            for record in records:
                self.state.add(record)
            if self._size > self._compact_above:
                try:
                    self._renew()
                except JournalError as error:  # it is as good as it was, only longer
                    log.debug("%s", error.message)
                    self._compact_above = 2 * self._size

    def done(self, records: Iterable[Record]) -> None:
        """Add records of what was put back; where they find no space, do without.

        Undoing must never need any. Whoever reads the journal then puts the same things back
        once more, which changes nothing.
        """
        records = list(records)
        with self._writing:
            try:
                self.write(records)
            except JournalError as error:
                log.debug("%s", error.message)
                self._stale = True  # an old original, which counts, would stand before a new one
                for record in records:
                    self.state.add(record)

    def check(self) -> str | None:
        """Write it anew if somebody has removed or changed it. Returns that, in words.

        Raises JournalError if it cannot be written.
        """
        with self._writing:
            if self._fd < 0 or self._is_in_place():
                return None
            self._renew()
        return f"the journal {self.path} was removed or changed by somebody: written anew"

    def clear(self) -> None:
        """Forget everything."""
        self.state = State()
        with self._explained("cannot write"):
            with contextlib.suppress(OSError):
                if _looks(self.path.lstat())[:2] != self._left[:2]:
                    return  # somebody has put another in its place
            os.ftruncate(self._fd, 0)  # first: what stands in it may be another boot's
            self._count = self._counted_at = 0
            self._stale = False
            with contextlib.suppress(OSError):
                self._begin()
            self._note()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # --- reading ---

    def _load(self) -> bool:
        """Read what is there. Returns whether that is nothing."""
        with self._explained("cannot read"):
            size = os.fstat(self._fd).st_size
            if size > LARGEST_BYTES:
                raise JournalError(
                    f"{self.path} has {size} bytes: that is not one of our journals",
                    "Look what wrote it, and remove it.",
                )
            content = b""
            while part := os.pread(self._fd, 1 << 20, len(content)):
                content += part
        if not content:
            return True
        lines = content.split(b"\n")
        header, sealed = _header(lines[0])
        if header is not None and header.version > VERSION:
            raise JournalError(
                f"{self.path} was written by a newer version of sched-ctl",
                "Put back what it tells of with that version: sched-ctl restore.",
            )
        if header is not None and header.boot != self._boot:
            with self._explained("cannot write"):
                os.ftruncate(self._fd, 0)  # threads, cgroups and settings of another boot are gone
            return True
        problems = [] if header is not None else [f"{self.path}:1: skipped, damaged"]
        old = b"\t" not in content if header is None else not sealed
        if old:
            problems += self._read_plain(lines[1:])
            self._stale = True
        else:
            problems += self._read_sealed(lines)
            self._stale = self._stale or bool(problems)
        if len(problems) > MOST_PROBLEMS:
            more = f"{self.path}: {len(problems) - MOST_PROBLEMS} more"
            problems = [*problems[:MOST_PROBLEMS], more]
        self.problems = tuple(problems)
        return False

    def _read_plain(self, lines: list[bytes]) -> Iterator[str]:
        """Lines of a journal of version 1. The last one may have been cut off."""
        for number, line in enumerate(lines, 2):
            if not line:
                continue
            try:
                self._add(line)
            except UNREADABLE as error:
                if number <= len(lines):
                    yield f"{self.path}:{number}: skipped, not one of our lines: {_short(error)}"

    def _read_sealed(self, lines: list[bytes]) -> Iterator[str]:
        """Lines of a journal with seals; the last of `lines` is what follows the last line end."""
        counted = _counted(lines[1]) if len(lines) > 1 else None
        missing = counted is None
        if counted is None:
            yield f"{self.path}:2: the count of lines is damaged"
        for at, line in enumerate(lines[1 if counted is None else 2 :], 2 if missing else 3):
            found = _unsealed(line)
            if found is None:
                self._stale = self._stale or bool(line)
                if line and at < len(lines):
                    yield f"{self.path}:{at}: skipped, not one of our lines or changed since"
                continue
            text, number = found
            if number > self._count + 1:
                yield f"{self.path}: lines {self._count + 1} to {number - 1} of ours are missing"
            self._count = max(self._count, number)
            try:
                self._add(text)
            except UNREADABLE as error:
                yield f"{self.path}:{at}: skipped, not one of our lines: {_short(error)}"
        if counted is not None and self._count < counted:
            yield f"{self.path}: lines {self._count + 1} to {counted} of ours are missing"
        self._counted_at = len(lines[0]) + 1
        self._stale = self._stale or bool(lines[-1])

    def _add(self, line: bytes) -> None:
        record = _decoder.decode(line)
        if not isinstance(record, Boot):
            self.state.add(record)

    # --- writing ---

    @property
    def _size(self) -> int:
        return os.fstat(self._fd).st_size

    def _begin(self) -> None:
        """The first two lines. Raises OSError."""
        head = self._head(0)
        _write(self._fd, head, 0)
        self._counted_at = len(head) - len(_count_line(0))
        self._count = 0
        self._note()

    def _head(self, count: int) -> bytes:
        boot = Boot(boot=self._boot, pid=os.getpid())
        return _sealed(_encoder.encode(boot), 0) + _count_line(count)

    def _append(self, records: list[Record]) -> None:
        """All or nothing: half a line would spoil the next one. Raises OSError."""
        before = self._size
        try:
            _write(self._fd, _lines(records, self._count), before)
        except OSError:
            self._stale = True
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, before)
                self._stale = False
                self._note()
            raise
        self._count += len(records)
        with contextlib.suppress(OSError):  # one that is too small says less, and nothing wrong
            os.pwrite(self._fd, _count_line(self._count), self._counted_at)
        self._note()

    def _renew(self, more: list[Record] | None = None) -> None:
        """Write what still counts, and more, to a new file and put it in the place of this one."""
        records = [*self.state.records(), *(more or ())]
        fresh = self.path.with_name(self.path.name + ".new")
        head = self._head(len(records))
        with self._explained("cannot write"):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh.unlink(missing_ok=True)
            fd = _open(fresh, os.O_EXCL)
            try:
                _write(fd, head + _lines(records, 0), 0)
                fresh.rename(self.path)
            except BaseException:
                os.close(fd)
                with contextlib.suppress(OSError):
                    fresh.unlink(missing_ok=True)
                raise
        self.close()
        self._fd, self._count, self._stale = fd, len(records), False
        self._counted_at = len(head) - len(_count_line(0))
        self._note()
        self._compact_above = max(COMPACT_ABOVE_BYTES, 2 * self._size)

    def _is_in_place(self) -> bool:
        """Whether the file under our name is the one that we have open, as we left it."""
        try:
            return _looks(self.path.lstat()) == self._left
        except OSError:
            return False

    def _note(self) -> None:
        self._left = _looks(os.fstat(self._fd))

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


def had(path: Path = DEFAULT_PATH) -> dict[Key, int]:
    """The nice values that threads had before a controller changed them, by its journal."""
    return {key: adopted.nice for key, adopted in _told(path).adopted.items()}


def is_left(path: Path = DEFAULT_PATH) -> bool:
    """Whether anything is still there that a controller changed, by its journal."""
    told = _told(path)
    threads: list[Identified] = [*told.adopted.values(), *told.moved.values()]
    threads += told.processes.values()  # in which threads may be that were born of ours
    return any(map(os.path.exists, (*told.groups, *told.files))) or any(map(identity.same, threads))


def _told(path: Path) -> State:
    """What a journal tells of. Only reads; what cannot be read is left out. A line that is being
    written has no seal yet.
    """
    try:
        with path.open("rb") as file:
            lines = file.read(LARGEST_BYTES).split(b"\n")
    except OSError:
        return State()
    header, sealed = _header(lines[0])
    if header is None or not sealed or header.boot != procfs.boot_id():
        return State()
    state = State()
    for line in lines[2:]:
        found = _unsealed(line)
        with contextlib.suppress(*UNREADABLE):
            if found is not None and not isinstance(record := _decoder.decode(found[0]), Boot):
                state.add(record)
    return state


def _header(line: bytes) -> tuple[Boot | None, bool]:
    """The first line, if it is one; and whether it has a seal, as it must from version 2 on."""
    found = _unsealed(line)
    try:
        boot = _decoder.decode(line if found is None else found[0])
    except UNREADABLE:
        return None, False
    if not isinstance(boot, Boot) or (found is None) != (boot.version == 1):
        return None, False
    return boot, found is not None


def _sealed(text: bytes, number: int) -> bytes:
    body = b"%s\t%d " % (text, number)
    return b"%s%08x\n" % (body, zlib.crc32(body))


def _unsealed(line: bytes) -> tuple[bytes, int] | None:
    """The text of a line and its number; None if the seal is not there, or broken."""
    found = SEAL.search(line)
    if found is None or zlib.crc32(line[:-8]) != int(found[2], 16):
        return None
    return line[: found.start()], int(found[1])


def _lines(records: Iterable[Record], before: int) -> bytes:
    """before: how many lines stand before them."""
    return b"".join(
        _sealed(_encoder.encode(record), number)
        for number, record in enumerate(records, before + 1)
    )


def _count_line(count: int) -> bytes:
    """As long for any count: it is overwritten in place."""
    return _sealed(b"%012d" % count, 0)


def _counted(line: bytes) -> int | None:
    found = _unsealed(line)
    return int(found[0]) if found is not None and found[0].isdigit() else None


def _short(error: BaseException) -> str:
    return str(error)[:200] or type(error).__name__


def _looks(info: os.stat_result) -> tuple[int, ...]:
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def _write(fd: int, data: bytes, at: int) -> None:
    while data:
        written = os.pwrite(fd, data, at)
        data, at = data[written:], at + written


def _open(path: Path, flags: int = 0) -> int:
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
