"""The kernel driver on a cgroup, whose processes come and go."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sched_ctl.drivers import Target
from sched_ctl.drivers.kernel import connect
from sched_ctl.errors import EngineError
from sched_ctl.kernel import cgroup, tracing
from support import wait_until

pytestmark = [pytest.mark.host, pytest.mark.needs("root", "cgroup1_cpu")]

# Puts itself into a cgroup, then has a thread of a name, until its input ends
PROGRAM = """
import ctypes, sys, threading
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
def work():
    ctypes.CDLL(None).prctl(15, sys.argv[2].encode(), 0, 0, 0)
    print("runs", flush=True)
    threading.Event().wait()
threading.Thread(target=work, daemon=True).start()
sys.stdin.read()
"""


@pytest.fixture(params=cgroup.hierarchies(), ids=lambda found: f"v{found.version}")
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    path: Path = request.param.mount / f"program-{os.getpid()}"
    path.mkdir()
    (path / "below").mkdir()
    try:
        yield path
    finally:
        (path / "below").rmdir()
        path.rmdir()


def started(folder: Path, name: str) -> "subprocess.Popen[str]":
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", PROGRAM, str(folder), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None and child.stdout.readline() == "runs\n"
    return child


def ended(child: "subprocess.Popen[str]") -> None:
    child.communicate()


def test_processes_of_a_cgroup_are_one_program(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tracing.SWITCH, "0")
    children = [started(folder, "reader")]
    driver = connect(Target("kernel", f"/{folder.name}"))

    def seen() -> dict[str, int]:
        operators = driver.poll(1.0).topology.operators
        return {o.name.partition(".")[0]: o.threads[0].pid for o in operators if "r" in o.name}

    def are(*names: str) -> bool:
        found = {name: pid for name, pid in seen().items() if name in ("reader", "writer")}
        return found.keys() == set(names) and set(found.values()) <= {c.pid for c in children}

    try:
        wait_until(lambda: are("reader"))
        children.append(started(folder / "below", "writer"))
        wait_until(lambda: are("reader", "writer"))
        topology = driver.poll(1.0).topology
        assert topology.queries == (folder.name,)
        assert topology.pids == {child.pid for child in children}
        assert driver.poll(1.0).topology is topology
        ended(children[0])
        wait_until(lambda: are("writer"))
        ended(children[1])
        wait_until(lambda: not driver.poll(1.0).topology.operators)  # it may have others later
    finally:
        driver.close()
        for child in children:
            child.kill()
            child.wait()
    assert connect(Target("kernel", str(folder))).poll(1.0).topology.pids == frozenset()


def test_a_cgroup_that_goes_has_ended(folder: Path) -> None:
    gone = folder / "gone"
    gone.mkdir()
    driver = connect(Target("kernel", str(gone)))
    driver.poll(1.0)
    gone.rmdir()
    with pytest.raises(EngineError, match="cannot read"):
        driver.poll(1.0)
    driver.close()


def test_what_is_no_cgroup_is_refused() -> None:
    mount = cgroup.hierarchies()[0].mount
    for address in ("/", str(mount), f"{mount}/../..", "/no such cgroup", "/tmp"):
        with pytest.raises(EngineError, match=r"whole machine|no cgroup"):
            connect(Target("kernel", address))
