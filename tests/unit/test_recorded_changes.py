"""What is recorded when engines, queries, and what can be written to change."""

import functools
import logging
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakes import QUICK, chains
from msgspec.structs import replace

from sched_ctl.adapt.hits import Hits
from sched_ctl.controller import targets
from sched_ctl.controller.loop import Controller
from sched_ctl.errors import UserError
from sched_ctl.model.topology import Snapshot, Thread, Topology
from sched_ctl.service import views
from sched_ctl.service.recording import Recording, start
from sched_ctl.telemetry import reading, records
from sched_ctl.telemetry.recorder import MOST_WAITING, Recorder
from sched_ctl.telemetry.store import Store
from support import wait_until

SOON_S = 60.0


def of(name: str, queries: Mapping[str, int]) -> Topology:
    return chains(name, queries, lambda row: (Thread(1, 100 + row, 7),))


class Recorded:
    """A recording of engines that answer what a test says; a record a pass."""

    def __init__(self, folder: Path, period_s: float = 0.0, rotate_s: float = 3600.0) -> None:
        self.controller = Controller(QUICK, {}, None)
        self.engines: Any = self.controller.engines
        self.recorder = Recorder(folder, "n", limit_bytes=1 << 20, rotate_s=rotate_s)
        self.recording = Recording(self.controller, self.recorder, period_s)
        self.put: list[records.Line] = []
        self.owners: list[str] = []  # of those lines
        self.domain = ""  # of all engines
        self._time_s = 0.0

    def only_put(self, monkeypatch: pytest.MonkeyPatch) -> "Recorded":
        def put(line: records.Line, owner: str = "") -> bool:
            self.put.append(line)
            self.owners.append(owner)
            return True

        monkeypatch.setattr(self.recorder, "put", put)
        return self

    def passes(self, *topologies: Topology) -> None:
        """One of each; engines of which none speaks have gone."""
        self._time_s += 1.0
        self.engines.clear()
        for topology in topologies:
            n = len(topology.operators)
            columns = {"tuples_in": np.full(n, 9 * self._time_s), "queue_size": np.ones(n)}
            snapshot = Snapshot(topology, self._time_s, columns)
            self.controller.outcomes.note(snapshot, dict)
            self.engines[topology.engine] = SimpleNamespace(
                name=topology.engine,
                state="ok",
                problem=None,
                refused={},
                domain=self.domain,
                target=SimpleNamespace(pid=None),
                snapshot=snapshot,
            )
        self.recording.note()

    def records_of(self, engine: str = "fake:a") -> list[records.Record]:
        found = [line for line in self.put if isinstance(line, records.Record)]
        return [record for record in found if record.engine == engine]

    def events(self, what: str) -> list[records.Event]:
        found = [line for line in self.put if isinstance(line, records.Event)]
        return [event for event in found if event.what == what]

    @property
    def problems(self) -> list[str]:
        return views.problems(self.controller)


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    made = Recorded(tmp_path / "telemetry")
    yield made
    made.engines.clear()
    made.recording.close()
    made.controller.close()


# --- other operators than before ---


@pytest.mark.parametrize("after", [{"q": 4}, {"q": 2}, {"r": 3}])
def test_what_ran_before_is_recorded_as_what_it_was(
    after: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Recorded(tmp_path, 3600.0).only_put(monkeypatch)
    first, second = of("fake:a", {"q": 3}), of("fake:a", after)
    for topology in (first, first, second, second):
        made.passes(topology)
    made.recording.close()
    told = [line for line in made.put if not isinstance(line, records.Event)]
    assert [type(line).__name__ for line in told] == ["Topology", "Record"] * 2
    assert [line.epoch for line in told] == [1, 1, 2, 2]  # type: ignore[union-attr]
    for line, record in ((told[0], told[1]), (told[2], told[3])):
        assert isinstance(line, records.Topology) and isinstance(record, records.Record)
        assert record.q is not None and len(record.q) == len(line.ops)
    assert not made.problems


def test_no_policy_is_recorded_with_what_came_of_the_one_before(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tuples were in the system for so long over five passes each, whatever was switched."""
    recorded.only_put(monkeypatch)
    topology = of("fake:a", {"q": 1})
    for policy, passes in (("hr", 9), ("os", 8)):
        ruled = (policy,), ("nice",)
        monkeypatch.setattr(recorded.recording, "_ruled", lambda *_, ruled=ruled: ruled)
        for _ in range(passes):
            recorded.passes(topology)
    told = [(record.policy[0], record.time is not None) for record in recorded.records_of()]
    assert told == [
        *[("hr", False)] * 4,
        *[("hr", True)] * 5,
        *[("os", False)] * 5,
        *[("os", True)] * 2,
    ]


def test_a_fault_at_one_engine_costs_a_record_of_that_one(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorded.only_put(monkeypatch)
    broken, rows = True, targets.rows

    def breaking(controller: Controller, only: str | None = None) -> list[dict[str, Any]]:
        if broken and only == "fake:a":
            raise ZeroDivisionError("as if")
        return rows(controller, only)

    monkeypatch.setattr(targets, "rows", breaking)
    both = of("fake:a", {"q": 1}), of("fake:b", {"q": 1})
    with caplog.at_level(logging.ERROR):
        for _ in range(9):
            recorded.passes(*both)
    assert not recorded.records_of("fake:a") and len(recorded.records_of("fake:b")) == 8
    assert any("fake:a" in problem and "as if" in problem for problem in recorded.problems)
    assert len(caplog.records) == 1
    broken = False
    for _ in range(3):
        recorded.passes(*both)
    assert len(recorded.records_of("fake:a")) >= 2 and not recorded.problems


# --- what cannot be written ---


@pytest.mark.needs("root")
def test_nothing_is_recorded_where_another_user_can_put_files(tmp_path: Path) -> None:
    """He could remove ours, or add one whose number leaves none for those that follow."""
    (tmp_path / "theirs" / "below").mkdir(parents=True)
    (tmp_path / "everybodys").mkdir()
    os.chown(tmp_path / "theirs", 20001, 20001)
    (tmp_path / "everybodys").chmod(0o1777)
    (tmp_path / "file").touch()

    def begun(folder: Path) -> None:
        controller = Controller(replace(QUICK, record=str(folder)), {}, None)
        try:
            recording = start(controller)
            assert recording is not None
            recording.close()
        finally:
            controller.close()

    for name, why in (
        ("theirs", "belongs to user 20001"),
        ("theirs/below", "belongs to user 20001"),
        ("everybodys", "by everybody"),
        ("file/below", "cannot record into"),
    ):
        with pytest.raises(UserError, match=why):
            begun(tmp_path / name)
    begun(tmp_path / "everybodys" / "ours")
    assert (tmp_path / "everybodys" / "ours").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_is_removed_shows_as_a_problem(tmp_path: Path) -> None:
    """As does any disk that takes nothing; until it does."""
    query, folder = of("fake:a", {"q": 1}), tmp_path / "telemetry"
    recorded = Recorded(folder, rotate_s=0.0)  # each line is in a file of its own
    recorded.passes(query)
    wait_until(lambda: recorded.recorder.written > 2, SOON_S)
    assert not recorded.problems

    def removed() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    wait_until(removed, SOON_S)
    recorded.passes(query)
    wait_until(lambda: recorded.recorder.problem, SOON_S)
    recorded.passes(query)
    assert any(f"cannot record into {folder}" in problem for problem in recorded.problems)
    recorded.engines.clear()
    assert views.status(recorded.controller)["problems"] == recorded.problems
    folder.mkdir()
    recorded.passes(query)
    wait_until(lambda: recorded.recorder.problem is None, SOON_S)
    recorded.passes(query)
    assert not recorded.problems
    recorded.recording.close()


def test_a_writer_that_has_died_shows_as_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(_: Store) -> int:
        raise RuntimeError("as if")

    monkeypatch.setattr(Store, "recover", dies)
    made = Recorded(tmp_path)
    wait_until(lambda: made.recorder.problem, SOON_S)
    made.passes(of("fake:a", {"q": 1}))
    assert any("recording has ended" in problem for problem in made.problems)
    made.recording.close()


def test_a_disk_that_does_not_answer_shows_as_a_problem(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    append = Store.append

    def slow(store: Store, *arguments: Any) -> None:
        answers.wait(SOON_S)
        append(store, *arguments)

    monkeypatch.setattr(Store, "append", slow)
    for number in range(MOST_WAITING + 2):
        recorded.recorder.put(records.Event(node="n", t=number, what="error"))
    recorded.passes(of("fake:a", {"q": 1}))
    assert any("does not answer" in problem for problem in recorded.problems)
    answers.set()
    wait_until(lambda: recorded.recorder.problem is None, SOON_S)


def test_what_could_not_be_told_of_an_engine_is_told_as_soon_as_the_disk_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records without their topology line would mean nothing, and one that is gone would stay."""
    answers = threading.Event()
    append = Store.append

    def slow(store: Store, *arguments: Any) -> None:
        answers.wait(SOON_S)
        append(store, *arguments)

    monkeypatch.setattr(Store, "append", slow)
    recorded = Recorded(tmp_path)
    before, after, gone = of("fake:a", {"q": 1}), of("fake:a", {"q": 2}), of("fake:b", {"q": 1})
    for _ in range(2):
        recorded.passes(before, gone)
    for number in range(MOST_WAITING + 2):
        recorded.recorder.put(records.Event(node="n", t=number, what="error"))
    for _ in range(3):
        recorded.passes(after)
    answers.set()
    wait_until(lambda: recorded.recorder.problem is None, SOON_S)
    for _ in range(4):
        recorded.passes(after)
    recorded.recording.close()
    told = [line for path in sorted(tmp_path.glob("*.gz")) for line in reading.read(path)]
    lines = [line[1] for line in told if not isinstance(line, reading.Bad)]
    sizes: dict[int, int] = {}
    heard = []
    for line in lines:
        if isinstance(line, records.Topology) and line.engine == "fake:a":
            sizes[line.epoch] = len(line.ops)
        elif isinstance(line, records.Record) and line.engine == "fake:a":
            assert line.q is not None and len(line.q) == sizes[line.epoch]
            heard.append(len(line.q))
    assert heard[-3:] == [2, 2, 2]
    events = [line for line in lines if isinstance(line, records.Event)]
    assert [event.engine for event in events if event.value == "gone"] == ["fake:b"]


# --- what is kept in memory ---


def kept(recording: Recording) -> int:
    """Entries of all tables."""
    return sum(len(table) for table in vars(recording).values() if isinstance(table, dict))


def test_nothing_is_kept_of_engines_that_are_gone(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded.only_put(monkeypatch)
    recorded.passes()
    before = kept(recorded.recording)
    for number in range(20):
        for _ in range(4):
            recorded.passes(of(f"fake:{number}", {"q": 2}))
    recorded.passes()
    assert kept(recorded.recording) == before
    gone = [event.engine for event in recorded.events("engine") if event.value == "gone"]
    assert gone == [f"fake:{number}" for number in range(20)]
    recorded.passes(of("fake:0", {"r": 1}))
    lines = [line for line in recorded.put if isinstance(line, records.Topology)]
    first, again = (line.epoch for line in lines if line.engine == "fake:0")
    assert again > first  # no record can be taken for one of before


def test_nothing_is_kept_of_queries_that_ended(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded.only_put(monkeypatch)
    sizes = []
    for number in range(20):
        for _ in range(4):
            recorded.passes(of("fake:a", {f"job{number}": 2}))
        sizes.append(kept(recorded.recording))
    assert len(set(sizes)) == 1
    told = {event.about for event in recorded.events("verdict")}
    assert told == {f"job{number}" for number in range(20)}


def told_rows(counts: Mapping[str, int], controller: Controller, only: str) -> list[dict[str, Any]]:
    snapshot = controller.engines[only].snapshot
    assert snapshot is not None
    return [
        {"query": query, "latency_s": 1.0, "tuples": counts[query], "met_tuples": counts[query] / 2}
        for query in snapshot.topology.queries
    ]


def test_tuples_of_a_query_that_comes_back_count_once(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or of an engine that does: its hits of the last hour stay with the controller."""
    recorded.only_put(monkeypatch)
    counts = {"q": 100, "r": 10}
    monkeypatch.setattr(targets, "rows", functools.partial(told_rows, counts))
    recorded.controller.targets.hits.update({("fake:a", query): Hits() for query in counts})
    both, other = of("fake:a", {"q": 1, "r": 1}), of("fake:a", {"r": 1})
    for topology in (both, both, other, other):
        recorded.passes(topology)
    counts["q"] = 130
    for topology in (both, both):
        recorded.passes(topology)
    recorded.passes()
    counts["q"] = 150
    for topology in (both, both):
        recorded.passes(topology)
    told = [(record.told, record.met) for record in recorded.records_of() if record.told]
    assert told == [([100, 10], [50, 5]), ([0], [0]), ([30, 0], [15, 0]), ([20, 0], [10, 0])]


def test_what_an_engine_says_is_its_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(tmp_path).only_put(monkeypatch)
    recorded.domain = "1000"
    for topologies in ([of("fake:a", {"q": 2})], [of("fake:a", {"q": 3})], []):
        recorded.passes(*topologies)
        recorded.passes(*topologies)
    of_engine = [
        owner
        for line, owner in zip(recorded.put, recorded.owners, strict=True)
        if not isinstance(line, records.Start) and line.engine
    ]
    assert len(of_engine) >= 6 and set(of_engine) == {"1000"}
