"""What first contact costs a real Flink that takes all of a slow CPU, in a guest with exact time.

    ./dev run python -m bench.guest.contact [--runs 3] [--kernel 6.18] [--keep NAME] [-- ARG ...]

ARG: of `sched-ctl load`, which is started beside it; as it comes without. An instruction takes
2 ns. What is shown, of each ten seconds: CPU time of the controller, with its start, and of both
Java machines; for how long at most all threads of one of them stood still (by its own log of
safepoints, less the time in which nothing in the guest ran), how often, and for how long at most
for what it does not do of itself. Each run, in a guest of its own, takes five to ten minutes.
"""

import argparse
import compileall
import os
import re
import statistics
from collections.abc import Sequence
from typing import Any

from bench import results
from bench.guest.phases import ROOT, from_guest
from bench.results import Figure, Result, Row

LIMIT_S = 3600.0
# What a Java machine stops for of itself
OWN = re.compile(r"Collect|^G1|Cleanup|ICBuffer|Deoptimize|Biased|Handshake")
CPU = {"load": "controller", "tm": "TaskManager", "jm": "JobManager"}


def row(of: Sequence[dict[str, Any]]) -> Row:
    """The figures of a stretch in all runs, as bench/guest/contact_inside.py prints it."""
    figures: dict[str, Figure | str] = {}
    for label, who in CPU.items():
        spent_s = [one["cpu_s"][label] for one in of if label in one["cpu_s"]]
        figures[f"CPU time of the {who}"] = results.median(spent_s, "s") if spent_s else "-"
    stops = [[stop for mine in one["stops_ms"].values() for stop in mine] for one in of]
    longest = [max(mine, key=lambda stop: stop[1], default=("", 0.0)) for mine in stops]
    figures["longest stop"] = results.median([ms for _, ms in longest], "ms")
    figures["why"] = max(longest, key=lambda stop: stop[1])[0]
    figures["stops"] = results.median([len(mine) for mine in stops])
    asked = [[ms for why, ms in mine if not OWN.search(why)] for mine in stops]
    figures["longest stop for us"] = results.median(
        [max(mine, default=0.0) for mine in asked], "ms"
    )
    return Row(of[0]["stretch"], figures)


def in_force_s(seen: Sequence[dict[str, Any]]) -> float:
    """From the start of `load`; as long as it was looked at where it never was."""
    passed_s = 0.0
    for stretch in seen[1:]:
        if stretch["in_force_s"] is not None:
            return passed_s + float(stretch["in_force_s"])
        passed_s += stretch["seconds"]
    return passed_s


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--kernel", default="6.18")
    parser.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="of sched-ctl load")
    results.argument(parser)
    asked = parser.parse_args()
    os.chdir(ROOT)
    from engines import cluster

    cluster.job_jar(cluster.download())  # a guest has no network, and can write nothing here
    for folder in ("ctl", "drivers", "policies"):  # as an installation does
        compileall.compile_dir(ROOT / folder, quiet=1)
    runs = [
        list(from_guest("contact_inside", asked.arguments, asked.kernel, 1, LIMIT_S))
        for _ in range(asked.runs)
    ]
    rows = [row(of) for of in zip(*runs, strict=True)]
    after_s = statistics.median(map(in_force_s, runs))
    result = Result(
        title="`sched-ctl load` beside a Flink that takes all of one slow CPU; in force after "
        f"{after_s:.1f} s",
        columns=list(rows[0].figures),
        n=asked.runs,
        spread="middle: median; smallest-largest over runs",
        seeds=None,
        kernel=asked.kernel,
        rows=rows,
        **results.here(),
    )
    results.tell(result, asked.keep)


if __name__ == "__main__":
    main()
