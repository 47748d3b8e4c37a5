"""A test of a machine that fails is tried once more, visibly; too many of them fail the run."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

CONFTEST = "import conftest_of_the_tests as shared\nfrom conftest_of_the_tests import *\n"

SOME = """
from pathlib import Path
import pytest

pytestmark = pytest.mark.{}

@pytest.mark.parametrize("name", range({}))
def test_passes_at_its_second_attempt(name):
    seen = Path(f"seen-{{name}}")
    first = not seen.exists()
    seen.touch()
    assert not first, "no, not yet"

def test_well():
    pass
"""

BAD = "import pytest\n@pytest.mark.engine\ndef test_never():\n    assert False, 'never'\n"


def run(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """pytest with the project's conftest, on a test file of its own."""
    (folder / "conftest_of_the_tests.py").symlink_to(TESTS / "conftest.py")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_some.py").write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore",
        *options,
        "test_some.py",
    ]
    path = {"PYTHONPATH": f"{TESTS}:{TESTS / 'helpers'}", "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=path, check=False, timeout=60
    )


@pytest.mark.parametrize("marker", ["host", "vm"])
def test_a_second_attempt_counts_and_is_shown(marker: str, tmp_path: Path) -> None:
    done = run(tmp_path, SOME.format(marker, 3))
    assert done.returncode == 0, done.stdout
    assert "4 passed, 3 rerun" in done.stdout
    assert "test_passes_at_its_second_attempt[0] failed in call at first:" in done.stdout
    assert "no, not yet" in done.stdout


def test_more_than_three_of_them_fail_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, SOME.format("spark", 4))
    assert done.returncode == 1, done.stdout
    assert "4 of them: more than 3 make the tests fail" in done.stdout
    assert "5 passed, 4 rerun" in done.stdout


def test_what_fails_twice_has_failed(tmp_path: Path) -> None:
    done = run(tmp_path, BAD)
    assert done.returncode == 1, done.stdout
    assert "1 failed, 1 rerun" in done.stdout


def test_a_unit_test_is_tried_once(tmp_path: Path) -> None:
    done = run(tmp_path, SOME.format("quiet", 1))
    assert done.returncode == 1, done.stdout
    assert "1 failed, 1 passed" in done.stdout
