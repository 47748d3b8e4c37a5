"""What another user's account does to root's passes, and to root's next engine."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ATTACKS = ("lock", "births", "answers", "words", "rows")

pytestmark = [pytest.mark.host, pytest.mark.quiet(whole=False), pytest.mark.needs("root", "cc")]


def test_roots_passes_go_on_beside_each_attack() -> None:
    """The program counts; it ends with 1 if there were too few, or a thread is left changed."""
    done = subprocess.run(
        [sys.executable, "-m", "stress.attackers", "--seconds", "5", *ATTACKS],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^(\w+) +[\d.]+ passes/s", done.stdout, re.MULTILINE) == [
        "nothing",
        "hogs",
        *ATTACKS,
    ]
