"""How many CPUs processes may use together."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sched_ctl.backends import Probe, ladder
from sched_ctl.kernel import cgroup, cpus, procfs

SLEEPS = "import time; print(1, flush=True); time.sleep(60)"


def test_a_process_bound_to_one_cpu_has_one() -> None:
    first = min(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            os.sched_setaffinity(child.pid, {first})
            assert 0.0 < cpus.cpus_of([child.pid]) <= 1.0  # less, where its cgroup is limited
            # Together with one that may use all of them
            both = cpus.cpus_of([child.pid, os.getpid()])
            assert both >= cpus.cpus_of([child.pid])
        finally:
            child.kill()
    # Nobody is left to ask: the machine's.
    assert cpus.cpus_of([child.pid]) == cpus.cpus_of([]) == os.cpu_count()


def limits(root: Path, of: dict[str, str]) -> None:
    """Cgroups with their cpu.max."""
    for name, text in of.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / "cgroup.procs").touch()
        (root / name / "cpu.max").write_text(text + "\n")


def test_the_least_limit_on_the_way_up_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits(tmp_path, {"outer": "150000 100000", "outer/inner": "max 100000"})
    monkeypatch.setattr(
        cgroup, "with_cpu", lambda *_, **__: (tmp_path / "outer/inner", tmp_path / "outer")
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert cpus.cpus_of([1]) == 1.5
    limits(tmp_path, {"outer/inner": "50000 100000"})
    assert cpus.cpus_of([1]) == 0.5
    for strange in ("", "much", "1 0"):
        limits(tmp_path, {"outer/inner": strange})
        assert cpus.cpus_of([1]) == 1.5
    monkeypatch.setattr(cgroup, "with_cpu", lambda *_, **__: ())
    assert cpus.cpus_of([1]) == 8


def mounted(monkeypatch: pytest.MonkeyPatch, tree: cgroup.Hierarchy, of: str) -> None:
    """This tree alone, with this line of /proc/PID/cgroup for every process."""
    monkeypatch.setattr(cgroup, "hierarchies", lambda: (tree,))
    monkeypatch.setattr(procfs, "text", lambda _: of)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


def test_a_container_that_is_the_root_of_all_it_sees_has_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits(tmp_path, {".": "150000 100000", "inner": "max 100000"})
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    for path in ("/", "/inner"):
        mounted(monkeypatch, cgroup.Hierarchy(2, tmp_path), f"0::{path}\n")
        assert cpus.cpus_of([1]) == 1.5


def test_a_limit_of_ours_on_one_query_is_none_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its main thread may be an operator of that query."""
    ours = f"engine/{cgroup.ROOT_NAME}/q"
    limits(tmp_path, {"engine": "250000 100000", ours: "40000 100000"})
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    mounted(monkeypatch, cgroup.Hierarchy(2, tmp_path), f"0::/{ours}\n")
    assert cpus.cpus_of([1]) == 2.5
    assert tmp_path / ours in cgroup.with_cpu(1), "which stops it all the same"


def test_a_quota_of_version_1_is_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, quota in ((".", "-1"), ("outer", "250000"), ("outer/inner", "-1")):
        limits(tmp_path, {name: ""})
        (tmp_path / name / "cpu.max").unlink()
        (tmp_path / name / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (tmp_path / name / "cpu.cfs_period_us").write_text("100000\n")
    mounted(monkeypatch, cgroup.Hierarchy(1, tmp_path), "4:cpu,cpuacct:/outer/inner\n")
    assert cpus.cpus_of([1]) == 2.5
    mounted(monkeypatch, cgroup.Hierarchy(1, tmp_path), "4:cpu,cpuacct:/\n")
    assert cpus.cpus_of([1]) == 8


def test_a_limit_is_for_all_processes_below_it_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits(
        tmp_path,
        {
            "storm.service": "200000 100000",
            "all.slice": "300000 100000",
            "all.slice/a": "200000 100000",
            "all.slice/b": "200000 100000",
            "all.slice/b/inner": "max 100000",
            "free": "max 100000",
        },
    )
    where = {1: "storm.service", 2: "storm.service", 3: "all.slice/a", 4: "all.slice/b/inner"}
    where |= {5: "all.slice/a", 6: "free", 7: "free"}
    monkeypatch.setattr(
        cgroup, "with_cpu", lambda pid, **_: (tmp_path / where[pid],) if pid in where else ()
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert cpus.cpus_of([1]) == cpus.cpus_of([1, 2]) == 2
    assert cpus.cpus_of([3, 5]) == 2
    assert cpus.cpus_of([3, 4, 5]) == 3  # of the slice around both
    assert cpus.cpus_of([1, 3, 4]) == 5
    assert cpus.cpus_of([1, 6, 7]) == cpus.cpus_of([1, 9]) == 8
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {pid})
    assert cpus.cpus_of([1, 2]) == 2 and cpus.cpus_of([6, 7, 9]) == 3


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
