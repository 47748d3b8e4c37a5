"""Names of functions at addresses: of the kernel, of a process's files, of compiled Java methods.

proc_pid_maps(5), proc_pid_map_files(5), elf(5), /proc/kallsyms. The files are those of the process,
which may belong to anybody: they are opened by what is mapped and never by a path, only tables of
64-bit ELF are read, and all sizes are bounded. None is mapped: it may shrink, which would end us.
Without symbols a place is FILE+0xOFFSET.
"""

import os
import re
import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_ctl.kernel import hotspot, procfs
from sched_ctl.kernel.regular import open_regular

__all__ = ["Functions", "Room", "kernel_functions", "of_process", "readable"]

KALLSYMS = Path("/proc/kallsyms")
MOST_SYMBOLS = 1 << 19  # of a file
NAMES_LIMIT = 32 << 20  # bytes of a file's names
KEPT_LIMIT = 128 << 20  # bytes of symbols and names, of all files of an owner in a look
MAPS_LIMIT = 4 << 20  # bytes of /proc/PID/maps
_SYMBOL = np.dtype(
    [
        ("name", "<u4"),
        ("info", "u1"),
        ("other", "u1"),
        ("section", "<u2"),
        ("at", "<u8"),
        ("size", "<u8"),
    ]
)
_FOUND = np.dtype([("start", "<u8"), ("end", "<u8"), ("names", "<u8"), ("name", "<u4")])
_SYMBOL_TABLES, _LOAD, _FUNCTION = (
    (2, 11),
    1,
    (2, 10),
)  # SHT_SYMTAB, DYNSYM; PT_LOAD; STT_FUNC, IFUNC
Table = NDArray[Any]
Read = Callable[[int, int], bytes]  # offset and bytes of a file: fewer, where it ends before


@dataclass(frozen=True, slots=True)
class Functions:
    """Begins, ascending; ends; names: index -> name."""

    starts: Sequence[int]
    ends: Sequence[int]
    name: Callable[[int], str]

    def at(self, address: int) -> str | None:
        """None where none is known."""
        found = bisect_right(self.starts, address) - 1
        return self.name(found) if found >= 0 and address < self.ends[found] else None


NONE = Functions((), (), str)


@dataclass(slots=True)
class Room:
    """What the files of one owner may still keep, in bytes: he may map any number of them."""

    left: int = KEPT_LIMIT

    def take(self, size: int) -> None:
        """Raises ValueError."""
        if size > self.left:
            raise ValueError("too many names")
        self.left -= size


def kernel_functions(path: Path = KALLSYMS) -> Functions:
    """Without the right to see addresses (kptr_restrict) there are none."""
    found: list[tuple[int, str]] = []
    with suppress(OSError), path.open() as lines:
        for line in lines:
            address, kind, name = line.split()[:3]
            if kind in "tTwW" and (at := int(address, 16)):
                found.append((at, name))
    found.sort()
    starts = [at for at, _ in found]
    return Functions(starts, [*starts[1:], 1 << 64][: len(starts)], lambda i: found[i][1])


@dataclass(frozen=True, slots=True)
class _Mapping:
    start: int
    end: int
    offset: int
    file: str  # its name only; empty for memory of its own


def of_process(pid: int, room: Room) -> Callable[[int], str]:
    """Address -> name, for a process as it is now; tables are read as they are needed."""
    mappings = _mappings(pid)
    starts = [one.start for one in mappings]
    compiled: list[Functions] = []
    files: dict[str, Callable[[int], str | None]] = {}

    def method(address: int) -> str | None:
        if not compiled:
            compiled.append(_methods(pid))
        return compiled[0].at(address)

    def name(address: int) -> str:
        at = bisect_right(starts, address) - 1
        if at < 0 or address >= mappings[at].end:
            return f"{address:#x}"
        found = mappings[at]
        if not found.file:
            return method(address) or "[without a file]"
        if found.file not in files:
            files[found.file] = _of_file(pid, found, room)
        place = address - found.start + found.offset
        return files[found.file](place) or f"{found.file}+{place:#x}"

    return name


def _mappings(pid: int) -> list[_Mapping]:
    """Raises OSError."""
    found = []
    for line in procfs.lines(f"/proc/{pid}/maps", MAPS_LIMIT):
        words = line.split(maxsplit=5)
        if len(words) < 5 or "x" not in words[1]:
            continue
        start, _, end = words[0].partition("-")
        path = words[5] if len(words) == 6 else ""
        file = path.rpartition("/")[2] if path.startswith(("/", "[v")) else ""
        found.append(_Mapping(int(start, 16), int(end, 16), int(words[2], 16), file))
    return found


def _methods(pid: int) -> Functions:
    """Of a Java machine from version 17 on, else none."""
    with suppress(hotspot.AttachError):
        if hotspot.is_hotspot(pid):
            found = sorted(hotspot.methods(pid), key=lambda one: one.start)
            names = [one.name for one in found]
            return Functions([m.start for m in found], [m.end for m in found], names.__getitem__)
    return NONE


def _of_file(pid: int, mapping: _Mapping, room: Room) -> Callable[[int], str | None]:
    """Offset in a mapped file -> name of the function there."""
    path = f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}"
    try:
        with open(open_regular(path), "rb") as file:
            return _of_elf(lambda at, size: os.pread(file.fileno(), size, at), room)
    except (
        OSError,
        ValueError,
        struct.error,
        IndexError,
        OverflowError,
    ):  # not ELF, or not ours to read
        pass
    return lambda _: None


def _of_elf(read: Read, room: Room) -> Callable[[int], str | None]:
    """Of a 64-bit little-endian ELF file. Raises ValueError, struct.error, OSError."""
    head = read(0, 64)
    if head[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit little-endian ELF")
    segments_at, sections_at = struct.unpack_from("<QQ", head, 32)
    segment_size, segments, section_size, sections = struct.unpack_from("<4H", head, 54)
    loads: list[tuple[int, int, int]] = []  # offset, size, address
    for i in range(segments):
        raw = read(segments_at + i * segment_size, 56)
        kind, _, offset, address, _, size = struct.unpack_from("<IIQQQQ", raw)
        if kind == _LOAD:
            loads.append((offset, size, address))
    tables = [
        struct.unpack_from("<IIQQQQIIQQ", read(sections_at + i * section_size, 64))
        for i in range(sections)
    ]
    one_of: dict[int, tuple[int, ...]] = {}  # by kind: a file has one of each at most, elf(5)
    for table in tables:
        if table[1] in _SYMBOL_TABLES and table[6] < len(tables):
            one_of.setdefault(table[1], table)
    found = np.zeros(0, _FOUND)
    for one in one_of.values():
        found = np.concatenate([found, _symbols(read, one, tables[one[6]])])[:MOST_SYMBOLS]
    found = found[np.lexsort((found["name"], found["names"], found["end"], found["start"]))]
    room.take(2 * found.nbytes)
    texts: dict[int, bytes] = {}
    for names in (tables[one[6]] for one in one_of.values()):
        if names[4] not in texts and names[4] in found["names"]:
            text = read(names[4], min(names[5], NAMES_LIMIT, room.left + 1))  # it may claim more
            room.take(len(text))
            texts[names[4]] = text

    def name(i: int) -> str:
        start = int(found["name"][i])
        raw = texts[int(found["names"][i])][start : start + 512]
        return readable(raw.partition(b"\0")[0].decode(errors="replace"))

    functions = Functions(_numbers(found["start"]), _numbers(found["end"]), name)

    def at(place: int) -> str | None:
        for offset, size, address in loads:
            if offset <= place < offset + size:
                return functions.at(place - offset + address)
        return None

    return at


def _numbers(column: Table) -> Sequence[int]:
    """As Python's own, in eight bytes each."""
    return array("Q", column.astype(np.uint64).tobytes())


def _symbols(read: Read, table: tuple[int, ...], names: tuple[int, ...]) -> Table:
    """Functions that have a size, of one symbol table."""
    offset, size = table[4], min(table[5], MOST_SYMBOLS * _SYMBOL.itemsize)
    raw = read(offset, size)
    symbols = np.frombuffer(raw, _SYMBOL, len(raw) // _SYMBOL.itemsize)
    wanted = symbols[np.isin(symbols["info"] & 15, _FUNCTION) & (symbols["size"] > 0)]
    found = np.zeros(len(wanted), _FOUND)
    found["start"], found["end"] = wanted["at"], wanted["at"] + wanted["size"]
    found["names"], found["name"] = names[4], wanted["name"]
    return found


def readable(name: str) -> str:
    """Names of C++ without their arguments: _ZN3foo3barEi is foo::bar (Itanium C++ ABI)."""
    nested = re.match(r"_ZN[KVrRO]*(?=\d)", name)
    plain = re.match(r"_Z(?=\d)", name)
    start = nested or plain
    if start is None:
        return name
    at, parts = start.end(), list[str]()
    while (length := re.compile(r"\d{1,4}").match(name, at)) and (nested or not parts):
        at = length.end() + int(length[0])
        parts.append(name[length.end() : at])
    return "::".join(parts) or name
