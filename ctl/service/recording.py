"""What a controller gives to its recorder after each pass: records, topologies, events.

Nothing here writes to a disk, see `telemetry.recorder`. Whatever goes wrong at one engine costs a
record of that engine; it is logged, and shows in the controller's status.
"""

import logging
import math
import platform
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sched_ctl.adapt.effect import UNKNOWN
from sched_ctl.controller import targets
from sched_ctl.controller.loop import Controller
from sched_ctl.controller.rule import Rule
from sched_ctl.engines.engine import Engine
from sched_ctl.errors import UserError
from sched_ctl.kernel import procfs, psi
from sched_ctl.metrics import verdicts
from sched_ctl.model.topology import Snapshot, Topology
from sched_ctl.service.lock import check_way
from sched_ctl.telemetry import records
from sched_ctl.telemetry.recorder import Recorder
from sched_ctl.telemetry.span import Span, described, same
from sched_ctl.telemetry.store import prepare

__all__ = ["Recording", "start"]

log = logging.getLogger(__name__)

PROBE_S = 60.0  # times of threads are read for so long after each pass
NOBODY = "os"  # as a policy: the system's own scheduling


def start(controller: Controller) -> "Recording | None":
    """The recording that the settings ask for, if they do. Raises UserError."""
    settings = controller.settings
    if not settings.record:
        return None
    recorder = Recorder(
        _made(Path(settings.record)),
        settings.node or platform.node() or "node",
        limit_bytes=round(settings.record_limit * 1e6),
        rotate_s=settings.record_rotate,
        boot=procfs.boot_id(),
    )
    return Recording(controller, recorder, settings.record_period)


def _made(folder: Path) -> Path:
    """Make the folder. Raises UserError if another user could lead what is recorded elsewhere, or
    put files beside it whose numbers would be taken for ours.
    """
    try:
        check_way(folder, "--record")
        prepare(folder)
        check_way(folder, "--record")  # who made it is known only now
        is_shared = bool(folder.stat().st_mode & stat.S_IWOTH)
    except OSError as error:
        raise UserError(
            f"cannot record into {folder}: {error.strerror}", "give another folder with --record"
        ) from error
    if is_shared:
        raise UserError(
            f"{folder} can be written to by everybody",
            f"give another folder with --record, or: chmod o-w {folder}",
        )
    return folder


class Recording:
    """Follows a controller: call `note` after each of its passes, and `close` at the end."""

    def __init__(self, controller: Controller, recorder: Recorder, period_s: float) -> None:
        self.recorder = recorder
        self._controller, self._period_s = controller, period_s
        self._owners: dict[str, str] = {}  # by engine
        self._spans: dict[str, Span] = {}
        self._seen: dict[str, float] = {}  # time of the last snapshot, by engine; NaN: none yet
        self._topologies: dict[str, tuple[Topology, records.Topology]] = {}
        self._epochs: dict[str, int] = {}
        self._left = 0  # the largest epoch of an engine that is gone: none is used again
        self._told: dict[tuple[str, str, str], str] = {}  # events: what was said last
        self._verdicts: dict[tuple[str, str], str] = {}  # of the last record, by engine and query
        self._counted: dict[tuple[str, str], tuple[int, int]] = {}  # the same: tuples told, met
        self._failed: dict[str, str] = {}  # by engine, "": all of them; why nothing is recorded

    @property
    def problem(self) -> str | None:
        """Why not all is recorded now, in words."""
        words = self.recorder.problem
        if words is not None:
            lost = self.recorder.lost
            return f"{words}; {lost} lines were lost" if lost else words
        return next(iter(self._failed.values()), None)

    def note(self) -> None:
        """A pass has ended. Never raises."""
        with self._apart(""):
            self._note()
            self._failed.pop("", None)
        self._controller.not_recorded = self.problem

    def close(self) -> None:
        """Write what was gathered, and wait a moment for the disk."""
        for name in list(self._spans):
            self._end_span(name)
        self.recorder.close()

    @contextmanager
    def _apart(self, name: str) -> Iterator[None]:
        """What goes wrong in here costs what was gathered of this engine, and nothing else."""
        try:
            yield
        except Exception as error:  # whatever it is, the threads must be scheduled
            of = f"what {name} did" if name else "a pass"
            words = f"{of} is not recorded: {type(error).__name__}: {error}"
            if self._failed.get(name) != words:
                log.exception(words)
            self._failed[name] = words
            self._drop(name)

    def _note(self) -> None:
        controller = self._controller
        controller.probe(PROBE_S)
        for engine in controller.engines.values():
            with self._apart(engine.name):
                self._follow(engine)
        for name in self._seen.keys() - controller.engines.keys():
            self._end_span(name)
            if self._tell("engine", name, "", "gone"):
                self._let_go(name)
        for rule in controller.rules:
            policy = NOBODY if rule.instead.own else rule.policy.name
            self._tell("policy", "", rule.name, " ".join((policy, rule.backend)))
            self._tell("error", "", rule.name, rule.problem or "")

    def _follow(self, engine: Engine) -> None:
        snapshot = engine.snapshot
        self._owners[engine.name] = engine.domain
        self._tell("engine", engine.name, "", engine.state)
        self._tell("error", engine.name, "", engine.problem or "")
        seen_s = self._seen.setdefault(engine.name, math.nan)
        if snapshot is not None and seen_s != snapshot.time_s:
            self._seen[engine.name] = snapshot.time_s
            self._pass(engine, snapshot)

    def _pass(self, engine: Engine, snapshot: Snapshot) -> None:
        name, topology = engine.name, snapshot.topology
        if name not in self._topologies and self.recorder.is_behind:
            return
        line = self._line_of_new(name, topology)
        if line is None:
            self._topologies[name] = topology, self._topologies[name][1]
        else:
            # Until here others ran: what was gathered of them goes by their names and epoch.
            self._end_span(name)
            if not self._begin(name, topology, line):
                return
        ruled = self._ruled(engine, topology)
        span = self._spans.get(name)
        if span is None:
            self._spans[name] = Span(snapshot, _wall_s(snapshot.time_s), ruled)
            return
        span.add(snapshot)
        # A pass comes a little early or late: half of one is no reason to wait for another.
        slack_s = min(
            0.2 * self._period_s, 0.5 * min(r.timer.period_s for r in self._controller.rules)
        )
        if span.seconds(snapshot) >= self._period_s - slack_s or span.ruled != ruled:
            self._close_span(name, ruled)

    def _line_of_new(self, name: str, topology: Topology) -> records.Topology | None:
        """The line that says what runs, without its epoch; None if it is what ran before."""
        known = self._topologies.get(name)
        if known is not None and known[0] is topology:
            return None
        line = described(topology, self.recorder.node, round(time.time() * 1e3), 0)
        return None if known is not None and same(known[1], line) else line

    def _begin(self, name: str, topology: Topology, line: records.Topology) -> bool:
        """From now on other operators run than before. False: that cannot be told yet, and records
        without it would mean nothing.
        """
        line.epoch = self._epochs.get(name, self._left) + 1
        if not self._put(line):
            self._topologies.pop(name, None)
            return False
        self._epochs[name] = line.epoch
        self._topologies[name] = topology, line
        self._forget(name, {*topology.queries, ""})
        return True

    def _let_go(self, name: str) -> None:
        """An engine is gone, and that is told."""
        self._forget(name, ())
        self._left = max(self._left, self._epochs.pop(name, 0))
        self._topologies.pop(name, None)
        self._failed.pop(name, None)
        self._owners.pop(name, None)
        self._seen.pop(name)

    def _forget(self, name: str, stay: Collection[str]) -> None:
        """What was said of an engine's queries. stay: but of these; "" is the engine itself."""

        def left(engine: str, query: str) -> bool:
            return engine == name and query not in stay

        self._told = {k: v for k, v in self._told.items() if not left(k[1], k[2])}
        self._verdicts = {k: v for k, v in self._verdicts.items() if not left(*k)}
        # Of a query that comes back it is counted on from there, and not all once more.
        hits = self._controller.targets.hits
        self._counted = {k: v for k, v in self._counted.items() if k in hits}

    def _drop(self, name: str) -> None:
        span = self._spans.pop(name, None)
        if span is not None:
            span.end()

    def _end_span(self, name: str) -> None:
        """The last record of what an engine ran, if something was gathered."""
        if name in self._spans:
            with self._apart(name):
                self._close_span(name, ((), ()))
        self._drop(name)

    def _close_span(self, name: str, ruled: tuple[Sequence[str], ...]) -> None:
        span = self._spans[name]
        span.clocked(_wall_s(span.begin_s))
        ruled_s = span.ruled_s
        record, found = span.close(
            self.recorder.node, self._epochs[name], ruled, self._memory(name)
        )
        if not record.passes:
            return
        self._add_effects(name, record, ruled_s)
        self._add_targets(name, record)
        self._put(record)
        topology = self._topologies[name][0]
        number = {query: place for place, query in enumerate(topology.queries)}
        group = np.array([number[o.query] for o in topology.operators], dtype=np.intp)
        for place, rows in verdicts.rows_by(group, len(number)):
            judged = verdicts.judged(found, rows)
            name_of = topology.operators[judged.row].name
            value, query = f"{judged.verdict.word} {name_of}", topology.queries[place]
            # One that lasts for a single record is noise.
            if self._verdicts.get((name, query)) == value:
                self._tell("verdict", name, query, value)
            self._verdicts[name, query] = value
        self._failed.pop(name, None)

    def _add_effects(self, name: str, record: records.Record, ruled_s: float) -> None:
        """How long tuples of each query were in the system lately (`adapt.effect`), but not from
        before its policies were in force."""
        if self._controller.outcomes.begun_s.get(name, -math.inf) < ruled_s:
            return
        known = {e.query: e for e in self._controller.outcomes.found.get(name, ())}
        mine = [known.get(query) for query in self._topologies[name][0].queries]
        if any(found is not None and math.isfinite(found.time_s) for found in mine):
            record.time = [
                round(found.time_s * 1e6) if found and math.isfinite(found.time_s) else None
                for found in mine
            ]
            record.source = [UNKNOWN if found is None else found.source for found in mine]

    def _add_targets(self, name: str, record: records.Record) -> None:
        """What became of the targets of the engine's queries, since the record before."""
        rows = {row["query"]: row for row in targets.rows(self._controller, name)}
        queries = self._topologies[name][0].queries
        if not any(query in rows for query in queries):
            return
        mine = [rows.get(query) for query in queries]
        record.target = [None if row is None else round(row["latency_s"] * 1e6) for row in mine]
        grown = [None if row is None else self._grown(name, row) for row in mine]
        record.told = [None if more is None else more[0] for more in grown]
        record.met = [None if more is None else more[1] for more in grown]

    def _grown(self, name: str, row: Mapping[str, Any]) -> tuple[int, int]:
        """How many tuples of a query with a target were told since the record before; met."""
        now = int(row["tuples"]), int(row["met_tuples"])
        told, met = self._counted.get((name, row["query"]), (0, 0))
        self._counted[name, row["query"]] = now
        return (max(0, now[0] - told), max(0, now[1] - met)) if now[0] >= told else now

    def _memory(self, name: str) -> float:
        engine = self._controller.engines.get(name)
        pid = None if engine is None else engine.target.pid
        group = None if pid is None else psi.group_of(pid)
        pressure = psi.read(psi.path_of("memory", group))
        return float("nan") if pressure is None else pressure.some.avg10_share

    def _ruled(self, engine: Engine, topology: Topology) -> tuple[Sequence[str], ...]:
        """Policy and backend of each query, in order."""
        policies = dict.fromkeys(topology.queries, (NOBODY, ""))
        for rule in self._controller.rules:
            if rule.name in engine.refused or self._controller.observes:
                continue
            for query in self._controller.claims.of(rule, engine.name, topology):
                name = _policy(rule, engine.domain)
                policies[query] = (name, "" if name == NOBODY else rule.backend_of(engine.domain))
        return tuple(p for p, _ in policies.values()), tuple(b for _, b in policies.values())

    def _put(self, line: records.Topology | records.Record | records.Event) -> bool:
        return self.recorder.put(line, self._owners.get(line.engine, ""))

    def _tell(self, what: str, engine: str, about: str, value: str) -> bool:
        """An event, if it says something new. False: it is told once more at the next pass."""
        if self._told.get((what, engine, about), "") == value:
            return True
        event = records.Event(
            node=self.recorder.node,
            t=round(time.time() * 1e3),
            what=what,  # type: ignore[arg-type]
            engine=engine,
            about=about,
            value=value[:1000],
        )
        if not self._put(event):
            return False
        self._told[what, engine, about] = value
        return True


def _wall_s(time_s: float) -> float:
    """Unix time of a moment of the monotonic clock, as far as the clocks of now tell."""
    return time.time() - time.monotonic() + time_s


def _policy(rule: Rule, domain: str) -> str:
    return NOBODY if rule.instead.own_in(domain) else rule.policy_of(domain).name
