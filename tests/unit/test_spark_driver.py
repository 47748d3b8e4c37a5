"""The Spark driver on what applications of 4.3.0 answered; names and numbers as they came."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from sched_ctl.drivers import Target, threadnames
from sched_ctl.drivers.spark import local
from sched_ctl.drivers.spark.answers import Application, Attempt, Gauges, Job, Pace, Query, query_of
from sched_ctl.drivers.spark.driver import SparkDriver, connect
from sched_ctl.drivers.spark.modes import STEADY_S, Modes
from sched_ctl.drivers.spark.plan import Here, names_of, plan
from sched_ctl.errors import EngineError, UserError
from sched_ctl.kernel import procfs
from sched_ctl.model.topology import Thread, Topology
from support import wait_until

A = Query("3c97e23f-bf3f-4d6e-b530-5a2e15cd6edb", "c57bf616-c785-4a77-894a-56167195eca7", "A")
B = Query("425284d1-12ae-449c-96bc-9d719062ee49", "48ff6fd8-acf4-407e-a349-cb9312083381", "B")
NAMELESS = Query("af02ca8d-f012-491d-8caa-783ed56b305a", "d91273ae-a340-462b-9225-c0550fa4347c")
JOB = """{
  "jobId" : %d, "name" : "start at NativeMethodAccessorImpl.java:0",
  "description" : "%sid = %s\\nrunId = %s\\nbatch = 3",
  "submissionTime" : "2026-11-22T10:46:01.469GMT", "stageIds" : %s, "jobGroup" : "%s",
  "jobTags" : [ "spark-session-4ac37962" ], "status" : "RUNNING", "numTasks" : 3,
  "numActiveTasks" : 3, "numCompletedTasks" : 0, "numActiveStages" : %d, "killedTasksSummary" : { }
}"""


def job(query: Query, number: int, *stages: int, active: int | None = None) -> Job:
    name = f"{query.name}\\n" if query.name else ""
    count = len(stages) if active is None else active
    text = JOB % (number, name, query.id, query.run, list(stages), query.run, count)
    return msgspec.json.decode(text, type=Job)


def task(partition: int, stage: int, number: int) -> str:
    return f"Executor task launch worker for task {partition}.0 in stage {stage}.0 (TID {number})"


def here(names: Mapping[int, str], executor: str = "driver", workers: Sequence[int] = ()) -> Here:
    said = {
        Thread(100, tid, 1, name): found
        for tid, name in names.items()
        if (found := threadnames.read("spark", name)) is not None
    }
    return Here(100, executor, said, tuple(Thread(200, tid, 1) for tid in workers))


REAL_TIME = {  # of two queries with two stages each, in one pool
    13660: f"stream execution thread for A [id = {A.id}, runId = {A.run}]",
    13706: f"stream execution thread for B [id = {B.id}, runId = {B.run}]",
    13849: task(0, 14, 21),
    13850: task(0, 12, 18),
    13851: task(1, 13, 20),
    13853: task(1, 15, 23),
    13881: task(0, 15, 22),
    13882: task(0, 13, 19),
    13885: "Executor task idle worker#134",
    15198: "streaming-shuffle-writer-6-0-boss-32-1",
    6637: "G1 Main Marker",
}


def test_the_query_of_a_job() -> None:
    assert query_of(job(A, 7, 14, 15)) == A
    assert query_of(job(NAMELESS, 1, 0)) == NAMELESS
    one = job(A, 7, 14, 15)
    # As browsers take it, before 4.0.
    one.description = (one.description or "").replace("\n", "<br/>")
    assert query_of(one) == A
    one.group = B.run  # a description that somebody else made up
    assert query_of(one) is None
    for text in (None, "", "count at x.py:3", "id = \nrunId = ", "\n" * 5000):
        one.description = text
        assert query_of(one) is None


def test_names_of_queries() -> None:
    assert names_of("app", [A, NAMELESS]) == {A.run: "A", NAMELESS.run: "app"}
    twice = names_of("A", [A, NAMELESS])
    assert twice == {A.run: "A#c57bf616", NAMELESS.run: "A#d91273ae"}


def test_real_time_tasks_are_operators() -> None:
    jobs = [job(A, 7, 14, 15), job(B, 6, 12, 13)]
    made = plan("app", [A, B], {A.run, B.run}, jobs, [here(REAL_TIME)], 1, {})
    assert {o.label: [t.tid for t in o.threads] for o in made.operators} == {
        "A/stage 1": [13849],
        "A/stage 2 (1/2)": [13881],
        "A/stage 2 (2/2)": [13853],
        "B/stage 1": [13850],
        "B/stage 2 (1/2)": [13882],
        "B/stage 2 (2/2)": [13851],
    }
    assert {(e.source, e.target, e.share) for e in made.edges} == {
        (0, 1, 0.5), (0, 2, 0.5), (3, 4, 0.5), (3, 5, 0.5)
    }  # fmt: skip
    # Rows are counted where they come in.
    assert made.source[0] == ((A.run,), 1.0) and made.source[1] == ((), 0.5)
    roles = {h.thread.tid: (h.role, h.serves) for h in made.helpers}
    assert roles[13660] == ("stream", 2) and roles[13706] == ("stream", 5)
    assert roles[13885] == ("idle", None)
    assert roles[15198] == ("network", None) and roles[6637] == ("gc", None)

    # Between two batches there are operators, and no threads; then the pool was shuffled.
    pause = {**REAL_TIME, **dict.fromkeys(range(13849, 13886), "Executor task idle worker#1")}
    between = plan("app", [A, B], {A.run, B.run}, [], [here(pause)], 1, made.shape)
    assert [o.label for o in between.operators] == [o.label for o in made.operators]
    assert not any(o.threads for o in between.operators)
    moved = {13660: REAL_TIME[13660], 13706: REAL_TIME[13706], 13850: task(0, 18, 30)}
    again = plan("app", [A, B], {A.run, B.run}, [job(A, 9, 18, 19)], [here(moved)], 1, made.shape)
    assert [t.tid for t in again.operators[0].threads] == [13850]
    # One of the queries was stopped.
    left = plan("app", [B], {B.run}, [], [here(REAL_TIME)], 1, made.shape)
    assert {o.query for o in left.operators} == {"B"}


def test_continuous_readers_serve_their_tasks() -> None:
    names = {
        8652: task(0, 0, 0),
        8653: task(1, 0, 1),
        8669: f"continuous-reader--0--{A.run}--ea1f48da-d1bb-4cac-a19d-e1ee2cae3ea4",
        8671: f"continuous-reader--1--{A.run}--ea1f48da-d1bb-4cac-a19d-e1ee2cae3ea4",
        8662: f"epoch-poll--{A.run}--ea1f48da-d1bb-4cac-a19d-e1ee2cae3ea4--1",
    }
    made = plan("app", [A], {A.run}, [job(A, 0, 0)], [here(names)], 1, {})
    assert [[t.tid for t in o.threads] for o in made.operators] == [[8652], [8653]]
    roles = {h.thread.tid: (h.role, h.serves) for h in made.helpers}
    assert roles == {8669: ("fetcher", 0), 8671: ("fetcher", 1), 8662: ("checkpoint", 1)}


def test_a_pool_is_one_operator() -> None:
    names = {1: task(0, 3, 7), 2: "Executor task idle worker#2", 3: REAL_TIME[13660]}
    made = plan("app", [A], set(), [], [here(names, workers=[9])], 1, {})
    (pool,) = made.operators
    assert pool.label == "A/tasks" and [t.tid for t in pool.threads] == [1, 2, 9]
    assert [(h.role, h.serves) for h in made.helpers] == [("stream", 0)]
    # Two queries share it; on a cluster it is one an executor, and the driver has none.
    cluster = [here({1: names[1]}, "0"), here({2: names[2]}, "1"), here({}, "")]
    both = plan("app", [A, B], set(), [], cluster, 4, {})
    assert [o.label for o in both.operators] == [
        "app/tasks of executor 0", "app/tasks of executor 1"
    ]  # fmt: skip
    assert {part for _, part in both.source} == {0.25}


def test_a_partition_that_nobody_has() -> None:
    """A thread's name is anybody's: a number in it makes no billion operators."""
    names = {1: "Executor task launch worker for task 999999999.0 in stage 5.0 (TID 1)"}
    made = plan("app", [A], {A.run}, [job(A, 0, 5)], [here(names)], 1, {})
    assert len(made.operators) <= 20_000


def test_two_partitions_that_nobody_has() -> None:
    """Nor do two make a hundred million edges."""
    names = {1: task(9999, 5, 1), 2: task(9999, 6, 2)}
    made = plan("app", [A], {A.run}, [job(A, 0, 5, 6)], [here(names)], 1, {})
    assert len(made.operators) == 20_000
    assert not made.edges and not made.logical_edges
    assert "A: there are more edges than are looked at" in made.notes[-1]
    few = {1: task(99, 5, 1), 2: task(99, 6, 2)}
    made = plan("app", [A], {A.run}, [job(A, 0, 5, 6)], [here(few)], 1, {})
    assert len(made.edges) == 10_000 and not made.notes


def test_modes() -> None:
    modes = Modes()
    modes.look([job(A, 1, 0, 1)], 0)
    modes.look([job(A, 1, 0, 1), job(B, 2, 2, 3, active=1)], STEADY_S + 0.1)
    modes.look([job(A, 1, 0, 1), job(B, 2, 2, 3, active=1)], 2 * STEADY_S + 0.2)
    assert modes.steady == {A.run}  # B's stages run one after the other
    ending = job(A, 1, 0, 1)
    ending.num_completed_tasks = 2
    modes.look([ending], 8)
    modes.look([], 9)
    modes.look([job(A, 3, 4, 5)], 10)
    assert modes.steady == {A.run}  # a batch has ended, and the next one begun
    for second in range(11, 15):
        modes.look([job(A, second, 2 * second)], second)
    assert not modes.steady  # a job each second: its batches were long, and are not any more
    modes.add({A.run})
    modes.keep({B.run})
    assert not modes.steady


def test_a_long_batch_of_many_tasks() -> None:
    modes = Modes()
    some = job(A, 1, 0)
    for second in range(5):
        modes.look([some], second)
    assert modes.steady == {A.run}  # nothing has ended yet
    some.num_completed_tasks = 4
    for second in range(5, 10):
        modes.look([some], second)
    assert not modes.steady


def test_gauges() -> None:
    names = {
        "inputRate-total": 659.7463284379172,
        "processingRate-total": 1205.979255643685,
        "latency": 8195,
        "states-rowsTotal": "NaN",
    }
    text = json.dumps(
        {
            "version": "4.0.0",
            "gauges": {
                **{
                    f"local-1.driver.spark.streaming.a.b.{k}": {"value": v}
                    for k, v in names.items()
                },
                "local-1.driver.spark.streaming.c.latency": {"value": 0},
                "local-1.driver.spark.streaming.c.inputRate-total": {"value": 0.0},
                "local-1.driver.spark.streaming.d.latency": {"value": -1},
                "local-1.driver.BlockManager.memory.maxMem_MB": {"value": 434},
                "x.driver.spark.streaming.": {"value": None},
            },
        }
    )
    paces = msgspec.json.decode(text, type=Gauges).paces()
    assert (paces["a.b"].rate, paces["a.b"].batch_s) == (659.7463284379172, 8.195)
    # No batch has ended, or none ever will.
    assert math.isnan(paces["c"].rate) and math.isnan(paces["c"].batch_s)
    assert "d" not in paces or math.isnan(paces["d"].batch_s)


def test_addresses() -> None:
    with pytest.raises(UserError, match="no address of a Spark application"):
        connect(Target("spark", "app-1"))
    with pytest.raises(EngineError, match="cannot be reached"):
        connect(Target("spark", "127.0.0.1:1"))


def test_python_workers_are_their_executors(tmp_path: Path) -> None:
    """A process that looks like an executor, as far as its children go."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    (tmp_path / "pyspark" / "daemon.py").write_text(
        "import os, time\nif os.fork():\n    os.wait()\nelse:\n    time.sleep(60)\n"
    )
    command = [sys.executable, "-m", "pyspark.daemon", "pyspark.worker"]
    child = subprocess.Popen(command, cwd=tmp_path)
    try:
        process = local.Process(os.getpid(), 0, "spark", executor="driver")

        def workers() -> bool:
            process._next_daemon = 0.0
            process.look_for_workers()
            return len({thread.pid for thread in process.workers}) == 2

        wait_until(workers, 20, "the daemon and its child")
        assert child.pid in {thread.pid for thread in process.workers}
        grandchild = next(t.pid for t in process.workers if t.pid != child.pid)
        os.kill(grandchild, 9)
        wait_until(lambda: child.poll() is not None, 20)
        process._next_daemon = 0.0
        assert process.look_for_workers() and not process.workers
    finally:
        child.kill()
        child.wait()


def test_a_driver_without_a_web_interface_is_not_asked() -> None:
    """It could not be read, and would log each question as an error."""
    words = [sys.executable, "-c", "import time; time.sleep(60)"]
    main = ["org.apache.spark.deploy.SparkSubmit", "pyspark-shell"]
    children = [
        subprocess.Popen([*words, "--conf", f"spark.ui.enabled={enabled}", *main])
        for enabled in ("true", "false")
    ]
    try:
        pids = [child.pid for child in children]
        wait_until(lambda: pids[0] in local.drivers(), 20, "the one with an interface")
        wait_until(lambda: main[0] in procfs.command_line(pids[1]), 20)
        assert pids[1] not in local.drivers()
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_the_first_answer_of_each_kind_may_take_long() -> None:
    """Spark loads what answers only when it is asked: a slow application is kept, not refused."""
    application = [{"id": "app-1", "name": "a", "attempts": [{"completed": False}]}]
    asked: list[tuple[str, float]] = []

    class Slow:
        def json(self, path: str, timeout_s: float, _: object) -> object:
            first = path not in {before for before, _ in asked}
            asked.append((path, timeout_s))
            if timeout_s < (3.0 if first else 0.0):
                raise EngineError(f"{path} did not answer within {timeout_s} s")
            answer = application if path.endswith("/applications") else []
            return msgspec.convert(answer, list[Application]) if answer else answer

    driver = SparkDriver(Target("spark", "127.0.0.1:4040"), cast("Any", Slow()))
    driver.poll(0.1)
    driver._next_jobs = 0.0
    driver.poll(0.1)
    paths = [path.rpartition("/")[2] for path, _ in asked]
    assert paths == ["applications", "executors", "jobs?status=running", "jobs?status=running"]
    assert asked[-1][1] <= 0.1  # and then it has as long as all others


def test_rows_are_counted_for_whoever_runs_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three queries, each of which takes in 1000 rows/s, one stops; then an executor comes."""
    clock = [100.0]
    monkeypatch.setattr("sched_ctl.drivers.spark.driver.time.monotonic", lambda: clock[0])
    application = [Application("app-1", "a", [Attempt(completed=False)])]
    rest = SimpleNamespace(json=lambda *_: application)
    driver = SparkDriver(Target("spark", "127.0.0.1:4040"), cast("Any", rest))
    driver._topology = Topology("spark:1", (), (), (), ())
    rates, told = list[float](), list[float]()
    for second in range(90):
        queries = [A, B, NAMELESS] if second < 30 else [A, B]
        clock[0] += 1.0
        driver._queries = {query.run: (query, 0.0) for query in queries}
        driver._paces = {query.name or query.id: Pace(1000.0, 0.1) for query in queries}
        driver._plan = plan("a", queries, set(), [], [here({7: "x"})], 1 + (second >= 60), {})
        columns = driver._measure().columns
        rates.append(float(columns["tuples_in"][0]))
        told.append(float(columns["arrival_rate"][0]))
    assert rates[0] == pytest.approx(3000)  # not what came since the machine was started
    coming = [3000] * 30 + [2000] * 30 + [1000] * 30
    assert np.diff(rates).tolist() == pytest.approx(coming[1:]) and told == pytest.approx(coming)


def test_a_query_that_is_started_again_is_one_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its driver is not seen: no thread tells that the run before has ended."""
    again = Query("93ad7a4e-79d5-4dd4-8b4b-07d60e8fd9a1", A.id, A.name)
    clock = [100.0]
    monkeypatch.setattr("sched_ctl.drivers.spark.driver.time.monotonic", lambda: clock[0])
    answers: dict[str, Any] = {
        "applications": [Application("app-1", "a", [Attempt(completed=False)])],
        "executors": [],
        "jobs?status=running": [job(A, 3, 4), job(B, 4, 5)],
        "": Gauges(),
    }
    rest = SimpleNamespace(json=lambda path, *_: answers[path.rpartition("/")[2]])
    driver = SparkDriver(Target("spark", "elsewhere:4040"), cast("Any", rest))

    def runs() -> list[str]:
        clock[0] += 10.0
        driver.poll(1.0)
        return sorted(driver._queries)

    assert runs() == sorted([A.run, B.run])
    answers["jobs?status=running"] = [job(again, 9, 12), job(A, 3, 4)]  # whose end was missed
    assert runs() == sorted([again.run, B.run])
    answers["jobs?status=running"] = [job(A, 3, 4)]
    assert runs() == sorted([again.run, B.run])
    assert driver._modes._last.keys() <= {again.run, B.run}
    answers["jobs?status=running"] = [job(again, 9, 12)]
    driver._queries = {B.run: driver._queries[B.run]}  # as threads told
    assert runs() == sorted([again.run, B.run])
