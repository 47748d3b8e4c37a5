"""Two connectors of a Kafka Connect worker, in a guest with exact time: ratios to the OS.

    ./dev run python -m bench.guest.connect [--kernel 6.18] [--json FILE] [--ways PATTERN]

`alarms` has a light record now and then, `archive` many heavy ones at once each two seconds. The
broker is on the same CPU. What is shown: how long records take from when they are due until their
task is done with them, and how long threads wait for a CPU. To boot, start Kafka and warm up takes
ten minutes, a way two; those with `auto` race first, and take five.
"""

import argparse
import os
from pathlib import Path

from bench import results
from bench.guest.phases import ROOT, from_guest, keep, kept, show

LIMIT_S = 7200.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kernel", default="6.18")
    parser.add_argument("--ways", default=".*", help="a regular expression for their names")
    parser.add_argument("--json", type=Path, help="keep all phases there, beside those of before")
    results.argument(parser)
    asked = parser.parse_args()
    os.chdir(ROOT)

    from engines import kafka

    kafka.classes(kafka.download())  # a guest has no network, and can write nothing here
    runs = kept(asked.json)
    keep(from_guest("connect_inside", [asked.ways], asked.kernel, 1, LIMIT_S), runs, asked.json)
    show(runs, asked.kernel, asked.keep)


if __name__ == "__main__":
    main()
