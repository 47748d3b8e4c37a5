"""Runs in a guest: streams of real programs, in phases under the OS and sched-ctl.

    programs_inside.py ROOT SEED WAYS SCENARIO    prints phases as JSON, in lines that begin "@@ "

All of them have the one CPU. What is measured begins when the first stream has no lag any more, and
by `auto` when its race is over, or after `RACE_S`. How late that stream was while the order was
loaded is told beside it. SEED: when everything begins.
"""

import random
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.guest.inside import Load, Neighbour, Pulse, go_first, measure, say, show, threads
from bench.guest.programs_scenarios import SCENARIOS, Scenario
from bench.guest.programs_streams import FOLDER, Stream, prepared

DECLARED = FOLDER / "programs.toml"
SECONDS = 5.0
SETTLE_S = 2.0
RACE_S, LOOK_S = 45.0, 4.0
LAG_S = 30.0
NEIGHBOUR_S = 0.0005  # that a process which has nothing to do with it works, each 10 ms
HOW = ("--program", str(DECLARED), "--poll-timeout", "30", "--stale-after", "60")
LEAST_SLACK = ("--policy", "deadline", "--policy-option", "others=min-cost")


@dataclass(frozen=True)
class Way:
    """name: "os" = nothing is loaded. race: what is in force is found by one."""

    name: str
    arguments: tuple[str, ...] = ()
    race: bool = False


OS = Way("os")


def ways(scenario: Scenario) -> Iterator[Way]:
    targets = [f"{query}*={s * 1e3:.0f}ms" for query, s in scenario.targets.items()]
    wanted = [word for target in targets for word in ("--target", target)]
    classes = {**{f"{query}*": "constant" for query in scenario.targets}, "*": "constant"}
    in_words = ", ".join(f'"{pattern}": "{policy}"' for pattern, policy in classes.items())
    for backend in ("nice", "scx"):
        by = ("--race", "0", "--backend", backend)
        yield Way(f"a target, {backend}", (*wanted, *LEAST_SLACK, *by))
        option = ("--policy-option", f"classes={{{in_words}}}")
        yield Way(f"multi-class, {backend}", ("--policy", "multi-class", *option, *by))
        yield Way(f"auto, {backend}", ("--race", "2", "--backend", backend), race=True)


def without_lag(stream: Stream) -> None:
    """Wait until half of its frames are in time, if that comes to be."""
    end_s = time.monotonic() + LAG_S
    while time.monotonic() < end_s:
        time.sleep(1.0)
        now_s = time.monotonic()
        waits = stream.waits_s(now_s - 1.2, now_s - 0.2)
        if len(waits) and np.median(waits) < stream.deadline_s:
            return
    say(f"{stream.name} is still late")


def race_over(load: Load) -> str:
    """Wait for it. What is in force then."""
    end_s = time.monotonic() + RACE_S
    while True:
        time.sleep(LOOK_S)
        told = [rule["race"] for rule in load.ask("status")["policies"]]
        if all(race["mode"] == "kept" for race in told) or time.monotonic() > end_s:
            say("; ".join(race["words"] for race in told))
            return ", ".join(race["kept"] for race in told)


def begun(
    scenario: Scenario, way: Way, streams: Sequence[Stream], pulse: Pulse
) -> tuple[Load, dict[str, float]]:
    """`load`, in force, and what was lost until it was: ms."""
    began_s = time.monotonic()
    expected = sum(
        bool(re.fullmatch(names, comm))
        for label, names in scenario.operators.items()
        for stream in streams
        if label == (stream.label or stream.name)
        for _, comm in threads(stream.process.pid)
    )
    arguments = (*scenario.engines, *way.arguments)
    load = Load(arguments, 0 if way.race else expected, {}, HOW, first=False)
    end_s = time.monotonic()
    without_lag(streams[0])
    waits = streams[0].waits_s(began_s, end_s)
    found = {
        "a frame at most": float(waits.max(initial=0.0)) * 1e3,
        "nothing ran at most": pulse.longest_s(began_s, end_s) * 1e3,
    }
    say(f"loaded in {end_s - began_s:.1f} s: {found}")
    return load, found


def phase(scenario: Scenario, way: Way, streams: Sequence[Stream], load: Load | None) -> Any:
    def role_of(label: str, comm: str) -> str:
        if label not in scenario.operators:
            return label
        is_one = re.fullmatch(scenario.operators[label], comm)
        return f"{'operators' if is_one else 'helpers'} of {label}"

    pids = {stream.label or stream.name: stream.process.pid for stream in streams}
    neighbour = Neighbour(NEIGHBOUR_S)
    time.sleep(SETTLE_S)
    others = {} if load is None else {"the controller": load.process.pid}
    found = measure(way.name, SECONDS, {**pids, **others}, role_of, neighbour)
    neighbour.end()
    time.sleep(1.2)  # what Suricata tells comes once a second
    found["queries"], found["late"] = {}, {}
    for stream in streams:
        waits = stream.waits_s(found["begin"], found["end"])
        found["queries"][stream.name] = [round(float(wait) * 1e3, 3) for wait in waits]
        if stream.deadline_s:
            late = float((waits > stream.deadline_s).mean()) if len(waits) else 1.0
            found["late"][stream.name] = late
        for kind, figures in stream.more(found["begin"], found["end"]).items():
            found.setdefault(kind, {}).update(figures)
        if len(waits):
            say(
                f"{way.name}: {stream.name} {len(waits)} frames, mean {waits.mean() * 1e3:.1f} ms, "
                f"p99 {np.quantile(waits, 0.99) * 1e3:.1f}, {found['late'].get(stream.name, 0):.1%}"
                " late"
            )
    say({kind: found.get(kind) for kind in ("rates", "lost", "neighbour", "roles")})
    return found


def run(name: str, root: Path, seed: int, pattern: str) -> None:
    scenario, chance = SCENARIOS[name], random.Random(seed)
    time.sleep(chance.random())
    streams = scenario.streams(root)
    for stream in streams:
        say((stream.name, [comm for _, comm in threads(stream.process.pid)]))
    chosen = [way for way in ways(scenario) if re.fullmatch(pattern, way.name)]
    order = [OS, OS, *chosen, *reversed(chosen), OS]
    load: Load | None = None
    by, lost, kept, pulse = OS, dict[str, float](), "", Pulse()
    try:
        for at, way in enumerate(order):
            if way != by:
                kept = ""
                if load is not None:
                    load.end()
                load, lost, by = None, {}, way
                if way is not OS:
                    load, lost = begun(scenario, way, streams, pulse)
                    kept = race_over(load) if way.race else ""
            time.sleep(chance.random())
            found = phase(scenario, way, streams, load)
            if at:  # the first one begins with what starting left behind
                show({"scenario": name, "loading": lost, "kept": kept, "seed": seed, **found})
    finally:
        if load is not None:
            load.end()
        pulse.end()
        for stream in streams:
            stream.end()


def main() -> None:
    root, seed, pattern, name = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    go_first()
    FOLDER.mkdir()
    DECLARED.write_text(SCENARIOS[name].programs)
    run(name, prepared(root), seed, pattern)


if __name__ == "__main__":
    main()
