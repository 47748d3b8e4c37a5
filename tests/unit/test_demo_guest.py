"""`./dev demo --guest`: which kernel it takes, what it passes on, and what it says is missing."""

import os
import subprocess
from pathlib import Path

import kernels
import pytest

from bench.guest.demo import answer, lines, main
from sched_ctl.errors import UserError

NOT_THERE = kernels.KernelNotFound("kernel 6.18 cannot be fetched\nhint: put its image somewhere")


def refuse(name: str) -> Path:
    raise NOT_THERE


def test_progress_is_passed_on_and_the_rest_is_the_result(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = answer(["  1/4 OS  p50 2 ms", "  2/4 {balanced", "{", '  "queries": []', "}"])
    assert found == {"queries": []}
    assert capsys.readouterr().err == "  1/4 OS  p50 2 ms\n  2/4 {balanced\n"


def test_a_kernel_at_hand_goes_before_one_that_is_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kernels, "find", refuse)
    monkeypatch.setattr(kernels, "at_hand", lambda name: tmp_path if name == "7.3" else None)
    assert kernels.with_sched_ext() == ("7.3", tmp_path)


def test_what_the_archive_dropped_is_no_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def find(name: str) -> Path:
        asked.append(name)
        return tmp_path if name == "7.0" else refuse(name)

    monkeypatch.setattr(kernels, "at_hand", lambda name: None)
    monkeypatch.setattr(kernels, "find", find)
    assert kernels.with_sched_ext() == ("7.0", tmp_path)
    of = {kernel.name: kernel for kernel in kernels.ALL}
    assert {of[name].sched_ext for name in asked} == {kernels.SchedExt.WORKS}
    assert {of[name].architecture for name in asked} == {"amd64"}


def test_without_any_kernel_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "at_hand", lambda name: None)
    monkeypatch.setattr(kernels, "find", refuse)
    with pytest.raises(UserError, match="cannot be fetched") as caught:
        list(lines(["true"]))
    assert caught.value.hint == "put its image somewhere"


@pytest.mark.parametrize("words", [["--phases", "1"], ["--phase", "nan"], ["--phase", "0"]])
def test_no_guest_is_booted_for_what_the_demo_refuses(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["demo", *words])
    with pytest.raises(SystemExit):
        main()
    assert "--phases takes 2 or more" in capsys.readouterr().err


def test_another_kind_of_machine_is_refused_before_anything_is_installed(tmp_path: Path) -> None:
    (tmp_path / "uname").write_text("#!/bin/sh\necho riscv64\n")
    (tmp_path / "uname").chmod(0o755)
    refused = subprocess.run(
        [Path(__file__).parents[2] / "dev", "demo", "--guest"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        timeout=60,
        check=False,
    )
    assert refused.returncode == 1
    assert refused.stderr.startswith(
        "error: the guest is of x86_64, and this machine is of riscv64"
    )
    assert "==>" not in refused.stderr
