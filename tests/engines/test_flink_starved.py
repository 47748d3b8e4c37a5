"""A Flink that gets hardly any CPU is found, ordered and kept, and what is said of it is true.

Twenty programs share its one CPU while `load` starts, asks and decides. What once let go of such an
engine did so within 22 s; SCHED_CTL_STARVED_S=120 looks for longer, SCHED_CTL_STARVED_CPUS=2 crowds
two CPUs as well.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engines.cluster import Cluster
from engines.compete import following
from sched_ctl.kernel import procfs
from sched_ctl.service.socket import request

pytestmark = [pytest.mark.engine, pytest.mark.quiet(whole=False), pytest.mark.needs("root", "java")]

HOGS = 20
# The last so many CPUs, each with so many hogs.
CPUS = set(sorted(os.sched_getaffinity(0))[-int(os.environ.get("SCHED_CTL_STARVED_CPUS", "1")) :])
STARVED_S = float(os.environ.get("SCHED_CTL_STARVED_S", "30"))
# Values that nobody else sets: they show who is ordered.
OPTIONS = (
    *("--policy", "random", "--backend", "nice", "--calm-period", "0", "--poll-timeout", "1"),
    *("--backend-option", "nice.best=3", "--backend-option", "nice.worst=10"),
)


@contextmanager
def crowded(pids: list[int], cpus: set[int]) -> Iterator[None]:
    """These processes on CPUs that each hog wants all of.

    Each hog in a session of its own, or all would count as one (autogroup).
    """
    everywhere = os.sched_getaffinity(0)
    bound = ["setpriv", "--pdeathsig", "KILL", "prlimit", "--cpu=60", "taskset", "-c"]
    spin = ["sh", "-c", "while :; do :; done"]
    hogs: list[subprocess.Popen[bytes]] = []
    try:
        for cpu in sorted(cpus) * HOGS:
            hogs.append(subprocess.Popen([*bound, str(cpu), *spin], start_new_session=True))
        pin(pids, cpus)
        yield
    finally:
        pin(pids, everywhere)
        for hog in hogs:
            hog.send_signal(signal.SIGKILL)
        for hog in hogs:
            hog.wait()


def pin(pids: list[int], cpus: set[int]) -> None:
    for pid in pids:
        for tid in procfs.tids(pid):
            try:
                os.sched_setaffinity(tid, cpus)
            except ProcessLookupError:
                continue


def told(run: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The Flinks as the controller sees them, and the problems that it tells."""
    status = request(run, "status")
    engines = [engine for engine in status["engines"] if engine["engine"].startswith("flink:")]
    return engines, status["problems"]


def test_it_is_found_ordered_and_never_let_go(cluster: Cluster, tmp_path: Path) -> None:
    cluster.submit(name="starved", prefix="s-", rate=50)
    manager = cluster.task_managers[0].pid
    seen = []
    with (
        crowded([cluster.pid, manager], CPUS),
        following([manager], "flink", tmp_path, OPTIONS, 4),  # four of its threads are ordered
    ):
        end_s = time.monotonic() + STARVED_S
        while time.monotonic() < end_s:
            seen.append(told(tmp_path / "run"))
            time.sleep(0.5)
    said = (tmp_path / "load.log").read_text()
    print(said)
    _, found, since = said.partition(": found, pid ")  # beside hogs it may not answer at first
    assert found and "released" not in since and "no engine answers" not in since
    for engines, problems in seen:
        mine = [engine for engine in engines if engine["pid"] == cluster.pid]
        assert [engine["state"] for engine in mine] in (["ok"], ["silent"]), engines
        assert mine[0]["queries"] == ["starved"], mine
        if mine[0]["state"] == "silent":
            words = f"{mine[0]['engine']}: does not answer for "
            assert any(p.startswith(words) and "order kept" in p for p in problems), problems
