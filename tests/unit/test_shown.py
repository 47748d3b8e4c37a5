"""How much of whose engines is looked at: what one user's say keeps no other's from being told."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from fakes import USER, FakeEngine, of_user
from prometheus_client.parser import text_string_to_metric_families

from sched_ctl.config.settings import Section, Settings
from sched_ctl.controller.loop import Controller
from sched_ctl.metrics import verdicts
from sched_ctl.service import bottlenecks, views
from sched_ctl.service.shown import OTHERS, Most, left_out
from sched_ctl.telemetry import exposition

T = TypeVar("T")


def looked(look: Callable[[Controller], T], *engines: FakeEngine) -> T:
    """What is told by a controller that has these."""

    async def script() -> T:
        settings = Settings(policy=(Section(policy="hr"),), period=0.05)
        controller = Controller(settings, FakeEngine.kind(*engines), None)
        try:
            await controller.start()
            await controller.step(controller.rules)
            return look(controller)
        finally:
            controller.close()

    return asyncio.run(script())


def theirs(monkeypatch: pytest.MonkeyPatch, queries: int, uid: int = USER) -> FakeEngine:
    """A user's engine with so many queries of two operators."""
    engine = FakeEngine(f"of{uid}", {f"query{n}": 2 for n in range(queries)})
    return of_user(engine, monkeypatch, uid)


def test_no_user_takes_the_place_of_roots_queries_on_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found before root's, with more than a page has room for; nor another user's."""
    hostile, other = theirs(monkeypatch, 600), theirs(monkeypatch, 3, USER + 1)
    text = looked(bottlenecks.exposed, hostile, other, FakeEngine("roots", {"q": 3}))
    families = {family.name: family for family in text_string_to_metric_families(text)}
    told: dict[str, set[str]] = {}
    for of in ("query", "operator"):
        for sample in families[f"sched_ctl_{of}_verdict_confidence"].samples:
            told.setdefault(sample.labels["engine"], set()).add(sample.labels[of])
    assert told["fake:roots"] == {"q", "q/op0", "q/op1", "q/op2"}
    assert len(told[other.target.engine]) == 3 + 6
    assert len(told[hostile.target.engine]) == OTHERS.queries * 3
    [queries] = families["sched_ctl_queries_left_out"].samples
    [operators] = families["sched_ctl_operators_left_out"].samples
    assert (queries.value, operators.value) == (400, 800)


def test_what_is_left_out_is_not_even_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    worked_out: list[str] = []

    def counted(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any) -> Any:
            worked_out.append(name)
            return work(*arguments)

        return counting

    monkeypatch.setattr(verdicts, "judged", counted("judged", verdicts.judged))
    monkeypatch.setattr(bottlenecks, "operator", counted("operator", bottlenecks.operator))

    def told(controller: Controller) -> list[Any]:
        found = list(bottlenecks.assessed(controller))
        shown = bottlenecks.screen(controller, found)
        return [shown, bottlenecks.bottlenecks(found), views.status(controller)]

    engines = (theirs(monkeypatch, 600), FakeEngine("roots", {"q": 3}))
    top, held, status = looked(told, *engines)
    assert worked_out.count("judged") == 2 * (1 + OTHERS.queries)
    assert worked_out.count("operator") <= 2 * (3 + OTHERS.operators)
    assert [query["engine"] for query in held[:2]] == ["fake:roots", f"fake:of{USER}"]
    assert len(held) == len(top["queries"]) == 1 + OTHERS.queries
    assert len(status["queries"]) == 1 + OTHERS.queries
    assert top["left_out"] == {"queries": 400, "operators": 800}
    [note] = [note for note in status["notes"] if "400 queries, 800 operators" in note]
    assert f"user {USER}" in note and "'users'" in note


def test_of_a_long_query_the_first_operators_are_listed_and_all_are_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    length = OTHERS.operators + 50
    engine = of_user(FakeEngine("long", {"q": length, "r": 2}), monkeypatch)
    after = of_user(FakeEngine("after", {"q": 1}), monkeypatch)
    seen: list[int] = []
    judged = verdicts.judged

    def judging(found: verdicts.Assessment, rows: Any) -> verdicts.Judged:
        seen.append(len(rows))
        return judged(found, rows)

    monkeypatch.setattr(verdicts, "judged", judging)

    def told(controller: Controller) -> tuple[Any, Any]:
        held = bottlenecks.bottlenecks(list(bottlenecks.assessed(controller)))
        return held, left_out(controller.engines.values())

    [query], left = looked(told, engine, after)
    assert len(query["operators"]) == len(query["parallelism"]) == OTHERS.operators
    assert set(seen) == {length}
    assert left == {str(USER): Most(2, 53)}


def test_the_common_owners_have_room_for_all_but_on_a_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exposition, "MOST_QUERIES", 20)
    engine = FakeEngine("roots", {f"q{n}": 1 for n in range(OTHERS.queries + 50)})

    def told(controller: Controller) -> tuple[int, str]:
        held = bottlenecks.bottlenecks(list(bottlenecks.assessed(controller)))
        return len(held), bottlenecks.exposed(controller)

    queries, text = looked(told, engine)
    assert queries == OTHERS.queries + 50
    assert f"sched_ctl_queries_left_out{{}} {queries - 20}.0" in text
    assert text.count("sched_ctl_query_verdict_confidence{") == 20


def test_who_tells_of_engines_loads_no_masked_arrays() -> None:
    """A megabyte of a gateway's memory, and 2% of what a start costs."""
    code = (
        "import sys\n"
        "from fakes import FakeEngine\n"
        "from unit.test_shown import looked\n"
        "from sched_ctl.service import bottlenecks, by_query, views\n"
        "def told(controller):\n"
        "    assert by_query.told(controller, controller.rules[0], 10)\n"
        "    assert views.status(controller) and bottlenecks.exposed(controller)\n"
        "looked(told, FakeEngine('one', {'q': 2, 'r': 2}))\n"
        "assert 'numpy.ma' not in sys.modules\n"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, check=True)
