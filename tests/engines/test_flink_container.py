"""A real Flink as in containers: application mode, processes in namespaces of their own, a cgroup.

What Kubernetes and YARN add to this is names of main classes, which the driver knows and which no
test here starts.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from engines import cluster
from engines.compete import following, states
from engines.namespaces import CONTAINER, UNSHARED, cable, child
from sched_ctl.drivers import Target
from sched_ctl.drivers.flink import driver as flink
from sched_ctl.errors import EngineError
from sched_ctl.kernel import cgroup, procfs
from sched_ctl.model.topology import Snapshot
from support import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.needs("root", "java", "cgroup1_cpu")]

USER = 23457
ADDRESSES = ("10.77.0.1", "10.77.0.2")
SETTINGS = {
    **cluster.SETTINGS,
    **cluster.PROMETHEUS,
    "jobmanager.rpc.address": ADDRESSES[0],
    "rest.address": ADDRESSES[0],
    "taskmanager.host": ADDRESSES[1],
    # Of their own namespaces.
    "jobmanager.bind-host": "0.0.0.0",
    "rest.bind-address": "0.0.0.0",
    "taskmanager.bind-host": "0.0.0.0",
}


@contextmanager
def containers() -> Iterator[tuple[int, int, Path]]:
    """The JobManager with a job of its own and the TaskManager, by pid, and the latter's cgroup."""
    jars = cluster.download()
    jar = cluster.job_jar(jars)
    wrapper = (*UNSHARED, "--kill-child", "--", "sh", "-c", CONTAINER, "container")
    tree = next(tree for tree in cgroup.hierarchies() if tree.version == 1)
    home = tree.folder_of(os.getpid(), os.getpid()) or tree.mount
    started = []
    with tempfile.TemporaryDirectory(prefix="sched-ctl-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        pod = home / f"pod-{folder.name}"
        cluster.prepare(folder / "flink", SETTINGS, USER)
        conf = ("--configDir", f"{folder}/flink/conf")
        main = "org.apache.flink.container.entrypoint.StandaloneApplicationClusterEntryPoint"
        job = ("--job-classname", "Query", "name=c", "prefix=c-", "rate=300")
        worker = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
        try:
            pod.mkdir()
            for role, java, arguments in (
                ("jm", main, (*conf, "-D", "jobmanager.memory.off-heap.size=64m", *job)),
                ("tm1", worker, conf),
            ):
                started.append(
                    cluster.launch(
                        *(folder / "flink", jars, role, wrapper, ("-Xmx256m",), java, arguments),
                        uid=USER,
                        jars=(jar,),
                    )
                )
            first, second = (child(process.pid) for process in started)
            cable(first, second, ADDRESSES)
            cgroup.write(pod / "cgroup.procs", str(second))
            yield first, second, pod
        finally:
            for process in started:
                process.kill()
                process.wait(10)
            wait_until(lambda: _removed(pod), 10, "the end of all in the cgroup")


def _removed(folder: Path) -> bool:
    with suppress(OSError):
        folder.rmdir()
    return not folder.exists()


def complete(driver: flink.FlinkDriver) -> Snapshot:
    """With all threads, and counters from the page of metrics: else a note would say so."""
    lacking: list[str] = []

    def look() -> Snapshot | None:
        snapshot = driver.poll(5)
        operators = snapshot.topology.operators
        without = [f"no thread: {operator.name}" for operator in operators if not operator.threads]
        lacking[:] = [*without, *snapshot.topology.notes]
        return snapshot if operators and not lacking else None

    try:
        return wait_until(look, 60, "all threads") or pytest.fail()
    except AssertionError as error:
        raise AssertionError(f"{error}: {lacking}") from error


def found(pid: int) -> Target | None:
    return next((target for target in flink.find() if target.pid == pid), None)


def test_found_read_and_ordered(tmp_path: Path) -> None:
    """Nobody tells where anything is; shares go below the container's own cgroup."""
    with containers() as (first, second, pod):
        target = wait_until(lambda: found(first), 60, "the JobManager")
        assert target == Target("flink", f"127.0.0.1:8081@{first}", first)
        driver = wait_until(lambda: connected(target), 60, "its REST interface")
        assert driver is not None
        try:
            snapshot = complete(driver)
        finally:
            driver.close()
        threads = [t for o in snapshot.topology.operators for t in o.threads]
        assert {thread.pid for thread in threads} == {second}
        assert len(threads) == 5 and procfs.owner(second) == USER
        before = states(second)
        arguments = ("--policy", "random", "--share", "c=4", "--backend", "cgroup1+nice")
        with following([second], "flink", tmp_path, arguments, 5):
            inside = {Path(tree_of(second, thread.tid)) for thread in threads}
            assert all(pod / cgroup.ROOT_NAME in folder.parents for folder in inside), inside
        after = states(second)
        assert all(after[key] == before[key] for key in before.keys() & after.keys())


def connected(target: Target) -> flink.FlinkDriver | None:
    try:
        return flink.connect(target)
    except EngineError:
        return None


def tree_of(pid: int, tid: int) -> Path:
    tree = next(tree for tree in cgroup.hierarchies() if tree.version == 1)
    folder = tree.folder_of(pid, tid)
    assert folder is not None
    return folder
