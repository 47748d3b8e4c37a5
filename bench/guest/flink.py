"""A real Flink under the BPF scheduler, in a guest with exact time: ratios to the OS.

    ./dev run python -m bench.guest.flink [--kernel 6.18] [--cpus 1] [--runs 1] [--json FILE]
                                           SCENARIO ...

All scenarios (flink_scenarios.py) are run in one guest, `--runs` times; one may be named
more than once. In each, Flink runs jobs in phases under the kernel's own scheduler and under ours.
Arrivals are the same in each phase. What is shown: latency and throughput of each query; how long
threads wait for a CPU, by what they do for the engine; and how late a process wakes up that has
nothing to do with it. To boot takes three to six minutes, a scenario five to eight; more on a busy
machine.
"""

import argparse
import os
from collections.abc import Iterator, Sequence
from typing import Any

from bench.guest.flink_scenarios import SCENARIOS
from bench.guest.phases import ROOT, arguments, from_guest, keep, kept, show

LIMIT_S = 2400.0


def run(scenarios: Sequence[str], kernel: str, cpus: int) -> Iterator[dict[str, Any]]:
    """The phases of all scenarios, as bench/guest/flink_inside.py prints them, in one guest."""
    from engines import cluster

    cluster.job_jar(cluster.download())  # a guest has no network, and can write nothing here
    limit_s = LIMIT_S * (1 + len(scenarios))
    yield from from_guest("flink_inside", scenarios, kernel, cpus, limit_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO")
    parser.add_argument("--cpus", type=int, default=1)
    arguments(parser)
    asked = parser.parse_args()
    if unknown := set(asked.scenarios) - SCENARIOS.keys():
        parser.error(f"no scenario {', '.join(sorted(unknown))}; there are {', '.join(SCENARIOS)}")
    os.chdir(ROOT)
    runs = kept(asked.json)
    for _ in range(asked.runs):
        keep(run(asked.scenarios, asked.kernel, asked.cpus), runs, asked.json)
    show(runs, asked.kernel, asked.keep)


if __name__ == "__main__":
    main()
