"""How long a JVM has stood still for its garbage collector, as it counts that itself.

HotSpot keeps its counters in a file that it maps (-XX:+UsePerfData, the default), for jstat and
such: a prologue, then entries with a name and a value each (hotspot/share/runtime/perfMemory.hpp
and perfData.hpp, format 2.0). `sun.gc.collector.N.time` are ticks in which collector N had all
threads stopped. It is read through the process's own mapping, and not by its path,
which may be anyone's.

Everything in it is the word of whoever owns the process.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from sched_ctl.kernel.regular import open_regular

__all__ = ["Pauses"]

MAGIC = 0xCAFEC0C0
PROLOGUE = struct.Struct("=4xBBBBIIqII")  # order, version 2.0, accessible, used, ..., entries
ENTRY = struct.Struct("=IIIcBBBI")  # length, of name, vector, type, flags, unit, kind, of data
SIZE_LIMIT = 1 << 20  # bytes; -XX:PerfDataMemorySize is 32768
MOST_ENTRIES = 10_000
MAPS_LIMIT = 16 << 20
FREQUENCY = b"sun.os.hrt.frequency"


@dataclass(frozen=True)
class Pauses:
    """Of one process. places: of the counters in the file. tick_s: one tick of them."""

    descriptor: int
    places: tuple[int, ...]
    tick_s: float

    @classmethod
    def of(cls, pid: int) -> "Pauses | None":
        """None for what is no JVM, keeps no such file, or may not be looked at."""
        try:
            descriptor = _mapped(pid)
        except OSError:
            return None
        if descriptor is None:
            return None
        try:
            if os.fstat(descriptor).st_size <= SIZE_LIMIT:
                data = os.pread(descriptor, SIZE_LIMIT, 0)
                found = dict(_longs(data))
                hertz = _long(data, found[FREQUENCY]) if FREQUENCY in found else 0
                places = tuple(
                    place
                    for name, place in found.items()
                    if name.startswith(b"sun.gc.collector.") and name.endswith(b".time")
                )
                if places and hertz > 0:
                    return cls(descriptor, places, 1 / hertz)
        except (OSError, struct.error):
            pass  # it is being written, or was never meant to be read
        os.close(descriptor)
        return None

    def read_s(self) -> float:
        """Seconds since the process began; NaN if they cannot be read."""
        try:
            parts = [os.pread(self.descriptor, 8, place) for place in self.places]
            return sum(_long(part, 0) for part in parts) * self.tick_s
        except (OSError, struct.error):
            return float("nan")

    def close(self) -> None:
        os.close(self.descriptor)


def _mapped(pid: int) -> int | None:
    """A descriptor of the file that the process has mapped."""
    with open(f"/proc/{pid}/maps", "rb") as maps:
        for line in maps.readlines(MAPS_LIMIT):
            if b"/hsperfdata_" in line:
                first, _, last = line.split(b" ", 1)[0].partition(b"-")
                place = f"/proc/{pid}/map_files/{int(first, 16):x}-{int(last, 16):x}"
                return open_regular(place)
    return None


def _longs(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Name and place of each 64-bit number. Raises struct.error."""
    _, major, _, accessible, _, _, _, at, entries = PROLOGUE.unpack_from(data)
    if int.from_bytes(data[:4], "big") != MAGIC or major != 2 or not accessible:
        return
    for _ in range(min(entries, MOST_ENTRIES)):
        length, name, _, kind, _, _, _, value = ENTRY.unpack_from(data, at)
        if kind == b"J" and length > 0 and at + value + 8 <= len(data):
            with suppress(ValueError):  # a name without its end
                yield data[at + name : data.index(b"\0", at + name)], at + value
        if length < ENTRY.size:
            return
        at += length


def _long(data: bytes, place: int) -> int:
    value: int = struct.unpack_from("=q", data, place)[0]
    return value
