"""Results of benchmarks: what is written is what is read, and what pages show of it."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench import results
from bench.results import Figure, Result, Row

RESULT = Result(
    title="told",
    columns=["mean", "p99"],
    n=3,
    spread="smallest-largest",
    seeds=[1, 2, 3],
    build=None,
    kernel="6.18",
    command="./dev run true",
    rows=[
        Row("hr", {"mean": Figure(0.5, 0.4, 0.625), "p99": Figure(1.5)}),
        Row("os", {"mean": Figure(1235.0, 0.9, 1.1, "ms"), "p99": "unknown"}, 2),
        Row("two", {"mean": Figure(None, unit="ms", each=(3.0, 12.25))}),
    ],
)


def test_what_is_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    results.write("one", RESULT)
    assert results.load("one") == RESULT
    assert len((tmp_path / "one.json").read_text().splitlines()) == 8 + 2 + len(RESULT.rows) + 2


def test_columns_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    results.write("one", msgspec.structs.replace(RESULT, columns=["mean", "mean"]))
    with pytest.raises(ValueError, match="one: columns of one name"):
        results.load("one")


def test_tables_of_one_run_are_of_one_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first that is kept is a change of the checkout, and is none of the program."""
    git = ("git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@example.org")
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "program.py")])
    results.write("one", RESULT)
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "one")):
        subprocess.run([*git, *words], check=True)
    results._build.cache_clear()
    try:
        first = msgspec.structs.replace(RESULT, **results.here())
        assert first.build and "dirty" not in first.build
        results.tell(first, "one")
        assert results.here()["build"] == first.build
    finally:
        results._build.cache_clear()


def test_a_table_tells_ranges_runs_and_units() -> None:
    table = results.markdown(RESULT).splitlines()
    assert table[0] == "*told* (n = 3, smallest-largest; kernel 6.18)"
    assert table[1] == "`./dev run true`"
    assert table[-3:] == [
        "| hr | 0.50 (0.40-0.62) | 1.50 |",
        "| os (n = 2) | 1,235 ms (0.90-1.10) | unknown |",
        "| two | 3, 12.2 ms |  |",
    ]


def test_a_marked_section_is_written_anew_and_the_rest_stays() -> None:
    page = "a\n<!-- figures: one: p99 -->\nold\n<!-- end -->\nb <!-- end -->\n"
    new = results.refreshed(page, lambda name: RESULT)
    assert new.startswith("a\n<!-- figures: one: p99 -->\n*told*")
    assert new.endswith("| two |  |\n<!-- end -->\nb <!-- end -->\n")
    assert "\nold" not in new and "0.50" not in new
    assert results.refreshed(new, lambda name: RESULT) == new


def test_a_column_that_is_not_there_is_refused() -> None:
    with pytest.raises(KeyError, match="p95"):
        results.markdown(RESULT, ["p95"])


def test_runs_are_told_by_their_geometric_mean() -> None:
    assert results.over([0.5, 2.0]) == Figure(1.0, 0.5, 2.0)
    assert results.over([]) == results.over([0.5, float("nan")]) == "-"


def test_a_median_has_its_range_in_parts_where_it_has_a_unit() -> None:
    assert results.median([1.0, 4.0, 2.0]) == Figure(2.0, 1.0, 4.0)
    assert results.median([1.0, 4.0, 2.0], "ms") == Figure(2.0, 0.5, 2.0, "ms")
    assert results.median([0.0, 0.0, 3.0], "ms") == Figure(0.0, unit="ms")


def test_the_command_that_is_told_repeats_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    program = str(results.ROOT / "bench" / "real" / "__main__.py")
    words = [program, "--cycles", "1", "--keep", "name", "--json", "x", "storm etl"]
    monkeypatch.setattr("sys.argv", words)
    told = results.here()["command"]
    assert told == "./dev run python -m bench.real --cycles 1 'storm etl'"


def test_what_was_not_seen_is_a_dash() -> None:
    """As of a helper that only one of the phases had."""
    nothing = float("nan")
    assert [results.number(nothing, unit) for unit in ("", "%", "ms")] == ["-"] * 3
