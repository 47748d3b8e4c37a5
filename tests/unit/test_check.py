"""What `sched-ctl check` shows first, and in few rows."""

import pytest
from labs import sched_ctl

from sched_ctl.cli import check as machine
from sched_ctl.cli.check import Finding, few, verdict

NONE = Finding("sched_ext", False, "the kernel has no sched_ext (SCHED_CLASS_EXT)", "boot another")
NICE = Finding("backend nice", True, "works", taken=True)


def found(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> list[Finding]:
    monkeypatch.setattr(machine, "TOPICS", {"all": lambda: iter(findings)})
    return machine.check()


def test_the_verdict_is_the_first_line_and_rows_are_few() -> None:
    lines = sched_ctl("check").splitlines()
    assert lines[0].startswith("will ")
    rows = [line for line in lines if line[:2] in ("✓ ", "✗ ", "· ")]
    assert 2 <= len(rows) <= 10
    assert len(sched_ctl("check", "--all").splitlines()) > len(lines)


def test_a_line_to_be_copied_is_never_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lines = sched_ctl("check", "--all").splitlines()
    commands = [f.command for f in machine.check() if f.command]
    assert all(any(line.endswith(command) for line in lines) for command in commands)
    words = [line for line in lines if not any(line.endswith(command) for command in commands)]
    assert max(map(len, words[2:])) <= 60


def test_what_something_else_does_as_well_is_not_amiss(monkeypatch: pytest.MonkeyPatch) -> None:
    autogroup = Finding("autogroup", False, "on")
    assert [f.good for f in found(monkeypatch, NONE, autogroup, NICE)] == [None, False, True]
    cgroups = Finding("backend cgroup2+nice", True, "works", taken=True)
    assert [f.good for f in found(monkeypatch, NONE, autogroup, cgroups)] == [None, None, True]
    refused = Finding("nice", False, "values can only be raised", "run as root")
    alone = found(monkeypatch, NONE, refused)
    assert [f.good for f in alone] == [False, False]
    assert verdict(alone) == ("will do nothing: run as root", None)


def test_the_verdict_says_why_nothing_better_and_what_would_help() -> None:
    assert verdict([NONE, NICE]) == (
        "will use nice, not sched_ext: the kernel has no sched_ext",
        "boot another",
    )
    ours = Finding("backend scx", True, "full mode", taken=True)
    assert verdict([ours])[0].startswith("will use sched_ext")


def test_what_is_amiss_comes_before_what_could_be_better() -> None:
    many = [Finding(f"t{i}", None, "could be", "do", f"sysctl x={i}") for i in range(20)]
    amiss = Finding("other tools", False, "renices")
    rows = few([*many, amiss, Finding("PSI", True, "there")])
    assert len(rows) == 10
    assert rows[0] is amiss
    assert rows[-1].what == "PSI"
