"""Tables on a terminal, in a pipe, and where there is little room."""

import logging
import sys

import pytest

from sched_ctl import show
from sched_ctl.cli import log

COLUMNS = ("", "engine", ">threads", "remarks")
ROWS = [("✓", "lab:4711", 12, "a long remark of several words " * 12), ("✗", "flink", None, "")]


def test_in_a_pipe_a_row_is_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    show.table(COLUMNS, ROWS)
    lines = capsys.readouterr().out.splitlines()
    [line] = [line for line in lines if "lab:4711" in line]
    assert ROWS[0][3].strip() in line
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("width", [20, 40, 60, 80])
def test_no_column_is_lost_in_a_narrow_terminal(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    many = [f">column{i}" for i in range(12)]
    show.table(("name", *many), [("etl/parse", *range(100, 112))])
    shown = capsys.readouterr().out
    assert all(len(line) <= width for line in shown.splitlines())
    words = shown.split()
    assert {"etl/parse", *(name[1:] for name in many), *map(str, range(100, 112))} <= set(words)


def test_a_table_that_fits_stays_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    show.table(("name", ">size"), [("a", 1), ("b", 2)])
    assert [line.split() for line in capsys.readouterr().out.splitlines() if "─" not in line][
        1:4
    ] == [["name", "size"], ["a", "1"], ["b", "2"]]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (0.12345, "0.123"),
        (999.4, "999"),
        (999.9, "1000"),
        (9_994.0, "9994"),
        (12_345.6, "12.3k"),
        (999_999.0, "1M"),
        (-12_345.6, "-12.3k"),
    ],
)
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert show.number(value) == text


def test_names_in_the_log_obey_no_terminal() -> None:
    hostile = "job\n00:00:00 all is well\x1b[2J\u202e"
    try:
        raise ValueError(hostile)
    except ValueError:
        error = sys.exc_info()
    for style in ("plain", "terminal", "journal"):
        record = logging.LogRecord("x", logging.INFO, "", 1, "%s: found", (hostile,), error)
        said = log.formatter(style).format(record)
        assert "\x1b" not in said and "\u202e" not in said
        assert said.count("all is well") == 2
        assert not any(line.startswith("00:00:00 all") for line in said.splitlines())


def test_names_in_tables_stay_on_their_line(capsys: pytest.CaptureFixture[str]) -> None:
    show.text("a\nb\x1b[1m")
    show.table(("name", "x"), [("a\nb\x1b[1m", 1)])
    said = capsys.readouterr().out
    assert "a\N{REPLACEMENT CHARACTER}b" in said and "\x1b" not in said
    assert not any(line.startswith("b") for line in said.splitlines())


def test_words_stay_whole_and_what_nobody_has_is_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    engine = "flink:127.0.0.1:8081@27921"
    columns = ("engine", ">pid", "queries", ">in target", "remarks")
    show.table(columns, [(engine, 27921, "alarms, archive, meters, status, and more", "", "")])
    show.table(columns, [(engine, 27921, "alarms " * 3, "9.5%", "of-one-long-word " * 2)])
    table, record = capsys.readouterr().out.split("\n\n")[:2]
    assert all(part in table for part in (engine, "queries", "archive,"))
    assert "target" not in table and "remarks" not in table
    assert engine in record and "in target" in record and max(map(len, record.split("\n"))) <= 80
    show.table(columns, [(engine + "x" * 60, 27921, "alarms " * 30, "", "")])
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == engine + "x" * (80 - len(engine)) and rest[0].endswith("x")
    show.table(("engine", *(f">column{at}" for at in range(12))), [(engine, *range(12))])
    assert capsys.readouterr().out.splitlines()[0] == engine  # of a list, too
    monkeypatch.delenv("COLUMNS")
    show.table(columns, [(engine, 27921, "alarms", "", "")])
    assert "remarks" in capsys.readouterr().out  # as whoever reads a pipe expects
