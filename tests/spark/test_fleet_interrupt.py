"""Ctrl-C while Spark starts, and while it works."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.needs("pyspark", "java")]

START_S = 120


@pytest.mark.parametrize("sign", ["sched-ctl-fleet-*", "sched-ctl-fleet-*/blockmgr-*"])
def test_an_interrupted_verb_ends_its_spark(tmp_path: Path, sign: str) -> None:
    """sign: what is there in the scratch folder when it is interrupted."""
    command = [str(Path(sys.executable).with_name("sched-ctl")), "fleet"]
    subprocess.run(
        [*command, "generate", str(tmp_path / "in"), "--nodes", "2", "--hours", "2"], check=True
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    process = subprocess.Popen(
        [*command, "ingest", str(tmp_path / "in"), str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    try:
        wait_until(lambda: any(scratch.glob(sign)), START_S, sign)
        os.killpg(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=START_S)  # until its JVM has ended, too
        assert process.returncode == 130, said
        assert "Traceback" not in said
        assert not list(scratch.iterdir())
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
