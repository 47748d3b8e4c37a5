"""Runs in a guest: a real Flink, in phases under the OS and under the BPF scheduler.

    flink_inside.py SCENARIO ...    Prints each phase as JSON, in lines that begin with "@@ ".

Light queries must not wait for the controller here, nor the controller for them: while a phase is
measured it sleeps (its period is longer), so what is compared is the order of threads alone.
"""

import contextlib
import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench import wakers
from bench.flink_scenarios import SCENARIOS, SECONDS, Phase, Scenario
from engines.cluster import PROMETHEUS, Cluster, patiently, running
from sched_ctl.controller.socket import request
from sched_ctl.kernel import schedext

FOLDER = Path("/run/flink")
RUN_DIR = Path("/run/sched-ctl")
PROGRAM = [sys.executable, "-c", "from sched_ctl.cli import main; main()"]
FIRST = (os.SCHED_FIFO, os.sched_param(1))
NORMAL = (os.SCHED_OTHER, os.sched_param(0))
SETTLE_S = 1.0
PAUSE_S = 0.3
WARM_S = 1.5
TRACE_S = 2.0
LATE_NS = 100_000_000
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
RECORDS = 1 << 16
LONGEST_LINE = 16000
began_s = time.monotonic()


def say(what: object) -> None:
    print(f"{time.monotonic() - began_s:7.1f} s  {what}", flush=True)


def threads(pid: int) -> Iterator[tuple[int, str]]:
    for path in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            yield int(path.name), (path / "comm").read_text().rstrip("\n")


def role_of(comm: str, jobs: Mapping[str, Any]) -> str:
    job = comm.removeprefix("Source: ").partition("-")[0]
    if job in jobs and "-" in comm:
        return f"operators of {job}"
    found = (role for role, starts in ROLES.items() if comm.startswith(starts))
    return next(found, "other threads")


def sample(pids: Mapping[str, int]) -> dict[tuple[str, int], tuple[str, list[int]]]:
    """Of each thread: its name, and CPU time, delay (ns) and runs so far."""
    found = {}
    for label, pid in pids.items():
        for tid, comm in threads(pid):
            with contextlib.suppress(OSError, ValueError):
                text = Path(f"/proc/{pid}/task/{tid}/schedstat").read_text()
                found[label, tid] = comm, [int(word) for word in text.split()]
    return found


@contextlib.contextmanager
def unobtrusive() -> Iterator[None]:
    """To look at all threads takes 50 ms, for which the rest would wait if we went first."""
    os.sched_setscheduler(0, *NORMAL)
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def system() -> tuple[int, list[int]]:
    text = Path("/proc/stat").read_text()
    switches = int(text.partition("ctxt ")[2].split()[0])
    return switches, [int(word) for word in text.split("\n", 1)[0].split()[1:9]]


class Neighbour:
    """A process that has nothing to do with the engine: it works a little, ever again."""

    PERIOD_S = 0.01

    def __init__(self, work_s: float) -> None:
        self._memory = mmap.mmap(-1, 16 * RECORDS)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._live(work_s)
            finally:
                os._exit(1)

    def _live(self, work_s: float) -> None:
        due, at = time.monotonic(), 1
        while True:
            due = max(due + self.PERIOD_S, time.monotonic()) if work_s < self.PERIOD_S else due
            time.sleep(max(0.0, due - time.monotonic()))
            woken = time.monotonic()
            until = time.thread_time() + work_s
            while time.thread_time() < until:
                pass
            self._memory[16 * at : 16 * at + 16] = struct.pack("dd", due, woken)
            at = at % (RECORDS - 1) + 1

    def late_s(self, begin_s: float, end_s: float) -> Any:
        """How late it woke up, each time within this period."""
        seen = np.frombuffer(self._memory, dtype=np.float64).reshape(-1, 2).copy()
        due, woken = seen[(seen[:, 0] >= begin_s) & (seen[:, 0] < end_s)].T
        return woken - due

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


class Hog:
    """A process that uses all the CPU it gets."""

    def __init__(self) -> None:
        self.pid = os.fork()
        while self.pid == 0:
            pass

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def niced(pid: int) -> Iterator[bool]:
    """Of each thread: whether it was given another nice value than 0."""
    for tid, _ in threads(pid):
        with contextlib.suppress(OSError):
            yield os.getpriority(os.PRIO_PROCESS, tid) != 0


def put(pids: Mapping[str, int], how: tuple[int, os.sched_param]) -> None:
    """What the controller asks, first: else loading takes minutes of a saturated guest."""
    for label, pid in pids.items():
        for tid, comm in threads(pid):
            if label == "jm" or comm.startswith(("prometheus-http", "HTTP-Dispatcher")):
                with contextlib.suppress(OSError):
                    os.sched_setscheduler(tid, *how)


class Load:
    """`sched-ctl load`, in force."""

    def __init__(self, arguments: tuple[str, ...], expected: int, pids: Mapping[str, int]) -> None:
        self.arguments = arguments
        self.asked = {label: pids[label] for label in ("tm", "jm")}
        put(self.asked, FIRST)
        self.log = Path(f"/tmp/load-{time.monotonic_ns()}.log")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    *(*PROGRAM, "load", "--engine", "flink", "--backend", "scx"),
                    *("--period", "30", "--discover", "600", "--poll-timeout", "30"),
                    *("--stale-after", "300", *arguments),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: os.sched_setscheduler(0, *FIRST),
            )

        def ready() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            if not (RUN_DIR / "control.sock").exists():
                return False
            if "nice" in arguments:
                return sum(niced(pids["tm"])) >= 2
            rows = self.ask("dispatch").get("threads", [])
            return len(rows) >= expected and sum(r["runs"] > 0 for r in rows) >= 0.7 * expected

        patiently(ready, 60, "the operators' threads run by the scheduler")
        time.sleep(2.0)
        say(f"loaded: {' '.join(arguments)}")

    def ask(self, verb: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        found: dict[str, Any] = request(RUN_DIR, verb, dict(arguments or {}), timeout_s=600)
        return found

    def set(self, phase: Phase) -> None:
        """Have this policy in force, by what was seen of the engine in the last seconds.

        Each change makes the controller ask the engine, which its period would make it do only in
        30 s, and rates need two answers.
        """
        self.mine(FIRST)
        for _ in range(2):
            self.ask("policy-set", {"policy": phase.policy, "options": dict(phase.options)})
            time.sleep(1.5)

    def in_force(self) -> dict[str, dict[str, float | None]]:
        """Of each operator: its urgency, and what the policy knows of it."""
        found: dict[str, dict[str, float | None]] = {}
        rows: Any = self.ask("explain", {"what": "*"})
        for row in rows:
            known = {entry["metric"]: entry["value"] for entry in row["metrics"]}
            found[row["operator"]] = {**row["urgency"], **known}
        return found

    def mine(self, how: tuple[int, os.sched_param]) -> None:
        put(self.asked, how)

    def end(self) -> None:
        self.mine(FIRST)
        self.process.send_signal(signal.SIGINT)
        self.process.wait(600)
        print(self.log.read_text()[-1500:], flush=True)
        put(self.asked, NORMAL)
        patiently(lambda: schedext.state() in (None, "disabled"), 10, "detached")


def measure(
    scenario: Scenario, phase: Phase, pids: Mapping[str, int], neighbour: Neighbour | None
) -> dict[str, Any]:
    time.sleep(SETTLE_S)
    with unobtrusive():
        before, (switches, cpu) = sample(pids), system()
    sampled_s = time.monotonic()
    time.sleep(PAUSE_S)
    begin_s = time.monotonic()
    time.sleep(SECONDS)
    end_s = time.monotonic()
    span_s = end_s - sampled_s
    with unobtrusive():
        after, (switches_now, cpu_now) = sample(pids), system()
    roles: dict[str, list[int]] = {}
    for key, (comm, now) in after.items():
        was = before.get(key, (comm, [0, 0, 0]))[1]
        role = key[0] if key[0] not in ("tm", "jm") else role_of(comm, scenario.jobs)
        if key[0] == "jm":
            role = "JobManager"
        total = roles.setdefault(role, [0, 0, 0])
        for i in range(3):
            total[i] += now[i] - was[i]
    operators = {
        f"{comm} {tid}": [b - a for a, b in zip(before[label, tid][1], now, strict=True)]
        for (label, tid), (comm, now) in after.items()
        if (label, tid) in before and role_of(comm, scenario.jobs).startswith("operators of")
    }
    spent = [b - a for a, b in zip(cpu, cpu_now, strict=True)]
    found = {
        "phase": phase.name,
        "begin": begin_s,
        "end": end_s,
        "span": span_s,
        "switches": (switches_now - switches) / span_s,
        "idle": (spent[3] + spent[4]) / max(1, sum(spent)),
        "roles": {name: total for name, total in roles.items() if total[2]},
        "operators": operators,
    }
    if neighbour is not None:
        late_ms = neighbour.late_s(begin_s, end_s) * 1e3
        found["neighbour"] = [
            len(late_ms),
            float(late_ms.mean()),
            float(np.quantile(late_ms, 0.99)),
        ]
    if scenario.trace:
        found["waits"] = trace(pids["tm"], scenario.jobs)
    say(phase.name)
    return found


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


def run(cluster: Cluster, name: str) -> None:
    """Run the jobs of a scenario and measure its phases; leaves the cluster without jobs."""
    scenario = SCENARIOS[name]
    engine = {"tm": cluster.task_managers[0].pid, "jm": cluster.pid}
    pids = dict(engine)
    outs = {job: Path(f"/tmp/{name}-{time.monotonic_ns()}-{job}.txt") for job in scenario.jobs}
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
    neighbour = Neighbour(0.0003)
    pids["neighbour"] = neighbour.pid
    hog = Hog() if scenario.hog else None
    if hog is not None:
        pids["hog"] = hog.pid
    time.sleep(3.0)
    load: Load | None = None
    try:
        for phase in scenario.phases:
            if load is not None and (phase.load != load.arguments or not phase.policy):
                load.end()
                load = None
            if phase.policy:
                if load is None:
                    load = Load(phase.load, len(operators), pids)
                load.set(phase)
                if not phase.measured:
                    load.mine(NORMAL)
                    time.sleep(WARM_S)
                    continue
                before = load.ask("dispatch").get("counters", {})
                in_force = load.in_force()
                load.mine(NORMAL)
            if not scenario.saturated:
                patiently(lambda: caught_up(outs), 1, "no backlog")
            found = {"scenario": name, **measure(scenario, phase, pids, neighbour)}
            if load is not None:
                found["in_force"] = in_force
                load.mine(FIRST)
                counters = load.ask("dispatch").get("counters", {})
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
        if hog is not None:
            hog.end()
    put(engine, FIRST)
    cluster.cancel_all()
    put(engine, NORMAL)


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
    shown = json.dumps(phase)
    for at in range(0, len(shown), LONGEST_LINE):  # a console cuts lines of more than 32 KiB
        print("@@ " + shown[at : at + LONGEST_LINE], flush=True)


def main() -> None:
    # What is started is normal again; but the samples are taken when they are due.
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    socket.sethostname("localhost")  # Flink looks its own name up
    names = sys.argv[1:]
    settings = {key: value for name in names for key, value in SCENARIOS[name].cluster.items()}
    with running(FOLDER, (PROMETHEUS,), settings=settings) as cluster:
        say("Flink is up")
        for name in names:
            run(cluster, name)


if __name__ == "__main__":
    main()
