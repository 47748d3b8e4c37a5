"""The command as a program: exit codes, pipes, closed streams, other users."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from sched_ctl import cli
from sched_ctl.backends import Probe, ladder
from sched_ctl.cli.flags import with_settings
from sched_ctl.config.settings import Settings
from sched_ctl.drivers.flink.driver import kind as flink
from sched_ctl.drivers.threads import threads_of
from sched_ctl.errors import UserError
from sched_ctl.kernel import procfs
from sched_ctl.model.options import NiceOptions
from sched_ctl.model.policy import Spacing, form
from sched_ctl.model.schedule import Group, Schedule
from sched_ctl.pipeline.generate import Plan, generate
from sched_ctl.service.lock import run_folder
from sched_ctl.service.reload import ReadAgain
from sched_ctl.service.session import no_engine
from sched_ctl.service.socket import request
from support import wait_until

RUN = "import sys; from sched_ctl.start import main; sys.argv[0] = 'sched-ctl'; main()"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", RUN, *arguments]


def test_only_the_command_that_is_asked_for_is_made() -> None:
    every = [name for names in cli.FILES.values() for name in names]
    whole = cli.make_app()
    assert sorted(typer.main.get_group(whole).commands) == sorted(every)
    groups = {group.name for group in whole.registered_groups}
    assert {cli.name_of(one) for one in whole.registered_commands} == set(every) - groups
    for name in every:
        assert list(typer.main.get_group(cli.make_app(name)).commands) == [name]
    assert sorted(typer.main.get_group(cli.make_app("lod")).commands) == sorted(every)


def test_a_command_imports_its_own_file_alone() -> None:
    code = f"""import sys
from sched_ctl.cli import main
sys.argv = ["sched-ctl", "--debug", "policies"]
try: main()
finally: print(*sorted({{name.rpartition(".")[2] for name in sys.modules}} & {set(cli.FILES)}))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "look"


LOGS = f"""
import logging
from sched_ctl.service import session

async def look(*_):
    logging.debug("looked")
    return []

session.look = look
{RUN}"""


@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_debug_shows_more_and_changes_no_exit_code(debug: list[str], tmp_path: Path) -> None:
    nowhere = str(tmp_path / "none")
    for code, arguments in (
        (1, ["status", "--run-dir", nowhere]),
        (2, ["config", "--config", nowhere]),
    ):
        done = subprocess.run(
            command(*debug, *arguments), capture_output=True, text=True, check=False
        )
        assert done.returncode == code and "\nhint: " in done.stderr
        assert ("Traceback" in done.stderr) == bool(debug)
    done = subprocess.run(
        [sys.executable, "-c", LOGS, *debug, "engines", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
    assert ("looked" in done.stderr) == bool(debug)


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
    assert (done.returncode, done.stderr) == (141, "")


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


@pytest.mark.parametrize(
    "surroundings",
    [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}, {"COLUMNS": "0"}],
)
def test_any_terminal_is_told_the_findings(surroundings: dict[str, str]) -> None:
    done = subprocess.run(
        command("check"), env=os.environ | surroundings, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"schedstat" in done.stdout


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
    assert done.stdout == ""  # once is enough


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


def test_who_may_not_see_engines_is_told_to_be_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    missing = no_engine(Settings(), {})
    assert "as root" in str(missing.hint)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "start one" in str(no_engine(Settings(), {}).hint)


def test_an_engine_that_does_not_answer_is_named_by_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
    silent = subprocess.Popen(
        ["sh", "-c", "echo ready; read -r _", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert silent.stdout is not None and silent.stdout.readline() == b"ready\n"
        missing = no_engine(Settings(), {"flink": flink})
        assert f"pid {silent.pid} looks like flink" in missing.message
        assert "no CPU" in str(missing.hint)
        monkeypatch.setattr(os, "geteuid", lambda: 65534)
        missing = no_engine(Settings(), {"flink": flink})
        assert f"pid {silent.pid} looks like flink" in missing.message
        assert "as root" in str(missing.hint) and "no CPU" not in str(missing.hint)
    finally:
        silent.communicate(b"\n")


def test_a_plan_by_a_backend_that_does_not_work_ends_as_load_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = [replace(kind, probe=lambda: Probe(False, "no such thing")) for kind in ladder.KINDS]
    monkeypatch.setattr(ladder, "KINDS", tuple(broken))
    with pytest.raises(UserError, match="backend scx does not work here: no such thing"):
        ladder.expected("scx")
    with pytest.raises(UserError, match="there is no backend 'scs'"):
        ladder.expected("scs")
    assert ladder.expected("auto") == "none"


def test_what_a_backend_will_set_is_told_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a thread whose owner has lowered it, too: together they weigh what they did."""
    threads = tuple(thread for pid in (os.getpid(), 1) for thread in threads_of(pid)[:1])
    own, stat = [4, 0], procfs.stat  # whatever the tests run at

    def at_own(pid: int, tid: int) -> procfs.Stat | None:
        found = stat(pid, tid)
        return None if found is None else replace(found, nice=own[pid == 1])

    monkeypatch.setattr(procfs, "stat", at_own)
    urgency = form(2, static=np.array([1.0, 100.0]))
    schedule = Schedule(
        "s", "p", Spacing.LOGARITHMIC, threads, ("q/a", "q/b"), urgency, np.zeros(2), np.zeros(2)
    )
    before = sum(1.25**-nice for nice in own)
    nice: Any = ladder.planned("nice", {}, schedule)["nice"]
    assert nice[0] - own[0] == nice[1] - own[1] + 10
    assert sum(1.25**-level for level in nice) == pytest.approx(before, rel=0.12)
    expected = [min(19, max(0, nice) + level) for nice, level in zip(own, (10, 0), strict=True)]
    below = {"nice": NiceOptions(best=0)}
    assert ladder.planned("nice", below, schedule) == {"nice": expected}
    assert ladder.planned("nice", {}, replace(schedule, lifts=False)) == {"nice": expected}
    groups = {"lab:1/q": Group(1.0, (0,)), "lab:1/r": Group(4.0, (1,))}
    told = ladder.planned("cgroup2+nice", {}, replace(schedule, groups=groups))
    assert told["cpu.weight"] == [50, 200]
    assert set(told) == {"cpu.weight", "nice"}
    assert ladder.planned("scx", {}, schedule) == {}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["load", "--nosuch"], 2),
        (["load", "--period", "-1"], 2),
        (["load", "--policy", "nosuch"], 2),
        (["config", "--check", "--backend", "nosuch"], 2),
        (["config", "--check", "--engine", "flonk"], 2),
        (["config", "--check", "--metrics", "0.0.0.0:9464"], 2),
        (["plan", "--engine", "flonk:1", "--observe", "0.05"], 2),
        (["plan", "--policy-option", "x=1"], 2),
        (["plan", "--observe", "nan"], 2),
        (["load", "--duration", "nan", "--run-dir", "/dev/null/x"], 2),
        (["plan", "--policy-option", "x=nan"], 2),
        (["policy", "set", "hr", "--option", "x=-inf"], 2),
        (["waits", "1", "--seconds", "nan"], 2),
        (["simulate", "--load", "0.5", "--load", "nan"], 2),
        (["fleet", "generate", "/dev/null/x", "--hours", "nan"], 2),
        (["top", "--sort", "nosuch"], 2),
        (["stats", "--perfetto", "x", "--json"], 2),
        (["waits", "nosuch", "--perfetto", "x", "--json"], 2),
        (["waits", "nosuch", "--perfetto", "x", "--stacks"], 2),
        (["waits", "nosuch", "--probe", "x", "--perfetto", "x"], 2),
        (["waits", "nosuch", "--probe", "x", "--flame", "x"], 2),
        (["waits", "nosuch", "--timed"], 2),
        (["demo", "--policy", "nosuch"], 2),
        (["simulate"], 2),
        (["simulate", "x", "--warm-up", "-1"], 2),
        (["simulate", "x", "--batch", "none"], 2),
        (["simulate", "/dev/null/x"], 1),
        (["config", "--check", "--profiles", "/none"], 1),  # it may come, with its mount
        (["config", "--check", "--profiles", "/etc/hostname"], 2),
        (["waits", str(2**22 + 1)], 1),
        (["lab", "nosuch"], 2),
        (["lab", "--foo"], 2),
        (["demo", "--workload", "nosuch"], 2),
        (["simulate", "nosuch"], 2),
        (["simulate", "syn", "--base-cost-us", "0"], 2),
        (["simulate", "syn", "--load", "inf"], 2),
    ],
)
def test_an_exit_code_tells_whose_fault_it_is(arguments: list[str], code: int) -> None:
    done = subprocess.run(
        command(*arguments), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "arguments", "folder"),
    [
        ("", [], "/run/file"),
        ("run_dir = '/run/x'", [], "/run/x"),
        ("run_dir = '/run/x'", ["--run-dir", "/run/y"], "/run/y"),
        ("run_dir = '/run/x'", ["--run-dir", Settings().run_dir], Settings().run_dir),
        ("run_dir = ", [], Settings().run_dir),
    ],
)
def test_what_is_put_back_is_what_the_configured_folder_has(
    text: str, arguments: list[str], folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.toml").write_text("run_dir = '/run/file'")
    (tmp_path / "s.d").mkdir()
    (tmp_path / "s.d" / "local.toml").write_text(text)
    monkeypatch.setattr("sched_ctl.config.files.DEFAULT_FILE", tmp_path / "s.toml")
    asked: list[Path] = []

    def put_back(run_dir: Path) -> tuple[str, ...]:
        asked.append(run_dir)
        return ()

    monkeypatch.setattr("sched_ctl.service.session.put_back", put_back)
    done = CliRunner().invoke(cli.make_app("restore"), ["restore", *arguments])
    assert (done.exit_code, asked) == (0, [Path(folder)])
    said = f"local.toml: Invalid value (at end of document); the run folder is taken to be {folder}"
    assert (said in done.stderr) == (text == "run_dir = ")


def test_a_run_folder_that_is_not_there_is_said_and_not_made(tmp_path: Path) -> None:
    folder = tmp_path / "mistyped"
    done = CliRunner().invoke(cli.make_app("restore"), ["restore", "--run-dir", str(folder)])
    assert (done.exit_code, folder.exists()) == (0, False)
    assert "there is no folder" in done.stderr.replace("\n", " ")


@pytest.mark.parametrize("way", ["file/x", "x" * 300, "/" + "y/" * 60])
def test_a_run_folder_that_cannot_be_is_no_fault_of_ours(way: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="no controller "):
        request(tmp_path / way, "status")
    if not way.startswith("/"):
        with pytest.raises(UserError, match="cannot make"):
            run_folder(tmp_path / way)


def test_telemetry_is_not_made_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot make"):
        generate(tmp_path / "file", Plan())


@pytest.mark.parametrize("verb", ["--help", "load", "restore"])
def test_an_interrupt_while_modules_are_loaded_is_no_fault(verb: str, tmp_path: Path) -> None:
    slow = "import sys, time; print('loading', file=sys.stdout, flush=True); time.sleep(60)"
    (tmp_path / "typer.py").write_text(slow + "\n")
    process = subprocess.Popen(
        command(verb),
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (-signal.SIGINT, "")


@pytest.mark.parametrize(
    ("flag", "form"),
    [
        ("--access", "ENGINE.KEY=FILE"),
        ("--backend-option", "BACKEND.KEY=VALUE"),
        ("--helper", "ROLE=RULE"),
        ("--share", "QUERY=SHARE"),
    ],
)
def test_a_flag_asks_for_what_its_help_does(flag: str, form: str) -> None:
    done = subprocess.run(
        command("config", flag, "flink"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == f"error: {flag}: expected {form}, got 'flink'\n"


def test_help_breaks_lines_where_the_terminal_ends() -> None:
    done = subprocess.run(
        command("demo", "--help"),
        env=os.environ | {"COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
    )
    prose = done.stdout.partition("Three light queries")[2].partition("Examples")[0]
    *whole, _ = prose.rstrip().splitlines()
    assert whole and all(len(line.rstrip()) > 64 for line in whole[1:]), prose


def test_no_help_is_cut_off_at_80_columns() -> None:
    app = cli.make_app()
    for words in paths(typer.main.get_command(app)):
        told = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*words, "--help"])
        assert told.exit_code == 0, words
        assert "…" not in told.stdout, words
        widest = max(len(line) for line in told.stdout.splitlines())
        assert widest == 80, words


def test_a_rule_that_never_rules_is_refused() -> None:
    done = CliRunner().invoke(cli.make_app(), ["config", "--policy", "hr", "--policy", "etl*=qs"])
    assert isinstance(done.exception, UserError)
    assert "etl*=qs rules nothing, as hr selects all queries" in done.exception.message
    assert done.exception.hint == "put it first: --policy 'etl*=qs' --policy hr"


def paths(command: Any) -> Iterator[tuple[str, ...]]:
    """The words of each command below this one."""
    yield ()
    for name, below in getattr(command, "commands", {}).items():
        yield from ((name, *rest) for rest in paths(below))


def test_help_tells_defaults_and_what_may_be_chosen() -> None:
    told = CliRunner(env={"COLUMNS": "200"}).invoke(cli.make_app(), ["load", "--help"]).stdout
    assert "(poll, trigger) (default: poll)" in told
    assert "off: --no-trace" in told
    assert "(default: )" not in told


@pytest.mark.parametrize(
    ("flags", "traces"), [((), False), (("--trace",), True), (("--no-trace",), False)]
)
def test_a_flag_turns_a_setting_on_or_off(
    flags: tuple[str, ...], traces: bool, tmp_path: Path
) -> None:
    file = tmp_path / "sched-ctl.toml"
    for written in (True, False):
        file.write_text(f"trace = {str(written).lower()}\n")
        words = ["config", "--config", str(file), *flags]
        told = CliRunner().invoke(cli.make_app(), words)
        expected = traces if flags else written
        assert f"trace = {str(expected).lower()}" in told.stdout


def test_an_engine_that_has_not_answered_yet_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"engine": "flink:1", "pid": 5, "user": "me", "state": "new", "queries": []}
    found |= {"operators": 0, "threads": 0, "problem": None, "notes": [], "ordered": "alone"}
    found |= {"processes": [4711]}

    async def look(*_: object) -> list[dict[str, Any]]:
        return [found]

    monkeypatch.setattr("sched_ctl.service.session.look", look)
    told = CliRunner().invoke(cli.make_app(), ["engines"])
    assert "has not answered yet" in told.stdout
    found["state"] = "ok"
    assert "has not answered yet" not in CliRunner().invoke(cli.make_app(), ["engines"]).stdout
    child = subprocess.Popen(["sleep", "60"])
    try:
        wait_until(lambda: procfs.command_line(child.pid)[:1] == ["sleep"])
        asked = ["engines", "--explain", str(child.pid)]
        assert "a driver schedules" not in CliRunner().invoke(cli.make_app(), asked).stdout
        found["processes"] = [child.pid]
        assert (
            f"process {child.pid} is of flink:1" in CliRunner().invoke(cli.make_app(), asked).stdout
        )
    finally:
        child.kill()
        child.wait()


def test_what_a_flags_file_says_is_read_again_too(tmp_path: Path) -> None:
    file = tmp_path / "priors.toml"
    began: list[str] = []
    file.write_text("[[prior]]\npolicy = 'qs'\n")

    @with_settings
    def command(settings: Settings, read_again: ReadAgain) -> None:
        file.write_text("[[prior]]\npolicy = 'hr'\n")
        began.extend(prior.policy for prior in settings.prior)
        read_again(lambda now: began.extend(prior.policy for prior in now.prior))

    app = typer.Typer()
    app.command()(command)
    written = tmp_path / "none.toml"
    written.touch()
    words = ["--config", str(written), "--prior", str(file)]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0 and began == ["qs", "hr"]
