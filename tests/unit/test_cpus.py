"""How many CPUs processes may use together."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sched_ctl.kernel import cpus, psi

SLEEPS = "import time; print(1, flush=True); time.sleep(60)"


def test_a_process_bound_to_one_cpu_has_one() -> None:
    first = min(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            os.sched_setaffinity(child.pid, {first})
            assert cpus.cpus_of([child.pid]) == min(1.0, cpus.quota(child.pid))
            # Together with one that may use all of them
            both = cpus.cpus_of([child.pid, os.getpid()])
            assert both >= cpus.cpus_of([child.pid])
        finally:
            child.kill()
    # Nobody is left to ask: the machine's.
    assert cpus.cpus_of([child.pid]) == cpus.cpus_of([]) == os.cpu_count()


def test_the_least_limit_on_the_way_up_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    for folder, limit in ((tmp_path / "outer", "150000 100000"), (inner, "max 100000")):
        (folder / "cgroup.procs").touch()
        (folder / "cpu.max").write_text(limit + "\n")
    monkeypatch.setattr(psi, "group_of", lambda _: inner)
    assert cpus.quota(1) == 1.5
    (inner / "cpu.max").write_text("50000 100000\n")
    assert cpus.quota(1) == 0.5
    assert cpus.cpus_of([os.getpid()]) == 0.5
    for strange in ("", "much\n", "1 0\n"):
        (inner / "cpu.max").write_text(strange)
        assert cpus.quota(1) == 1.5
    monkeypatch.setattr(psi, "group_of", lambda _: None)
    assert cpus.quota(1) == float("inf")
