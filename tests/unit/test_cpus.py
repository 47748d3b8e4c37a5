"""How many CPUs processes may use together."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sched_ctl.backends import Probe, ladder
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


def machine(devices: Path, capacities: dict[int, str], governors: tuple[str, ...] = ()) -> Path:
    for cpu, capacity in capacities.items():
        folder = devices / f"system/cpu/cpu{cpu}"
        folder.mkdir(parents=True)
        (folder / "cpu_capacity").write_text(f"{capacity}\n")
    for number, governor in enumerate(governors):
        folder = devices / f"system/cpu/cpufreq/policy{number}"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(f"{governor}\n")
    return devices


def test_slower_cpus_are_told_on_arm_and_on_hybrid_x86(tmp_path: Path) -> None:
    arm = machine(tmp_path / "arm", {0: "446", 1: "446", 2: "446", 3: "446", 4: "1024", 10: "900"})
    assert cpus.slower(arm) == "CPUs 0-3,10 do 44% of what the fastest do"
    hybrid = tmp_path / "hybrid"
    (hybrid / "cpu_atom").mkdir(parents=True)
    (hybrid / "cpu_atom" / "cpus").write_text("8-15\n")
    assert cpus.slower(hybrid) == "CPUs 8-15 are efficiency cores"
    alike = machine(tmp_path / "alike", {0: "1024", 1: "1024"})
    assert cpus.slower(alike) is cpus.slower(tmp_path / "none") is None
    odd = machine(tmp_path / "odd", {0: "", 1: "many", 2: "-3"})
    assert cpus.slower(odd) is None


def test_what_sets_the_clock_is_told_once(tmp_path: Path) -> None:
    devices = machine(tmp_path, {}, ("schedutil", "performance", "schedutil"))
    assert cpus.governors(devices) == ["performance", "schedutil"]
    assert cpus.governors(tmp_path / "none") == []


def test_auto_leaves_sched_ext_out_where_cpus_are_unequal(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [replace(kind, probe=lambda: Probe(True, "works")) for kind in ladder.KINDS]
    monkeypatch.setattr(ladder, "KINDS", tuple(kinds))
    monkeypatch.setattr(cpus, "slower", lambda: None)
    assert ladder.expected("auto") == "scx"
    monkeypatch.setattr(cpus, "slower", lambda: "CPUs 0-3 do 44% of what the fastest do")
    assert ladder.expected("auto") == ladder.by_itself() == "cgroup2+nice"
    assert ladder.expected("scx") == "scx"  # who names it has it
