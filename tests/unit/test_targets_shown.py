"""What became of targets: counted by the minute, and shown wherever somebody looks."""

import asyncio
import gzip
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from fakes import FakeEngine, of_user
from numpy.testing import assert_allclose

from sched_ctl import show
from sched_ctl.adapt import hits as module
from sched_ctl.adapt.hits import IDLE_S, STUCK_S, Hits, counted, share, silent
from sched_ctl.cli import targets as words
from sched_ctl.config.settings import Section, Settings
from sched_ctl.controller import targets
from sched_ctl.controller.loop import Controller
from sched_ctl.metrics.feasibility import Judgement, Standing
from sched_ctl.model.targets import Target
from sched_ctl.model.topology import Latencies, Snapshot
from sched_ctl.service import bottlenecks, recording, views

NAN = float("nan")
LOW_S = np.array([0.0, 0.01, 0.1])  # buckets: below 10 ms, below 100 ms, above
STUCK = {"came": False, "stuck": True}
STEP_S = 6.0  # of an engine's clock from one answer to the next


class Counting(FakeEngine):
    """Counts latencies: of 100 tuples a query in each step, so many in each bucket."""

    def __init__(self, queries: Mapping[str, list[float]]) -> None:
        super().__init__("a", dict.fromkeys(queries, 1))
        self.each = np.array(list(queries.values()))
        self.began_s = time.monotonic()

    def poll(self, timeout_s: float) -> Snapshot:
        told = super().poll(timeout_s)
        n = len(self.each)
        counts = self.each * self.polls
        columns = {
            "tuples_in": np.full(n, 100.0 * self.polls),
            "tuples_out": np.full(n, 100.0 * self.polls),
            "cpu_time": np.arange(1.0, n + 1) * 0.6 * self.polls,
            "run_delay": np.full(n, 2.0 * self.polls),
            "queue_size": np.ones(n),
        }
        latencies = Latencies(
            np.arange(n), counts.sum(axis=1), counts @ np.array([0.005, 0.05, 0.5]), LOW_S, counts
        )
        now_s = self.began_s + STEP_S * self.polls
        return Snapshot(told.topology, now_s, columns, latencies=latencies)


def target(pattern: str, latency: str, **more: float) -> Target:
    return Target(queries=(pattern,), latency=latency, **more)


def after(passes: int, engine: FakeEngine, look: Any, *stated: Target, policy: str = "auto") -> Any:
    """What `look` finds in a controller after some passes."""

    async def run() -> Any:
        # Half a period is how long it waits for an answer, also on a busy machine
        section = Section(policy=policy)
        settings = Settings(policy=(section,), target=stated, period=20.0, poll_timeout=10.0)
        controller = Controller(settings, FakeEngine.kind(engine), None)
        try:
            await controller.start()
            for _ in range(passes):
                await controller.step(controller.rules)
            return look(controller)
        finally:
            controller.close()

    return asyncio.run(run())


def pays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's engine is asked and counted in each pass, though they follow each other at once."""
    for where in ("engines.engine", "controller.loop"):
        monkeypatch.setattr(f"sched_ctl.{where}.CPU_SHARE", 1e9)


ALARM, BULK = [90.0, 9.0, 1.0], [0.0, 20.0, 80.0]


def test_hits_are_of_an_hour() -> None:
    hits = Hits()
    for minute in range(90):
        # All are late until the minute 40, and none after it.
        hits = counted(hits, 60.0 * minute + 5, 100, float(minute >= 40))
    assert (hits.tuples, hits.met, hits.now) == (9000, 5000, 1)
    assert len(hits.minutes) <= 62
    assert_allclose(share(hits, 60.0 * 89 + 50), 50 / 61)
    assert share(hits, 60.0 * 120) == 1
    assert np.isnan(share(hits, 60.0 * 300))
    assert counted(hits, 6000.0, 0, NAN) == counted(hits, 6000.0, 7, NAN) == hits
    both = counted(counted(Hits(), 1.0, 10, 1.0), 2.0, 30, 0.5)
    assert_allclose(share(both, 3.0), 25 / 40)


def quiet(
    hits: Hits, spans: int, *, latency_s: float = 8.0, came: bool = False, stuck: bool = False
) -> list[float]:
    """What is known of now after each of so many spans of 5 s in which nothing left."""
    found = []
    for _ in range(spans):
        hits = silent(hits, 100.0, 5.0, latency_s, came=came, stuck=stuck)
        found.append(hits.now)
    return found


def test_what_leaves_no_more_is_not_known_by_what_left_last() -> None:
    hits = counted(Hits(), 90.0, 10, 0.75)
    # Those that wait do so for 5 s, at least, from the second span on; reports come each minute.
    spans = int(STUCK_S / 5) + 1
    assert quiet(hits, spans + 1, stuck=True) == [0.75] * spans + [0]
    assert quiet(hits, spans + 1, came=True, stuck=True)[-1] == 0
    assert quiet(Hits(), spans + 1, stuck=True)[-1] == 0
    assert quiet(hits, spans + 1, latency_s=90.0, stuck=True)[-1] == 0.75
    few = int(IDLE_S / 5)
    assert quiet(hits, few) == few * [0.75]
    assert np.isnan(quiet(hits, few + 1)[-1])
    # A filter, or a window.
    assert quiet(hits, 100, came=True)[-1] == 0.75
    assert np.isnan(silent(hits, 9000.0, 5.0, 8.0, came=True, stuck=False).now)
    stuck = silent(silent(hits, 95.0, 5.0, 1.0, came=True, stuck=True), 99.0, 99.0, 1.0, **STUCK)
    assert stuck.now == 0 and counted(stuck, 104.0, 10, 0.5).now == 0.5
    left = counted(stuck, 104.0, 10, NAN)
    assert np.isnan(left.now) and np.isnan(left.stuck_s), "some left, nobody knows when"
    assert quiet(counted(stuck, 104.0, 10, 0.5), 1, stuck=True) == [0.5]
    assert (stuck.tuples, stuck.met) == (hits.tuples, hits.met)


class Stopping(Counting):
    """Of which nothing leaves from some answer on; waits: tuples before each operator then."""

    def __init__(self, queries: Mapping[str, list[float]], after: int, waits: float) -> None:
        super().__init__(queries)
        self.after, self.waits = after, waits

    def poll(self, timeout_s: float) -> Snapshot:
        told = super().poll(timeout_s)
        if self.polls <= self.after:
            self.last = told
            return told
        columns = dict(self.last.columns)
        columns["queue_size"] = np.full(len(self.each), self.waits)
        return replace(told, columns=columns, latencies=self.last.latencies)


class Hiding(Counting):
    """Which tells of no tuples from the fifth answer on."""

    def poll(self, timeout_s: float) -> Snapshot:
        told = super().poll(timeout_s)
        if self.polls <= 4:
            return told
        unknown = np.full(len(self.each), NAN)
        columns = {**told.columns, "tuples_in": unknown, "tuples_out": unknown}
        return replace(told, columns=columns, latencies=None)


@pytest.mark.parametrize(
    ("engine", "met"),
    [
        (Stopping({"alarm": ALARM, "bulk": BULK}, 4, 3.0), 0.0),
        (Stopping({"alarm": ALARM, "bulk": BULK}, 4, 0.0), None),
        (Hiding({"alarm": ALARM, "bulk": BULK}), None),
    ],
    ids=["waits", "ended", "hides"],
)
def test_a_query_that_stopped_does_not_meet_its_target_for_ever(
    engine: Counting, met: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STUCK_S", 1.0)

    async def run() -> list[dict[str, Any]]:
        settings = Settings(target=(target("alarm", "100ms"),), period=0.05)
        controller = Controller(settings, FakeEngine.kind(engine), None)
        found: list[dict[str, Any]] = []
        try:
            await controller.start()
            while engine.polls < 12:  # whether it answers in time or not
                await controller.step(controller.rules)
                await asyncio.sleep(0)
                found += targets.rows(controller)
            return found
        finally:
            controller.close()

    rows = asyncio.run(run())
    assert 0.99 in [row["met"] for row in rows]
    assert rows[-1]["met"] == met
    assert rows[-1]["met_hour"] == pytest.approx(0.99)


def test_what_the_engine_counts_is_told_by_query() -> None:
    engine = Counting({"alarm": ALARM, "bulk": BULK})
    stated = (target("alarm", "100ms", share=0.995), target("none", "1s"))
    [row] = after(4, engine, targets.rows, *stated)
    assert (row["engine"], row["query"], row["latency_s"]) == ("fake:a", "alarm", 0.1)
    assert row["source"] == "counted"
    assert_allclose([row["met"], row["met_hour"]], 0.99)
    assert row["met_tuples"] == pytest.approx(0.99 * row["tuples"], abs=1)
    assert row["tuples"] >= 200
    assert_allclose(row["margin_s"], 0.1 - row["p99_s"])
    assert row["standing"] == "meets"
    # The one that used most of the CPU meanwhile: 1.2 s in 6.
    assert row["in_the_way"] == "bulk (0.20 CPUs)"
    line = words.in_words(row)
    assert line.startswith("alarm: 99.5% within 100 ms: 99% now, 99% in the last hour")
    assert line.endswith("in the way: bulk (0.20 CPUs)")


def test_times_are_told_without_exponents() -> None:
    row = {"query": "q", "latency_s": 1500.0, "share": 0.99, "met": 1.0, "met_hour": None}
    row |= {"p99_s": 20_000.0, "in_the_way": None, "standing": None}
    assert words.in_words(row) == "q: 99% within 1500 s: 100% now, p99 20k s"
    assert [show.latency(value) for value in (None, 0.0123, -0.5, -2.0)] == [
        *("-", "12.3 ms", "-500 ms", "-2 s"),
    ]


def test_any_policy_has_its_targets_counted() -> None:
    engine = Counting({"alarm": ALARM, "bulk": BULK})
    [row] = after(4, engine, targets.rows, target("bulk", "10ms"), policy="hr")
    assert (row["met"], row["met_hour"], row["standing"]) == (0, 0, None)
    assert "does not go by it" in (row["says"] or "the policy does not go by it")


def test_of_queries_that_left_an_engine_little_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job each minute, with a name of its own, for weeks."""
    monkeypatch.setattr(targets, "MOST_GONE", 3)
    engine = Counting({"alarm": ALARM, "bulk": BULK})

    def left(controller: Controller) -> None:
        watch = controller.targets
        hit, old = counted(Hits(), 900.0, 10, 1.0), counted(Hits(), 0.0, 10, 1.0)
        watch._now_s = 4000.0
        here = watch.effects["fake:a", "alarm"]
        for number in range(9):
            watch.hits["fake:a", f"job-{number}"] = old if number == 8 else hit
            watch.effects["fake:a", f"job-{number}"] = here
        watch.hits["fake:b", "job-1"] = hit
        watch._known.clear()
        [one] = controller.engines.values()
        assert one.snapshot is not None
        watch.of(controller, one, one.snapshot.topology)
        assert watch.effects == {("fake:a", "alarm"): here}
        kept = {query for _, query in watch.hits}
        assert kept == {"alarm", "job-1", "job-6", "job-7"}

    after(4, engine, left, target("alarm", "100ms"))


def test_of_an_engine_that_left_the_hits_of_an_hour_stay() -> None:
    def left(controller: Controller) -> None:
        watch, now_s = controller.targets, time.monotonic()
        assert watch.effects and watch._last
        controller.roster.engines.clear()
        watch.note(controller, now_s)
        assert not (watch.effects or watch._spans or watch._last or watch._known or watch._stood)
        assert watch.hits
        watch._now_s = now_s + 4000
        watch._forget_all_but(set())
        assert not watch.hits

    engine = Counting({"alarm": ALARM, "bulk": BULK})
    after(4, engine, left, target("bulk", "10ms"))


def test_of_engines_that_left_little_stays_for_each_who_is_ordered_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A user starts and ends engine after engine, with queries that fit a target of root's."""
    monkeypatch.setattr(targets, "MOST_GONE", 3)

    def left(controller: Controller) -> None:
        watch = controller.targets
        watch._now_s = 100.0
        here = watch.hits.keys()
        assert here == {("fake:a", "alarm"), ("fake:a", "bulk")}
        for number in range(9):
            for engine, domain in ((f"lab:{number}", "user:1000"), ("flink:b", "")):
                watch.hits[engine, f"q-{number}"] = counted(Hits(), 90.0, 10, 1.0)
                watch._domains[engine] = domain
        watch._forget_all_but({"fake:a"})
        kept = {key for key in watch.hits if key[0] != "fake:a"}
        last = (6, 7, 8)
        assert kept == {(e, f"q-{n}") for n in last for e in (f"lab:{n}", "flink:b")}
        assert watch._domains.keys() == {engine for engine, _ in watch.hits}

    engine = Counting({"alarm": ALARM, "bulk": BULK})
    after(4, engine, left, target("*", "100ms"))


def test_of_queries_of_a_user_so_many_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "MOST_THEIRS", 3)
    pays_nothing(monkeypatch)
    theirs = of_user(Counting({f"q-{number}": ALARM for number in range(5)}), monkeypatch)

    def counted_ones(controller: Controller) -> tuple[list[float], int]:
        return [h.tuples for h in controller.targets.hits.values()], len(targets.rows(controller))

    tuples, shown = after(6, theirs, counted_ones, target("*", "100ms"))
    assert len(tuples) == 3 and shown == 5
    assert min(tuples) == max(tuples) > 100, "the same ones each time"


def test_hits_of_a_users_queries_that_have_gone_make_room_for_those_that_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(targets, "MOST_THEIRS", 3)
    pays_nothing(monkeypatch)
    theirs = of_user(Counting({f"q-{number}": ALARM for number in range(5)}), monkeypatch)

    def kept(controller: Controller) -> set[tuple[str, str]]:
        watch, [engine] = controller.targets, controller.engines.values()
        hit = counted(Hits(), watch._now_s, 10, 1.0)
        first = next(iter(watch.hits))
        watch.hits = {("lab:1", "x"): hit, ("fake:a", "y"): hit, first: hit}
        watch._domains["lab:1"] = engine.domain
        assert engine.snapshot is not None
        names, _ = watch.of(controller, engine, engine.snapshot.topology)
        assert len(watch._kept(engine, names.keys())) == 3
        return set(watch.hits) - {first}

    assert not after(6, theirs, kept, target("*", "100ms"))


def test_what_is_said_of_a_users_targets_is_little_and_his_to_pay(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dear_s = 0.05

    def dear(judgement: Judgement) -> str:
        until_s = time.thread_time() + dear_s
        while time.thread_time() < until_s:
            pass
        return words_of(judgement)

    words_of = targets.words
    monkeypatch.setattr(targets, "MOST_SAID", 2)
    monkeypatch.setattr(targets, "words", dear)
    theirs = of_user(Counting({f"q-{number}": ALARM for number in range(5)}), monkeypatch)
    paid_s = after(6, theirs, lambda controller: controller._theirs_s, target("*", "1us"))
    said = [record.getMessage() for record in caplog.records if "target" in record.getMessage()]
    assert sum("cannot be met" in message for message in said) == 2
    assert said[-1] == "targets of 3 more stand otherwise: see status"
    assert paid_s >= 2 * dear_s


def test_nobody_in_the_way_of_who_waits_for_itself() -> None:
    engine = Counting({"alarm": ALARM, "bulk": BULK})
    poll = engine.poll

    def calm(timeout_s: float) -> Snapshot:
        told = poll(timeout_s)
        told.columns["run_delay"][:] = 0.0
        return told

    engine.poll = calm  # type: ignore[method-assign]
    [row] = after(4, engine, targets.rows, target("bulk", "10ms"))
    assert row["in_the_way"] == "itself: most waits for op0"


def test_an_impossible_target_is_told_with_what_it_would_take() -> None:
    engine = Counting({"alarm": ALARM, "bulk": BULK})
    stated = target("bulk", "5ms")  # its path takes 12 ms
    [row] = after(4, engine, targets.rows, stated)
    assert row["standing"] == "over"
    assert row["says"].startswith("cannot be met: its path alone takes 12 ms")


def test_targets_of_nobody_and_two_of_one_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Counting({"alarm": ALARM, "bulk": BULK})
    stated = (target("al*", "1s"), target("alarm", "2s"), target("allarm", "1s"))

    def look(controller: Controller) -> tuple[list[str], list[str], list[dict[str, Any]]]:
        early = controller.targets.notes(controller)
        controller.targets.note(controller, time.monotonic() + targets.NEVER_S + 1)
        late = views.status(controller)["notes"]
        return early, late, targets.rows(controller)

    early, late, [row] = after(2, engine, look, *stated)
    double = "fake:a: several targets are for alarm: al*=1s counts, the first"
    assert early == [double]
    [never] = [note for note in late if "has appeared" in note]
    assert never.startswith("target of allarm: no query of that name")
    assert double in late
    assert row["latency_s"] == 1


def test_a_target_that_is_stated_later_has_its_time_to_appear() -> None:
    def restated(controller: Controller) -> list[str]:
        now_s, [rule] = time.monotonic(), controller.rules
        later = (*(rule.section.target or ()), target("rare", "1s"))
        rule.section = msgspec.structs.replace(rule.section, target=later)
        for passed_s in (1000.0, 1000.0 + targets.NEVER_S / 2):
            controller.targets.note(controller, now_s + passed_s)
        return controller.targets.notes(controller)

    [note] = after(2, Counting({"alarm": ALARM}), restated, target("allarm", "1s"))
    assert note.startswith("target of allarm: no query")


def test_it_is_in_status_top_explain_and_prometheus() -> None:
    engine = Counting({"alarm": ALARM, "bulk": BULK})

    def look(controller: Controller) -> dict[str, Any]:
        found = list(bottlenecks.assessed(controller))
        return {
            "status": views.status(controller)["targets"],
            "top": bottlenecks.screen(controller, found)["targets"],
            "explain": views.explain(controller, "*"),
            "page": bottlenecks.exposed(controller),
        }

    shown = after(4, engine, look, target("alarm", "100ms"), policy="deadline")
    assert json.dumps(shown["status"])
    assert shown["status"] == shown["top"]
    explained = {row["operator"].partition("/")[0]: row["target"] for row in shown["explain"]}
    assert explained == {"alarm": shown["status"][0], "bulk": None}
    labels = '{engine="fake:a",query="alarm"}'
    for line in (
        f"sched_ctl_query_target_seconds{labels} 0.1",
        f"sched_ctl_query_target_met_ratio{labels} 0.99",
        f"sched_ctl_query_target_possible{labels} 1.0",
    ):
        assert line in shown["page"].splitlines()


def test_without_targets_nothing_is_looked_at() -> None:
    engine = Counting({"alarm": ALARM})
    seen = after(4, engine, lambda c: (targets.rows(c), c.targets.effects, c.targets.notes(c)))
    assert seen == ([], {}, [])


def test_it_is_recorded(tmp_path: Path) -> None:
    engine = Counting({"alarm": ALARM, "bulk": BULK})

    async def run() -> None:
        settings = Settings(
            target=(target("alarm", "100ms"),), record=str(tmp_path), record_period=5.0, period=0.05
        )
        controller = Controller(settings, FakeEngine.kind(engine), None)
        kept = recording.start(controller)
        assert kept is not None
        await controller.start()
        while engine.polls < 6:  # whether it answers in time or not
            await controller.step(controller.rules)
            kept.note()
            await asyncio.sleep(0)
        kept.close()
        controller.close()

    asyncio.run(run())
    lines = []
    for file in tmp_path.glob("*.gz*"):
        with gzip.open(file, "rt") as text:
            lines += [json.loads(line) for line in text]
    found = [line for line in lines if line["k"] == "record" and line.get("told", [0])[0]]
    assert found
    for line in found:
        assert line["target"] == [100_000, None]
        if "time" in line:
            assert line["source"] == ["counted", "counted"] and line["time"][0] > 0
        assert line["met"][0] == pytest.approx(0.99 * line["told"][0], abs=1)
    assert any("time" in line for line in found), "what came of it"


class Loaded(FakeEngine):
    """A CPU and a half: .9 for the first of three operators, half as much for each next one."""

    def poll(self, timeout_s: float) -> Snapshot:
        told = super().poll(timeout_s)
        return replace(told, columns={**told.columns, "cpu_time": np.full(3, 0.9 * told.time_s)})


def test_a_policys_own_targets_are_judged_by_all_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load of 1.5 CPUs was more than the one that was counted."""
    monkeypatch.setattr("sched_ctl.controller.rule.cpus_of", lambda _: 4.0)
    engine = Loaded("a", {"q": 3})
    engine.queue = np.zeros(3)
    options = {"targets": [{"queries": ["*"], "latency": "1s"}]}

    async def run() -> list[Judgement]:
        section = Section(policy="deadline", options=options)
        controller = Controller(
            Settings(policy=(section,), period=0.05), FakeEngine.kind(engine), None
        )
        try:
            await controller.start()
            for _ in range(4):
                await asyncio.sleep(0.05)
                await controller.step(controller.rules)
            [schedule] = controller.rules[0].schedules.values()
            return list(schedule.targets.values())
        finally:
            controller.close()

    [found] = asyncio.run(run())
    assert found.load.cpus == pytest.approx(1.5, rel=0.4) and found.load.cpus > 1
    assert found.standing is Standing.MEETS
