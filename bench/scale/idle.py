"""What the controller costs where nothing happens: CPU time in a guest that is idle but for it.

    vagrant/vm run 6.18 --cpus 1 --icount -- .venv/bin/python -m bench.scale.idle [SECONDS]

The lab engine runs 20 operators to which nothing comes. With --icount the guest's clock counts
instructions, 2 ns each, so that what else the host does has no part in it; a real CPU takes less.
Of all threads of `sched-ctl load`, over SECONDS (120) after it has settled for 10 s.
"""

import argparse
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import results
from bench.results import Figure, Result, Row
from sched_ctl.lab import engine as lab

SETTLE_S = 10.0
NS_AN_INSTRUCTION = 2  # of the guest
CPUCLOCK_SCHED = 2  # include/linux/posix-timers_types.h
MAIN = "from sched_ctl.start import main; main()"
QUERY = "query q{0}\nop a{0} cost=1\nop b{0} cost=1\nedge a{0} b{0}\nsource a{0} rate=1\n"
ANY = ("flink", "spark", "storm", "liebre")
VARIANTS: Mapping[str, Sequence[str]] = {
    "as it comes": (),
    "looking for engines of all kinds": [word for kind in ANY for word in ("--engine", kind)],
    "no rest: calm_period = 0": ("--calm-period", "0"),
    "ten passes a second": ("--period", "0.1"),
    "PSI trigger, a pass a minute": ("--period", "60", "--pressure", "trigger"),
    "traced": ("--trace",),
}


def cpu_s(pid: int) -> float:
    """CPU time of all its threads, also of those that have ended: clock_getcpuclockid(3)."""
    return time.clock_gettime(~pid << 3 | CPUCLOCK_SCHED)


def share(engine: str, options: Sequence[str], seconds: float) -> float:
    """CPU seconds a second of `sched-ctl load` with these options."""
    with tempfile.TemporaryDirectory() as folder, Path(folder, "log").open("w+") as log:
        run_dir = ("--run-dir", f"{folder}/run", "--engine", engine, "--backend", "nice")
        load = subprocess.Popen(
            [sys.executable, "-c", MAIN, "load", *run_dir, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
        try:
            while not Path(folder, "run", "control.sock").exists() and load.poll() is None:
                time.sleep(0.1)
            time.sleep(SETTLE_S)
            began_s, before_s = time.monotonic(), cpu_s(load.pid)
            time.sleep(seconds)
            return (cpu_s(load.pid) - before_s) / (time.monotonic() - began_s)
        finally:
            load.send_signal(signal.SIGTERM)
            if load.wait(60):
                log.seek(0)
                print(log.read())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("seconds", nargs="?", type=float, default=120.0)
    results.argument(parser)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "idle.graph")
        queries = "".join(QUERY.format(i) for i in range(10))
        path.write_text(f"workload idle base_cost_us=100\n{queries}")
        arguments = ["--utilisation", "1e-6", "--cpus", "1", "--burn", "nop", "--duration", "3600"]
        with lab.running(path, arguments) as engine:
            shares = {
                name: share(engine.name, options, given.seconds)
                for name, options in VARIANTS.items()
            }
    rows = [
        Row(
            name,
            {
                "CPU of the guest": Figure(round(100 * found, 3), unit="%"),
                "at one a nanosecond": Figure(round(100 * found / NS_AN_INSTRUCTION, 3), unit="%"),
            },
        )
        for name, found in shares.items()
    ]
    result = Result(
        title="CPU time of `sched-ctl load` beside an idle lab engine of 20 operators",
        columns=list(rows[0].figures),
        n=1,
        spread=None,
        seeds=None,
        kernel=platform.release(),
        rows=rows,
        **results.here(),
    )
    results.tell(result, given.keep)


if __name__ == "__main__":
    main()
