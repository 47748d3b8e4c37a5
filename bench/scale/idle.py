"""What the controller costs where nothing happens: CPU time in a guest that is idle but for it.

    vagrant/vm run 6.18 --cpus 1 --icount -- .venv/bin/python -m bench.scale.idle [SECONDS]

The lab engine runs 20 operators to which nothing comes. With --icount the guest's clock counts
instructions, 2 ns each, so that what else the host does has no part in it; a real CPU takes less.
Of all threads of `sched-ctl load`, over SECONDS (120) after it has settled for 10 s.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from sched_ctl.lab import engine as lab

SETTLE_S = 10.0
CPUCLOCK_SCHED = 2  # include/linux/posix-timers_types.h
MAIN = "from sched_ctl.cli import main; main()"
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
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 120.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "idle.graph")
        queries = "".join(QUERY.format(i) for i in range(10))
        path.write_text(f"workload idle base_cost_us=100\n{queries}")
        arguments = ["--utilisation", "1e-6", "--cpus", "1", "--burn", "nop", "--duration", "3600"]
        with lab.running(path, arguments) as engine:
            for name, options in VARIANTS.items():
                print(f"{name:34} {share(engine.name, options, seconds):8.3%}", flush=True)


if __name__ == "__main__":
    main()
