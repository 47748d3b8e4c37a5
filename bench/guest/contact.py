"""What first contact costs a real Flink that takes all of a slow CPU, in a guest with exact time.

    ./dev run python -m bench.guest.contact [--kernel 6.18] [--keep NAME] [-- ARGUMENT ...]

ARGUMENT: of `sched-ctl load`, which is started beside it; as it comes without. An instruction takes
2 ns. What is shown, of each ten seconds: CPU time of the controller, with its start, and of both
Java machines; for how long at most all threads of one of them stood still (by its own log of
safepoints), and how often. Takes ten minutes.
"""

import argparse
import os
from typing import Any

from bench import results
from bench.guest.phases import ROOT, from_guest
from bench.results import Figure, Result, Row

LIMIT_S = 3600.0
CPU = {"load": "controller", "tm": "TaskManager", "jm": "JobManager"}


def row(stretch: dict[str, Any]) -> Row:
    """The figures of a stretch, as bench/guest/contact_inside.py prints it."""
    figures: dict[str, Figure | str] = {}
    for label, who in CPU.items():
        spent_s = stretch["cpu_s"].get(label)
        figures[f"CPU time of the {who}"] = "-" if spent_s is None else Figure(spent_s, unit="s")
    stops = [stop for of_one in stretch["stops_ms"].values() for stop in of_one]
    why, longest_ms = max(stops, key=lambda stop: stop[1], default=("", 0.0))
    figures["longest stop"] = Figure(longest_ms, unit="ms")
    figures["why"] = why
    figures["stops"] = str(len(stops))
    return Row(stretch["stretch"], figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kernel", default="6.18")
    parser.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="of sched-ctl load")
    results.argument(parser)
    asked = parser.parse_args()
    os.chdir(ROOT)
    from engines import cluster

    cluster.job_jar(cluster.download())  # a guest has no network, and can write nothing here
    seen = list(from_guest("contact_inside", asked.arguments, asked.kernel, 1, LIMIT_S))
    passed_s, in_force = 0.0, "not in force"
    for stretch in seen[1:]:
        if stretch["in_force_s"] is not None:
            in_force = f"in force after {passed_s + stretch['in_force_s']:.1f} s"
            break
        passed_s += stretch["seconds"]
    rows = [row(stretch) for stretch in seen]
    result = Result(
        title=f"`sched-ctl load` beside a Flink that takes all of one slow CPU; {in_force}",
        columns=list(rows[0].figures),
        n=1,
        spread=None,
        seeds=None,
        kernel=asked.kernel,
        rows=rows,
        **results.here(),
    )
    results.tell(result, asked.keep)


if __name__ == "__main__":
    main()
