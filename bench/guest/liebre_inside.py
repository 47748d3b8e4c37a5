"""Runs in a guest: a query in Liebre's form, in phases under the OS and under sched-ctl.

    liebre_inside.py SHAPE LOAD ...    prints each phase as JSON, in lines that begin "@@ ".

Its capacity is measured first; the phases are those of `storm_inside`.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.guest.inside import go_first, say, threads
from bench.guest.storm_inside import WARM_S, Topology, Way, run
from engines.cluster import CACHE, JAVA, patiently
from engines.storm import finished
from sched_ctl.workloads import workload
from sched_ctl.workloads.demand import rate_scale

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path("/run/liebre")
WAYS = (
    *(Way(policy, "scx") for policy in ("qs", "hr", "balanced", "auto")),
    *(Way(policy, "nice") for policy in ("qs", "hr", "auto")),
)


@contextmanager
def running(shape: str) -> Iterator[tuple[Topology, float]]:
    """The query, and the half of what could arrive were nothing but its operators to cost."""
    out, rate = FOLDER / "out", FOLDER / "rate"
    out.mkdir(parents=True)
    path = ROOT / "bench" / "workloads" / f"{shape}.graph"
    graph = workload.load(path)
    half = rate_scale(graph, 0.5)
    rate.write_text(f"{half / 2:.1f}")
    given = (f"graph={path}", f"out={out}", f"rate_file={rate}", "period_ms=250")
    command = [*JAVA, "-Xmx384m", "-cp", str(CACHE / "liebre-query"), "LiebreQuery", *given]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=FOLDER) as process:
        try:
            operators = {operator.name[:15] for operator in graph.queries[0].operators}

            def role_of(label: str, comm: str) -> str:
                if label != "tm":
                    return label
                return "operators" if comm in operators else "other"

            query = Topology(f"liebre:{process.pid}", shape, out, rate, process.pid, role_of)

            def flows() -> int:
                end = time.monotonic()
                return len(finished(out, end - 1.0, end))

            patiently(flows, 120, "tuples that leave")
            say(f"{shape} runs: {sorted(comm for _, comm in threads(process.pid))}")
            yield query, half
        finally:
            process.kill()


def main() -> None:
    shape, loads = sys.argv[1], sys.argv[2:]
    go_first()
    with running(shape) as (query, half):
        time.sleep(WARM_S)
        capacity = query.capacity(0.4 * half)
        say(f"capacity {capacity:.0f}/s, {capacity / half / 2:.2f} of its operators' alone")
        for load in loads:
            run(query, [float(load) * capacity], f"{shape} at {load}", WAYS)


if __name__ == "__main__":
    main()
