"""Writes lines in a thread of its own, so that no disk ever keeps the control loop waiting.

What cannot be written is kept for a while and tried again; if even that is too much, the oldest
goes, and its number with it: the gap shows, and an event tells how many were lost. So it is with
what a user's engines say beyond an hour's share: else they could push out the history of others.
"""

import logging
import os
import platform
import queue
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from msgspec import structs

import sched_ctl
from sched_ctl.telemetry import records
from sched_ctl.telemetry.store import Store, prepare

__all__ = ["Recorder", "kind_here", "kind_of_machine", "machine"]

log = logging.getLogger(__name__)

MOST_WAITING = 256  # lines: at 5 s and one engine 20 minutes of a full disk
SHARE_HOURS = 24  # in which a user's engines alone could fill all that is kept, at the soonest
PACKED = 16  # times smaller than it is a line counts at most
LONGEST = records.MOST_LINE_BYTES - 64  # of a line that has no number yet
LOOK_S = 30.0  # how often the age of the open file is looked at while nothing comes


def machine(proc: Path = Path("/proc")) -> str:
    """The kind of this machine, the same on like ones."""
    told: dict[str, str] = {}
    for line in _text(proc / "cpuinfo").split("\n"):
        key, _, value = line.partition(":")
        told.setdefault(key.strip(), " ".join(value.split()))
    # arm64 names the board elsewhere, if at all, and processors by numbers.
    board = " ".join(_text(proc / "device-tree" / "model").replace("\0", " ").split())
    numbers = (told.get(f"CPU {key}", "") for key in ("implementer", "part"))
    named = (told[key] for key in told if key in ("model name", "Model", "Hardware"))
    model = next(filter(None, named), board or " ".join(filter(None, numbers)))
    return " ".join(filter(None, [platform.machine(), model]))


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def kind_of_machine(name: str, cpus: int) -> str:
    """What is measured on one machine holds for those that are called the same."""
    return f"{name}, {cpus} CPUs"


@cache
def kind_here() -> str:
    """The kind of this machine, with its CPUs."""
    return kind_of_machine(machine(), os.cpu_count() or 0)


@dataclass
class _Share:
    """What an owner's engines may still have written. at_s: Unix time when that was."""

    left: float
    at_s: float
    told_s: float = float("-inf")  # when the log told that it is used up


def _cost(line: records.Line) -> float:
    """Bytes that a line takes of its owner's share."""
    data = records.encode(line)
    return max(len(zlib.compress(data, 1)), len(data) / PACKED)


class Recorder:
    """`put` may be called from one other thread, and never waits.

    rotate_s: age at which a file is closed. boot: the kernel's boot id. clock: Unix time in s.
    Raises UserError if the folder cannot be written to.
    """

    def __init__(
        self,
        folder: Path,
        node: str,
        *,
        limit_bytes: int,
        rotate_s: float,
        boot: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        prepare(folder)
        self.node, self._boot = records.node_name(node), boot
        self._problem: str | None = None  # why nothing can be written now
        self.written = self.lost = 0
        self._store = Store(folder, self.node, limit_bytes)
        self._rotate_ms = round(rotate_s * 1e3)
        self._clock = clock
        self._machine = machine()
        self._topologies: dict[str, records.Topology] = {}
        self._waiting: deque[records.Line] = deque()
        self._unsaid = 0  # lost lines that no event has told of
        self._missed = 0  # lines that `put` threw away; written by its thread alone
        self._counted = 0  # of those
        self._queue: queue.SimpleQueue[tuple[records.Line, str] | None] = queue.SimpleQueue()
        self._hourly = limit_bytes / SHARE_HOURS
        self._shares: dict[str, _Share] = {}  # by owner
        self._owners: dict[str, str] = {}  # by engine, of those whose topology is known
        self._owed: dict[str, records.Topology] = {}  # lines that go before the engine's next one
        self._endless: set[str] = set()  # engines whose topology takes no line that can be read
        self._seq = self._run = 0
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)
        self._thread.start()

    @property
    def is_behind(self) -> bool:
        """Whether nothing more is taken now."""
        return self._queue.qsize() >= MOST_WAITING

    @property
    def problem(self) -> str | None:
        """Why nothing can be written now, in words."""
        if self._problem is None and self.is_behind:
            return f"cannot record into {self._store.folder}: the disk does not answer"
        return self._problem

    def put(self, line: records.Line, owner: str = "") -> bool:
        """Have it written, soon. Throws it away, and returns False, if the writer is far behind.

        owner: who has a share of his own; "": nobody, all that is put is written.
        """
        if self.is_behind:
            self._missed += 1
            return False
        self._queue.put((line, owner))
        return True

    def close(self, patience_s: float = 5.0) -> None:
        """Write what waits and close the file; a disk that hangs is not waited for."""
        self._queue.put(None)
        self._thread.join(patience_s)

    # --- in the writer's thread ---

    def _work(self) -> None:
        try:
            self._seq = self._run = max(self._store.recover() + 1, round(self._clock() * 1e3))
            while True:
                try:
                    put = self._queue.get(timeout=LOOK_S)
                except queue.Empty:
                    self._rotate()
                    continue
                if put is None:
                    break
                self._take(*put)
            self._flush()
            self._store.close()
        except Exception as error:  # a fault here must not look like a controller that records
            self._problem = f"recording has ended: {type(error).__name__}: {error}"
            log.exception("recording has ended")

    def _take(self, line: records.Line, owner: str = "") -> None:
        missed = self._missed
        self._lose(missed - self._counted)
        self._counted = missed
        if not self._fits(line):
            self._lose(1)
            return
        for each in self._affordable(line, owner):
            self._waiting.append(each)
            self._flush()
            if len(self._waiting) > MOST_WAITING:
                self._drop()

    def _fits(self, line: records.Line) -> bool:
        """Whether it can be read again, by itself and by the topology line that it goes by."""
        is_long = len(records.encode(line)) > LONGEST
        if isinstance(line, records.Topology):
            known = line.engine in self._endless
            self._endless.discard(line.engine)
            if is_long:
                self._endless.add(line.engine)
                self._topologies.pop(line.engine, None)
                self._owed.pop(line.engine, None)
                if not known:
                    log.warning("%s is not recorded: it is more than fits into a line", line.engine)
        elif isinstance(line, records.Event) and line.value == "gone":
            self._endless.discard(line.engine)
        elif isinstance(line, records.Record):
            return not (is_long or line.engine in self._endless)
        return not is_long

    def _affordable(self, line: records.Line, owner: str) -> list[records.Line]:
        """The line, after its topology's if that is owed; nothing beyond the owner's share."""
        if not owner or isinstance(line, records.Start):
            return [line]
        engine, owed = line.engine, self._owed.pop(line.engine, None)
        self._owners[engine] = owner
        gone = isinstance(line, records.Event) and line.value == "gone"
        lines: list[records.Line] = [line]
        if isinstance(line, records.Topology):
            owed = line
        elif gone:
            del self._owners[engine]
        elif owed is not None:
            lines = [owed, line]
        if self._paid(owner, *lines) is not None:
            return lines
        if gone:
            self._topologies.pop(engine, None)
        elif owed is not None:
            self._owed[engine] = owed
        self._lose(1)
        return []

    def _paid(self, owner: str, *lines: records.Line) -> float | None:
        """What the lines took of the owner's share; None if it does not suffice for all of them."""
        now_s = self._clock()
        share = self._shares.setdefault(owner, _Share(self._hourly, now_s))
        hours = max(0.0, now_s - share.at_s) / 3600
        share.left = min(self._hourly, share.left + hours * self._hourly)
        share.at_s = now_s
        costs = [_cost(line) for line in lines]
        # Lines that each fit into a share pass together when it is full, if not before
        cost = min(sum(costs), max(self._hourly, *costs))
        if cost <= share.left:
            share.left -= cost
            return cost
        if not 0 <= now_s - share.told_s < 3600:
            log.warning("lines of %s's engines are left out: beyond their share of an hour", owner)
            share.told_s = now_s
        return None

    def _flush(self) -> None:
        """Write all that waits, or as much as can be."""
        paid: list[tuple[str, float]] = []  # for lines that are repeated
        try:
            while self._waiting:
                self._rotate()
                paid.clear()
                first = [] if self._store.is_open else self._opened(paid)
                lines = [*first, *self._told(), self._waiting[0]]
                for place, line in enumerate(lines):
                    line.seq, line.node = self._seq + place, self.node
                self._store.append(map(records.encode, lines))
                self._seq += len(lines)
                self.written += len(lines)
                self._unsaid = 0
                line = self._waiting.popleft()
                if isinstance(line, records.Topology):
                    self._topologies[line.engine] = line
                elif isinstance(line, records.Event) and line.value == "gone":
                    self._topologies.pop(line.engine, None)
        except OSError as error:
            for owner, cost in paid:
                self._shares[owner].left += cost
            self._say(f"cannot record into {self._store.folder}: {os.strerror(error.errno or 0)}")
        else:
            self._say(None)

    def _rotate(self) -> None:
        age_ms = self._clock() * 1e3 - self._store.opened_ms
        # The clock may have been set back: such a file is closed, too.
        if self._store.is_open and (self._store.is_large or not 0 <= age_ms < self._rotate_ms):
            self._store.close()

    def _opened(self, paid: list[tuple[str, float]]) -> list[records.Line]:
        """Open a file. Returns the lines that it begins with, so that it explains itself; who paid
        how much for them is added to `paid`.
        """
        now_ms = int(self._clock() * 1e3)  # never later than it is: the file would be closed again
        self._store.open(now_ms, self._seq)
        start = records.Start(
            node=self.node,
            t=now_ms,
            run=self._run,
            boot=self._boot,
            program=sched_ctl.__version__,
            cpus=os.cpu_count() or 0,
            machine=self._machine,
        )
        first = self._waiting[0]
        again = first.engine if isinstance(first, records.Topology) else None
        waiting = {line.engine for line in self._waiting if not isinstance(line, records.Start)}
        # What it says holds now: a reader goes by the time of a line, not by that of the first one.
        known = []
        for engine, line in list(self._topologies.items()):
            owner = "" if engine in waiting else self._owners.get(engine, "")
            cost = self._paid(owner, line) if owner and engine not in self._owed else None
            if owner and cost is None:
                self._owed.setdefault(engine, self._topologies.pop(engine))  # it may run another
                continue
            if cost is not None:
                paid.append((owner, cost))
            if engine != again:
                known.append(structs.replace(line, t=now_ms))
        return [start, *known]

    def _told(self) -> list[records.Line]:
        if not self._unsaid:
            return []
        now_ms = round(self._clock() * 1e3)
        return [records.Event(node=self.node, t=now_ms, what="lost", count=self._unsaid)]

    def _drop(self) -> None:
        """The oldest that can be spared: without their topology line records would mean nothing."""
        for place, line in enumerate(self._waiting):
            if not isinstance(line, records.Topology):
                del self._waiting[place]
                break
        else:
            self._waiting.popleft()
        self._lose(1)

    def _lose(self, lines: int) -> None:
        self._seq += lines
        self.lost += lines
        self._unsaid += lines

    def _say(self, problem: str | None) -> None:
        if problem != self._problem:
            if problem is None:
                log.info("recording again; %d lines were lost", self.lost)
            else:
                log.warning("%s; it is tried again", problem)
            self._problem = problem
