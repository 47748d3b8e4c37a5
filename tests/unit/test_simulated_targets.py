"""Targets in the simulator: who kept them, what they cost the others, what cannot be met."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from sched_ctl.cli import make_app
from sched_ctl.config.settings import ConfigError
from sched_ctl.metrics.feasibility import Standing
from sched_ctl.model import files as record
from sched_ctl.model.targets import Target
from sched_ctl.sim import Node, Setting, of_workload, simulate
from sched_ctl.sim.result import middle_s
from sched_ctl.sim.targets import judged, kept
from sched_ctl.workloads import workload

WORKLOADS = Path(__file__).parents[2] / "bench" / "workloads"
ALARM, REPORT, HOPELESS = "alarm*=10ms", "report*=100ms", "bulk0=2ms"


def node(*targets: Target, load: float = 0.95) -> Node:
    spec = workload.load(WORKLOADS / "targets.graph")
    return replace(of_workload(spec, load), targets=targets)


def asked(queries: str, latency: str, **more: float) -> Target:
    return Target(queries=(queries,), latency=latency, **more)


def told(*arguments: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(
        make_app(), ["simulate", "targets", "--duration", "10", "--json", *arguments]
    )
    assert done.exit_code == 0, done.output
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def flags(*targets: str) -> list[str]:
    return [part for target in targets for part in ("--target", target)]


def test_each_tuple_counts_for_the_first_target_of_its_query() -> None:
    targets = asked("alarm1", "3ms"), asked("alarm*", "10ms"), asked("report*", "0.1s", share=0.5)
    simulated = node(*targets)
    setting = Setting(scheduler="os", duration_s=5, warm_s=0.5, record=200_000)
    runs = [simulate(simulated, None, replace(setting, seed=seed)) for seed in (1, 2)]
    found = kept(runs)
    assert [part.target for part in found] == [*targets, None]
    assert list(found[0].queries) == ["alarm1"] and "alarm1" not in found[1].queries
    query = np.array([operator.query for operator in simulated.topology.operators])
    for part in found:
        times = [
            one.record[np.isin(query[one.record[:, 0].astype(int)], list(part.queries))]
            for one in runs
        ]
        took = [rows[:, 2] - rows[:, 1] for rows in times]
        assert part.response_s[0] == pytest.approx(np.mean([each.mean() for each in took]))
        for told, part_of in ((part.p50_s, 0.5), (part.p99_s, 0.99)):
            quantile = np.mean([np.quantile(each, part_of) for each in took])
            assert told[0] == pytest.approx(quantile, rel=0.05)
        if part.target is None:
            assert np.isnan(part.met[0]) and np.isnan(part.within_s[0]) and not part.keeps
            continue
        met = [float((each <= part.target.latency_s).mean()) for each in took]
        assert 0 < part.met[0] < 1 and part.met[0] == pytest.approx(np.mean(met))
        within = np.quantile(np.concatenate(took), part.target.share)
        assert part.within_s[0] == pytest.approx(within, rel=0.05)
    assert sum(one.by_target.sum() for one in runs) == sum(one.responses.sum() for one in runs)


def test_who_cannot_meet_a_target_is_judged_as_by_the_controller() -> None:
    targets = asked("alarm*", "10ms"), asked("report*", "100ms"), asked("bulk0", "2ms")
    found = judged(node(*targets), 1)
    assert {query for query, one in found.items() if one.standing is Standing.OVER} == {"bulk0"}
    assert "3 ms of CPU time" in found["bulk0"].why
    heavy = judged(node(asked("*", "10s"), load=1.2), 1)
    assert any("CPUs more" in one.why for one in heavy.values())
    assert not any(one.why for one in judged(node(asked("*", "10s"), load=1.2), 2).values())


def test_a_target_is_shown_beside_what_the_os_and_auto_without_it_do() -> None:
    rows = told("--scheduler", "scx", "-l", "0.95", *flags(ALARM, REPORT, HOPELESS))
    assert [row["policy"] for row in rows] == ["os", "balanced", "deadline"]
    os, _, ours = ({part["target"]: part for part in row["targets"]} for row in rows)
    reports = "0.99 of report* within 100ms"
    assert len(os) == len(ours) == 4 and ours[reports]["keep"] == 2 > os[reports]["keep"]
    assert ours[reports]["figures"]["within_s"]["mean"] < 0.1
    # It is the others who pay.
    assert ours[None]["figures"]["response_s"]["mean"] > os[None]["figures"]["response_s"]["mean"]
    hopeless = ours["0.99 of bulk0 within 2ms"]
    assert hopeless["keep"] == 0 and "target above" in hopeless["cannot"]["bulk0"]
    assert not ours[reports]["cannot"]


def test_without_targets_nothing_is_told_of_them() -> None:
    assert [row["targets"] for row in told("-p", "hr", "-l", "0.5")] == [[]]


def test_they_stand_on_the_screen_with_what_they_cost() -> None:
    arguments = ["simulate", "targets", "--duration", "5", *flags(ALARM, HOPELESS)]
    runner = CliRunner(env={"COLUMNS": "200"})
    shown = runner.invoke(make_app(), [*arguments, "--scheduler", "os", "-l", "0.9"]).stdout
    told = " ".join(shown.split())
    assert "0.99 of alarm* within 10ms" in told and "(others)" in told and "4 of 4" in told
    assert "at 0.9 under deadline the others' mean is" in told and "their median" in told
    assert "at 0.9 target of bulk0: cannot be met: its path alone takes" in told


def test_a_snapshot_takes_targets(tmp_path: Path) -> None:
    plain = node(load=0.6)
    snapshot = plain.snapshot(1.0, np.zeros(plain.n), np.zeros(plain.n))
    file = tmp_path / "node.json"
    file.write_bytes(msgspec.json.encode(record.snapshot_to_json(snapshot)))
    arguments = ["simulate", str(file), "--duration", "5", "--seeds", "1", "--json", *flags(ALARM)]
    rows = json.loads(CliRunner().invoke(make_app(), arguments).stdout)
    assert [len(row["targets"]) for row in rows] == [2, 2, 2]
    assert len(rows[0]["targets"][0]["queries"]) == 4


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (["alram*=10ms"], "no query of targets"),
        (["alarm*=10ms", "alarm0=5ms"], "alarm0=5ms: its queries have an earlier target"),
        (["alarm*=10"], "has no unit"),
        (["alarm*=0s"], "above 0"),
        (["alarm*=1s,share=nan"], "share"),
        (["alarm*=1s,share=2"], "share"),
    ],
)
def test_a_target_that_cannot_be_is_refused(targets: list[str], message: str) -> None:
    done = CliRunner().invoke(make_app(), ["simulate", "targets", *flags(*targets)])
    assert isinstance(done.exception, ConfigError), done.output
    assert message in done.exception.message and done.exception.hint


def test_who_had_no_tuple_neither_keeps_nor_misses_it() -> None:
    """Nor does a run in which nobody had any count."""
    target = asked("*", "10ms")
    runs = [simulate(node(target), None, Setting(scheduler="os", duration_s=2)) for _ in range(2)]
    [before] = kept(runs)
    empty = replace(
        runs[0],
        columns={name: 0 * column for name, column in runs[0].columns.items()},
        by_target=0 * runs[0].by_target,
    )
    [found] = kept([runs[0], empty])
    [alone] = kept(runs[:1])
    assert found.met[0] == alone.met[0] and found.queries == alone.queries
    assert found.known == len(before.queries)
    none = next(iter(found.queries))
    silent = empty.columns["departed"].copy()
    silent[runs[0].node.query_of != 0] = 1
    [one] = kept([replace(empty, columns={**empty.columns, "departed": silent, "met": silent})])
    assert np.isnan(one.queries[none]) and len(one.keeps) == one.known == len(one.queries) - 1


def test_of_few_tuples_the_worst_counts_for_a_share_that_all_but_it_do_not_make() -> None:
    run = simulate(node(asked("*", "1s")), None, Setting(scheduler="os", duration_s=1, warm_s=0))
    tuples = np.zeros_like(run.by_target)
    tuples[1, 2000], tuples[1, 2100] = 14, 1
    [found] = kept([replace(run, by_target=tuples)])
    assert found.within_s[0] == pytest.approx(middle_s(2100))
