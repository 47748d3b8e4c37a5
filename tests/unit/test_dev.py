"""What `./dev` does once, and does again."""

import os
import subprocess
import sys
from pathlib import Path

DEV = Path(__file__).parents[2] / "dev"
# What it installs into, and from, is the folder that it is run in.
FUNCTIONS, END, _ = DEV.read_text().partition("\ncommand=${1:-help}\n")
VENV = """
/usr/bin/python3() {
    printf '%s\\n' "$*" >>made
    mkdir -p .venv/bin
    printf '#!/bin/sh\\necho pip >>made\\n' >.venv/bin/pip
    chmod +x .venv/bin/pip
}
"""
# As in a language in which capitals do not go first.
SORT = """#!/bin/sh
[ "$LC_ALL" = C ] || set -- -r "$@"
exec /usr/bin/sort "$@"
"""


def call(folder: Path, script: str) -> str:
    """What functions of it print, with the folder's `bin` before other programs."""
    assert END
    functions = FUNCTIONS.replace('cd "$(dirname "$(readlink -f "$0")")"', f"cd '{folder}'")
    for name in ("pyproject.toml", "constraints.txt", "setup.py"):
        (folder / name).write_text(name)
    for name in ("engine", "bpf", "sim/native"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "sim" / "Makefile").touch()
    done = subprocess.run(
        ["bash", "-c", f"{functions}\n{VENV}\n{script}"],
        env=os.environ | {"PATH": f"{folder}/bin:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def test_what_is_installed_is_the_same_in_any_language(tmp_path: Path) -> None:
    before = call(tmp_path, "sources")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sort").write_text(SORT)
    (tmp_path / "bin" / "sort").chmod(0o755)
    assert call(tmp_path, "sources") == before != ""


def test_a_venv_that_was_cut_short_is_made_anew(tmp_path: Path) -> None:
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to("/usr/bin/python3")
    for _ in range(2):
        call(tmp_path, "pip_install ''")
    assert (tmp_path / "made").read_text() == "-m venv --clear .venv\npip\n"


def test_what_guests_load_is_compiled(tmp_path: Path) -> None:
    """Not what hardly anybody loads; a file that is no Python is no reason to stop."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / ".venv" / "bin" / "pip").write_text("#!/bin/sh\n")
    (tmp_path / ".venv" / "bin" / "pip").chmod(0o755)
    there = tmp_path / ".venv" / "lib" / "python3.11" / "site-packages"
    for name in ("msgspec/a.py", "numpy/core/tests/b.py", "pandas/c.py", "broken/d.py"):
        (there / name).parent.mkdir(parents=True)
        (there / name).write_text("def" if name.startswith("broken") else "")
    call(tmp_path, "set -e; pip_install ''")
    assert [path.parts[-3] for path in there.rglob("*.pyc")] == ["msgspec"]
    assert (tmp_path / ".venv" / "installed-").exists()
