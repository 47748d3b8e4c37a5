"""The command as a program: exit codes, pipes, closed streams, other users."""

import os
import subprocess
import sys
import tempfile

import pytest

RUN = "import sys; from sched_ctl.cli import main; sys.argv[0] = 'sched-ctl'; main()"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", RUN, *arguments]


@pytest.mark.parametrize("arguments", [["policies"], ["policies", "--json"], ["config"]])
def test_a_reader_that_goes_away_is_no_error(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            command(*arguments), stdout=writer, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(writer)
    assert done.returncode != 0
    assert done.stderr == ""


@pytest.mark.parametrize("arguments", [["policies"], ["config"]])
@pytest.mark.parametrize("buffered", [True, False])
def test_a_full_disk_is_named(arguments: list[str], buffered: bool) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command(*arguments),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=environment if buffered else environment | {"PYTHONUNBUFFERED": "1"},
        )
    assert done.returncode == 1
    assert done.stderr == "error: No space left on device\n"


def test_a_closed_output_is_no_fault() -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *command("config")],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_to_plan_is_an_error() -> None:
    done = subprocess.run(
        command("plan", "--engine", "lab:1", "--policy", "hr", "--observe", "0.05"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "nothing to schedule: lab:1: " in done.stderr
    assert "hint: " in done.stderr


# The checkout may lie in a home of mode 0700, into which no other user may look: this one may look
# everywhere.
AS_NOBODY = (
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
)


@pytest.mark.needs("root")
@pytest.mark.parametrize("verb", ["load", "restore", "demo"])
def test_another_user_is_told_to_be_root(verb: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*AS_NOBODY, *command(verb, "--run-dir", folder)],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 1, done.stdout
    assert f"error: {folder} belongs to another user" in done.stderr
    assert "hint: run as root" in done.stderr
