"""A real Flink job over two nodes, as a controller on the second one sees it.

The nodes are network and process namespaces with a cable between them. A record is the moment at
which it was due, so how old it is on the second node is known.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engines import cluster
from engines.namespaces import CONTAINER, UNSHARED, cable, child
from support import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.needs("root", "java")]

FIRST, SECOND = "10.78.0.1", "10.78.0.2"
SETTINGS = {
    **cluster.SETTINGS,
    "jobmanager.rpc.address": FIRST,
    "jobmanager.bind-host": "0.0.0.0",
    "rest.address": FIRST,
    "rest.bind-address": "0.0.0.0",
    "taskmanager.bind-host": "0.0.0.0",
    "heartbeat.timeout": "120000",  # or Flink would end the job before we have looked
}
CUT_OFF_S = 45
# As on a machine, where an engine is not the first process.
NODE = CONTAINER.replace('exec "$@"', '"$@"\nexit $?')


def with_resource(name: str, host: str) -> dict[str, str]:
    """Of a TaskManager on which a job's operators can be placed."""
    return {
        **cluster.PROMETHEUS,
        "taskmanager.host": host,
        "external-resources": name,
        f"external-resource.{name}.amount": "8",
    }


@contextmanager
def two_nodes(folder: Path) -> Iterator[tuple[cluster.Cluster, int]]:
    """The JobManager and a TaskManager on one node; on the other, a TaskManager of this pid."""
    jars = cluster.download()
    cluster.prepare(folder, SETTINGS, 0)
    address = f'ip link set lo up && ip addr add {FIRST}/32 dev lo && exec "$@"'
    conf = ("--configDir", f"{folder}/conf")
    manager = cluster.launch(
        folder,
        jars,
        "jm",
        ("unshare", "--net", "--", "sh", "-c", address, "sh"),
        ("-Xmx256m",),
        "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint",
        (*conf, "-D", f"web.tmpdir={folder}", "-D", "jobmanager.memory.off-heap.size=64m"),
    )
    found = cluster.Cluster(folder, jars, manager)
    try:
        wait_until(
            lambda: os.stat(f"/proc/{manager.pid}/ns/net") != os.stat("/proc/self/ns/net"),  # noqa: PTH116
            10,
            "a network namespace",
        )
        found.add_task_manager(with_resource("near", FIRST))
        far = cluster.launch(
            folder,
            jars,
            "tm2",
            (*UNSHARED, "--kill-child", "--", "sh", "-c", NODE, "node"),
            ("-Xmx384m",),
            "org.apache.flink.runtime.taskexecutor.TaskManagerRunner",
            (
                *conf,
                *(
                    part
                    for key, value in with_resource("far", SECOND).items()
                    for part in ("-D", f"{key}={value}")
                ),
            ),
        )
        found.task_managers.append(far)
        pid = child(far.pid)
        cable(manager.pid, pid, (FIRST, SECOND))
        found.wait_for_slots(16)
        yield found, pid
    finally:
        found.stop()


class Reader:
    """`node_reader.py` in the namespaces of a process."""

    def __init__(self, pid: int) -> None:
        folder = Path(__file__).parent
        self.process = subprocess.Popen(
            [*inside(pid), sys.executable, str(folder / "node_reader.py"), f"{FIRST}:8081"],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines: list[dict[str, Any]] = []

    def until(self, good: Callable[[dict[str, Any]], bool], lines: int, what: str) -> None:
        """Reads on until a line is as wanted."""
        assert self.process.stdout is not None
        for _ in range(lines):
            self.lines.append(json.loads(self.process.stdout.readline()))
            if good(self.lines[-1]):
                return
        raise AssertionError(f"{what}: {self.lines[-3:]}")

    def read(self, lines: int) -> list[dict[str, Any]]:
        begin = len(self.lines)
        self.until(lambda _: len(self.lines) == begin + lines, lines, "lines")
        return self.lines[begin:]


@contextmanager
def reading(pid: int) -> Iterator[Reader]:
    reader = Reader(pid)
    try:
        yield reader
    finally:
        reader.process.kill()
        reader.process.wait(10)


def ages_s(file: Path, after_s: float, before_s: float) -> npt.NDArray[np.float64]:
    """Of records that left between these times, CLOCK_MONOTONIC."""
    rows = [line.split() for line in file.read_text().splitlines()[:-1]]
    left, due = (np.array([float(row[at]) for row in rows]) * 1e-9 for at in (0, 1))
    return (left - due)[(left > after_s) & (left < before_s)]


def known(line: dict[str, Any]) -> bool:
    return bool(line.get("w-far", {}).get("threads")) and line["w-far"]["global_cost"] is not None


def test_ages_begin_where_records_came_in(tmp_path: Path) -> None:
    """What waits on the first node makes records old on the second, which finds how old; and goes
    on by itself when the cable is cut.
    """
    out = tmp_path / "out"
    with two_nodes(tmp_path / "flink") as (flink, pid):
        # Waits in the queue of `work`, which sleeps 10 ms for each record of 92 a second.
        flink.submit(name="w", rate=92, lock_ms=10, far_us=200, out=out, buffer_timeout="0 ms")
        with reading(pid) as reader:
            reader.until(known, 150, "threads and costs")
            first = reader.lines[-1]
            placed = {name: one["away"] for name, one in first.items() if isinstance(one, dict)}
            assert placed == {
                "Source: w-src": True,
                "w-parse": True,
                "w-work": True,
                "w-far": False,
                "w-egress": False,
                "w-sink: Writer": False,
            }
            began_s = time.monotonic()
            lines = reader.read(150)
            ended_s = time.monotonic()
            wait_until(lambda: ages_s(out, ended_s, np.inf).size > 10, 20, "records written down")
            true = ages_s(out, began_s, ended_s)
            estimates = [line["w-far"]["arrival_age"] for line in lines if "error" not in line]
            print(f"arrival age: {np.mean(estimates):.3f} s, in truth {true.mean():.3f} s")
            assert true.mean() > 0.03, "nothing waits: the test would hold for any small number"
            assert 0.5 < np.mean(estimates) / true.mean() < 2
            # It goes on to who is fed from here; who is elsewhere has none.
            last = lines[-1]
            assert last["w-egress"]["arrival_age"] == last["w-far"]["arrival_age"]
            assert last["w-work"]["arrival_age"] == 0
            # Downstream of a node its costs are known, to whoever feeds it: here, to the first one.
            assert all(line["w-work"]["cost"] > 0.005 for line in lines if "error" not in line)
            # Of three threads here each has its place, with costs and ages on both nodes.
            said = planned(pid, "--policy", "hr")
            assert "in turn" in said and " 3 " in said, said
            cut(pid)
            reader.until(lambda line: "error" in line, 30, "the loss of the JobManager")
            reader.until(
                lambda line: "error" not in line and line["w-far"]["arrival_age"] == 0,
                CUT_OFF_S * 5,
                "a node that goes on by itself",
            )
            alone = reader.read(50)
            good = [line for line in alone if "error" not in line]
            assert len(good) > 0.9 * len(alone)
            assert all(line["w-far"]["threads"] == 1 for line in good)
            assert all(line["w-far"]["global_cost"] is not None for line in good)


def inside(pid: int) -> tuple[str, ...]:
    return ("nsenter", f"--target={pid}", "--net", "--pid", "--mount", "--")


def planned(pid: int, *arguments: str) -> str:
    """What `sched-ctl plan` on the second node says."""
    program = str(Path(sys.executable).with_name("sched-ctl"))
    engine = ("--engine", f"flink:{FIRST}:8081", "--backend", "nice")
    done = subprocess.run(
        [*inside(pid), program, "plan", *engine, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def cut(pid: int) -> None:
    command = ["nsenter", f"--net=/proc/{pid}/ns/net", "ip", "link", "set", "eth0", "down"]
    subprocess.run(command, check=True, timeout=10)
