"""Reading recorded files: line by line, whatever became of them.

A file may be torn (the machine lost power), may be of somebody else, or be anything that lies in
the folder. What is whole is kept, and all else is named: no input makes the reader fail.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sched_ctl.errors import UserError
from sched_ctl.telemetry import records

__all__ = ["Bad", "lines", "lines_of", "read"]

GZIP = 31  # zlib's window bits for a gzip member
CHUNK = 1 << 20  # bytes taken out of the decompressor at a time
PIECE = 1 << 16  # bytes given to it at a time: what it leaves of them is copied
MOST_BYTES = 1 << 31  # decompressed: more is a bomb, or no file of ours
MOST_MEMBERS = 1000  # of a gzip file: a recorder makes one


@dataclass(frozen=True, slots=True)
class Bad:
    """Something that is no line of ours. line: from 1; 0 = the file as a whole."""

    line: int
    why: str
    text: str = ""  # its first characters


def lines(data: bytes) -> Iterator[tuple[int, bytes] | Bad]:
    """The lines of a recorded file, with their numbers from 1; what is torn or foreign as `Bad`.

    data: one or several gzip members, or plain text. A torn member gives the lines that are whole.
    A line that is too long is left out, and what follows it is read.
    """
    number, rest, is_long = 0, b"", False
    text = _inflated(data) if data[:2] == b"\x1f\x8b" else iter([data])
    for part in text:
        if isinstance(part, Bad):
            yield Bad(number + 1, part.why, _head(rest))
            return
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            number += 1
            if line.strip(b" \r\t\0") and not is_long:
                yield number, line
            is_long = False
        if len(rest) > records.MOST_LINE_BYTES and not is_long:
            is_long = True
            yield Bad(
                number + 1, f"a line longer than {records.MOST_LINE_BYTES} bytes", _head(rest)
            )
        if is_long:
            rest = b""
    if rest.strip(b" \r\t\0"):
        yield Bad(number + 1, "torn: the line has no end", _head(rest))


def _inflated(data: bytes) -> Iterator[bytes | Bad]:
    view, at, total = memoryview(data), 0, 0
    for _ in range(MOST_MEMBERS):
        member = zlib.decompressobj(GZIP)
        try:
            while not member.eof and at < len(view):
                piece = view[at : at + PIECE]
                part = member.decompress(piece, CHUNK)
                left = member.unused_data if member.eof else member.unconsumed_tail
                at += len(piece) - len(left)
                total += len(part)
                if total > MOST_BYTES:
                    yield Bad(0, f"more than {MOST_BYTES} bytes when decompressed")
                    return
                if part:
                    yield part
        except zlib.error as error:
            yield Bad(0, f"not gzip from here on: {error}")
            return
        if not member.eof:
            part = member.flush()
            if part:
                yield part
            yield Bad(0, "torn: the compressed data end early")
            return
        if at == len(view):
            return
    yield Bad(0, f"more than {MOST_MEMBERS} gzip members")


def lines_of(data: bytes) -> Iterator[tuple[int, records.Line] | Bad]:
    """What the lines say, or what is wrong with them."""
    for found in lines(data):
        if isinstance(found, Bad):
            yield found
            continue
        number, line = found
        try:
            yield number, records.decode(line)
        except ValueError as error:
            yield Bad(number, str(error)[:300], _head(line))


def read(path: Path) -> Iterator[tuple[int, records.Line] | Bad]:
    """The same of a file. Raises UserError if it cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        hint = "run this as its owner, or as root" if isinstance(error, PermissionError) else None
        raise UserError(f"cannot read {path}: {error.strerror}", hint) from error
    return lines_of(data)


def _head(text: bytes) -> str:
    return text[:80].decode(errors="replace")
