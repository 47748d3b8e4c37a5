"""The linters and the type checker are part of the tests."""

import os
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
    tree = ROOT / "build" / "typecheck"
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    for package in setuptools["packages"]:
        folder = package.removeprefix("sched_ctl").replace(".", "/").lstrip("/")
        mapped = setuptools["package-dir"].get(package)
        if mapped is None:  # below a mapped parent
            parent, _, name = package.rpartition(".")
            mapped = f"{setuptools['package-dir'][parent]}/{name}"
        target = tree / "sched_ctl" / folder
        target.mkdir(parents=True, exist_ok=True)
        for stale in (p for p in target.iterdir() if p.is_symlink() and not p.exists()):
            stale.unlink()
        for source in (*(ROOT / mapped).glob("*.py"), *(ROOT / mapped).glob("py.typed")):
            if not (target / source.name).is_symlink():
                (target / source.name).symlink_to(source)
    return tree


def test_lint() -> None:
    run("ruff", "check", ".")


def test_format() -> None:
    run("ruff", "format", "--check", ".")


def test_types_of_the_package() -> None:
    run("mypy", "-p", "sched_ctl", MYPYPATH=str(import_tree()))


def test_types_of_tests_and_benchmarks() -> None:
    folders = [name for name in ("tests", "bench", "vagrant") if any((ROOT / name).rglob("*.py"))]
    run("mypy", *folders, MYPYPATH=f"{import_tree()}:{ROOT / 'tests'}:{ROOT / 'vagrant'}")
