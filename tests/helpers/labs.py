"""The lab engine and the command line as child processes, for tests."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from sched_ctl.kernel import procfs
from sched_ctl.lab import engine as lab
from sched_ctl.runfolder import RunFolder
from support import wait_until

__all__ = ["SOON_S", "WORKLOADS", "command", "loaded", "nices", "sched_ctl", "scheduled", "spe"]

WORKLOADS = Path(__file__).parents[2] / "bench" / "workloads"
# Makes standard input the controlling terminal of what follows, and that the leader of its session
CONTROLLED = ("setsid", "--ctty")
# What a test asks of a loaded machine before it gives up
SOON_S = 30.0


@contextmanager
def spe(
    workload: str | Path = "etl", *arguments: str, duration_s: float = 60
) -> Iterator[lab.Engine]:
    """A lab engine at a low load; ends with the body, and by itself after a minute."""
    options = ("--utilisation", "0.2", "--cpus", "1", "--duration", f"{duration_s:g}", *arguments)
    file = WORKLOADS / f"{workload}.graph" if isinstance(workload, str) else workload
    with lab.running(file, options) as engine:
        wait_until(lambda: "sources" in nices(engine), SOON_S)  # the last thread to get its name
        yield engine


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from sched_ctl.cli import main; main()", *arguments]


def sched_ctl(*arguments: str, code: int = 0) -> str:
    """Run the command line to its end; its output (standard error for an error)."""
    done = subprocess.run(
        command(*arguments),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


@contextmanager
def loaded(
    run_dir: Path,
    *arguments: str,
    engine: lab.Engine | None = None,
    terminal: int | None = None,
) -> Iterator["subprocess.Popen[str]"]:
    """A running `sched-ctl load`; ended with SIGTERM if it still runs after the body.

    terminal: descriptor of what is to be its controlling terminal.
    """
    flags = ["--run-dir", str(run_dir), "--discover", "0.2", "--period", "0.1"]
    flags += ["--calm-period", "0", "--race", "0"]  # whatever else runs on this machine
    if engine is not None:
        flags += ["--engine", engine.name]
    log = run_dir.with_suffix(".log")
    with log.open("w") as stream:
        process = subprocess.Popen(
            [*(() if terminal is None else CONTROLLED), *command("load", *flags, *arguments)],
            stdin=subprocess.DEVNULL if terminal is None else terminal,
            stdout=stream,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(SOON_S)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
        print(log.read_text())


def scheduled(run_dir: Path, engine: lab.Engine) -> dict[str, Any]:
    """Wait until the engine is scheduled; the controller's status then."""

    def ready() -> dict[str, Any]:
        if not RunFolder(run_dir).socket.exists():
            return {}
        status: dict[str, Any] = msgspec.json.decode(
            sched_ctl("status", "--json", "--run-dir", str(run_dir))
        )
        [rule] = status["policies"]
        return status if engine.name in rule["engines"] and rule["passes"] > 2 else {}

    return wait_until(ready, SOON_S, f"{engine.name} is scheduled")


def nices(engine: lab.Engine) -> dict[str, tuple[int, int]]:
    """Thread name -> (nice, scheduling policy)."""
    found = [procfs.stat(engine.pid, tid) for tid in procfs.tids(engine.pid)]
    return {stat.name: (stat.nice, stat.policy) for stat in found if stat is not None}
