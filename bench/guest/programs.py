"""Declared programs in a guest with exact time, in phases under the OS and sched-ctl: ratios.

    ./dev run python -m bench.guest.programs [--kernel 6.18] [--seeds 1,2] [--ways PATTERN]
                                              [--json FILE] SCENARIO ...

Scenarios (programs_scenarios.py): real programs on one CPU, a light stream with a deadline beside a
heavy one. Each seed is a guest of its own. What is shown: how long the light stream's frames
take from when they are due, how many are late, what the others get done, and how long threads wait
that are not ordered. GStreamer is this machine's (gstreamer1.0-tools); the others come from Debian
13, and are unpacked beside the kernels of guests.
"""

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench import results
from bench.guest.phases import ROOT, from_guest, keep, kept, table
from bench.guest.programs_scenarios import SCENARIOS
from bench.results import Result

LIMIT_S = 7200.0  # of the guest's time, a scenario
WAYS = "(auto|a target), .*"  # and multi-class
PACKAGES = ("base-files", "base-passwd", "dash", "coreutils", "ffmpeg", "rsyslog", "suricata")
TOLD = re.compile(
    r"(?!all )(.* (mean|median|p99|late, %|lost, %)|.*/s|delay: .*|CPU: (helpers|the contr).*"
    r"|.* at most, ms)"
)


def programs() -> Path:
    """A root with the programs, made once and kept."""
    import roots

    return roots.root("amd64", PACKAGES, "programs")


def of(scenario: str, runs: Sequence[Sequence[dict[str, Any]]], kernel: str) -> Result:
    """The figures that matter here."""
    whole = table(scenario, runs, kernel)
    rows = [row for row in whole.rows if TOLD.fullmatch(row.name)]
    command = f"./dev run python -m bench.guest.programs {scenario}"
    title = f"{SCENARIOS[scenario].title}: the OS's own figures, and ratios to them"
    return msgspec.structs.replace(whole, title=title, rows=rows, command=command)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("scenarios", nargs="+", choices=[*SCENARIOS], metavar="SCENARIO")
    parser.add_argument("--kernel", default="6.18")
    parser.add_argument("--seeds", default="1", help="a guest each; none: only show")
    parser.add_argument("--ways", default=WAYS, help="a regular expression for their names")
    parser.add_argument("--json", type=Path, help="keep all phases there, beside those of before")
    results.argument(parser)
    asked = parser.parse_args()
    os.chdir(ROOT)
    runs = kept(asked.json)
    for seed in filter(None, asked.seeds.split(",")):
        for name in asked.scenarios:
            words = [str(programs()), seed, asked.ways, name]
            phases = from_guest("programs_inside", words, asked.kernel, 1, LIMIT_S, programs())
            keep(phases, runs, asked.json)
    for name in asked.scenarios:
        if name in runs:
            found = of(name, runs[name], asked.kernel)
            results.tell(found, asked.keep and f"{asked.keep}-{name}")


if __name__ == "__main__":
    main()
