"""The fleet's pipeline, by telemetry whose truth is known."""

import itertools
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from sched_ctl.errors import UserError
from sched_ctl.pipeline import compact, compare, expire, generate, ingest
from sched_ctl.pipeline.bottlenecks import held
from sched_ctl.pipeline.profile import profile
from sched_ctl.pipeline.store import Batch, Fleet, Keep, Taken
from sched_ctl.telemetry import profiles, records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A call into the JVM that is broken off takes the connection with it, and all tests that follow.
pytestmark = [pytest.mark.spark, pytest.mark.needs("pyspark", "java"), pytest.mark.timeout(1200)]

PLAN = generate.Plan(
    nodes=3, seconds=600, file_s=300, queries=2, bad_lines=2, torn=1, repeated=1, skew=2, level=1
)

SMALL = generate.Plan(nodes=2, seconds=60, file_s=60, queries=1, repeated=1, level=1)


class Killed(Exception):
    """Stands for a SIGKILL: nothing after it is done."""


def lines_in(fleet: Fleet) -> tuple[int, int]:
    """Operator rows, and how many of them differ."""
    frame = fleet.read("operator")
    key = ["node", "seq", "query", "operator"]
    [row] = frame.selectExpr("count(*) AS n", f"count(DISTINCT {', '.join(key)}) AS k").collect()
    return row["n"], row["k"]


def test_each_good_record_once_whatever_lies_there(spark: "SparkSession", tmp_path: Path) -> None:
    truth = generate.generate(tmp_path / "in" / "some" / "where", PLAN)
    (tmp_path / "in" / "notes.txt").write_text("hello")
    (tmp_path / "in" / "gw-9-20261122T061500Z-5.jsonl.gz").write_bytes(b"")
    (tmp_path / "in" / "gw-9-20261122T061500Z-6.jsonl.gz").write_bytes(b"no gzip, no JSON\n")
    (tmp_path / "in" / "gw-9-20261122T061500Z-7.jsonl.gz.part").write_bytes(b"grows")
    done = ingest.ingest(spark, str(tmp_path / "in"), str(tmp_path / "out"), batch_bytes=60_000)
    assert done.batches > 1
    fleet = Fleet(spark, str(tmp_path / "out"))
    assert lines_in(fleet) == (truth.operator_rows, truth.operator_rows)
    assert done.rows == truth.operator_rows
    # The repeated file has its bad lines, and was torn, again.
    assert done.bad == truth.bad + PLAN.bad_lines + 1 + 1
    assert sorted(name.partition(": ")[2] for name in done.named) == [
        "empty",
        "not called as a recorded file is",
    ]
    bad = fleet.read("bad").collect()
    assert len(bad) == done.bad
    [noise] = [row for row in bad if row["node"] == "gw-9"]
    assert (noise["file"], noise["line"]) == ("gw-9-20261122T061500Z-6.jsonl.gz", 1)
    assert noise["text"].startswith("no gzip")
    assert {row["why"] for row in bad if row["node"] != "gw-9"} >= {"torn: the line has no end"}
    # What was read is what was written.
    [sums] = fleet.read("operator").selectExpr("sum(tuples_in) AS i", "sum(cpu_us) AS c").collect()
    expected = {"i": 0, "c": 0}
    from sched_ctl.telemetry import reading

    for path in truth.files:
        for line in reading.read(path):
            if not isinstance(line, reading.Bad) and isinstance(line[1], records.Record):
                expected["i"] += sum(filter(None, line[1].tuples_in or []))
                expected["c"] += sum(filter(None, line[1].cpu or []))
    assert sums.asDict() == expected
    # Once more adds nothing; neither does a copy under another name, which is a file of its own.
    again = ingest.ingest(spark, str(tmp_path / "in"), str(tmp_path / "out"))
    assert (again.files, again.batches) == (0, 0)
    first = truth.files[-1]
    name = records.FileName.parse(first.name)
    assert name is not None
    shutil.copy(first, first.with_name(str(records.FileName(name.node, name.start, 77))))
    again = ingest.ingest(spark, str(tmp_path / "in"), str(tmp_path / "out"))
    assert (again.files, again.rows) == (1, 0)
    assert again.repeated > 0
    assert lines_in(Fleet(spark, str(tmp_path / "out")))[0] == truth.operator_rows


def test_killed_at_each_step(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after each write, before, in and after each entry."""
    truth = generate.generate(tmp_path / "in", SMALL)
    steps = {"left": 0}
    real = {name: getattr(Fleet, name) for name in ("commit", "_put", "remove")}
    write = ingest._write

    def step() -> None:
        if steps["left"] == 0:
            raise Killed
        steps["left"] -= 1

    def around(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            step()
            result = function(*arguments)
            step()
            return result

        return call

    for name, function in real.items():
        monkeypatch.setattr(Fleet, name, around(function))
    monkeypatch.setattr(ingest, "_write", around(write))
    kills = 0
    for left in itertools.count():
        steps["left"] = left
        try:
            ingest.ingest(spark, str(tmp_path / "in"), str(tmp_path / "out"))
        except Killed:
            kills += 1
            assert kills < 20
            continue
        break
    assert kills >= 8  # two writes, as lines are there twice; a removal; an entry
    steps["left"] = 10**9
    fleet = Fleet(spark, str(tmp_path / "out"))
    assert lines_in(fleet) == (truth.operator_rows, truth.operator_rows)
    folders = {path.name for path in (tmp_path / "out" / "data").iterdir()}
    assert folders == {
        f"batch={batch.folder}" for batch in fleet.batches
    }  # nothing is left of the killed


def test_of_two_at_once_one_gets_the_number(spark: "SparkSession", tmp_path: Path) -> None:
    one, other = (Fleet(spark, str(tmp_path)) for _ in range(2))
    one.commit(Batch(folder=one.new_folder()))
    with pytest.raises(Taken):
        other.commit(Batch(folder=other.new_folder()))
    other.refresh()
    other.commit(Batch(folder=other.new_folder()))
    assert len(Fleet(spark, str(tmp_path)).batches) == 2


def test_another_commits_and_cleans_up_meanwhile(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = generate.generate(tmp_path / "in", SMALL)
    out, write = str(tmp_path / "out"), ingest._write
    gone: list[int] = []

    def meanwhile(*arguments: Any) -> None:
        write(*arguments)
        if not gone:
            other = Fleet(spark, out)
            other.commit(Batch(folder=other.new_folder()))
            gone.append(other.clean())

    monkeypatch.setattr(ingest, "_write", meanwhile)
    assert ingest.ingest(spark, str(tmp_path / "in"), out).rows == truth.operator_rows
    assert gone == [1]
    fleet = Fleet(spark, out)
    assert lines_in(fleet) == (truth.operator_rows, truth.operator_rows)
    folders = {path.name for path in (tmp_path / "out" / "data").iterdir()}
    assert folders == {f"batch={fleet.batches[1].folder}"}


def test_a_file_that_others_took_is_known_once(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else takes one of three files, and then another one, while a batch is written."""
    (tmp_path / "in").mkdir()
    for at in range(3):
        name = f"gw-{at}-20270115T080000Z-1.jsonl.gz"
        (tmp_path / "in" / name).write_bytes(recorded(f"gw-{at}", 1, 3, "boot"))
    out, taken = str(tmp_path / "out"), ingest.entered
    others = ["*/gw-0-*", "*/gw-1-*"]

    def entered(fleet: Fleet, written: Callable[[], Batch]) -> Batch:
        if not others:
            return taken(fleet, written)
        monkeypatch.setattr(ingest, "entered", taken)
        ingest.ingest(spark, str(tmp_path / others.pop(0)), out)
        monkeypatch.setattr(ingest, "entered", entered)
        fleet.refresh()
        raise Taken

    monkeypatch.setattr(ingest, "entered", entered)
    done = ingest.ingest(spark, str(tmp_path / "in"), out)
    assert (done.files, done.known, done.rows) == (1, 2, 3 * 2)


def test_a_compaction_begins_again_where_another_cleaned_up(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = generate.generate(tmp_path / "in", SMALL)
    out, count = str(tmp_path / "out"), ingest.count
    ingest.ingest(spark, str(tmp_path / "in"), out, batch_bytes=1)
    before = len(Fleet(spark, out).live())
    gone: list[int] = []

    def meanwhile(fleet: Fleet, batch: Batch) -> None:
        if not gone:
            other = Fleet(spark, out)
            other.commit(Batch(folder=other.new_folder()))
            gone.append(other.clean())
        count(fleet, batch)

    monkeypatch.setattr(compact, "count", meanwhile)
    assert compact.compact(Fleet(spark, out))[0] == before
    assert gone == [1]
    assert lines_in(Fleet(spark, out)) == (truth.operator_rows, truth.operator_rows)


def test_the_stream_cleans_up_while_it_goes_on(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate.generate(tmp_path / "in", SMALL)
    monkeypatch.setattr(ingest, "MOST_FILES", 1)
    left = tmp_path / "out" / "data" / "batch=00000000-0123abcd"
    seen: list[bool] = []

    def told(_: ingest.Done) -> None:
        seen.append(left.exists())
        left.mkdir(exist_ok=True)  # as of one that was killed

    ingest.follow(
        spark, *(str(tmp_path / name) for name in ("in", "out", "state")), once=True, told=told
    )
    assert len(seen) > 1 and not any(seen)


def test_the_stream_commits_in_the_same_way(spark: "SparkSession", tmp_path: Path) -> None:
    truth = generate.generate(tmp_path / "in", PLAN)
    held = tmp_path / "held"
    held.mkdir()
    late = [Path(shutil.move(path, held)) for path in truth.files[1:4:2]]  # of two nodes
    # As any file system of Hadoop's, by the address.
    source, out, checkpoint = ((tmp_path / name).as_uri() for name in ("in", "out", "checkpoint"))
    ingest.ingest(spark, source, out)
    for path in late:
        shutil.move(path, tmp_path / "in")
    done = ingest.follow(spark, source, out, checkpoint, once=True)
    assert done.files == 2  # what the batch job took in is known to the stream
    assert lines_in(Fleet(spark, out))[0] == truth.operator_rows
    assert ingest.ingest(spark, source, out).files == 0

    # Both batches as one: the same rows, in fewer files; what is known stays known.
    before = sum(1 for _ in tmp_path.glob("out/data/*/kind=operator/*/*.parquet"))
    sums = "sum(tuples_in)", "sum(cpu_us)", "count(DISTINCT file)"
    expected = Fleet(spark, out).read("operator").selectExpr(*sums).collect()
    batches, rows = compact.compact(Fleet(spark, out))
    assert batches == 2
    assert rows > truth.operator_rows  # of other tables, too
    fleet = Fleet(spark, out)
    assert [len(batch.replaces) for batch in fleet.live()] == [2]
    assert lines_in(fleet) == (truth.operator_rows, truth.operator_rows)
    assert fleet.read("operator").selectExpr(*sums).collect() == expected
    folder = fleet.live()[0].folder
    after = sum(1 for _ in tmp_path.glob(f"out/data/batch={folder}/kind=operator/*/*.parquet"))
    assert after < before
    assert compact.compact(fleet) == (0, 0)
    # Readers keep what they had begun to read, for a day.
    assert fleet.clean() == 0
    entry = tmp_path / "out" / "manifest" / f"{len(fleet.batches) - 1:08}.json"
    os.utime(entry, (0, 0))
    assert fleet.clean() == 2
    assert lines_in(fleet)[0] == truth.operator_rows
    assert ingest.ingest(spark, source, out).files == 0


@pytest.mark.parametrize("look_s", [0.0, math.inf])
def test_the_stream_takes_the_rest_of_a_torn_file(
    look_s: float, spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it begins, and now and then, as Spark knows files by their paths alone."""
    monkeypatch.setattr(ingest, "LOOK_S", look_s)
    (tmp_path / "in").mkdir()

    def send(node: str, content: bytes) -> None:
        (tmp_path / "in" / f"{node}-20270115T080000Z-1.jsonl.gz").write_bytes(content)

    def follow(told: Callable[[ingest.Done], None] = lambda _: None) -> int:
        places = (str(tmp_path / name) for name in ("in", "out", "state"))
        return ingest.follow(spark, *places, once=True, told=told).rows

    send("gw-1", recorded("gw-1", 1, 5, "boot")[:-20])
    assert follow() == 4 * 2
    send("gw-1", recorded("gw-1", 1, 7, "boot"))
    assert follow() == 3 * 2

    def meanwhile(done: ingest.Done) -> None:
        if done.files == 1:
            send("gw-1", recorded("gw-1", 1, 8, "boot"))
            send("gw-3", recorded("gw-3", 1, 2, "boot"))

    send("gw-2", recorded("gw-2", 1, 2, "boot"))
    assert follow(meanwhile) == 2 * 2 + 2 * 2 + (look_s == 0) * 2
    assert follow() == (look_s > 0) * 2


@pytest.mark.parametrize("newest_s", [1_800_000_000, 1_925_000_000])
def test_the_stream_takes_what_comes_late(
    newest_s: int, spark: "SparkSession", tmp_path: Path
) -> None:
    """Of a gateway that was away for ten days, or after a file from the future."""
    source, out, checkpoint = (str(tmp_path / name) for name in ("in", "out", "checkpoint"))
    (tmp_path / "in").mkdir()
    for node, modified_s in ("gw-1", newest_s), ("gw-2", 1_800_000_000 - 10 * 86_400):
        path = tmp_path / "in" / f"{node}-20270115T080000Z-1.jsonl.gz"
        path.write_bytes(recorded(node, 1, 3, "boot"))
        os.utime(path, (modified_s, modified_s))
        assert ingest.follow(spark, source, out, checkpoint, once=True).files == 1


def test_another_file_system_of_hadoops(spark: "SparkSession", tmp_path: Path) -> None:
    """One whose files are not this machine's, as far as we can tell: the commit is Hadoop's own."""
    hadoop = cast("Any", spark.sparkContext)._jsc.hadoopConfiguration()
    hadoop.set("fs.viewfs.mounttable.gateways.link./fleet", tmp_path.as_uri())
    truth = generate.generate(tmp_path / "in", SMALL)
    source, out = (f"viewfs://gateways/fleet/{name}" for name in ("in", "out"))
    assert ingest.ingest(spark, source, out).rows == truth.operator_rows
    fleet = Fleet(spark, out)
    assert fleet._local(out) is None
    assert lines_in(fleet) == (truth.operator_rows, truth.operator_rows)
    assert ingest.ingest(spark, source, out).files == 0
    late = Fleet(spark, out)
    late.batches.clear()
    with pytest.raises(Taken):
        late.commit(Batch(folder=late.new_folder()))


def test_nothing_there(spark: "SparkSession", tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no"):
        ingest.ingest(spark, str(tmp_path / "in"), str(tmp_path / "out"))
    (tmp_path / "in").mkdir()
    with pytest.raises(UserError, match="no recorded files"):
        ingest.ingest(spark, str(tmp_path / "in"), str(tmp_path / "out"))


@pytest.mark.parametrize("tell", [held, compare.compare, compact.compact, profile])
def test_a_misspelt_fleet_is_no_empty_one(
    tell: Callable[[Fleet], object], spark: "SparkSession", tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="there are no records in "):
        tell(Fleet(spark, str(tmp_path / "flet")))


def test_a_profile_is_the_truth(spark: "SparkSession", tmp_path: Path) -> None:
    plan = generate.Plan(
        nodes=4, seconds=4 * 3600, file_s=4 * 3600, queries=2, drift_a_day=2.0, level=1
    )
    truth = generate.generate(tmp_path / "in", plan)
    # One whose clock is wrong, and whose query is another one.
    odd = records.Topology(
        node="gw-9", seq=1, t=4_070_908_800_000, engine="lab:1", epoch=1, queries=["q0"],
        ops=["o4", "o0"], query_of=[0, 0], edges=[(0, 1, 7.0)],
    )  # fmt: skip
    name = str(records.FileName.of("gw-9", odd.t, 1))
    (tmp_path / "in" / name).write_bytes(records.encode(odd))
    ingest.ingest(spark, str(tmp_path / "in"), str(tmp_path / "out"))
    made = profile(Fleet(spark, str(tmp_path / "out")))
    assert {query.machine for query in made.queries} == {f"{m}, 2 CPUs" for m in generate.MACHINES}
    for query in made.queries:
        factor = plan.slow_factor if "slow" in query.machine else 1.0
        assert [o.name for o in query.operators] == [f"o{k}" for k in range(5)]
        assert query.edges == [(k, k + 1, 1.0) for k in range(4)]
        for operator in query.operators:
            label = f"{query.name}/{operator.name}"
            assert (operator.nodes, operator.hours) == (2, 8.0)
            assert operator.selectivity == pytest.approx(truth.selectivity[label], rel=0.02)
            assert operator.cost is not None
            drifts = label == "q0/o1"
            expected = truth.cost_us[label] * 1e-6 * factor * (1 + 2.0 * (2 / 24) * drifts)
            assert operator.cost == pytest.approx(expected, rel=0.05)
            assert operator.drift_a_day is not None
            if drifts:
                assert operator.drift_a_day > 1.0
            else:
                assert abs(operator.drift_a_day) < 0.3
            low, middle, high = operator.cost_quantiles
            assert low <= middle <= high  # type: ignore[operator]
    path = tmp_path / "profile.json"
    profiles.write(path, made)
    assert profiles.read(path) == made


def recorded(node: str, first: int, rows: int, boot: str, t: int = 1_800_000_000_000) -> bytes:
    """A file of a node: lines from number `first` on, `rows` records of two operators."""
    start = records.Start(node=node, seq=first, t=t, run=first, boot=boot, machine="m")
    topology = records.Topology(
        node=node, seq=first + 1, t=t, engine="e", epoch=1, queries=["q"], ops=["a", "b"],
        query_of=[0, 0],
    )  # fmt: skip
    lines: list[records.Line] = [start, topology]
    for at in range(rows):
        counted: list[int | None] = [at, at]
        lines.append(
            records.Record(
                node=node, seq=first + 2 + at, t=t + at * 5000, d=5000, engine="e", epoch=1,
                policy=["os"], backend=[""], cpu=counted, tuples_in=counted,
            )
        )  # fmt: skip
    return b"".join(map(records.encode, lines))


def test_lines_count_once_by_what_they_are_not_by_what_their_file_is_called(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """Copies under the same name in two folders, and under others; numbers that begin again on a
    node without a clock; two machines of one name; what cannot be true."""
    rows, name = 20, "gw-1-20270115T080000Z-1.jsonl.gz"
    places = {
        f"a/{name}": recorded("gw-1", 1, rows, "boot-1"),
        f"b/{name}": recorded("gw-1", 1, rows, "boot-1"),  # the same bytes
        "b/gw-1-20270115T080001Z-1.jsonl.gz": recorded("gw-1", 1, rows // 2, "boot-1"),  # a part
        f"c/{name}": recorded("gw-1", 1, rows, "boot-2"),  # it booted, and numbers anew
        f"d/{name}": recorded("gw-1", 1, rows, "boot-3", 1_800_000_000_001),  # another machine
        "e/gw-2-19700101T000000Z-1.jsonl.gz": recorded("gw-2", 1, rows, "boot-4", 60_000),
        f"f/{'x' * 200}-20270115T080000Z-1.jsonl.gz": recorded("x" * 300, 1, rows, "boot-5"),
    }
    for place, content in places.items():
        path = tmp_path / "in" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    out = str(tmp_path / "out")
    done = ingest.ingest(spark, str(tmp_path / "in"), out)
    assert done.rows == 3 * rows * 2  # boot-1, boot-2, boot-3; two operators each
    # Of each copy the records and the topology line.
    assert done.repeated == (rows + 1) + (rows // 2 + 1)
    fleet = Fleet(spark, out)
    reasons = {(r["node"], r["why"]) for r in fleet.read("bad").select("node", "why").collect()}
    assert ("gw-2", "time 60000: the node's clock was not set") in reasons
    assert ("x" * 200, "a node's name of more than 120 bytes") in reasons
    # Sent once more, later, under one more name: nothing is new.
    late = tmp_path / "in" / "g" / "gw-1-20270115T080002Z-1.jsonl.gz"
    late.parent.mkdir()
    late.write_bytes(places[f"c/{name}"])
    again = ingest.ingest(spark, str(tmp_path / "in"), out)
    assert again.rows == 0 and again.repeated == rows + 1


def test_what_comes_late_counts_by_its_run(spark: "SparkSession", tmp_path: Path) -> None:
    """Of a node that numbers anew with each boot; a file that was torn, and comes whole; again."""
    out, t = str(tmp_path / "out"), 1_800_000_000_000

    def sent(number: int, **rows: int) -> int:
        for boot, count in rows.items():
            path = tmp_path / "in" / f"{number}{boot}" / "gw-1-20270115T080000Z-1.jsonl.gz"
            path.parent.mkdir(parents=True)
            path.write_bytes(recorded("gw-1", 1, count, boot, t))
        return ingest.ingest(spark, str(tmp_path / "in"), out).rows

    sent(1, boot1=5)
    expire.expire(Fleet(spark, out), Keep(rows=7), now_s=t / 1e3 + 30 * 86_400)
    assert sent(2, boot1=5, boot2=5) == 5 * 2
    compact.compact(Fleet(spark, out))
    assert sent(3, boot1=5, boot2=8) == 3 * 2
    [row] = Fleet(spark, out).rolled("hour").selectExpr("sum(n) AS n").collect()
    assert row["n"] == (5 + 5 + 3) * 2


def test_a_file_of_before_a_clock_was_set_is_read(spark: "SparkSession", tmp_path: Path) -> None:
    """Its name is older than what counts, its lines are not; it is read once."""
    source, out, t = tmp_path / "in", str(tmp_path / "out"), 1_800_000_000_000
    source.mkdir()

    def rows(name: str) -> int:
        path = source / name
        path.write_bytes(recorded(path.name.partition("-")[0], 1, 3, "boot-1", t))
        os.utime(path, (t / 1e3, t / 1e3))
        return ingest.ingest(spark, str(source), out).rows

    assert rows("a-20270115T080000Z-1.jsonl.gz") == 3 * 2
    expire.expire(Fleet(spark, out), Keep(rows=10, hours=400), now_s=t / 1e3)
    assert rows("b-20210101T000000Z-1.jsonl.gz") == 3 * 2
    done = ingest.ingest(spark, str(source), out)
    assert (done.files, done.known) == (0, 2)


def test_no_file_stops_the_others(spark: "SparkSession", tmp_path: Path) -> None:
    """One that has lost its first line, and so its machine; one whose machine cannot be; one in a
    folder whose name could be a pattern."""
    first, _, rest = recorded("gw-1", 1, 3, "boot-1").partition(b"\n")
    start = records.decode(first)
    assert isinstance(start, records.Start)
    start.node, start.cpus = "gw-2", 3_000_000_000
    (tmp_path / "in").mkdir()
    for node, content in {
        "gw-1": rest,
        "gw-2": records.encode(start) + rest.replace(b"gw-1", b"gw-2"),
        "a[b{c,d}*? %5B\\/gw-3": recorded("gw-3", 1, 3, "boot-3"),
    }.items():
        path = tmp_path / "in" / f"{node}-20270115T080000Z-1.jsonl.gz"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    done = ingest.ingest(spark, str(tmp_path / "in"), str(tmp_path / "out"))
    assert (done.rows, done.bad) == (3 * 3 * 2, 0)
    turns = Fleet(spark, str(tmp_path / "out")).rolled("turn")
    assert {row["node"] for row in turns.collect()} == {"gw-1", "gw-2", "gw-3"}
