"""The code of docs/extending.md runs as it stands there, and its table is that of the code."""

import json
import os
import re
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sched_ctl.decide.decision import decide
from sched_ctl.drivers import Target
from sched_ctl.errors import EngineError
from sched_ctl.metrics.catalogue import METRICS, PRIMITIVES, resolve
from sched_ctl.metrics.window import Window
from sched_ctl.model.policy import Policy
from sched_ctl.model.topology import Snapshot

TEXT = Path(__file__).parents[2].joinpath("docs", "extending.md").read_text()


@pytest.fixture(scope="module")
def examples() -> Iterator[tuple[types.ModuleType, types.ModuleType]]:
    """The two modules of the page: the policy and the driver."""
    sources = re.findall(r"^```python\n(.*?)^```$", TEXT, re.S | re.M)
    made = []
    for name, source in zip(("drain", "mini"), sources, strict=True):
        module = sys.modules[f"page_{name}"] = types.ModuleType(f"page_{name}")
        exec(compile(source, f"docs/extending.md:{name}", "exec"), module.__dict__)
        made.append(module)
    yield made[0], made[1]
    for module in made:
        del sys.modules[module.__name__]


@pytest.fixture
def engine(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    examples: tuple[types.ModuleType, types.ModuleType],
) -> Iterator[Path]:
    """The file of an engine that has this process's pid and two threads of its own."""
    over = threading.Event()
    threads = [threading.Thread(target=over.wait, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    monkeypatch.setattr(examples[1], "FOLDER", tmp_path)
    path = tmp_path / f"{os.getpid()}.json"
    write(path, [thread.native_id or 0 for thread in threads], 0)
    yield path
    over.set()
    for thread in threads:
        thread.join()


def write(path: Path, tids: list[int], tuples: int) -> None:
    parse = {"name": "parse", "tid": tids[0], "in": tuples, "out": tuples, "queue": 4}
    count = {"name": "count", "tid": tids[1], "in": tuples, "out": 0, "queue": 40, "to": []}
    report = {"query": "clicks", "operators": [parse | {"to": ["count"]}, count]}
    path.write_text(json.dumps(report))


def test_the_driver_reads_threads_and_counters(
    examples: tuple[types.ModuleType, types.ModuleType], engine: Path
) -> None:
    _, mini = examples
    [target] = mini.find()
    assert target == Target("mini", str(os.getpid()), os.getpid())
    driver = mini.connect(target)
    first: Snapshot = driver.poll(1.0)
    tids = [operator.threads[0].tid for operator in first.topology.operators]
    assert {str(tid) for tid in tids} <= {p.name for p in Path("/proc/self/task").iterdir()}
    write(engine, tids, 1000)
    second: Snapshot = driver.poll(1.0)
    assert second.topology is first.topology
    assert second.columns["tuples_in"].tolist() == [1000, 1000]
    assert second.topology.graph.source.tolist() == [0]
    # Another process's thread is nobody's operator, whatever the file says.
    write(engine, [1, tids[1]], 1000)
    assert driver.poll(1.0).topology.operators[0].threads == ()
    engine.write_text("{")
    with pytest.raises(EngineError, match=f"{os.getpid()}.json"):
        driver.poll(1.0)


def test_the_policy_orders_what_the_driver_reads(
    examples: tuple[types.ModuleType, types.ModuleType], engine: Path
) -> None:
    drain, mini = examples
    driver = mini.connect(*mini.find())
    then: Snapshot = driver.poll(1.0)
    write(engine, [operator.threads[0].tid for operator in then.topology.operators], 1000)
    now: Snapshot = driver.poll(1.0)
    used = {"thread_cpu_time": np.array([0.5, 0.5]), "head_age": np.array([0.1, 0.1])}
    then = Snapshot(
        then.topology, now.time_s - 1.0, {**then.columns, "thread_cpu_time": 0 * used["head_age"]}
    )
    now = Snapshot(now.topology, now.time_s, {**now.columns, **used})
    policy: Policy = drain.policy(patience=5.0)
    name = now.topology.engine
    resolution = resolve(policy.needs, frozenset(now.columns), policy="drain", engine=name)
    windows = {name: Window(now, then, policy.level)}
    schedule = decide("drain", policy, windows, {name: resolution})
    urgency = schedule.form.at(schedule.head_age_s, schedule.queue_size)
    by_operator = dict(zip(schedule.operators, urgency.tolist(), strict=True))
    # 1000 tuples in 0.5 s of CPU time: 0.5 ms a tuple; 4 and 40 wait, for 0.1 s.
    assert by_operator["clicks/parse"] == pytest.approx(4 / 0.5 + 0.1 / 5)
    assert by_operator["clicks/count"] == pytest.approx(40 / 0.5 + 0.1 / 5)
    with pytest.raises(ValueError, match="patience"):
        drain.policy(patience=0)


def test_the_table_of_metrics() -> None:
    for table, primitive in zip(TEXT.split("\nDerived, "), (True, False), strict=True):
        rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", table, re.M)
        declared = [
            (m.name, m.unit, m.meaning)
            for m in METRICS.values()
            if (m.name in PRIMITIVES) == primitive
        ]
        assert rows == declared
