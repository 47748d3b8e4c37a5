"""Beside a controller that is stopped or hangs: words at once, and a way to end it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sched_ctl.backends.undo.journal import is_left
from sched_ctl.cli import look, planned
from sched_ctl.errors import UserError
from sched_ctl.kernel import procfs, sched
from sched_ctl.runfolder import RunFolder
from sched_ctl.service import lock, session, socket
from support import running, wait_until

# It changes a thread that it journals, as a controller would, and answers as one.
CONTROLLER = """
import asyncio, os, sys, time
from pathlib import Path
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.backends.undo.records import Adopted, Set
from sched_ctl.kernel import procfs, sched
from sched_ctl.service import lock, socket
folder, victim = Path(sys.argv[1]), procfs.stat(int(sys.argv[2]))

async def hang(_):
    time.sleep(600)

async def slow(_):
    await asyncio.sleep(3)
    return "at last"

async def touch(_):
    (folder / "touched").touch()

async def main():
    async with socket.serve(folder, {"hang": hang, "slow": slow, "touch": touch}):
        print("ready", flush=True)
        await asyncio.sleep(600)

with lock.hold(folder):
    journal = Journal(folder / "journal")
    key = victim.tid, victim.start_time
    journal.write([Adopted(victim.tid, *key, victim.nice), Set([(*key, 7)])])
    sched.set_nice(victim.tid, 7)
    asyncio.run(main())
"""


# It answers as one that only looks.
WATCH = """
import asyncio, sys
from pathlib import Path
from sched_ctl.service import socket

async def status(_):
    return "looks only"

async def main():
    async with socket.serve(Path(sys.argv[1]), {"status": status}):
        print("ready", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@contextmanager
def controlled(folder: Path) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A controller, and the process that it has set to nice 7."""
    with (
        running(sys.executable, "-c", "print(1, flush=True); input()") as victim,
        running(sys.executable, "-c", CONTROLLER, str(folder), str(victim.pid)) as controller,
    ):
        assert sched.get_nice(victim.pid) == 7
        yield controller, victim.pid


def is_in(pid: int, states: str) -> bool:
    found = procfs.stat(pid)
    return found is not None and found.state in states


@pytest.mark.needs("root")
def test_a_stopped_one_is_said_to_be_stopped_and_ended_by_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "SOON_S", 600.0)  # it is said at the first look, not later
    with controlled(tmp_path) as (controller, victim):
        assert socket.answers(tmp_path)
        with pytest.raises(UserError, match="nothing to restore by hand") as error:
            session.put_back(tmp_path)
        assert "unload" in str(error.value.hint)
        controller.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_in(controller.pid, "T"))
        for verb in ("status", "unload"):
            with pytest.raises(UserError, match=f"is stopped.*pid {controller.pid}") as error:
                socket.request(tmp_path, verb, timeout_s=600)
            assert "kill -CONT" in str(error.value.hint) and "--force" in str(error.value.hint)
        with pytest.raises(UserError, match="is stopped") as error:
            session.put_back(tmp_path)
        assert "unload --force" in str(error.value.hint)
        assert sched.get_nice(victim) == 7
        assert session.end(tmp_path) == ()
        assert controller.wait() == -signal.SIGKILL
        assert sched.get_nice(victim) == os.nice(0)


@pytest.mark.needs("root")
def test_a_plan_takes_nothing_for_in_force_only_where_no_controller_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "others", list)  # whether a real one runs is not asked
    assert look._in_force(tmp_path) is None
    with controlled(tmp_path) as (controller, _):
        controller.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_in(controller.pid, "T"))
        told = planned.changes([], look._in_force(tmp_path))
        assert "not known" in told and "is stopped" in told
        controller.kill()
        controller.wait()
        journal = RunFolder(tmp_path).journal
        told = planned.changes([], look._in_force(tmp_path, left=is_left(journal)))
        assert "what a controller set stays" in told
        assert session.put_back(tmp_path) == ()
        assert look._in_force(tmp_path, left=is_left(journal)) is None


@pytest.mark.needs("root")
def test_one_that_looks_does_not_answer_for_one_that_is_stopped(tmp_path: Path) -> None:
    watched = RunFolder(tmp_path).watched
    watched.mkdir()
    with (
        controlled(tmp_path) as (controller, _),
        running(sys.executable, "-c", WATCH, str(watched)),
    ):
        controller.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_in(controller.pid, "T"))
        with pytest.raises(UserError, match=f"is stopped.*pid {controller.pid}"):
            socket.request(tmp_path, "status", timeout_s=600)
        controller.kill()
        controller.wait()
        assert socket.request(tmp_path, "status", timeout_s=600) == "looks only"
        with lock.hold_if_free(tmp_path):  # as one that only starts has it
            assert lock.holder(tmp_path)
            RunFolder(tmp_path).socket.unlink(missing_ok=True)
            assert socket.request(tmp_path, "status", timeout_s=600) == "looks only"


@pytest.mark.needs("root")
def test_one_that_hangs_is_told_from_one_that_is_slow(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with controlled(tmp_path) as (controller, victim):
        assert socket.request(tmp_path, "slow", timeout_s=600) == "at last"
        assert f"no answer yet: the controller (pid {controller.pid})" in caplog.text
        with pytest.raises(UserError, match="does nothing else"):
            socket.request(tmp_path, "hang", timeout_s=600)
        assert session.end(tmp_path) == () and sched.get_nice(victim) == os.nice(0)


@pytest.mark.needs("root")
def test_what_was_asked_of_a_stopped_one_is_not_done_minutes_later(tmp_path: Path) -> None:
    """Who asked was told that it does not answer; else an `unload` would end it at its CONT."""
    with controlled(tmp_path) as (controller, _):
        controller.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_in(controller.pid, "T"))
        with pytest.raises(UserError, match="is stopped"):
            socket.request(tmp_path, "touch", timeout_s=600)
        controller.send_signal(signal.SIGCONT)
        assert socket.request(tmp_path, "slow", timeout_s=600) == "at last"
        assert not (tmp_path / "touched").exists()
        socket.request(tmp_path, "touch", timeout_s=600)
        assert (tmp_path / "touched").exists()


@pytest.mark.needs("root")
def test_whose_service_starts_it_again_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(session, "service_of", lambda pid: f"of-{pid}.service")
    with controlled(tmp_path) as (controller, _):
        controller.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_in(controller.pid, "T"))
        assert session.end(tmp_path) == ()
        assert f"systemctl stop of-{controller.pid}.service" in caplog.text


@pytest.mark.needs("root")
def test_force_without_a_controller_puts_back_what_a_killed_one_left(tmp_path: Path) -> None:
    with controlled(tmp_path) as (controller, victim):
        controller.kill()
        controller.wait()
        assert session.end(tmp_path) == () and sched.get_nice(victim) == os.nice(0)


@pytest.mark.needs("root")
def test_a_journal_that_is_gone_with_a_killed_controller_is_said(tmp_path: Path) -> None:
    with controlled(tmp_path) as (controller, _):
        controller.kill()
        controller.wait()
        (tmp_path / "journal").unlink()
        (said,) = session.put_back(tmp_path)
        assert f"a controller was killed (pid {controller.pid}" in said
        assert session.put_back(tmp_path) == ()


@pytest.mark.needs("root")
def test_many_waiting_at_a_stopped_one_are_told_too(tmp_path: Path) -> None:
    """Its queue is full: then connecting fails where it would have waited."""
    import socket as sockets

    with controlled(tmp_path) as (controller, _):
        controller.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_in(controller.pid, "T"))
        waiting: list[sockets.socket] = []
        try:
            while len(waiting) < 1000:
                waiting.append(peer := sockets.socket(sockets.AF_UNIX))
                peer.setblocking(False)
                peer.connect(str(tmp_path / "control.sock"))
        except BlockingIOError:
            pass
        assert len(waiting) < 1000
        with pytest.raises(UserError, match="does not answer") as error:
            socket.request(tmp_path, "status", timeout_s=600)
        assert f"pid {controller.pid}" in str(error.value)
        for peer in waiting:
            peer.close()
