"""The fleet commands where something that they need is missing: said before Spark starts."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from sched_ctl.errors import UserError

RUN = """
import sys
sys.modules[{module!r}] = None  # as if it were not installed
sys.argv = ["sched-ctl", "fleet", "ingest", "a", "b"]
from sched_ctl.cli import main
main()
"""
MODULES = """
import sys
import sched_ctl.service.session, sched_ctl.service.recording, sched_ctl.cli.fleet
import sched_ctl.telemetry.replay, sched_ctl.pipeline, sched_ctl.pipeline.tables
print(*({"pyspark", "pandas", "pyarrow", "py4j"} & set(sys.modules)))
"""


MODULES_NEEDED = ("pandas", "pyarrow", "pyspark")  # in the order in which they are looked for


def run(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize("module", MODULES_NEEDED)
def test_a_gateway_has_no_spark(module: str) -> None:
    for before in MODULES_NEEDED[: MODULES_NEEDED.index(module)]:
        pytest.importorskip(before)
    done = run(RUN.format(module=module))
    assert done.returncode == 1
    assert f"need {module}, which is not installed" in done.stderr
    assert "/pip install '.[fleet]'" in done.stderr


def test_what_a_gateway_runs_imports_none_of_it() -> None:
    done = run(MODULES)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


@pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="needs pyspark")
def test_no_java_or_a_wrong_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sched_ctl.pipeline import spark

    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UserError, match="there is none"):
        spark.check()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    for said, why in (
        ('openjdk version "11.0.2" 2019-01-15', "is Java 11"),
        ('java version "1.8.0_201"', "is Java 8"),
        ("sorry", "says 'sorry'"),
    ):
        java.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
        java.chmod(0o755)
        with pytest.raises(UserError, match=why):
            spark.check()
    java.write_text("#!/bin/sh\necho 'openjdk version \"21\" 2023-09-19' >&2\n")
    spark.check()
