"""Recorded times under other policies: which records count, and what is told of them."""

import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from plans import plan
from sched_ctl import cli
from sched_ctl.backends.threads.nice import planned
from sched_ctl.decide.decision import decide
from sched_ctl.errors import UserError
from sched_ctl.metrics.catalogue import MissingMetric, resolve
from sched_ctl.model.options import NiceOptions
from sched_ctl.plugins import registry
from sched_ctl.telemetry import records, replay
from sched_ctl.telemetry.span import described
from sched_ctl.telemetry.store import Store

TOPOLOGY = plan({"q": ["a"], "r": ["b"]})
BEGIN_MS = 1_800_000_000_000
HR, FCFS, CONSTANT = (registry.policy(name) for name in ("hr", "fcfs", "constant"))


def line_of(engine: str = "lab:1") -> records.Topology:
    return msgspec.structs.replace(described(TOPOLOGY, "n", BEGIN_MS, 1), engine=engine)


def record(place: int, **columns: Any) -> records.Record:
    """Of 5 s, the so-manieth. b costs a hundred times as much as a."""
    told: dict[str, Any] = {"tuples_in": [100, 100], "tuples_out": [100, 100]}
    told |= {"cpu": [1000, 100_000], "policy": ["hr", "hr"]}
    told |= {"node": "n", "engine": "lab:1", "epoch": 1, "t": BEGIN_MS + 5000 * place, "d": 5000}
    return records.Record(**(told | columns))


NOTHING: dict[str, Any] = dict.fromkeys(("tuples_in", "tuples_out", "cpu"))


def folder_of(folder: Path, *lines: records.Line) -> Path:
    folder.mkdir(exist_ok=True)
    store = Store(folder, "n", 1 << 20)
    store.open(BEGIN_MS, 0)
    store.append(map(records.encode, lines))
    store.close()
    return folder


def run(*arguments: object) -> str:
    return CliRunner().invoke(cli.make_app("replay"), ["replay", *map(str, arguments)]).stdout


def test_records_that_have_not_enough_are_left_out() -> None:
    """As that of an engine that ran nothing yet, or has told no counters yet."""
    empty = records.Topology(
        node="n", t=BEGIN_MS, engine="lab:2", epoch=1, queries=[], ops=[], query_of=[]
    )
    lines: list[records.Line] = [line_of(), record(0, **NOTHING), record(1), record(2)]
    lines += [empty, record(3, engine="lab:2", tuples_in=[], tuples_out=[], cpu=[])]
    missing: dict[str, replay.Lack] = {}
    steps = list(replay.replay(lines, [HR, CONSTANT], missing=missing))
    assert [sorted(step.place) for step in steps] == [["constant"], *2 * [["constant", "hr"]]]
    assert {name: lack.records for name, lack in missing.items()} == {"hr": 1}
    with pytest.raises(MissingMetric, match="policy hr needs"):
        list(replay.replay(lines[:2], [HR]))


def test_nice_values_are_those_that_load_sets() -> None:
    """Weight is kept, and who has nothing to say stays where it is."""
    [step] = replay.replay([line_of(), record(0)], [HR, CONSTANT])
    assert step.nice["hr"].tolist() == [-3, 7]
    assert step.nice["constant"].tolist() == [0, 0]
    [(_, window)] = replay.windows([line_of(), record(0)], 5.0)
    resolution = resolve(HR.needs, window.now.columns, policy="hr", engine="lab:1")
    schedule = decide("hr", HR, {"lab:1": window}, {"lab:1": resolution})
    assert planned(schedule, NiceOptions())["nice"] == step.nice["hr"].tolist()


@pytest.mark.parametrize("window_s", [5.0, 60.0, 600.0])
def test_a_window_is_as_long_as_it_is_to_be(window_s: float) -> None:
    lines: list[records.Line] = [line_of(), *(record(place) for place in range(200))]
    *_, (_, last) = replay.windows(lines, window_s)
    assert last.seconds == pytest.approx(window_s, rel=0.01)
    assert last.rate("tuples_in").tolist() == pytest.approx([20.0, 20.0])


def test_a_clock_that_was_set_back_begins_a_window() -> None:
    lines: list[records.Line] = [line_of(), *(record(place) for place in (100, 101, 0, 1))]
    found = [window for _, window in replay.windows(lines, 600.0)]
    assert [window.seconds for window in found] == pytest.approx([5.0, 10.0, 5.0, 10.0])
    assert found[-1].gain("tuples_in").tolist() == [200.0, 200.0]


def test_a_summary_is_of_all_steps() -> None:
    lines: list[records.Line] = [
        line_of(),
        *(record(place, cpu=[1000, 10**place]) for place in range(2, 7)),
    ]
    steps = list(replay.replay(lines, [HR, FCFS]))
    summary = replay.Summary(["hr", "fcfs"])
    for step in steps:
        summary.add(step)
    assert (summary.steps, summary.from_ms) == (5, BEGIN_MS + 15_000)
    for row, label in enumerate(steps[0].labels):
        values, found = [step.nice["hr"][row] for step in steps], summary.nice["lab:1", label]["hr"]
        assert (found.least, found.most) == (min(values), max(values))
        assert found.mean == pytest.approx(np.mean(values))
    assert summary.tried == {"hr", "fcfs"}


def test_no_step_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[records.Line] = [line_of(), *(record(place) for place in range(50))]
    folder_of(tmp_path, *lines)
    steps_of, alive, most = replay.replay, weakref.WeakSet[replay.Step](), [0]

    def watched(*arguments: Any) -> Iterator[replay.Step]:
        for step in steps_of(*arguments):
            alive.add(step)
            most[0] = max(most[0], len(alive))
            yield step

    monkeypatch.setattr(replay, "replay", watched)
    assert "50 records over 245 s; in force: hr." in run(tmp_path)
    assert most[0] <= 2


def test_what_is_left_out_is_told(tmp_path: Path) -> None:
    flags = ("-p", "constant", "-p", "hr")
    some = folder_of(tmp_path / "some", line_of(), record(0, **NOTHING), record(1), record(2))
    told = json.loads(run(some, *flags, "--json"))
    assert told["records"] == len(told["steps"]) == 3
    rows = {row["operator"]: row["nice"] for row in told["operators"]}
    assert rows["q/a"]["hr"] == {"mean": -3.0, "least": -3, "most": -3}
    assert any("left out 1 times: policy hr needs" in problem for problem in told["problems"])
    none = folder_of(tmp_path / "none", line_of(), record(0, **NOTHING), record(1, **NOTHING))
    told = json.loads(run(none, *flags, "--json"))
    assert told["operators"][0]["nice"]["hr"] == {"mean": None, "least": None, "most": None}
    page = " ".join(run(none, *flags).split())
    assert "left out 2 times: policy hr needs" in page
    assert "hr puts nothing" not in page


def test_a_file_that_is_closed_meanwhile_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_of(tmp_path, line_of(), record(0))
    [final] = tmp_path.iterdir()
    part = final.with_name(final.name + ".part")
    deleted = final.with_name("n-20200101T000000Z-1.jsonl.gz")
    monkeypatch.setattr(Path, "iterdir", lambda _: iter([part, deleted]))
    told = json.loads(run(tmp_path, "--json"))
    assert told["records"] == 1
    assert told["problems"] == [f"{deleted}: is not there any more"]


@pytest.mark.parametrize("call", ["is_dir", "iterdir"])
def test_a_folder_of_somebody_else(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, call, refuse)
    found = CliRunner().invoke(cli.make_app("replay"), ["replay", str(tmp_path)]).exception
    assert isinstance(found, UserError)
    assert found.message == f"cannot read {tmp_path}: Permission denied"
    assert "root" in str(found.hint)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    found = CliRunner().invoke(cli.make_app("replay"), ["replay", str(tmp_path / "no")]).exception
    assert isinstance(found, UserError) and "No such file" in found.message
