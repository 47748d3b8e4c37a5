"""What a small gateway pays: how soon an order is in force, and what memory and CPU time it takes.

    vagrant/vm run 6.18 --cpus 1 --memory 1G --icount --timeout 600 --write bench/results -- \
        .venv/bin/python -m bench.scale.gateway [--runs N] [--package FILE] [--keep NAME]

A lab engine takes half of the one CPU when `sched-ctl load` begins, by nice values and under
sched_ext. With --icount the guest's clock counts instructions, 2 ns each: a slow CPU, and nobody
else's work. Files have been read and compiled before, as those of a package are when it is
installed. package: a .deb, whose installed size is told (deb-control(5), Installed-Size).
"""

import argparse
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench import results
from bench.results import Figure, Result, Row
from bench.scale.idle import MAIN, cpu_s
from sched_ctl.lab import engine as lab

WORKLOAD = Path(__file__).parents[1] / "workloads" / "syn.graph"
IN_FORCE = re.compile(r"policy [^:]+: [1-9]\d* threads of ")
LOOK_S = 0.02
LIMIT_S = 300.0
AFTER_S = 10.0
BACKENDS = ("nice", "scx")


def memory_mb(pid: int) -> tuple[float, float]:
    """What it has in memory now, and had at most: proc_pid_status(5), VmRSS and VmHWM."""
    text = Path(f"/proc/{pid}/status").read_text()
    now, most = (re.search(rf"^{name}:\s+(\d+) kB", text, re.M) for name in ("VmRSS", "VmHWM"))
    assert now is not None and most is not None
    return int(now[1]) * 1024 / 1e6, int(most[1]) * 1024 / 1e6


def one(engine: str, backend: str, compiled: str) -> dict[str, float]:
    """One start and end of `sched-ctl load`. Raises TimeoutError if nothing comes in force.

    compiled: folder of compiled modules; a guest writes none beside the sources.
    """
    with tempfile.TemporaryDirectory() as folder, Path(folder, "log").open("w") as out:
        log, began_s = Path(folder, "log"), time.monotonic()
        load = subprocess.Popen(
            [
                *(sys.executable, "-c", MAIN, "load", "--engine", engine, "--backend", backend),
                *("--run-dir", f"{folder}/run", "--race", "0"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={
                **os.environ,
                "OPENBLAS_NUM_THREADS": "1",
                "PYTHONPYCACHEPREFIX": compiled,
                "PYTHONDONTWRITEBYTECODE": "",
            },
        )
        try:
            while not IN_FORCE.search(log.read_text()):
                if load.poll() is not None or time.monotonic() - began_s > LIMIT_S:
                    raise TimeoutError(log.read_text())
                time.sleep(LOOK_S)
            in_force_s, took_s = time.monotonic() - began_s, cpu_s(load.pid)
            time.sleep(AFTER_S)
            now_mb, most_mb = memory_mb(load.pid)
            after_s = cpu_s(load.pid) - took_s
        finally:
            told_s = time.monotonic()
            load.send_signal(signal.SIGTERM)
            load.wait(60)
        return {
            "in force after": in_force_s,
            "CPU time until then": took_s,
            "CPU of the next 10 s": 100 * after_s / AFTER_S,
            "memory": now_mb,
            "most memory": most_mb,
            "put back within": time.monotonic() - told_s,
        }


UNITS = {"CPU of the next 10 s": "%", "memory": "MB", "most memory": "MB"}


def row(backend: str, runs: Sequence[dict[str, float]]) -> Row:
    figures: dict[str, Figure | str] = {
        name: results.median([run[name] for run in runs], UNITS.get(name, "s")) for name in runs[0]
    }
    return Row(f"`load --backend {backend}`", figures)


def installed_mb(package: Path) -> float:
    """MB on the disk."""
    command = ["dpkg-deb", "-f", str(package), "Installed-Size"]
    return int(subprocess.check_output(command, text=True)) * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--package", type=Path, help="a .deb, whose installed size is told")
    results.argument(parser)
    given = parser.parse_args()
    arguments = ["--utilisation", "0.5", "--cpus", "1", "--burn", "nop", "--duration", "3600"]
    with lab.running(WORKLOAD, arguments) as engine, tempfile.TemporaryDirectory() as compiled:
        one(engine.name, "scx", compiled)  # reads files and compiles them
        rows = [
            row(backend, [one(engine.name, backend, compiled) for _ in range(given.runs)])
            for backend in BACKENDS
        ]
    size = f"; {installed_mb(given.package):.0f} MB installed" if given.package else ""
    result = Result(
        title=f"`load` beside a lab engine that takes half of one slow CPU{size}",
        columns=list(rows[0].figures),
        n=given.runs,
        spread="smallest-largest",
        seeds=None,
        kernel=platform.release(),
        rows=rows,
        **results.here(),
    )
    results.tell(result, given.keep)


if __name__ == "__main__":
    main()
