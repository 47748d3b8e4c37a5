"""Nodes not to trust: each kind of doubt on a node of its own, and figures without them."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from sched_ctl.pipeline import generate, ingest, report, trust
from sched_ctl.pipeline.choice import Choice
from sched_ctl.pipeline.store import Fleet
from sched_ctl.telemetry import records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.needs("pyspark", "java"), pytest.mark.timeout(1200)]


def spoil(folder: Path, node: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Every fourth record of a node."""
    [path] = folder.glob(f"{node}-*")
    lines = gzip.decompress(path.read_bytes()).splitlines()
    for at in range(4, len(lines), 4):
        line = msgspec.json.decode(lines[at])
        change(line)
        lines[at] = msgspec.json.encode(line)
    path.write_bytes(gzip.compress(b"\n".join(lines) + b"\n"))


def test_two_machines_of_a_name_are_no_clock_that_was_wrong(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """Boots (first number, time) as recorders number them: of a board whose clock is set late, of
    one that saves its clock each hour, of two machines, and of one that is as it should be."""
    hour_ms, day_ms, t = 3_600_000, 86_400_000, 1_800_000_000_000
    (tmp_path / "in").mkdir()
    for node, boots in {
        "board": [(t, t), (t + 100, t - hour_ms)],
        "saved": [(t, t), (t + 4 * day_ms - hour_ms, t + 4 * day_ms - hour_ms)],
        "twins": [(t, t), (t + hour_ms, t + hour_ms)],
        "clones": [(1, t), (5, t + day_ms // 2)],  # of numbers that overlap, too
        "sound": [(t, t), (t + 2 * day_ms, t + 2 * day_ms)],
    }.items():
        for number, (seq, begin) in enumerate(boots):
            lines: list[records.Line] = [
                records.Topology(
                    node=node, seq=seq + 2 * k, t=begin + k * day_ms, engine="e", epoch=1,
                    queries=["q"], ops=["a"], query_of=[0],
                )
                for k in range(2 + 3 * (number == 0))
            ]  # fmt: skip
            start = records.Start(node=node, seq=seq + 1, t=begin, boot=str(number))
            if node == "sound":
                lines = lines[:2]
            name = str(records.FileName.of(node, begin, seq))
            content = b"".join(map(records.encode, (start, *lines)))
            (tmp_path / "in" / name).write_bytes(content)
    ingest.ingest(spark, str(tmp_path / "in"), str(tmp_path / "out"))
    told = trust.doubts(Fleet(spark, str(tmp_path / "out")))
    assert {(doubt.node, doubt.about) for doubt in told} == {
        ("board", "its clock"),
        ("saved", "its clock"),
        ("twins", "its name"),
        ("clones", "its name"),
    }


def test_a_file_that_is_sent_again_has_its_lines_once(
    spark: "SparkSession", tmp_path: Path
) -> None:
    plan = generate.Plan(nodes=1, seconds=60, queries=1, level=1, bad_lines=2)
    [path, *_] = generate.generate(tmp_path / "in", plan).files
    source, out = str(tmp_path / "in"), str(tmp_path / "out")

    def told() -> tuple[Any, ...]:
        fleet = Fleet(spark, out)
        return report._lines(fleet), trust.doubts(fleet)

    ingest.ingest(spark, source, out)
    before = told()
    os.utime(path, (0, 0))
    assert ingest.ingest(spark, source, out).files == 1
    assert told() == before


def test_each_doubt_is_told_and_can_be_left_out(spark: "SparkSession", tmp_path: Path) -> None:
    plan = generate.Plan(nodes=6, seconds=300, queries=1, level=1, bad_lines=1)
    generate.generate(tmp_path / "in", plan)
    spoil(tmp_path / "in", "gw-0001", lambda line: line.update(t=1000))
    spoil(tmp_path / "in", "gw-0002", lambda line: line.update(cpu=[10**15] * 5))
    spoil(tmp_path / "in", "gw-0003", lambda line: line.update(v=99))
    spoil(tmp_path / "in", "gw-0004", lambda line: line.update(node="gw-0000"))
    ingest.ingest(spark, str(tmp_path / "in"), str(tmp_path / "out"))
    fleet = Fleet(spark, str(tmp_path / "out"))
    told = {(doubt.node, doubt.about): doubt.lines for doubt in trust.doubts(fleet)}
    serious = {key: lines for key, lines in told.items() if key[1] != trust.OTHER}
    assert serious.keys() == {
        ("gw-0001", "its clock"),
        ("gw-0002", "its counters"),
        ("gw-0003", "its version"),
        ("gw-0004", "its name"),
    }
    assert min(serious.values()) > 10
    assert {node for node, about in told if about == trust.OTHER} >= {"gw-0000", "gw-0005"}
    warning = trust.warned(fleet)
    assert "gw-0001 (its clock), gw-0002 (its counters), gw-0003 (its version), gw-0004" in warning
    without = tuple(f"!{node}" for node, _ in serious)
    trusted = Fleet(spark, str(tmp_path / "out"), Choice(nodes=without))
    assert trust.warned(trusted) == ""
    rows = trusted.rolled("hour").groupBy("node").count().collect()
    assert {row["node"] for row in rows} == {"gw-0000", "gw-0005"}
    some = Fleet(spark, str(tmp_path / "out"), Choice(nodes=("gw-000?", *without, "!gw-0005")))
    assert {row["node"] for row in some.rolled("hour").select("node").collect()} == {"gw-0000"}
