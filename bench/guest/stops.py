"""How soon a query of a real Flink has caught up after a stop, under each policy and the OS.

    ./dev run python -m bench.guest.stops [--policies auto hr multi-class] [--rounds 2]
                                          [--stops restart ...] [--repeat 2] [--period 1]
                                          [--kernel 6.18] [--keep NAME] [--json FILE]

A query of a fifth of the CPU runs beside one that takes all it gets, in a guest with exact time.
The stops: a failure, after which it restarts from its checkpoint; a collector that runs ever again
for three seconds; five seconds in which no thread of the process runs. Phases are mirrored; the
first, under the OS, does not count. Ratios are of single stops to the OS's median.
"""

import argparse
import json
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import results
from bench.guest.phases import ROOT, from_guest
from bench.results import Result, Row
from sched_ctl.plugins import registry

LIMIT_S = 10800.0
DEFAULT = ("auto", "hr", "multi-class")
OS, EEVDF, OTHER = "os", "EEVDF", "CPU time of the other query"
STOPS = {
    "restart": "restart from a checkpoint",
    "collector": "collector's pauses",
    "frozen": "all stood still",
}


def order(policies: Sequence[str], rounds: int) -> list[str]:
    """Of phases; the first is left out."""
    forth = [OS, *policies]
    return [OS, *(name for n in range(rounds) for name in (forth if n % 2 else forth[::-1]))]


def table(phases: Sequence[Mapping[str, Any]]) -> list[Row]:
    """One row a figure: the OS's median, and of each policy's stops the ratios to that."""
    by: dict[str, dict[str, list[float]]] = {}
    for phase in phases[1:]:
        for stop, each in phase["stops"].items():
            took = [took_s / behind_s for behind_s, took_s in each]
            name = f"{STOPS[stop]}: caught up, for a second behind"
            by.setdefault(name, {}).setdefault(phase["phase"], []).extend(took)
        by.setdefault(OTHER, {}).setdefault(phase["phase"], []).append(phase["bulk"])
    rows = []
    for name, seen in by.items():
        base = statistics.median(seen[OS])
        own = results.median(seen.pop(OS), "CPUs" if name == OTHER else "s")
        ratios = {
            policy: results.median([value / base for value in values])
            for policy, values in seen.items()
        }
        rows.append(Row(name, {EEVDF: own, **ratios}))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = ["auto", *registry.policies()]
    parser.add_argument("--policies", nargs="+", choices=names, metavar="POLICY", default=DEFAULT)
    parser.add_argument("--stops", nargs="+", choices=STOPS, default=list(STOPS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=2, help="each stop in a phase (2)")
    parser.add_argument("--period", default="1", help="of the controller, s (1)")
    parser.add_argument("--kernel", default="6.18")
    parser.add_argument("--json", type=Path, help="where to keep what each stop brought")
    results.argument(parser)
    asked = parser.parse_args()
    os.chdir(ROOT)
    from engines import cluster

    cluster.job_jar(cluster.download())  # a guest has no network, and can write nothing here
    arguments = [
        asked.period,
        ",".join(asked.repeat * asked.stops),
        *order(asked.policies, asked.rounds),
    ]
    phases = []
    for phase in from_guest("stops_inside", arguments, asked.kernel, 1, LIMIT_S):
        phases.append(phase)
        if asked.json:
            asked.json.write_text(json.dumps(phases))
    found = table(phases)
    result = Result(
        title="How long a query of a fifth of the CPU needs after a stop beside a saturated one",
        columns=[EEVDF, *asked.policies],
        n=asked.rounds * asked.repeat,
        spread="median; smallest-largest of the stops",
        seeds=None,
        kernel=asked.kernel,
        rows=found,
        **results.here(),
    )
    results.tell(result, asked.keep)


if __name__ == "__main__":
    main()
