"""A test that cannot run is skipped by the name of what it needs, and counted."""

import os
import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_without_pyspark_its_tests_are_counted(tmp_path: Path) -> None:
    (tmp_path / "without.py").write_text("import sys\nsys.modules['pyspark'] = None\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "without",
            "-p",
            "no:cacheprovider",
            TESTS / "spark",
        ],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" not in done.stdout
    counted = re.search(r"^ +(\d+) needs pyspark$", done.stdout, re.MULTILINE)
    files = list((TESTS / "spark").glob("test_*.py"))
    assert counted is not None and int(counted[1]) >= len(files)
