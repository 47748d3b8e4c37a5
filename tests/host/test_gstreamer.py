"""A real GStreamer pipeline, by the declaration of ours and by a user's own."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from labs import SOON_S, loaded

from sched_ctl.drivers import Target, kernel, program
from sched_ctl.kernel import tracing
from support import wait_until

pytestmark = [pytest.mark.host, pytest.mark.needs("root", "gstreamer")]

SOURCE = ("fakesrc", "!", "identity", "sleep-time=5000")
PIPELINE = (
    *(*SOURCE, "!", "queue", "name=front-decode", "!", "queue", "name=front-encode"),
    *("!", "fakesink"),
    *(*SOURCE, "!", "queue", "name=back-decode", "!", "queue", "name=back-encode"),
    *("!", "fakesink"),
)
QUEUES = {f"{query}-{name}" for query in ("front", "back") for name in ("decode", "encode")}
RUN = QUEUES | {"fakesrc0", "fakesrc1"}
FRONT = {name for name in QUEUES if name.startswith("front")}
OWN = r"""
[[program]]
name = "cameras"
find = { comm = "gst-launch-1.0" }
[program.threads]
'(?P<query>front|back)-(?P<operator>[a-z]+):.*' = "operator"
'gst-launch-1\.0|fakesrc.*' = { role = "housekeeping" }
"""


@pytest.fixture
def pipeline() -> Iterator[int]:
    """The process of a pipeline whose four queues run, and its sources, which begin last."""
    child = subprocess.Popen(["gst-launch-1.0", "-q", *PIPELINE], stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: {n.partition(":")[0] for n in names(child.pid)} >= RUN, SOON_S)
        yield child.pid
    finally:
        child.kill()
        child.wait()


def names(pid: int) -> dict[str, int]:
    """Thread's name -> nice value."""
    return {
        (task / "comm").read_text().strip(): os.getpriority(os.PRIO_PROCESS, int(task.name))
        for task in Path(f"/proc/{pid}/task").iterdir()
    }


def test_our_declaration_knows_queues_and_sources(
    pipeline: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tracing.SWITCH, "0")
    driver = program.kind.connect(Target("program", "gstreamer"))
    try:
        topology = driver.poll(SOON_S).topology
    finally:
        driver.close()
    mine = {o.logical[0] for o in topology.operators if o.threads[0].pid == pipeline}
    assert mine == RUN
    assert "gst-launch-1.0" in {helper.thread.name for helper in topology.helpers}


def test_two_pipelines_of_a_process_are_two_queries(
    pipeline: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (why := tracing.obstacle()) is not None:
        pytest.skip(f"tracing: {why}")
    monkeypatch.setattr(kernel, "APART_S", 2.0)
    driver = kernel.connect(Target("kernel", str(pipeline)))

    def queries() -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for operator in driver.poll(SOON_S).topology.operators:
            found.setdefault(operator.query, set()).add(operator.name.partition(":")[0])
        return found

    def apart() -> bool:
        now = queries()
        front, back = (now.get(f"gst-launch-1.0#fakesrc{n}:src") for n in (0, 1))
        return (front, back) == (FRONT | {"fakesrc0"}, QUEUES - FRONT | {"fakesrc1"})

    try:
        wait_until(apart, SOON_S, what="two queries")
    finally:
        driver.close()


def test_two_queries_are_ordered_and_put_back(pipeline: int, tmp_path: Path) -> None:
    declared = tmp_path / "cameras.toml"
    declared.write_text(OWN)
    ours = ("--program", str(declared), "--backend", "nice", "--policy", "random")
    with loaded(tmp_path / "run", "--engine", "program:cameras", *ours) as load:
        wait_until(lambda: len({*names(pipeline).values()}) > 1, SOON_S, "nice values are set")
        changed = {name.partition(":")[0] for name, nice in names(pipeline).items() if nice}
        assert changed <= QUEUES, "nobody else is touched"
        load.send_signal(signal.SIGINT)
        assert load.wait(SOON_S) == 0
    assert "everything is as it was before" in (tmp_path / "run.log").read_text()
    assert {*names(pipeline).values()} == {0}


def test_two_programs_are_ordered_by_shares(pipeline: int, tmp_path: Path) -> None:
    """One of the user's, and one that is taken as a whole, by what the user says alone."""
    declared = tmp_path / "both.toml"
    whole = (
        "[[program]]\nname = 'copier'\nwhole = true\nfind = { comm = 'sleep', args = '*7357*' }\n"
    )
    declared.write_text(OWN + whole)
    copier = subprocess.Popen(["sleep", "7357"])
    own = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        engines = ("--engine", "program:cameras", "--engine", "program:copier")
        ours = (
            "--program",
            str(declared),
            "--backend",
            "nice",
            "--share",
            "cameras/*=8",
            "--race",
            "0",
        )
        with loaded(tmp_path / "run", *engines, *ours) as load:
            wait_until(lambda: names(copier.pid)["sleep"] > own, SOON_S, "its share is smaller")
            assert max(names(pipeline).values()) < names(copier.pid)["sleep"]
            load.send_signal(signal.SIGINT)
            assert load.wait(SOON_S) == 0
        assert names(copier.pid) == {"sleep": own} and {*names(pipeline).values()} == {own}
    finally:
        copier.kill()
        copier.wait()
