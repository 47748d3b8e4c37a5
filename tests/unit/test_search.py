"""Engines that may be seen and not be asked."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from sched_ctl.drivers.sources import search
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
