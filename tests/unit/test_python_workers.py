"""Python processes of Flink's operators: whose they are, and that their CPU time is a cost."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from plans import plan
from sched_ctl.drivers.flink import workers as flink_workers
from sched_ctl.drivers.flink.plan import Row
from sched_ctl.drivers.flink.workers import Worker, serving, workers
from sched_ctl.drivers.threads import threads_of
from sched_ctl.kernel import procfs
from sched_ctl.model.graph import Array
from sched_ctl.model.topology import PYTHON, HelperThread, Thread
from sched_ctl.probes.workers import WorkerTimes
from support import wait_until

ECHO = "import sys\nfor line in sys.stdin:\n    print(line, end='', flush=True)\n"
BURN = (
    "import sys, time\nfor line in sys.stdin:\n    end = time.thread_time() + float(line)\n"
    "    while time.thread_time() < end:\n        pass\n    print(line, end='', flush=True)\n"
)
OWN = plan({"q": ["a", "b"]})


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "pyflink" / "fn_execution" / "beam"
    folder.mkdir(parents=True)
    (folder / "beam_boot.py").write_text(ECHO)
    return tmp_path


def started(package: Path) -> "subprocess.Popen[bytes]":
    """As Flink does it: a script starts Python, and whoever keeps its log."""
    command = f"{sys.executable} -m pyflink.fn_execution.beam.beam_boot --id=1-1 | cat"
    return subprocess.Popen(
        ["sh", "-c", command], cwd=package, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def running() -> tuple[Worker, ...]:
    return tuple(one for one in workers(os.getpid()) if one.threads)


def test_the_thread_that_started_it_is_told(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    children: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        children.append(started(package))
        done.wait()

    starter = threading.Thread(target=start)
    starter.start()
    try:
        monkeypatch.setattr(flink_workers, "STAYS_S", 3600.0)
        (worker,) = wait_until(lambda: workers(os.getpid()), 20, "Python")
        assert not worker.threads  # all are too young
        monkeypatch.setattr(flink_workers, "STAYS_S", -1.0)
        (worker,) = wait_until(running, 20)
        assert worker.starter == starter.native_id
        assert [thread.tid for thread in worker.threads] == [worker.pid]
        assert procfs.command_line(worker.pid)[2] == flink_workers.MODULE
        done.set()
        starter.join()
        # Joined is not gone: the kernel ends it a moment later.
        (after,) = wait_until(lambda: [w for w in running() if w.starter != starter.native_id], 20)
        assert after.pid == worker.pid
    finally:
        done.set()
        starter.join()
        for child in children:
            assert child.stdin is not None
            child.stdin.close()
            child.wait(20)
    wait_until(lambda: not workers(os.getpid()), 20, "its end")


def row(job: str, task: str, *, index: int = 0, parallelism: int = 1) -> Row:
    return Row(job, job, task, task, task, index, parallelism, 0, "tm1", True, (task,))


ROWS = [
    row("a", "Source: src"),
    row("a", "map", index=0, parallelism=2),
    row("a", "map", index=1, parallelism=2),
    row("b", "parse"),
    row("b", "model"),
    row("b", "Sink: out"),
]
RUNS = {100 + place: place for place in range(len(ROWS))}


def worker(pid: int, starter: int | None) -> Worker:
    return Worker(pid, starter, (Thread(pid, pid, 1), Thread(pid, pid + 1, 1)))


@pytest.mark.parametrize(
    ("starter", "serves", "note"),
    [
        (102, 2, "a: Python process 7 goes with 'map (2/2)', which started it"),
        (104, 4, "b: Python process 7 goes with 'model', which started it"),
        (None, None, "for which operator Python process 7 works is not told"),
        (4711, None, "for which operator Python process 7 works is not told"),
    ],
)
def test_whom_it_serves(starter: int | None, serves: int | None, note: str) -> None:
    helpers, (told,) = serving([worker(7, starter)], RUNS, ROWS)
    assert [(h.thread.tid, h.role, h.serves) for h in helpers] == [
        (7, PYTHON, serves),
        (8, PYTHON, serves),
    ]
    assert told.startswith(note)


def test_nothing_is_doubtful_where_all_else_is_java() -> None:
    alone = {tid: place for tid, place in RUNS.items() if place in (0, 1, 5)}
    assert serving([worker(7, 101)], alone, ROWS)[1] == []
    chained = [*ROWS[:5], replace(ROWS[5], job="a", logical=("x", "Sink: out"))]
    assert len(serving([worker(7, 101)], alone, chained)[1]) == 1


@pytest.fixture
def burning() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(
        [sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        yield child
        assert child.stdin is not None
        child.stdin.close()
        child.wait(20)


def burn(child: "subprocess.Popen[bytes]", seconds: float) -> None:
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(f"{seconds}\n".encode())
    child.stdin.flush()
    child.stdout.readline()


def columns() -> dict[str, Array]:
    return {"thread_cpu_time": np.array([1.0, 2.0]), "run_delay": np.array([0.0, 0.0])}


def test_its_cpu_time_is_its_operators_from_when_it_is_known(
    burning: "subprocess.Popen[bytes]",
) -> None:
    burn(burning, 0.05)
    times = WorkerTimes()

    def told(*threads: Thread) -> list[float]:
        helpers = tuple(HelperThread(thread, PYTHON, 1) for thread in threads)
        cpu_time = times.added(replace(OWN, helpers=helpers), columns())["thread_cpu_time"]
        return list(cpu_time.tolist())

    (thread,) = threads_of(burning.pid)
    assert told() == [1.0, 2.0]
    assert told(thread) == [1.0, 2.0]  # no leap
    burn(burning, 0.05)
    own, more = told(thread)
    assert own == 1.0 and more > 2.04
    assert told() == [1.0, more]  # nor a fall


def test_of_other_helpers_it_is_not(burning: "subprocess.Popen[bytes]") -> None:
    (thread,) = threads_of(burning.pid)
    helpers = (HelperThread(thread, "flusher", 1), HelperThread(thread, PYTHON, None))
    times = WorkerTimes()
    for _ in range(2):
        made = times.added(replace(OWN, helpers=helpers), columns())
        assert made["thread_cpu_time"].tolist() == [1.0, 2.0]
        burn(burning, 0.02)
