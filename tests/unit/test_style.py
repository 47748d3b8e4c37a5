"""The linters and the type checker are part of the tests."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*command: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def import_tree() -> Path:
    """The folders as the package that they are installed as, in links.

    The type checker does not follow the import hook of an editable install.
    """
    tree = ROOT / "build" / "typecheck" / "sched_ctl"
    shutil.rmtree(tree, ignore_errors=True)
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    for package, folder in folders["package-dir"].items():
        below = tree.joinpath(*package.split(".")[1:])
        for source in sorted((*(ROOT / folder).rglob("*.py"), *(ROOT / folder).glob("py.typed"))):
            link = below / source.relative_to(ROOT / folder)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(source)
    return tree.parent


def test_lint() -> None:
    run("ruff", "check", ".")


def test_format() -> None:
    run("ruff", "format", "--check", ".")


def test_types() -> None:
    """All in one run, which reads what they have in common once."""
    tree = import_tree()
    folders = [name for name in ("tests", "bench", "vagrant") if any((ROOT / name).rglob("*.py"))]
    path = ":".join(
        map(str, (tree, *(ROOT / name for name in ("tests/helpers", "tests", "vagrant"))))
    )
    run("mypy", str(tree / "sched_ctl"), *folders, MYPYPATH=path)
