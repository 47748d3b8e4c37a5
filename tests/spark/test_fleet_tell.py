"""What the fleet's tables tell, against the truth of generated telemetry."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from sched_ctl.errors import UserError
from sched_ctl.metrics.verdicts import Verdict
from sched_ctl.pipeline import bottlenecks, changes, compare, generate, ingest, rollups, sweep
from sched_ctl.pipeline.bottlenecks import held
from sched_ctl.pipeline.profile import profile
from sched_ctl.pipeline.report import report, totals
from sched_ctl.pipeline.store import Fleet
from sched_ctl.telemetry import profiles, records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A call into the JVM that is broken off takes the connection with it, and all tests that follow.
pytestmark = [pytest.mark.spark, pytest.mark.needs("pyspark", "java"), pytest.mark.timeout(1200)]

PLAN = generate.Plan(
    nodes=4,
    seconds=3600,
    queries=2,
    policies=(("os", 1.0), ("hr", 0.6), ("fcfs", 1.0)),
    policy_s=120,
    fault=(600, 1200),
    fault_nodes=2,
    level=1,
)


@pytest.fixture(scope="module")
def fleet(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    folder = tmp_path_factory.mktemp("fleet")
    generate.generate(folder / "in", PLAN)
    ingest.ingest(spark, str(folder / "in"), str(folder / "out"))
    return Fleet(spark, str(folder / "out"))


def test_the_bottleneck_is_the_one_that_was_made(fleet: Fleet) -> None:
    [found] = held(fleet)
    assert (found.query, found.operator) == ("q0", "o2")
    assert found.verdict is Verdict.SINGLE_THREAD_BOUND
    assert "replicas" in found.advice
    # Its thread runs for .95 of the time, and the source could emit up to ten times as much.
    assert (found.needed, found.replicas) == (3, 1)
    assert found.advice.startswith("fission: more replicas (3 at first, for 1); ")
    assert (found.nodes, found.spans) == (2, 2)
    assert found.held_s == 2 * 600
    assert found.longest_s == 600
    assert found.lost_s == 2 * 2 * 600  # and as long of the one that it held
    assert found.share == pytest.approx(600 / 3600 / 2)


def test_time_of_others_is_lost_once(
    spark: "SparkSession", fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where two things held the operator that held them."""
    engine = held(fleet)[0].engine
    rows = [
        (engine, "gw-0000", "q0", operator, int(verdict), by, 0, length, length)
        for operator, verdict, by, length in (
            ("o2", Verdict.SINGLE_THREAD_BOUND, None, 600_000),
            ("o2", Verdict.CPU_STARVED, None, 200_000),
            ("o1", Verdict.BACKPRESSURED, "o2", 400_000),
        )
    ]
    schema = "engine string, node string, query string, operator string, verdict long, "
    schema += "held_by string, begin long, end long, held long"
    found = spark.createDataFrame(rows, schema)
    monkeypatch.setattr(bottlenecks, "spans", lambda _: found)
    assert [(h.verdict, h.held_s, h.lost_s) for h in held(fleet)] == [
        (Verdict.SINGLE_THREAD_BOUND, 600, 600 + 300),
        (Verdict.CPU_STARVED, 200, 200 + 100),
    ]


def replicated(t: int) -> bytes:
    """A file of 50 records: sources and workers with a name a replica, sinks that share one."""
    start = records.Start(node="gw", seq=1, t=t, cpus=2, machine="m")
    topology = records.Topology(
        node="gw", seq=2, t=t, engine="lab:1", epoch=1, queries=["q"], query_of=[0] * 6,
        ops=["src (1/2)", "src (2/2)", "work (1/2)", "work (2/2)", "sink", "sink"],
        replica=[0, 1] * 3, replicas=[2] * 6,
        edges=[(a, b, 0.5) for a, b in ((0, 2), (0, 3), (1, 2), (1, 3), (2, 4), (3, 5))],
    )  # fmt: skip
    lines: list[records.Line] = [start, topology]
    bound = int(Verdict.SINGLE_THREAD_BOUND)
    for at in range(50):
        lines.append(
            records.Record(
                node="gw", seq=3 + at, t=t + at * 5000, d=5000, engine="lab:1", epoch=1,
                tuples_in=[500] * 6, tuples_out=[500] * 6, cpu=[100_000] * 6,
                verdict=[1, 1, bound, bound, 1, 1],
            )
        )  # fmt: skip
    return b"".join(map(records.encode, lines))


def test_replicas_with_names_of_their_own(spark: "SparkSession", tmp_path: Path) -> None:
    """Each has its rate, whichever it is, and all are counted."""
    t = PLAN.start_s * 1000
    (tmp_path / "in").mkdir()
    name = records.FileName.of("gw", t, 1)
    (tmp_path / "in" / str(name)).write_bytes(replicated(t))
    ingest.ingest(spark, str(tmp_path / "in"), str(tmp_path / "out"))
    fleet = Fleet(spark, str(tmp_path / "out"))
    made = profile(fleet)
    [query] = made.queries
    rates = {one.name: one.input_rate for one in query.operators}
    assert rates.pop("sink") == pytest.approx(200)
    assert list(rates.values()) == pytest.approx([100] * 4)
    assert {one.hours for one in query.operators} == {round(250 / 3600, 3)}
    assert sweep.task(made, ("m, 2 CPUs", "os", 0.5, 1, 5.0))["mean"] > 0
    assert [(one.operator, one.replicas) for one in held(fleet)] == [
        ("work (1/2)", 2),
        ("work (2/2)", 2),
    ]
    slots = changes._series(fleet, t, t + 250_000, 250_000).where("operator = ''")
    assert [row["rate"] for row in slots.collect()] == pytest.approx([6 * 0.1])  # tuples a ms


def test_policies_at_equal_load(fleet: Fleet) -> None:
    found = {(c.policy, c.figure): c for c in compare.compare(fleet)}
    assert {c.base for c in found.values()} == {"os"}
    faster = found["hr", "latency"]
    assert faster.value == pytest.approx(0.6, rel=0.08)
    assert faster.low < 0.63
    assert faster.tells
    assert faster.nodes == 4
    alike = found["fcfs", "latency"]
    assert alike.low < 1.0 < alike.high or abs(alike.value - 1) < 0.05
    assert found["hr", "throughput"].value == pytest.approx(1.0, rel=0.1)
    other = {(c.policy, c.figure): c for c in compare.compare(fleet, "hr")}
    assert other["os", "latency"].value == pytest.approx(1 / faster.value, rel=0.05)
    with pytest.raises(UserError, match="no record is of policy qs"):
        compare.compare(fleet, "qs")


def test_loads_that_nobody_knows_are_not_equal(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = fleet.read("operator")
    silent = rows.drop("cpu_us").selectExpr("*", "CAST(NULL AS BIGINT) AS cpu_us")
    turns = rollups.turns(silent)
    assert {row["step"] for row in turns.select("step").distinct().collect()} == {None}
    monkeypatch.setattr(fleet, "rolled", lambda _: turns)
    assert compare.compare(fleet) == []


def test_times_of_two_sources_are_not_compared(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an engine counts is 0.1 s under each policy; by its queues it is half of that."""
    rows = fleet.read("operator").drop("time_us", "time_source")
    for of_queues in ("policy = 'hr'", "policy = 'hr' AND seq % 2 = 0"):
        told = rows.selectExpr(
            "*",
            f"CAST(IF({of_queues}, 50000, 100000) AS BIGINT) AS time_us",
            f"IF({of_queues}, 'little', 'counted') AS time_source",
        )
        turns = rollups.merged("turn", rollups.turns(told))
        monkeypatch.setattr(fleet, "rolled", lambda _, turns=turns: turns)
        found = {(c.policy, c.figure): c.value for c in compare.compare(fleet)}
        assert found["fcfs", "time"] == pytest.approx(1.0)
        assert found.get(("hr", "time"), 1.0) == pytest.approx(1.0)
        assert (("hr", "time") in found) == ("seq" in of_queues)
        assert found["hr", "throughput"] == pytest.approx(1.0, rel=0.1)


def test_an_hour_shows_no_drift(fleet: Fleet) -> None:
    operators = [one for query in profile(fleet).queries for one in query.operators]
    assert len(operators) == 2 * 10  # on two kinds of machines
    assert all(one.drift_a_day is None and one.cost for one in operators)


def test_the_page_is_whole_and_alone(fleet: Fleet) -> None:
    text = report(fleet)
    assert "4 nodes, 2 queries" in text
    assert text.count("<figure>") == 5
    assert text.count("<svg") == 5
    assert "q0/o2" in text
    assert "single-thread-bound" in text
    assert not re.search(r"src=|href=[^\"]|href=\"[^#]|https?://|\\bnan\\b|None", text)
    assert len(text) < 200_000
    assert "prefers-color-scheme" in text


def test_nodes_and_queries_are_counted_to_the_last(spark: "SparkSession") -> None:
    rows = spark.range(4000).selectExpr(
        "concat('gw-', lpad(id % 200, 4, '0')) AS node",
        *("id % 31 AS query", "1 AS n", "id AS begin", "id + 5 AS end"),
    )
    [found] = totals(rows).collect()
    assert found.asDict() == {"rows": 4000, "nodes": 200, "queries": 31, "begin": 0, "end": 4004}
    [none] = totals(rows.where("begin < 0")).collect()
    assert (none["rows"], none["nodes"], none["end"]) == (0, 0, None)


def test_a_sweep_is_gone_on_with(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operators = [
        profiles.Operator(name="a", cost=1e-3, selectivity=0.1, input_rate=100.0),
        profiles.Operator(name="b", cost=1e-2, selectivity=1.0, input_rate=10.0),
    ]
    made = profiles.Profile(
        queries=[
            profiles.Query(
                engine="lab",
                machine="m, 1 CPUs",
                name="q",
                operators=operators,
                edges=[(0, 1, 1.0)],
            )
        ]
    )
    out = str(tmp_path / "sweep")
    first = sweep.sweep(spark, made, out, ["os", "hr"], [0.5], 1, 5.0)
    assert len(first) == 2
    direct = sweep.task(made, ("m, 1 CPUs", "hr", 0.5, 1, 5.0))
    assert direct in first  # a worker finds what we find
    ran: list[int] = []
    monkeypatch.setattr(sweep, "_runner", lambda *_: ran.append(1))
    assert sweep.sweep(spark, made, out, ["os", "hr"], [0.5], 1, 5.0) == first
    later = structs.replace(made, made="later")
    assert sweep.sweep(spark, later, out, ["os", "hr"], [0.5], 1, 5.0) == first
    assert not ran
    monkeypatch.undo()
    # What tells no median, as results did before, is simulated anew.
    older = str(tmp_path / "older")
    spark.read.parquet(out).drop("p50").write.parquet(older)
    assert sweep.sweep(spark, made, older, ["os", "hr"], [0.5], 1, 5.0) == first
    # What a later profile tells anew is simulated anew.
    [query] = made.queries
    operators = [structs.replace(one, cost=(one.cost or 0.0) * 1.5) for one in query.operators]
    other = structs.replace(later, queries=[structs.replace(query, operators=operators)])
    for at in range(2):  # the second time of what is there
        found = sweep.sweep(spark, other, out, ["os", "hr"], [0.5], 1, 5.0)
        assert [row["policy"] for row in found] == ["os", "hr"], at
        assert all(new["mean"] > old["mean"] for new, old in zip(found, first, strict=True)), at
    with pytest.raises(UserError, match="nosuch"):
        sweep.sweep(spark, made, out, ["nosuch"], [0.5], 1, 5.0)


@pytest.mark.parametrize("factor", [2.0, 1.0])
def test_what_changed_is_what_was_planted(
    factor: float, spark: "SparkSession", tmp_path: Path
) -> None:
    """A cost that doubles on two nodes of three; and the same fleet, where nothing does."""
    hour = 3600
    plan = generate.Plan(
        nodes=3, seconds=5 * hour, file_s=5 * hour, queries=1, seed=41, level=1,
        step=(3 * hour, factor), step_nodes=2,
    )  # fmt: skip
    generate.generate(tmp_path / "in", plan)
    ingest.ingest(spark, str(tmp_path / "in"), str(tmp_path / "out"))
    found, left_out = changes.changes(Fleet(spark, str(tmp_path / "out")))
    assert left_out == 0
    if factor == 1.0:
        assert found == []
        return
    [one] = found
    assert (one.figure, one.label, one.drifts) == ("cost", "q0/o3", False)
    assert one.nodes == ("gw-0000", "gw-0001")
    assert one.begin_ms == (plan.start_s + 3 * hour) * 1000
    assert one.until_ms is None
    assert one.low < 2.0 < one.high
    assert "costs 2.0 times as much on gw-0000, gw-0001 since " in changes.told(one)


@pytest.mark.parametrize("more", [0, 7])
def test_of_many_changes_the_largest_are_told_and_the_others_counted(
    more: int, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of one absurd node come after what happened to several, those of one slot last."""
    monkeypatch.setattr(changes, "MOST", 4)

    def one(name: str, size: float, count: int, figure: str = "cost") -> tuple[Any, ...]:
        return (figure, "q", name, "e", False, 1, size, size, size, 1e-9, ["gw"], count)

    wide = [one("wide", 0.5, 5), one("share", -0.5, 8, "wait"), one("absurd", 1e15, 1)]
    wide.append(one("alone", 3.0, 1))
    small = [one(f"o{n}", 1.3, 1) for n in range(more)]
    rows, left = changes._largest(spark.createDataFrame([*small, *wide], changes.OUT))
    assert [row["operator"] for row in rows] == ["share", "wide", "absurd", "alone"]
    assert left == more
