"""Liebre's formats, written by hand as its classes write them."""

import os
import time
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from sched_ctl.drivers import Target
from sched_ctl.drivers.liebre.counts import CountFile, by_prefix, open_files, taken_apart
from sched_ctl.drivers.liebre.driver import _Stream, connect
from sched_ctl.drivers.sources.graphite import Inbox, Series
from sched_ctl.errors import EngineError, UserError
from sched_ctl.model.topology import Thread


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a_b.IN.csv"


def opened(path: Path) -> CountFile:
    descriptor = os.open(path, os.O_RDONLY)
    found = CountFile.of(os.getpid(), descriptor)
    os.close(descriptor)
    assert found is not None
    return found


def test_a_second_counts_when_it_is_over(file: Path) -> None:
    file.write_text("100,5\n101,7\n102,1")
    count = opened(file)
    assert count.read(103.9) == 12  # the line of 102 has no end yet
    with file.open("a") as more:
        more.write("0\n103,4\n")
    assert count.read(103.9) == 12
    assert count.read(104.0) == 22
    assert count.read(105.0) == 26
    assert count.read(1000.0) == 26  # a stream that is idle writes nothing
    count.close()


def test_garbage_in_files(file: Path) -> None:
    file.write_bytes(b"\xff\n1,2,3\nx,5\n5,-4\n5,nan\n\n7,3\n" + b"9" * 100_000 + b"\n8,1\r\n")
    count = opened(file)
    assert count.read(100) == 4
    count.close()


def test_a_file_that_is_longer_than_the_time_is_read_on_the_next_time(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sched_ctl.drivers.liebre.counts.PART", 12)
    monkeypatch.setattr("sched_ctl.drivers.liebre.counts.time.monotonic", count().__next__)
    file.write_text("100,5\n101,7\n" * 4)
    counts = opened(file)
    assert (counts.read(200, 2), counts.behind) == (24, True)
    assert (counts.read(200, 2), counts.behind) == (24, True)
    assert (counts.read(200), counts.behind) == (48, False)
    os.truncate(file, 1 << 40)  # takes no space
    assert (counts.read(200, 1000), counts.behind) == (48, True)
    counts.close()


def test_what_is_kept_for_later_is_bounded(file: Path) -> None:
    file.write_text("".join(f"{second},1\n1{second},1\n" for second in range(1000, 3000)))
    counts = opened(file)
    assert counts.read(1100) == 99  # 1000 to 1098, two seconds ago
    assert len(counts._early) == 62  # and up to a minute ahead
    assert counts.read(9999) == 161
    counts.close()


@pytest.mark.parametrize("behind", [False, True])
def test_nothing_is_counted_while_a_file_is_behind(
    behind: bool, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("100,5\n")
    (other := file.with_name("a_b.OUT.csv")).write_text("100,3\n")
    driver = connect(Target("liebre", str(os.getpid())))
    driver._files = {("a_b", "IN"): opened(file), ("a_b", "OUT"): opened(other)}
    driver._streams = (_Stream("a", "b", *driver._files.values()),)
    thread = Thread(1, 1, 1, "b")
    driver._operators = (("b", thread),)
    driver._files["gone", "IN"] = opened(file)  # of a stream that is there no more
    driver._files["gone", "IN"].behind = True
    if behind:
        monkeypatch.setattr("sched_ctl.drivers.liebre.counts.PART", 6)
    entered, left = driver._count(0.0 if behind else float("inf"))
    columns = driver._columns(entered, left)
    found = [float(columns[name][0]) for name in ("tuples_in", "queue_size")]
    assert found == pytest.approx([np.nan] * 2 if behind else [3.0, 2.0], nan_ok=True)
    driver.close()


@pytest.mark.parametrize("how", ["another", "cut off", "closed"])
def test_a_query_that_starts_again_begins_its_files_anew(
    how: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("100,5\n101,45\n")
    driver = connect(Target("liebre", str(os.getpid())))
    key = "a_b", "IN"
    closed: list[CountFile] = []
    close = CountFile.close

    def noted(one: CountFile) -> None:
        closed.append(one)
        close(one)

    monkeypatch.setattr(CountFile, "close", noted)

    def counted(fd: int) -> int:
        monkeypatch.setattr("sched_ctl.drivers.liebre.driver.open_files", lambda _: {key: fd})
        driver._look()
        return driver._files[key].read(200)

    descriptor = os.open(file, os.O_RDONLY)
    assert counted(descriptor) == 50
    first = driver._files[key]
    assert counted(descriptor) == 50 and not closed
    if how == "another":
        os.close(descriptor)
        file.rename(file.with_suffix(".old"))
        file.write_text("150,20\n151,50\n")
        descriptor = os.open(file, os.O_RDONLY)
    elif how == "cut off":
        file.write_text("150,70\n")
    else:
        monkeypatch.setattr("sched_ctl.drivers.liebre.driver.open_files", lambda _: {})
        driver._look()
        assert not driver._files
    assert counted(descriptor) == (50 if how == "closed" else 70)
    assert closed == [first]
    os.close(descriptor)
    driver.close()


def test_a_long_file_is_read_from_its_end(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sched_ctl.drivers.liebre.counts.WHOLE_LIMIT", 10)
    file.write_text("100,5\n101,7\n")
    count = opened(file)
    with file.open("a") as more:
        more.write("102,9\n")
    assert (count.read(200), count.whole) == (9, False)
    count.close()


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    path = tmp_path / "a_b.OUT.csv"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR)
    assert open_files(os.getpid()) == {("a_b", "OUT"): descriptor}
    assert CountFile.of(os.getpid(), descriptor) is None
    os.close(descriptor)
    assert CountFile.of(os.getpid(), descriptor) is None


def test_names_with_underscores() -> None:
    names = {"source", "map_1", "map", "1_sink", "sink", "a_b", "c"}
    streams = ["source_map_1", "map_1_sink", "a_b_c", "nobody_sink", "x", "_"]
    found, unclear = taken_apart(streams, names, names)
    assert found == {"source_map_1": (["source"], ["map_1"]), "a_b_c": (["a_b"], ["c"])}
    assert unclear == ["map_1_sink"]  # from map_1 to sink, or from map to 1_sink
    pool = {"a", "keep_0", "keep_1"}  # the last is no operator, by what is counted
    assert taken_apart(["a_keep_0"], pool, {"a", "keep_0"})[0] == {"a_keep_0": (["a"], ["keep_0"])}


def test_names_of_series() -> None:
    names = [
        "my.app.a_b.IN.count",
        "my.app.a_b.OUT.count",
        "my.app.a_b.IN.m1_rate",
        "my.app.a.EXEC.p99",
        "my.app.a.RATE",
        "a.EXEC.mean",
        "storm.worker.x",
        "IN.count",
        "",
    ]
    found = by_prefix({name: Series() for name in names})
    assert {prefix: set(ids) for prefix, ids in found.items()} == {
        "my.app": {("a_b", "IN"), ("a_b", "OUT"), ("a", "EXEC"), ("a", "RATE")},
        "": {("a", "EXEC")},
    }


def inbox_of(names: Iterable[str], received_s: float | None = None) -> "Inbox":
    series = {name: Series() for name in names}
    for one in series.values():
        one.take(1.0, time.monotonic() if received_s is None else received_s)
    return cast("Inbox", SimpleNamespace(series=lambda: series, close=lambda: None))


def test_programs_that_share_a_prefix_are_told_so() -> None:
    """And what was sent for an operator that has gone since is nobody's."""
    driver = connect(Target("liebre", str(os.getpid())))
    driver._process.others = tuple(Thread(1, i, 1, name) for i, name in enumerate("ab"))
    ours = ("a.EXEC.mean", "b.EXEC.mean", "a_b.IN.count", "a_b.OUT.count")
    for received_s in (None, -1000.0):
        now, then = inbox_of(ours), inbox_of(["other.EXEC.mean"], received_s)
        series = {**now.series(), **then.series()}
        driver._inbox = cast("Inbox", SimpleNamespace(series=series.copy, close=lambda: None))
        driver._look()
        driver._build(np.array([1.0] * len(driver._streams)))
        assert driver._topology is not None
        told = [note for note in driver._topology.notes if "prefix" in note]
        assert (len(driver._streams), len(told)) == ((0, 1) if received_s is None else (1, 0))
    driver.close()


def test_operators_with_spaces_have_metrics() -> None:
    """A reporter sends hyphens for them."""
    driver = connect(Target("liebre", str(os.getpid())))
    called = ("my source", "map", "other")
    driver._process.others = tuple(Thread(1, i, 1, name) for i, name in enumerate(called))
    names = ("my-source.EXEC.mean", "map.RATE", "my-source_map.IN.count", "my-source_map.OUT.count")
    driver._inbox = inbox_of(names)
    driver._look()
    assert [name for name, _ in driver._operators] == ["map", "my source"]
    [stream] = driver._streams
    assert (stream.producer, stream.consumer) == ("my source", "map")
    assert stream.entered is not None and stream.left is not None
    driver.close()


def test_a_stream_of_several_operators_is_called_by_the_first_of_them() -> None:
    """As `connect(maps, keeps)` makes it, of which each of two readers takes all tuples."""
    driver = connect(Target("liebre", str(os.getpid())))
    called = ("map_0", "map_1", "map_2", "keep_0", "keep_1", "sink_0", "sink_1", "map_10")
    driver._process.others = tuple(Thread(1, i, 1, name) for i, name in enumerate(called))
    streams = ("map_0_keep_0", "keep_0_sink_0", "keep_1_sink_1")
    counts = [f"{stream}.{end}.count" for stream in streams for end in ("IN", "OUT")]
    driver._inbox = inbox_of([*counts, *(f"{name}.RATE" for name in called[:-1])])
    for name, series in driver._inbox.series().items():
        series.take(99.0 if name == counts[0] else 119.0, time.monotonic())
    driver._look()
    entered, left = driver._count(float("inf"))
    driver._build(entered)
    assert driver._topology is not None
    names = [operator.name for operator in driver._topology.operators]
    edges = {(names[e.source], names[e.target], e.share) for e in driver._topology.edges}
    crossed = {(f"map_{i}", f"keep_{j}", 0.5) for i in range(3) for j in range(2)}
    assert edges == crossed | {(f"keep_{i}", f"sink_{i}", 1.0) for i in range(2)}
    told = driver._columns(entered, left)
    rows = {name: [float(told[of][i]) for of in told] for i, name in enumerate(names)}
    for name in ("keep_0", "keep_1"):
        assert rows[name] == pytest.approx([60.0, 120.0, 40.0]), name
    for name in ("map_0", "map_1", "map_2"):
        assert rows[name] == pytest.approx([np.nan, 200 / 3, np.nan], nan_ok=True), name
    driver.close()


def test_addresses() -> None:
    with pytest.raises(UserError, match="is no address"):
        connect(Target("liebre", "query"))
    with pytest.raises(EngineError, match="no such process"):
        connect(Target("liebre", "99999999"))
