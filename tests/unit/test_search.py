"""Engines that may be seen and not be asked."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sched_ctl.drivers import Target
from sched_ctl.drivers.flink import driver as flink
from sched_ctl.drivers.sources import search
from sched_ctl.drivers.sources.http import Endpoint
from sched_ctl.drivers.spark import driver as spark
from sched_ctl.errors import EngineError
from sched_ctl.kernel import procfs
from sched_ctl.lab import file as lab_file
from support import wait_until

ASK = """
import sys
from sched_ctl.drivers.sources.search import endpoint
from sched_ctl.errors import EngineError

found = endpoint(int(sys.argv[1]), lambda port: port == 8081, lambda asked, _: True)
try:
    found.get("/", 5)
except EngineError as error:
    print(error)
"""
ASK_AT = """
import sys
from sched_ctl.drivers.sources.http import Endpoint
from sched_ctl.errors import EngineError

try:
    Endpoint("127.0.0.1", 8081, int(sys.argv[1])).get("/", 5)
except EngineError as error:
    print(error)
"""
# It may read the checkout, wherever that is.
AS_NOBODY = (
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
)
NOT_ADMIN = ("setpriv", "--inh-caps", "-sys_admin", "--bounding-set", "-sys_admin")


@pytest.fixture
def contained() -> Iterator[int]:
    """A process that listens in a network namespace of its own, as in a container."""
    server = (sys.executable, "-m", "http.server", "8081")
    process = subprocess.Popen(
        ["unshare", "--net", *server],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: search.listening(process.pid) or process.poll() is not None, 30)
        if process.poll() is not None:
            pytest.skip("needs network namespaces")
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.mark.needs("root")
def test_an_engine_whose_network_is_closed_to_us_is_found_and_says_so(contained: int) -> None:
    done = subprocess.run(
        [*NOT_ADMIN, sys.executable, "-c", ASK, str(contained)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "not permitted to enter its network namespace" in done.stdout
    assert "CAP_SYS_ADMIN" in done.stdout and "containers.conf" in done.stdout
    print(done.stdout)


@pytest.mark.needs("root")
def test_whose_network_another_user_may_not_see_says_to_be_root(contained: int) -> None:
    done = subprocess.run(
        [*AS_NOBODY, sys.executable, "-c", ASK_AT, str(contained)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "another user's process: run as root" in done.stdout


@pytest.fixture
def pod() -> Iterator[tuple[int, int]]:
    """A process that only holds a network namespace, and one of user 20001 that listens in it."""
    hold = ["unshare", "--net", "sh", "-c", "ip link set lo up && exec sleep 600"]
    server = (sys.executable, "-m", "http.server", "8081", "--bind", "127.0.0.1")
    holder = subprocess.Popen(hold)
    try:
        wait_until(lambda: procfs.command_line(holder.pid)[:1] == ["sleep"] or holder.poll(), 30)
        if holder.poll() is not None:
            pytest.skip("needs network namespaces")
        inside = ["nsenter", f"--net=/proc/{holder.pid}/ns/net", "setpriv", "--reuid=20001"]
        with subprocess.Popen(
            [*inside, "--clear-groups", *server],
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as listening:
            wait_until(lambda: search.listening(listening.pid), 30)
            yield holder.pid, listening.pid
            listening.kill()
    finally:
        holder.kill()
        holder.wait()


def both(target: Target, rest: Endpoint) -> tuple[Target, Endpoint]:
    return target, rest


@pytest.mark.needs("root")
def test_an_address_may_name_the_holder_of_a_namespace(pod: tuple[int, int]) -> None:
    """Who listens there is the engine; where that is no process that we know, it has his uid."""
    holder, listening = pod
    named = Target("flink", f"127.0.0.1:8081@{holder}")
    for mains, pid in (([holder, listening], listening), ([], None)):
        target, rest = search.connected(named, partial(list, mains), "it", both)
        assert target.pid == pid
        assert (procfs.owner(pid) if pid else target.uid) == 20001
        assert rest.get("/", 10.0)
        rest.close()


def test_an_engine_that_listens_elsewhere_by_now_is_asked_anew() -> None:
    """A program of Spark's may stop its context, and start another at another port."""
    known: dict[tuple[int, int], Target] = {}
    asked: list[list[int]] = []
    mine = os.getpid()

    def found(server: socket.socket) -> list[str]:
        port = server.getsockname()[1]

        def endpoints(pids: list[int]) -> dict[int, Endpoint]:
            asked.append(pids)
            return {pid: Endpoint("127.0.0.1", port, pid) for pid in pids}

        targets = search.targets("spark", [mine], endpoints, known)
        assert [target.address for target in targets] == [f"127.0.0.1:{port}"]
        return [target.address for target in targets]

    with socket.create_server(("127.0.0.1", 0)) as second:
        with socket.create_server(("127.0.0.1", 0)) as first:
            before = found(first)
            assert found(first) == before and asked == [[mine], []]
        assert found(second) != before and asked[2:] == [[mine]]


def test_files_named_after_no_process_are_not_even_sorted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab_file, "FOLDER", tmp_path)
    for name in (str(os.getpid()), "1", "4194399", "x", ""):
        (tmp_path / f"{lab_file.PREFIX}{name}").touch()
    assert [path.suffix for path in lab_file._files()] == sorted([".1", f".{os.getpid()}"])


@pytest.mark.parametrize("address", ["host", "1.2.3.4:99999", "http://x:1", "a b:1"])
def test_an_address_that_can_mean_no_engine_is_refused_at_once(address: str) -> None:
    for kind in (flink.kind, spark.kind):
        kind.check("127.0.0.1:8081@7")
        with pytest.raises(EngineError, match="is no address of a"):
            kind.check(address)
