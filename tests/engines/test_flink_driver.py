"""The Flink driver against a real cluster: REST, /proc and the job's own records are the truth."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from engines.cluster import PROMETHEUS, Cluster, running
from engines.compete import following, states
from sched_ctl.drivers import Target
from sched_ctl.drivers.flink import driver as flink
from sched_ctl.drivers.flink import local as flink_local
from sched_ctl.drivers.flink.driver import FlinkDriver
from sched_ctl.drivers.flink.plan import SHOWN
from sched_ctl.errors import EngineError
from sched_ctl.kernel import procfs
from sched_ctl.model.topology import PYTHON, PhysicalOperator, Snapshot
from sched_ctl.probes.every import Probes
from support import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.needs("root", "java")]


@contextmanager
def connected(cluster: Cluster) -> Iterator[FlinkDriver]:
    target = next(target for target in flink.find() if target.pid == cluster.pid)
    driver = flink.connect(target)
    try:
        yield driver
    finally:
        driver.close()


def polled(driver: FlinkDriver, condition: Callable[[Snapshot], bool]) -> Snapshot:
    """The first snapshot for which the condition holds."""

    def poll() -> Snapshot | None:
        snapshot = driver.poll(5)
        return snapshot if condition(snapshot) else None

    return wait_until(poll, 20) or pytest.fail()


IN_FLIGHT = 300.0  # records of 1000 a second


def complete(snapshot: Snapshot) -> bool:
    """Every operator has a thread, and has processed something."""
    return (
        len(snapshot.topology.operators) > 0
        and all(operator.threads for operator in snapshot.topology.operators)
        and bool((snapshot.columns["tuples_in"] > 0).all())
    )


def row(snapshot: Snapshot, name: str) -> int:
    names = [operator.name for operator in snapshot.topology.operators]
    return names.index(name)


def finished(out: Path) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """When each tuple left the job, time.monotonic() seconds."""
    text = out.read_text()
    lines = text[: text.rfind("\n")].split("\n")
    return np.array([int(line.split()[0]) for line in lines]) / 1e9


def test_a_join_that_is_fed_twice_by_one_task_has_no_phantom_queue(cluster: Cluster) -> None:
    """Flink counts both of its inputs' records together where they come from."""
    cluster.submit(name="j", shape="join", chain="true", rate=500)
    with connected(cluster) as driver:
        first = polled(driver, complete)
        join = row(first, "j-join -> j-egress -> j-sink: Writer")
        sent = [edge.share for edge in first.topology.edges if edge.target == join]
        assert sent == [0.5, 0.5]
        last = polled(driver, lambda now: now.columns["tuples_in"][join] > 3000)
        queue = last.columns["queue_size"][join]
        print(queue, last.columns["tuples_in"], last.topology.notes)
        assert queue < 250  # half a second's worth: it idles
        # What goes in there is what comes out of the only task before it
        taken, given = last.columns["tuples_in"][join], last.columns["tuples_out"][1 - join]
        assert taken == pytest.approx(given, rel=0.05)


def test_found_without_being_told(cluster: Cluster) -> None:
    assert Target("flink", f"127.0.0.1:8081@{cluster.pid}", cluster.pid) in flink.find()


def test_topology_fusion_and_threads(cluster: Cluster) -> None:
    # Names so short that the kernel keeps them whole: an independent witness.
    cluster.submit(name="a", shape="fork", parallelism=2, rate=500)
    cluster.submit(name="fused", prefix="f" * 60 + "-", chain="true", rate=500)
    (task_manager,) = cluster.task_managers
    with connected(cluster) as driver:
        snapshot = polled(driver, complete)
    topology = snapshot.topology
    a = {o.name: o for o in topology.operators if o.query == "a"}
    assert set(a) == {
        "Source: a-src",
        "a-parse",
        "a-work (1/2)",
        "a-work (2/2)",
        "a-side",
        "a-egress",
        "a-sink: Writer",
    }
    comms = {
        tid: Path(f"/proc/{task_manager.pid}/task/{tid}/comm").read_text().rstrip("\n")
        for tid in procfs.tids(task_manager.pid)
    }
    for operator in topology.operators:
        (thread,) = operator.threads
        stat = procfs.stat(thread.pid, thread.tid)
        assert thread.pid == task_manager.pid
        assert stat is not None
        assert stat.start_time == thread.start_time
        assert thread.name.startswith(operator.name.split(" (")[0])
        assert comms[thread.tid] == thread.name[:15]
    for name in ("a-parse (1/1)#0", "a-work (1/2)#0", "a-work (2/2)#0", "a-side (1/1)#0"):
        (tid,) = [tid for tid, comm in comms.items() if comm == name]
        operator = a[name.removesuffix("#0").removesuffix(" (1/1)")]
        assert operator.threads[0].tid == tid

    names = [operator.label for operator in topology.operators]
    edges = {(names[e.source], names[e.target], e.share) for e in topology.edges}
    assert edges == {
        ("a/Source: a-src", "a/a-parse", 1),
        ("a/a-parse", "a/a-work (1/2)", 0.5),
        ("a/a-parse", "a/a-work (2/2)", 0.5),
        ("a/a-parse", "a/a-side", 1),
        ("a/a-work (1/2)", "a/a-egress", 1),
        ("a/a-work (2/2)", "a/a-egress", 1),
        ("a/a-side", "a/a-egress", 1),
        ("a/a-egress", "a/a-sink: Writer", 1),
    }
    (fused,) = [o for o in topology.operators if o.query == "fused"]
    prefix = "f" * 60
    assert fused.logical == (
        f"Source: {prefix}-src",
        *(f"{prefix}-{part}" for part in ("parse", "work", "egress")),
        f"{prefix}-sink: Writer",
    )
    # What REST says, read directly.
    told = {
        vertex["name"][:SHOWN]
        for job in cluster.call("GET", "/jobs")["jobs"]
        if job["status"] == "RUNNING"
        for vertex in cluster.call("GET", f"/jobs/{job['id']}")["vertices"]
    }
    assert {re.sub(r" \(\d/2\)$", "", o.name) for o in topology.operators} == told
    assert topology.notes == ()

    served = {(h.role, names[h.serves]) for h in topology.helpers if h.serves is not None}
    assert ("flusher", "a/a-work (2/2)") in served
    assert ("timer", "a/a-parse") in served
    assert {"network", "rpc", "metrics", "jit", "jvm"} <= {h.role for h in topology.helpers}
    operators = {thread for o in topology.operators for thread in o.threads}
    assert not operators & {helper.thread for helper in topology.helpers}


def test_tasks_as_beam_names_them_are_found_named_and_ordered(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Its runner calls a task by its transforms: apache/beam#21463 has such a name in its log."""
    beam = "[6]Assert$106/{GatherAll, Rewind, Never}/"
    cluster.submit(name="light", prefix=beam, rate=100)
    cluster.submit(name="chained", prefix=f"GroupByKey/{beam}", chain="true", rate=100)
    with connected(cluster) as driver:
        snapshot = polled(driver, complete)
    light = {o.name: o for o in snapshot.topology.operators if o.query == "light"}
    tasks = ("parse", "work", "egress", "sink: Writer")
    assert set(light) == {f"Source: {beam}src", *(f"{beam}{task}" for task in tasks)}
    (chained,) = [o for o in snapshot.topology.operators if o.query == "chained"]
    assert chained.logical[1:] == tuple(f"GroupByKey/{beam}{task}" for task in tasks)
    threads = [thread for o in (*light.values(), chained) for thread in o.threads]
    assert len({thread.tid for thread in threads}) == len(light) + 1
    for thread in threads:
        stat = procfs.stat(thread.pid, thread.tid)
        assert stat is not None and stat.name == thread.name[:15]
    before = states(threads[0].pid)
    policy = ("--policy", "multi-class", "--policy-option", 'classes={"light": "constant"}')
    engine = f"flink:127.0.0.1:8081@{cluster.pid}"
    with following([threads[0].pid], engine, tmp_path, (*policy, "--backend", "nice"), 1):

        def nice(operator: PhysicalOperator) -> int:
            stat = procfs.stat(operator.threads[0].pid, operator.threads[0].tid)
            return -100 if stat is None else stat.nice

        wait_until(lambda: max(map(nice, light.values())) < nice(chained), 60)
    after = states(threads[0].pid)
    both = before.keys() & after.keys()
    assert {key: after[key] for key in both} == {key: before[key] for key in both}


def test_a_python_process_goes_with_the_operator_that_started_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    """In place of PyFlink's, which needs 850 MB: one that is started and called as it is."""
    folder = tmp_path / "pyflink" / "fn_execution" / "beam"
    folder.mkdir(parents=True)
    (folder / "beam_boot.py").write_text(
        "import sys, time\n"
        "for line in sys.stdin:\n"
        "    end = time.thread_time() + 0.002\n"
        "    while time.thread_time() < end:\n"
        "        pass\n"
        "    print(line, end='', flush=True)\n"
    )
    command = f"{sys.executable} -m pyflink.fn_execution.beam.beam_boot --id=1-1 | cat"
    cluster.submit(name="p", rate=100, ask=f"cd {tmp_path} && {command}")
    cluster.submit(name="other", rate=100)

    def python(snapshot: Snapshot) -> bool:
        return any(helper.role == PYTHON for helper in snapshot.topology.helpers)

    with connected(cluster) as driver:
        first = polled(driver, lambda now: complete(now) and python(now))
        probes = Probes()
        before = probes.read(first.topology, first.time_s)["thread_cpu_time"]
        ask = row(first, "p-ask")
        taken = first.columns["tuples_in"][ask] + 200
        last = polled(driver, lambda now: now.columns["tuples_in"][ask] > taken)
        used = probes.read(last.topology, last.time_s)["thread_cpu_time"] - before
        probes.close()
        tuples = last.columns["tuples_in"][ask] - first.columns["tuples_in"][ask]
        served = {h.serves for h in last.topology.helpers if h.role == PYTHON}
        assert served == {row(last, "p-ask")}
        assert used[ask] / tuples > 0.001  # two milliseconds, none of them the task's own
        (note,) = last.topology.notes
        assert note.startswith("p: Python process") and "'p-ask'" in note
        cluster.cancel_all()
        polled(driver, lambda now: not python(now))


def in_flight(snapshot: Snapshot) -> float:
    """Records behind the source, the first row; where they are many its rate is not the sink's."""
    received = snapshot.columns["tuples_in"]
    return float(received[0] - received[row(snapshot, "m-egress")])


def test_counters_agree_with_the_jobs_own(cluster: Cluster, out: Path) -> None:
    cluster.submit(name="m", rate=1000, work_us=200, out=out)
    with connected(cluster) as driver:
        first = polled(driver, lambda s: complete(s) and in_flight(s) < IN_FLIGHT)
        polled(driver, lambda s: s.time_s > first.time_s + 2 and in_flight(s) < IN_FLIGHT)
        begin = driver.poll(5).time_s  # what follows was counted after this moment
        snapshot = driver.poll(5)
        end = driver.poll(5).time_s
    wait_until(lambda: finished(out)[-1] > end, what="the job's records flushed")
    times = finished(out)
    egress = snapshot.columns["tuples_in"][row(snapshot, "m-egress")]
    assert (times <= begin).sum() - 2 <= egress <= (times <= end).sum() + 2

    columns, before = snapshot.columns, first.columns
    seconds = snapshot.time_s - first.time_s
    states = ("busy_time", "idle_time", "backpressured_time")
    accounted = sum(columns[state] - before[state] for state in states) / seconds
    assert accounted == pytest.approx(np.ones(5), abs=0.2)
    busy = (columns["busy_time"] - before["busy_time"])[row(snapshot, "m-work")] / seconds
    assert busy > 0.15  # 1000/s of 200 us each
    rate = (columns["tuples_in"] - before["tuples_in"]) / seconds
    own = ((times > first.time_s) & (times <= snapshot.time_s)).sum() / seconds
    assert rate == pytest.approx(np.full(5, own), rel=0.15)
    logical = [operator.name for operator in snapshot.topology.logical]
    # Two counters on one page, read one after the other.
    assert abs(snapshot.logical["tuples_in"][logical.index("m-egress")] - egress) <= 20


def test_a_queue_is_seen_before_the_slow_operator(cluster: Cluster) -> None:
    cluster.submit(name="s", rate=4000, parse_us=1, work_us=1000)
    with connected(cluster) as driver:
        snapshot = polled(
            driver,
            lambda s: (
                complete(s)
                and s.columns["queue_size"][row(s, "s-work")] > 50
                and s.columns["head_age_estimate"][row(s, "s-work")] > 0.02
            ),
        )
    slow, parse = row(snapshot, "s-work"), row(snapshot, "s-parse")
    assert snapshot.columns["head_age_estimate"][slow] < 60
    assert snapshot.columns["backpressured_time"][parse] > 0


def test_both_sources_agree(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    rate = 500
    cluster.submit(name="p", shape="fork", parallelism=2, rate=rate)
    with connected(cluster) as scraping:
        first = polled(scraping, complete)
        with monkeypatch.context() as patch:
            patch.setattr(flink_local, "metrics_endpoint", lambda *_: None)
            with connected(cluster) as asking:
                polled(asking, complete)
                early = scraping.poll(5)
                asked = asking.poll(5)
        late = scraping.poll(5)
    assert "no Prometheus page" in asked.topology.notes[0]
    assert first.topology.notes == ()
    assert asked.columns.keys() == early.columns.keys()
    # REST may lag by the JobManager's fetch interval.
    lag = 0.3 * rate * 2
    for name in ("tuples_in", "tuples_out"):
        assert (asked.columns[name] >= early.columns[name] - lag).all(), name
        assert (asked.columns[name] <= late.columns[name]).all(), name
        assert (asked.logical[name] >= early.logical[name] - lag).all(), name
        assert (asked.logical[name] <= late.logical[name]).all(), name
    assert asked.columns["busy_time"] == pytest.approx(early.columns["busy_time"], abs=1)


def test_nothing_but_counters_is_read_while_nothing_changes(cluster: Cluster) -> None:
    cluster.submit(name="n", rate=500)

    def sockets() -> set[str]:
        found = set()
        for descriptor in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # that of the listing itself
                found.add(str(descriptor.readlink()))
        return {name for name in found if name.startswith("socket:")}

    with connected(cluster) as driver:
        topology = polled(driver, complete).topology

        def quiet() -> bool:
            """Ten answers on end, of nothing but counters; a thread may be born at any time."""
            dumps, before = driver._dumps, sockets()
            answers = [driver.poll(5).topology for _ in range(10)]
            same = all(one is answers[0] for one in answers)
            return same and driver._dumps == dumps and sockets() == before

        wait_until(quiet, 60, "ten answers without a dump or a new connection")
        assert driver.poll(5).topology.operators == topology.operators


def test_a_restart_is_noticed(cluster: Cluster, tmp_path: Path) -> None:
    fail = tmp_path / "fail"
    cluster.submit(name="r", rate=500, fail=fail)
    with connected(cluster) as driver:
        before = polled(driver, complete)
        fail.touch()  # the job throws, and Flink runs it again

        def restarted(snapshot: Snapshot) -> bool:
            return complete(snapshot) and snapshot.topology is not before.topology

        after = polled(
            driver,
            lambda s: (
                restarted(s)
                and not _threads(s.topology.operators) & _threads(before.topology.operators)
            ),
        )
        assert all(o.threads[0].name.endswith("#1") for o in after.topology.operators)
        assert [o.label for o in after.topology.operators] == [
            o.label for o in before.topology.operators
        ]


def _threads(operators: tuple[PhysicalOperator, ...]) -> set[object]:
    return {thread for operator in operators for thread in operator.threads}


def test_ambiguous_threads_are_left_alone(cluster: Cluster) -> None:
    cluster.submit(name="x", prefix="same-", rate=200)
    cluster.submit(name="x", prefix="same-", rate=200)
    cluster.submit(name="y", rate=200)
    with connected(cluster) as driver:
        snapshot = polled(
            driver,
            lambda s: (
                len(s.topology.operators) == 15
                and all(o.threads for o in s.topology.operators if o.query == "y")
            ),
        )
    topology = snapshot.topology
    assert len(topology.queries) == 3
    assert sorted(query.split("#")[0] for query in topology.queries) == ["x", "x", "y"]
    assert not any(o.threads for o in topology.operators if o.query != "y")
    assert len(topology.notes) == 5
    assert "2 subtasks called 'same-parse'" in " ".join(topology.notes)


def test_bad_addresses() -> None:
    with pytest.raises(EngineError, match="cannot be reached"):
        flink.connect(Target("flink", "127.0.0.1:9"))
    for address in ("", "host", "host:port", "127.0.0.1:99999999", "a b:1", "http://x:1"):
        with pytest.raises(Exception, match="is no address of a Flink cluster"):
            flink.connect(Target("flink", address))


def test_processes_that_die(tmp_path: Path) -> None:
    """Two TaskManagers, one of them without a Prometheus reporter; then fewer and fewer."""
    slots = {"taskmanager.numberOfTaskSlots": "2"}
    with running(tmp_path / "pair", [{**PROMETHEUS, **slots}, slots], slots=4) as cluster:
        cluster.submit(name="d", parallelism=4, rate=500)
        with connected(cluster) as driver:
            snapshot = polled(driver, complete)
            pids = {o.threads[0].pid for o in snapshot.topology.operators}
            assert pids == {process.pid for process in cluster.task_managers}
            assert any("no Prometheus" in note for note in snapshot.topology.notes)

            cluster.task_managers[1].kill()
            cluster.task_managers[1].wait()
            after = driver.poll(5)  # the other one goes on, and maybe its tasks have ended as well
            left = {t.pid for o in after.topology.operators for t in o.threads}
            assert left <= {cluster.task_managers[0].pid} == driver._processes.keys()

            cluster.task_managers[0].kill()
            cluster.task_managers[0].wait()
            with pytest.raises(EngineError, match="TaskManagers here have ended"):
                driver.poll(5)
            cluster.job_manager.kill()
            cluster.job_manager.wait()
            with pytest.raises(EngineError, match="JobManager has ended"):
                driver.poll(5)
            assert all(target.pid != cluster.pid for target in flink.find())
