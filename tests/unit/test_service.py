"""The unit file for systemd: valid, and about a program that is where the README puts it."""

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from sched_ctl import cli

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "packaging" / "sched-ctl.service"


def commands() -> dict[str, list[str]]:
    """Setting -> words of its command."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(UNIT.read_text())
    return {
        key: shlex.split(value.removeprefix("-"))
        for key, value in parser["Service"].items()
        if key.startswith("Exec")
    }


def test_the_program_is_where_the_readme_puts_it() -> None:
    [(target, folder)] = re.findall(r"ln -s (\S+/sched-ctl) (\S+/)$", readme(), re.MULTILINE)
    assert f"-m venv {Path(target).parents[1]}\n" in readme()
    assert {words[0] for words in commands().values()} == {f"{folder}sched-ctl"}


def readme() -> str:
    return (ROOT / "README.md").read_text()


@pytest.mark.parametrize("setting", ["ExecStartPre", "ExecStart", "ExecStopPost"])
def test_its_commands_are_understood(setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, *words = commands()[setting]
    with pytest.raises(SystemExit) as end:
        cli.app([*words, "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in words if word.startswith("--"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_has_no_complaint(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace(commands()["ExecStart"][0], "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, check=False
    )
    said = (done.stdout + done.stderr).splitlines()
    assert not [line for line in said if UNIT.name in line]  # it may speak of other units too
