"""Tests that run in a process of their own count as if they had run here."""

import re
import subprocess
import sys
from pathlib import Path

from sched_ctl.kernel import procfs
from support import wait_until

TESTS = Path(__file__).parents[1]
CONFTEST = "import conftest_of_the_tests as shared\nfrom conftest_of_the_tests import *\n"

# It ends when a test of the other file has been seen, and that test when this one has begun.
HERE = """
import os
import pytest
from pathlib import Path
from support import wait_until

@pytest.mark.engine
def test_here():
    Path("began").write_text(str(os.getpid()))
    wait_until(Path("beside").exists, 100, "a test beside this one")
    assert Path("beside").read_text() != str(os.getpid())

@pytest.mark.quiet
def test_compares():
    assert Path("last").exists() and Path("left").exists()
"""

THERE = """
import atexit
import os
import warnings
import pytest
from pathlib import Path
from support import wait_until

def test_beside():
    assert "COLUMNS" not in os.environ  # nobody has asked for a width
    wait_until(Path("began").exists, 100, "the test that runs meanwhile")
    Path("beside").write_text(str(os.getpid()))
    atexit.register(Path("left").touch)  # last of all

def test_bad():
    print("said there")
    warnings.warn("told there")
    assert 1 == 2, "a reason"

@pytest.mark.skip(reason="needs a capability")
def test_skipped():
    pass

@pytest.mark.spark
def test_again():
    if not Path("again").exists():
        Path("again").touch()
        assert False, "not yet"

@pytest.mark.spark
def test_last():
    {last}
    Path("last").touch()
"""


def run(
    folder: Path, last: str, *options: str, conftest: str = CONFTEST
) -> subprocess.CompletedProcess[str]:
    (folder / "conftest_of_the_tests.py").symlink_to(TESTS / "conftest.py")
    (folder / "conftest.py").write_text(conftest)
    (folder / "test_here.py").write_text(HERE)
    (folder / "test_there.py").write_text(THERE.format(last=last))
    command = [sys.executable, "-m", "pytest", "-ra", *options]
    path = f"{TESTS}:{TESTS / 'helpers'}:{TESTS.parent / 'vagrant'}"
    environment = {"PYTHONPATH": path, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=environment, timeout=280
    )
    done.stdout = re.sub(r", \d+ warnings?", "", done.stdout)
    return done


def has_ended(pid: int) -> bool:
    found = procfs.stat(pid)
    return found is None or found.state == "Z"


def test_reports_count_as_if_all_ran_here(tmp_path: Path) -> None:
    done = run(tmp_path, "pass")
    assert done.returncode == 1, done.stdout
    assert "1 failed, 5 passed, 1 skipped, 1 rerun" in done.stdout
    assert "said there" in done.stdout and "a reason" in done.stdout
    assert "test_again failed in call at first:" in done.stdout
    assert "1 needs a capability" in done.stdout
    assert "UserWarning: told there" in done.stdout


def test_who_ends_without_a_word_has_failed(tmp_path: Path) -> None:
    leaves = "Path('left').write_text(str(__import__('subprocess').Popen(['sleep', '300']).pid))"
    done = run(tmp_path, f"{leaves}; os.write(1, b'last words'); os._exit(3)")
    assert "test_there.py::test_last - " in done.stdout, done.stdout
    assert "ended with exit code 3" in done.stdout
    left = int((tmp_path / "left").read_text())  # what it had started
    wait_until(lambda: has_ended(left), what="the end of who was killed")
    # The other one that failed compares what it measures, and finds no trace of it.
    assert "3 failed, 3 passed, 1 skipped, 1 rerun" in done.stdout


def test_a_process_that_does_not_end_holds_up_nobody(tmp_path: Path) -> None:
    """A thread of its own keeps it. Tests that compare wait for a while, then it is ended."""
    stays = "__import__('threading').Thread(target=__import__('time').sleep, args=(300,)).start()"
    done = run(tmp_path, stays, conftest=CONFTEST + "import lane\nlane.LEAVE_S = 8.0\n")
    assert "1 failed, 5 passed, 1 skipped, 1 rerun" in done.stdout, done.stdout
    assert has_ended(int((tmp_path / "beside").read_text()))


def test_the_first_failure_may_end_all(tmp_path: Path) -> None:
    done = run(tmp_path, "import time; time.sleep(100)", "-x")
    assert "stopping after 1 failures" in done.stdout, done.stdout
    process = (tmp_path / "beside").read_text()
    assert not Path("/proc", process).exists()
    assert not (tmp_path / "last").exists()


def test_to_list_tests_runs_none(tmp_path: Path) -> None:
    done = run(tmp_path, "pass", "--collect-only")
    assert "7 tests collected" in done.stdout, done.stdout
    assert not (tmp_path / "beside").exists()
