"""`sched-ctl demo`: what it prints, what it leaves behind."""

import signal
import subprocess
from pathlib import Path

import msgspec
import pytest
from labs import SOON_S, command, sched_ctl

from sched_ctl.demo.results import MEASURES
from sched_ctl.kernel import procfs
from support import wait_until

pytestmark = [pytest.mark.host, pytest.mark.needs("root", "cc")]

SMALL = ("--load", "0.3", "--phases", "2", "--phase", "1", "--backend", "nice")


def places(folder: Path) -> tuple[str, ...]:
    return ("--out", str(folder / "plots"), "--run-dir", str(folder / "run"))


@pytest.mark.quiet
def test_measures_both_and_draws(tmp_path: Path) -> None:
    answer = msgspec.json.decode(sched_ctl("demo", *SMALL, "--json", *places(tmp_path)))
    assert [row["measure"] for row in answer["measures"]] == [m.name for m in MEASURES]
    by_name = {row["measure"]: row for row in answer["measures"]}
    for row in by_name.values():
        assert row["os"] > 0 and row["policy"] > 0
        assert row["ratio_min"] <= row["ratio"] <= row["ratio_max"]
    # Open loop and far from saturation: what goes in does not depend on the scheduler. That the
    # same seed gives the same arrivals is what the ratio of a pair stands on.
    assert by_name["throughput"]["ratio"] == pytest.approx(1.0, abs=0.1)
    assert [row["query"] for row in answer["queries"]] == ["alarms", "meters", "status", "archive"]
    for row in answer["queries"]:
        assert 0 < row["p50_ms"]["policy"] <= row["p99_ms"]["policy"]
    for plot in answer["plots"]:
        assert Path(plot).read_bytes().startswith(b"\x89PNG")
    assert len(answer["plots"]) == 1


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        command("demo", *SMALL, "--phase", "30", *places(tmp_path)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:

        def engines() -> list[int]:
            below = procfs.descendants(demo.pid)
            return [pid for pid in below if Path(f"/dev/shm/labspe.{pid}").exists()]

        [engine] = wait_until(engines, SOON_S)
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=SOON_S)
    finally:
        demo.kill()
        demo.wait()
    assert demo.returncode == 1
    assert "error: stopped by SIGINT" in errors and "Traceback" not in errors
    assert procfs.stat(engine) is None
    assert not Path(f"/dev/shm/labspe.{engine}").exists()
    assert not (tmp_path / "plots").exists()
