"""How soon what is new is scheduled: from a thread's birth to the value that is set for it.

    ./dev run python -m bench.real.follow lab [--rounds 20] [--period 1]
    ./dev run python -m bench.real.follow flink [--rounds 8] [--period 1]

lab: a lab engine is started beside others, and its operators are looked at 500 times a second; the
time counts from the birth of its last operator thread, by the kernel's clock. flink: to a cluster
that is followed already a job is submitted, then one of its operators gets another parallelism
(which replaces all its threads: the adaptive scheduler), then it is cancelled and submitted anew;
the time counts from when the REST interface says that all its tasks run, which is asked 20 times a
second. All of these end when all operator threads have a nice value of ours. `cancel` counts from
when REST has the job as cancelled to when `status` does not list its query any more.
"""

import argparse
import functools
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import results
from bench.results import Figure, Result, Row
from sched_ctl.kernel import procfs
from sched_ctl.lab import engine as lab
from sched_ctl.service.socket import request

ROOT = Path(__file__).parents[2]
SET = 5  # of all operators at least, whatever the policy thinks of them
OPTIONS = ("--backend", "nice", "--policy", "random")
WORST = ("--backend-option", f"nice.best={SET}", "--backend-option", "nice.worst=10")
MAIN = "from sched_ctl.cli import main; main()"
DEADLINE_S = 60.0


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("engine", choices=["lab", "flink"])
    arguments.add_argument("--rounds", type=int, default=10)
    arguments.add_argument("--period", type=float, default=1.0)
    results.argument(arguments)
    given = arguments.parse_args()
    measure = of_lab if given.engine == "lab" else of_flink
    found: dict[str, list[float]] = {}
    for what, took_s in measure(given.rounds, given.period):
        found.setdefault(what, []).append(took_s)
    rows = [
        Row(
            what,
            {
                "median": Figure(round(statistics.median(times_s), 2), unit="s"),
                "worst": Figure(round(max(times_s), 2), unit="s"),
                "beyond two periods": str(sum(s > 2 * given.period for s in times_s)),
            },
            len(times_s),
        )
        for what, times_s in found.items()
    ]
    result = Result(
        title=f"How soon what is new is scheduled: {given.engine}, period {given.period:g} s",
        columns=["median", "worst", "beyond two periods"],
        n=given.rounds,
        spread=None,
        seeds=None,
        kernel=platform.release(),
        rows=rows,
        **results.here(),
    )
    results.tell(result, given.keep)


@contextmanager
def controller(folder: Path, *options: str) -> Iterator[None]:
    run_dir = folder / "run"
    with (folder / "load.log").open("w") as log:
        load = subprocess.Popen(
            [
                sys.executable, "-c", MAIN, "load", "--run-dir", str(run_dir), "--race", "0",
                *OPTIONS, *WORST, *options,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        try:
            until(lambda: (run_dir / "control.sock").exists())
            yield
        finally:
            load.send_signal(signal.SIGTERM)
            if load.wait(60):
                print((folder / "load.log").read_text())


def until(condition: Callable[[], Any], every_s: float = 0.002) -> Any:
    end_s = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        if time.monotonic() > end_s:
            sys.exit(f"not within a minute: {condition}")
        time.sleep(every_s)
    return found


def operators(pid: int, prefix: str) -> list[procfs.Stat]:
    found = [procfs.stat(pid, tid) for tid in procfs.tids(pid)]
    return [stat for stat in found if stat is not None and stat.name.startswith(prefix)]


def of_lab(rounds: int, period_s: float) -> Iterator[tuple[str, float]]:
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    text = "workload new base_cost_us=100\nquery q\n"
    text += "".join(f"op new-{i} cost=1\n" for i in range(5))
    text += "".join(f"edge new-{i} new-{i + 1}\n" for i in range(4)) + "source new-0 rate=10\n"
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "new.graph")
        path.write_text(text)
        arguments = ["--utilisation", "0.05", "--cpus", "1", "--duration", "120"]
        options = ("--engine", "lab", "--period", f"{period_s:g}")
        with lab.running(path, arguments), controller(Path(name), *options):
            for _ in range(rounds):
                with lab.running(path, arguments) as engine:
                    new = until(functools.partial(operators_of, engine.pid))
                    until(functools.partial(are_set, engine.pid))
                    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
                    yield "new engine", now_s - max(stat.start_time for stat in new) * tick_s


def operators_of(pid: int, count: int = 5) -> list[procfs.Stat]:
    """All of the new engine's operators, or none."""
    found = operators(pid, "new-")
    return found if len(found) == count else []


def are_set(pid: int) -> bool:
    return all(stat.nice >= SET for stat in operators(pid, "new-"))


def of_flink(rounds: int, period_s: float) -> Iterator[tuple[str, float]]:
    from engines.cluster import ADAPTIVE, running

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running(folder / "cluster", settings=ADAPTIVE) as cluster:
            cluster.submit(name="old", prefix="old-", rate=50)
            options = ("--engine", "flink", "--period", f"{period_s:g}")
            with controller(folder, *options):
                until(lambda: all_set(cluster, "old-", 1), 0.05)
                for number in range(rounds):
                    prefix, query = f"n{number}-", f"new{number}"
                    job = cluster.submit(name=query, prefix=prefix, rate=50)
                    yield "new job", since_all_run(cluster, job, prefix, 5)
                    time.sleep(1 + number % 7 / 7)  # so that each comes at another part of a period
                    cluster.rescale(job, "work", 2)
                    yield "rescaled", since_all_run(cluster, job, prefix, 6)
                    cluster.cancel(job)
                    yield (
                        "cancelled",
                        since(functools.partial(is_gone, folder / "run", query), 0.02),
                    )
                    time.sleep(1 + number % 5 / 5)
                    job = cluster.submit(name=query, prefix=prefix, rate=50)
                    yield "resubmitted", since_all_run(cluster, job, prefix, 5)
                    cluster.cancel(job)
                    time.sleep(1 + number % 3 / 3)


def since_all_run(cluster: Any, job: str, prefix: str, count: int) -> float:
    until(lambda: len(threads(cluster, prefix)) == count and cluster.is_running(job), 0.05)
    return since(functools.partial(all_set, cluster, prefix, count), 0.01)


def since(condition: Callable[[], Any], every_s: float) -> float:
    began_s = time.monotonic()
    until(condition, every_s)
    return time.monotonic() - began_s


def is_gone(run_dir: Path, query: str) -> bool:
    return all(query not in engine["queries"] for engine in request(run_dir, "status")["engines"])


def threads(cluster: Any, prefix: str) -> list[procfs.Stat]:
    """Of the operators of a job."""
    return [
        stat
        for manager in cluster.task_managers
        for stat in operators(manager.pid, prefix) + operators(manager.pid, f"Source: {prefix}")
    ]


def all_set(cluster: Any, prefix: str, count: int) -> bool:
    found = threads(cluster, prefix)
    return len(found) >= count and all(stat.nice >= SET for stat in found)


if __name__ == "__main__":
    main()
