import os
import threading
import time
from pathlib import Path

import pytest

from sched_ctl.kernel import cgroup, psi
from sched_ctl.probes.pressure import Gauge, levels
from support import wait_until

TEXT = (
    "some avg10=12.50 avg60=3.00 avg300=0.50 total=2500000\n"
    "full avg10=0.25 avg60=0.00 avg300=0.00 total=50000\n"
)


def test_a_pressure_file_is_read_in_shares_and_seconds() -> None:
    found = psi.parse(TEXT)
    assert found.some == psi.Stall(0.125, 0.03, 0.005, 2.5)
    assert found.full == psi.Stall(0.0025, 0.0, 0.0, 0.05)


def test_kernels_that_tell_no_full_pressure_of_the_cpu() -> None:
    assert psi.parse(TEXT.splitlines()[0]).full is None


@pytest.mark.parametrize(
    "text", ["", "full avg10=0 avg60=0 avg300=0 total=0", "some", "some avg10=x avg60=0 total=1"]
)
def test_what_is_no_pressure_file_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        psi.parse(text)


def test_what_cannot_be_read_is_no_pressure(tmp_path: Path) -> None:
    assert psi.read(tmp_path / "cpu.pressure") is None  # no such file
    (tmp_path / "cpu.pressure").write_text("nonsense")
    assert psi.read(tmp_path / "cpu.pressure") is None
    assert Gauge("cpu", tmp_path).read() is None
    (tmp_path / "io.pressure").symlink_to("/proc/pressure/io")
    assert psi.read(tmp_path / "io.pressure") is None  # a link somebody laid is not followed
    assert levels([Gauge("cpu", tmp_path), Gauge("io", tmp_path)]) == {}


def test_a_gauge_tells_the_exact_share_since_its_last_reading(tmp_path: Path) -> None:
    file = tmp_path / "cpu.pressure"
    file.write_text(TEXT)
    gauge = Gauge("cpu", tmp_path)
    first = gauge.read()
    began_s = time.monotonic()
    assert first is not None and first.some_share == 0.125  # the kernel's average
    wait_until(lambda: time.monotonic() > began_s + 0.2)
    file.write_text(TEXT.replace("total=2500000", "total=2550000"))
    second = gauge.read()
    assert second is not None and second.some_total_s == 2.55
    assert 0.0 < second.some_share <= 0.05 / 0.2
    assert second.full_share == 0.0
    file.write_text(TEXT)  # a total that fell is not a negative share
    third = gauge.read()
    assert third is not None and third.some_share == 0.0
    gauge.close()


@pytest.mark.needs("psi")
def test_the_pressure_of_this_machine() -> None:
    """Two threads that both want the only CPU they may use press it."""
    cpu = {min(os.sched_getaffinity(0))}
    stop = threading.Event()

    def spin() -> None:
        os.sched_setaffinity(0, cpu)
        while not stop.is_set():
            sum(range(10000))

    pids = []
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            threading.Timer(20, os._exit, (0,)).start()
            spin()
        pids.append(pid)
    try:
        gauge = Gauge("cpu")
        assert gauge.read() is not None

        def pressed() -> bool:
            time.sleep(0.2)  # the length of the reading
            level = gauge.read()
            return level is not None and level.some_share > 0.5

        wait_until(pressed)
    finally:
        for pid in pids:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
    found = psi.read(psi.path_of("cpu"))
    assert found is not None and found.some.total_s > 0


@pytest.mark.needs("psi")
def test_the_cgroup_of_a_process_is_one_of_the_unified_hierarchy() -> None:
    group = psi.group_of(os.getpid())
    if group is not None:  # None: it lies in the root, whose pressure is the machine's
        assert psi.read(psi.path_of("cpu", group)) is not None
    assert psi.group_of(2**22 + 1) is None


@pytest.mark.parametrize(
    ("inside", "pressed"),
    [
        ("a.service", "a.service"),
        ("a.service/sched-ctl/rest-12345678", "a.service"),
        ("sched-ctl/rest-12345678", ""),
        ("", ""),
    ],
)
def test_the_pressure_of_an_engine_is_that_of_all_its_threads(
    inside: str, pressed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first thread is in a group of ours, which its operators are not in."""
    mount = tmp_path / cgroup.ROOT_NAME
    monkeypatch.setattr(cgroup, "hierarchies", lambda: (cgroup.Hierarchy(2, mount),))
    monkeypatch.setattr(cgroup.Hierarchy, "folder_of", lambda *_: mount / inside)
    assert psi.group_of(1) == (mount / pressed if pressed else None)
    assert cgroup.of_process(1) == (mount / inside if inside else None)
