"""The fleet's commands on a standalone cluster: what they tell, and the rows that they leave.

A master and two workers with a core each, processes of their own on loopback, against the one
small Spark that runs inside the tests.
"""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench.scale.fleet import differ, results, standalone
from sched_ctl.pipeline import generate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A call into the JVM that is broken off takes the connection with it, and all tests that follow.
pytestmark = [pytest.mark.spark, pytest.mark.needs("pyspark", "java"), pytest.mark.timeout(1200)]

# Two kinds of machines, a node with more to do, and whatever makes a batch be written twice.
PLAN = generate.Plan(
    nodes=4,
    seconds=600,
    file_s=300,
    queries=2,
    skew=3,
    policy_s=30,
    fault=(150, 300),
    fault_nodes=2,
    bad_lines=1,
    torn=1,
    repeated=1,
    level=1,
)
DRIVER = """
import json, sys
from pathlib import Path
from bench.scale.fleet import results
from sched_ctl.pipeline.spark import spark

master, source, out, settings = sys.argv[1:]
with spark("cluster", master, json.loads(settings)) as session:
    print(json.dumps(results(session, Path(source), Path(out), page=False)))
"""


def ran_on(events: Path) -> set[str]:
    """Executors that ran a task, by Spark's own log of events."""
    said = [json.loads(line) for path in events.glob("*/events_*") for line in path.open()]
    ends = [one for one in said if one["Event"] == "SparkListenerTaskEnd"]
    return {one["Task Info"]["Executor ID"] for one in ends}


def test_a_cluster_finds_the_same_to_the_row(spark: "SparkSession", tmp_path: Path) -> None:
    truth = generate.generate(tmp_path / "in", PLAN)
    events = tmp_path / "events"
    events.mkdir()
    java = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": java,
        "spark.executor.memory": "600m",
        "spark.executor.extraJavaOptions": java,
        "spark.scheduler.minRegisteredResourcesRatio": "1",  # begin when both are there
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
        "spark.sql.shuffle.partitions": "3",
        "spark.local.dir": str(tmp_path / "scratch"),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
    }

    def on_the_cluster() -> dict[str, Any]:
        folders = [str(tmp_path / "in"), str(tmp_path / "there")]
        with standalone(tmp_path / "spark", java) as master:
            done = subprocess.run(
                [sys.executable, "-c", DRIVER, master, *folders, json.dumps(settings)],
                capture_output=True,
                text=True,
                timeout=900,
                check=False,
                cwd=Path(__file__).parents[2],
            )
        assert done.returncode == 0, done.stderr[-5000:]
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    with ThreadPoolExecutor() as other:
        begun = other.submit(on_the_cluster)
        here = results(spark, tmp_path / "in", tmp_path / "here", page=False)
        there = begun.result()
    assert ran_on(events) == {"0", "1"}
    assert here["rows"]["operator"][0] == truth.operator_rows
    assert here["bottlenecks"] and here["compare"]
    assert differ(here, there) == []
