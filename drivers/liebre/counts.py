"""What Liebre counts: tuples that entered (IN) and left (OUT) each stream.

With file metrics there is a file for each count, a line a second, `EPOCH,COUNT`, written when the
first tuple of a later second comes: the current second is never in it, and the file of an idle
stream stands still. With Dropwizard metrics the counters start anew each time that a reporter
reads them (DropwizardCountMetric), so what is reported are increases.

`A_B` is the stream from A to B, and both names may hold underscores (Liebre numbers replicas
`NAME_0`, `NAME_1`), so a stream's name is taken apart by the names that are known.
"""

import math
import os
import re
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, takewhile

from sched_ctl.drivers.sources.graphite import Series
from sched_ctl.kernel import procfs
from sched_ctl.kernel.regular import open_regular

__all__ = ["CountFile", "by_prefix", "open_files", "taken_apart"]

FILE = re.compile(r"(?P<id>[^/]+)\.(?P<metric>IN|OUT|EXEC|RATE)\.csv")
SERIES = re.compile(
    r"(?:(?P<prefix>.*)\.)?(?P<id>[^.]+)\.(?P<metric>IN|OUT|EXEC|RATE)(?:\.(?P<of>\w+))?"
)
WHOLE_LIMIT = 64 << 20  # bytes; what is longer is read from its end on
PART = 1 << 20
LINE_LIMIT = 64
EARLY_S = 60  # a line of a second that is further ahead is none of Liebre's
LATE_S = 2  # a second's line is there when so many have passed, if it comes at all


def open_files(pid: int) -> dict[tuple[str, str], int]:
    """(id, metric) -> descriptor of the process, of the metric files that it has open."""
    found: dict[tuple[str, str], int] = {}
    with suppress(OSError):
        for descriptor, path in procfs.open_files(pid):
            if match := FILE.fullmatch(path.rpartition("/")[2]):
                found[match["id"], match["metric"]] = descriptor
    return found


@dataclass(eq=False)
class CountFile:
    """Follows one IN or OUT file. total: tuples in the seconds that are complete by now.

    whole: whether it was read from its beginning. behind: whether more was there than could be
    read in time. The file is its user's: it may have any size, and tell of any second.
    """

    descriptor: int
    total: int = 0
    whole: bool = True
    behind: bool = False
    _offset: int = 0
    _rest: bytes = b""
    _early: dict[int, int] = field(default_factory=dict)  # by second

    @classmethod
    def of(cls, pid: int, descriptor: int) -> "CountFile | None":
        """The file behind a process's descriptor, by that and not by a path, which may be anyone's.

        None if it is no regular file, or gone.
        """
        try:
            ours = open_regular(f"/proc/{pid}/fd/{descriptor}")
        except OSError:
            return None
        size = os.fstat(ours).st_size
        long = size > WHOLE_LIMIT
        return cls(ours, whole=not long, _offset=size if long else 0)

    def read(self, epoch_s: float, end_s: float = math.inf) -> int:
        """`total` after what was written by now. epoch_s: time.time(). end_s: when to stop, by
        time.monotonic()."""
        now = int(epoch_s)
        self.behind = True
        while self.behind and time.monotonic() < end_s:
            part = os.pread(self.descriptor, PART, self._offset)
            self.behind = len(part) == PART
            self._offset += len(part)
            *lines, self._rest = (self._rest + part).split(b"\n")
            self._rest = self._rest[:LINE_LIMIT]
            self._note(lines, now)
        due = [second for second in self._early if second <= now - LATE_S]
        self.total += sum(map(self._early.pop, due))
        return self.total

    def _note(self, lines: Iterable[bytes], now: int) -> None:
        for line in lines:
            word, comma, count = line[:LINE_LIMIT].partition(b",")
            if not (comma and word.isdigit() and count.strip().isdigit()):
                continue
            second = int(word)
            if second <= now - LATE_S:
                self.total += int(count)
            elif second <= now + EARLY_S:
                self._early[second] = self._early.get(second, 0) + int(count)

    def follows(self, pid: int, descriptor: int) -> bool:
        """Whether it is the file behind a process's descriptor, and that goes on where it was."""
        try:
            theirs = os.stat(f"/proc/{pid}/fd/{descriptor}")  # noqa: PTH116  many of them
        except OSError:
            return False
        same = os.path.samestat(theirs, os.fstat(self.descriptor))
        return same and theirs.st_size >= self._offset

    def close(self) -> None:
        os.close(self.descriptor)


def by_prefix(found: Mapping[str, Series]) -> dict[str, dict[tuple[str, str], Series]]:
    """Series in Liebre's names, by the prefix that its program chose and by (id, metric)."""
    prefixes: dict[str, dict[tuple[str, str], Series]] = {}
    for name, series in found.items():
        match = SERIES.fullmatch(name)
        if match is None:
            continue
        counts = match["metric"] in ("IN", "OUT")
        if counts and match["of"] != "count":
            continue
        prefixes.setdefault(match["prefix"] or "", {})[match["id"], match["metric"]] = series
    return prefixes


def taken_apart(
    streams: Collection[str], names: Collection[str], operators: Collection[str]
) -> tuple[dict[str, tuple[list[str], list[str]]], list[str]]:
    """Stream -> (producers, consumers), and the streams that can be read in several ways.

    names: of all threads. operators: those that may share a stream of another's name.
    """
    found = {}
    unclear = []
    cuts = {stream: [at for at, letter in enumerate(stream) if letter == "_"] for stream in streams}
    writing = {stream[:at] for stream, places in cuts.items() for at in places}
    reading = {stream[at + 1 :] for stream, places in cuts.items() for at in places}
    for stream, places in sorted(cuts.items()):
        ways = [
            (stream[:at], stream[at + 1 :])
            for at in places
            if stream[:at] in names and stream[at + 1 :] in names
        ]
        if len(ways) == 1:
            ((producer, consumer),) = ways
            found[stream] = (
                _sharing(producer, operators, writing),
                _sharing(consumer, operators, reading),
            )
        elif ways:
            unclear.append(stream)
    return found, unclear


def _sharing(first: str, names: Collection[str], own: Collection[str]) -> list[str]:
    """The operators at one end of a stream that is called by the first of them.

    What several write and several read is one stream, called `A_0_B_0` by the first of each. The
    others, `A_1` and so on, have none of their own at that end. own: who may have one.
    """
    base, _, number = first.rpartition("_")
    others = (f"{base}_{i}" for i in count(1)) if base and number == "0" else ()
    return [first, *takewhile(lambda name: name in names and name not in own, others)]
