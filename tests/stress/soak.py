"""Lets a controller run for long while engines come and go, and watches what it costs.

    ./dev run python -m stress.soak [--minutes 15] [--period 0.1]

One lab engine stays, another is killed and started anew every few seconds. Printed are memory,
descriptors, threads and CPU time as they go, and at the end the periods missed and whether all is
as it was. It ends with 1 if memory or descriptors grew after the first fifth, or threads were left.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sched_ctl.kernel import procfs
from sched_ctl.lab import engine as lab
from sched_ctl.service.socket import request

WORKLOADS = Path(__file__).parents[2] / "bench" / "workloads"
OPTIONS = ("--utilisation", "0.05", "--cpus", "1", "--duration", "86400")
EVERY_S = 10.0
GROWTH = 1.05  # of memory: what arenas and caches may still gain


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("--minutes", type=float, default=15.0)
    arguments.add_argument("--period", type=float, default=0.1)
    arguments.add_argument("--churn", type=float, default=3.0, help="seconds an engine lives")
    given = arguments.parse_args()
    seconds = 60 * given.minutes
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended
    os.environ["SCHED_CTL_MACHINE_LOCK"] = "no"  # others' controllers are not ours to stop
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ours = f"soak-{os.getpid()}"  # other people's engines on this machine are not ours
        workload = folder / "soak.graph"
        etl = (WORKLOADS / "etl.graph").read_text()
        workload.write_text(etl.replace("\nquery etl", f"\nquery {ours}"))
        stays = stack.enter_context(lab.running(workload, OPTIONS))
        before = nices(stays.pid)
        load = subprocess.Popen(
            [
                *(sys.executable, "-c", "from sched_ctl.cli import main; main()", "load"),
                *("--run-dir", str(folder), "--backend", "nice", "--policy", f"{ours}=random"),
                *("--engine", "lab", "--period", str(given.period), "--calm-period", "0"),
            ],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(end, load)
        samples = watched(load, workload, seconds, given.churn)
        status = request(folder, "status")
        end(load)
        changed = nices(stays.pid) != before
    [rule] = status["policies"]
    wanted = seconds / given.period
    print(
        f"{rule['passes']} passes of {wanted:.0f}, {rule['missed']} missed, "
        f"{rule['writes']} writes, CPU {status['cpu_share']:.2%}; threads "
        + ("left changed" if changed else "as they were")
    )
    settled = samples[len(samples) // 5 :]
    grew = [
        name
        for name, slack in (("rss_mb", GROWTH), ("fds", 1.0), ("threads", 1.0))
        if min(s[name] for s in settled[-10:]) > slack * max(s[name] for s in settled[:10])
    ]
    print(f"grew: {', '.join(grew) or 'nothing'}")
    sys.exit(bool(grew or changed))


def watched(
    load: "subprocess.Popen[bytes]", workload: Path, seconds: float, churn_s: float
) -> list[dict[str, Any]]:
    """A sample every so often, while an engine comes and goes."""
    began_s = time.monotonic()
    samples: list[dict[str, Any]] = []
    while (now_s := time.monotonic() - began_s) < seconds:
        with lab.running(workload, OPTIONS):
            time.sleep(churn_s)
        if load.poll() is not None:
            sys.exit(f"the controller ended with {load.returncode}")
        if now_s >= EVERY_S * len(samples):
            samples.append(sample(load.pid))
            print(
                f"{now_s:6.0f} s  RSS {samples[-1]['rss_mb']:.1f} MB  "
                f"{samples[-1]['fds']} descriptors  {samples[-1]['threads']} threads",
                flush=True,
            )
    return samples


def sample(pid: int) -> dict[str, Any]:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return {
        "rss_mb": pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        "fds": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "threads": len(procfs.tids(pid)),
    }


def nices(pid: int) -> dict[int, tuple[int, int]]:
    found = {tid: procfs.stat(pid, tid) for tid in procfs.tids(pid)}
    return {tid: (one.nice, one.policy) for tid, one in found.items() if one is not None}


def end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
        process.wait(60)


if __name__ == "__main__":
    main()
