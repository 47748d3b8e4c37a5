"""`sched-ctl scale` on a real Flink: how many steps it takes, and that nothing is lost by them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.cluster import ADAPTIVE, Cluster, running
from support import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.needs("root", "java")]

SLEEP_MS = 10.0  # so one replica can do not quite 100 a second


@pytest.fixture(scope="module")
def adaptive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("scaled") / "cluster", settings=ADAPTIVE) as cluster:
        yield cluster


def scale(cluster: Cluster, folder: Path, *arguments: str) -> Any:
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("sched-ctl")), "scale", "c", "--json", *arguments),
            *("--run-dir", str(folder / "run"), "--engine", f"flink:127.0.0.1:8081@{cluster.pid}"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    print(arguments, told)
    return told


def replicas(cluster: Cluster, job: str) -> int:
    vertices = cluster.call("GET", f"/jobs/{job}")["vertices"]
    return int(next(v["parallelism"] for v in vertices if "work" in v["name"]))


def counted(out: Path) -> tuple[int, int]:
    """Records that were counted, by the last count of each key, and that were made."""
    counts: dict[str, int] = {}
    made = 0
    for line in out.read_text().splitlines():
        words = line.split()
        if len(words) == 4:
            counts[words[1]] = max(int(words[2]), counts.get(words[1], 0))
            made = max(made, int(words[3]) + 1)
    return sum(counts.values()), made


def test_as_many_replicas_as_it_needs_and_each_record_counts_once(
    adaptive: Cluster, tmp_path: Path
) -> None:
    out, rate = tmp_path / "counted.txt", tmp_path / "rate"
    rate.write_text("60")
    job = adaptive.submit(
        "Counted",
        **{"name": "c", "rate_file": rate, "lag_ms": 1000, "parallelism": 8},
        **{"sleep_ms": SLEEP_MS, "out": out},
    )

    def asks_for(count: int) -> bool:
        (told,) = scale(adaptive, tmp_path, "--observe", "3")
        return [step["to"] for step in told["steps"]] == [count]

    wait_until(lambda: asks_for(1), 120, "one replica for 60 records a second")
    fewer = scale(adaptive, tmp_path, "--apply")
    assert (fewer["outcome"], replicas(adaptive, job)) == ("kept", 1)
    assert 0 < fewer["silent_s"] < 30
    rate.write_text("250")
    # All that is known of a source that is held: it wants more
    wait_until(lambda: asks_for(3), 120, "three for 250 a second")
    more = scale(adaptive, tmp_path, "--apply")
    assert (more["outcome"], replicas(adaptive, job)) == ("kept", 3)
    assert more["after"] > 1.5 * more["before"]
    rate.write_text("0.001")
    wait_until(lambda: len(set(counted(out))) == 1, 60, "each record counted once")
    adaptive.cancel(job)
