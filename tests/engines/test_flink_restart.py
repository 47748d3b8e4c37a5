"""A JobManager that dies, with high availability (Zookeeper): its jobs are followed again."""

import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import httpx
import pytest

from engines.cluster import Cluster, running
from engines.compete import State, loaded, states
from sched_ctl.kernel import procfs
from sched_ctl.kernel.netns import entered
from support import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.needs("root", "java")]

OPERATORS = 5
# All operators lower than they were, whatever the policy thinks of them.
OPTIONS = ("nice.best=5", "nice.worst=10")


@pytest.fixture(scope="module")
def available(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("available") / "cluster"
    with running(folder, zookeeper=True) as cluster:
        cluster.submit(name="h", prefix="h-", rate=500)
        yield cluster


@pytest.mark.parametrize("named", [False, True], ids=["found", "named"])
def test_jobs_are_followed_again(available: Cluster, tmp_path: Path, named: bool) -> None:
    """Found by itself, or by an address that stays the same: whoever listens there next."""
    arguments = ["--policy", "random", "--backend", "nice", "--period", "1"]
    for option in OPTIONS:
        arguments += ["--backend-option", option]
    if named:
        arguments += ["--engine", "flink:127.0.0.1:8081"]
    pid = available.task_managers[0].pid
    wait_until(lambda: _operators(pid) >= OPERATORS, 30, "operator threads")
    with entered(pid) if named else nullcontext(), loaded(available, tmp_path, arguments, 5):
        before = states(pid)
        available.kill_job_manager()
        available.restart_job_manager()
        wait_until(lambda: _runs(available), 120, "the job running again")
        begin = time.monotonic()
        wait_until(lambda: ordered(pid, before) >= OPERATORS, 30, "it is followed")
        print(f"followed again {time.monotonic() - begin:.1f} s after all tasks ran")
        print((tmp_path / "load.log").read_text())
    assert all(state[0] == os.nice(0) for state in states(pid).values())


def _operators(pid: int, without: State | None = None, least: int = 0) -> int:
    """Operator threads of at least this nice value, but for those that were there before."""
    return sum(
        state[0] >= least
        and (stat := procfs.stat(pid, tid)) is not None
        and (stat.name.startswith(("h-", "Source: h-")))
        for (tid, born), state in states(pid).items()
        if (tid, born) not in (without or {})
    )


def ordered(pid: int, before: State) -> int:
    return _operators(pid, before, 5)


def _runs(cluster: Cluster) -> bool:
    """Whether the new one has the job, and all of its tasks run."""
    try:
        jobs = cluster.call("GET", "/jobs")["jobs"]
        return bool(jobs) and cluster.is_running(jobs[0]["id"])
    except (httpx.HTTPError, OSError):  # it is starting
        return False
