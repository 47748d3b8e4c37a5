"""Runs in a guest: a topology on a real Storm, in phases under the OS and under sched-ctl.

    storm_inside.py SHAPE WAYS LOAD ...    prints each phase as JSON, in lines that begin "@@ ".

LOAD: a part of the capacity, or `step` (bench/guest/offered.py).
"""

import contextlib
import re
import socket
import sys
import time
from pathlib import Path

from bench.guest.inside import go_first, say, threads
from bench.guest.offered import ABOVE, REAL_TIME, RIVAL, Offered, Way, parts, run
from engines.cluster import patiently
from engines.storm import Storm, finished, running
from sched_ctl.workloads import workload
from sched_ctl.workloads.demand import rate_scale

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path("/run/storm")
HOW = ("--engine", "storm", "--poll-timeout", "30", "--stale-after", "60", "--discover", "60")
WARM_S = 40.0
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


# The race last: its phases lie in the middle, one after the other, so that it learns once.
WAYS = {
    "all": (
        *(Way(policy, "scx") for policy in ("qs", "hr", "auto")),
        *(Way(policy, "nice") for policy in ("qs", "hr")),
    ),
    **{
        name: (*(Way(policy, by) for policy in ("qs", "balanced")), Way("auto", by, race=True))
        for name, by in (("default", "nice"), ("default-scx", "scx"))
    },
    "race": (Way("auto", "nice", race=True),),
    "rule": (RIVAL, Way("qs", "nice")),
    "queues": (RIVAL, Way("qs", "nice"), Way("qs", "nice", ABOVE), Way("auto", "nice")),
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


def started(cluster: Storm, shape: str) -> tuple[Offered, float]:
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
    return Offered({shape: out}, rate, pid, role_of, HOW, ("storm", shape), daemons()), half


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


def main() -> None:
    shape, ways, loads = sys.argv[1], WAYS[sys.argv[2]], sys.argv[3:]
    go_first()
    socket.sethostname("localhost")  # Storm looks its own name up
    with running(FOLDER, period_ms=250, settings=PATIENCE) as cluster:
        say("Storm is up")
        query, half = started(cluster, shape)
        time.sleep(WARM_S)
        capacity = query.capacity(0.4 * half)
        say(f"capacity {capacity:.0f}/s, {capacity / half / 2:.2f} of its operators' alone")
        for load in loads:
            run(query, [part * capacity for part in parts(load)], f"{shape} at {load}", ways)


if __name__ == "__main__":
    main()
