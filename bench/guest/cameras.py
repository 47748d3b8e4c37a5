"""A camera's GStreamer pipeline beside a heavy one, in a guest with exact time: ratios to the OS.

    ./dev run python -m bench.guest.cameras [--kernel 6.18] [--json FILE] [--ways PATTERN]

Needs gstreamer1.0-tools. What is shown: how long frames take from when they are due, how many are
later than the next one, and frames of the heavy pipeline. Ten phases take ten minutes.
"""

import argparse
import os
from pathlib import Path

from bench import results
from bench.guest.phases import ROOT, from_guest, keep, kept, show

LIMIT_S = 3600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kernel", default="6.18")
    parser.add_argument("--ways", default=".*", help="a regular expression for their names")
    parser.add_argument("--json", type=Path, help="keep all phases there, beside those of before")
    results.argument(parser)
    asked = parser.parse_args()
    os.chdir(ROOT)
    runs = kept(asked.json)
    keep(from_guest("cameras_inside", [asked.ways], asked.kernel, 1, LIMIT_S), runs, asked.json)
    show(runs, asked.kernel, asked.keep)


if __name__ == "__main__":
    main()
