"""What `sched-ctl top` draws, at the sizes of usual terminals."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sched_ctl.cli import held
from sched_ctl.cli.screen import HELP, SORTS, View, can_redraw, draw, pressed
from sched_ctl.probes.holders import Held


def row(name: str, **more: Any) -> dict[str, Any]:
    shares = dict.fromkeys(("run", "wait", "backpressured", "blocked", "idle"), 0.2)
    return {
        "operator": name,
        "tid": 4711,
        "policy": "qs",
        "queue": 12345.0,
        "head_age_s": 1.5,
        "urgency": 12345.0,
        "place": 0.5,
        "applied": {"nice": 19, "policy": "SCHED_BATCH"},
        "verdict": "single-thread-bound",
        "by": None,
        "confidence": 0.97,
        "engine": "lab:1",
        "query": name.partition("/")[0],
        "depth": 0,
        "sleeps": None,
        "feeds": [],
        **shares,
        **more,
    }


def answer(*rows: dict[str, Any]) -> dict[str, Any]:
    return {
        "policies": [{"name": "qs", "policy": "qs", "backend": "nice"}],
        "targets": [],
        "pressure": {"cpu": {"some": 0.42}, "io": {"some": 0.0}},
        "queries": [
            {"engine": "lab:1", "query": "q", "verdict": "cpu-starved", "operator": "q/heavy"}
        ],
        "rows": list(rows),
    }


@pytest.mark.parametrize(("term", "can"), [("xterm", True), ("dumb", False)])
def test_a_dumb_terminal_gets_the_picture_once(
    term: str, can: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, others = os.openpty()
    with os.fdopen(mine, "rb"), os.fdopen(others, "w") as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setenv("TERM", term)
        assert can_redraw() is can


def lines(told: dict[str, Any], view: View, width: int, height: int) -> list[str]:
    console = Console(width=width, height=height, highlight=False, color_system=None)
    with console.capture() as captured:
        console.print(draw(told, view, width, height))
    return captured.get().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 50), (40, 10)])
def test_the_picture_fits_the_terminal(width: int, height: int) -> None:
    many = answer(*(row(f"query-with-a-name/operator-{i}") for i in range(200)))
    shown = lines(many, View(), width, height)
    assert len(shown) == height  # no line is wasted
    assert all(len(line) <= width for line in shown)
    assert "more below" in shown[-1]


def test_eighty_columns_have_what_counts() -> None:
    held = row("q/parse", verdict="backpressured", by="q/AzureInsert", applied={"nice": -20})
    text = "\n".join(lines(answer(row("q/AzureInsert"), held), View(), 80, 24))
    for word in ("12.3k", "1.5", "0.50", "nice 19", "nice -20", "20%", "single-thread-bound"):
        assert word in text, word
    for word in ("held by AzureInsert", "cpu 42%", "q is held by heavy: cpu-starved"):
        assert word in text, word


def test_a_long_name_leaves_the_verdict_whole() -> None:
    named = answer(row("gstreamer/front-decoder"), row("gstreamer/front-encoder"))
    held = [line for line in lines(named, View(), 80, 24) if "single-thread-bound" in line]
    assert len(held) == 2
    assert all(line.startswith("gstrea…/front-") and "coder " in line for line in held), held


def test_a_verdict_of_sleep_says_where() -> None:
    places = [{"where": "socket", "peer": "10.0.0.7:5432", "share": 0.83}]
    asleep = {"verdict": "io-bound", "sleeps": {"looks": 40, "places": places}}
    told = answer(
        row("q/lookup", **asleep),
        row("q/new", verdict="io-bound", sleeps=None),
        row("q/busy", **{**asleep, "verdict": "cpu-starved"}),
    )
    shown = {line.split()[0]: line.rstrip() for line in lines(told, View(), 80, 24) if "q/" in line}
    assert shown["q/lookup"].endswith(" io-bound 10.0.0.7:5432")
    assert shown["q/new"].endswith(" io-bound") and shown["q/busy"].endswith(" cpu-starved")
    wide = "\n".join(lines(told, View(), 160, 50))
    assert "io-bound 10.0.0.7:5432 83%" in wide


def test_names_cannot_write_to_the_terminal() -> None:
    evil = row("q/\x1b[2J\x07[red]evil", by="q/\x1b]0;x")
    text = "\n".join(lines(answer(evil), View(), 160, 50))
    assert "\x1b" not in text and "\x07" not in text
    assert "[red]evil" in text  # no markup either


def test_arrows_and_pages_move_and_clear_no_filter() -> None:
    many = answer(*(row(f"q/{i:03}", place=None) for i in range(100)))
    view = View(only="q/")

    def top(typed: str) -> int:
        for key in pressed(typed):
            assert view.press(key)
        shown = lines(many, view, 80, 24)
        return int(next(line for line in shown if line.startswith("q/"))[2:5])

    page = int(lines(many, view, 80, 24)[-2][2:5]) + 1
    assert top("") == 0
    assert top("\x1b[B\x1bOBj") == 3
    assert top("\x1b[A\x1b[1;5H\x1b[99~") == 2  # Ctrl-Home and another are nothing to us
    assert top("\x1b[6~") == 2 + page
    assert top("\x1b[5~\x1b[5~") == 0
    assert view.only == "q/"
    assert view.press("/") and view.press("\x0e") and view.typing == ""


def test_keys_sort_filter_pause_and_end() -> None:
    told = answer(
        row("q/a", queue=1.0, wait=None), row("q/b", queue=3.0, wait=0.1), row("q/c", queue=2.0)
    )
    view = View(sort="queue")

    def order() -> list[str]:
        shown = lines(told, view, 80, 24)
        return [line[:3] for line in shown if line.startswith("q/")]

    assert order() == ["q/b", "q/c", "q/a"]
    view.sort = "wait"
    assert order() == ["q/c", "q/b", "q/a"]  # what is unknown comes last
    for key in "/Bx\x7f\r":
        assert view.press(key)
    assert view.only == "B" and order() == ["q/b"]
    assert view.press("p") and view.paused
    assert lines(told, view, 80, 24)[0].startswith("PAUSED")
    assert view.press("\x1b") and view.only == ""
    seen = []
    for _ in SORTS:
        view.press("s")
        seen.append(view.sort)
    assert sorted(seen) == sorted(SORTS)
    assert not view.press("q")


def test_a_query_is_shown_as_a_graph() -> None:
    helper = row("helper") | {"engine": None, "query": None, "depth": None}
    told = answer(
        row("r/only"),
        helper,
        row("q/sink", depth=2),
        row("q/fork", feeds=["q/left", "q/right"]),
        *(row(f"q/{side}", depth=1, feeds=["q/sink"]) for side in ("left", "right")),
    )
    view = View(helpers=True)
    view.press("g")
    shown = [line[:19].rstrip() for line in lines(told, view, 160, 24)[4:10]]
    assert shown == [
        "q/fork > left, righ",  # and so on
        "  left > sink",
        "  right > sink",
        "    sink",
        "r/only",
        "helper",
    ]


def test_long_lists_can_be_moved_through() -> None:
    told = answer(*(row(f"q/{i:03}") for i in range(100)))
    view = View(sort="operator")
    for _ in range(200):
        view.press("j")
        lines(told, view, 80, 24)
    assert any("q/099" in line for line in lines(told, view, 80, 24))
    for _ in range(200):
        view.press("k")
    assert any("q/000" in line for line in lines(told, view, 80, 24))


def test_helpers_are_folded_and_never_counted_as_operators() -> None:
    told = answer(
        row("q/a", tid=1), row("q/a", tid=2), row("q/b", tid=3), row("GC", tid=4, query=None)
    )
    folded = lines(told, View(), 80, 24)
    assert folded[-1].startswith("2 operators in 3 threads, 1 helper (h)")
    assert not any(line.startswith("GC") for line in folded)
    view = View()
    assert view.press("h")
    shown = lines(told, view, 80, 24)
    assert shown[-1].startswith("2 operators in 3 threads, 1 helper ")
    assert any(line.startswith("GC") for line in shown)


def test_a_replica_is_named_by_its_operator_and_a_helper_by_its_thread() -> None:
    told = answer(
        row("a/b/parse", query="a/b", by="a/b/work (1/2)", feeds=["a/b/work (1/2)"], depth=1),
        row("a/b/work (1/2)", query="a/b"),
        row("lab:1: timer", query=None, serves="work (1/2)"),
    )
    told["queries"] = [{"query": "a/b", "verdict": "cpu-starved", "operator": "a/b/work (1/2)"}]
    shown = "\n".join(lines(told, View(helpers=True), 80, 24))
    assert "held by work (1/2)" in shown and "a/b is held by work (1/2): cpu-starved" in shown
    assert "timer of work (1/2)" in shown
    long = answer(row("alarms/alarm-lookup", by="alarms/enrich-with-all (1/2)"))
    [line] = [line for line in lines(long, View(), 80, 24) if "lookup" in line]
    assert line.startswith("alarms/alarm-lookup ") and line.rstrip().endswith("(1/2)"), line
    long = answer(row("billing/alarm-lookup (1/2)"))
    assert "b…/alarm-lookup (1/2) " in "\n".join(lines(long, View(), 80, 24))
    assert "  parse > work (1/2)" in "\n".join(lines(told, View(sort="graph"), 160, 24))


def test_nothing_that_waited_is_no_time_of_zero() -> None:
    told = answer(row("q/a")) | {"effects": [{"query": "q", "time_s": 0.0}]}
    assert "q ~0 ms" in "\n".join(lines(told, View(), 80, 24))


def test_a_page_of_help_fits_and_any_key_leads_back() -> None:
    view = View()
    assert view.press("?")
    page = lines(answer(row("q/a")), view, 80, 24)
    assert len(page) == HELP.count("\n") + 1 <= 24
    assert "quit" in "\n".join(page) and "cpu-starved" in "\n".join(page)
    assert all(len(line) <= 80 and "…" not in line for line in page)
    assert view.press("s") and view.sort == "urgency"  # it only led back
    assert "q/a" in "\n".join(lines(answer(row("q/a")), view, 80, 24))
    assert view.press("?") and not view.press("q")


def test_of_many_queries_those_that_are_held_are_told_first() -> None:
    kinds = ["keeps-up", "idle", "cpu-starved", "keeps-up", "backpressured"]
    queries = [{"query": f"q{i}", "verdict": kind} for i, kind in enumerate(kinds)]
    ranked = [query["query"] for query in held.most_telling(queries)]
    assert ranked == ["q2", "q4", "q0", "q1", "q3"]


def test_operators_of_long_names_leave_the_query_on_the_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    named = [f"q/Source: orders-of-all-shops-{i} -> Map (1/2)" for i in range(12)]
    query: dict[str, Any] = {"engine": "flink:127.0.0.1:8081@27921", "query": "q"}
    query |= {"verdict": "cpu-starved"}
    query |= {"operator": named[3], "confidence": 0.9, "settled": True, "late_s": None}
    query |= {"advice": "x", "horizons": [], "parallelism": [], "needed_cpus": None, "cpus": 2}
    query |= {"operators": [row(name, verdict="cpu-starved") for name in named]}
    other = query | {"query": "r", "verdict": "keeps-up"}
    monkeypatch.setattr("sched_ctl.service.socket.request", lambda *_: [query, other])
    held.bottlenecks(everything=False, run_dir=Path("/nowhere"), json=False)
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) <= 23 and max(map(len, shown)) <= 80
    assert shown[1].startswith("flink:127.0.0.1:8081@27921 q: cpu-starved: Source: orders")
    assert any("more operators: --all" in line for line in shown)
    assert shown[-1].startswith("1 of 2 queries are held back")


def test_who_has_the_lock_that_holds_a_query_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of three replicas two wait for the third one's, and one of them for another lock at times."""
    query: dict[str, Any] = {"engine": "flink:1", "query": "q", "verdict": "lock-bound"}
    query |= {"operator": "q/b", "confidence": 0.9, "settled": True, "late_s": None}
    query |= {"advice": "x", "horizons": [], "parallelism": [], "needed_cpus": None, "cpus": 2}
    query |= {"operators": [row("q/b", verdict="lock-bound")]}
    answers = {"threads": {"pids": [7], "tids": [1, 2, 3]}, "bottlenecks": [query]}
    monkeypatch.setattr("sched_ctl.service.socket.request", lambda _, verb, *__: answers[verb])
    monkeypatch.setattr("sched_ctl.kernel.procfs.process_of", lambda _: 7)
    common = Held("Cache", 3, "b (3/3)", ("a.B.read (B.java:5)",))
    seen = {1: Held("Pool", 4, "gc"), 2: common, 3: common}
    monkeypatch.setattr("sched_ctl.probes.stacks.holders_of", lambda pid, tids: seen)
    held.bottlenecks(everything=True, run_dir=Path("/nowhere"), json=False)
    assert "  it waits for Cache, held by b (3/3) (3) < B.read:5\n" in capsys.readouterr().out
    monkeypatch.setattr("sched_ctl.probes.stacks.holders_of", lambda pid, tids: {})
    held.bottlenecks(everything=True, run_dir=Path("/nowhere"), json=False)
    assert "waits for" not in capsys.readouterr().out


@pytest.mark.parametrize(("queries", "operators"), [(1, 3), (3, 5), (40, 6), (40, 60)])
def test_what_holds_many_queries_fits_a_screen_of_24_lines(
    queries: int,
    operators: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    told = [
        {
            "engine": "lab:1",
            "query": "q" if at == 0 else f"query{'x' * 40}{at}",
            "verdict": "keeps-up" if at % 3 == 1 else "cpu-starved",
            "operator": "parse",
            "confidence": 0.9,
            "settled": True,
            "late_s": 1.5,
            "late_p99_s": None,
            "advice": "a larger priority or share, or more CPUs, would speed it up",
            "horizons": [],
            "parallelism": [],
            "needed_cpus": None,
            "cpus": 2,
            "operators": [
                row(f"q/op{i} (1/2)", verdict="full", by="q/op2 (2/2)") for i in range(operators)
            ],
        }
        for at in range(queries)
    ]
    monkeypatch.setattr("sched_ctl.service.socket.request", lambda *_: told)
    held.bottlenecks(everything=False, run_dir=Path("/nowhere"), json=False)
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) <= 23 and max(map(len, shown)) <= 80
    assert any(line.startswith("lab:1 q: cpu-starved: parse (") for line in shown)
    if queries == 40:
        assert shown[-1].startswith("27 of 40 queries are held back: --all")
    if operators == 60:
        assert any("and 50 more operators" in line for line in shown)
    assert any(line.startswith(" op1 (1/2) ") for line in shown)
    assert any(" by op2 (2/2) " in line for line in shown)
    held.bottlenecks(everything=True, run_dir=Path("/nowhere"), json=False)
    assert capsys.readouterr().out.count("op0") == queries
