"""Profiles: files, what a controller starts from, and what the simulator runs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from plans import array, plan
from sched_ctl.decide.decision import decide
from sched_ctl.errors import UserError
from sched_ctl.metrics.catalogue import evaluate, resolve
from sched_ctl.metrics.window import Window
from sched_ctl.model.policy import Level
from sched_ctl.model.topology import Snapshot
from sched_ctl.plugins import registry
from sched_ctl.sim import Setting, of_snapshot, simulate
from sched_ctl.telemetry import profiles

HERE, THERE = "fast, 2 CPUs", "slow, 4 CPUs"


def made(machine: str, cost: float) -> profiles.Query:
    return profiles.Query(
        engine="lab",
        machine=machine,
        name="q",
        operators=[
            profiles.Operator(name="a", cost=cost, selectivity=0.5, input_rate=100.0),
            profiles.Operator(name="b", cost=10 * cost, selectivity=1.0, input_rate=50.0),
        ],
        edges=[(0, 1, 1.0)],
    )


PROFILE = profiles.Profile(queries=[made(HERE, 0.001), made(THERE, 0.004)])
TOPOLOGY = plan({"q": ["a", "b", "new"]})


def test_of_like_machines_first() -> None:
    found = profiles.priors(PROFILE, TOPOLOGY, HERE)
    assert np.array_equal(found["cost"], array(0.001, 0.01, np.nan), equal_nan=True)
    elsewhere = profiles.priors(PROFILE, TOPOLOGY, "another")
    assert elsewhere["cost"][0] == 0.0025  # the median of all
    other_kind = plan({"q": ["a"]}, engine="flink:1")
    assert np.isnan(profiles.priors(PROFILE, other_kind, HERE)["cost"]).all()


@pytest.mark.parametrize("level", list(Level))
def test_a_prior_holds_until_something_is_measured(level: Level) -> None:
    counters = {name: array(0, 0, 0) for name in ("tuples_in", "tuples_out", "cpu_time")}
    fresh = Snapshot(TOPOLOGY, 1.0, counters, priors=profiles.priors(PROFILE, TOPOLOGY, HERE))
    needs = resolve(["cost", "selectivity"], counters, policy="x", engine="lab:1")
    columns = evaluate(needs, Window(fresh, None, level))
    assert np.array_equal(columns["cost"], array(0.001, 0.01, np.nan), equal_nan=True)
    assert np.array_equal(columns["selectivity"], array(0.5, 1, np.nan), equal_nan=True)
    measured = replace(
        fresh, columns={n: array(v, 0, 0) for n, v in zip(counters, (10, 10, 0.5), strict=True)}
    )
    columns = evaluate(needs, Window(measured, None, level))
    assert columns["cost"][:2].tolist() == [0.05, 0.01]
    assert columns["selectivity"][:2].tolist() == [1.0, 1.0]


def test_the_order_is_right_from_the_first_snapshot() -> None:
    topology = plan({"q": ["a", "b"]})
    counters = {name: array(0, 0) for name in ("tuples_in", "tuples_out", "cpu_time")}
    policy = registry.policy("hr")
    places = []
    for priors in ({}, profiles.priors(PROFILE, topology, HERE)):
        window = Window(Snapshot(topology, 1.0, counters, priors=priors))
        resolution = resolve(policy.needs, counters, policy="hr", engine="lab:1")
        schedule = decide("s", policy, {"lab:1": window}, {"lab:1": resolution})
        places.append(schedule.form.static.tolist())
    assert np.isnan(places[0]).all()
    # Output by cost, down to the end: 0.5 / (0.001 + 0.5 * 0.01), and 1 / 0.01
    assert places[1] == pytest.approx([0.5 / 0.006, 100.0])


def test_the_simulator_runs_a_profile() -> None:
    node = of_snapshot(profiles.snapshot(PROFILE, HERE), 0.5, 1)
    result = simulate(node, registry.policy("hr"), Setting(scheduler="user", duration_s=20, seed=1))
    assert result.stable
    assert result.summary().throughput == pytest.approx(0.5 * 0.5 / 0.006, rel=0.2)
    with pytest.raises(UserError, match="no machine"):
        profiles.snapshot(PROFILE, "none")


def test_what_tuples_seldom_come_to_takes_no_time() -> None:
    """A branch that is rarely taken, and what follows on nothing."""
    query = made(HERE, 0.001)
    query.operators += [
        profiles.Operator(name="rare", input_rate=0.001),
        profiles.Operator(name="never"),
    ]
    query.edges += [(0, 2, 0.01), (2, 3, 1.0)]
    silent = made(HERE, 0.001)
    silent.operators[0].input_rate = None
    unknown = made(HERE, 0.001)
    unknown.operators[1].cost = None
    seen = profiles.snapshot(profiles.Profile(queries=[silent, query, unknown]), HERE)
    assert [o.name for o in seen.topology.operators] == ["a", "b", "rare", "never"]
    node = of_snapshot(seen, 0.5, 1)
    assert seen.columns["cost"].tolist() == [0.001, 0.01, 0.0, 0.0]
    assert node.demand == pytest.approx(0.5)
    setting = Setting(scheduler="scx", duration_s=5, seed=1)
    for policy in ("hr", "bsd", "fcfs", "qs", "balanced"):
        assert simulate(node, registry.policy(policy), setting).stable
    with pytest.raises(UserError, match="no costs of what runs"):
        profiles.snapshot(profiles.Profile(queries=[silent, unknown]), HERE)


def test_what_nobody_counted_is_not_free_where_what_follows_is_busy() -> None:
    query = made(HERE, 0.001)
    query.operators.insert(1, profiles.Operator(name="unknown"))
    query.edges = [(0, 1, 1.0), (1, 2, 1.0)]
    with pytest.raises(UserError, match="no costs of what runs"):
        profiles.snapshot(profiles.Profile(queries=[query]), HERE)
    for busy in (True, False):
        query = made(HERE, 0.001)
        query.operators += [
            profiles.Operator(name=name, cost=cost, selectivity=cost)
            for name, cost in (("unknown", None), ("known", 1.0), ("last", 1.0))
        ]
        query.operators[-1].input_rate = 50.0 if busy else 0.001
        query.edges += [(0, 2, 1.0), (2, 3, 1.0), (3, 4, 1.0)]
        assert profiles._told(query) == (not busy)


def test_a_file_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    profiles.write(path, PROFILE)
    assert profiles.read(path) == PROFILE


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no profile"),
        ("[]", "no profile"),
        ('{"kind":"snapshot"}', "no profile"),
        ('{"kind":"profile","queries":[],"version":7}', "version 7"),
        (
            '{"kind":"profile","queries":[{"engine":"e","machine":"m","name":"q","operators":[],'
            '"edges":[[0,1,1]]}]}',
            "an edge of no operator",
        ),
        (
            '{"kind":"profile","queries":[{"engine":"e","machine":"m","name":"q",'
            '"operators":[{"name":"a","cost":-1}]}]}',
            "cost",
        ),
    ],
)
def test_what_is_no_profile(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(UserError, match=why):
        profiles.read(path)
