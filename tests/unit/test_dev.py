"""What `./dev` does once, and does again."""

import os
import subprocess
from pathlib import Path

DEV = Path(__file__).parents[2] / "dev"
# What it installs into, and from, is the folder that it is run in.
FUNCTIONS, END, _ = DEV.read_text().partition("\ncommand=${1:-help}\n")
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
        ["bash", "-c", f"{functions}\n{script}"],
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
