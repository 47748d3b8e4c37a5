"""Parts of a fleet, what is rolled up by the hour, what expires, and fleets of older versions."""

import json
import math
import os
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from sched_ctl.errors import UserError
from sched_ctl.pipeline import changes, compact, expire, generate, ingest, rollups, trust
from sched_ctl.pipeline.bottlenecks import held
from sched_ctl.pipeline.choice import Choice
from sched_ctl.pipeline.profile import _found, days, profile
from sched_ctl.pipeline.store import Fleet, Keep
from sched_ctl.pipeline.tables import COLUMNS, KINDS, ROLLED, ROLLUPS, WIDE, ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A call into the JVM that is broken off takes the connection with it, and all tests that follow.
pytestmark = [pytest.mark.spark, pytest.mark.needs("pyspark", "java"), pytest.mark.timeout(1200)]

HOUR = 3600
PLAN = generate.Plan(
    nodes=3, seconds=2 * HOUR, file_s=HOUR // 2, queries=2, fault=(HOUR - 300, HOUR + 600),
    fault_nodes=2, level=1,
)  # fmt: skip
BEGIN = PLAN.start_s * 1000
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def out(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> str:
    """Taken in by two batches, the second of which has the second half of each hour."""
    folder = tmp_path_factory.mktemp("time")
    truth = generate.generate(folder / "in", PLAN)
    late = [path for number, path in enumerate(truth.files) if number % 2]
    (folder / "late").mkdir()
    for path in late:
        path.rename(folder / "late" / path.name)
    for place in ("in", "late"):
        ingest.ingest(spark, str(folder / place), str(folder / "out"))
    return str(folder / "out")


def sums(fleet: Fleet) -> tuple[Any, ...]:
    [row] = fleet.rolled("hour").selectExpr("sum(n)", "sum(tuples_in)", "sum(cpu_us)").collect()
    return tuple(row)


def by_rows(fleet: Fleet) -> tuple[Any, ...]:
    rows = fleet.read("operator")
    [row] = rows.selectExpr("count(*)", "sum(tuples_in)", "sum(cpu_us)").collect()
    return tuple(row)


def test_roll_ups_are_the_rows_by_the_hour(spark: "SparkSession", out: str) -> None:
    fleet = Fleet(spark, out)
    assert sums(fleet) == by_rows(fleet)
    assert sums(fleet)[0] == PLAN.nodes * 10 * PLAN.seconds // generate.STEP_S
    merged = rollups.merged("hour", fleet.rolled("hour"))
    assert merged.count() == PLAN.nodes * 10 * 2  # hours that came in two batches are one
    assert rollups.merged("hour", merged).orderBy("node", "operator", "hour").first() == (
        merged.orderBy("node", "operator", "hour").first()
    )
    # A span that goes on in the next hour and the next batch is one.
    [found] = held(fleet)
    assert (found.spans, found.held_s, found.longest_s) == (2, 2 * 900, 900)


def test_a_verb_looks_at_the_hours_nodes_and_queries_that_are_chosen(
    spark: "SparkSession", out: str
) -> None:
    hour = 3_600_000
    late = Fleet(spark, out, Choice(since_ms=BEGIN + hour, nodes=("gw-000?",), queries=("q0",)))
    assert sums(late) == by_rows(late)
    assert sums(late)[0] == PLAN.nodes * 5 * HOUR // generate.STEP_S
    [found] = held(late)
    assert (found.spans, found.held_s) == (2, 2 * 600)  # of those that began before, the rest
    assert {query.name for query in profile(late).queries} == {"q0"}
    one = Fleet(spark, out, Choice(until_ms=BEGIN + hour, nodes=("gw-0001", "gw-9*")))
    [found] = held(one)
    assert (found.nodes, found.held_s) == (1, 300)
    assert days(one) == (BEGIN, BEGIN + hour)
    none = Fleet(spark, out, Choice(since_ms=BEGIN + 30 * DAY_MS))
    assert (held(none), changes.changes(none)) == ([], ([], 0))
    with pytest.raises(UserError, match="no records"):
        profile(none)


def test_rows_go_before_roll_ups_and_stay_gone(spark: "SparkSession", tmp_path: Path) -> None:
    """By command and by rule, files a day later; what comes again of such days is not in."""
    plan = generate.Plan(nodes=1, seconds=60, queries=1, level=1)
    for number, age in enumerate((10, 5, 0)):
        older = generate.Plan(
            nodes=1, seconds=60, queries=1, level=1, seed=number,
            start_s=plan.start_s - age * 86_400,
        )  # fmt: skip
        generate.generate(tmp_path / "in", older)
    source, out = str(tmp_path / "in"), str(tmp_path / "out")
    ingest.ingest(spark, source, out)
    fleet = Fleet(spark, out)
    now_s = plan.start_s + 3600.0

    def there() -> list[int]:
        counts = fleet.read("operator"), fleet.rolled("hour")
        return [frame.select("date").distinct().count() for frame in counts]

    assert there() == [3, 3]
    assert expire.expire(fleet, Keep(rows=7), now_s=now_s)["operator"] == "2026-11-15"
    assert there() == [2, 3]
    assert expire.expire(fleet, Keep(rows=7), now_s=now_s) == {}
    with pytest.raises(UserError, match="longer than roll-ups"):
        expire.expire(fleet, Keep(rows=7, hours=3))
    assert expire.expire(fleet, Keep(rows=3, hours=8), rule=True, now_s=now_s)
    assert there() == [1, 2]
    assert Fleet(spark, out).keep == Keep(rows=3, hours=8)
    assert profile(fleet).queries[0].operators[0].hours == pytest.approx(2 * 60 / 3600, abs=1e-3)
    # Readers keep what they had begun to read, for a day.
    pattern = "out/data/batch=*/kind=operator/date=*"
    assert fleet.clean() == 0 and len(list(tmp_path.glob(pattern))) == 3
    for entry in (tmp_path / "out" / "manifest").iterdir():
        os.utime(entry, (0, 0))
    fleet.refresh()
    written = Path(
        fleet.data(fleet.new_folder()), "kind=operator/date=2000-01-01"
    )  # by somebody else
    written.mkdir(parents=True)
    assert fleet.clean() > 0 and written.exists()
    shutil.rmtree(written.parents[1])
    assert len(list(tmp_path.glob(pattern))) == 1
    assert there() == [1, 2]
    # An ingest follows the rule, by the clock of today: all of it is older.
    again = ingest.ingest(spark, source, out)
    assert again.rows == 0 or (again.rows, again.files) == (60, 1)
    fleet.refresh()
    assert compact.compact(fleet)[1] >= 0
    assert fleet.read("operator").count() <= 60


def test_what_comes_after_its_rows_would_have_gone_is_rolled_up_once(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """A gateway that was away for weeks. What it sends again cannot be told from what is out."""
    plan = generate.Plan(nodes=2, seconds=120, file_s=60, queries=1, level=1)
    first, _, late, later = generate.generate(tmp_path / "made", plan).files
    rows, out = 60, str(tmp_path / "out")  # a file's

    def sent(*paths: Path) -> ingest.Done:
        for path in paths:
            number = len(list(tmp_path.glob("sent*")))
            (tmp_path / f"sent{number}").mkdir()
            shutil.copy(path, tmp_path / f"sent{number}" / path.name)
        return ingest.ingest(spark, str(tmp_path / "sent*"), out)

    sent(first)
    fleet = Fleet(spark, out)
    expire.expire(fleet, Keep(rows=7), now_s=plan.start_s + 30 * 86_400)
    sent(late, late)  # by two ways
    fleet.refresh()
    assert (fleet.read("operator").count(), sums(fleet)[0]) == (0, 2 * rows)
    assert sent(first, late).rows == 0
    sent(later)
    fleet.refresh()
    assert (fleet.read("operator").count(), sums(fleet)[0]) == (0, 3 * rows)
    fleet.clean()
    compact.compact(fleet)
    assert sums(fleet)[0] == 3 * rows


def older(now: Fleet, old: Path) -> Fleet:
    """The same of layout 1: folders by node, files and numbers in the manifest, no roll-ups."""
    (old / "manifest").mkdir(parents=True)
    kinds = ("operator", "topology", "file")
    for number, batch in enumerate(now.batches):
        folder = f"{number:08}-0123abcd"
        rows = now.spark.read.schema(WIDE).parquet(now.data(batch.folder))
        columns = [name for name in COLUMNS if name != "replicas"]  # which later ones have
        rows = rows.where(rows.kind.isin(*kinds)).select(*columns)
        stats = now.read("file", [batch.folder]).collect()
        write(rows, old / "data" / f"batch={folder}", ("kind", "date", "node"))
        entry = {
            "folder": folder,
            "files": [[row["file"], row["size"], row["modified"]] for row in stats],
            "rows": {kind: batch.rows[kind] for kind in kinds},
            "spans": {r["node"]: [[r["seq"], r["last_seq"]]] for r in stats},
        }
        (old / "manifest" / f"{number:08}.json").write_text(json.dumps(entry))
    return Fleet(now.spark, str(old))


def test_a_fleet_of_an_older_version_is_read_and_comes_to_todays_form(
    spark: "SparkSession", out: str, tmp_path: Path
) -> None:
    now = Fleet(spark, out)
    fleet = older(now, tmp_path / "old")
    assert sums(fleet) == sums(now)
    before = held(fleet)
    assert before == held(now)
    # What is in is known, and counts once, whatever form it has.
    source = str(Path(out).parent)
    again = ingest.ingest(spark, f"{source}/in", fleet.out)
    assert (again.files, again.known) == (0, PLAN.nodes * 2)
    fleet.refresh()
    assert compact.compact(fleet)[0] == 2
    assert [batch.layout for batch in fleet.live()] == [2]
    assert sums(fleet) == sums(now)
    assert held(fleet) == before
    assert ingest.ingest(spark, f"{source}/late", fleet.out).files == 0


def test_rows_of_an_older_fleet_stay_till_they_are_rolled_up(
    spark: "SparkSession", out: str, tmp_path: Path
) -> None:
    fleet = older(Fleet(spark, out), tmp_path / "old")
    before = sums(fleet)
    assert expire.expire(fleet, Keep(rows=1), now_s=PLAN.start_s + 10.0 * 86_400)["operator"]
    for entry in (tmp_path / "old" / "manifest").iterdir():
        os.utime(entry, (0, 0))
    fleet.clean()
    assert fleet.read("operator").count() == 0
    assert sums(fleet) == before
    compact.compact(fleet)
    assert sums(fleet) == before
    for entry in (tmp_path / "old" / "manifest").iterdir():
        os.utime(entry, (0, 0))
    fleet.clean()
    assert not list(tmp_path.glob("old/data/batch=*/kind=operator/date=*"))
    assert sums(fleet) == before


class Rolled(Fleet):
    """A fleet of weeks, of which only the roll-ups may be read."""

    def __init__(self, spark: "SparkSession", hours: list[dict[str, Any]]) -> None:
        self.spark, self.choice, self.batches = spark, Choice(), []
        self._hours = spark.createDataFrame(hours, ROLLED["hour"])

    def require(self) -> None:
        pass

    def rolled(self, kind: str) -> Any:
        assert kind == "hour"
        return self._hours

    def read(self, kind: str, folders: Sequence[str] | None = None, *, out: bool = False) -> Any:
        raise AssertionError(kind)


def test_the_fleet_is_there_when_several_nodes_are(spark: "SparkSession") -> None:
    """Three nodes, one of which is right but for a day, and then two."""
    hours: list[dict[str, Any]] = []
    for day, names in (*((at, "abc") for at in range(3)), (3, "ab"), (5000, "c")):
        t = BEGIN + day * DAY_MS
        for node in names:
            row: dict[str, Any] = dict.fromkeys(ROLLUPS["hour"])
            row |= {"date": clock_date(t), "hour": t, "begin": t, "end": t + 9, "node": node}
            hours.append(row | {"n": 7})
    fleet = Rolled(spark, hours)
    assert days(fleet) == (BEGIN, BEGIN + 3 * DAY_MS + 9)
    [told] = trust._of_other_days(fleet).collect()
    assert (told["node"], told["lines"]) == ("c", 7)
    early = Rolled(spark, [row for row in hours if row["hour"] < BEGIN + 5000 * DAY_MS])
    assert days(early) == days(fleet)
    assert trust._of_other_days(early).collect() == []
    assert days(Rolled(spark, [])) is None


def test_weeks_are_read_from_roll_ups(spark: "SparkSession") -> None:
    """A cost that doubles beneath a daily rhythm, on two nodes of three; one hour is absurd."""
    noise, hour_ms = np.random.default_rng(5), 3_600_000
    hours: list[dict[str, Any]] = []
    for at in range(15 * 24):
        t = BEGIN + at * hour_ms
        for node in range(3):
            day = 1 + 0.2 * math.sin(2 * math.pi * at / 24)
            step = 2.0 if node < 2 and at >= 200 else 1.0
            cost = 100 * day * step * float(noise.lognormal(0, 0.03))
            cost = 1e9 if (node, at) == (2, 77) else cost
            tuples = 3.6e5 * day * float(noise.lognormal(0, 0.02))
            row: dict[str, Any] = dict.fromkeys(ROLLUPS["hour"])
            row |= {"date": clock_date(t), "hour": t, "begin": t, "end": t + hour_ms}
            row |= {"node": f"gw-{node}", "machine": "m", "engine": "e", "query": "q"}
            row |= {"operator": "o", "n": 720, "d": 3.6e6, "ms": 3.6e6, "tuples_in": tuples}
            row |= {"counted_in": tuples, "cpu_us": cost * tuples, "cost_us": cost}
            row |= {"wait_us": 1e6, "held_ms": 0.0, "judged_ms": 3.6e6, "rate": tuples / 3600}
            row |= {"tuples_out": tuples, "selectivity": 1.0, "queues": 0.0, "queues_n": 720}
            hours.append(row)
    [one], _ = changes.changes(Rolled(spark, hours))
    assert (one.figure, one.label, one.nodes) == ("cost", "q/o", ("gw-0", "gw-1"))
    assert one.begin_ms == BEGIN + 200 * hour_ms
    assert one.low < 2.0 < one.high


def test_who_emits_once_an_hour_emits_what_it_does(spark: "SparkSession") -> None:
    """And a counter that wrapped round, of who emits nothing, is still one of many."""
    rows: list[dict[str, Any]] = []
    for at in range(720):
        for operator, last in (("window", 18_000), ("sink", 2**40), ("seldom", 10)):
            row: dict[str, Any] = dict.fromkeys(KINDS["operator"])
            row |= {"date": clock_date(BEGIN), "node": "gw", "engine": "e", "query": "q"}
            row |= {"operator": operator, "seq": at, "t": BEGIN + at * 5000, "d": 5000}
            row |= {"tuples_in": 50, "tuples_out": last if at == 719 else 0}
            rows.append(row)
    found = rollups.hours(spark.createDataFrame(rows, ddl(KINDS["operator"]))).collect()
    told = {row["operator"]: row["selectivity"] for row in found}
    assert told == {"window": 0.5, "sink": 0.0, "seldom": pytest.approx(10 / 36_000)}


def test_records_that_tell_one_side_are_no_part_of_a_ratio(spark: "SparkSession") -> None:
    """Of four records two know alone what came in, and one what went out."""
    rows: list[dict[str, Any]] = []
    for at in range(720):
        row: dict[str, Any] = dict.fromkeys(KINDS["operator"])
        row |= {"date": clock_date(BEGIN), "node": "gw", "engine": "e", "query": "q"}
        row |= {"operator": "o", "seq": at, "t": BEGIN + at * 5000, "d": 5000}
        row |= {"tuples_in": None if at % 4 == 1 else 50, "tuples_out": 25 if at % 2 else None}
        rows.append(row)
    [hour] = rollups.hours(spark.createDataFrame(rows, ddl(KINDS["operator"]))).collect()
    assert (hour["selectivity"], hour["rate"]) == pytest.approx((0.5, 10.0))


def test_entries_of_an_hour_count_for_what_they_are_of(spark: "SparkSession") -> None:
    """Fifty minutes without a tuple, then ten with many; and one entry of several is absurd."""

    def entry(**told: Any) -> dict[str, Any]:
        row: dict[str, Any] = dict.fromkeys(ROLLUPS["hour"])
        row |= {"date": clock_date(BEGIN), "hour": BEGIN, "node": "gw", "engine": "e"}
        return row | {"query": "q", "operator": "o", "machine": "m"} | told

    def together(*entries: dict[str, Any]) -> Any:
        [row] = rollups.merged("hour", spark.createDataFrame([*entries], ROLLED["hour"])).collect()
        return row

    idle = entry(ms=3e6, rate=0.0, tuples_in=0.0, counted_in=0.0)
    busy = entry(ms=6e5, rate=600.0, tuples_in=3.6e5, counted_in=3.6e5, cost_us=9.0)
    few = entry(tuples_in=4e4, counted_in=4e4, cost_us=19.0, selectivity=0.5)
    found = together(idle, busy, few)
    assert found["rate"] == pytest.approx(100)
    assert found["cost_us"] == pytest.approx(10)
    assert (found["selectivity"], found["needed"]) == (0.5, None)
    wild = entry(counted_in=1e3, cost_us=1e12)
    assert together(busy, busy, few, wild)["cost_us"] == pytest.approx(8 * 14)


def test_hours_in_which_nobody_counted_have_no_rate(spark: "SparkSession") -> None:
    """A job that does not run for 8 of 24 hours; and an hour that is absurd counts 8 times."""
    hours: list[dict[str, Any]] = []
    for at in range(24):
        row: dict[str, Any] = dict.fromkeys(ROLLUPS["hour"])
        row |= {"date": clock_date(BEGIN), "hour": BEGIN + at * 3_600_000, "node": "gw", "n": 720}
        row |= {"engine": "e", "machine": "m", "query": "q", "operator": "o", "ms": 3.6e6}
        row |= {"d": 3.6e6, "rate": None if at < 8 else 1e9 if at == 23 else 100.0}
        hours.append(row)
    [found] = _found(Rolled(spark, hours), BEGIN, BEGIN + DAY_MS).collect()
    assert found["rate"] == pytest.approx((15 * 100 + 800) / 16)
    assert found["hours"] == 24


def test_waits_are_shares_of_the_time_that_tells_them(spark: "SparkSession") -> None:
    """Half of each record's, of which every other does not know; roll-ups of before had no time."""
    rows: list[dict[str, Any]] = []
    for at in range(720):
        row: dict[str, Any] = dict.fromkeys(KINDS["operator"])
        row |= {"date": clock_date(BEGIN), "node": "gw", "engine": "e", "machine": "m"}
        row |= {"query": "q", "operator": "o", "seq": at, "t": BEGIN + at * 5000, "d": 5000}
        rows.append(row | {"wait_us": 2_500_000 if at % 2 else None})
    schema = ddl(KINDS["operator"])
    [hour] = rollups.hours(spark.createDataFrame(rows, schema)).collect()
    before = hour.asDict() | {"wait_us": 1.8e9, "waited_ms": None}
    silent = hour.asDict() | {"wait_us": None, "waited_ms": None}
    for hours in ([hour.asDict()], [hour.asDict(), silent], [hour.asDict(), before]):
        [found] = _found(Rolled(spark, hours), BEGIN, BEGIN + DAY_MS).collect()
        assert found["wait"] == pytest.approx(0.5)
    fleet: Any = SimpleNamespace(read=lambda _: spark.createDataFrame(rows, schema))
    slots = changes._series(fleet, BEGIN, BEGIN + 3_600_000, 1_800_000).where("operator = 'o'")
    assert [row["wait"] for row in slots.collect()] == pytest.approx([0.5, 0.5])


def clock_date(t_ms: int) -> str:
    return datetime.fromtimestamp(t_ms / 1e3, UTC).strftime("%Y-%m-%d")


def write(rows: Any, folder: Path, partitions: Sequence[str]) -> None:
    rows.write.partitionBy(*partitions).parquet(str(folder))


def test_where_no_commit_is_sure_there_is_no_fleet(spark: "SparkSession") -> None:
    for address in ("s3a://bucket/fleet", "gs://bucket/fleet", "abfss://a@b/fleet"):
        with pytest.raises(UserError, match="a fleet cannot be on"):
            Fleet(spark, address)


def test_no_record_moves_an_hour(spark: "SparkSession", tmp_path: Path) -> None:
    """Of each hour one record with counters that are absurd, and not so that ingest can know."""
    plan = generate.Plan(nodes=2, seconds=HOUR, queries=1, level=1)
    generate.generate(tmp_path / "in", plan)
    ingest.ingest(spark, str(tmp_path / "in"), str(tmp_path / "out"))
    rows = Fleet(spark, str(tmp_path / "out")).read("operator")
    bad = rows.where(f"t = {BEGIN + 600_000}")
    absurd = rows.join(bad.select("node", "t").distinct(), ["node", "t"], "left_anti").unionByName(
        bad.selectExpr(
            *(
                f"CAST(9007199254740991 AS BIGINT) AS {name}"
                if name in ("cpu_us", "tuples_out", "wait_us")
                else name
                for name in rows.columns
            )
        )
    )
    one, other = (
        {
            (r["node"], r["operator"]): r
            for r in rollups.hours(frame).collect()
        }
        for frame in (rows, absurd)
    )  # fmt: skip
    assert one.keys() == other.keys() and len(one) == 10
    for key, row in one.items():
        assert row["needed"] is None, "nobody is held"
        for name in rollups.RATIOS:
            same = None if row[name] is None else pytest.approx(row[name], rel=0.05)
            assert other[key][name] == same, (key, name)
