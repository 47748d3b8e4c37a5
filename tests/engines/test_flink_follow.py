"""Jobs that are submitted, rescaled and submitted anew are scheduled within two periods.

Counted in passes of the policy from when REST shows all tasks running, so that it does not matter
how fast the machine is; the pass that was under way then counts as none. `bench/real/follow.py
flink` measures seconds.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engines.cluster import ADAPTIVE, Cluster, running
from engines.compete import following
from sched_ctl.kernel import procfs
from sched_ctl.service.socket import request
from support import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.needs("root", "java")]

UNDER_WAY = 1  # a pass that may have asked the engine before
LEAST = 5  # nice value of all operators, whatever the policy thinks of them
OPTIONS = (
    *("--policy", "random", "--backend", "nice", "--period", "1", "--calm-period", "0"),
    *("--backend-option", f"nice.best={LEAST}", "--backend-option", "nice.worst=10"),
)


@pytest.fixture(scope="module")
def adaptive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("adaptive") / "cluster", settings=ADAPTIVE) as cluster:
        cluster.submit(name="old", prefix="old-", rate=50)
        yield cluster


def operators(cluster: Cluster, prefix: str) -> list[procfs.Stat]:
    pid = cluster.task_managers[0].pid
    found = [procfs.stat(pid, tid) for tid in procfs.tids(pid)]
    names = (prefix, f"Source: {prefix}")
    return [stat for stat in found if stat is not None and stat.name.startswith(names)]


def test_within_two_periods(adaptive: Cluster, tmp_path: Path) -> None:
    def passes() -> int:
        [rule] = request(tmp_path / "run", "status")["policies"]
        return int(rule["passes"])

    def passed_until(condition: Callable[[], bool]) -> int:
        began, counts = passes(), [0]

        def look() -> bool:
            counts.append(passes())  # before: a pass may end between the two
            return condition()

        try:
            wait_until(look, 120)
        except AssertionError:
            print(request(tmp_path / "run", "status"), operators(adaptive, "n-"))
            raise
        return counts[-1] - began

    def passed_until_set(job: str, count: int) -> int:
        wait_until(
            lambda: len(operators(adaptive, "n-")) == count and adaptive.is_running(job),
            120,
            "runs",
        )
        return passed_until(
            lambda: [s.nice >= LEAST for s in operators(adaptive, "n-")] == [True] * count
        )

    def is_gone() -> bool:
        engines = request(tmp_path / "run", "status")["engines"]
        return all("new" not in engine["queries"] for engine in engines)

    with following([adaptive.task_managers[0].pid], "flink", tmp_path, OPTIONS, 5):
        job = adaptive.submit(name="new", prefix="n-", rate=50)
        try:
            took = {"submitted": passed_until_set(job, 5)}
            adaptive.rescale(job, "work", 2)
            took["rescaled"] = passed_until_set(job, 6)
            adaptive.cancel(job)
            took["cancelled"] = passed_until(is_gone)
            job = adaptive.submit(name="new", prefix="n-", rate=50)
            took["submitted anew"] = passed_until_set(job, 5)
        finally:
            adaptive.cancel(job)  # a second try of this test counts threads by the same names
    print(took)
    assert max(took.values()) <= UNDER_WAY + 2, took
