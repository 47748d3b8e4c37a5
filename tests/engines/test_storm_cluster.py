"""The Storm driver and `load` against a real cluster: /proc and the job's records are the truth.

One cluster and one topology for all; the last test breaks it.
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.compete import State, following, states
from engines.storm import Storm, finished, left, running
from sched_ctl.drivers import Target
from sched_ctl.drivers.storm import driver as storm
from sched_ctl.drivers.storm.driver import StormDriver
from sched_ctl.errors import EngineError
from sched_ctl.kernel import procfs
from sched_ctl.model.topology import Snapshot
from support import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.needs("root", "java", "maven")]

RATE = 200
# Names so short that the kernel keeps them whole enough: an independent witness.
GRAPH = """\
workload fork base_cost_us=100
query fork
op in cost=0.1
op a  cost=1
op b  cost=2 selectivity=0.5
op c  cost=1
op d  cost=1
op o  cost=0.5
edge in a
edge a b
edge a c
edge b d
edge c d
edge d o
source in
"""
EDGES = 12  # between executors: c and d have two each


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storm]:
    folder = tmp_path_factory.mktemp("storm") / "cluster"
    with running(folder, period_ms=250) as made:
        (folder / "out").mkdir()
        (folder / "fork.graph").write_text(GRAPH)
        made.submit(
            **{
                "name": "fork",
                "graph": folder / "fork.graph",
                "rate": RATE,
                "out": folder / "out",
                "ack": 1,
                "executors.c": 2,
                "executors.d": 2,
                "tasks.d": 3,
            }
        )
        yield made


@contextmanager
def connected(cluster: Storm) -> Iterator[StormDriver]:
    (pid,) = cluster.workers("fork")
    target = next(target for target in storm.find() if target.pid == pid)
    driver = storm.connect(target)
    try:
        yield driver
    finally:
        driver.close()  # else it would hold the port of the engine's reports


def polled(driver: StormDriver, condition: Callable[[Snapshot], bool]) -> Snapshot:
    """The first snapshot for which the condition holds."""

    def poll() -> Snapshot | None:
        snapshot = driver.poll(5)
        return snapshot if condition(snapshot) else None

    return wait_until(poll, 180) or pytest.fail()


def complete(snapshot: Snapshot) -> bool:
    """Every edge is known (one that carried no tuple yet is not), and every queue."""
    return len(snapshot.topology.edges) >= EDGES and bool(
        np.isfinite(snapshot.columns["queue_size"]).all()
    )


def test_topology_and_threads(cluster: Storm) -> None:
    (pid,) = cluster.workers("fork")
    with connected(cluster) as driver:
        assert driver.target.address.startswith("fork-1-")
        snapshot = polled(driver, complete)
        names = [operator.name for operator in snapshot.topology.operators]
        found = {(names[e.source], names[e.target]) for e in snapshot.topology.edges}
    topology = snapshot.topology
    assert topology.queries == ("fork",)
    assert len(topology.operators) == 8
    assert {o.logical for o in topology.operators} == {(name,) for name in ("in", *"abcdo")}
    c = [o.name for o in topology.operators if o.logical == ("c",)]
    d = [o.name for o in topology.operators if o.logical == ("d",)]
    assert len(c) == len(d) == 2
    assert found == {
        ("in", "a"),
        ("a", "b"),
        *(("a", one) for one in c),
        *(("b", one) for one in d),
        *((one, other) for one in c for other in d),
        *((one, "o") for one in d),
    }
    comms = {
        tid: Path(f"/proc/{pid}/task/{tid}/comm").read_text().rstrip("\n")
        for tid in procfs.tids(pid)
    }
    for operator in topology.operators:
        (thread,) = operator.threads
        stat = procfs.stat(pid, thread.tid)
        assert thread.pid == pid and stat is not None
        assert stat.start_time == thread.start_time
        assert comms[thread.tid] == thread.name[:15]
        assert f"-{operator.logical[0]}-executor[" in thread.name
    roles = {helper.role for helper in topology.helpers}
    assert {"acker", "system", "heartbeat", "network", "flusher", "metrics", "jit"} <= roles
    operators = {thread for o in topology.operators for thread in o.threads}
    assert not operators & {helper.thread for helper in topology.helpers}
    # What starts the worker has the worker's words in its command line.
    assert sum(target.pid == pid for target in storm.find()) == 1
    assert all(procfs.stat(t.pid or 0) for t in storm.find())


def test_complete_latency_of_the_spout(cluster: Storm) -> None:
    with connected(cluster) as driver:
        snapshot = polled(driver, lambda found: bool(np.isfinite(found.columns["latency"]).any()))
    told = zip(snapshot.topology.operators, snapshot.columns["latency"].tolist(), strict=True)
    [(spout, latency_s)] = [item for item in told if np.isfinite(item[1])]
    assert spout.logical == ("in",) and 0 <= latency_s < 60


def test_counters_agree_with_the_jobs_own(cluster: Storm) -> None:
    out = cluster.folder / "out"
    with connected(cluster) as driver:
        polled(driver, complete)
        begin = driver.poll(5)
        end = polled(driver, lambda s: s.time_s > begin.time_s + 6)
    row = [operator.name for operator in end.topology.operators].index("o")
    wait_until(lambda: len(finished(out, end.time_s, np.inf)), what="records flushed")
    counted = end.columns["tuples_in"][row] - begin.columns["tuples_in"][row]
    truth = len(finished(out, begin.time_s, end.time_s))
    # Of each end, a sample's step for each of two streams (d's executors), and a report's age.
    assert counted == pytest.approx(truth, abs=4 * 20 + 0.5 * 1.5 * RATE)
    # 1.5 tuples at the sink for each at the source, of which b's filter takes half of one.
    total = len(finished(out, 0, end.time_s))
    assert end.columns["tuples_in"][row] == pytest.approx(total, abs=2 * 20 + 0.5 * 1.5 * RATE)
    # What was sent and not taken waits in the queue, however far behind a busy machine is; one on
    # which the two reports are more than a second apart, now and then, is waited for.
    sender, taker = ([o.name for o in end.topology.operators].index(name) for name in ("in", "a"))

    def waits(now: Snapshot) -> bool:
        waiting = now.columns["queue_size"][taker]
        missing = now.columns["tuples_out"][sender] - now.columns["tuples_in"][taker]
        return bool(missing == pytest.approx(waiting, abs=2 * 20 + RATE, rel=0.3))

    with connected(cluster) as driver:
        polled(driver, lambda now: complete(now) and waits(now))
    assert any("one tuple of 20" in note for note in end.topology.notes)


def test_nothing_is_read_anew_while_nothing_changes(cluster: Storm) -> None:
    with connected(cluster) as driver:
        polled(driver, complete)
        # Shares of streams settle with the counts.
        snapshots = wait_until(lambda: _same([driver.poll(5) for _ in range(10)]), 30)
        assert snapshots is not None
        assert {id(s.topology) for s in snapshots} == {id(snapshots[0].topology)}


def _same(snapshots: list[Snapshot]) -> list[Snapshot] | None:
    same = all(s.topology is snapshots[0].topology for s in snapshots)
    return snapshots if same else None


def _changed_from(before: State, pid: int) -> dict[str, int]:
    """Name -> nice value of each thread that is not as it was."""
    return {
        stat.name: state[0]
        for (tid, born), state in states(pid).items()
        if state != before.get((tid, born), state) and (stat := procfs.stat(pid, tid)) is not None
    }


def _in_order(changed: Mapping[str, int]) -> bool:
    nice = {name.partition("-")[2].partition("-")[2][:4]: at for name, at in changed.items()}
    return {"__ac", "o-ex", "d-ex"} <= nice.keys() and nice["__ac"] <= nice["o-ex"] < nice["d-ex"]


def test_load_and_undo(cluster: Storm, tmp_path: Path) -> None:
    """Priorities follow the policy while `load` runs, and are as before after it."""
    (pid,) = cluster.workers("fork")
    before = states(pid)
    arguments = [
        *("--policy", "hr", "--backend", "nice", "--period", "0.5"),
        # Around 0, where levels lie by default, one of them may be what the thread had.
        *("--backend-option", "nice.best=5", "--backend-option", "nice.worst=10"),
    ]
    with following([pid], "storm", tmp_path, arguments, 5):
        # Costs take some reports; by S / C the last operator goes before what it is fed by.
        wait_until(
            lambda: _in_order(_changed_from(before, pid)), 60, "o before d, both behind acker"
        )
        changed = _changed_from(before, pid)
    # Operators, and the acker, which goes before them; no other helper of Storm's. The kernel cuts
    # their names behind the first letters of the component.
    assert len(changed) >= 5
    helpers = {name for name in changed if not name.startswith("Thread-") or "__" in name}
    assert helpers and all("__ac" in name for name in helpers), helpers
    after = states(pid)
    assert {key: after[key] for key in before.keys() & after.keys()} == {
        key: before[key] for key in before.keys() & after.keys()
    }


def scale(cluster: Storm, folder: Path, *arguments: str) -> Any:
    (pid,) = cluster.workers("fork")
    address = procfs.command_line(pid)[-5]
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("sched-ctl")), "scale", "fork", "--json"),
            *("--observe", "8", "--run-dir", str(folder / "run")),
            *("--engine", f"storm:{address}", *arguments),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    print(arguments, told)
    return told


def test_other_executors_and_back(cluster: Storm, tmp_path: Path) -> None:
    """Nimbus is asked for as many executors as `d` has tasks; what was written down goes back."""
    if operators_of(cluster, "d") != 2:  # as an attempt before this one left it
        scale(cluster, tmp_path, "--to", "d=2", "--apply")
    (pid,) = cluster.workers("fork")
    # A source that catches up with what came before would be compared with one that has done so.
    wait_until(lambda: keeps_up(cluster.folder / "out"), 120, "tuples that leave as they come")
    begin_s = time.monotonic()
    more = scale(cluster, tmp_path, "--to", "d=3", "--apply")
    assert (more["was"], more["became"], more["outcome"]) == ([[["d"], 2]], [[["d"], 3]], "kept")
    (again,) = cluster.workers("fork")
    assert again != pid
    assert operators_of(cluster, "d") == 3
    # By what the job wrote, nothing left for about as long as was told.
    moments = np.sort(left(cluster.folder / "out", begin_s, math.inf)[:, 0])
    assert np.diff(moments).max() == pytest.approx(more["silent_s"], abs=3.0)
    fewer = scale(cluster, tmp_path, "--back", "--apply")
    assert (fewer["became"], fewer["outcome"]) == ([[["d"], 2]], "kept")
    assert operators_of(cluster, "d") == 2


def keeps_up(out: Path) -> bool:
    now_s = time.monotonic()
    waits = finished(out, now_s - 5.0, now_s)
    return len(waits) > 0 and float(waits.max()) < 0.5


def operators_of(cluster: Storm, component: str) -> int:
    with connected(cluster) as driver:
        snapshot = polled(driver, complete)
        return sum(o.logical == (component,) for o in snapshot.topology.operators)


def ended(driver: StormDriver) -> bool:
    """Whether the driver says so: a big process takes a moment to die."""
    try:
        driver.poll(5)
    except EngineError as error:
        return error.message.endswith("its workers here have ended")
    return False


def test_a_worker_that_dies_is_followed_again(cluster: Storm) -> None:
    (pid,) = cluster.workers("fork")
    with connected(cluster) as driver:
        polled(driver, complete)
        begin = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: ended(driver), 30, "the end of the worker")
    (again,) = wait_until(lambda: cluster.workers("fork"), 120, "the supervisor's new worker")
    assert again != pid
    with connected(cluster) as driver:
        polled(driver, complete)
    print(f"a worker's restart took {time.monotonic() - begin:.1f} s until all edges were known")
    with pytest.raises(EngineError, match="no topologies of this name"):
        storm.connect(Target("storm", "nobody"))
