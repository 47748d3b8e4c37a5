"""One controller a machine, and a run folder that nobody else can put in its place."""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from sched_ctl.backends.undo.journal import Journal
from sched_ctl.backends.undo.records import Adopted
from sched_ctl.cli import make_app
from sched_ctl.config.settings import Settings
from sched_ctl.errors import UserError
from sched_ctl.runfolder import RunFolder
from sched_ctl.service import lock, session, socket
from sched_ctl.service.lock import Running, hold, hold_if_free, holder, run_folder
from support import wait_until

ROOT = pytest.mark.needs("root")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The usual run folder and the hint are others here; real controllers have another mark."""
    hint = tmp_path / "namespace"
    hint.touch()
    monkeypatch.setattr(lock, "_shared_namespace", lambda: str(hint))
    monkeypatch.setattr(lock, "USUAL", tmp_path / "usual")
    monkeypatch.setattr(lock, "MARK", f"sched-ctl test {os.getpid()} {tmp_path.name}")
    monkeypatch.delenv("SCHED_CTL_MACHINE_LOCK")
    return hint


@contextmanager
def elsewhere(folder: Path, *prefix: str, first: str = "", inside: str = "") -> Iterator[int]:
    """Another process that holds the locks of a folder; the id that it says. Needs `machine`."""
    code = f"""
import os, subprocess, sys
from pathlib import Path
{first}
from sched_ctl.service import lock
lock.USUAL, lock.MARK = Path({str(lock.USUAL)!r}), {lock.MARK!r}
lock._shared_namespace = lambda: {lock._shared_namespace()!r}
with lock.hold(Path({str(folder)!r})):
    {inside}
    print(os.getpid(), flush=True)
    sys.stdin.read()
"""
    command = [*prefix, sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        try:
            yield int(child.stdout.readline())
        finally:
            child.kill()


def test_a_second_run_folder_is_no_second_machine(machine: Path, tmp_path: Path) -> None:
    with (
        elsewhere(tmp_path / "one") as pid,
        pytest.raises(UserError, match=f"pid {pid}, with another run folder"),
        hold(tmp_path / "two"),
    ):
        pass
    with hold(tmp_path / "two"):
        pass


@ROOT
def test_the_usual_folder_is_locked_whichever_is_in_use(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left where a container sees no process of its host, but has its /run."""
    monkeypatch.setattr(lock, "others", list)
    with (
        elsewhere(tmp_path / "one") as pid,
        pytest.raises(UserError, match=f"another controller is running: pid {pid}"),
        hold(tmp_path / "two"),
    ):
        pass


@ROOT
def test_a_folder_stays_known_when_another_is_configured(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the controller runs, and after SIGKILL until somebody puts back."""
    (tmp_path / "s.toml").write_text(f"run_dir = '{tmp_path}/new'")
    monkeypatch.setattr("sched_ctl.config.files.DEFAULT_FILE", tmp_path / "s.toml")
    for old in (tmp_path / "old", lock.USUAL):
        with elsewhere(old) as pid:
            done = CliRunner().invoke(make_app("restore"), ["restore"])
            assert f"a controller is running: pid {pid}" in str(done.exception)
        for found in (True, False):
            done = CliRunner().invoke(make_app("restore"), ["restore"])
            assert (f"the run folder is taken to be {old}" in done.stderr) == found
            # As nothing was written down
            assert (f"a controller was killed (pid {pid}" in str(done.exception)) == found
    with hold(tmp_path / "new"):
        assert lock.used_instead(tmp_path / "new") is None


@ROOT
def test_what_was_left_in_another_folder_is_put_back_at_the_next_start(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        elsewhere(tmp_path / "old") as pid,
        pytest.raises(Running, match=f"pid {pid}, with another run folder"),
    ):
        session.run(Settings(run_dir=str(tmp_path / "new")), {})

    def hold_no_more(_: Path) -> NoReturn:
        raise UserError("that is far enough")

    monkeypatch.setattr(session, "hold", hold_no_more)
    with pytest.raises(UserError, match="far enough"):
        session.run(Settings(run_dir=str(tmp_path / "new")), {})
    assert f"left in {tmp_path}/old by an earlier controller, not put back: a" in caplog.text


@ROOT
def test_what_cannot_be_put_back_from_here_keeps_no_controller_from_starting(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A service that is started again and again would never order anything."""
    with elsewhere(tmp_path / "old"):
        pass
    RunFolder(tmp_path / "old").journal.touch()
    RunFolder(tmp_path / "old").journal.chmod(0o666)

    def hold_no_more(_: Path) -> NoReturn:
        raise UserError("that is far enough")

    monkeypatch.setattr(session, "hold", hold_no_more)
    with pytest.raises(UserError, match="far enough"):
        session.run(Settings(run_dir=str(tmp_path / "new")), {})
    assert "/journal is not a file that only you can write" in caplog.text


@ROOT
def test_a_folder_stays_known_while_something_is_left_there(machine: Path, tmp_path: Path) -> None:
    """A restore that failed in part is to be tried again, where its message says so."""
    old, new = tmp_path / "old", tmp_path / "new"
    with elsewhere(old):
        pass
    journal = Journal(RunFolder(old).journal)
    journal.write([Adopted(1, 1, 1, nice=0)])
    with hold_if_free(old):
        pass
    assert lock.used_instead(new) == old
    journal.clear()
    journal.close()
    assert lock.used_instead(new) is None


@ROOT
def test_nor_is_a_second_mount_namespace(machine: Path, tmp_path: Path) -> None:
    """With a /run of its own, and even if somebody else holds what all containers see."""
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("needs mount namespaces")
    own = f"subprocess.run(['mount', '-t', 'tmpfs', 'none', {str(tmp_path)!r}], check=True)"
    with machine.open() as taken:
        fcntl.flock(taken, fcntl.LOCK_EX)
        with (
            elsewhere(tmp_path / "run", "unshare", "--mount", first=own) as pid,
            pytest.raises(UserError, match=f"pid {pid}, with another run folder"),
            hold(tmp_path / "run"),
        ):
            pass


LEAVES_A_CHILD = """
    inner = os.fork()
    if inner:
        print(inner, flush=True)
        os.kill(os.getpid(), 9)
    sys.stdin.read()
    os._exit(0)"""


def test_a_child_that_keeps_all_open_is_no_controller(
    machine: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It outlives a controller that was killed, with its lock and its mark."""
    with elsewhere(tmp_path / "run", inside=LEAVES_A_CHILD.strip()) as child:
        path = tmp_path / "run" / "lock"
        wait_until(lambda: holder(tmp_path / "run") is None, what="the controller is dead")
        with path.open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with hold_if_free(tmp_path / "run") as killed:
            assert killed is not None and killed.pid != child
        assert "held by what is no controller: replaced" in caplog.text
        with hold(tmp_path / "run") as killed, hold_if_free(tmp_path / "other"):
            assert killed is None  # put back, so nothing is left to say
        with hold(tmp_path / "two"):
            pass


def test_who_cannot_be_seen_is_taken_to_run(tmp_path: Path) -> None:
    """As a controller of the host is from a container that has its run folder."""
    path, journal = RunFolder(tmp_path).lock, RunFolder(tmp_path).journal
    of = {"pid": 1 << 22, "since": 1.0, "command": "sched-ctl load", "start_time": 1}
    journal.write_text("theirs")
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(of | {"namespace": 1}))
        file.flush()
        with pytest.raises(Running, match="sched-ctl load") as raised, hold(tmp_path):
            pass
        assert "cannot be seen from here" in (raised.value.hint or "")
        for undo in (session.put_back, session.end):
            with pytest.raises(Running, match="sched-ctl load") as raised:
                undo(tmp_path)
            assert str(path) in (raised.value.hint or "")
        assert path.samefile(file.name) and path.stat().st_size
        assert journal.read_text() == "theirs"
        # One that would be seen, and is not, has ended: it is also one of an earlier version
        path.write_text(json.dumps(of))
        with hold_if_free(tmp_path) as killed:
            assert killed is not None and killed.pid == of["pid"]


@ROOT
def test_a_controller_outside_of_a_container_keeps_its_lock(tmp_path: Path) -> None:
    inside = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    if subprocess.run([*inside, "true"], check=False).returncode:
        pytest.skip("needs pid namespaces")
    code = f"""
from pathlib import Path
from sched_ctl.service import lock
try:
    with lock.hold(Path({str(tmp_path)!r})):
        print("held")
except lock.Running as error:
    print("running:", error.holder.pid)
"""
    with hold(tmp_path):
        told = subprocess.run(
            [*inside, sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
    assert told.stdout == f"running: {os.getpid()}\n"


@ROOT
def test_what_another_user_holds_stops_nothing(
    machine: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a lock that anybody can have, nor a mark that he made and called like ours."""
    code = f"""
import fcntl, os, sys
os.setresuid(20001, 20001, 20001)
fd = os.open({str(machine)!r}, os.O_RDONLY)
fcntl.flock(fd, fcntl.LOCK_EX)
mark = os.memfd_create({lock.MARK!r})
os.write(mark, str(os.getpid()).encode())
if os.fork():
    os._exit(0)
os.ftruncate(mark, 0)
os.pwrite(mark, str(os.getpid()).encode(), 0)
print(os.getpid(), flush=True)
sys.stdin.read()
"""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and int(other.stdout.readline()) > 0
        with hold(tmp_path / "one"):
            assert "holds the lock that controllers use: ignored" in caplog.text or (
                "may be running outside this container" in caplog.text
            )
            with pytest.raises(UserError), hold(tmp_path / "one"):
                pass
        with hold_if_free(tmp_path / "one") as killed:
            assert killed is None


def test_who_looks_elsewhere_is_told_of_one_with_another_folder(
    machine: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As from another mount namespace, where "all is well" would be wrong."""
    with elsewhere(tmp_path / "one") as pid:
        with pytest.raises(UserError, match=f"another run folder is running: pid {pid}"):
            socket.request(tmp_path / "two", "status")
        assert session.put_back(tmp_path / "two") == ()
        assert f"(pid {pid}): what it has changed stays" in caplog.text
    with pytest.raises(UserError, match="no controller runs on this machine"):
        socket.request(tmp_path / "two", "status")


@ROOT
def test_a_mark_that_was_handed_to_root_is_its_makers(machine: Path, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    is_made, made = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.seteuid(20001)
        mark = os.memfd_create(lock.MARK)
        os.write(mark, str(os.getpid()).encode())
        os.seteuid(0)
        os.write(made, b"!")
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    os.close(made)
    try:
        assert os.read(is_made, 1) == b"!"
        assert child not in lock.others()
    finally:
        os.close(writer)
        os.close(is_made)
        os.waitpid(child, 0)


def test_tests_may_run_beside_each_other(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCHED_CTL_MACHINE_LOCK", "no")
    with hold(tmp_path / "one"), hold(tmp_path / "two"):
        pass


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


def test_what_is_no_file_is_no_lock_and_keeps_nobody_from_putting_back(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock", 0o600)
    with pytest.raises(UserError, match="is no file"), hold(tmp_path):
        pass
    with hold_if_free(tmp_path) as killed:
        assert killed is None
    assert holder(tmp_path) is None, "and nobody waits for whoever might write there"


def test_the_lock_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="cannot open"), hold(tmp_path):
        pass
    assert not (tmp_path / "elsewhere").exists()
