"""Which tests `./dev check` runs, on this project's own files."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from changed import changed_files, concerned

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("changed", "with_", "without"),
    [
        ("ctl/model/normalise.py", "test_normalise.py", "test_qemu.py"),
        ("sim/native/core.c", "test_sim_theory.py", "test_qemu.py"),
        ("vagrant/qemu.py", "test_qemu.py", "test_normalise.py"),
        ("tests/unit/test_graph.py", "test_graph.py", "test_qemu.py"),
        ("packaging/sched-ctl.service", "test_service.py", "test_qemu.py"),
        ("policies/new.py", "test_policies.py", "test_qemu.py"),
        ("drivers/new/driver.py", "test_registry.py", "test_policies.py"),
        ("docs/nothing.md", "test_style.py", "test_graph.py"),
    ],
)
def test_tests_of_a_file(changed: str, with_: str, without: str) -> None:
    names = {path.name for path in concerned(ROOT, [changed])}
    assert with_ in names
    assert without not in names
    assert "test_style.py" in names


def test_through_a_helper() -> None:
    """`fakes.py` imports the topology, so who imports that is concerned as well."""
    names = {path.name for path in concerned(ROOT, ["ctl/model/topology.py"])}
    users = {
        path.name
        for path in (ROOT / "tests" / "unit").glob("test_*.py")
        if "from fakes import" in path.read_text()
    }
    assert users and users <= names


def test_settings_concern_all_tests() -> None:
    assert len(concerned(ROOT, ["pyproject.toml"])) == len(
        list((ROOT / "tests" / "unit").glob("test_*.py"))
    )


def test_what_differs_from_main(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    def write(*names: str) -> None:
        for name in names:
            (tmp_path / name).write_text(name)

    git("init", "-q", "-b", "main")
    write("old", "edited", "ignored", ".gitignore")
    (tmp_path / ".gitignore").write_text("ignored\n")
    git("add", "old", "edited", ".gitignore")
    git("commit", "-qm", "one")
    git("checkout", "-qb", "work")
    write("committed")
    git("add", "committed")
    git("commit", "-qm", "two")
    (tmp_path / "edited").write_text("more")
    write("new")
    assert sorted(changed_files(tmp_path)) == ["committed", "edited", "new"]
    # On main itself: what origin has not.
    git("checkout", "-q", "main")
    assert sorted(changed_files(tmp_path)) == ["edited", "new"]
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    git("merge", "-q", "work")
    assert sorted(changed_files(tmp_path)) == ["committed", "edited", "new"]


def test_where_git_tells_nothing_all_unit_tests_are_run(tmp_path: Path) -> None:
    unit = tmp_path / "tests" / "unit"
    unit.mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "conftest.py", unit.parent)
    (unit / "test_any.py").write_text("def test_it():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/unit", "--changed"]
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT / "tests" / "helpers"),
        "GIT_CEILING_DIRECTORIES": str(tmp_path.parent),
    }
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
    assert "all unit tests, as git tells no changes: fatal: not a git repository" in done.stdout
