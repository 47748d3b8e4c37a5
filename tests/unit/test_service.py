"""The unit file for systemd: valid, and about a program that is where the README puts it."""

import asyncio
import configparser
import contextlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sched_ctl import cli
from sched_ctl.backends.threads import slices
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.errors import UserError
from sched_ctl.kernel import procfs, sched
from sched_ctl.kernel.notify import notify, service_of, watchdog_s
from sched_ctl.runfolder import RunFolder
from sched_ctl.service import session
from support import running

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "packaging" / "sched-ctl.service"
ONCE = """
import sys
import msgspec
import fakes
from sched_ctl.config.settings import Section
from sched_ctl.service import session

good, poor = fakes.FakeEngine("a"), fakes.FakeEngine("b", provides=frozenset({"tuples_in"}))
section = Section(policy="qs")
changes = {"policy": (section,), "run_dir": sys.argv[1], "backend": "nice"}
settings = msgspec.structs.replace(fakes.QUICK, **changes)
told = lambda controller: print(sorted(controller.rules[0].windows))
session.run(settings, fakes.FakeEngine.kind(good, poor), once=True, started=told)
"""


def settings() -> dict[str, str]:
    """Setting of the service -> its value."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(UNIT.read_text())
    return dict(parser["Service"])


def commands() -> dict[str, list[str]]:
    """Setting -> words of its command."""
    return {
        key: shlex.split(value.removeprefix("-"))
        for key, value in settings().items()
        if key.startswith("Exec")
    }


def test_the_program_is_where_the_readme_puts_it() -> None:
    [(target, folder)] = re.findall(r"ln -s (\S+/sched-ctl) (\S+/)$", readme(), re.MULTILINE)
    assert f"-m venv {Path(target).parents[1]}\n" in readme()
    assert {words[0] for words in commands().values()} == {f"{folder}sched-ctl"}


def readme() -> str:
    return (ROOT / "README.md").read_text()


@pytest.mark.parametrize("setting", ["ExecStart", "ExecReload", "ExecStopPost"])
def test_its_commands_are_understood(setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, *words = commands()[setting]
    with pytest.raises(SystemExit) as end:
        cli.make_app()([*words, "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in words if word.startswith("--"))


def test_what_could_not_be_put_back_is_known_after_a_stop() -> None:
    """A package's upgrade stops it, too."""
    assert settings()["RuntimeDirectoryPreserve"] == "yes"


def test_what_is_not_to_be_tried_again() -> None:
    """A start that failed before `load` would be tried for ever, whatever its exit code."""
    assert settings()["RestartPreventExitStatus"].split() == ["2", "3"]
    assert not [key for key in commands() if key.startswith("ExecStartPre")]


@pytest.mark.parametrize(
    "wrong",
    [
        "polcy = 1",
        "period =",
        "period = -1",
        'metrics = "0.0.0.0:9464"',
        'users = ["no such user"]',
        'backend = "nosuch"',
        'helpers = {acker = "nosuch"}',
        "[backends.nice]\nbest = 99",
        "[backends.nosuch]",
        '[[policy]]\npolicy = "nosuch"',
        '[[policy]]\npolicy = "hr"\noptions = {nosuch = 1}',
        '[[policy]]\npolicy = "hr"\nswitch = [{policy = "qs", metric = "nosuch", above = 1}]',
        '[[prior]]\npolicy = "nosuch"',
        '[[target]]\nqueries = ["*"]\nlatency = "soon"',
    ],
)
def test_load_finds_what_the_check_of_a_configuration_does(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(session, "run")  # it is found before
    file = tmp_path / "wrong.toml"
    file.write_text(wrong)
    for words in (["config", "--check"], ["load"]):
        with pytest.raises(UserError) as found:
            cli.make_app(words[0])([*words, "--config", str(file)])
        assert found.value.code == 2, found.value.message


@pytest.mark.parametrize("engine", ["flonk", "flink:nowhere:x"])
def test_load_refuses_an_engine_that_cannot_be_as_a_wrong_setting(
    engine: str, tmp_path: Path
) -> None:
    run = "import sys; from sched_ctl.start import main; sys.argv[0] = 'sched-ctl'; main()"
    words = ("load", "--engine", engine, "--run-dir", str(tmp_path / "run"), "--once")
    done = subprocess.run(
        [sys.executable, "-c", run, *words],
        env=os.environ | {"SCHED_CTL_MACHINE_LOCK": "no"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr


def test_what_could_not_be_put_back_has_an_exit_code_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(session, "run", lambda *_, **__: ("thread 7",))
    monkeypatch.setattr(session, "put_back", lambda _: ("thread 7",))
    for verb in ("load", "restore", "unload"):
        words = ["--force"] if verb == "unload" else []
        with pytest.raises(UserError, match="thread 7") as found:
            cli.make_app(verb)([verb, *words, "--run-dir", str(tmp_path)])
        assert found.value.code == 3


@pytest.mark.needs("root")
def test_a_service_leaves_out_the_engine_that_its_policy_cannot_rule(tmp_path: Path) -> None:
    """On the command line it is refused; a service that ended would be started for ever."""

    def once(more: dict[str, str]) -> "subprocess.CompletedProcess[str]":
        path = os.pathsep.join(map(str, sys.path))
        env = os.environ | {"SCHED_CTL_MACHINE_LOCK": "no", "PYTHONPATH": path} | more
        env = {key: value for key, value in env.items() if value}
        return subprocess.run(
            [sys.executable, "-c", ONCE, tmp_path],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )

    refused = once({"NOTIFY_SOCKET": ""})
    assert refused.returncode == 1 and "queue_size" in refused.stderr, refused.stderr
    served = once({"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    assert served.returncode == 0, served.stderr
    assert served.stdout == "['fake:a']\n"


def test_who_is_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that systemd started, not what runs below it: a shell may be of sshd's service."""
    main = "SYSTEMD_EXEC_PID=$$ exec sh -c 'echo 1; read x'"
    below = "SYSTEMD_EXEC_PID=1 exec sh -c 'echo 1; read x'"
    groups = [
        "1:name=systemd:/system.slice/sched-ctl.service",
        "0::/system.slice/sched-ctl.service",
    ]
    for command, found, expected in (
        (main, groups, "sched-ctl.service"),
        (below, groups, None),
        (main, ["0::/user.slice/user-0.slice/session-1.scope"], None),
    ):
        monkeypatch.setattr(procfs, "lines", lambda _, found=found: found)
        with running("sh", "-c", command) as child:
            assert service_of(child.pid) == expected
    assert service_of(2**22 + 1) is None


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_has_no_complaint(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace(commands()["ExecStart"][0], "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, check=False
    )
    said = (done.stdout + done.stderr).splitlines()
    assert not [line for line in said if UNIT.name in line]  # it may speak of other units too


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize(
    ("drop_in", "tenths"), [(None, 29), ("nice-only.conf", 28), ("containers.conf", 36)]
)
def test_the_service_may_do_no_more_than_it_did(
    drop_in: str | None, tenths: int, tmp_path: Path
) -> None:
    """What systemd counts as exposure, 10 at most; without any of the limits it is 9.6."""
    unit = tmp_path / UNIT.name
    unit.write_text(
        UNIT.read_text() + (UNIT.with_name(drop_in).read_text() if drop_in is not None else "")
    )
    command = ["systemd-analyze", "security", "--offline=yes", f"--threshold={tenths}", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unrecognized option" in done.stderr:
        pytest.skip("needs systemd 250")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_manager_is_told_when_it_listens(tmp_path: Path) -> None:
    notify("READY=1", environment={})
    notify("READY=1", environment={"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        path = tmp_path / "manager"
        manager.bind(str(path))
        notify("READY=1", "STATUS=x", environment={"NOTIFY_SOCKET": str(path)})
        assert manager.recv(100) == b"READY=1\nSTATUS=x"


@pytest.mark.parametrize(
    ("environment", "every_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "3000000"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
    ],
)
def test_how_often_the_watchdog_is_fed(environment: dict[str, str], every_s: float | None) -> None:
    assert watchdog_s(environment) == every_s


def test_whoever_looks_after_the_journal_bears_any_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended in silence, and nobody noticed any more that the journal or the socket was gone."""
    RunFolder(tmp_path).lock.touch()
    answers = iter(list[OSError | str]([OSError(9, "Bad file descriptor"), "written anew"]))

    class Spoilt(Journal):
        def check(self) -> str | None:
            answer = next(answers)
            if isinstance(answer, str):
                return answer
            raise answer

    async def minding() -> None:
        async def listening() -> None:
            raise asyncio.CancelledError

        with contextlib.suppress(asyncio.CancelledError), contextlib.ExitStack() as held:
            await session._mind(Spoilt(tmp_path / "journal"), tmp_path, listening, held)

    monkeypatch.setattr(session, "MIND_S", 0.0)
    asyncio.run(minding())
    assert not [*answers]
    assert "OSError: [Errno 9] Bad file descriptor" in caplog.text


BRIEF = """
import os, sys, threading
import msgspec
import fakes
from sched_ctl.backends.threads import slices
from sched_ctl.config.settings import Section
from sched_ctl.kernel import sched
from sched_ctl.service import session


def tell(*_):
    print(sched.get_attributes(0).slice_ns)


def told(controller):
    assert slices.probe().can  # it tries on us, and leaves what we have
    thread = threading.Thread(target=tell)
    thread.start()
    thread.join()
    tell()
    print(sched.own_slice_ns(os.getppid()), sched.own_slice_ns(0))


changes = {"policy": (Section(policy="qs"),), "run_dir": sys.argv[1], "backend": "nice"}
settings = msgspec.structs.replace(fakes.QUICK, **changes)
tell()
session.run(settings, fakes.FakeEngine.kind(fakes.FakeEngine("a")), once=True, started=told)
tell()
"""


@pytest.mark.needs("root")
@pytest.mark.skipif(not slices.probe().can, reason="needs Linux 6.12 or newer")
def test_it_runs_in_short_slices_and_takes_other_threads_for_usual(tmp_path: Path) -> None:
    """Whoever wakes up during a pass would else wait for the end of a long one."""
    done = subprocess.run(
        [sys.executable, "-c", BRIEF, tmp_path],
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests/helpers")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    usual, of_thread, own, others, after = done.stdout.splitlines()
    assert (of_thread, own, others) == ("100000", "100000", "0 100000"), done.stderr
    assert int(usual) > 100_000 and after == usual


def test_only_what_shares_the_cpu_runs_in_short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under SCHED_DEADLINE the field is the CPU time that it is promised."""
    own = sched.get_attributes(0)
    said: list[sched.Attributes] = []
    monkeypatch.setattr(sched, "usual_slice_ns", lambda: 700_000)
    monkeypatch.setattr(sched, "set_attributes", lambda _, new: said.append(new))
    for policy in (sched.DEADLINE, sched.FIFO):
        monkeypatch.setattr(sched, "get_attributes", lambda _, p=policy: replace(own, policy=p))
        with sched.brief():
            pass
    assert not said
    monkeypatch.setattr(sched, "get_attributes", lambda _: replace(own, policy=sched.OTHER))
    with sched.brief():
        assert said[0].slice_ns == sched.BRIEF_NS
    assert said[1].slice_ns == 0


GOES_FIRST = """
import asyncio, contextlib, os, sys, threading, time
import msgspec
import fakes
from sched_ctl.config.settings import Section
from sched_ctl.service import session

nice = lambda tid: os.getpriority(os.PRIO_PROCESS, tid)
seen = []


class Engine(fakes.FakeEngine):
    def poll(self, timeout_s):
        while late and nice(threading.get_native_id()) == own > -5:
            time.sleep(0.01)
        seen.append(nice(threading.get_native_id()))
        return super().poll(timeout_s)


def threads():
    found = set()
    for tid in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            found.add(nice(int(tid)))
    return found


def told(controller):
    print(seen[0], threads())
    session.lasting = lambda: 0.0  # the crowd goes
    later = controller.step

    async def step(rules):
        if threads() != {own}:
            await asyncio.sleep(0.01)
        else:
            controller.stop("calm again")
        return await later(rules)

    controller.step = step


own, late = nice(0), sys.argv[3] == "late"
changes = {"policy": (Section(policy="qs"),), "run_dir": sys.argv[1], "backend": "nice"}
settings = msgspec.structs.replace(fakes.QUICK, **changes)
session.START_S, session.CROWD_S = 0.01 if late else 3600.0, 0.01
session.lasting = lambda: float(sys.argv[2])
session.run(settings, fakes.FakeEngine.kind(Engine("a")), started=told)
print(threads())
"""


@pytest.mark.needs("root")
@pytest.mark.parametrize(
    ("crowd", "start", "before", "first"),
    [
        ("4.0", "at once", 19, -5),
        ("3.9", "at once", 19, 19),
        ("3.9", "late", -5, 19),  # whatever the load was in the minute before
    ],
)
def test_it_goes_before_others_in_a_crowd_once_an_order_is_in_force(
    crowd: str, start: str, before: int, first: int, tmp_path: Path
) -> None:
    """Engines would have to go without the CPU that it takes until then, unless that takes long,
    and where nobody crowds its neighbours wait longer. All of its threads do."""
    done = subprocess.run(
        [sys.executable, "-c", GOES_FIRST, tmp_path, crowd, start],
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests/helpers")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    told = f"{min(nice, before)} {{{min(nice, first)}}}\n{{{nice}}}\n"
    assert done.stdout == told, done.stderr
