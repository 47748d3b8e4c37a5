"""What the controller itself costs: time of a pass by stage, CPU share, memory, writes.

    ./dev run python -m bench.scale.controller [--operators 100 1000 10000] [--json FILE]

A helper process holds as many sleeping threads as there are operators (chains of five), so nice
values go to real threads. The engine is synthetic: reading it costs what reading the lab engine's
shared memory does, a few copies of numpy columns. Its queues and counters change at every poll, and
so do the priorities that follow from them. Each size runs in a process of its own, so that memory
is that of this size. CPU shares are process CPU time by wall time, start-up not counted. In a
guest with --icount (see `idle`) they count instructions, 2 ns each, and nobody else's work.
"""

import argparse
import asyncio
import json
import os
import platform
import re
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from bench import results
from bench.results import Figure, Result, Row
from sched_ctl.backends.in_use import Backends
from sched_ctl.backends.ladder import choose
from sched_ctl.backends.undo import journal as journals
from sched_ctl.config.settings import Section, Settings
from sched_ctl.controller import rule
from sched_ctl.controller.loop import Controller
from sched_ctl.decide import decision as scheduling
from sched_ctl.drivers import DriverKind, Target
from sched_ctl.drivers.threads import thread_of
from sched_ctl.kernel import procfs
from sched_ctl.metrics import catalogue as metrics
from sched_ctl.model.graph import Array
from sched_ctl.model.topology import (
    Edge,
    LogicalOperator,
    PhysicalOperator,
    Snapshot,
    Thread,
    Topology,
)

AIMS = {(100, 10.0): 0.005, (1000, 10.0): 0.02, (10_000, 1.0): 0.02}
CHAIN = 5
DRAWN = 16  # random numbers for so many polls


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("--operators", type=int, nargs="+", default=[100, 1000, 10_000])
    arguments.add_argument("--policies", nargs="+", default=["hr", "qs"])
    arguments.add_argument("--rates", type=float, nargs="+", default=[1.0, 10.0], metavar="HZ")
    arguments.add_argument("--seconds", type=float, default=5.0, help="for each figure")
    arguments.add_argument("--probe", action="store_true", help="costs from schedstat as well")
    arguments.add_argument("--json", type=Path, help="write the figures here")
    arguments.add_argument("--one", help=argparse.SUPPRESS)
    arguments.add_argument("--sleepers", type=int, help=argparse.SUPPRESS)
    results.argument(arguments)
    given = arguments.parse_args()
    if given.sleepers:
        sleepers(given.sleepers)
    elif given.one:
        print(json.dumps(one(**json.loads(given.one))))
    else:
        table(given)


def row(name: str, figure: dict[str, Any]) -> Row:
    return Row(
        name,
        {
            "CPU": Figure(100 * figure["cpu_share"], unit="%"),
            "RSS": Figure(figure["rss_bytes"] / 1e6, unit="MB"),
            "writes": Figure(figure["writes_per_s"], unit="/s"),
            "missed": str(figure["missed"]),
            **{stage: Figure(ms, unit="ms") for stage, ms in figure["stage_ms"].items()},
        },
    )


def table(given: argparse.Namespace) -> None:
    print(f"Linux {platform.release()}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
    figures, rows = [], []
    for operators in given.operators:
        for policy in given.policies:
            for rate in given.rates:
                job = {
                    "operators": operators,
                    "policy": policy,
                    "rate": rate,
                    "seconds": given.seconds,
                    "probe": given.probe,
                }
                done = subprocess.run(
                    [sys.executable, "-m", "bench.scale.controller", "--one", json.dumps(job)],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    check=False,
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                )
                if done.returncode:
                    sys.exit(done.stderr)
                figure = json.loads(done.stdout)
                figures.append(figure)
                rows.append(row(f"{operators:,} operators, {policy}, {rate:g} Hz", figure))
                if (aim := AIMS.get((operators, rate))) is not None:
                    rows[-1].figures["aim"] = f"under {aim:.1%}"
    result = Result(
        title="CPU time and memory of the controller, and milliseconds of a pass by stage",
        columns=list(rows[0].figures | {"aim": ""}),
        n=1,
        spread=None,
        seeds=None,
        kernel=platform.release(),
        rows=rows,
        **results.here(),
    )
    results.tell(result, given.keep)
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1) + "\n")


# --- one size ---------------------------------------------------------------------------------


class Synthetic:
    """An engine of `topology` whose operators process at steady, different rates."""

    def __init__(self, topology: Topology, probe: bool) -> None:
        self.target = Target("synthetic", "1")
        self.provides = frozenset({"tuples_in", "tuples_out", "queue_size", "head_age"})
        if not probe:
            self.provides |= {"cpu_time"}
        self.topology = topology
        n = len(topology.operators)
        # Drawn ahead, and not by numpy.random, which has 8 MB: the controller loads no such thing.
        random = Random(1)

        def drawn(draw: Callable[[], float]) -> Array:
            return np.array([draw() for _ in range(n)])

        self._rate = drawn(lambda: random.uniform(10, 1000))
        self._selectivity = drawn(lambda: random.uniform(0.3, 1.0))
        self._cost = 50e-6 * 2.0 ** drawn(lambda: random.randrange(5))
        # The cost measured over a moment is never quite the same: 5% here.
        self._noise = [drawn(lambda: random.uniform(0.95, 1.05)) for _ in range(DRAWN)]
        self._queues = [drawn(lambda: 1 + int(random.expovariate(0.36))) for _ in range(DRAWN)]
        self._ages = [drawn(lambda: random.expovariate(100)) for _ in range(DRAWN)]
        self._polls = 0
        self._cpu_s = np.zeros(n)
        self._polled_s = 0.0

    def poll(self, timeout_s: float) -> Snapshot:
        now_s = time.monotonic()
        n = self._polls = (self._polls + 1) % DRAWN
        tuples = self._rate * now_s
        noisy = self._cost * self._noise[n]
        self._cpu_s = self._cpu_s + self._rate * (now_s - self._polled_s) * noisy
        self._polled_s = now_s
        columns = {
            "tuples_in": tuples,
            "tuples_out": tuples * self._selectivity,
            "cpu_time": self._cpu_s,
            "queue_size": self._queues[n].copy(),
            "head_age": self._ages[n].copy(),
        }
        return Snapshot(self.topology, now_s, {k: columns[k] for k in self.provides})

    def close(self) -> None: ...


class Stages:
    """Time spent in functions, by stage; a stage inside another counts for itself alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inner = [0.0]

    def time(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            began_s = time.perf_counter()
            self._inner.append(0.0)
            try:
                return function(*arguments, **named)
            finally:
                took_s = time.perf_counter() - began_s
                self.seconds[stage] += took_s - self._inner.pop()
                self._inner[-1] += took_s

        return timed


def one(operators: int, policy: str, rate: float, seconds: float, probe: bool) -> dict[str, Any]:
    helper = subprocess.Popen(
        [sys.executable, "-m", "bench.scale.controller", "--sleepers", str(operators)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert helper.stdout is not None
        helper.stdout.readline()
        engine = Synthetic(topology_of(operators, helper.pid), probe)
        # CPU first, untouched by the clocks around the stages; then the stages.
        figure = asyncio.run(measured(engine, policy, rate, seconds, Stages()))
        stages = Stages()
        instrument(stages, engine)
        passes = asyncio.run(measured(engine, policy, rate, min(seconds, 3.0), stages))["passes"]
        order = ("poll", "metrics", "policy", "schedule", "apply")
        figure["stage_ms"] = {name: 1e3 * stages.seconds[name] / passes for name in order}
        return figure
    finally:
        helper.kill()
        helper.wait()


def instrument(stages: Stages, engine: Synthetic) -> None:
    engine.poll = stages.time("poll", engine.poll)  # type: ignore[method-assign]
    scheduling.evaluate = stages.time("metrics", metrics.evaluate)  # type: ignore[attr-defined]
    rule.decide = stages.time("schedule", scheduling.decide)  # type: ignore[attr-defined]
    made = rule.make_policy

    def timed(section: Section, backend: str) -> Any:
        from dataclasses import replace

        policy = made(section, backend)
        return replace(policy, urgency=stages.time("policy", policy.urgency))

    from sched_ctl.controller import loop

    loop.make_policy = timed  # type: ignore[attr-defined]
    INSTRUMENTED.append(stages)


INSTRUMENTED: list[Stages] = []


async def measured(
    engine: Synthetic, policy: str, rate: float, seconds: float, stages: Stages
) -> dict[str, Any]:
    run_dir = Path(f"/run/sched-ctl-bench-{os.getpid()}")
    run_dir.mkdir(mode=0o700, exist_ok=True)
    journal = journals.Journal(run_dir / "journal")
    backend, _ = choose("nice", {}, journal)
    if INSTRUMENTED:
        backend.apply = stages.time("apply", backend.apply)  # type: ignore[method-assign]
    settings = Settings(
        policy=(Section(policy=policy),), period=1 / rate, calm_period=0, cpu_limit=0, discover=5.0
    )
    kind = DriverKind("synthetic", lambda: [engine.target], lambda _: engine, prompt=True)
    controller = Controller(settings, {"synthetic": kind}, Backends(lambda *_: (backend, []), {}))
    try:
        await controller.start()
        # The first passes touch every thread, and a window that is not full yet moves faster.
        await controller.run(max(1 + settings.window, 3 / rate))
        [rule] = controller.rules
        stages.seconds.clear()
        passes, writes = rule.passes, rule.writes
        began_s, cpu_s = time.monotonic(), time.process_time()
        await controller.run(max(seconds, 3 / rate))
        took_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
        return {
            "operators": len(engine.topology.operators),
            "policy": policy,
            "rate_hz": rate,
            "cpu_share": cpu_s / took_s,
            "rss_bytes": peak_bytes(),
            "writes_per_s": (rule.writes - writes) / took_s,
            "passes": rule.passes - passes,
            "missed": rule.timer.missed,
            "problems": list(rule.applied.problems),
        }
    finally:
        controller.close()
        journal.close()
        for path in run_dir.iterdir():
            path.unlink()
        run_dir.rmdir()


def peak_bytes() -> int:
    """Most memory so far. Not that of getrusage(2), which has the parent's from before exec."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"^VmHWM:\s*(\d+) kB", status, re.MULTILINE)[1]) * 1024  # type: ignore[index]


def topology_of(operators: int, pid: int) -> Topology:
    tids = sorted(tid for tid in procfs.tids(pid) if tid != pid)[-operators:]
    threads = [thread_of(pid, tid) for tid in tids]
    made = tuple(
        PhysicalOperator(
            f"q{row // CHAIN}",
            f"op{row % CHAIN}",
            (f"op{row % CHAIN}",),
            threads=(thread or Thread(pid, 0, 0),),
        )
        for row, thread in enumerate(threads)
    )
    edges = tuple(Edge(row - 1, row) for row in range(len(made)) if row % CHAIN)
    logical = tuple(LogicalOperator(o.query, o.name) for o in made)
    return Topology("synthetic:1", made, edges, logical, edges)


def sleepers(count: int) -> None:
    """Hold threads that sleep, until standard input ends."""
    threading.stack_size(64 * 1024)
    end = threading.Event()
    for _ in range(count):
        threading.Thread(target=end.wait, daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
