"""Why there is nothing to show: the sentence says what is so, and what to do."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import typer
from fakes import FakeEngine

from plans import plan, snapshot
from sched_ctl import cli
from sched_ctl.cli import look
from sched_ctl.controller.loop import Controller
from sched_ctl.drivers import DriverKind
from sched_ctl.engines.remarks import Remarks
from sched_ctl.metrics.window import Window
from sched_ctl.plugins import drivers
from sched_ctl.service import views
from sched_ctl.service.idle import nothing, unheard


def engine(state: str = "ok", queries: tuple[str, ...] = ("q",), threads: int = 3) -> Any:
    return {"engine": "flink:1", "state": state, "queries": list(queries), "threads": threads}


def test_only_who_was_waited_for_may_lack_cpu_time() -> None:
    late = engine("new") | {"problem": "http://127.0.0.1:1 did not answer within 2 s"}
    assert "may lack CPU time" in nothing({"engines": [late]})
    unknown = engine("new") | {"problem": "http://nohost:1 cannot be reached: no such name"}
    assert "lack CPU" not in nothing({"engines": [unknown]})


@pytest.mark.parametrize(
    ("engines", "said"),
    [
        ([], "no engine is found"),
        ([engine("silent")], "no engine answers: flink:1 (silent)"),
        ([engine(queries=(), threads=0)], "flink:1 answers, and runs no query"),
        ([engine("new")], "flink:1 has not answered yet: it is asked again"),
        ([engine("new") | {"problem": "refused"}], "flink:1 has not answered yet: refused; it is"),
        ([engine("new"), engine("silent")], "no engine answers: flink:1 (new), "),
        ([engine(threads=0)], "no thread of an operator is known"),
        ([engine()], "too early to tell"),
        ([engine(queries=(), threads=0), engine()], "too early to tell"),
    ],
)
def test_it_says_what_is_so(engines: list[Any], said: str) -> None:
    assert nothing({"engines": engines}).startswith(said)


def test_an_order_without_an_engine_says_so() -> None:
    """It was named, and the order of the others looked like the whole of it."""
    late = engine("new") | {"engine": "program:x", "problem": None}
    ok, refused = engine() | {"problem": None}, engine("new") | {"problem": "refused"}
    said = unheard({"engines": [ok, late, refused]}, bool)
    assert said == "program:x has not answered yet, and is not in this order: try again"
    assert unheard({"engines": [ok, refused]}, bool) is None, "what is wrong is told already"
    assert unheard({"engines": [ok, late]}, "flink:1".__eq__) is None, "no policy is for it"
    many = [late | {"engine": f"e:{number}"} for number in range(7)]
    said = unheard({"engines": [ok, *many]}, bool)
    assert said is not None and "e:4 and 2 more have not answered yet, and are not" in said


@pytest.mark.parametrize(
    ("engines", "json", "told"),
    [("*", False, "out"), ("*", True, "err"), ("fake:good", False, None)],
)
def test_a_plan_tells_which_engine_it_is_without(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    engines: str,
    json: bool,
    told: str | None,
) -> None:
    """Beside the JSON, which is of what is ordered; and of none that no policy selects."""
    made = views.engines

    def found(controller: Controller) -> list[dict[str, Any]]:
        [one] = made(controller)
        return [one, one | {"engine": "fake:late", "state": "new", "problem": None, "queries": []}]

    monkeypatch.setattr(views, "engines", found)
    monkeypatch.setattr(drivers, "drivers", lambda: FakeEngine.kind(FakeEngine("good")))
    monkeypatch.setattr(look, "only_errors", lambda: None)
    path = tmp_path / "sched-ctl.toml"
    path.write_text(f"[[policy]]\npolicy = 'hr'\nengines = ['{engines}']\n")
    flags = ["--config", str(path), "--run-dir", str(tmp_path / "run"), *["--json"] * json]
    plan_command = typer.main.get_command(cli.make_app())
    plan_command(["plan", "--observe", "0.1", *flags], standalone_mode=False)
    said = capsys.readouterr()
    late = "fake:late has not answered yet, and is not in this order"
    assert (late in said.out, late in said.err) == (told == "out", told == "err"), said
    assert not json or msgspec.json.decode(said.out)[0]["engines"] == ["fake:good"]


def test_what_looks_like_an_engine_and_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = {"flink": DriverKind("flink", list, cast("Any", None), mains=lambda: [7, 8])}
    told = views.suspected(kinds)
    assert told == ["pid 7 looks like flink", "pid 8 looks like flink"]
    said = nothing({"engines": [], "suspected": told})
    assert said.startswith("no engine answers: pid 7 looks like flink, pid 8")
    monkeypatch.setattr("os.geteuid", lambda: 65534)
    said = nothing({"engines": [], "suspected": told})
    assert "pid 7 looks like flink" in said and "as root" in said and "CPU time" not in said


def test_the_log_speaks_of_no_threads_of_no_engine(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    remarks = Remarks()

    def tell(threads: int, *engines: str, problems: tuple[str, ...] = ()) -> list[str]:
        caplog.clear()
        windows = {name: Window(snapshot(plan({"q": ["a"]})), None) for name in engines}
        remarks.tell("auto", threads, windows, problems, repaired=False)
        return [record.getMessage() for record in caplog.records]

    assert tell(0) == []
    assert tell(0, problems=("odd",)) == ["policy auto: odd"]
    assert tell(2, "lab:1")[0] == "policy auto: 2 threads of lab:1"
    window = Window(snapshot(plan({"q": ["a"]})), None)
    assert tell(0, "lab:1") == ["policy auto: no thread of an operator of lab:1 is ordered"]
    remarks.tell("auto", 0, {"lab:1": window}, (), repaired=False, own="until a race finds better")
    assert caplog.messages[-1].endswith("is ordered: the OS's own order, until a race finds better")
    assert tell(0) == ["policy auto: no engine any more"]


def test_a_note_is_repeated_for_another_word_and_not_for_another_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    remarks, plain = Remarks(), plan({"q": ["a"]})

    def tell(*notes: str) -> list[str]:
        caplog.clear()
        window = Window(snapshot(replace(plain, notes=notes)), None)
        remarks.tell("auto", 1, {"lab:1": window}, (), repaired=False)
        return [record.getMessage() for record in caplog.records]

    assert tell("up to 0.4 s old") == ["lab:1: up to 0.4 s old"]
    assert tell("up to 9.5 s old") == tell("up to 12 s old") == []
    assert tell("up to 12 s old", "q1 is odd") == ["lab:1: up to 12 s old; q1 is odd"]
    assert tell("up to 12 s old", "q2 is odd") == ["lab:1: up to 12 s old; q2 is odd"]
    assert tell() == []
    assert tell("up to 12 s old") == ["lab:1: up to 12 s old"]
