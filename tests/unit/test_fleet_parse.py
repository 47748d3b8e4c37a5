"""Recorded files to rows, without Spark."""

import copy
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
from stress import once

from sched_ctl.drivers.flink.plan import Job, Node, Nodes, Subtask, Vertex, VertexDetail, plan
from sched_ctl.metrics.verdicts import Verdict
from sched_ctl.pipeline import generate, judge, parse
from sched_ctl.telemetry import records

TOPOLOGY = records.Topology(
    node="n",
    seq=1,
    t=1_800_000_000_000,
    engine="lab:1",
    epoch=1,
    queries=["q"],
    ops=["a", "b", "c"],
    query_of=[0, 0, 0],
    edges=[(0, 1, 1.0), (1, 2, 1.0)],
)


def operators(**columns: Any) -> list[dict[str, Any]]:
    """The rows of one record of 5 s."""
    record = records.Record(
        node="n", seq=2, t=TOPOLOGY.t, d=5000, engine="lab:1", epoch=1, psi=[0, 0, 0], **columns
    )
    found = rows_of(TOPOLOGY, record)
    assert not [row["why"] for row in found if row["kind"] == "bad"]
    return [row for row in found if row["kind"] == "operator"]


def rows_of(*lines: records.Line, begun: str = "20270115T080000Z") -> list[dict[str, Any]]:
    """All rows of a file."""
    data = b"".join(map(records.encode, lines))
    batches = parse.of_file(f"n-{begun}-1.jsonl.gz", data)
    return [row for batch in batches for row in batch.to_pylist()]


def kinds_of(*lines: records.Line, begun: str = "20270115T080000Z") -> list[str]:
    """Tables of the rows, sorted."""
    return sorted(row["kind"] for row in rows_of(*lines, begun=begun))


def test_a_job_that_runs_for_days_counts_on() -> None:
    """Its topology may be repeated with the time of its first line; a record is never so old."""
    day_ms = 86_400_000
    old = records.Record(node="n", seq=2, t=TOPOLOGY.t, d=5000, engine="lab:1", epoch=1)
    new = msgspec.structs.replace(old, seq=3, t=TOPOLOGY.t + 2 * day_ms)
    found = kinds_of(TOPOLOGY, old, new, begun="20270117T080000Z")
    assert found == ["bad", "file", "file", *["operator"] * 3, "topology"]


def test_a_file_of_before_clocks_were_set_is_known_for_ever() -> None:
    """As one without a day; its bad lines go with that day. Others as long as their lines."""
    for begun, day in (
        ("19700101T000000Z", "unknown"),
        ("20200101T000000Z", "2027-01-15"),
        ("20270115T080000Z", "2027-01-15"),
        ("20270116T080000Z", "2027-01-16"),
    ):
        wrong = records.Event(node="n", seq=9, t=0, what="error")
        dates = {row["kind"]: row["date"] for row in rows_of(TOPOLOGY, wrong, begun=begun)}
        assert dates["file"] == day
        assert dates["bad"] == f"{begun[:4]}-{begun[4:6]}-{begun[6:8]}"
        assert dates["topology"] == "2027-01-15"
    path = "n-20270115T080000Z-1.jsonl.gz"
    for modified, day in (TOPOLOGY.t + 9 * 86_400_000, "2027-01-24"), (2**62, "2100-01-01"):
        [batch] = parse.of_file(path, records.encode(TOPOLOGY), modified)
        [file] = [row for row in batch.to_pylist() if row["kind"] == "file"]
        assert file["date"] == day  # it is looked at as long


def test_replicas_are_told_with_each_row() -> None:
    two = msgspec.structs.replace(TOPOLOGY, replica=[0, 0, 1], replicas=[1, 2, 2])
    record = records.Record(node="n", seq=2, t=TOPOLOGY.t, d=5000, engine="lab:1", epoch=1)
    rows = rows_of(two, record)
    told = [(r["replica"], r["replicas"]) for r in rows if r["kind"] == "operator"]
    assert told == [(0, 1), (0, 2), (1, 2)]
    assert {row["replicas"] for row in operators(cpu=[1, 1, 1])} == {1}
    two.replicas = [2]
    assert "arrays of different lengths" in {row["why"] for row in rows_of(two)}


def test_what_runs_on_another_node_is_told_by_that_one_alone() -> None:
    record = records.Record(
        node="n", seq=2, t=TOPOLOGY.t, d=5000, engine="lab:1", epoch=1, tuples_in=[1, 2, 3]
    )
    other = msgspec.structs.replace(record, seq=3)
    part = msgspec.structs.replace(TOPOLOGY, threads=[1, 0, 1], away=[0, 1, 0])
    rows = [row for row in rows_of(part, record, other) if row["kind"] == "operator"]
    assert [(row["operator"], row["tuples_in"]) for row in rows] == [("a", 1), ("c", 3)] * 2
    part.away = [1, 1, 1]
    assert kinds_of(part, record) == ["file", "topology"]
    part.away = [1]
    assert "arrays of different lengths" in {row["why"] for row in rows_of(part)}


def of_run(boot: str, *seqs: int, run: int = 1) -> bytes:
    """A file of a run, with records of these numbers."""
    begin = records.Start(node="n", seq=1, t=TOPOLOGY.t, boot=boot, run=run, machine=f"m {boot}")
    topology = msgspec.structs.replace(TOPOLOGY, seq=2)
    record = records.Record(node="n", seq=3, t=TOPOLOGY.t, d=5000, engine="lab:1", epoch=1)
    lines: list[records.Line] = [begin, topology]
    lines += [msgspec.structs.replace(record, seq=seq) for seq in seqs]
    return b"".join(map(records.encode, lines))


def test_files_that_are_put_together_count_by_their_runs() -> None:
    """As by `cat`: of two boots with the same numbers, one of which is there twice."""
    data = of_run("a", 3, 4) + of_run("b", 3) + of_run("a", 3, 4, 5)
    path = "/in/n-20270115T080000Z-1.jsonl.gz"
    rows = [row for batch in parse.of_file(path, data, 7) for row in batch.to_pylist()]
    assert not [row for row in rows if row["kind"] == "bad"]
    told = {(r["boot"], r["seq"], r["machine"]) for r in rows if r["kind"] == "operator"}
    assert told == {("a", k, "m a, 0 CPUs") for k in (3, 4, 5)} | {("b", 3, "m b, 0 CPUs")}
    files = [row for row in rows if row["kind"] == "file"]
    spans = [(r["boot"], r["run"], r["seq"], r["last_seq"]) for r in files]
    assert spans == [("b", 1, 1, 3), ("a", 1, 1, 5)]
    assert [row["size"] for row in files] == [None, len(data)]  # known once
    assert (files[1]["good"], files[1]["repeated"]) == (2 + 3 + 3, 4)


def test_no_file_is_of_more_runs_than_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "MOST_RUNS", 2)
    data = of_run("a", 3) + of_run("b", 3) + of_run("c", 3) + of_run("a", 3, 4)
    path = "/in/n-20270115T080000Z-1.jsonl.gz"
    rows = [row for batch in parse.of_file(path, data, 7) for row in batch.to_pylist()]
    told = {(r["boot"], r["seq"]) for r in rows if r["kind"] == "operator"}
    assert told == {("a", 3), ("b", 3), ("", 3), ("a", 4)}
    assert [row["why"] for row in rows if row["kind"] == "bad"] == ["of more than 2 runs"]
    assert {row["boot"] for row in rows if row["kind"] == "file"} == {"a", "b", ""}


def told_at(*seqs: int) -> bytes:
    """Events of these numbers, which go by no topology."""
    event = records.Event(node="n", t=TOPOLOGY.t, what="error")
    return b"".join(records.encode(msgspec.structs.replace(event, seq=seq)) for seq in seqs)


def numbers_of(data: bytes) -> list[tuple[int, int | None, int | None]]:
    """Run (0: not sure), first and last number of the pieces of a file."""
    path = "/in/n-20270115T080000Z-1.jsonl.gz"
    rows = [row for batch in parse.of_file(path, data, 7) for row in batch.to_pylist()]
    files = [row for row in rows if row["kind"] == "file"]
    assert [row["size"] for row in files] == [None] * (len(files) - 1) + [len(data)]
    return [(row["run"], row["seq"], row["last_seq"]) for row in files]


def test_numbers_that_are_missing_are_no_part_of_a_file() -> None:
    lines = of_run("a", *range(3, 20)).splitlines(keepends=True)
    assert numbers_of(b"".join(lines)) == [(1, 1, 19)]
    assert numbers_of(b"".join(lines[1:])) == [(0, 2, 19)]
    # Behind a hole it is not sure that it is still that run, nor by what its records go.
    holed = lines[:5] + lines[8:]
    assert numbers_of(b"".join(holed)) == [(1, 1, 5), (0, None, None)]
    holed[5:7] = [b"no line\n"] * 2 + holed[6:7]
    assert numbers_of(b"".join(holed)) == [(1, 1, 5), (0, None, None)]
    # A line that cannot be read is explained by itself.
    lines[5] = b"no line\n"
    assert numbers_of(b"".join(lines)) == [(1, 1, 5), (0, 7, 19)]
    lines = of_run("a", *range(3, 20)).splitlines(keepends=True)
    torn = b"".join(lines[:9]) + lines[9][:20] + b"".join(lines[:5])  # the begin is in no line
    assert numbers_of(torn) == [(1, 1, 9), (0, 2, 5)]
    shuffled = lines[:2] + lines[:1:-1]
    assert numbers_of(b"".join(shuffled)) == [(1, 1, 2), (0, None, None)]
    assert numbers_of(b"") == [(0, None, None)]


def test_no_record_goes_by_the_topology_of_another_run() -> None:
    """Of two files that were put together the second one has lost its begin."""
    other = msgspec.structs.replace(TOPOLOGY, seq=51, ops=["x", "y", "z"])
    record = records.Record(node="n", seq=52, t=TOPOLOGY.t, d=5000, engine="lab:1", epoch=1)
    later = [msgspec.structs.replace(record, seq=seq) for seq in (52, 53)]

    def told(*lines: records.Line) -> set[tuple[int, str]]:
        data = of_run("a", 3) + b"".join(map(records.encode, lines))
        batches = parse.of_file("/in/n-20270115T080000Z-1.jsonl.gz", data, 7)
        rows = [row for batch in batches for row in batch.to_pylist()]
        return {(r["seq"], r["operator"]) for r in rows if r["kind"] == "operator"}

    first = {(3, name) for name in TOPOLOGY.ops}
    assert told(*later) == first
    assert told(other, *later) == first | {(seq, name) for seq in (52, 53) for name in other.ops}


def test_whatever_is_put_together_no_record_is_another_operators() -> None:
    """However torn, joined and shuffled (`stress.once`)."""
    chance = random.Random("771 0")
    for number in range(140):
        case = once.case(f"n{number}", chance)
        *parts, whole = ({row for file in each.items() for row in fed(*file)}
                         for each in case.rounds)  # fmt: skip
        assert len(whole) == sum(rows for rows, _ in case.counts.values())
        assert all(part <= whole for part in parts)


def fed(name: str, data: bytes) -> list[tuple[int, int, str, int]]:
    """Number and time of each record of a file, its operators, and what they took."""
    rows = [row for batch in parse.of_file(name, data, 7) for row in batch.to_pylist()]
    told = [row for row in rows if row["kind"] == "operator"]
    return [(row["seq"], row["t"], row["operator"], row["tuples_in"]) for row in told]


def test_no_file_has_more_lines_than_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many holes as lines are known; what is behind is named, and no part of it."""
    monkeypatch.setattr(parse, "MOST_LINES", 50)
    monkeypatch.setattr(parse, "ROWS", 7)
    data = of_run("a", 3) + told_at(*range(5, 200, 2))
    pieces = numbers_of(data)
    assert pieces[0] == (1, 1, 3) and pieces[1:] == [(0, n, n) for n in range(5, 98, 2)]
    path = "/in/n-20270115T080000Z-1.jsonl.gz"
    rows = [row for batch in parse.of_file(path, data, 7) for row in batch.to_pylist()]
    told = [row["why"] for row in rows if row["kind"] == "bad"]
    assert told == ["after more than 50 lines"]
    [file] = [row for row in rows if row["size"]]
    assert (file["good"], file["bad"]) == (50, 101 - 50)
    monkeypatch.setattr(parse, "MOST_PIECES", 20)
    assert len(numbers_of(data)) == 20
    rows = [row for batch in parse.of_file(path, data, 7) for row in batch.to_pylist()]
    told = [row["why"] for row in rows if row["kind"] == "bad"]
    assert told == ["after more than 20 holes"]
    [file] = [row for row in rows if row["size"]]
    assert file["good"] + file["bad"] == 101


def test_lines_that_the_recorder_lost_are_no_hole() -> None:
    """It says how many they were."""
    for count, piece in (4, (1, 8, 9)), (3, (0, 8, 8)):
        event = records.Event(node="n", seq=8, t=TOPOLOGY.t, what="lost", count=count)
        record = records.Record(node="n", seq=9, t=TOPOLOGY.t, d=5000, engine="lab:1", epoch=1)
        lost = records.encode(event) + records.encode(record)
        assert numbers_of(of_run("a", 3) + lost) == [(1, 1, 3), piece]
    # Where the disk was full, they were lost before the file was begun.
    lost = records.encode(msgspec.structs.replace(event, seq=3, count=4))
    lost += records.encode(msgspec.structs.replace(record, seq=4))
    assert numbers_of(of_run("a") + lost) == [(1, 1, 4)]


def test_a_begin_that_is_set_aside_ends_the_run_before() -> None:
    """As of a gateway whose clock was not set yet: nothing of it is taken for the other's."""
    lines = of_run("b", 3, 7).splitlines(keepends=True)
    began = msgspec.json.decode(lines[0], type=dict)
    lines[0] = msgspec.json.encode(began | {"t": 1000}) + b"\n"
    path = "/in/n-20270115T080000Z-1.jsonl.gz"
    data = of_run("a", 3, 4) + b"".join(lines)
    rows = [row for batch in parse.of_file(path, data, 7) for row in batch.to_pylist()]
    assert [row["why"] for row in rows if row["kind"] == "bad"]
    told = {(r["boot"], r["seq"], r["machine"]) for r in rows if r["kind"] == "operator"}
    assert {seq for boot, seq, _ in told if boot == "a"} == {3, 4}
    assert {machine for boot, _, machine in told if boot != "a"} <= {"", None}
    assert {r["last_seq"] for r in rows if r["kind"] == "file" and r["boot"] == "a"} == {4}


def test_no_topology_has_more_threads_than_can_be() -> None:
    many = msgspec.structs.replace(TOPOLOGY, threads=[1, parse.MOST_THREADS, 1])
    assert kinds_of(many) == ["bad", "file"]
    most = msgspec.structs.replace(TOPOLOGY, threads=[0, 1000, 1])
    assert kinds_of(most) == ["file", "topology"]
    n = parse.MOST_THREADS + 1
    none = msgspec.structs.replace(TOPOLOGY, ops=["a"] * n, query_of=[0] * n, threads=[0] * n)
    assert kinds_of(none) == ["bad", "file"]  # each operator has a row all the same


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"edges": [(0, 1, -0.1)]}, "an edge that takes less than nothing, or too much"),
        ({"edges": [(0, 1, 1.7e308)]}, "an edge that takes less than nothing, or too much"),
        ({"edges": [(0, 3, 1.0)]}, "an edge of no operator"),
        ({"queries": ["q", "r", "s", "t"]}, "more queries than operators"),
    ],
)
def test_what_no_profile_could_be_made_of_is_bad(fields: dict[str, Any], why: str) -> None:
    line = msgspec.structs.replace(TOPOLOGY, **fields)
    assert [row["why"] for row in rows_of(line) if row["kind"] == "bad"] == [why]


def test_engines_of_a_file_are_no_more_than_memory_holds() -> None:
    def whys(*lines: records.Topology) -> list[str]:
        return [row["why"] for row in rows_of(*lines) if row["kind"] == "bad"]

    # Of one line: the name of a query is told with each operator, that of one with all it holds.
    n = 2000
    many: dict[str, Any] = {"ops": ["a"] * n, "query_of": [0] * n, "edges": []}
    long = "\N{GRINNING FACE}" * (parse.MOST_BYTES // n // 4)
    refused = "with the file's other engines more than 64 MB"
    for fields in (
        {"queries": [long]},
        {"engine": long},
        {"ops": [long, *["a"] * (n - 1)]},
    ):
        assert whys(msgspec.structs.replace(TOPOLOGY, **{**many, **fields})) == [refused]
    streams = [(0, 1, 1.0)] * 400_000
    other = msgspec.structs.replace(TOPOLOGY, logical_edges=streams)
    half = msgspec.structs.replace(
        TOPOLOGY, **{**many, "seq": 2, "engine": "e", "queries": [long[: len(long) * 2 // 3]]}
    )
    assert whys(half) == whys(other) == []
    last = msgspec.structs.replace(other, seq=3)
    assert whys(half, last) == whys(other, half) == [refused]
    assert whys(half, msgspec.structs.replace(half, seq=3, epoch=2)) == []  # it replaces its own
    empty = msgspec.structs.replace(TOPOLOGY, ops=[], query_of=[], edges=[])
    several = [msgspec.structs.replace(empty, seq=k, engine=str(k)) for k in range(1200)]
    assert len(whys(*several)) == 177


def test_no_name_is_told_anew_for_ever() -> None:
    start = records.Start(node="n", t=TOPOLOGY.t)
    record = records.Record(node="n", seq=2, t=TOPOLOGY.t, d=5000, engine="lab:1", epoch=1)
    word = "x" * (parse.LONGEST_WORD + 1)
    for line in (
        msgspec.structs.replace(start, boot=word),
        msgspec.structs.replace(start, machine=word),
        msgspec.structs.replace(record, policy=[word]),
        msgspec.structs.replace(record, backend=[word]),
    ):
        [bad] = [row for row in rows_of(TOPOLOGY, line) if row["kind"] == "bad"]
        assert bad["why"] == f"a name of more than {parse.LONGEST_WORD} characters"


def test_rows_go_on_before_there_is_too_much_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(parse, "ROWS", 100)
    record = records.Record(node="n", seq=2, t=TOPOLOGY.t, d=5000, engine="lab:1", epoch=1)
    event = records.Event(node="n", t=TOPOLOGY.t, what="error", value="x" * 60_000)

    def sizes(topology: records.Topology, line: records.Record | records.Event) -> list[int]:
        lines = [topology, *(msgspec.structs.replace(line, seq=2 + k) for k in range(90))]
        data = b"".join(map(records.encode, lines))
        path = "n-20270115T080000Z-1.jsonl.gz"
        made = [batch.nbytes for batch in parse.of_file(path, data)]
        whole = [batch.nbytes for batch in parse.rows([pa.record_batch(
            {"path": [path], "content": [data], "t": [0]})])]  # fmt: skip
        assert max(whole) < 3 << 20
        return made

    long = msgspec.structs.replace(TOPOLOGY, ops=["a" * 30_000, "b", "c"])
    for made in (sizes(long, record), sizes(TOPOLOGY, event)):
        assert len(made) > 3 and max(made) < 2 << 20
    monkeypatch.setattr(parse, "ROWS", 20)
    # Records of no rows are held as others are, and so is what only they tell.
    empty = msgspec.structs.replace(TOPOLOGY, ops=[], query_of=[], edges=[])
    assert len(sizes(empty, record)) > 4
    monkeypatch.setattr(parse, "ROWS", 100)
    assert len(sizes(empty, msgspec.structs.replace(record, psi=[0] * 5000))) > 4


def test_what_is_generated_of_days_is_good(tmp_path: Path) -> None:
    plan = generate.Plan(nodes=1, seconds=30 * 3600, file_s=5 * 3600, queries=1, chain=2, level=1)
    files = generate.generate(tmp_path, plan).files
    assert len(files) == 6
    rows = [row for path in files for batch in parse.of_file(str(path), path.read_bytes())
            for row in batch.select(["kind", "good", "bad"]).to_pylist()]  # fmt: skip
    assert [(r["good"], r["bad"]) for r in rows if r["kind"] == "file"] == [(3602, 0)] * 6


def test_what_nobody_judged_is_judged_by_the_gateways_rules() -> None:
    seconds: dict[str, Any] = {
        "cpu": [400_000, 4_900_000, 100_000],
        "wait": [0, 50_000, 0],
        "busy": [400, 5000, 100],
        "full": [4000, 0, 0],
        "tuples_in": [500, 500, 500],
    }
    first, held, last = operators(**seconds)
    assert held["verdict"] == Verdict.SINGLE_THREAD_BOUND
    assert (first["verdict"], first["held_by"]) == (Verdict.BACKPRESSURED, "b")
    assert (last["verdict"], last["held_by"]) == (Verdict.INPUT_BOUND, None)
    # What a gateway said stays.
    told = operators(**seconds, verdict=[2, 2, 2])
    assert [row["verdict"] for row in told] == [2, 2, 2]


def test_what_came_of_it_is_of_the_whole_query() -> None:
    told = operators(cpu=[1, 1, 1], time=[2500], source=["little"])
    assert [(row["time_us"], row["time_source"]) for row in told] == [(2500, "little")] * 3
    assert {row["time_us"] for row in operators(cpu=[1, 1, 1])} == {None}
    assert {row["time_us"] for row in operators(cpu=[1, 1, 1], time=[1, 2])} == {None}, "of whom?"


def test_an_engine_that_tells_no_times_is_judged_by_queues() -> None:
    first, held, last = operators(
        cpu=[400_000, 100_000, 100_000],
        wait=[0, 0, 0],
        tuples_in=[500, 500, 500],
        q=[0, 900, 0],
    )
    assert held["verdict"] == Verdict.IO_BOUND  # it sleeps with work in hand
    assert {first["verdict"], last["verdict"]} == {Verdict.INPUT_BOUND}
    assert [row["verdict"] for row in operators(tuples_in=[1, 1, 1])] == [None] * 3


def random_record(source: random.Random, n: int) -> records.Record:
    """Of any length, with any of the columns, and with gaps in them."""
    names = ("tuples_in", "tuples_out", "cpu", "wait", "busy", "idle", "full", "q")
    most = {"cpu": 5_000_000, "wait": 2_000_000, "q": 3}
    columns: dict[str, Any] = {
        name: [source.choice([None, 0, source.randrange(most.get(name, 5000))]) for _ in range(n)]
        for name in names
        if source.random() < 0.8
    }
    psi: list[int | None] = source.choice([[], [0, 0, None], [0, 0, 9000]])
    length = source.choice([0, 1, 200, 4998, 5000, 5003])
    moment = TOPOLOGY.t + source.randrange(10**6)
    return records.Record(node="n", t=moment, d=length, engine="e", epoch=1, psi=psi, **columns)


@pytest.mark.parametrize(
    "edges", [[(0, 1), (1, 2)], [(0, 1), (1, 0), (1, 2)], [(0, 2), (1, 2)], []]
)
def test_records_judged_together_are_judged_as_each_alone(edges: list[tuple[int, int]]) -> None:
    line = msgspec.structs.replace(TOPOLOGY, edges=[(a, b, 1.0) for a, b in edges])
    source = random.Random(str(edges))
    together = [random_record(source, 3) for _ in range(300)]
    alone = copy.deepcopy(together)
    topology = judge.topology_of(line)
    judge.fill_in([(record, topology) for record in together])
    for record in alone:
        judge.fill_in([(record, topology)])
    assert [(r.verdict, r.by) for r in together] == [(r.verdict, r.by) for r in alone]
    told = {verdict for record in together for verdict in record.verdict or ()}
    assert {Verdict.IO_BOUND, Verdict.MEMORY_BOUND, Verdict.INPUT_BOUND} <= told
    assert any(r.verdict is None for r in together)
    assert bool(edges) == any(row >= 0 for r in together for row in r.by or ())


def test_many_are_judged_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    together = [random_record(random.Random(7), 3) for _ in range(50)]
    parts = copy.deepcopy(together)
    topology = judge.topology_of(TOPOLOGY)
    judge.fill_in([(record, topology) for record in together])
    monkeypatch.setattr(judge, "AT_ONCE", 1)
    judge.fill_in([(record, topology) for record in parts])
    assert parts == together


def test_who_is_held_needs_as_many_replicas_as_its_source_would_feed() -> None:
    """`o1` always runs and takes 100/s; the source is held for four fifths. So three at first."""
    line = msgspec.structs.replace(TOPOLOGY, ops=["o0", "o1", "o2"], query_of=[0, 0, 0])
    line = msgspec.structs.replace(line, edges=[(0, 1, 1.0), (1, 2, 1.0)])
    held = records.Record(
        node="n",
        t=TOPOLOGY.t,
        d=10_000,
        engine="lab:1",
        epoch=1,
        tuples_in=[1000, 1000, 1000],
        tuples_out=[1000, 1000, 1000],
        cpu=[2_000_000, 10_000_000, 500_000],
        full=[8000, 0, 0],
        verdict=[int(v) for v in (Verdict.BACKPRESSURED, Verdict.SINGLE_THREAD_BOUND, 1)],
    )
    free = msgspec.structs.replace(held, verdict=[int(Verdict.INPUT_BOUND)] * 3)
    silent = msgspec.structs.replace(held, cpu=None)
    topology = judge.topology_of(line)
    told = judge.needed([(held, topology), (free, topology), (silent, topology), (held, None)])
    assert told == [[None, 3000, None], None, None, None]
    # Judged together as each alone
    several = [
        (msgspec.structs.replace(held, full=[full, 0, 0], cpu=[2_000_000, cpu, 0]), topology)
        for full in (0, 3000, 8000)
        for cpu in (5_000_000, 9_000_000, 10_000_000)
    ]
    apart = [judge.needed([one])[0] for one in several]
    assert judge.needed(several) == apart
    assert len({of for each in apart if each for of in each if of is not None}) >= 5


def test_an_engine_without_operators_is_not_judged() -> None:
    line = msgspec.structs.replace(TOPOLOGY, ops=[], query_of=[], edges=[])
    record = records.Record(node="n", t=TOPOLOGY.t, d=5000, engine="lab:1", epoch=1, cpu=[])
    judge.fill_in([(record, judge.topology_of(line))])
    assert record.verdict is None


def test_the_longest_names_that_a_driver_gives_can_be_read() -> None:
    """Flink's plan cuts the name of a chain, and says behind it which replica it is."""
    chain = " -> ".join(f"Calc(select=[column_{number}])" for number in range(190))
    assert len(chain) > 5000
    job = Job("a" * 32, "j" * 5000, [Vertex("v", chain, 8)], Nodes([Node("v", [])]))
    twin = msgspec.structs.replace(job, jid="b" * 32)
    subtasks = [Subtask(index, 0, "RUNNING", "tm1") for index in range(8)]
    rows = plan([job, twin], {(one.jid, "v"): VertexDetail(subtasks) for one in (job, twin)}).rows
    made = msgspec.structs.replace(
        TOPOLOGY, queries=[rows[0].query], ops=[row.name for row in rows[:3]], logical=[]
    )
    assert len(made.queries[0]) > 4096 and all(len(name) >= 200 for name in made.ops)
    assert records.decode(records.encode(made)) == made
    record = records.Record(
        node="n", seq=2, t=TOPOLOGY.t, d=5000, engine="lab:1", epoch=1, tuples_in=[1, 2, 3]
    )
    told = records.Event(node="n", seq=3, t=TOPOLOGY.t, what="verdict", about=made.queries[0])
    found = rows_of(made, record, told)
    assert not [row["why"] for row in found if row["kind"] == "bad"]
    assert [row["operator"] for row in found if row["kind"] == "operator"] == made.ops
