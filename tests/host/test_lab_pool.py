"""The pool backend: the engine's own scheduler follows the urgencies that are written."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import labengine
import numpy as np
import pytest

from bench.papers import levels
from sched_ctl.backends.pool import Pool, probe
from sched_ctl.drivers import Target
from sched_ctl.drivers.lab import driver as lab
from sched_ctl.model.options import PoolOptions
from sched_ctl.model.policy import Spacing, UrgencyForm, form
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import Snapshot
from support import wait_until

pytestmark = [pytest.mark.host, pytest.mark.needs("cc")]

# Two queries, each of which would fill the one worker alone, even where work turns out to take a
# third of what the calibration said, as beside a neighbour that has left since.
TWO = """workload two base_cost_us=200
query a
op a0 cost=1
op a1 cost=1
edge a0 a1
source a0
query b
op b0 cost=1
op b1 cost=1
edge b0 b1
source b0
"""


@pytest.fixture
def two(tmp_path: Path) -> Path:
    path = tmp_path / "two.graph"
    path.write_text(TWO)
    return path


@pytest.fixture
def crowded(two: Path) -> Iterator[tuple[Target, lab.LabDriver]]:
    """An engine whose only worker has many times the work it can do."""
    options = ("--threads", "pool:1", "--cpus", 1, "--utilisation", 6)
    with labengine.started(two, *options) as target:
        driver = lab.connect(target)
        try:
            yield target, driver
        finally:
            driver.close()


def schedule(snapshot: Snapshot, urgency: UrgencyForm, scope: str = "s") -> Schedule:
    operators = snapshot.topology.operators
    return Schedule(
        scope,
        "test",
        Spacing.LINEAR,
        tuple(op.threads[0] for op in operators),
        tuple(op.label for op in operators),
        urgency,
        snapshot.columns["head_age"],
        snapshot.columns["queue_size"],
    )


def served(driver: lab.LabDriver, tuples: int = 300) -> Mapping[str, float]:
    """How many tuples the ingresses of both queries process until it is so many together."""
    then = driver.poll(1).columns["tuples_in"]

    def both() -> Mapping[str, float]:
        flow = driver.poll(1).columns["tuples_in"] - then
        return {"a": flow[0], "b": flow[2]} if flow[0] + flow[2] >= tuples else {}

    return wait_until(both, 30)


@pytest.mark.quiet
@pytest.mark.parametrize(
    "urgency",
    [
        lambda favoured: form(4, rank=favoured, static=100 * (1 - favoured)),
        lambda favoured: form(4, static=favoured),
        lambda favoured: form(4, per_second=favoured + 1e-9),
        lambda favoured: form(4, static=favoured * 2, per_tuple=-1e-9),
    ],
    ids=["rank", "static", "per_second", "negative_per_tuple"],
)
def test_the_most_urgent_query_is_served_first(
    crowded: tuple[Target, lab.LabDriver], urgency: object
) -> None:
    assert callable(urgency)
    _, driver = crowded
    pool = Pool()
    snapshot = driver.poll(1)
    of_a = np.array([op.query == "a" for op in snapshot.topology.operators], dtype=float)
    for favoured, first, last in ((of_a, "a", "b"), (1 - of_a, "b", "a")):
        applied = pool.apply(schedule(driver.poll(1), urgency(favoured)))
        assert (applied.problems, applied.gone, applied.writes) == ((), 0, 2)
        shares = served(driver)
        assert shares[first] > 4 * shares[last], shares
    assert pool.restore() == ()


def test_only_differences_are_written_and_drift_is_repaired(
    crowded: tuple[Target, lab.LabDriver],
) -> None:
    _, driver = crowded
    pool, other = Pool(), Pool()
    wanted = schedule(driver.poll(1), form(4, static=np.array([1.0, 2, 3, np.nan])))
    assert pool.apply(wanted).writes == 2
    again = pool.apply(wanted)
    assert (again.writes, again.unchanged) == (0, 4)
    # Unknown is neutral: the median of the known ones.
    assert [pool.applied(thread)["static"] for thread in wanted.threads] == [1, 2, 3, 2]
    other.apply(schedule(driver.poll(1), form(4, static=7)))
    repaired = pool.apply(wanted)
    assert (repaired.writes, repaired.repaired) == (2, 4)
    pool.restore()
    driver.file.refresh()
    assert driver.file["urgency_epoch"] == 0
    assert pool.applied(wanted.threads[0]) == {}


def test_two_scopes_and_their_release(crowded: tuple[Target, lab.LabDriver]) -> None:
    _, driver = crowded
    pool = Pool()
    whole = schedule(driver.poll(1), form(4, static=1))

    def part(rows: slice, static: float, scope: str) -> Schedule:
        n = len(whole.threads[rows])
        return Schedule(
            *(scope, "test", Spacing.LINEAR, whole.threads[rows], whole.operators[rows]),
            *(form(n, static=static), np.zeros(n), np.zeros(n)),
        )

    pool.apply(part(slice(2), 5, "one"))
    pool.apply(part(slice(2, 4), 9, "two"))
    assert [pool.applied(thread)["static"] for thread in whole.threads] == [5, 5, 9, 9]
    pool.apply(part(slice(0), 0, "one"))
    assert [bool(pool.applied(thread)) for thread in whole.threads] == [False, False, True, True]
    pool.apply(part(slice(0), 0, "two"))
    driver.file.refresh()
    assert driver.file["urgency_epoch"] == 0


@pytest.mark.quiet
def test_a_killed_controller_is_forgotten(crowded: tuple[Target, lab.LabDriver]) -> None:
    """Not renewed, the urgencies lapse and the engine's own policy serves the longest queue."""
    _, driver = crowded
    pool = Pool(options=PoolOptions(ttl=1.0))
    snapshot = driver.poll(1)
    of_a = np.array([op.query == "a" for op in snapshot.topology.operators], dtype=float)
    pool.apply(schedule(snapshot, form(4, rank=of_a)))
    shares = served(driver, 100)
    assert shares["a"] > 4 * shares["b"], shares
    wait_until(lambda: (shares := served(driver, 50))["b"] > shares["a"], 20)


def test_an_operator_has_one_worker_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "one.graph"
    path.write_text("workload one base_cost_us=200\nquery q\nop o cost=1\nsource o\n")
    options = ("--threads", "pool:3", "--batch", 4, "--cpus", 1, "--utilisation", 3)
    with labengine.started(path, *options) as target:
        driver = lab.connect(target)
        try:
            then = driver.poll(1)
            wait_until(lambda: driver.poll(1).columns["tuples_in"][0] > 500)
            now = driver.poll(1)
            busy = now.columns["busy_time"] - then.columns["busy_time"]
            assert 0 < busy[0] <= 1.05 * (now.time_s - then.time_s)
        finally:
            driver.close()


def test_an_elastic_pool_follows_the_rule_and_loses_nothing(two: Path) -> None:
    """What it noted of each period leads the rule to the levels that it had."""
    options = ("--threads", "pool:6", "--elastic", 0.1, "--cpus", 0.5, "--utilisation", 0.8)
    results = labengine.run(two, *options, "--duration", 3, "--warmup", 0)
    assert results["left"] == 0
    assert len(results["levels"]) > 5
    state = levels.ruled(1, 6)
    for period in results["levels"]:
        assert period["level"] == state.level
        assert period["seconds"] >= 0.1 and 0 <= period["busy"] <= 1
        state = levels.rule(state, period["throughput"], period["busy"])


@pytest.mark.parametrize("sanitizer", ["address", "undefined", "thread"])
def test_sanitizers_find_nothing_in_an_elastic_pool(sanitizer: str, two: Path) -> None:
    options = ("--threads", "pool:4", "--elastic", 0.1, "--cpus", 0.2, "--bounded", 4)
    results = labengine.run(two, *options, "--duration", 1, sanitizer=sanitizer)
    assert results["left"] == 0


def test_workers_above_the_level_are_parked(two: Path) -> None:
    """Before its first period ends an elastic pool has one worker at work, whatever waits."""
    options = ("--threads", "pool:4", "--elastic", 1000, "--cpus", 1, "--utilisation", 6)
    with labengine.started(two, *options) as target:
        driver = lab.connect(target)
        try:
            then = driver.poll(1)
            served(driver)
            now = driver.poll(1)
            busy = (now.columns["busy_time"] - then.columns["busy_time"]).sum()
            assert 0 < busy <= 1.05 * (now.time_s - then.time_s)
            driver.file.refresh()
            assert (driver.file["workers"], driver.file["level"]) == (4, 1)
        finally:
            driver.close()


def test_probe_says_why_not(two: Path) -> None:
    with labengine.started(two):
        told = probe()
        # Another engine on this machine may run a pool.
        assert told.can or "one thread an operator" in told.because
    with labengine.started(two, "--threads", "pool:1"):
        assert probe().can


def test_kernel_threads_are_refused_and_dead_engines_forgotten(two: Path) -> None:
    pool = Pool()
    with labengine.started(two, "--utilisation", 0.1) as target:
        driver = lab.connect(target)
        snapshot = driver.poll(1)
        told = pool.apply(schedule(snapshot, form(4)))
        assert len(told.problems) == 4
        driver.close()
    with labengine.started(two, "--threads", "pool:1", "--utilisation", 0.1) as target:
        driver = lab.connect(target)
        wanted = schedule(driver.poll(1), form(4))
        assert pool.apply(wanted).writes == 2
        driver.close()
    told = pool.apply(wanted)
    assert (told.gone, told.problems) == (4, ())
    assert pool.restore() == ()
