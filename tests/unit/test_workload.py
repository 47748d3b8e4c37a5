"""Workload files: what is read, what is refused, and the rates that a load means."""

import math
from pathlib import Path

import pytest
from labengine import CHAIN, HEAD, WORKLOADS

from sched_ctl.errors import UserError
from sched_ctl.workloads.demand import cpu_demand, rate_scale, tuple_rates
from sched_ctl.workloads.synthetic import multi, syn
from sched_ctl.workloads.workload import Arrivals, dump, load, load_trace, parse

UNION = HEAD + "op l cost=1\nop r cost=1\nop j cost=1\nedge l j\nedge r j\nsource l\nsource r\n"
JOIN = UNION.replace("op j cost=1", "op j cost=1 window_ms=5")


def test_reads_every_field() -> None:
    text = HEAD + (
        "op a cost=0.2 selectivity=3 # comment\n"
        "\n"
        "op b cost=1 block_probability=0.001 block_max_ms=200\n"
        "op j cost=1 selectivity=0.1 window_ms=100\n"
        "edge a b share=0.25\nedge a j\nedge b j\n"
        "source a rate=2 arrivals=onoff on_ms=5 off_ms=15 shape=1.5\n"
    )
    workload = parse(text)
    (query,) = workload.queries
    assert (workload.name, workload.base_cost_s, query.klass) == ("w", 1e-4, "high")
    a, b, j = query.operators
    assert (a.cost, a.selectivity) == (0.2, 3)
    assert (b.block_probability, b.block_max_s, j.window_s) == (0.001, 0.2, 0.1)
    assert [stream.share for stream in query.streams] == [0.25, 1, 1]
    (source,) = query.sources
    assert (source.rate, source.arrivals) == (2, Arrivals("onoff", 0.005, 0.015, 1.5))


@pytest.mark.parametrize(
    ("text", "line", "named"),
    [
        ("", 1, "workload"),
        ("query q\n", 1, "workload"),
        ("workload w\n", 1, "no query"),
        ("workload w\nop a cost=1\n", 2, "before the first 'query'"),
        (HEAD, 2, "no operators"),
        (HEAD + "operator a cost=1\n", 3, "operator"),
        (HEAD + "op a\n", 3, "cost="),
        (HEAD + "op cost=1\n", 3, "name"),
        (HEAD + "op a cost=-1\n", 3, "cost=-1"),
        (HEAD + "op a cost=nan\n", 3, "cost=nan"),
        (HEAD + "op a cost=inf\n", 3, "cost=inf"),
        (HEAD + "op a cost=1 selectivity=nan\n", 3, "selectivity=nan"),
        (HEAD + "op a cost=1 selectivity=-0.5\n", 3, "selectivity=-0.5"),
        (HEAD + "op a cost=x\n", 3, "cost=x"),
        (HEAD + "op a cost=1 cost=2\n", 3, "twice"),
        (HEAD + "op a cost=1 selectivty=2\n", 3, "selectivty"),
        (HEAD + "op a cost=1 block_probability=0.1\n", 3, "block_max_ms"),
        (HEAD + "op a cost=1 block_probability=2 block_max_ms=1\n", 3, "block_probability=2"),
        (HEAD + "op a=b cost=1\n", 3, "name"),
        (HEAD + "op ../x cost=1\n", 3, "../x"),
        (HEAD + f"op {'a' * 64} cost=1\n", 3, "not a name"),
        (CHAIN + "op a cost=1\n", 7, "operator a is there twice"),
        (CHAIN + "edge a b\n", 7, "edge a b is there twice"),
        (CHAIN + "edge a c\n", 7, "no operator c"),
        (CHAIN + "edge a b2 share=2\n", 7, "share=2"),
        (CHAIN + "op c cost=1\nedge a c share=0\n", 8, "share=0"),
        (CHAIN + "edge b a\n", 6, "source on a"),
        (CHAIN + "op c cost=1\nop d cost=1\nedge c d\nedge d c\nedge b c\n", 9, "cycle"),
        (CHAIN + "op c cost=1\n", 7, "operator c has no input"),
        (CHAIN + "op c cost=1 window_ms=5\nedge b c\n", 7, "window_ms"),
        (UNION + "op k cost=1 window_ms=5\nedge r k\nedge j k\n", 10, "downstream of j"),
        (
            JOIN + "op on cost=1\nop k cost=1 window_ms=5\nedge j on\nedge on k\nedge r k\n",
            11,
            "downstream of j",
        ),
        ('workload w\nquery q class=a"b\n', 2, "class"),
        (CHAIN + "source a\n", 7, "source already"),
        (CHAIN + "source b\n", 7, "source on b"),
        (CHAIN + "source x\n", 7, "no operator x"),
        (CHAIN + "query q\n", 7, "query q is there twice"),
        (CHAIN + "workload w\n", 7, "second"),
        (CHAIN + "op c cost=1\nsource c arrivals=onoff on_ms=1\n", 8, "off_ms"),
        (CHAIN + "op c cost=1\nsource c on_ms=1\n", 8, "on_ms"),
        (CHAIN + "op c cost=1\nsource c arrivals=burst\n", 8, "burst"),
        (CHAIN + "op c cost=1\nsource c arrivals=trace\n", 8, "trace"),
        (CHAIN + "op c cost=1\nsource c rate=0\n", 8, "rate=0"),
        (HEAD + "op a cost=0\nsource a\n", 1, "costs"),
    ],
)
def test_refuses_and_names_line_and_field(text: str, line: int, named: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text, "f.graph")
    assert caught.value.message.startswith(f"f.graph:{line}: ")
    assert named in caught.value.message


def test_suggests_the_near_miss() -> None:
    with pytest.raises(UserError) as caught:
        parse(HEAD + "op a cost=1 selectivty=2\n")
    assert caught.value.hint == "did you mean 'selectivity'?"


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00", b"\x00" * 100, b"workload \xe9\n", b"=" * 10_000, b"op\n" * 50]
)
def test_garbage_is_a_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "garbage.graph"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"garbage\.graph"):
        load(path)


def test_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        load(tmp_path / "none.graph")


@pytest.mark.parametrize(
    ("trace", "named"),
    [("0\n2\n1\n", ":3:"), ("x\n", ":1:"), ("-1\n", ":1:"), ("nan\n", ":1:"), ("", "after time 0")],
)
def test_bad_traces(tmp_path: Path, trace: str, named: str) -> None:
    (tmp_path / "t").write_text(trace)
    with pytest.raises(UserError, match=named):
        load_trace(tmp_path / "t")


def test_a_trace_is_found_beside_its_workload(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("# s\n0\n0.5\n0.5\n2\n")
    assert load_trace(tmp_path / "t") == (0, 0.5, 0.5, 2)
    path = tmp_path / "w.graph"
    path.write_text(HEAD + "op a cost=1\nsource a arrivals=trace trace=t\n")
    assert load(path).queries[0].sources[0].arrivals.trace == "t"
    (tmp_path / "t").unlink()
    with pytest.raises(UserError, match="trace"):
        load(path)


@pytest.mark.parametrize("path", sorted(WORKLOADS.glob("*.graph")), ids=lambda path: path.stem)
def test_shipped_workloads_survive_a_dump(path: Path) -> None:
    workload = load(path)
    assert parse(dump(workload)) == workload


def test_the_made_files_are_what_makes_them() -> None:
    assert load(WORKLOADS / "syn.graph") == syn(1)
    assert load(WORKLOADS / "multi.graph") == multi(1)


def test_rates_of_a_diamond_with_a_split() -> None:
    workload = parse(
        HEAD + "op a cost=1 selectivity=2\nop b cost=1 selectivity=0.5\nop c cost=3\nop d cost=1\n"
        "edge a b\nedge a c share=0.25\nedge b d\nedge c d\nsource a rate=3\n"
    )
    rates = tuple_rates(workload.queries[0], 10)
    assert rates == {"a": 30, "b": 60, "c": 15, "d": 45}
    assert cpu_demand(workload, 10) == 30 + 60 + 45 + 45
    # 180 base costs of 100 us at scale 10 are 0.018 CPUs
    assert rate_scale(workload, 0.018) == pytest.approx(10)
    assert rate_scale(workload, 0.5, cpus=2, base_cost_s=1e-3) == pytest.approx(1000 / 18)


def test_rates_of_a_window_join() -> None:
    workload = parse(
        HEAD + "op l cost=1\nop r cost=1\nop j cost=1 selectivity=0.1 window_ms=500\nop s cost=1\n"
        "edge l j\nedge r j\nedge j s\nsource l rate=2\nsource r rate=3\n"
    )
    rates = tuple_rates(workload.queries[0], 1)
    # Each of 2 left tuples/s meets the right ones of half a second before and after: 3.
    assert rates["s"] == pytest.approx(2 * 3 * 0.1)
    scale = rate_scale(workload, 0.7)
    assert cpu_demand(workload, scale) * workload.base_cost_s == pytest.approx(0.7)


def test_syn_follows_haren() -> None:
    workload = syn(5)
    assert syn(5) == workload != syn(6)
    assert len(workload.queries) == 20
    for query in workload.queries:
        costs = [op.cost for op in query.operators]
        exponent = round(math.log2(sum(costs) / 5))
        assert exponent in range(5)
        assert all(0.899 <= cost / 2**exponent <= 1.101 for cost in costs)
        assert 0.005 < math.prod(op.selectivity for op in query.operators) <= 1
    assert len({round(math.log2(query.operators[0].cost)) for query in workload.queries}) > 2


def test_multi_has_haren_s_classes_and_loads() -> None:
    workload = multi(1)
    demand = {"high": 0.0, "low": 0.0}
    for query in workload.queries:
        rates = tuple_rates(query, 1)
        demand[query.klass] += sum(rates[op.name] * op.cost for op in query.operators)
        assert (query.sources[0].arrivals.kind == "onoff") == (query.klass == "high")
    assert [q.klass for q in workload.queries] == ["high"] * 3 + ["low"] * 10
    assert demand["high"] / sum(demand.values()) == pytest.approx(0.3, rel=1e-3)
