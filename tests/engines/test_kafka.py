"""What is declared of Kafka Connect and Kafka Streams, and orders of their tasks, on real ones."""

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engines.cluster import patiently
from engines.compete import following, states
from engines.kafka import Connector, Kafka, running
from engines.storm import finished
from sched_ctl.drivers import Target, program
from sched_ctl.drivers.finding import processes
from sched_ctl.drivers.program import ProgramDriver
from sched_ctl.kernel import procfs
from sched_ctl.model.topology import Snapshot, Topology
from support import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.needs("root", "java", "maven")]

STREAMS = {"heartbeat", "rpc", "jvm", "jit"}
CONNECT = STREAMS | {"housekeeping"}
ALARMS, ARCHIVE = "task-thread-ala", "task-thread-arc"  # as the kernel has their names


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with running(tmp_path_factory.mktemp("kafka")) as made:
        made.rates.write_text("50 20")
        yield made


@pytest.fixture(scope="module")
def worker(kafka: Kafka) -> "subprocess.Popen[bytes]":
    return kafka.connect(Connector("alarms", 500), Connector("archive", 2000, tasks=2))


def snapshot(name: str, pids: list[int], operators: int, roles: set[str]) -> Snapshot:
    """The first one with so many operators, and helpers of these roles, which come later."""
    driver = ProgramDriver(Target("program", name), program.shipped()[name], lambda: pids)
    try:

        def poll() -> Snapshot | None:
            found = driver.poll(5.0)
            here = {helper.role for helper in found.topology.helpers}
            return found if len(found.topology.operators) == operators and roles <= here else None

        return wait_until(poll, 120) or pytest.fail()
    finally:
        driver.close()


def test_of_connect_each_task_is_an_operator_and_each_thread_has_a_role(
    kafka: Kafka, worker: "subprocess.Popen[bytes]"
) -> None:
    topology = snapshot("kafka-connect", [worker.pid], 3, CONNECT).topology
    assert Counter(operator.query for operator in topology.operators) == {
        "alarms": 1,
        "archive": 2,
    }
    for operator in topology.operators:
        [thread] = operator.threads
        stat = procfs.stat(worker.pid, thread.tid)
        assert stat is not None and stat.name == f"task-thread-{operator.query}"[:15]
    assert not [note for note in topology.notes if "no pattern" in note]
    outs = [kafka.out(name) for name in ("alarms", "archive")]
    patiently(lambda: all(len(finished(out, 0, np.inf)) for out in outs), 60, "records")


def test_an_order_reaches_the_tasks_of_a_connector_and_is_put_back(
    worker: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    def tasks() -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for tid in procfs.tids(worker.pid):
            stat = procfs.stat(worker.pid, tid)
            if stat is not None and stat.name.startswith("task-thread"):
                found.setdefault(stat.name, set()).add(stat.nice)
        return found

    patiently(lambda: tasks().keys() == {ALARMS, ARCHIVE}, 120, "its tasks")
    before = states(worker.pid)
    policy = ("--policy", "multi-class", "--policy-option", 'classes={"alarms": "constant"}')
    arguments = (*policy, "--backend", "nice")
    with following([worker.pid], "program:kafka-connect", tmp_path, arguments, 1):
        patiently(lambda: max(tasks()[ALARMS]) < min(tasks()[ARCHIVE]), 60, f"{tasks()}")
        changed = {
            stat.name
            for (tid, born), state in states(worker.pid).items()
            if (tid, born) in before
            and state != before[tid, born]
            and (stat := procfs.stat(worker.pid, tid)) is not None
        }
    assert changed <= {ALARMS, ARCHIVE}
    after = states(worker.pid)
    assert {key: after[key] for key in before.keys() & after.keys()} == {
        key: before[key] for key in before.keys() & after.keys()
    }


@pytest.fixture(scope="module")
def streams(kafka: Kafka) -> Iterator["subprocess.Popen[bytes]"]:
    process = kafka.streams(alarms=200, archive=500)
    yield process
    process.kill()  # or a second attempt would find two


def found_by_its_jar() -> list[int]:
    return processes(program.shipped()["kafka-streams"]).get(0, [])


def topology_of_streams(process: "subprocess.Popen[bytes]") -> Topology:
    patiently(lambda: process.pid in found_by_its_jar(), 60, "its jar")
    # The broker has the same jars on its class path, and so is found, too.
    return snapshot("kafka-streams", found_by_its_jar(), 4, STREAMS).topology


def test_of_streams_an_application_is_a_query_and_its_threads_are_replicas(
    streams: "subprocess.Popen[bytes]",
) -> None:
    topology = topology_of_streams(streams)
    assert topology.pids == {streams.pid}
    assert Counter(operator.query for operator in topology.operators) == {
        "alarms-app": 2,
        "archive-app": 2,
    }
    assert not [note for note in topology.notes if "no pattern" in note]


def test_an_order_reaches_the_stream_threads_of_an_application_and_is_put_back(
    kafka: Kafka, streams: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    tids: dict[str, set[int]] = {}
    for operator in topology_of_streams(streams).operators:
        tids.setdefault(operator.query, set()).update(thread.tid for thread in operator.threads)

    def nices(query: str) -> list[int]:
        found = (procfs.stat(streams.pid, tid) for tid in tids[query])
        return [stat.nice for stat in found if stat is not None]

    outs = [kafka.out(query) for query in tids]
    patiently(lambda: all(len(finished(out, 0, np.inf)) for out in outs), 60, "records")
    before = states(streams.pid)
    policy = ("--policy", "multi-class", "--policy-option", 'classes={"alarms-app": "constant"}')
    arguments = (*policy, "--backend", "nice")
    with following([streams.pid], "program:kafka-streams", tmp_path, arguments, 1):
        patiently(
            lambda: max(nices("alarms-app")) < min(nices("archive-app")), 60, "stream threads"
        )
        now = states(streams.pid)
        changed = {key[0] for key in before.keys() & now.keys() if before[key] != now[key]}
    assert changed <= set().union(*tids.values())
    after = states(streams.pid)
    assert all(before[key] == after[key] for key in before.keys() & after.keys())
