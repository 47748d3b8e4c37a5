"""Man pages and completion, as `packaging/texts.py` makes them for the package."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sched_ctl.config.settings import declared

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("usr")
    subprocess.run([sys.executable, ROOT / "packaging" / "texts.py", made], check=True)
    return made


def test_every_command_has_a_page_with_all_its_flags(folder: Path) -> None:
    pages = {path.stem: path.read_text() for path in (folder / "share/man/man1").iterdir()}
    assert {"sched-ctl", "sched-ctl-load", "sched-ctl-policy-set"} <= pages.keys()
    load = pages["sched-ctl-load"].replace("\\-", "-")
    for setting in declared():
        assert setting.flag in load
    for page in pages.values():
        assert "[bold]" not in page and "[/" not in page


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_groff_has_no_complaint(folder: Path) -> None:
    for path in sorted((folder / "share/man/man1").iterdir()):
        done = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww", "-z", path],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), path.name


def test_bash_completes_commands(folder: Path) -> None:
    script = folder / "share/bash-completion/completions/sched-ctl"
    program = folder / "sched-ctl"
    program.write_text(
        f"#!{sys.executable}\n"
        "from sched_ctl.cli import make_app\n"
        "make_app()(prog_name='sched-ctl')\n"
    )
    program.chmod(0o755)
    code = (
        f"source {script}; COMP_WORDS=(sched-ctl un); COMP_CWORD=1; "
        f"_sched_ctl_completion {program}; echo ${{COMPREPLY[@]}}"
    )
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["unload"]
    for place in ("share/zsh/vendor-completions/_sched-ctl", "share/fish/vendor_completions.d"):
        assert (folder / place).exists()
    assert (folder / "share/zsh/vendor-completions/_sched-ctl").read_text().startswith("#compdef")
