"""The attach client against Java machines: ours, other users', in containers, unwilling."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from engines.cluster import CACHE
from sched_ctl.drivers import jvm
from sched_ctl.drivers.threads import thread_of, threads_of
from sched_ctl.kernel import hotspot, procfs
from support import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.needs("root", "java")]

NAMES = {"a name that the kernel cuts (left)", "a name that the kernel cuts (right)"}
# A container as far as it matters here: own pids, own /tmp.
# A /tmp of its own, in which the folder of the classes stays: the checkout may be below /tmp.
OWN_TMP = (
    'mount --bind "$0" /mnt && mount -t tmpfs tmpfs /tmp && mkdir -p "$0"'
    ' && mount --bind /mnt "$0" && exec "$@"'
)
CONTAINER = (
    *("unshare", "--pid", "--fork", "--kill-child", "--mount", "--"),
    *("sh", "-c", OWN_TMP),
)


@pytest.fixture(scope="module")
def classes() -> Path:
    folder = CACHE / "sleeper"
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).parent / "jobs" / "Sleeper.java"
    subprocess.run(["javac", "-d", folder, source], check=True, timeout=120)
    folder.chmod(0o755)
    return folder


@contextmanager
def machine(classes: Path, *options: str, wrapper: tuple[str, ...] = ()) -> Iterator[int]:
    """The pid of a Java process that sleeps."""
    command = [*("setpriv", "--pdeathsig", "KILL", "--"), *wrapper]
    command += ["java", "-Xmx32m", "-XX:+UseSerialGC", *options, "-cp", str(classes), "Sleeper"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/"
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield wait_until(lambda: _java(process.pid)) or 0
        finally:
            process.stdin.close()
            process.wait(20)


def _java(pid: int) -> int | None:
    """The process itself, or its child, once it is Java."""
    for candidate in (pid, *procfs.descendants(pid)):
        if procfs.command_line(candidate)[:1] == ["java"]:
            return candidate
    return None


def check(pid: int) -> None:
    """The long names are there, each with the tid under which the kernel has the cut one."""
    found = {thread.name: thread.tid for thread in hotspot.threads(pid)}
    assert found.keys() >= NAMES | {"main", "VM Thread"}
    for name in NAMES:
        stat = procfs.stat(pid, found[name])
        assert stat is not None
        assert stat.name == name[:15]
    assert len(found.values()) == len(set(found.values()))


def test_one_of_ours(classes: Path) -> None:
    with machine(classes) as pid:
        check(pid)
        check(pid)  # the listener is there already
        assert not Path(f"/tmp/.attach_pid{pid}").exists()


def test_the_listener_that_a_look_starts_is_no_reason_for_another(
    classes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look stops the machine."""
    monkeypatch.setattr(jvm, "DUMP_EVERY_S", 0.0)
    with machine(classes) as pid:
        start = thread_of(pid, pid)
        assert start is not None
        process = jvm.JavaProcess(pid, start.start_time, "flink")
        assert process.changed(wanted=False)
        process.look(20.0)
        assert "Attach Listener" in {thread.name for thread in threads_of(pid)}
        assert not process.changed(wanted=False)


def test_after_its_socket_was_taken_away(classes: Path) -> None:
    with machine(classes) as pid:
        check(pid)
        Path(f"/tmp/.java_pid{pid}").unlink()
        check(pid)


def test_another_users(classes: Path, tmp_path: Path) -> None:
    # Debian's nobody; the class files must be readable for it.
    folder = Path("/tmp") / f"sleeper-{os.getpid()}"
    folder.mkdir(mode=0o755)
    try:
        for path in classes.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        other = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--")
        with machine(folder, wrapper=other) as pid:
            check(pid)
            assert os.geteuid() == 0
            # As in packaging/nice-only.conf: it cannot become the user, but Java listens to root.
            program = "import sys; from sched_ctl.kernel import hotspot as h"
            program += "; print({t.name for t in h.threads(int(sys.argv[1]))})"
            rights = "-all,+sys_nice,+sys_ptrace,+dac_read_search,+dac_override,+kill"
            command = ["setpriv", "--bounding-set", rights, sys.executable, "-c", program, str(pid)]
            (Path("/tmp") / f".java_pid{pid}").unlink()  # so that it is signalled again
            found = subprocess.check_output(command, text=True, timeout=60)
            assert all(name in found for name in NAMES)
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def test_in_a_container(classes: Path) -> None:
    with machine(classes, wrapper=(*CONTAINER, str(classes))) as pid:
        assert hotspot._status(pid).inner_pid != pid
        check(pid)


def test_unwilling(classes: Path) -> None:
    with machine(classes, "-XX:+DisableAttachMechanism") as pid:
        with pytest.raises(hotspot.AttachError, match="does not let anybody attach"):
            hotspot.threads(pid, 2)
        assert _java(pid) == pid  # and it lives


def test_deaf(classes: Path) -> None:
    """With -Xrs the listener is there from the start, and SIGQUIT would end the machine."""
    with machine(classes, "-Xrs") as pid:
        check(pid)
        Path(f"/tmp/.java_pid{pid}").unlink()
        with pytest.raises(hotspot.AttachError, match="does not listen to SIGQUIT"):
            hotspot.threads(pid, 2)
        assert _java(pid) == pid


def test_stopped(classes: Path) -> None:
    with machine(classes) as pid:
        check(pid)
        os.kill(pid, 19)
        try:
            with pytest.raises(hotspot.AttachError, match="did not answer in time"):
                hotspot.threads(pid, 0.3)
        finally:
            os.kill(pid, 18)
        check(pid)


def test_an_impostors_socket(classes: Path) -> None:
    """Whoever listens where the machine should is not asked, and not told anything."""
    with machine(classes) as pid:
        path = Path(f"/tmp/.java_pid{pid}")
        program = (
            "import socket, sys; s = socket.socket(socket.AF_UNIX); "
            f"s.bind({str(path)!r}); s.listen(); print(flush=True); "
            "c, _ = s.accept(); print(c.recv(100))"
        )
        with subprocess.Popen(
            ["python3", "-c", program], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            with pytest.raises(hotspot.AttachError, match="another process listens"):
                hotspot.threads(pid, 2)
            assert process.stdout.readline() == "b''\n"
        with suppress(FileNotFoundError):
            path.unlink()
        path.symlink_to("/run/somewhere")
        with pytest.raises(hotspot.AttachError, match="is not the attach socket"):
            hotspot.threads(pid, 2)
        path.unlink()
        check(pid)
