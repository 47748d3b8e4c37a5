"""Runs in a guest: a query of a real Liebre, in phases under the OS and under sched-ctl.

    liebre_inside.py JAR PATTERN LOAD ...    prints each phase as JSON, in lines that begin "@@ ".

PATTERN: of names of ways. LOAD: a part of the capacity, or `step` (bench/guest/offered.py).
"""

import re
import sys
import time
from pathlib import Path

from bench.guest.inside import Neighbour, go_first, say, threads
from bench.guest.offered import RIVAL, Offered, Way, parts, run
from engines.cluster import patiently
from engines.liebre import OPERATORS, running

FOLDER = Path("/run/liebre")
BRANCHES = ("light", "heavy")
SECONDS = 6.0
START = 1200.0  # arrivals a second
WARM_S = 15.0
WAYS = (
    RIVAL,
    *(Way(policy, "nice") for policy in ("qs", "hr")),
    *(Way(policy, "scx") for policy in ("qs", "hr")),
)


def role_of(label: str, comm: str) -> str:
    if label != "tm":
        return label
    if comm in OPERATORS:
        return "operators"
    kinds = {"GC": ("GC", "VM "), "compilers": ("C1 ", "C2 ")}
    return next((kind for kind, starts in kinds.items() if comm.startswith(starts)), "other")


def main() -> None:
    jar, pattern, loads = sys.argv[1], re.compile(sys.argv[2]), sys.argv[3:]
    ways = [way for way in WAYS if pattern.fullmatch(way.name)]
    go_first()
    FOLDER.mkdir()
    with running(FOLDER) as process:
        how = ("--engine", "liebre", "--poll-timeout", "30", "--stale-after", "60")
        outs = {branch: FOLDER / "out" / branch for branch in BRANCHES}
        rival = ("liebre", str(process.pid))
        query = Offered(outs, FOLDER / "rate", process.pid, role_of, how, rival, {}, SECONDS)
        query.set(START)

        def flows() -> bool:
            end_s = time.monotonic()
            return bool(len(query.all_left(end_s - 1.0, end_s)))

        patiently(flows, 120, "tuples that leave")
        say(f"{jar} runs: {sorted(comm for _, comm in threads(process.pid))}")
        time.sleep(WARM_S)
        capacity = query.capacity(START)
        say(f"capacity {capacity:.0f}/s")
        neighbour = Neighbour(0.0003)
        try:
            for load in loads:
                rates = [part * capacity for part in parts(load)]
                run(query, rates, f"fork at {load}", ways, neighbour)
        finally:
            neighbour.end()


if __name__ == "__main__":
    main()
