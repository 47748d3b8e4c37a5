"""Starts the lab engine for tests."""

import contextlib
import functools
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sched_ctl.drivers import Target
from sched_ctl.errors import EngineError
from sched_ctl.lab import file as lab_file
from sched_ctl.lab.engine import handed
from sched_ctl.workloads.resolved import resolved_file
from support import wait_until

__all__ = ["CHAIN", "HEAD", "WORKLOADS", "built", "program", "run", "started"]

ROOT = Path(__file__).parents[2]
WORKLOADS = ROOT / "bench" / "workloads"
HEAD = "workload w base_cost_us=100\nquery q class=high\n"
CHAIN = HEAD + "op a cost=1 selectivity=0.5\nop b cost=2\nedge a b\nsource a\n"
SAFE = ("--sources", "fair")  # tests that do not say otherwise change no priorities


@functools.cache
def built(target: str = "") -> None:
    """Run make in engine/: its warnings are errors."""
    done = subprocess.run(
        ["make", "-C", str(ROOT / "engine"), *target.split()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def program(sanitizer: str = "") -> Path:
    """The compiled engine, or one of its sanitizer builds."""
    if not sanitizer:
        built()
        return ROOT / "ctl" / "bin" / "labspe"
    built(f"build/labspe-{sanitizer}")
    return ROOT / "engine" / "build" / f"labspe-{sanitizer}"


def run(workload: Path, *options: object, sanitizer: str = "") -> dict[str, Any]:
    """Run the engine to its end; its results. Fails on any other exit code than 0."""
    with handed(resolved_file(workload)) as (fd, path):
        done = subprocess.run(
            [program(sanitizer), *SAFE, "--results", "-", *map(str, options), path],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            pass_fds=[fd],
        )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@contextlib.contextmanager
def started(workload: Path, *options: object, **popen: Any) -> Iterator[Target]:
    """An engine that runs until the block ends, or for a minute."""
    with handed(resolved_file(workload)) as (fd, path):
        engine = subprocess.Popen(
            [program(), *SAFE, "--duration", "60", "--drain", "0", *map(str, options), path],
            stderr=subprocess.DEVNULL,
            pass_fds=[fd],
            **popen,
        )
    target = Target("lab", str(engine.pid), engine.pid)

    def there() -> bool:
        assert engine.poll() is None, f"labspe ended with {engine.returncode}"
        with contextlib.suppress(EngineError):
            lab_file.LabFile(lab_file.path_of(target.address)).close()
            return True
        return False

    try:
        wait_until(there, what="labspe to start")
        yield target
    finally:
        engine.send_signal(signal.SIGTERM)
        try:
            engine.wait(10)
        except subprocess.TimeoutExpired:
            engine.kill()
            engine.wait()
            raise
