"""A real Flink, of another user, and a real Storm on one machine, with a policy each."""

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engines import cluster, storm
from engines.compete import State, states
from sched_ctl.kernel import procfs
from support import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.needs("root", "java", "maven")]

PROGRAM = str(Path(sys.executable).with_name("sched-ctl"))
USER = 23456  # nobody's here: its engines are ordered alone
GRAPH = """\
workload fork base_cost_us=100
query fork
op in cost=0.1
op a  cost=1
op b  cost=2
edge in a
edge a b
source in
"""
CONFIGURATION = """\
poll_timeout = 5
[[policy]]
name = "of-flink"
policy = "random"
engines = ["flink:*"]
backend = "nice"
[[policy]]
name = "of-storm"
policy = "random"
engines = ["storm"]
backend = "nice"
period = 0.5
[backends.nice]
best = 3
worst = 9
"""


@contextmanager
def controlled(folder: Path) -> Iterator[Path]:
    """`load` with a policy for each kind; the folder in which it can be asked."""
    (folder / "c.toml").write_text(CONFIGURATION)
    run = folder / "run"
    with (folder / "load.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "TERM", "--", PROGRAM, "load"),
                *("--config", folder / "c.toml", "--run-dir", run),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield run
    finally:
        process.send_signal(signal.SIGINT)
        try:
            code = process.wait(30)
        finally:
            process.kill()
    assert code in (0, 130), (folder / "load.log").read_text()


def ordered(pid: int, named: str) -> int:
    """Operator threads with a nice value of ours."""
    return sum(
        3 <= state[0] <= 9 and (stat := procfs.stat(pid, tid)) is not None and named in stat.name
        for (tid, _), state in states(pid).items()
    )


def rules(run: Path) -> dict[str, dict[str, Any]]:
    """Rule -> what `status` says of it."""
    done = subprocess.run(
        [PROGRAM, "status", "--json", "--run-dir", run],
        capture_output=True,
        check=True,
        timeout=60,
    )
    return {rule["name"]: rule for rule in json.loads(done.stdout)["policies"]}


def same(before: State, now: State) -> bool:
    return all(now[key] == before[key] for key in before.keys() & now.keys())


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder to which the other user gets: pytest's own are closed to him."""
    with tempfile.TemporaryDirectory(prefix="sched-ctl-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_policy_each(tmp_path: Path, public: Path) -> None:
    with (
        cluster.running(public / "flink", uid=USER) as flink,
        storm.running(tmp_path / "storm", period_ms=250) as other,
    ):
        flink.submit(name="f", prefix="f-", rate=300)
        (tmp_path / "out").mkdir()
        (tmp_path / "fork.graph").write_text(GRAPH)
        topology = other.submit(
            name="fork", graph=tmp_path / "fork.graph", rate=100, out=tmp_path / "out"
        )
        theirs = flink.task_managers[0].pid
        assert procfs.owner(theirs) == USER
        (ours,) = other.workers("fork")
        before = {pid: states(pid) for pid in (theirs, ours)}
        with controlled(tmp_path) as run:
            wait_until(lambda: ordered(theirs, "f-") >= 5, 60, "Flink's operators")
            wait_until(lambda: ordered(ours, "Thread-") >= 3, 60, "Storm's operators")
            told = {name: rule["engines"] for name, rule in rules(run).items()}
            assert told == {
                "of-flink": [f"flink:127.0.0.1:8081@{flink.pid}"],
                "of-storm": [f"storm:{topology}"],
            }
            # One that dies is no trouble for the other.
            other.kill("fork")
            wait_until(lambda: not rules(run)["of-storm"]["threads"], 30, "Storm has left")
            assert ordered(theirs, "f-") >= 5
        assert same(before[theirs], states(theirs))
