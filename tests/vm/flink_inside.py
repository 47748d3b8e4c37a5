"""Runs in a guest: a real Flink, under `sched-ctl load` with the sched_ext backend.

Prints what it saw; an assertion that fails ends it with an exit code.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from engines import stops
from engines.cluster import SLOWER, Cluster, patiently, running
from engines.compete import State, states
from sched_ctl.kernel import sched, schedext
from sched_ctl.runfolder import RunFolder
from sched_ctl.service.socket import request

OPERATORS = 5
OF_ALL = OPERATORS + 4  # with two queries of two threads
BUFFER_TIMEOUT = "100 ms"  # Flink's own
SOON_S = 10.0 * SLOWER
FOLDER = Path("/run/flink")
FAILS = Path("/tmp/fails")
OUT = Path("/tmp/out.txt")
SIDE = Path("/tmp/side.txt")
LOG = Path("/tmp/load.log")
RUN_DIR = Path("/run/sched-ctl")
PROGRAM = [sys.executable, "-c", "from sched_ctl.cli import main; main()"]
# An emulated JobManager takes seconds to answer.
PATIENT = (
    *("--period", "5", "--poll-timeout", "30", "--stale-after", "300", "--window", "60"),
    *("--race", "0"),
)

MOST = 2.5  # of the kernel's own time to catch up; who starves never does (seen: .6 to 1.7)
LEAST_S = 2.0  # who was behind for less needs as long (1.2 to 3.1 s behind: 2.1 to 3.0 s)

began_s = time.monotonic()


def say(what: object) -> None:
    print(f"{time.monotonic() - began_s:6.1f} s  {what}", flush=True)


def main() -> None:
    socket.sethostname("localhost")  # Flink looks its own name up
    with running(FOLDER, ({},)) as cluster:
        say("Flink is up")
        # All records are written down, so that progress can be seen.
        cluster.submit(
            name="q", rate=50, parse_us=50, work_us=200, out=OUT, buffer_timeout=BUFFER_TIMEOUT
        )
        say("the job runs")
        (pid,) = (process.pid for process in cluster.task_managers)
        patiently(lambda: len(operators(pid)) >= OPERATORS, 10, "operator threads")
        patiently(lambda: records() > 20, 10, "the job's first records")
        before = states(pid)
        ours = schedule(cluster, pid, before)
        patiently(lambda: schedext.state() == "disabled", 10, "the scheduler is detached")
        now = states(pid)
        changed = {key: (before[key], now[key]) for key in before.keys() & now.keys()}
        assert all(then == after for then, after in changed.values()), changed
        done = records()
        patiently(lambda: records() > done + 20, 10, "progress afterwards")
        say("everything is as it was")
        theirs = catches_up(pid, "the kernel's own")
        assert all(ours[stop] <= MOST * theirs[stop] for stop in theirs), (ours, theirs)


def submit_both(cluster: Cluster) -> None:
    """A query, and beside it one that takes all it gets."""
    side = {**stops.SIDE, "out": SIDE, "fail": FAILS, "start": time.monotonic_ns()}
    job = cluster.submit(name="side", **side)
    patiently(lambda: stops.keeps_up(SIDE), 30, "a query that keeps up alone")
    say("a query keeps up alone")
    cluster.submit(name="bulk", **stops.BULK)
    say("another one runs")
    checkpoints = f"/jobs/{job}/checkpoints"
    patiently(lambda: cluster.call("GET", checkpoints)["counts"]["completed"], 30, "a checkpoint")


def catches_up(pid: int, by: str) -> dict[str, float]:
    """How long that query needs after each stop, for a second that it was behind.

    How far it is behind after a restart goes by how old the last checkpoint was, and the work of
    starting again does not.
    """
    patiently(lambda: stops.keeps_up(SIDE), 30, "a query that keeps up beside another")
    say(f"{by}: a query keeps up beside another")
    found = {}
    for name, stop in (
        ("a restart from a checkpoint", lambda: stops.restart(FAILS)),
        ("a collector's pauses", lambda: stops.collect(pid)),
    ):
        behind_s, took_s = stops.behind_for_s(SIDE, stop)
        found[name] = took_s / max(behind_s, LEAST_S)
        say(f"{by}, {name}: {behind_s:.2f} s behind, caught up in {took_s:.2f} s")
    return found


def schedule(cluster: Cluster, pid: int, before: State) -> dict[str, float]:
    """What `catches_up` found under it."""
    with LOG.open("w") as log:
        load = subprocess.Popen(
            [*PROGRAM, "load", "--engine", "flink", *PATIENT],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:

        def ours() -> list[dict[str, Any]]:
            """The operators' threads, if each was run by us: what `sched-ctl stats` shows."""
            assert load.poll() is None, LOG.read_text()
            assert cluster.job_manager.poll() is None
            if not RunFolder(RUN_DIR).socket.exists():
                return []
            rows: list[dict[str, Any]] = request(RUN_DIR, "dispatch", timeout_s=SOON_S).get(
                "threads", []
            )
            return rows if len(rows) == OPERATORS and all(row["runs"] for row in rows) else []

        patiently(ours, 30, "threads run by us")
        rows = ours()
        say("each operator was run by us")
        for row in rows:
            print(row)
        found = {row["tid"]: os.sched_getscheduler(row["tid"]) for row in rows}
        assert set(found.values()) == {sched.OTHER}, found  # full mode changes no policy
        assert {row["tid"] for row in rows} <= {tid for tid, _ in before}
        others = {key for key in before if key[0] not in found}
        now = states(pid)
        assert all(now[key] == before[key] for key in others & now.keys())
        done, runs = records(), sum(row["runs"] for row in rows)
        patiently(lambda: records() > done + 20, 10, "the job goes on under us")
        more = sum(row["runs"] for row in ours())
        say(f"{records() - done} records, {more - runs} runs of operators")
        assert more > runs
        assert "policy auto: balanced (a single query" in LOG.read_text()

        def all_ours() -> bool:
            rows = request(RUN_DIR, "dispatch", timeout_s=SOON_S).get("threads", [])
            return len(rows) == OF_ALL and all(row["runs"] for row in rows)

        submit_both(cluster)
        patiently(all_ours, 30, "an order of all queries")
        needed = catches_up(pid, "ours")

        load.send_signal(signal.SIGINT)
        assert load.wait(SOON_S) == 0
        assert "everything is as it was before" in LOG.read_text()
        return needed
    finally:
        if load.poll() is None:
            load.kill()
        load.wait()
        print(LOG.read_text())


def operators(pid: int) -> list[str]:
    """Threads of the task manager that are named like the job's operators."""
    found = []
    for tid, _ in states(pid):
        try:
            name = Path(f"/proc/{pid}/task/{tid}/comm").read_text().strip()
        except OSError:
            continue
        if name.startswith(("q-", "Source: q-")):
            found.append(name)
    return found


def records() -> int:
    return OUT.read_bytes().count(b"\n") if OUT.exists() else 0


if __name__ == "__main__":
    try:
        main()
    except AssertionError:
        for log in FOLDER.glob("*.log"):
            print(log, log.read_text()[-1500:])
        raise
