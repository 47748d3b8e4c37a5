"""One controller a machine, and a run folder that nobody else can put in its place."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sched_ctl.errors import UserError
from sched_ctl.service import lock
from sched_ctl.service.lock import hold, run_folder

ROOT = pytest.mark.needs("root")
HOLDS = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(fd, fcntl.LOCK_EX)
if len(sys.argv) > 2:
    os.setuid(int(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of the kernel's file, which other tests and a real controller may hold."""
    path = tmp_path / "namespace"
    path.touch()
    monkeypatch.setattr(lock, "_shared_namespace", lambda: str(path))
    monkeypatch.delenv("SCHED_CTL_MACHINE_LOCK")
    return path


def test_a_second_run_folder_is_no_second_machine(machine: Path, tmp_path: Path) -> None:
    with (
        hold(tmp_path / "one"),
        pytest.raises(UserError, match=f"pid {os.getpid()}, with another run folder"),
        hold(tmp_path / "two"),
    ):
        pass
    with hold(tmp_path / "two"):
        pass


def test_tests_may_run_beside_each_other(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCHED_CTL_MACHINE_LOCK", "no")
    with hold(tmp_path / "one"), hold(tmp_path / "two"):
        pass


@ROOT
def test_another_users_lock_is_not_obeyed(
    machine: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    command = [sys.executable, "-c", HOLDS, str(machine), "20001"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        with hold(tmp_path / "one"):
            assert f"pid {other.pid} of user 20001" in caplog.text
        other.kill()


@ROOT
def test_a_namespace_is_one_file_for_all_containers() -> None:
    """What the lock stands on, with another of the kernel's files than the one in use."""
    path = "/proc/self/ns/uts"
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        tries = "import fcntl; fcntl.flock(open('/proc/self/ns/uts'), fcntl.LOCK_EX|fcntl.LOCK_NB)"
        container = ["unshare", "--mount", "--net", "--pid", "--ipc", "--fork", "--mount-proc"]
        done = subprocess.run(
            [*container, sys.executable, "-c", tries], capture_output=True, text=True, check=False
        )
        if "unshare: " in done.stderr:
            pytest.skip(f"needs namespaces: {done.stderr.strip()}")
        assert "BlockingIOError" in done.stderr
    finally:
        os.close(fd)


def test_the_file_that_is_locked_is_there() -> None:
    assert Path(lock._shared_namespace()).exists()


@ROOT
def test_no_way_leads_through_what_another_user_can_change(tmp_path: Path) -> None:
    safe = tmp_path / "safe"
    safe.mkdir()
    link = tmp_path / "link"
    link.symlink_to(safe)
    assert run_folder(link / "run") == link / "run"  # our own
    os.lchown(link, 20001, 20001)
    with pytest.raises(UserError, match="link of user 20001"):
        run_folder(link / "run")
    theirs = tmp_path / "theirs"
    (theirs / "run").mkdir(parents=True)
    os.chown(theirs, 20001, 20001)
    with pytest.raises(UserError, match="belongs to user 20001"):
        run_folder(theirs / "run")
    through = tmp_path / "through"
    through.symlink_to(theirs / "run")
    with pytest.raises(UserError, match="belongs to user 20001"):
        run_folder(through)
    everybodys = tmp_path / "everybodys"
    everybodys.mkdir()
    everybodys.chmod(0o777)
    with pytest.raises(UserError, match="can be changed by everybody"):
        run_folder(everybodys / "run")
    everybodys.chmod(0o1777)
    assert run_folder(everybodys / "run").is_dir()


def test_the_lock_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="cannot open"), hold(tmp_path):
        pass
    assert not (tmp_path / "elsewhere").exists()
