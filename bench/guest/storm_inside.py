"""Runs in a guest: a topology on a real Storm, in phases under the OS and under sched-ctl.

    storm_inside.py SHAPE WAYS LOAD ...    prints each phase as JSON, in lines that begin "@@ ".

Its capacity is measured first. All of Storm has the one CPU, and so has the controller, which looks
once a second, as it does by default. Before each phase what waits leaves, and the arrivals begin
anew, the same in each. LOAD: a part of the capacity, or `step`: LOW of it, and HIGH from the middle
of what is measured.
"""

import contextlib
import math
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.guest.inside import (
    Load,
    Pulse,
    Rival,
    be_ordinary,
    go_first,
    measure,
    say,
    show,
    threads,
)
from engines.cluster import patiently
from engines.storm import Storm, finished, running
from sched_ctl.workloads import workload
from sched_ctl.workloads.demand import rate_scale

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path("/run/storm")
HOW = ("--engine", "storm", "--poll-timeout", "30", "--stale-after", "60", "--discover", "60")
SECONDS = 12.0
SETTLE_S = 4.0  # reports, rates and the first decisions
WARM_S = 40.0
LADDER_S = 4.0
LADDER = 1.1  # ratio of a rate to the one before
WAIT_S = 0.3  # mean latency that ends the ladder
FLUSH_S = 0.3
STOPPED_S = 0.1  # nothing ran for so long: then what came all at once decides, not we
TRIES = 3
STEP = "step"
LOW, HIGH = 0.7, 1.1  # the two loads of a step
RACE_S = 5.0  # a phase of a race
LEARN_S = 160.0  # for a race of two orders that ends in the third round, and some phases more
PATIENCE = {  # an emulated JVM takes a minute to start
    "nimbus.task.launch.secs": "1800",
    "nimbus.task.timeout.secs": "600",
    "nimbus.supervisor.timeout.secs": "1200",
    "supervisor.worker.start.timeout.secs": "1800",
    "supervisor.worker.timeout.secs": "600",
    "storm.zookeeper.session.timeout": "120000",
    "storm.zookeeper.connection.timeout": "120000",
}
DAEMONS = {  # by the last part of their main class
    ".nimbus.Nimbus": "Nimbus",
    ".supervisor.Supervisor": "the supervisor",
    ".DevZookeeper": "Zookeeper",
}
OPERATOR = re.compile(r"Thread-\d+-(?!__)")


@dataclass(frozen=True)
class Way:
    """ "" = the OS alone. race: the policy is found by a race, before the first phase begins."""

    policy: str = ""
    backend: str = ""
    options: tuple[str, ...] = ()
    race: bool = False

    @property
    def name(self) -> str:
        if not self.policy:
            return "os"
        words = (self.policy, self.backend, *self.options, "race" if self.race else "")
        return ", ".join(word for word in words if word)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of `sched-ctl load`, apart from the policy."""
        given = (("--backend-option", option) for option in self.options)
        race = ("--race", f"{RACE_S:g}") if self.race else ()
        return ("--backend", self.backend, *race, *(word for pair in given for word in pair))


RIVAL = Way("Lachesis' rule")
REAL_TIME = Way("CF 2023's rule")
RIVALS: dict[Way, tuple[str, ...]] = {RIVAL: (), REAL_TIME: ("--real-time",)}
ABOVE = ("nice.best=0", "nice.worst=10")  # no weight is kept
WAYS = {
    "all": (
        *(Way(policy, "scx") for policy in ("qs", "hr", "auto")),
        *(Way(policy, "nice") for policy in ("qs", "hr")),
    ),
    "queues": (RIVAL, Way("qs", "nice"), Way("qs", "nice", ABOVE), Way("auto", "nice")),
    # The race last: its phases lie in the middle, one after the other, so that it learns once.
    "judged": (
        RIVAL,
        *(Way(policy, "nice") for policy in ("hr", "qs")),
        REAL_TIME,
        Way("auto", "nice", race=True),
    ),
}


def role_of(label: str, comm: str) -> str:
    if label != "tm":
        return label
    if OPERATOR.match(comm):
        return "operators"
    kinds = {"GC": ("GC", "VM "), "compilers": ("C1 ", "C2 "), "Storm's own": ("Thread-",)}
    return next((kind for kind, starts in kinds.items() if comm.startswith(starts)), "other")


@dataclass
class Topology:
    """One that runs, and what arrives at it."""

    cluster: Storm
    shape: str
    out: Path
    rate: Path
    pid: int

    def offer(self, rate: float) -> None:
        """Let what waits leave, then have so many a second arrive."""
        self.rate.write_text("0")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            time.sleep(1.0)
            end = time.monotonic()
            if not len(finished(self.out, end - 0.9, end)):
                break
        self.set(rate)

    def set(self, rate: float) -> None:
        """Have so many a second arrive, from now on."""
        self.rate.write_text(f"{rate:.1f}")

    def capacity(self, start: float) -> float:
        """Arrivals a second that the engine is done with while more than it can do arrive.

        More than that is the highest rate of the ladder that it kept up with, for some seconds.
        """
        kept, tried = 0.0, start
        each: list[float] = []  # tuples that leave for one that arrives
        while True:
            self.offer(tried)
            time.sleep(LADDER_S)
            end = time.monotonic()
            waits = finished(self.out, end - LADDER_S / 2, end)
            mean_s = float(waits.mean()) if len(waits) else math.inf
            say(f"{tried:.0f}/s: {len(waits)} left after {mean_s * 1e3:.1f} ms")
            if mean_s > WAIT_S and kept:
                break
            if mean_s > WAIT_S:
                tried /= LADDER**3  # it is still warming up, or too much from the first
                continue
            each.append(len(waits) / (tried * LADDER_S / 2))
            kept, tried = tried, tried * LADDER
        self.offer(LADDER * kept)
        time.sleep(SETTLE_S + SECONDS)
        end = time.monotonic()
        left = len(finished(self.out, end - SECONDS, end))
        say(f"{LADDER * kept:.0f}/s: {left} left in {SECONDS:g} s, {np.mean(each):.2f} for each")
        return float(left / SECONDS / np.mean(each))


def started(cluster: Storm, shape: str) -> tuple[Topology, float]:
    """The topology, and the half of what could arrive were nothing but its operators to cost."""
    out, rate = FOLDER / f"out-{shape}", FOLDER / f"rate-{shape}"
    out.mkdir()
    graph = ROOT / "bench" / "workloads" / f"{shape}.graph"
    half = rate_scale(workload.load(graph), 0.5)
    rate.write_text(f"{half / 2:.1f}")
    cluster.submit(name=shape, graph=graph, out=out, rate_file=rate)
    (pid,) = cluster.workers(shape)

    def flows() -> int:
        end = time.monotonic()
        return len(finished(out, end - 1.0, end))

    patiently(flows, 120, "tuples that leave")
    say(f"{shape} runs: {sorted(comm for _, comm in threads(pid))}")
    return Topology(cluster, shape, out, rate, pid), half


def daemons() -> dict[str, int]:
    """The processes of Storm that are no workers, by what they are."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            words = path.read_text(errors="replace").split("\0")
            for main, name in DAEMONS.items():
                if words[0].endswith("java") and any(word.endswith(main) for word in words):
                    found[name] = int(path.parent.name)
    return found


def phases(ways: Sequence[Way]) -> Iterator[Way]:
    yield Way()
    yield from ways
    yield from reversed(ways)
    yield Way()


def alike(one: Way, other: Way) -> bool:
    """Whether the same controller serves both."""
    if one in RIVALS or other in RIVALS:
        return one == other
    return (one.backend, one.options, one.race) == (other.backend, other.options, other.race)


def phase(
    topology: Topology, rates: Sequence[float], way: Way, pids: Mapping[str, int], pulse: Pulse
) -> dict[str, Any]:
    """Measured from when what waited has left, and arrivals have begun anew.

    rates: what arrives a second, each for an equal part of what is measured.
    """
    topology.offer(rates[0])
    time.sleep(SETTLE_S)
    steps = [
        threading.Timer(SECONDS * part / len(rates), topology.set, (rate,))
        for part, rate in enumerate(rates)
        if part
    ]
    for step in steps:
        step.start()
    found = measure(way.name, SECONDS, pids, role_of)
    for step in steps:
        step.join()
    time.sleep(FLUSH_S)
    waits = finished(topology.out, found["begin"], found["end"])
    found["queries"] = {topology.shape: [round(float(w) * 1e3, 3) for w in waits]}
    found["stopped_s"] = pulse.longest_s(found["begin"] - SETTLE_S, found["end"])
    say(
        f"{way.name}: {len(waits)} left after {waits.mean() * 1e3:.1f} ms; "
        f"nothing ran for {found['stopped_s'] * 1e3:.0f} ms at most"
    )
    return found


def run(topology: Topology, rates: Sequence[float], scenario: str, ways: Sequence[Way]) -> None:
    pids = {"tm": topology.pid, **daemons()}
    load: Load | Rival | None = None
    by, pulse = Way(), Pulse()
    try:
        for way in phases(ways):
            if load is not None and not alike(way, by):
                load.end()
                load = None
            new = load is None
            topology.offer(0.5 * rates[0])
            if new:
                load, by = begun(topology, way, pids), way
            if load is not None:
                settled(load, topology, rates, way, new=new)
            others = {} if load is None else {"the controller": load.process.pid}
            for _ in range(TRIES):
                found = phase(topology, rates, way, {**pids, **others}, pulse)
                if found["stopped_s"] < STOPPED_S:
                    break
            show({"scenario": scenario, **found})
    finally:
        pulse.end()
        if load is not None:
            load.end()


def begun(topology: Topology, way: Way, pids: Mapping[str, int]) -> Load | Rival | None:
    """What orders the threads; None: the OS alone."""
    if way in RIVALS:
        return Rival((*RIVALS[way], "storm", topology.shape), topology.pid, topology.pid)
    if not way.policy:
        return None
    operators = sum(role_of("tm", comm) == "operators" for _, comm in threads(topology.pid))
    return Load(("--policy", way.policy, *way.arguments), operators, pids, HOW)


def settled(
    load: Load | Rival, topology: Topology, rates: Sequence[float], way: Way, *, new: bool
) -> None:
    if isinstance(load, Load) and not way.race:  # it would begin anew
        load.set(way.policy)
    be_ordinary(load.process.pid)
    if way.race and new:
        topology.offer(rates[0])
        time.sleep(LEARN_S)
    if way.race and isinstance(load, Load):
        say([rule["race"] for rule in load.ask("status")["policies"]])


def main() -> None:
    shape, ways, loads = sys.argv[1], WAYS[sys.argv[2]], sys.argv[3:]
    go_first()
    socket.sethostname("localhost")  # Storm looks its own name up
    with running(FOLDER, period_ms=250, settings=PATIENCE) as cluster:
        say("Storm is up")
        topology, half = started(cluster, shape)
        time.sleep(WARM_S)
        capacity = topology.capacity(0.4 * half)
        say(f"capacity {capacity:.0f}/s, {capacity / half / 2:.2f} of its operators' alone")
        for load in loads:
            parts = (LOW, HIGH) if load == STEP else (float(load),)
            run(topology, [part * capacity for part in parts], f"{shape} at {load}", ways)


if __name__ == "__main__":
    main()
