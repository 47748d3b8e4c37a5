"""Races of a controller's rules: phases on the clock, with engines and backends made up."""

import asyncio
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from fakes import USER, FakeBackend, FakeEngine, backends, chains, drive, of_user

from sched_ctl.adapt.race import USUAL, Figures, Race, _length, opened, step
from sched_ctl.backends import Applied
from sched_ctl.config.settings import Prior, Section, Settings, Switch
from sched_ctl.controller import races
from sched_ctl.controller.loop import Controller
from sched_ctl.controller.pace import Pace
from sched_ctl.controller.rule import Rule, automatic
from sched_ctl.controller.trial import Outcomes, Trial, candidates
from sched_ctl.engines.owners import COMMON
from sched_ctl.errors import UserError
from sched_ctl.metrics.window import Window
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.targets import Target
from sched_ctl.model.topology import Snapshot
from sched_ctl.probes.pressure import Gauge, Level
from sched_ctl.service import bottlenecks, by_query, views
from sched_ctl.telemetry.recorder import kind_here

QUICK = Settings(
    period=0.02, calm_period=0, cpu_limit=0, poll_timeout=0.1, stale_after=5, window=0.1
)

CPU_ONLY = frozenset({"tuples_in", "cpu_time"})


@dataclass
class FakeGauge(Gauge):
    """Pressure as the test wants it."""

    share: float = 0.0

    def read(self) -> Level | None:
        return Level("cpu", self.share, 0.0, 0.0, 0.0)

    def close(self) -> None: ...


def settings(*sections: Section, **changes: Any) -> Settings:
    return msgspec.structs.replace(QUICK, policy=sections, **changes)


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def raced(
    engine: FakeEngine, backend: FakeBackend, gauge: FakeGauge, *sections: Section, **changes: Any
) -> Controller:
    controller = Controller(
        settings(*sections, **changes), FakeEngine.kind(engine), backends(backend)
    )
    controller.pace.close()
    controller.pace = Pace(0.0, 0.0, gauge)
    return controller


def test_who_takes_part_suits_what_enforces_it() -> None:
    assert candidates("balanced", "scx", 3) == ("balanced", "hr", "light-first")
    assert candidates("light-first", "nice", 3) == ("light-first", "hr")
    assert automatic("pool") == automatic("scx"), "its workers look at ages, too"
    for queries in (1, 2):
        ours = candidates("balanced", "pool", queries)
        assert ours == candidates("balanced", "scx", queries)
    alone = candidates("light-first", "nice", 1)
    assert alone == ("qs", "qs (none lifted)", "hr"), "light-first leaves a single query alone"
    assert candidates("deadline", "cgroup2", 2) == ("deadline", "light-first", "hr")


def test_auto_keeps_what_its_race_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues are short under qs, long under what auto takes first, and endless under hr."""
    monkeypatch.setattr(races, "candidates", lambda *_: ("light-first", "qs", "hr"))
    engine = FakeEngine(queries={"a": 2, "b": 2})
    waiting = {"": 100.0, "light-first": 130.0, "qs": 40.0, "hr": 9000.0}

    class Telling(FakeBackend):
        def apply(self, schedule: Schedule) -> Applied:
            enforced = schedule.policy if schedule.threads else ""
            engine.queue = np.full(4, waiting.get(enforced, 100.0))
            return super().apply(schedule)

    backend = Telling()
    gauge = FakeGauge()
    controller = raced(engine, backend, gauge, Section(), race=0.1)
    [rule] = controller.rules

    async def script() -> None:
        await until(lambda: rule.passes > 40)
        assert {s.policy for s in backend.schedules if s.threads} == {"light-first"}, "all is calm"
        assert "nobody waits" in str(views.status(controller)["notes"])
        gauge.share = 0.5
        await until(
            lambda: rule.instead.trial is not None and rule.instead.trial.race.mode == "kept"
        )
        race = views.status(controller)["policies"][0]["race"]
        assert race["kept"] == rule.policy.name == "qs"
        arms = {arm["arm"]: arm for arm in race["arms"]}
        assert arms["qs"]["time_ratio"] == pytest.approx(0.4, rel=0.25)
        assert arms["hr"]["out"].startswith("harmful") and arms["hr"]["phases"] >= 2
        assert arms["light-first"]["time_ratio"] == pytest.approx(1.3, rel=0.05)
        assert "qs won: 0.4" in (rule.chosen or "") and race["price"] > 0
        text = bottlenecks.exposed(controller)
        assert 'sched_ctl_race_kept{rule="auto",arm="qs"} 1.0' in text
        controller.set_policy(rule, "fcfs", {})
        assert rule.instead.trial is None and rule.policy.name == "fcfs"

    drive(controller, script)
    assert backend.restored == 1
    hurt = [schedule.policy for schedule in backend.schedules if schedule.threads]
    turns = [policy for policy, _ in itertools.groupby(hurt)]
    assert turns.count("hr") == 2


def test_a_phase_is_as_long_as_passes_need_to_tell_of_it() -> None:
    """Where `cpu_limit` made passes rarer than phases, no order was ever compared."""
    engine = FakeEngine(queries={"a": 2, "b": 2})

    class Telling(FakeBackend):
        def apply(self, schedule: Schedule) -> Applied:
            ordered = bool(schedule.threads) and schedule.policy == "hr"
            engine.queue = np.full(4, 40.0 if ordered else 100.0)
            return super().apply(schedule)

    gauge = FakeGauge()
    gauge.share = 0.5
    controller = raced(engine, Telling(), gauge, Section(), race=1e-6)
    [rule] = controller.rules

    async def script() -> None:
        await until(
            lambda: rule.instead.trial is not None and rule.instead.trial.race.mode == "kept"
        )
        assert rule.policy.name == "hr"

    drive(controller, script)


def expecting(
    *priors: Prior, engine: FakeEngine | None = None
) -> tuple[tuple[str, ...], int, int, str]:
    """Who takes part, who is kept and who is expected, and what is in force while all is calm."""
    engine, backend = engine or FakeEngine(queries={"a": 2, "b": 2}), FakeBackend()
    engine.queue = np.full(4, 50.0)
    controller = raced(engine, backend, FakeGauge(), Section(), prior=priors, race=10)
    [rule] = controller.rules

    async def script() -> None:
        await until(lambda: rule.passes > 3)

    drive(controller, script)
    assert rule.instead.trial is not None
    race = rule.instead.trial.race
    enforced = {schedule.policy for schedule in backend.schedules if schedule.threads}
    return rule.instead.trial.names, race.kept, race.expected, "".join(enforced)


def test_a_race_begins_with_what_is_expected() -> None:
    usual = ("light-first", "hr")
    assert expecting() == (usual, 1, 0, "light-first")
    assert expecting(Prior(policy="qs")) == (("qs", *usual), 1, 1, "qs")
    assert expecting(Prior(policy="hr")) == (("hr", "light-first"), 1, 1, "hr")
    assert expecting(Prior(policy="min-cost")) == (("min-cost", *usual), 1, 1, "min-cost")
    assert expecting(Prior(policy="os")) == (usual, 0, 0, "")
    here = Prior(policy="hr", machine=kind_here())
    assert expecting(Prior(policy="qs", machine="pdp-11, 1 CPUs"), here)[0][0] == "hr"
    assert expecting(Prior(policy="hr", engines=("flink",)))[0] == usual
    # The first that fits a query counts, and what most queries are to begin with.
    other = Prior(policy="qs", queries=("a", "fake:b"))
    assert expecting(Prior(policy="hr", queries=("c",)), other, Prior(policy="os"))[0][0] == "qs"
    # What needs more than the engine tells takes no part: it tells of no queues, here.
    engine = FakeEngine(queries={"a": 2, "b": 2}, provides=CPU_ONLY)
    assert expecting(Prior(policy="qs"), engine=engine)[:3] == (("light-first",), 1, 0)


def test_of_one_query_an_order_that_lifts_nobody_takes_part() -> None:
    engine, backend = FakeEngine(queries={"a": 3}), FakeBackend()
    engine.queue = np.array([5.0, 1.0, 0.0])
    controller = raced(engine, backend, FakeGauge(0.5), Section(), race=1000)
    [rule] = controller.rules

    async def turn(number: int) -> None:
        assert rule.instead.trial is not None
        rule.instead.trial.race = replace(rule.instead.trial.race, turn=number, begun=True)
        rule.enforce_by(rule.backend)
        passes = rule.passes
        await until(lambda: rule.passes > passes + 2)

    async def script() -> None:
        await until(lambda: rule.passes > 1)
        assert rule.instead.trial is not None and rule.instead.trial.names == (
            "qs",
            "qs (none lifted)",
            "hr",
        )
        assert not any(schedule.threads for schedule in backend.schedules), "calm: as it is"
        for number, lifts in ((1, True), (2, False), (1, True)):
            await turn(number)
            assert rule.policy.name == "qs" and len(backend.schedules[-1].threads) == 3
            assert backend.schedules[-1].lifts == lifts

    drive(controller, script)


def test_shares_and_names_are_not_raced() -> None:
    for section in (Section(shares={"a": 3.0, "b": 1.0}), Section(policy="hr")):
        engine, backend = FakeEngine(queries={"a": 2, "b": 2}), FakeBackend()
        controller = raced(engine, backend, FakeGauge(0.5), section, race=0.02)
        [rule] = controller.rules

        async def script(rule: Rule = rule, backend: FakeBackend = backend) -> None:
            await until(lambda: rule.passes > 8)
            assert rule.instead.trial is None
            assert all(schedule.threads for schedule in backend.schedules)

        drive(controller, script)


def test_what_has_been_left_to_the_system_is_looked_at_rarely_and_raced_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All orders harm; then four times as much waits."""
    monkeypatch.setattr(races, "candidates", lambda *_: ("light-first", "hr"))
    engine, more = FakeEngine(queries={"a": 2, "b": 2}), [1.0]

    class Telling(FakeBackend):
        def apply(self, schedule: Schedule) -> Applied:
            engine.queue = np.full(4, more[0] * (9000.0 if schedule.threads else 100.0))
            return super().apply(schedule)

    gauge = FakeGauge()
    controller = raced(engine, Telling(), gauge, Section(), race=0.1)
    gauge.share = 0.5
    controller.pace = Pace(0.1, 0.0, gauge)
    [rule] = controller.rules
    race = Race(())

    def now() -> Race:
        return rule.instead.trial.race if rule.instead.trial is not None else race

    async def script() -> None:
        await until(lambda: now().mode == "kept")
        assert now().kept == 0 and now().races == 1 and rule.leaves_all
        rested = controller.pace.rested
        await until(lambda: sum(_length(now(), one) for one in now().usual) >= USUAL)
        assert rule.leaves_all and controller.pace.rested > rested, "under pressure"
        more[0] = 4.0
        engine.queue = np.full(4, 400.0)
        await until(lambda: now().mode == "race")
        assert "the time in the system" in now().why and not rule.leaves_all

    drive(controller, script)


def test_bursts_between_rare_passes_begin_a_race() -> None:
    engine = FakeEngine(queries={"a": 2, "b": 2})
    engine.queue = np.full(4, 50.0)

    class Bursts(FakeGauge):
        passes = 0

        def read(self) -> Level | None:
            """All wait right after each pass, and never just before one."""
            passed, self.passes = rule.passes > self.passes, rule.passes
            return Level("cpu", float(passed and self.share > 0), 0.0, 0.0, 0.0)

    gauge = Bursts()
    prior = (Prior(policy="os"),)
    controller = raced(engine, FakeBackend(), gauge, Section(), prior=prior, race=0.5)
    controller.pace = Pace(0.1, 0.0, gauge)
    [rule] = controller.rules

    async def script() -> None:
        await until(lambda: rule.leaves_all)
        gauge.share, passes = 1.0, rule.passes
        await until(lambda: rule.instead.trial is not None and rule.instead.trial.race.begun)
        assert rule.passes < passes + 50, "not by one that came late alone"

    drive(controller, script)


def test_who_leaves_all_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(queries={"a": 2, "b": 2})
    controller = raced(engine, FakeBackend(), FakeGauge(), Section(), race=10)
    [rule] = controller.rules

    def left(race: Race, domain: str = COMMON, **changes: Any) -> bool:
        rule.section = msgspec.structs.replace(rule.section, **changes)
        rule.instead.trial = Trial(race, "light-first", 10.0)
        rule.instead.trial.whose = domain
        return rule.leaves_all

    async def script() -> None:
        await until(lambda: rule.schedules)
        nobody = Figures(pressed=False)
        fresh = opened(("light-first", "hr"), kept=0)
        calm = replace(fresh, turn=0)
        assert not left(calm), "whether somebody waits is not known yet"
        calm = step(calm, nobody)
        assert left(calm)
        assert not left(step(replace(fresh, kept=1, turn=1), nobody)), "an order is in force"
        assert not left(step(calm, Figures())), "it races"
        kept = replace(calm, mode="kept", races=1)
        assert left(kept) and not left(replace(kept, kept=1, turn=1))
        assert not left(kept, str(USER)), "the others have what auto is for them"
        assert not left(kept, target=(Target(queries=("a",), latency="1s"),))
        assert left(kept, target=())
        assert not left(kept, shares={"a": 2.0}) and left(kept, shares={})
        rule.problem = "something"
        assert not left(kept)
        rule.problem = rule.instead.trial = None
        assert not rule.leaves_all
        rule.instead.give_up()
        assert rule.leaves_all, "the guard found that all of it harms"

    drive(controller, script)


@pytest.mark.parametrize(("apart_s", "over_s"), [(1.0, 5.0), (5.0, 15.0)])
def test_what_came_of_it_is_shown_by_some_samples(apart_s: float, over_s: float) -> None:
    topology, found = chains("lab:1", {"q": 2}, lambda _: ()), Outcomes()
    spans = set[float]()
    for turn in range(40):
        told = np.full(2, 1000.0 * turn)
        columns = {"tuples_in": told, "tuples_out": told, "queue_size": np.array([0.0, 1.0 + turn])}
        found.note(Snapshot(topology, apart_s * turn, columns), dict)
        spans |= {effect.seconds for effect in found.found.get("lab:1", ())}
    assert spans == {over_s}


def test_two_races_take_turns() -> None:
    engine = FakeEngine(queries={"a": 2, "b": 2})
    engine.queue = np.full(4, 50.0)
    sections = (Section(name="one", queries=("a",)), Section(name="two", queries=("b",)))
    controller = raced(engine, FakeBackend(), FakeGauge(0.5), *sections, race=0.05)
    seen: list[list[str]] = []

    def trying() -> bool:
        seen.append(
            [
                r.name
                for r in controller.rules
                if r.instead.trial is not None and r.instead.trial.trying
            ]
        )
        return ["one"] in seen and ["two"] in seen and len(seen) > 100

    async def script() -> None:
        await until(trying)

    drive(controller, script)
    assert all(len(names) <= 1 for names in seen)


def in_turn(controller: Controller, rule: Rule, turn: int) -> dict[str, str]:
    """The policy of each domain while it is this arm's turn."""
    assert rule.instead.trial is not None
    rule.instead.trial.race = replace(rule.instead.trial.race, turn=turn, begun=True)
    rule.enforce_by(rule.backend)
    return {e.domain: rule.policy_of(e.domain).name for e in controller.engines.values()}


def test_an_order_is_tried_on_those_alone_who_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = FakeEngine("root", queries={"a": 2, "b": 2})
    theirs = of_user(FakeEngine("theirs", queries={"c": 2, "d": 2}), monkeypatch)
    for engine in (ours, theirs):
        engine.queue = np.full(4, 50.0)
    controller = Controller(
        settings(Section(), race=1000), FakeEngine.kind(ours, theirs), backends(FakeBackend())
    )
    [rule] = controller.rules

    async def script() -> None:
        await until(lambda: rule.passes > 3 and len(rule.queries) == 2)
        assert rule.instead.trial is not None
        hr = 1 + rule.instead.trial.names.index("hr")
        assert in_turn(controller, rule, hr) == {"": "hr", str(USER): "light-first"}
        assert in_turn(controller, rule, 1) == {"": "light-first", str(USER): "light-first"}

    drive(controller, script)


def of_both(
    monkeypatch: pytest.MonkeyPatch, ours: dict[str, int], theirs: dict[str, int]
) -> tuple[Controller, FakeBackend, FakeEngine]:
    """A controller with an engine of root's and one of a user's, which is returned."""
    engines = FakeEngine("root", queries=ours), FakeEngine("theirs", queries=theirs)
    backend = FakeBackend()
    controller = Controller(
        settings(Section(), race=1000),
        FakeEngine.kind(engines[0], of_user(engines[1], monkeypatch)),
        backends(backend),
    )
    return controller, backend, engines[1]


def test_a_race_is_not_moved_by_what_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries of a user's that came and went threw away what root's race had found."""
    controller, _, theirs = of_both(monkeypatch, {"a": 2}, {"c": 2})
    [rule] = controller.rules
    one = theirs.topology
    several = FakeEngine("theirs", queries={"c": 2, "d": 2}).topology

    async def script() -> None:
        await until(lambda: len(rule.queries) == 2)
        trial = rule.instead.trial
        assert trial is not None and trial.names == candidates("light-first", "nice", 1)
        theirs.topology = several
        await until(lambda: rule.queries == {"": 1, str(USER): 2})
        assert rule.instead.trial is trial
        theirs.topology = one
        await until(lambda: rule.queries == {"": 1, str(USER): 1})
        assert rule.instead.trial is trial

    drive(controller, script)


def test_what_is_left_alone_of_a_users_is_so_there_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """His engine goes by guesses: root's race began with the system's own for it."""
    controller, backend, theirs = of_both(monkeypatch, {"a": 2, "b": 2}, {"c": 2, "d": 2})
    replaced(theirs, guessed=True)
    [rule] = controller.rules

    async def script() -> None:
        await until(lambda: len(rule.queries) == 2 and rule.passes > 3)
        assert rule.instead.trial is not None and rule.instead.trial.race.kept == 1
        assert rule.threads == len(backend.threads("auto")) == 4
        assert list(rule.spared) == ["fake:theirs"]
        assert any("fake:theirs" in about for about in controller.remarks._said)
        controller._forget("fake:theirs")
        assert not rule.spared
        assert not any("fake:theirs" in about for about in controller.remarks._said)

    drive(controller, script)


def test_a_single_query_that_backs_off_is_alone_among_those_of_its_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    controller, _, theirs = of_both(monkeypatch, {"a": 2, "b": 2}, {"c": 2})
    replaced(theirs, backoff_s=0.02)
    [rule] = controller.rules

    async def script() -> None:
        await until(lambda: len(rule.queries) == 2 and rule.passes > 3)
        assert list(rule.spared) == ["fake:theirs"]

    drive(controller, script)


def test_the_systems_own_is_tried_on_those_alone_who_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    controller, _, _ = of_both(monkeypatch, {"a": 2, "b": 2}, {"c": 2, "d": 2})
    [rule] = controller.rules

    def threads() -> dict[str, int]:
        return {domain: len(schedule.threads) for domain, schedule in rule.schedules.items()}

    async def script() -> None:
        await until(lambda: threads() == {"": 4, str(USER): 4})
        in_turn(controller, rule, 0)
        passes = rule.passes
        await until(lambda: rule.passes > passes + 2)
        assert threads() == {"": 0, str(USER): 4}
        rows = views.status(controller)["queries"]
        mine = [row["query"] for row in rows if row["why"] == "a phase of a race"]
        assert mine == ["a", "b"] and len(rows) == 4

    drive(controller, script)


def test_of_several_users_nobody_begins_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """None was compared, and one that auto leaves alone took the order of all."""
    engines = [FakeEngine(name, queries={"a": 2, "b": 2}) for name in ("one", "other")]
    for number, engine in enumerate(engines):
        of_user(engine, monkeypatch)
        engine.target = replace(engine.target, uid=USER + number)
    replaced(engines[0], guessed=True)
    controller = Controller(
        settings(Section(), race=1000), FakeEngine.kind(*engines), backends(FakeBackend())
    )
    [rule] = controller.rules

    async def script() -> None:
        await until(lambda: len(rule.queries) == 2 and rule.passes > 3)
        assert rule.instead.trial is None
        assert rule.threads == 4 and list(rule.spared) == ["fake:one"]

    drive(controller, script)


def test_of_a_users_engines_alone_arms_suit_what_enforces_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever enforces root's orders: of theirs `balanced` would be `light-first` once more."""
    theirs = of_user(FakeEngine("theirs", queries={"c": 2, "d": 2}), monkeypatch)
    theirs.queue = np.full(4, 50.0)
    controller = Controller(
        settings(Section(), race=1000), FakeEngine.kind(theirs), backends(FakeBackend())
    )
    [rule] = controller.rules

    async def script() -> None:
        await until(lambda: rule.passes > 3 and bool(rule.queries))
        rule.backend = "scx"
        races.enter(rule, controller.engines, controller.claims, 1000.0)
        assert rule.instead.trial is not None
        assert rule.instead.trial.names == ("light-first", "hr")
        trial = rule.instead.trial
        engine = controller.engines.pop(theirs.target.engine)
        races.enter(rule, controller.engines, controller.claims, 1000.0)
        assert rule.instead.trial is trial, "while it starts again its race is kept"
        controller.engines[engine.name] = engine
        rule.backend = "nice"

    drive(controller, script)


def test_arms_suit_the_queries_there_are_now() -> None:
    """They went by those of the step before, and stayed so until something else changed."""
    engine = FakeEngine(queries={"a": 2})
    controller = raced(engine, FakeBackend(), FakeGauge(), Section(), race=1000)
    [rule] = controller.rules

    async def script() -> None:
        await until(lambda: rule.instead.trial is not None)
        assert rule.instead.trial is not None
        assert rule.instead.trial.names == candidates("light-first", "nice", 1)
        engine.topology = FakeEngine(queries={"a": 2, "b": 2}).topology
        await until(lambda: rule.queries == {"": 2})
        assert rule.instead.trial.names == candidates("light-first", "nice", 2)

    drive(controller, script)


def test_a_race_goes_on_while_a_user_pays_for_his_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other pass his engines keep the order that they have, for what deciding costs."""
    theirs = of_user(FakeEngine("theirs", queries={"c": 2, "d": 2}), monkeypatch)
    theirs.queue = np.full(4, 50.0)
    controller = raced(theirs, FakeBackend(), FakeGauge(0.5), Section(), race=0.1)
    [rule] = controller.rules
    monkeypatch.setattr(controller, "_rests", lambda rule, domain: rule.passes % 2 == 1)

    def half() -> int:
        return 0 if rule.instead.trial is None else rule.instead.trial.race.half

    async def script() -> None:
        await until(half)

    drive(controller, script)


def test_auto_goes_by_no_guess_until_its_race_has_found_an_order() -> None:
    """Of an engine of which only wake-ups are known."""
    engine = FakeEngine(queries={"a": 2, "b": 2}, provides=frozenset({"tuples_in"}))
    engine.topology = replace(engine.topology, guessed=True)
    backend = FakeBackend()
    controller = raced(engine, backend, FakeGauge(), Section(), race=0)
    [rule] = controller.rules

    async def script() -> None:
        await until(lambda: rule.passes > 3)  # although what it would take needs more metrics
        assert not rule.threads and not views.problems(controller)
        [note] = [note for note in views.status(controller)["notes"] if "--race" in note]
        assert note.startswith("fake:a: left as the system has it")
        controller.set_policy(rule, "constant", {})
        await until(lambda: rule.threads == 4)
        assert not any("--race" in note for note in views.status(controller)["notes"])

    drive(controller, script)
    assert {schedule.policy for schedule in backend.schedules if schedule.threads} == {"constant"}


@pytest.mark.parametrize("race", [0, 10])
@pytest.mark.parametrize(
    "word", [{"shares": {"a": 2.0}}, {"target": (Target(queries=("a",), latency="50ms"),)}]
)
def test_what_the_user_wants_of_such_an_engine_is_done(word: dict[str, Any], race: float) -> None:
    engine = FakeEngine(queries={"a": 2, "b": 2})
    engine.topology = replace(engine.topology, guessed=True)
    controller = raced(engine, FakeBackend(), FakeGauge(), Section(**word), race=race)
    [rule] = controller.rules

    async def script() -> None:
        await until(lambda: rule.threads == 4)

    drive(controller, script)


def test_an_order_by_costs_waits_until_they_are_known() -> None:
    """No other order does."""
    engine = FakeEngine(queries={"a": 2, "b": 2})
    vars(engine)["unsure"] = True
    controller = raced(engine, FakeBackend(), FakeGauge(), Section(policy="min-cost"), race=0)
    [rule] = controller.rules

    async def waits() -> None:
        passes = rule.passes
        await until(lambda: rule.passes > passes + 3)
        assert not rule.threads and not views.problems(controller)
        [note] = [note for note in views.status(controller)["notes"] if "cost" in note]
        assert note == "fake:a: left as the system has it until it is known what its operators cost"

    async def script() -> None:
        await waits()
        controller.set_policy(rule, "constant", {})
        await until(lambda: rule.threads == 4)
        controller.set_policy(rule, "min-cost", {})
        await until(lambda: not rule.threads)
        await waits()
        vars(engine)["unsure"] = False
        await until(lambda: rule.threads == 4)
        assert not any("cost" in note for note in views.status(controller)["notes"])
        vars(engine)["unsure"] = True  # it is another process now
        await until(lambda: not rule.threads)

    drive(controller, script)


@pytest.mark.parametrize(
    "word",
    [
        {"policy": "min-cost", "shares": {"a": 2.0}},
        {"target": (Target(queries=("a",), latency="50ms"),)},
        {"policy": "multi-class", "options": {"classes": {"a": "min-cost", "*": "min-cost"}}},
        {"policy": "deadline", "options": {"targets": [{"queries": ["a"], "latency": "50ms"}]}},
        {"policy": "qs", "switch": (Switch(policy="min-cost", metric="cost", above=1e9),)},
    ],
)
def test_what_the_user_says_does_not_wait_for_costs(word: dict[str, Any]) -> None:
    engine = FakeEngine(queries={"a": 2, "b": 2})
    vars(engine)["unsure"] = True
    controller = raced(engine, FakeBackend(), FakeGauge(), Section(**word), race=0)
    [rule] = controller.rules

    async def script() -> None:
        await until(lambda: rule.threads == 4)

    drive(controller, script)


def replaced(engine: FakeEngine, **changes: Any) -> FakeEngine:
    engine.topology = replace(engine.topology, **changes)
    return engine


def test_auto_leaves_a_single_query_that_backs_off_and_no_others() -> None:
    engine = replaced(FakeEngine(queries={"a": 2}), backoff_s=0.02)
    backend = FakeBackend()
    controller = raced(engine, backend, FakeGauge(), Section(), race=0)
    [rule] = controller.rules

    async def script() -> None:
        await until(lambda: rule.passes > 3)
        assert not rule.threads and not views.problems(controller)
        [note] = [note for note in views.status(controller)["notes"] if "--race" in note]
        assert note.startswith("fake:a: left as the system has it, for auto knows no order that")
        with pytest.raises(UserError, match="'a/op0' is not ordered now") as told:
            views.explain(controller, "a/op0")
        assert "left as the system has it" in (told.value.hint or "")
        with pytest.raises(UserError, match="did you mean 'a/op0'"):
            views.explain(controller, "a/opp0")
        [planned] = views.plans(controller)
        assert planned["spared"]["fake:a"].startswith("left as the system has it")
        single = engine.topology
        engine.topology = replace(FakeEngine(queries={"a": 2, "b": 2}).topology, backoff_s=0.02)
        await until(lambda: rule.threads == 4)
        assert not any("--race" in note for note in views.status(controller)["notes"])
        engine.topology = single
        await until(lambda: rule.threads == 0)
        controller.set_policy(rule, "hr", {})
        await until(lambda: rule.threads == 2)

    drive(controller, script)


def test_without_a_back_off_auto_orders_a_single_query() -> None:
    engine = FakeEngine(queries={"a": 2})
    controller = raced(engine, FakeBackend(), FakeGauge(), Section(), race=0)
    [rule] = controller.rules

    async def script() -> None:
        await until(lambda: rule.threads == 2)

    drive(controller, script)


@pytest.mark.parametrize(
    "engine",
    [
        replaced(FakeEngine(queries={"a": 2, "b": 2}), guessed=True),
        replaced(FakeEngine(queries={"a": 2}), backoff_s=0.02),
    ],
    ids=["guesses", "back-off"],
)
def test_a_race_over_what_auto_leaves_begins_with_the_systems_own(engine: FakeEngine) -> None:
    backend = FakeBackend()
    controller = raced(engine, backend, FakeGauge(), Section(), race=0.1)
    [rule] = controller.rules

    async def script() -> None:
        await until(lambda: rule.passes > 20)  # all is calm
        assert rule.instead.trial is not None and rule.instead.trial.race.kept == 0
        [told] = views.status(controller)["policies"]
        assert told["phase"].startswith("until a race finds better: auto ")
        [thread] = engine.topology.operators[0].threads
        for what in ("a/op0", thread.name, str(thread.tid)):
            with pytest.raises(UserError) as said:
                views.explain(controller, what)
            assert "is not ordered now" in said.value.message
            assert "it has the OS's own order now (until a race finds" in (said.value.hint or "")
        for what in ("a/op0", str(thread.tid)):
            told = {"pids": [thread.pid], "tids": [thread.tid], "ordered": 0}
            assert views.threads(controller, what) == told

    drive(controller, script)
    assert not any(schedule.threads for schedule in backend.schedules)


def test_what_was_found_for_some_queries_is_there_when_they_run_again() -> None:
    """A job that ran for a minute in five began the race anew each time, with the worst of all."""
    engine = FakeEngine(queries={"a": 2})
    controller = raced(engine, FakeBackend(), FakeGauge(), Section(), race=1000)
    [rule] = controller.rules
    sets: dict[str, tuple[str, ...]] = {"one": ("a",), "two": ("a", "b"), "three": ("a", "b", "c")}

    async def turn_to(name: str) -> Race:
        engine.topology = FakeEngine(queries=dict.fromkeys(sets[name], 2)).topology
        await until(lambda: rule.queries == {"": len(sets[name])})
        trial = rule.instead.trial
        assert trial is not None
        assert {query for _, query in trial.queries} == set(sets[name])
        return trial.race

    def found(**changes: Any) -> Race:
        trial = rule.instead.trial
        assert trial is not None
        trial.race = replace(trial.race, **changes)
        return trial.race

    async def script() -> None:
        await turn_to("one")
        one = found(mode="kept", kept=2, turn=2, races=1)
        await turn_to("two")
        two = found(mode="kept", kept=2, turn=2, races=1)
        assert await turn_to("three") == two, "the same orders: it sees by itself what is new"
        three = found(mode="race", kept=1, turn=1, half=3)
        for _ in range(3):
            for name, race in (("two", two), ("one", one), ("three", three), ("one", one)):
                now = await turn_to(name)
                assert (now.mode, now.kept, now.half) == (race.mode, race.kept, race.half)
        await turn_to("one")
        engine.topology = FakeEngine(queries={"a": 2, "x": 2}).topology
        await until(lambda: rule.queries == {"": 2})
        assert rule.instead.trial is not None
        assert rule.instead.trial.race.races == 1, "of others what was found last"
        for number in range(20):
            engine.topology = FakeEngine(queries={"a": 2, f"x{number}": 2}).topology
            await until(
                lambda: (
                    rule.instead.trial is not None
                    and ("fake:a", f"x{number}") in rule.instead.trial.queries  # noqa: B023
                )
            )
        assert len(rule.instead.past) == races.MOST_PAST

    drive(controller, script)


def test_two_sets_of_queries_that_take_turns_have_one_race_until_it_is_over() -> None:
    engine = FakeEngine(queries={"a": 2, "b": 2})
    several = FakeEngine(queries={"a": 2, "b": 2, "c": 2}).topology
    controller = raced(engine, FakeBackend(), FakeGauge(), Section(), race=1000)
    [rule] = controller.rules

    async def script() -> None:
        await until(lambda: rule.instead.trial is not None)
        trial, two = rule.instead.trial, engine.topology
        for topology, queries in ((several, 3), (two, 2), (several, 3)):
            engine.topology = topology
            await until(lambda: rule.queries == {"": queries})  # noqa: B023
            assert rule.instead.trial is trial

    drive(controller, script)


def test_harm_at_one_engine_does_not_wait_for_another_to_tell() -> None:
    """One that told nothing new kept a harmful order in force for two minutes each time."""
    trial = Trial(opened(("qs", "hr")), "qs", 10.0)
    topologies = {name: chains(name, {"q": 2}, lambda _: ()) for name in ("fast", "slow")}
    harmful, longest = 0, 0
    for second in range(1200):
        waiting = 10.0 if trial.own else 100.0
        harmful = harmful + 1 if trial.race.begun and not trial.own else 0
        longest = max(longest, harmful)
        windows = {}
        for name, topology in topologies.items():
            now = second if name == "fast" else 0
            told = np.full(2, 100.0 * now)
            columns = {
                "tuples_in": told,
                "tuples_out": told,
                "queue_size": np.array([0.0, waiting]),
            }
            windows[name] = Window(Snapshot(topology, float(now), columns))
        trial.look(float(second), windows, 0.5)
    assert all(arm.out.startswith("harmful") for arm in trial.race.arms[1:])
    assert longest < trial.phase_s
    scores = [score for arm in trial.race.arms[1:] for score in arm.scores.values()]
    assert scores and all(math.isnan(score.lost) for score in scores), "they ended early"


@pytest.mark.parametrize(("own_s", "kept"), [(3e-3, "hr"), (0.5e-3, "qs")])
def test_an_order_by_which_tuples_hardly_wait_can_win(own_s: float, kept: str) -> None:
    """Below a millisecond nobody waits: under an order that is tried that counts for it, and at
    rest nothing is tried.
    """
    trial = Trial(opened(("qs", "hr")), "qs", 10.0)
    topology = chains("lab:1", {"q": 2}, lambda _: ())
    second = 0
    turns = set()
    while not trial.race.races and second < 5_000:
        turns.add(trial.race.turn)
        waits_s = {"os": own_s, "qs": own_s, "hr": min(own_s, 0.8e-3)}[
            trial.race.arms[trial.race.turn].name
        ]
        told = np.full(2, 1000.0 * second)
        queue = np.array([0.0, 1000.0 * waits_s])
        columns = {"tuples_in": told, "tuples_out": told, "queue_size": queue}
        trial.look(
            float(second), {"lab:1": Window(Snapshot(topology, float(second), columns))}, 0.5
        )
        second += 1
    assert trial.race.arms[trial.race.kept].name == kept
    if kept == "qs":
        assert not any(arm.scores for arm in trial.race.arms) and turns == {trial.race.kept}


def test_whether_targets_can_be_met_is_told_whichever_order_is_in_force() -> None:
    engine = FakeEngine(queries={"a": 2, "b": 2})
    section = Section(target=(Target(queries=("*",), latency="50ms"),))
    controller = raced(engine, FakeBackend(), FakeGauge(0.5), section, race=1000)
    [rule] = controller.rules

    names = set[str]()

    async def script() -> None:
        await until(lambda: rule.instead.trial is not None and rule.passes > 1)
        for turn in (2, 3, 1):
            in_turn(controller, rule, turn)
            passes = rule.passes + 2
            await until(lambda passes=passes: rule.passes > passes)  # type: ignore[misc]
            assert rule.schedules[""].targets.keys() == {("fake:a", "a"), ("fake:a", "b")}
            by_them = rule.policy.name == "deadline"
            reasons = {row["why"] for row in by_query.queries(controller, rule)}
            assert ("by its target" in reasons) == by_them
            names.add(rule.policy.name)
        assert names > {"deadline"}

    drive(controller, script)
