"""Runs in a guest: a query at which tuples arrive by a schedule, in phases under the OS and others.

Its capacity is measured first. Before each phase what waits leaves, and the arrivals begin anew,
the same in each. All of the engine has the one CPU, and so has the controller, which looks once a
second, as it does by default.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.guest.inside import (
    Load,
    Neighbour,
    Pulse,
    Rival,
    be_ordinary,
    measure,
    say,
    show,
    threads,
)
from engines.storm import finished

__all__ = ["ABOVE", "REAL_TIME", "RIVAL", "Offered", "Way", "parts", "run"]

SECONDS = 12.0
SETTLE_S = 4.0  # reports, rates and the first decisions
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


@dataclass(frozen=True)
class Offered:
    """A query that runs, and what arrives at it.

    outs: a folder for each part of it that is told by itself, in which its sinks write. rate: the
    file with the arrivals a second. pid: of the process with its operators. pids: others, by what
    they are. how: of the engine, for `sched-ctl load`. rival: of it, for `bench.lachesis`.
    seconds: that are measured in a phase.
    """

    outs: Mapping[str, Path]
    rate: Path
    pid: int
    role_of: Callable[[str, str], str]
    how: tuple[str, ...]
    rival: tuple[str, ...]
    pids: Mapping[str, int]
    seconds: float = SECONDS

    def left(self, begin_s: float, end_s: float) -> dict[str, Any]:
        """Latencies (s) of the tuples that left between two moments."""
        return {name: finished(out, begin_s, end_s) for name, out in self.outs.items()}

    def all_left(self, begin_s: float, end_s: float) -> Any:
        return np.concatenate([*self.left(begin_s, end_s).values()])

    def offer(self, rate: float) -> None:
        """Let what waits leave, then have so many a second arrive."""
        self.rate.write_text("0")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            time.sleep(1.0)
            end = time.monotonic()
            if not len(self.all_left(end - 0.9, end)):
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
            waits = self.all_left(end - LADDER_S / 2, end)
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
        time.sleep(SETTLE_S + self.seconds)
        end = time.monotonic()
        left = len(self.all_left(end - self.seconds, end))
        each_s, made = left / self.seconds, float(np.mean(each))
        say(f"{LADDER * kept:.0f}/s: {each_s:.0f}/s left, {made:.2f} for each")
        return each_s / made


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
    query: Offered,
    rates: Sequence[float],
    way: Way,
    pids: Mapping[str, int],
    pulse: Pulse,
    neighbour: Neighbour | None,
) -> dict[str, Any]:
    """Measured from when what waited has left, and arrivals have begun anew.

    rates: what arrives a second, each for an equal part of what is measured.
    """
    query.offer(rates[0])
    time.sleep(SETTLE_S)
    steps = [
        threading.Timer(query.seconds * part / len(rates), query.set, (rate,))
        for part, rate in enumerate(rates)
        if part
    ]
    for step in steps:
        step.start()
    found = measure(way.name, query.seconds, pids, query.role_of, neighbour)
    for step in steps:
        step.join()
    time.sleep(FLUSH_S)
    left = query.left(found["begin"], found["end"])
    found["queries"] = {
        name: [round(float(wait) * 1e3, 3) for wait in waits] for name, waits in left.items()
    }
    found["stopped_s"] = pulse.longest_s(found["begin"] - SETTLE_S, found["end"])
    told = [f"{len(of)} of {name} after {of.mean() * 1e3:.1f} ms" for name, of in left.items()]
    say(f"{way.name}: {told}; nothing ran for {found['stopped_s'] * 1e3:.0f} ms at most")
    return found


def run(
    query: Offered,
    rates: Sequence[float],
    scenario: str,
    ways: Sequence[Way],
    neighbour: Neighbour | None = None,
) -> None:
    pids = {"tm": query.pid, **query.pids}
    load: Load | Rival | None = None
    by, pulse = Way(), Pulse()
    try:
        for way in phases(ways):
            if load is not None and not alike(way, by):
                load.end()
                load = None
            new = load is None
            query.offer(0.5 * rates[0])
            if new:
                load, by = begun(query, way, pids), way
            if load is not None:
                settled(load, query, rates, way, new=new)
            others = {} if load is None else {"the controller": load.process.pid}
            for _ in range(TRIES):
                found = phase(query, rates, way, {**pids, **others}, pulse, neighbour)
                if found["stopped_s"] < STOPPED_S:
                    break
            show({"scenario": scenario, **found})
    finally:
        pulse.end()
        if load is not None:
            load.end()


def begun(query: Offered, way: Way, pids: Mapping[str, int]) -> Load | Rival | None:
    """What orders the threads; None: the OS alone."""
    if way in RIVALS:
        return Rival((*RIVALS[way], *query.rival), query.pid, query.pid)
    if not way.policy:
        return None
    operators = sum(query.role_of("tm", comm) == "operators" for _, comm in threads(query.pid))
    return Load(("--policy", way.policy, *way.arguments), operators, pids, query.how)


def settled(
    load: Load | Rival, query: Offered, rates: Sequence[float], way: Way, *, new: bool
) -> None:
    if isinstance(load, Load) and not way.race:  # it would begin anew
        load.set(way.policy)
    be_ordinary(load.process.pid)
    if way.race and new:
        query.offer(rates[0])
        time.sleep(LEARN_S)
    if way.race and isinstance(load, Load):
        say([rule["race"] for rule in load.ask("status")["policies"]])


def parts(load: str) -> tuple[float, ...]:
    """Of the capacity: one for the whole of a phase, or each for an equal part of it."""
    return (LOW, HIGH) if load == STEP else (float(load),)
