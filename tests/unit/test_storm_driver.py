"""The Storm driver's parts, on metric lines and thread names of a Storm 2.8.3 cluster."""

import math
import os
from types import SimpleNamespace

import numpy as np
import pytest

from sched_ctl.drivers import Target, threadnames
from sched_ctl.drivers.believed import Believed, nobody
from sched_ctl.drivers.sources.graphite import Series
from sched_ctl.drivers.storm import driver, scaling, workers
from sched_ctl.drivers.storm.driver import _once
from sched_ctl.drivers.storm.plan import Executor, executors, plan, same
from sched_ctl.drivers.storm.reading import Reading
from sched_ctl.drivers.storm.series import Measure, Sampled, is_read, take_apart
from sched_ctl.drivers.storm.workers import Worker, addresses, chosen, query_of
from sched_ctl.errors import EngineError
from sched_ctl.kernel import hotspot, procfs
from sched_ctl.model.topology import Thread

TOPOLOGY = "lr-1-1795298020"
# A topology with acking in two workers; what a worker reports of itself is left out.
THREADS = """\
Thread-14-__system-executor[-1, -1]
Thread-15-source-executor[8, 8]
Thread-16-last_average_speed-executor[6, 6]
Thread-18-average_speed-executor[2, 2]
Thread-19-toll_pos-executor[13, 13]
Thread-20-toll_las-executor[10, 11]
Worker-Transfer
Thread-15-toll_las-executor[12, 12]
Thread-16-sink-executor[7, 7]
Thread-17-dispatcher-executor[5, 5]
Thread-18-average_speed-executor[3, 3]
Thread-19-__acker-executor[1, 1]
flush-tuple-timer"""
# Without their time, and what the names begin with.
LINES = """\
source.8.6701-receive-queue-population 0
source.default.8.6701-__emit-count-default.count 2000
source.__ack_init.8.6701-__emit-count-__ack_init.count 2000
source.default.8.6701-__emit-count-default.m1_rate 25.33
source.default.8.6701-__ack-count-default.count 1900
source.default.8.6701-__complete-latency-default 12.5
source.late.8.6701-__ack-count-late.count 20
source.late.8.6701-__complete-latency-late 7.5
source.__ack_init.8.6701-__complete-latency-__ack_init 3
sink.default.7.6700-__ack-count-toll_cv:default.count 5
dispatcher.5.6700-receive-queue-population 3
dispatcher.5.6700-receive-queue-overflow 4
dispatcher.5.6700-receive-queue-capacity 64
dispatcher.default.5.6700-__execute-count-source:default.count 1980
dispatcher.__ack_ack.5.6700-__emit-count-__ack_ack.count 1980
dispatcher.default.5.6700-__emit-count-default.count 1500
dispatcher.late.5.6700-__emit-count-late.count 500
average_speed.default.3.6700-__execute-count-dispatcher:default.count 900
average_speed.default.2.6701-__execute-count-dispatcher:default.count 600
average_speed.2.6701-receive-queue-population 11
toll_pos.default.13.6701-__execute-count-dispatcher:late.count 500
toll_las.default.10.6701-__execute-count-last_average_speed:default.count 300
toll_las.default.11.6701-__execute-count-last_average_speed:default.count 300
toll_las.10.6701-receive-queue-population 7
toll_las.11.6701-receive-queue-population 7
__acker.__ack_ack.1.6700-__execute-count-sink:__ack_ack.count 20
sink.default.7.6700-__execute-count-toll_cv:default.count 5
sink.default.7.6700-__execute-count-__system:__tick.count 5
storm.topology.lr-1-1795298020.localhost.__system.-1.6700-memory.heap.used 5
storm.worker.lr-2-1795298021.localhost.sink.default.7.6700-__execute-count-x:default.count 5"""


def test_workers_are_told_by_their_command_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what starts one and holds its line, not another program, not what is no topology."""
    worker = [workers.MAIN, "lr-1-1795298020", "supervisor", "6627", "6700", "id"]
    lines = {
        1: ["java", *worker],
        2: ["java", workers.LOG_WRITER, "java", *worker],
        3: ["java", "org.example.Main", "lr-1-1795298020"],
        4: ["java", workers.MAIN, "none"],
        5: ["java", workers.MAIN],
        6: ["java", *worker],
    }
    monkeypatch.setattr(procfs, "pids", lambda: list(lines))
    monkeypatch.setattr(procfs, "command_line", lines.__getitem__)
    stat = procfs.Stat(1, "java", "S", 0, 0, 0, 77)
    monkeypatch.setattr(procfs, "stat", lambda pid: stat)
    monkeypatch.setattr(procfs, "effective_uid", lambda pid: None if pid == 6 else 1000)
    monkeypatch.setattr(hotspot, "is_hotspot", lambda pid: True)
    [found] = workers.workers()
    assert (found.pid, found.topology, found.uid) == (1, "lr-1-1795298020", 1000)


def running() -> list[Executor]:
    names = {}
    for tid, name in enumerate(THREADS.splitlines()):
        said = threadnames.read("storm", name)
        assert said is not None
        names[Thread(1, tid, 0, name)] = said
    return executors(names)


def reported(lines: str = LINES) -> dict[str, Series]:
    found = {}
    for line in lines.splitlines():
        name, value = line.split()
        if not name.startswith("storm."):
            name = f"storm.worker.{TOPOLOGY}.localhost.{name}"
        found[name] = Series()
        found[name].take(float(value), 100.0)
    return found


def test_the_users_executors_are_operators() -> None:
    assert [(e.component, e.first, e.last) for e in running()] == [
        ("source", 8, 8),
        ("last_average_speed", 6, 6),
        ("average_speed", 2, 2),
        ("toll_pos", 13, 13),
        ("toll_las", 10, 11),
        ("toll_las", 12, 12),
        ("sink", 7, 7),
        ("dispatcher", 5, 5),
        ("average_speed", 3, 3),
    ]


def test_names_of_series() -> None:
    measures = take_apart(TOPOLOGY, reported())
    assert len(measures) == sum(is_read(name) for name in reported() if TOPOLOGY in name)
    found = {(m.what, m.task, m.source, m.stream) for m in measures}
    assert ("emit", 8, "", "default") in found
    assert ("execute", 5, "source", "default") in found
    assert ("receive-queue-overflow", 5, "", "") in found
    # Neither Storm's own streams and components, nor other topologies, nor rates.
    assert not any("__" in m.source or "__" in m.stream for m in measures)
    assert ("complete", 8, "", "late") in found and ("ack", 8, "", "late") in found
    assert not any(m.what == "ack" and m.task == 7 for m in measures), "a bolt's tell nothing"
    assert len(measures) == 21


def test_dots_become_underscores() -> None:
    text = "storm.worker.t-1-1.h_x.my_bolt.a_b.4.6700-__execute-count-my.spout:a.b.count 20"
    (measure,) = take_apart("t-1-1", reported(text))
    assert (measure.task, measure.source, measure.stream) == (4, "my_spout", "a_b")


@pytest.mark.parametrize(
    "name", ["", ".", "h.c.x.6700-__emit-count-s.count", "h.c.5.6700-__emit-count-.count", "h.c.5"]
)
def test_odd_names_are_nothing(name: str) -> None:
    assert take_apart("t-1-1", reported(f"storm.worker.t-1-1.{name} 1")) == []


def test_edges_follow_from_the_names() -> None:
    made = plan("lr", running(), take_apart(TOPOLOGY, reported()))
    names = [operator.name for operator in made.operators]
    assert "average_speed[2-2]" in names and "toll_las[10-11]" in names and "sink" in names
    edges = {(names[e.source], names[e.target]): e.share for e in made.edges}
    assert edges == {
        ("source", "dispatcher"): 1,
        # 1500 of 2000 went to this stream, and 600 of 1500 of them to this executor.
        ("dispatcher", "average_speed[2-2]"): pytest.approx(0.75 * 0.4),
        ("dispatcher", "average_speed[3-3]"): pytest.approx(0.75 * 0.6),
        ("dispatcher", "toll_pos"): 0.25,
        # The third task has not been sent anything.
        ("last_average_speed", "toll_las[10-11]"): 1,
        ("last_average_speed", "toll_las[12-12]"): pytest.approx(1e-6),
    }
    of = [operator.name for operator in made.logical]
    logical = {(of[e.source], of[e.target]): e.share for e in made.logical_edges}
    assert logical["dispatcher", "average_speed"] == 0.75
    assert made.away == ("toll_cv",)
    replicas = [o for o in made.operators if o.logical == ("toll_las",)]
    assert [(o.replica, o.replicas) for o in replicas] == [(0, 2), (1, 2)]


def test_components_with_spaces_and_dots_have_edges() -> None:
    names = {}
    for tid, name in enumerate(("my  spout", "a.b c")):
        said = threadnames.read("storm", f"Thread-1-{name}-executor[{tid + 1}, {tid + 1}]")
        assert said is not None
        names[Thread(1, tid, 0, name)] = said
    text = "a_b-c.s-t.2.6700-__execute-count-my-spout:s-t.count 20"
    made = plan("lr", executors(names), take_apart(TOPOLOGY, reported(text)))
    assert [(made.operators[e.source].name, made.operators[e.target].name) for e in made.edges] == [
        ("my  spout", "a.b c")
    ]
    assert not made.away


def test_a_plan_has_bounds() -> None:
    """Names of threads and of metrics that would make billions of edges, and of tasks."""
    names = {}
    for tid in range(2000):
        name = f"Thread-1-{'ab'[tid % 2]}-executor[{100 * tid}, {100 * tid + 99}]"
        said = threadnames.read("storm", name)
        assert said is not None
        names[Thread(1, tid, 0, name)] = said
    many = executors(names)
    assert sum(len(executor.tasks) for executor in many) <= 20_000
    thin = [Executor("ab"[i % 2], i, i, Thread(1, i, 0, "")) for i in range(2000)]
    series = Series()
    series.take(20, 1.0)
    measures = [Measure("execute", 1, series, f"s{i}", "a") for i in range(20_000)]
    made = plan("q", thin, measures)
    assert made.cut
    assert len(made.edges) <= 100_000


def test_a_plan_is_the_same_while_counts_only_grow() -> None:
    series = reported()
    measures = take_apart(TOPOLOGY, series)
    before = plan("lr", running(), measures)
    for one in series.values():
        one.take(one.value * 3 + 20, 101.0)
    assert same(before, plan("lr", running(), measures))
    late = next(m for m in measures if (m.what, m.stream) == ("emit", "late"))
    late.series.take(60_000, 102.0)
    assert not same(before, plan("lr", running(), measures))


def test_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 100.5)
    executors_here = running()
    made = Reading(executors_here, take_apart(TOPOLOGY, reported()))
    columns = made.columns()
    row = {(e.component, e.first): place for place, e in enumerate(executors_here)}
    queue, taken, given = (columns[n] for n in ("queue_size", "tuples_in", "tuples_out"))
    assert queue[row["dispatcher", 5]] == 7  # with what other workers sent beyond its queue
    assert queue[row["toll_las", 10]] == 7  # not 14: two tasks, one queue
    assert math.isnan(queue[row["sink", 7]])
    assert columns["queue_capacity"][row["dispatcher", 5]] == 64
    assert math.isnan(columns["queue_capacity"][row["sink", 7]])
    assert taken[row["toll_las", 10]] == 600
    assert given[row["dispatcher", 5]] == 2000
    assert math.isnan(taken[row["source", 8]])  # the window takes what it emitted
    assert made.step == 5
    # Long after the last report a queue's length is not known any more, counts stay.
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    later = made.columns()
    assert np.isnan(later["queue_size"]).all()
    assert later["tuples_in"][row["toll_las", 10]] == 600


def test_two_workers_that_report_soon_after_another_are_both_known_until_their_next_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every 10 s each, half a second apart: the period is 10 s, and no queue is unknown between."""
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    series, here = reported(), running()
    made = Reading(here, take_apart(TOPOLOGY, series))
    rows = np.isfinite(made.columns()["queue_size"])
    known = []
    for tick in range(80):
        clock[0] = 100.0 + tick / 2
        for name, one in series.items():
            if tick % 20 == ("toll_las" in name):
                one.take(one.value, clock[0])
        known.append(bool(np.isfinite(made.columns()["queue_size"][rows]).all()))
    assert all(known[21:]), known
    assert made.period_s == pytest.approx(10.0)


def test_reports_that_come_more_often_than_we_look_are_no_rare_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four a second, looked at each five seconds; then one each three seconds indeed."""
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    series = reported()
    made = Reading(running(), take_apart(TOPOLOGY, series))

    def look(times: int, period_s: float) -> float:
        for _ in range(times * 15):
            clock[0] += period_s
            for one in series.values():
                one.take(one.value, clock[0])
            if clock[0] % 5 == 0:
                made.columns()
        return made.period_s

    assert look(40, 0.25) == pytest.approx(0.25)
    assert look(40, 3.0) == pytest.approx(3.0)


def test_what_a_worker_that_has_gone_reported_hides_no_reports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its series stay, with more reports than the new worker's on another port."""
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    new = reported()
    old = {name.replace(".67", ".68"): one for name, one in reported().items()}
    assert not old.keys() & new.keys()
    for one in old.values():
        one.reports = 5000
    made = Reading(running(), take_apart(TOPOLOGY, old | new))
    for _ in range(400):
        clock[0] += 0.25
        for one in new.values():
            one.take(one.value, clock[0])
        if clock[0] % 5 == 0:
            made.columns()
    assert made.period_s == pytest.approx(0.25)


def test_complete_latency_counts_while_tuples_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a spout reports stands still with it; one of two streams that is done is enough."""
    now_s = 100.5
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    series, here = reported(), running()
    made = Reading(here, take_apart(TOPOLOGY, series))
    row = [executor.component for executor in here].index("source")

    def told(acked: float) -> float:
        for name, one in series.items():
            value = acked if name.endswith("__ack-count-late.count") else one.value
            one.take(value, now_s)
        latency = made.columns()["latency"]
        assert np.isnan(np.delete(latency, row)).all(), "of spouts alone"
        return float(latency[row])

    assert math.isnan(told(20)), "nothing was done since we look"
    now_s += 1
    assert told(40) == pytest.approx(0.010), "the mean of 12.5 and 7.5 ms"
    now_s += 4
    assert told(40) == pytest.approx(0.010)
    now_s += 4
    assert math.isnan(told(40)), "nothing was done for 8 s"
    now_s += 1
    assert told(60) == pytest.approx(0.010)


@pytest.mark.parametrize("value", [math.nan, -5.0, 1e300])
def test_hostile_values(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 100.5)
    series = reported()
    for one in series.values():
        one.take(value, 100.0)
    measures = take_apart(TOPOLOGY, series)
    made = plan("lr", running(), measures)
    assert all(0 < edge.share <= 1 for edge in made.edges)
    columns = Reading(running(), measures).columns()
    assert all(((c >= 0) | np.isnan(c)).all() for c in columns.values())


def test_sampled_counts_become_smooth() -> None:
    """50 tuples a second, of which one in 20 counts 20, reported each second and read ten times."""
    random = np.random.default_rng(1)
    smooth = Sampled(1)
    step = np.array([19.0])
    errors, raw, values = [], [], []
    moments = 20 * np.arange(500) + random.integers(0, 20, 500)  # tuples that are sampled
    for tick in range(1200):
        now = tick / 10
        truth = 50 * now
        reported_at = math.floor(now)
        count = 20.0 * (moments < 50 * reported_at).sum()
        (value,) = smooth.update(now, np.array([count]), np.array([float(reported_at)]), step)
        values.append(value)
        if tick > 200:
            errors.append(value - truth)
            raw.append(count - truth)
    assert (np.diff(values) >= 0).all()
    assert np.abs(errors).max() < 60
    assert np.sqrt(np.mean(np.square(errors))) < 0.5 * np.sqrt(np.mean(np.square(raw)))
    # The rate over a second: what windows are made of.
    rates = np.array(values[210:]) - np.array(values[200:-10])
    assert rates.std() < 10
    assert rates.mean() == pytest.approx(50, rel=0.02)


def test_exact_counts_stay_exact() -> None:
    smooth = Sampled(2)
    none = np.zeros(2)
    for now, count in ((0.0, 10.0), (1.0, 17.0), (2.0, 17.0), (3.0, 40.0)):
        value = smooth.update(now, np.array([count, np.nan]), np.array([now, -np.inf]), none)
        assert value[0] == count
        assert math.isnan(value[1])


def test_a_worker_that_was_started_again_counts_from_nothing() -> None:
    smooth = Sampled(1)
    step = np.array([19.0])
    for now in range(10):
        smooth.update(float(now), np.array([1000.0 * now]), np.array([float(now)]), step)
    assert smooth.update(10.0, np.array([40.0]), np.array([10.0]), step)[0] == 40


def test_first_metrics_are_awaited_until_edges_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """`scale` named no operator that could have replicas: the first report came in two parts."""
    now_s = 100.0
    series: dict[str, Series] = {}
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    monkeypatch.setattr(driver, "workers", list)
    monkeypatch.setattr(driver, "slowness", lambda: 1.0)
    for name, value in {"_check_alive": None, "_listen": None, "_look_at_threads": True}.items():
        monkeypatch.setattr(driver.StormDriver, name, lambda *_, value=value: value)
    monkeypatch.setattr(driver.StormDriver, "_series", lambda _: series)
    storm = driver.StormDriver(Target("storm", TOPOLOGY), TOPOLOGY, 0)
    storm._running = tuple(running())

    def said(after_s: float) -> tuple[bool, bool]:
        nonlocal now_s
        now_s += after_s
        return bool(storm.poll(1).topology.edges), storm.waiting

    assert said(0) == (False, True)
    every = reported()
    series.update({name: one for name, one in every.items() if "execute" not in name})
    assert said(1) == (False, True), "a part of a report"
    series.update(every)
    assert said(1) == (True, False)
    storm.close()

    idle = driver.StormDriver(Target("storm", TOPOLOGY), TOPOLOGY, 0)
    series.clear()
    assert idle.waiting
    now_s += driver.FIRST_S
    assert not idle.waiting


def test_a_worker_is_asked_for_its_threads_when_one_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All workers stood still each 10 s: what Storm itself reports has no operator's thread."""
    now_s, looks = 100.0, 0
    own = "__system.-1.6700-receive-queue-population 0\n__acker.1.6700-receive-queue-capacity 9"
    series = reported(f"{LINES}\n{own}")
    names = {
        Thread(1, tid, 0, name): threadnames.read("storm", name)
        for tid, name in enumerate(THREADS.splitlines())
    }

    def looked(_: float) -> None:
        nonlocal looks
        looks += 1

    one = SimpleNamespace(
        alive=True, names=names, trouble="", changed=lambda wanted: wanted, look=looked
    )
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    monkeypatch.setattr(driver, "workers", list)
    monkeypatch.setattr(driver.StormDriver, "_listen", lambda _: None)
    monkeypatch.setattr(driver.StormDriver, "_series", lambda _: series)
    storm = driver.StormDriver(Target("storm", TOPOLOGY), TOPOLOGY, 0)
    storm._workers = {1: one}  # type: ignore[dict-item]
    for _ in range(20):
        for told in series.values():
            told.take(told.value, now_s - 1)
        storm.poll(1)
        now_s += 11.0
    assert looks == 1
    before = storm.poll(1).topology
    acker = Thread(1, 99, 0, "Thread-99-__acker-executor[50, 50]")
    names[acker] = threadnames.read("storm", acker.name)
    after = storm.poll(1).topology
    assert [helper.role for helper in after.helpers if helper.thread == acker] == ["acker"]
    assert after.operators == before.operators and storm.poll(1).topology is after
    now_s += 11.0
    series |= reported("late.99.6700-receive-queue-population 0")
    storm._measures = take_apart(TOPOLOGY, series)
    series[f"storm.worker.{TOPOLOGY}.localhost.late.99.6700-receive-queue-population"].take(
        0.0, now_s - 1
    )
    for _ in range(20):
        storm.poll(1)
        now_s += 11.0
    assert looks == 2, "nothing came of it, and nothing comes any more"
    storm.close()


def worker(pid: int, uid: int, topology: str, pod: str = "") -> Worker:
    return Worker(pid, pid, "storm", topology=topology, uid=uid, pod=pod)


def test_nobody_takes_over_anothers_topology() -> None:
    theirs = [worker(10, 100, "etl-1-5"), worker(12, 100, "etl-1-5"), worker(13, 7, "lr-1-5")]
    found = addresses([worker(11, 666, "etl-1-5"), *theirs], nobody)
    assert {a: w.pid for a, w in found.items()} == {"etl-1-5": 10, "lr-1-5": 13, "etl-1-5@666": 11}
    found = addresses([worker(9, 1001, "etl-1-5"), *theirs], lambda uid: uid < 1000)
    assert {a: w.pid for a, w in found.items()} == {"etl-1-5": 10, "lr-1-5": 13, "etl-1-5@1001": 9}


@pytest.mark.parametrize("uid", [0, 100])
def test_root_of_a_pod_takes_over_nobodys_topology(uid: int) -> None:
    """What is root there is nobody's administrator here."""
    theirs, his = worker(12, 998, "etl-1-5"), worker(11, uid, "etl-1-5", pod="tenant")

    def system(uid: int) -> bool:
        return uid < 1000

    found = addresses([his, theirs], system)
    assert {a: w.pid for a, w in found.items()} == {"etl-1-5": 12, f"etl-1-5@{uid}": 11}
    for address in ("etl-1-5", "etl"):
        assert chosen(Target("storm", address), [his, theirs], system) is theirs
    assert chosen(Target("storm", f"etl-1-5@{uid}"), [his, theirs], system) is his
    assert chosen(Target("storm", "etl-1-5"), [his], system) is his


def test_a_topology_lasts_while_one_of_its_workers_does() -> None:
    assert driver.kind.of_several


@pytest.mark.parametrize("address", ["etl-1-5", "etl-1-5@100"])
def test_a_topology_that_was_found_stays_its_users(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The eldest worker has ended, and another user's has the plain id by now."""
    known = [worker(11, 666, "etl-1-5"), worker(12, 100, "etl-1-5"), worker(13, 100, "etl-1-5")]
    monkeypatch.setattr(driver, "workers", lambda: known)
    assert [target.uid for target in driver.find()] == [666, 100]
    storm = driver.connect(Target("storm", address, 12, 100))
    assert (storm.target.pid, set(storm._workers)) == (12, {12, 13})


@pytest.mark.parametrize("address", ["etl-1-5", "etl"])
@pytest.mark.parametrize("uid", [0, 100])
def test_a_stranger_is_not_in_the_way_of_a_topology_that_was_named(
    address: str, uid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """His looks like a worker of it, came first, and stands first among processes."""
    known = [worker(11, 1001, "etl-1-5"), worker(12, uid, "etl-1-5"), worker(13, 1001, "etl-2-6")]
    for module in (driver, scaling):
        monkeypatch.setattr(module, "workers", lambda: known)
    asked: list[set[int]] = []

    def nimbuses(uids: set[int]) -> list[int]:
        asked.append(uids)
        return []

    monkeypatch.setattr(scaling, "_nimbuses", nimbuses)

    def pid(address: str, believed: Believed) -> int | None:
        target = Target("storm", address)
        with pytest.raises(EngineError, match="Nimbus"):
            scaling.connect(target, believed)
        return driver.connect(target, believed).target.pid

    assert pid(address, lambda uid: uid < 1000) == 12 and asked == [{0, uid}]
    assert pid(f"{address}@{uid}", nobody) == 12
    known.append(worker(14, 1002, "etl-1-5"))
    del known[1]
    with pytest.raises(EngineError, match=r"[23] topologies"):
        driver.connect(Target("storm", address))


def test_a_topology_with_an_at_in_its_name_is_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "workers", lambda: [worker(11, 1001, "a@b-1-5")])
    monkeypatch.setattr(scaling, "_nimbuses", lambda _: ())
    for address in ("a@b-1-5", "a@b-1-5@1001", "a@b"):
        with pytest.raises(EngineError, match=r"^a@b: Nimbus"):
            scaling.connect(Target("storm", address, 11, 1001))


def test_where_no_worker_is_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [worker(os.getpid(), os.getuid(), TOPOLOGY)]
    monkeypatch.setattr(driver, "workers", lambda: known)
    made: list[SimpleNamespace] = []

    def inbox(*_: object) -> SimpleNamespace:
        made.append(SimpleNamespace(closed=[]))
        made[-1].close = lambda inbox=made[-1]: inbox.closed.append(True)
        return made[-1]

    monkeypatch.setattr(driver, "Inbox", inbox)
    storm = driver.StormDriver(Target("storm", TOPOLOGY), TOPOLOGY, os.getuid())
    for _ in range(2):
        storm._listen()
    assert len(made) == 1 and not made[0].closed
    storm._workers.clear()  # it has ended, and its container with it
    storm._listen()
    assert not storm._inboxes and made[0].closed == [True]


@pytest.mark.parametrize(("took_s", "rests_s"), [(0.001, 5.0), (0.2, 20.0), (9.0, 60.0)])
def test_a_machine_of_many_processes_is_looked_through_less_often(
    took_s: float, rests_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All command lines are read for each topology, whoever started the processes."""
    spent_s = 0.0

    def slow() -> list[Worker]:
        nonlocal spent_s
        spent_s += took_s
        return []

    monkeypatch.setattr(driver, "workers", slow)
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    monkeypatch.setattr("time.thread_time", lambda: spent_s)
    storm = driver.StormDriver(Target("storm", TOPOLOGY), TOPOLOGY, 0)
    assert storm._next_workers == pytest.approx(100.0 + rests_s)
    storm.close()


def test_a_task_in_two_workers_is_nobodys() -> None:
    def executor(first: int, last: int, pid: int) -> Executor:
        return Executor("c", first, last, Thread(pid, first, 0, "n"))

    kept = _once([executor(1, 2, 5), executor(2, 3, 6), executor(4, 4, 6)])
    assert [e.first for e in kept] == [4]


def test_queries_are_called_as_the_user_did() -> None:
    assert query_of("my-topology-12-1795298020") == "my-topology"


def test_measures_count_only_what_can_be_counted() -> None:
    assert [Measure("emit", 1, one).count for one in (Series(),)] == [0.0]
