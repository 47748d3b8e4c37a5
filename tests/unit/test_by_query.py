"""What `plan`, `status` and the log of `load` say of queries, and why nothing is ordered."""

import asyncio
import io
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from fakes import FakeBackend, FakeEngine, backends, drive
from rich.console import Console

from sched_ctl.adapt.guard import Guard
from sched_ctl.backends import ladder
from sched_ctl.backends.undo import journal as journals
from sched_ctl.backends.undo.records import Adopted, Set
from sched_ctl.cli import look, planned, screen, standing
from sched_ctl.config.settings import Section, Settings
from sched_ctl.controller.loop import Controller
from sched_ctl.drivers.threads import threads_of
from sched_ctl.model.policy import Spacing, form
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import Snapshot
from sched_ctl.service import bottlenecks, by_query, views
from sched_ctl.service.idle import idle


class Uneven(FakeEngine):
    """The operators of the query "heavy" never rest, and use most of the CPU."""

    def __init__(self, **queries: int) -> None:
        provides = frozenset({"tuples_in", "tuples_out", "cpu_time", "queue_size", "idle_time"})
        super().__init__(queries=queries, provides=provides)

    def poll(self, timeout_s: float) -> Snapshot:
        seen = super().poll(timeout_s)
        heavy = np.array([o.query == "heavy" for o in self.topology.operators])
        columns = {
            "cpu_time": np.where(heavy, 0.3, 0.01) * seen.time_s,
            "idle_time": np.where(heavy, 0.0, 0.9) * seen.time_s,
        }
        return replace(seen, columns={**seen.columns, **columns})


class OfPool(FakeBackend):
    name = "pool"


def controller_of(
    engine: FakeEngine,
    policy: str,
    shares: dict[str, float] | None = None,
    backend: type[FakeBackend] = FakeBackend,
) -> Controller:
    section = Section(policy=policy, shares=shares)
    settings = Settings(policy=(section,), period=0.02, calm_period=0, window=0.2, discover=60)
    return Controller(settings, FakeEngine.kind(engine), backends(backend()))


def status_of(
    engine: FakeEngine,
    policy: str,
    ordered: str,
    shares: dict[str, float] | None = None,
    backend: type[FakeBackend] = FakeBackend,
) -> dict[str, Any]:
    """A controller's status as soon as it says that of some query; what JSON makes of it."""
    controller = controller_of(engine, policy, shares, backend)
    seen: list[dict[str, Any]] = []

    async def script() -> None:
        def told() -> bool:
            seen.append(views.status(controller))
            return ordered in [row["goes"] for row in seen[-1]["queries"]]

        while not told():  # `drive` has a deadline
            await asyncio.sleep(0.005)
        seen.append({"lines": list(by_query.told(controller, controller.rules[0], 1))})

    drive(controller, script)
    found = msgspec.json.decode(msgspec.json.encode(seen[-2]))
    return dict(found) | {"lines": seen[-1]["lines"]}


class Restarted(Uneven):
    """Of "light" nothing is known once it is lost, as of a job that just came back."""

    lost = False

    def poll(self, timeout_s: float) -> Snapshot:
        seen = super().poll(timeout_s)
        new = np.array([o.query == "light" for o in self.topology.operators])
        new &= self.lost
        known = {name: np.where(new, np.nan, column) for name, column in seen.columns.items()}
        return replace(seen, columns=known)


def test_a_query_that_tells_nothing_makes_no_other_an_ordinary_one() -> None:
    engine = Restarted(light=2, heavy=3)
    controller = controller_of(engine, "light-first")

    async def until(light: str, heavy: str) -> None:
        while [(row["query"], row["why"]) for row in views.status(controller)["queries"]] != [
            ("light", light),
            ("heavy", heavy),
        ]:  # `drive` has a deadline
            await asyncio.sleep(0.005)

    async def script() -> None:
        await until("light, 0.043 of the mean CPU", "heavy, 2 of the mean CPU")
        engine.lost = True
        await until("light", "heavy")

    drive(controller, script)


def test_the_heavy_one_goes_last_and_the_words_say_by_how_much() -> None:
    status = status_of(Uneven(light=2, heavy=3, other=1), "light-first", "last")
    first, second, last = status["queries"]
    assert {first["query"], second["query"]} == {"light", "other"}
    assert (last["query"], last["goes"], last["threads"]) == ("heavy", "last", 3)
    assert last["why"] == "heavy, 2.9 of the mean CPU"
    assert first["why"].startswith("light, 0.0")
    assert status["lines"][0].endswith("of the mean CPU: goes first")
    assert "2 more queries" in status["lines"][1]


def test_a_single_query_is_as_under_the_os() -> None:
    status = status_of(Uneven(heavy=2), "light-first", "as under the OS")
    assert [row["why"] for row in status["queries"]] == ["a single query"]
    status["pressure"]["machine"] = {}
    assert idle(status) == "the order is the OS's: a single query"


@pytest.mark.parametrize(
    ("policy", "queries", "why"),
    [
        ("light-first", {"heavy": 2}, "a single query"),
        ("light-first", {"light": 2, "other": 2}, "no query is heavy"),
        ("constant", {"light": 2, "other": 2}, "all are equal, or nothing is known yet"),
    ],
)
def test_the_pool_orders_also_who_is_equal(policy: str, queries: dict[str, int], why: str) -> None:
    """The OS has no say in which operator a worker takes: `engine/urgency.h`."""
    status = status_of(Uneven(**queries), policy, "in turn", backend=OfPool)
    assert {row["why"] for row in status["queries"]} == {f"{why}, so the oldest tuple first"}
    status["pressure"]["machine"] = {}
    assert idle(status) is None
    status["policies"][0] |= {"own": True, "phase": "a phase of a race"}
    assert idle(status) == "the engine's own order is in force: a phase of a race"
    status["policies"][0] |= {"backend": "nice"}
    assert idle(status) == "the OS's own order is in force: a phase of a race"


def test_queries_that_go_by_shares_are_not_as_under_the_os() -> None:
    status = status_of(FakeEngine(queries={"a": 1, "b": 1}), "constant", "in turn", {"a": 4.0})
    told = {row["query"]: row["why"] for row in status["queries"]}
    assert told == {"a": "by its share, 4", "b": "by its share, 1"}
    status["pressure"]["machine"] = {}
    assert idle(status) is None


def test_queries_and_operators_are_told_while_the_os_has_its_phase() -> None:
    controller = controller_of(Uneven(light=2, heavy=3), "qs")
    [rule] = controller.rules
    rule.instead.guard = Guard(60, 30)
    rule.instead.guard._begin(time.monotonic(), own=True)
    seen: list[tuple[dict[str, Any], dict[str, Any]]] = []

    async def script() -> None:
        while not seen or not seen[-1][0]["queries"]:  # `drive` has a deadline
            await asyncio.sleep(0.005)
            status = views.status(controller)
            seen.append(
                (status, bottlenecks.screen(controller, [*bottlenecks.assessed(controller)]))
            )

    drive(controller, script)
    status, shown = seen[-1]
    assert not rule.threads
    told = {row["query"]: (row["goes"], row["why"], row["threads"]) for row in status["queries"]}
    assert told["heavy"] == ("as under the OS", "a phase of the guard", 3)
    assert {row["operator"].partition("/")[0] for row in shown["rows"]} == {"light", "heavy"}
    assert {row["place"] for row in shown["rows"]} == {None}
    console = Console(width=80, file=io.StringIO())
    with console.capture() as captured:
        console.print(screen.draw(shown, screen.View(), 80, 24))
    assert "the OS's own order (a phase of the guard)" in captured.get()
    assert "5 operators" in captured.get()


def test_another_policy_names_the_operator_that_decides() -> None:
    status = status_of(Uneven(light=2, heavy=2), "qs", "in turn")
    best = {row["query"]: row["why"] for row in status["queries"]}
    assert best["heavy"] == "place 1.00 at most, of op1"  # whose queue is longest


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"queries": []}, "flink:1, flink:1 answers, and runs no query"),
        ({"only_looks": True}, "nothing is enforced"),
        (
            {"policies": [{"own": True, "phase": "a phase of a race", "backend": "nice"}]},
            "the OS's own order is in force: a phase of a race",
        ),
        ({"pressure": {"machine": {"cpu": {"some": 0.001}}}}, "nothing waits for a CPU (in 0.1%"),
        ({"goes": "first"}, None),
        ({"why": "no query is heavy"}, "the order is the OS's: no query is heavy"),
        ({"user": "bob"}, "engines of alice, bob are ordered apart, and each has a single query"),
    ],
)
def test_why_there_is_nothing_to_gain(changes: dict[str, Any], said: str | None) -> None:
    changes = dict(changes)
    engine = {"engine": "flink:1", "state": "ok", "queries": ["q"], "threads": 1, "user": "alice"}
    if changes.get("queries") == []:
        engine["queries"] = []
    rows = [
        {
            "goes": changes.pop("goes", "as under the OS"),
            "why": changes.pop("why", "a single query"),
        }
    ]
    engines = [engine, engine | {"user": changes.pop("user", "alice")}]
    pressure = {"machine": {"cpu": {"some": 0.5}}}
    status = {"engines": engines, "queries": rows, "policies": [], "pressure": pressure}
    found = idle(status | changes)
    if changes.get("policies"):  # nobody is in its schedule meanwhile
        assert idle(status | changes | {"queries": []}) == found
    assert found is None if said is None else str(found).startswith(said)


def test_a_plan_beside_a_controller_is_of_what_was_before_it(tmp_path: Path) -> None:
    [thread] = threads_of(os.getpid())[:1]
    own = os.getpriority(os.PRIO_PROCESS, thread.tid)
    before = min(19, own + 4)
    journal = journals.Journal(tmp_path / "journal")
    record = Adopted(
        pid=thread.pid, tid=thread.tid, start_time=thread.start_time, nice=before, policy=0
    )
    journal.write([record, Set([(thread.tid, thread.start_time, own)])])
    try:
        with (tmp_path / "journal").open("ab") as file:
            file.write(b"half a li")
        had = journals.had(tmp_path / "journal")
    finally:
        journal.close()
    assert had == {(thread.tid, thread.start_time): before}
    assert journals.had(tmp_path / "none") == {}
    schedule = Schedule(
        *("s", "p", Spacing.LOGARITHMIC, (thread,), ("q/a",), form(1, static=np.ones(1))),
        *(np.zeros(1), np.zeros(1)),
    )
    assert ladder.planned("nice", {}, schedule, had)["nice"] == [before]
    assert ladder.planned("nice", {}, schedule)["nice"] == [own]


def test_what_load_would_change_is_told() -> None:
    rows = [{"now": {"nice": 0}, "sets": {"nice": nice}} for nice in (0, 3)]
    plan = {"name": "auto", "policy": "hr", "backend": "nice", "threads": rows}
    status: dict[str, Any] = {
        "pid": 7,
        "policies": [{"name": "auto", "policy": "qs", "backend": "nice"}],
    }
    assert "nothing is in force" in planned.changes([plan], None)
    told = planned.changes([plan], status)
    assert "pid 7: auto: qs by nice" in told and "instead: auto: hr by nice" in told
    assert told.endswith("1 of 2 threads would have another nice value.")
    own = status | {"policies": [status["policies"][0] | {"own": True, "phase": "now", "race": {}}]}
    assert "auto: the OS's own order (now)" in planned.changes([plan], own)
    raced = planned.changes(
        [plan], {"pid": 7, "policies": [own["policies"][0] | {"race": {"a": 1}}]}
    )
    assert "A race decides of auto" in raced and "instead" not in raced
    same = plan | {"policy": "qs", "threads": rows[:1]}
    assert planned.changes([same], status).endswith("Nothing would change.")
    moved = plan | {"policy": "qs", "threads": rows[1:] * 2}  # to keep an engine's weight
    assert "order would be the same, 3 nice levels" in planned.changes([moved], status)


def test_one_that_only_looks_has_nothing_in_force(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status = {"pid": 7, "only_looks": True, "policies": []}
    monkeypatch.setattr("sched_ctl.service.socket.request", lambda *_, **__: status)
    assert look._in_force(tmp_path) is None
    status["only_looks"] = False
    assert look._in_force(tmp_path) == status


def test_a_plan_tells_queries_of_one_name_apart(capsys: pytest.CaptureFixture[str]) -> None:
    engines = {"flink:1": (-3, 0), "flink:2": (2, 6)}
    rule: dict[str, Any] = {"name": "auto", "policy": "hr", "backend": "nice", "chosen": None}
    rule["queries"] = [
        {"engine": engine, "query": "orders", "goes": "first", "why": "x", "threads": 2}
        for engine in engines
    ]
    rule["threads"] = [
        {"engine": engine, "query": "orders", "sets": {"nice": nice}}
        for engine, values in engines.items()
        for nice in values
    ]
    planned.show_plan(rule)
    told = [line for line in capsys.readouterr().out.splitlines() if "orders" in line]
    assert "-3 to 0" in told[0] and "2 to 6" in told[1]


def test_status_fits_a_screen_with_forty_queries_of_long_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    engine = Uneven(**{f"query{'x' * 300}{at}": 1 for at in range(40)})
    status = status_of(engine, "qs", "in turn")
    standing.summary(status, everything=False)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 24 and max(map(len, lines)) <= 80
    assert any("28 more queries" in line for line in lines)


def test_status_has_the_median_beside_the_mean_and_p99(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    status = status_of(Uneven(alarms=1, bulk=1), "qs", "in turn")
    effect = {"tuples_in": 12_345.6, "time_s": 0.0405, "p50_s": 0.0021, "p99_s": 1.234}
    status["effects"] = [
        {"engine": row["engine"], "query": row["query"], **effect} for row in status["queries"]
    ]
    shown = {"query": "alarms", "latency_s": 0.05, "share": 0.99, "met": 0.5, "met_hour": 0.6}
    shown |= {"engine": "fake:a", "p50_s": 0.0021, "p99_s": 1.234, "margin_s": -1.184}
    status["targets"] = [shown | {"standing": None, "in_the_way": None}]
    standing.summary(status, everything=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    [of_queries, of_targets] = [" ".join(line.split()) for line in lines if "p99" in line]
    assert "in/s mean ms p50 ms p99 ms" in of_queries and "p50 p99 margin" in of_targets
    told = [" ".join(line.split()) for line in lines if line.split()[:1] == ["alarms"]]
    assert "40.5 2.1 1234" in told[0] and "2.1 ms 1.23 s -1.18 s" in told[1]


def test_top_says_who_goes_last_and_why_or_that_nothing_waits() -> None:
    order = [
        {"query": "alarms", "goes": "first", "why": "light"},
        {"query": "archive", "goes": "last", "why": "heavy, 2.9 of the mean CPU"},
    ]
    answer: dict[str, Any] = {"rows": [], "policies": [], "targets": [], "queries": []}
    answer |= {"pressure": {}, "order": order, "idle": None}
    console = Console(width=80, file=io.StringIO())

    def drawn() -> str:
        with console.capture() as captured:
            console.print(screen.draw(answer, screen.View(), 80, 24))
        return captured.get()

    assert "first: alarms\nlast: archive (heavy, 2.9 of the mean CPU)\n" in drawn()
    answer["effects"] = [
        {"query": "alarms", "time_s": 0.04, "p50_s": 0.002},
        {"query": "archive", "time_s": 3.0, "p50_s": None},
    ]
    assert "system: alarms 40 ms (half within 2), archive 3000 ms\n" in drawn()
    answer["idle"] = "nothing waits for a CPU"
    assert "nothing waits for a CPU" in drawn() and "last:" not in drawn()
