"""Runs in a guest: a real Flink, in phases under the OS and under the BPF scheduler.

    flink_inside.py SCENARIO ...    Prints each phase as JSON, in lines that begin with "@@ ".

Light queries must not wait for the controller here, nor the controller for them: while a phase is
measured it sleeps (its period is longer), so what is compared is the order of threads alone.
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.guest import wakers
from bench.guest.flink_scenarios import SCENARIOS, Phase
from bench.guest.inside import (
    FIRST,
    NORMAL,
    Hog,
    Load,
    Neighbour,
    Pulse,
    Rival,
    be_ordinary,
    go_first,
    measure,
    put,
    say,
    show,
    threads,
)
from engines.cluster import PROMETHEUS, Cluster, patiently, running

FOLDER = Path("/run/flink")
WARM_S = 1.5
TRACE_S = 2.0
LATE_NS = 100_000_000
ALL = 10_000  # tuples/s that no query here can do: it takes all that it gets
FLUSH_S = 0.3  # the jobs write down what left with a delay of 0.1 s
ROLES = {  # first characters of names, of which the kernel keeps 15
    "flusher": ("OutputFlusher",),
    "fetcher": ("Source Data Fet",),
    "timer": ("Time Trigger", "System Time Tri"),
    "rpc": ("flink-pekko", "flink-akka", "flink-scheduler"),
    "network": ("Flink Netty",),
    "vm": ("VM Thread", "VM Periodic Tas", "GC Thread", "G1 "),
    "jit": ("C1 Compiler", "C2 Compiler"),
    "metrics": ("flink-metrics", "Flink-Metric", "prometheus-http"),
    "operators of SQL": ("Rank", "Deduplicate", "Local", "Global", "Window", "Join", "Group"),
}


def role_of(comm: str, jobs: Mapping[str, Any]) -> str:
    job = comm.removeprefix("Source: ").partition("-")[0]
    if job in jobs and "-" in comm:
        return f"operators of {job}"
    found = (role for role, starts in ROLES.items() if comm.startswith(starts))
    return next(found, "other threads")


def role_in(jobs: Mapping[str, Any]) -> Callable[[str, str], str]:
    def role(label: str, comm: str) -> str:
        if label == "jm":
            return "JobManager"
        return role_of(comm, jobs) if label == "tm" else label

    return role


def trace(pid: int, jobs: Mapping[str, Any]) -> dict[str, Any]:
    """Of each query's operators: who ended their waits, how often, and what that took, s."""
    roles = {tid: role_of(comm, jobs) for tid, comm in threads(pid)}

    def kind(tid: int, waker: int) -> str | None:
        woken, by = roles.get(tid, ""), roles.get(waker, "no thread of the engine")
        if not woken.startswith("operators of"):
            return None
        return f"{woken}, woken by " + ("their own" if by == woken else by)

    with wakers.tracing():
        time.sleep(TRACE_S)
    with (wakers.TRACEFS / "trace").open(errors="replace") as lines:
        found = wakers.sums(wakers.read(lines), kind)
    return {name: [w.count, w.length_s, w.held_up_s] for name, w in sorted(found.items())}


# One scenario, in the order in which it happens.
def run(cluster: Cluster, name: str) -> None:  # noqa: PLR0915
    """Run the jobs of a scenario and measure its phases; leaves the cluster without jobs."""
    scenario = SCENARIOS[name]
    engine = {"tm": cluster.task_managers[0].pid, "jm": cluster.pid}
    pids = dict(engine)
    outs = {job: Path(f"/tmp/{name}-{time.monotonic_ns()}-{job}.txt") for job in scenario.jobs}
    paced = {job: outs[job] for job, given in scenario.jobs.items() if given["rate"] < ALL}
    put(pids, FIRST)
    for job, arguments in scenario.jobs.items():
        file = {scenario.file.get(job, "out"): outs[job]}
        cluster.submit(scenario.main, name=job, **file, **{**scenario.all_jobs, **arguments})
    put(pids, NORMAL)
    if scenario.real_time_input:
        for tid, comm in threads(pids["tm"]):
            if comm.startswith(ROLES["fetcher"]):
                os.sched_setscheduler(tid, *FIRST)
    operators = [
        comm
        for _, comm in threads(pids["tm"])
        if role_of(comm, scenario.jobs).startswith("operators of")
    ]
    say(f"{len(operators)} operator threads: {sorted(operators)}")
    neighbour, pulse = Neighbour(0.0003), Pulse()
    pids["neighbour"] = neighbour.pid
    hog = Hog() if scenario.hog else None
    if hog is not None:
        pids["hog"] = hog.pid
    time.sleep(3.0)
    load: Load | Rival | None = None
    try:
        for phase in scenario.phases:
            load = following(load, phase, len(operators), pids)
            if isinstance(load, Load):
                if not phase.measured:
                    load.mine(NORMAL)
                    time.sleep(WARM_S)
                    continue
                before = load.ask("dispatch").get("counters", {})
                # Who asks keeps a controller busy for a while, beyond its limit.
                in_force = {} if phase.awake else load.in_force()
                load.mine(NORMAL)
            if not scenario.saturated or scenario.stop_s:
                patiently(lambda: caught_up(paced), 1, "no backlog")
            time.sleep(scenario.settle_s)
            if scenario.stop_s:
                os.kill(pids["tm"], signal.SIGSTOP)
                time.sleep(scenario.stop_s)
                os.kill(pids["tm"], signal.SIGCONT)
            others = {} if load is None else {"the controller": load.process.pid}
            role = role_in(scenario.jobs)
            found = {
                "scenario": name,
                **measure(phase.name, scenario.seconds, {**pids, **others}, role, neighbour),
            }
            if scenario.trace:
                found["waits"] = trace(pids["tm"], scenario.jobs)
            found["stopped_s"] = pulse.longest_s(found["begin"] - scenario.settle_s, found["end"])
            say(f"{phase.name}: nothing ran for {found['stopped_s'] * 1e3:.0f} ms at most")
            if isinstance(load, Load):
                found["in_force"] = in_force
                load.mine(FIRST)
                counters = load.ask("dispatch").get("counters", {})
                if phase.learns_s:
                    say([rule["race"] for rule in load.ask("status")["policies"]])
                found["counters"] = {
                    name: value - before.get(name, 0)
                    for name, value in counters.items()
                    if value != before.get(name, 0)
                }
            report(found, outs)
    finally:
        if load is not None:
            load.end()
        neighbour.end()
        pulse.end()
        if hog is not None:
            hog.end()
    put(engine, FIRST)
    cluster.cancel_all()
    put(engine, NORMAL)


def following(
    load: Load | Rival | None, phase: Phase, operators: int, pids: Mapping[str, int]
) -> Load | Rival | None:
    """What is at work in this phase, which may be what is at work already."""
    wanted = phase.rival or (phase.load if phase.policy else None)
    if load is not None and load.arguments != wanted:
        load.end()
        load = None
    if phase.rival and load is None:
        load = Rival(phase.rival, pids["jm"], pids["tm"], {"jm": pids["jm"], "tm": pids["tm"]})
        load.mine(NORMAL)
    new = load is None
    if phase.policy and load is None:
        load = Load(phase.load, operators, pids)
    if isinstance(load, Load) and not phase.learns_s:  # a race would begin anew
        load.set(phase.policy, phase.options)
    if load is not None and new and (phase.awake or phase.rival):
        be_ordinary(load.process.pid)
    if load is not None and phase.learns_s and new:
        load.mine(NORMAL)
        time.sleep(phase.learns_s)
    return load


def caught_up(outs: Mapping[str, Path]) -> bool:
    """Whether what left last, of each job, was not late: loading leaves a backlog."""
    for out in outs.values():
        lines = out.read_bytes()[-200:].split(b"\n")[1:-1]
        left, due = map(int, lines[-1].split()) if lines else (LATE_NS, -1)
        if left - due > LATE_NS:
            return False
    return True


def report(phase: dict[str, Any], outs: Mapping[str, Path]) -> None:
    """Print what was seen in the phase, with the latencies (ms) of what left in it."""
    time.sleep(FLUSH_S)
    phase["queries"] = {}
    for job, out in outs.items():
        text = out.read_bytes()
        whole = text[: text.rfind(b"\n") + 1].split()
        table = np.array(whole, dtype=np.int64).reshape(-1, 2) / 1e9
        left, due = table[(table[:, 0] >= phase["begin"]) & (table[:, 0] < phase["end"])].T
        phase["queries"][job] = [round(float(x) * 1e3, 3) for x in left - due]
        if SCENARIOS[phase["scenario"]].stop_s:
            late = np.flatnonzero(left - due > LATE_NS / 1e9)
            last = left[late[-1]] if len(late) else phase["begin"]
            caught_up_s = float(last - phase["begin"])
            phase.setdefault("caught_up_s", {})[job] = caught_up_s
            each = np.histogram(left - phase["begin"], np.arange(0, 21, 2))[0] // 2
            say(f"{phase['phase']}: {job} caught up in {caught_up_s:.2f} s, {each.tolist()}/s")
    show(phase)


def main() -> None:
    go_first()
    socket.sethostname("localhost")  # Flink looks its own name up
    names = sys.argv[1:]
    settings = {key: value for name in names for key, value in SCENARIOS[name].cluster.items()}
    with running(FOLDER, (PROMETHEUS,), settings=settings) as cluster:
        say("Flink is up")
        for name in names:
            run(cluster, name)


if __name__ == "__main__":
    main()
