"""Runs in a guest: a real Flink that takes all of the one CPU, and `sched-ctl load` beside it.

    contact_inside.py [ARGUMENT ...]    arguments of `sched-ctl load`

Prints each stretch as JSON, in lines that begin with "@@ ": before, and from the moment in which
`load` is started. What it reads from the disk was read before.
"""

import math
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from bench.guest.flink_scenarios import PAIR
from bench.guest.inside import PROGRAM, Pulse, go_first, say, show
from bench.scale.idle import cpu_s
from engines import cluster

SECONDS = 10.0
LOOK_S = 0.25
WARM_S = 5.0
STOPS = "/run/stops-{}.log"
# With the moment of its end on CLOCK_MONOTONIC
STOP = re.compile(r'\[(\d+)ns\].*Safepoint "(\w+)".* Total: *(\d+) ns')
PULSE_S = 0.005
IN_FORCE = re.compile(r"policy [^:]+: [1-9]\d* threads of ")


def stops_ms(text: str, still: Iterable[tuple[float, float]]) -> list[tuple[str, float]]:
    """Why and for how long all threads of a Java machine stood still, by its log.

    still: when nothing at all ran (from, to; s), for which nobody in the guest can do anything:
    that is taken off.
    """
    found = []
    for stop in STOP.finditer(text):
        length_s, end_s = int(stop[3]) / 1e9, int(stop[1]) / 1e9
        begin_s = end_s - length_s
        of_nobody_s = sum(max(0.0, min(end_s, to) - max(begin_s, since)) for since, to in still)
        found.append((stop[2], (length_s - of_nobody_s) * 1e3))
    return found


def stretch(
    name: str, engine: Mapping[str, int], load: int | None, log: Path, pulse: Pulse
) -> None:
    """Look for ten seconds; `load` is its process id, if it runs."""
    pids = dict(engine) if load is None else {**engine, "load": load}
    logs = {label: Path(STOPS.format(pid)) for label, pid in engine.items()}
    before = {label: cpu_s(pid) for label, pid in pids.items()}
    read = {label: len(path.read_text()) for label, path in logs.items()}
    began_s, in_force_s = time.monotonic(), math.nan
    while (passed_s := time.monotonic() - began_s) < SECONDS:
        if math.isnan(in_force_s) and log.exists() and IN_FORCE.search(log.read_text()):
            in_force_s = passed_s
        time.sleep(LOOK_S)
    still = pulse.woken(began_s - 1.0, math.inf)
    show(
        {
            "stretch": name,
            "seconds": passed_s,
            "cpu_s": {label: cpu_s(pid) - before[label] for label, pid in pids.items()},
            "stops_ms": {
                label: stops_ms(path.read_text()[read[label] :], still)
                for label, path in logs.items()
            },
            "in_force_s": None if math.isnan(in_force_s) else in_force_s,
        }
    )


def main() -> None:
    go_first()
    socket.sethostname("localhost")  # Flink looks its own name up
    cluster.JAVA = (*cluster.JAVA, f"-Xlog:safepoint=info:file={STOPS.format('%p')}:timenanos")
    with cluster.running(Path("/run/flink")) as flink:
        say("Flink is up")
        subprocess.run([*PROGRAM, "plan"], stdout=subprocess.DEVNULL, check=False)
        for name, arguments in PAIR.items():
            flink.submit(name=name, prefix=f"{name}-", buffer_timeout="1 ms", **arguments)
        time.sleep(WARM_S)
        engine = {"tm": flink.task_managers[0].pid, "jm": flink.pid}
        log = Path("/tmp/load.log")
        pulse = Pulse(PULSE_S)
        stretch("the ten seconds before", engine, None, log, pulse)
        with log.open("w") as out:
            load = subprocess.Popen(
                [*PROGRAM, "load", "--race", "0", *sys.argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        for name in ("the first ten seconds of `load`", "the next ten", "the ten after those"):
            stretch(name, engine, load.pid, log, pulse)
        load.send_signal(signal.SIGINT)
        load.wait(600)
        pulse.end()
        print(log.read_text(), flush=True)


if __name__ == "__main__":
    main()
