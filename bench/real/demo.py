"""`./dev demo --flink`: a light query of a real Flink beside one that is always behind.

Both run on one CPU, in a network namespace of their own, in turns under the OS's scheduling and
under what `sched-ctl load` takes on this machine. Takes three minutes, and 331 MB at the first run.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.real import flink
from bench.real.abba import OS, Phase, ratios
from bench.real.flink import AUTO
from sched_ctl.service.lock import others

MEAN, TAIL, DONE = "mean of light (ms)", "p99 of light (ms)", "heavy (1/s)"
FIGURES = (MEAN, TAIL, DONE)


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev demo --flink", description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=2, help="two phases of ours each (2)")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a phase (8)")
    given = parser.parse_args()
    if found := others():
        print(f"error: a controller runs, and would disturb it: pid {found[0]}", file=sys.stderr)
        sys.exit("hint: end it first: sched-ctl unload")
    print(
        "a real Flink on one CPU: 300 records/s beside a query at full speed; "
        f"{4 * given.cycles + 1} phases of {given.seconds:g} s, and a minute to start",
        file=sys.stderr,
    )
    case = flink.CASES["light"]
    case = replace(case, ways=(AUTO,))
    try:
        with tempfile.TemporaryDirectory() as folder:
            phases = list(flink.run(case, Path(folder), given.cycles, given.seconds, float("inf")))
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        print(f"error: Flink did not run: ...{str(error)[-800:]}", file=sys.stderr)
        sys.exit("hint: the machine may be too busy, or PyPI out of reach: try again later")
    for line in told(phases):
        print(line)


def told(phases: Sequence[Phase]) -> list[str]:
    """What became of both queries, in words; the last line is the one number."""
    of = {
        who: {
            name: statistics.median([p.figures[name] for p in phases if (p.way == OS.name) == os_])
            for name in FIGURES
        }
        for who, os_ in (("os", True), ("ours", False))
    }
    pairs = ratios(phases)[AUTO.name]
    mean = sorted(pairs[MEAN])
    return [
        f"light: {of['ours'][MEAN]:.3g} ms on average instead of {of['os'][MEAN]:.3g}; one in a "
        f"hundred takes more than {of['ours'][TAIL]:.3g} ms instead of {of['os'][TAIL]:.3g}",
        f"heavy: {statistics.median(pairs[DONE]):.2f} of the records that it handles under the OS",
        f"the number: {statistics.median(mean):.2f} of the OS's mean latency "
        f"({mean[0]:.2f} to {mean[-1]:.2f} in {len(mean)} phases)",
        "next: sched-ctl check, then sched-ctl load, which schedules the engines that run here",
    ]


if __name__ == "__main__":
    main()
