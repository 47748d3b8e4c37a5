"""The Liebre driver against a Java process that names threads and writes metrics as Liebre does."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from watching import observed, share

from engines.cluster import CACHE
from sched_ctl.drivers import Target
from sched_ctl.drivers.liebre import driver as liebre
from sched_ctl.drivers.liebre.driver import LiebreDriver
from sched_ctl.drivers.sources.graphite import DEFAULT_PORT
from sched_ctl.errors import EngineError
from sched_ctl.kernel import procfs
from sched_ctl.model.topology import Snapshot
from support import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.needs("root", "java")]

WINDOWS = 20


@pytest.fixture(scope="module")
def classes() -> Path:
    folder = CACHE / "liebre"
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).parent / "jobs" / "LiebreWriter.java"
    subprocess.run(["javac", "-d", folder, source], check=True, timeout=120)
    return folder


@contextmanager
def query(classes: Path, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """In a network namespace of its own: the port is the driver's default one."""
    command = [
        *("setpriv", "--pdeathsig", "KILL", "--", "unshare", "--net", "--"),
        *("sh", "-c", 'ip link set lo up && exec "$@"', "sh"),
        *("java", "-Xmx32m", "-XX:+UseSerialGC", "-cp", str(classes), "LiebreWriter", *arguments),
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/"
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield process
        finally:
            process.stdin.close()
            process.wait(20)


@contextmanager
def connected(pid: int) -> Iterator[LiebreDriver]:
    driver = liebre.connect(Target("liebre", str(pid)))
    try:
        yield driver
    finally:
        driver.close()


def polled(driver: LiebreDriver, condition: Callable[[Snapshot], bool]) -> Snapshot:
    def poll() -> Snapshot | None:
        snapshot = driver.poll(5)
        return snapshot if condition(snapshot) else None

    return wait_until(poll, 30) or pytest.fail()


def counted(snapshot: Snapshot) -> bool:
    return len(snapshot.topology.operators) == 3 and bool(snapshot.columns["tuples_in"][2] > 200)


def checked(snapshot: Snapshot, process: "subprocess.Popen[bytes]") -> None:
    """Against the kernel, and against what the process itself counted a little later."""
    topology = snapshot.topology
    names = [operator.name for operator in topology.operators]
    assert names == ["map_1", "sink", "source"]
    assert {(names[e.source], names[e.target]) for e in topology.edges} == {
        ("source", "map_1"),
        ("map_1", "sink"),
    }
    for operator in topology.operators:
        (thread,) = operator.threads
        stat = procfs.stat(process.pid, thread.tid)
        assert stat is not None and stat.name == operator.name
        assert stat.start_time == thread.start_time
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    truth = {
        name.decode(): int(count)
        for name, count in (line.split() for line in process.stdout.readlines())
    }
    columns = snapshot.columns
    assert columns["tuples_in"][0] <= truth["source_map_1.OUT"]
    assert columns["tuples_in"][1] <= truth["map_1_sink.OUT"]
    assert columns["tuples_out"][0] <= truth["map_1_sink.IN"]
    assert np.isnan(columns["tuples_in"][2])  # nothing tells what a source took
    # It grew all the time, to what it is now.
    assert 0 < columns["queue_size"][1] <= truth["map_1_sink.IN"] - truth["map_1_sink.OUT"]
    # A tenth of them at least waits: the sink cannot keep up.
    assert columns["queue_size"][1] > 0.5 * columns["tuples_in"][0]


def enough(snapshot: Snapshot) -> bool:
    return len(snapshot.topology.operators) == 3 and bool(
        np.nan_to_num(snapshot.columns["tuples_in"])[:2].min() > 60
    )


def test_file_metrics(classes: Path, tmp_path: Path) -> None:
    with query(classes, "files", str(tmp_path)) as process:
        assert Target("liebre", str(process.pid), process.pid) in liebre.find()
        descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        with connected(process.pid) as driver:
            snapshot = polled(driver, enough)
            assert any("two seconds ago" in note for note in snapshot.topology.notes)
            checked(snapshot, process)
            process.wait(20)
            with pytest.raises(EngineError, match="its process has ended"):
                driver.poll(5)
        assert len(os.listdir("/proc/self/fd")) <= descriptors  # noqa: PTH208


def test_counters_that_start_anew_at_each_report(classes: Path) -> None:
    with (
        query(classes, "graphite", str(DEFAULT_PORT), "some.prefix") as process,
        connected(process.pid) as driver,
    ):
        snapshot = polled(driver, enough)
        roles = {helper.thread.name: helper.role for helper in snapshot.topology.helpers}
        assert roles["metrics-graphite-reporter-1-thread-1"] == "metrics"
        checked(snapshot, process)


def test_who_backs_off_waits_for_input_and_who_sleeps_on_its_work_does_not(
    classes: Path, tmp_path: Path
) -> None:
    """Both sleep at the same place. What came meanwhile is no backlog."""
    with query(classes, "files", str(tmp_path)) as process:
        pid = str(process.pid)
        seen = observed(Target("liebre", pid, process.pid), liebre.kind, WINDOWS)
    told = {name: of[-WINDOWS // 2 :] for name, of in seen.items()}  # what files tell is old
    label = next(name.partition("/")[0] for name in told if name.endswith("/sink"))
    assert share(told, f"{label}/map_1", "input-bound", "cpu-starved") >= 0.9
    assert share(told, f"{label}/sink", "io-bound") >= 0.9
