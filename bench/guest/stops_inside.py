"""Runs in a guest: a query of a real Flink that is stopped ever again beside one that is saturated.

    stops_inside.py PERIOD STOP[,STOP ...] PHASE ...    PHASE: `os`, or a policy of `load`

Both jobs run through all phases, so that later ones have no colder Java machine. Prints each phase
as JSON (bench/guest/inside.py): of each stop, how late the query then was and for how long, s.
"""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.guest.inside import PROGRAM, RUN_DIR, go_first, sample, say, show
from bench.scale.idle import cpu_s
from engines import stops
from engines.cluster import patiently, running
from sched_ctl.kernel import schedext
from sched_ctl.service.socket import request

OUT, FAILS = Path("/tmp/side.txt"), Path("/tmp/fails")
THREADS = 4
HEAVY = "bulk-"


def bulk_ns(pid: int) -> int:
    seen = sample({"tm": pid}).values()
    return sum(thread.so_far[0] for thread in seen if thread.comm.startswith(HEAVY))


def phase(name: str, pid: int, others: Mapping[str, int], wanted: Sequence[str]) -> None:
    found: dict[str, list[tuple[float, float]]] = {}
    ways: dict[str, Callable[[], None]] = {
        "restart": lambda: stops.restart(FAILS),
        "collector": lambda: stops.collect(pid),
        "frozen": lambda: stops.freeze(pid),
    }
    before_s, before_ns = time.monotonic(), bulk_ns(pid)
    for way in wanted:
        patiently(lambda: stops.keeps_up(OUT), 60, "a query that keeps up")
        spent = {who: cpu_s(one) for who, one in others.items()}
        behind_s, took_s = stops.behind_for_s(OUT, ways[way])
        spent = {who: round(cpu_s(one) - spent[who], 2) for who, one in others.items()}
        say(f"{name}, {way}: {behind_s:.2f} s behind, caught up in {took_s:.2f} s, {spent}")
        found.setdefault(way, []).append((behind_s, took_s))
    bulk = (bulk_ns(pid) - before_ns) / 1e9 / (time.monotonic() - before_s)
    show({"phase": name, "stops": found, "bulk": bulk})


def under(
    policy: str, period: str, pid: int, others: Mapping[str, int], wanted: Sequence[str]
) -> None:
    log, how = Path("/tmp/load.log"), ("--race", "0", "--period", period)
    with log.open("w") as out:
        load = subprocess.Popen(
            [*PROGRAM, "load", "--policy", policy, "--engine", "flink", *how],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )

    def ours() -> bool:
        assert load.poll() is None, log.read_text()
        if not (RUN_DIR / "control.sock").exists():
            return False
        rows = request(RUN_DIR, "dispatch", timeout_s=60).get("threads", [])
        return len(rows) >= THREADS and all(row["runs"] for row in rows)

    try:
        patiently(ours, 60, "operators run by us")
        phase(policy, pid, {**others, "controller": load.pid}, wanted)
    finally:
        load.send_signal(signal.SIGINT)
        load.wait(600)
        print(log.read_text(), flush=True)
    patiently(lambda: schedext.state() in (None, "disabled"), 10, "the scheduler is detached")


def main() -> None:
    period, wanted, *phases = sys.argv[1:]
    go_first()
    socket.sethostname("localhost")  # Flink looks its own name up
    with running(Path("/run/flink"), ({},)) as flink:
        say("Flink is up")
        side = {**stops.SIDE, "out": OUT, "fail": FAILS, "start": time.monotonic_ns()}
        flink.submit(name="side", **side)
        patiently(lambda: stops.keeps_up(OUT), 60, "a query that keeps up alone")
        flink.submit(name="bulk", **stops.BULK)
        (pid,) = (process.pid for process in flink.task_managers)
        others = {"JobManager": flink.pid}
        for name in phases:
            if name == "os":
                phase(name, pid, others, wanted.split(","))
            else:
                under(name, period, pid, others, wanted.split(","))


if __name__ == "__main__":
    main()
