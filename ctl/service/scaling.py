"""Give a query other numbers of replicas, measure what came of it, and take it back if it is worse.

What was is written down before anything is asked of the engine, in the run folder: so `scale
--back` knows it, also after a kill, and the next restart is judged by what this one took.
"""

import asyncio
import fcntl
import logging
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import msgspec
import numpy as np

from sched_ctl import show
from sched_ctl.adapt.parallelism import called
from sched_ctl.adapt.rescale import Change, Done, is_worse
from sched_ctl.config.settings import Section, Settings
from sched_ctl.controller.loop import Controller
from sched_ctl.drivers import Driver, DriverKind, Scaler, Target
from sched_ctl.engines.boundary import checked
from sched_ctl.engines.engine import Engine
from sched_ctl.errors import EngineError, UserError
from sched_ctl.kernel import identity
from sched_ctl.kernel.crowd import slowness
from sched_ctl.model.topology import Snapshot, Topology
from sched_ctl.runfolder import RunFolder
from sched_ctl.service import bottlenecks
from sched_ctl.service.bottlenecks import Found
from sched_ctl.service.views import suspected

__all__ = [
    "Busy",
    "Memory",
    "carried_out",
    "in_words",
    "judged_late",
    "looked",
    "memory_of",
    "scaler_of",
]

log = logging.getLogger(__name__)

Replicas = Mapping[tuple[str, ...], int]

KEPT = 200  # changes that are remembered
LONGEST = 1 << 20  # bytes of them that are read
MEASURE_S = 5.0  # that a rate is taken over
FIRST_S = 5.0  # until an engine has told of its tuples
SETTLE_S = 5.0  # from the first output to the first look at what came of it
PART_S = 1.0  # of that, by which it is told how sure a rate is
LOOK_S = 0.1
LOOKS = 4  # before a change is taken for a worse one
FIRST_LOOKS = 3  # before a change, of half that time; the middle one counts
WHILE_S = 2.0  # of output with the new replicas, before anything is said
POLL_S = 5.0  # that one answer may take
NO_QUERY_S = 20.0  # that the first queries may take to be seen


class Busy(UserError):
    """A query is being changed, maybe by another process: nothing was done."""


@dataclass(frozen=True)
class Memory:
    """Changes that were made since the machine was started."""

    path: Path

    def read(self) -> list[Done]:
        """Oldest first; lines that nobody can read are left out."""
        found = []
        with suppress(OSError):
            for line in self.path.read_bytes()[-LONGEST:].splitlines()[-KEPT:]:
                with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    found.append(msgspec.json.decode(line, type=Done))
        return found

    def note(self, done: Done) -> None:
        """Write one down, in the place of what is known of the same change. Raises UserError."""
        kept = {(d.at_s, d.engine, d.query): d for d in self.read()}
        kept[done.at_s, done.engine, done.query] = done
        new = self.path.with_suffix(".new")
        with self._written():
            new.write_bytes(b"".join(msgspec.json.encode(d) + b"\n" for d in kept.values()))
            new.replace(self.path)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """For one change at a time: of two at once neither could be judged.

        Raises Busy, or UserError where nothing can be written.
        """
        with self._written():
            fd = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Busy(
                    "a query is being given other replicas just now; nothing was changed",
                    "try again when that is judged, in a minute or two",
                ) from None
            except OSError:  # not every file system can
                pass
            yield
        finally:
            os.close(fd)

    @contextmanager
    def _written(self) -> Iterator[None]:
        """Make the folder, and tell in words what goes wrong. Raises UserError."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            yield
        except OSError as error:
            raise UserError(
                f"what was there before cannot be written down: {self.path}: {error.strerror}; "
                "nothing was changed",
                "run this command as root, or give another --run-dir",
            ) from None

    def follow(self, done: Done) -> None:
        """What came of a change that is written down. Never raises: it has been made."""
        try:
            self.note(done)
        except UserError:
            words = "%s %s: %s, which cannot be written down into %s"
            log.warning(words, done.engine, done.query, done.outcome, self.path)

    def last(self, engine: str, query: str) -> Done | None:
        """The newest change of a query."""
        same = [done for done in self.read() if (done.engine, done.query) == (engine, query)]
        return same[-1] if same else None


def memory_of(run_dir: Path) -> Memory:
    return Memory(RunFolder(run_dir).rescaled)


async def looked(
    settings: Settings, kinds: Mapping[str, DriverKind], seconds: float
) -> list[Found]:
    """The engines' verdicts over so many seconds; none where no engine answers. Nothing is changed.

    Raises UserError where those that answer run no query.
    """
    nothing = (Section(policy="constant"),)
    own = msgspec.structs.replace(settings, policy=nothing, race=0, guard=0, calm_period=0)
    controller = Controller(own, kinds, None)
    controller.observes = True
    running = None
    try:
        await controller.start()
        if not (controller.engines or controller.roster.is_looking or suspected(controller.kinds)):
            return []
        running = asyncio.create_task(controller.run())
        end_s = time.monotonic() + NO_QUERY_S
        while not any(e.snapshot and e.snapshot.topology.queries for e in _engines(controller)):
            if time.monotonic() > end_s:
                idle = [engine.name for engine in _engines(controller) if engine.snapshot]
                if idle:
                    raise UserError(
                        f"{', '.join(idle[:5])} answers, and runs no query", "submit one"
                    )
                return []
            await asyncio.sleep(LOOK_S)
        # Of an engine that tells its graph by its first metrics, these come a report later
        while any(e.waiting for e in _engines(controller)) and time.monotonic() < end_s:
            await asyncio.sleep(LOOK_S)
        controller.watch(seconds + 2 * bottlenecks.SHORT_S)
        await asyncio.sleep(seconds)
        return await bottlenecks.look(controller)
    finally:
        controller.stop("seen enough")
        if running is not None:
            await running
        controller.close()


def _engines(controller: Controller) -> Sequence[Engine]:
    return list(controller.engines.values())


def scaler_of(target: Target, kind: DriverKind) -> Scaler:
    """Raises UserError where such an engine's replicas cannot be changed."""
    if kind.scaler is None:
        raise UserError(
            f"{target.engine}: replicas of a running query cannot be changed there",
            "start the query again with as many as it needs",
        )
    return kind.scaler(target)


def carried_out(
    target: Target,
    kind: DriverKind,
    change: Change,
    memory: Memory,
    *,
    patience_s: float,
    say: Callable[[str], None] = log.info,
    by_itself: bool = False,
) -> Done:
    """Make the change, wait for output, compare, and take it back if it is worse.

    patience_s: for the query to keep its state, and for output after the restart, on an idle
    machine. Raises UserError, with what is in force then.
    """
    with memory.alone():
        return _carried_out(target, kind, change, memory, patience_s, say, by_itself)


def judged_late(
    target: Target, kind: DriverKind, done: Done, memory: Memory, *, patience_s: float
) -> Done:
    """What came of a change that was asked for by a controller that ended: as `carried_out`.

    "other" where it is not the query's last one by now, "refused" where the query has what it had.
    """
    with memory.alone():
        if memory.last(done.engine, done.query) != done:
            return msgspec.structs.replace(done, outcome="other")
        scaler, output = scaler_of(target, kind), None
        was, became = ({tuple(name): n for name, n in told} for told in (done.was, done.became))
        try:
            if not _gives(scaler, done.query, became):
                had = _gives(scaler, done.query, was)
                done = msgspec.structs.replace(done, outcome="refused" if had else "other")
                memory.follow(done)
                return done
            output = Output(lambda: kind.connect(target), done.query)
            if output.silence(became, patience_s * slowness()) is None:
                return _lost(scaler, output, memory, done, was, patience_s)
            return _judged(scaler, output, memory, done, was, patience_s, log.info)
        finally:
            scaler.close()
            if output is not None:
                output.close()


def _carried_out(
    target: Target,
    kind: DriverKind,
    change: Change,
    memory: Memory,
    patience_s: float,
    say: Callable[[str], None],
    by_itself: bool,
) -> Done:
    scaler = scaler_of(target, kind)
    output = None
    try:
        output = Output(lambda: kind.connect(target), change.query)
        current = scaler.current(change.query)
        was = {logical: current[logical][0] for logical in change.replicas if logical in current}
        before = output.first_rate(MEASURE_S * slowness())
        say(f"what it loses: {scaler.loses}" if scaler.loses else "keeping its state")
        scaler.secure(change.query, patience_s * slowness())
        done = Done(
            at_s=time.time(),
            engine=change.engine,
            query=change.query,
            was=_plain(was),
            became=_plain(change.replicas),
            before=_known(before),
            by_itself=by_itself,
        )
        memory.note(done)
        say(f"asking for {in_words(change.replicas)}")
        try:
            scaler.rescale(change.query, change.replicas)
        except EngineError as error:
            _made_all_the_same(scaler, memory, done, change.replicas, error)
            say(f"{error.message}; it was done all the same")
        silent_s = output.silence(change.replicas, patience_s * slowness())
        if silent_s is None:
            return _lost(scaler, output, memory, done, was, patience_s)
        say(f"output again after {silent_s:.1f} s without")
        done = msgspec.structs.replace(done, silent_s=round(silent_s, 3))
        memory.follow(done)
        return _judged(scaler, output, memory, done, was, patience_s, say)
    finally:
        scaler.close()
        if output is not None:
            output.close()


def _gives(scaler: Scaler, query: str, replicas: Replicas) -> bool:
    """Whether these are the ones that the query has by now, or that the engine was asked for."""
    now = scaler.current(query)
    return all(now.get(logical, (0, 0))[0] == count for logical, count in replicas.items())


def _made_all_the_same(
    scaler: Scaler, memory: Memory, done: Done, replicas: Replicas, error: EngineError
) -> None:
    """Raises the error, unless the engine did what it was asked for, and only answered too late.

    Of one that does not tell that either nobody knows: it stays asked for, to be judged later.
    """
    with suppress(EngineError):
        if _gives(scaler, done.query, replicas):
            return
        memory.follow(msgspec.structs.replace(done, outcome="refused"))
    hint = f"if it did so all the same: sched-ctl scale {quote(done.query)} --back --apply"
    raise EngineError(error.message, error.hint or hint) from None


def _judged(
    scaler: Scaler,
    output: "Output",
    memory: Memory,
    done: Done,
    was: Replicas,
    patience_s: float,
    say: Callable[[str], None],
) -> Done:
    before = math.nan if done.before is None else done.before
    output.settle(SETTLE_S)
    output.broke = False
    after, error, taken, over_s = math.nan, 0.0, 0.0, 0.0
    for _ in range(LOOKS):  # one may have met a pause of the load, or a machine that is cold
        after = output.rate(MEASURE_S)
        taken, over_s = taken + output.taken, over_s + output.over_s
        if output.broke and over_s > 0:  # who fails again and again does well in between
            after = taken / over_s
        error = 0.0 if output.broke else math.hypot(output.error, output.first_error)
        if not output.broke and not is_worse(before, after, error):
            break
    outcome = "back" if is_worse(before, after, error) else "kept"
    done = msgspec.structs.replace(done, after=_known(after), outcome=outcome)
    if outcome == "back":
        now, then = (show.number(rate, 4) for rate in (after, before))
        worse = f"it takes in {now}/s instead of {then}/s"
        say(f"{worse}: back to {in_words(was)}")
        _taken_back(scaler, memory, done, was, worse)
        output.silence(was, patience_s * slowness())
    else:
        memory.follow(done)
    return done


def _taken_back(scaler: Scaler, memory: Memory, done: Done, was: Replicas, why: str) -> None:
    """Ask for what was there before, and only then write down what came of the change."""
    try:
        scaler.rescale(done.query, was)
    except EngineError as error:
        raise EngineError(
            f"{done.query}: {why} after the change, and it cannot be taken back: {error.message}",
            f"sched-ctl scale {quote(done.query)} --back --apply tries again",
        ) from None
    finally:
        memory.follow(done)


def _lost(
    scaler: Scaler,
    output: "Output",
    memory: Memory,
    done: Done,
    was: Replicas,
    patience_s: float,
) -> Done:
    """No output came: ask for what was there before."""
    waited_s = patience_s * slowness()
    lost = msgspec.structs.replace(done, outcome="lost")
    _taken_back(scaler, memory, lost, was, f"no output for {waited_s:.0f} s")
    back = output.silence(was, waited_s) is not None
    raise EngineError(
        f"{done.query}: no output for {waited_s:.0f} s after the change; it was taken back, "
        + ("and there is output again" if back else "and there is still none"),
        "the engine's log tells why; --patience waits longer",
    )


class Output:
    """What a query takes in and gives, seen by a driver of its own.

    A driver learns of new replicas seconds after these work. But the counters of a restarted query
    begin anew: the first look tells how much it has given since, and the rate when that began.
    Where a process ends with the query, as Storm's workers do, another driver is connected.
    """

    def __init__(self, connect: Callable[[], Driver], query: str) -> None:
        self._connect, self._query = connect, query
        self._driver = connect()
        self._born = _born(self._driver)
        self._said: Topology | None = None
        self._before: _Counts | None = None
        self._gave_s = time.monotonic()  # the last output
        self._anew: _Counts | None = None  # the first look at counters that had begun anew
        self._silent_s = 0.0  # longest time between two outputs, up to that look
        # The last look before that at a process that had begun anew and told of no tuple
        self._blank_s: float | None = None
        # Tuples that the sources sent, and that left, in how many seconds, and up to when
        self.taken, self.given, self.over_s, self._until_s = 0.0, 0.0, 0.0, math.nan
        self.parts: list[float] = []  # rates, of which the last one is the mean
        self.first_error = 0.0  # of the first rate, tuples/s
        self._told = False  # by the last look
        self.broke = False  # a look was not answered, or counters began anew; set back by others
        self._gave_rate = 0.0  # when a rate was last taken

    def close(self) -> None:
        self._driver.close()

    def first_rate(self, patience_s: float) -> float:
        """`rate` before a change: the middle one of some, as one may have met a query that catches
        up, or a pause. Raises UserError where no output is seen: nobody could tell what comes of a
        change.
        """
        end_s = time.monotonic() + FIRST_S + patience_s
        while self._before is None and time.monotonic() < end_s:
            self.look()
            time.sleep(LOOK_S)
        if self._before is None:
            notes = "; ".join(self._said.notes) if self._said is not None else ""
            raise UserError(
                f"{self._query}: its tuples are not counted, so that nobody could tell what comes "
                f"of a change; nothing was changed{notes and ': '}{notes[:300]}",
                "a controller that runs may hold the engine's reports: [[elastic]] lets it do this",
            )
        looks: list[float] = []
        parts: list[float] = []
        for _ in range(FIRST_LOOKS):
            looks.append(self.rate(MEASURE_S / 2))
            parts += self.parts
        self.first_error = _error(parts)
        known = [rate for rate in looks if math.isfinite(rate)]
        return statistics.median(known) if known else math.nan

    def rate(self, seconds: float) -> float:
        """Tuples/s that the sources emit over the next seconds, also those in which there is no
        answer; NaN where nobody ever told.
        """
        self.taken = self.given = self.over_s = 0.0
        self.parts = []
        count = max(1, round(seconds / PART_S))
        for _ in range(count):
            taken, over_s = self.taken, self.over_s
            self.settle(seconds / count)
            if self.over_s > over_s:
                self.parts.append((self.taken - taken) / (self.over_s - over_s))
        if not self._told:
            self._over(time.monotonic())
        self._gave_rate = self.given / self.over_s if self.over_s > 0 else 0.0
        return self.taken / self.over_s if self.over_s > 0 else math.nan

    @property
    def error(self) -> float:
        """Standard error of the rate that was taken last, tuples/s."""
        return _error(self.parts)

    def _over(self, now_s: float) -> None:
        """What was seen is over the time up to now."""
        if math.isfinite(self._until_s):
            self.over_s += now_s - self._until_s
            self._until_s = now_s

    def settle(self, seconds: float) -> None:
        """Look for so long."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self.look()
            time.sleep(LOOK_S)

    def silence(self, replicas: Replicas, patience_s: float) -> float | None:
        """The longest time without output from now on until it runs with these replicas, and has
        given output for a while; None if it does not in time. Call it as soon as they were asked
        for.
        """
        begin_s = time.monotonic()
        self._gave_s = begin_s  # nobody looked while it kept its state, which may take long
        self._silent_s, self._anew, self._blank_s = 0.0, None, None
        new_s = math.inf  # since when it gives output with these replicas
        while time.monotonic() - begin_s < patience_s:
            gave_s = self._gave_s
            topology = self.look()
            if topology is not None and _has(topology, self._query, replicas):
                if self._gave_s > gave_s:
                    new_s = min(new_s, self._gave_s)
                if self._gave_s - new_s >= WHILE_S:
                    return max(0.0, self._silent_s - self._unseen_s())
            time.sleep(LOOK_S)
        return None

    def _unseen_s(self) -> float:
        """For how long it had given output already when it was seen to have begun anew."""
        first, now = self._anew, self._before
        if first is None or now is None or now.at_s <= first.at_s or now.given <= first.given:
            return 0.0
        gives = (now.given - first.given) / (now.at_s - first.at_s)
        # Where reports come late, little is seen of what it gives by now
        unseen_s = first.given / max(gives, self._gave_rate)
        # What had waited leaves at once, many times as fast as that. A new process that told of no
        # tuple at the look before has given output since then, or since the report before it.
        return unseen_s if self._blank_s is None else min(unseen_s, first.at_s - self._blank_s)

    def look(self) -> Topology | None:
        """One answer; None where there is none, as while the engine restarts the query."""
        self._told = False
        try:
            snapshot = checked(self._driver.poll(POLL_S), self._driver, self._said)
        except EngineError:
            self.broke = True
            self._once_more()
            return None
        self._said = snapshot.topology
        now, before = _counts(snapshot, self._query), self._before
        if now is None:
            self.broke = True
            if self._blank_s is not None and self._anew is None:
                self._blank_s = time.monotonic()
            return snapshot.topology
        self._before, self._told = now, True
        if before is not None:
            # Between two reports a count is estimated and may fall a little at the next: only one
            # that falls far has begun anew.
            began_anew = 0 < now.given < before.given / 2
            if now.given > before.given or began_anew:
                apart_s = now.at_s - self._gave_s
                if began_anew:
                    self._anew, self._silent_s = now, apart_s
                elif self._anew is None:
                    self._silent_s = max(self._silent_s, apart_s)
                self._gave_s = now.at_s
            takes_anew = now.taken < before.taken / 2
            self.broke = self.broke or began_anew or takes_anew
            # What an estimate had too much is taken off again.
            self.taken += now.taken - (0.0 if takes_anew else before.taken)
            self.given += now.given - before.given if now.given >= before.given / 2 else 0.0
            self._over(now.at_s)
        self._until_s = now.at_s
        return snapshot.topology

    def _once_more(self) -> None:
        """Connect again, where the process that was asked has ended."""
        pid = self._driver.target.pid
        if pid is None or self._born is None or identity.runs(pid, self._born):
            return
        with suppress(UserError):
            driver = self._connect()
            self._driver.close()
            self._driver, self._born = driver, _born(driver)
            if self._anew is None:
                self._blank_s = time.monotonic()


def _born(driver: Driver) -> int | None:
    pid = driver.target.pid
    return None if pid is None else identity.born(pid)


@dataclass(frozen=True, slots=True)
class _Counts:
    """Tuples that a query's sources sent, and its last operators took in, since it was started."""

    at_s: float
    taken: float
    given: float


def _counts(snapshot: Snapshot, query: str) -> _Counts | None:
    topology = snapshot.topology
    mine = np.array([o.query == query for o in topology.operators], dtype=np.bool_)
    taken, given = (
        float(np.sum(snapshot.columns.get(name, np.full(mine.size, np.nan))[ends & mine]))
        for name, ends in (
            ("tuples_out", topology.graph.ingress),
            ("tuples_in", topology.graph.egress),
        )
    )
    known = mine.any() and math.isfinite(taken) and math.isfinite(given)
    return _Counts(time.monotonic(), taken, given) if known else None


def _has(topology: Topology, query: str, replicas: Replicas) -> bool:
    """Whether it runs with these replicas, by their threads or on other nodes."""
    running: dict[tuple[str, ...], int] = {}
    for operator in topology.operators:
        if operator.query == query and (operator.threads or operator.away):
            running[operator.logical] = running.get(operator.logical, 0) + 1
    return all(running.get(logical, 0) == count for logical, count in replicas.items())


def in_words(replicas: Replicas) -> str:
    return ", ".join(f"{called(logical)} x {count}" for logical, count in replicas.items())


def _plain(replicas: Replicas) -> list[tuple[list[str], int]]:
    return [(list(logical), count) for logical, count in replicas.items()]


def _error(parts: Sequence[float]) -> float:
    """Standard error of their mean; 0 of fewer than three, which tell nothing of it."""
    return statistics.stdev(parts) / math.sqrt(len(parts)) if len(parts) > 2 else 0.0


def _known(value: float) -> float | None:
    return round(value, 3) if math.isfinite(value) else None
