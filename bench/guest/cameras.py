"""A camera's pipeline beside a heavy one, in a guest with exact time: ratios to the OS.

    ./dev run python -m bench.guest.cameras [--program gstreamer|ffmpeg] [--kernel 6.18]
        [--json FILE] [--ways PATTERN]

Needs gstreamer1.0-tools, or for FFmpeg Debian's archive. What is shown: how long frames take from
when they are due, how many are later than the next one, and frames of the heavy pipeline. A phase
takes a minute, after a race up to six, many more on a busy machine.
"""

import argparse
import os
from pathlib import Path

from bench import results
from bench.guest import ffmpeg
from bench.guest.phases import ROOT, from_guest, keep, kept, show

LIMIT_S = 7200.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--program", choices=("gstreamer", "ffmpeg"), default="gstreamer")
    parser.add_argument("--kernel", default="6.18")
    parser.add_argument("--ways", default=".*", help="a regular expression for their names")
    parser.add_argument("--json", type=Path, help="keep all phases there, beside those of before")
    results.argument(parser)
    asked = parser.parse_args()
    os.chdir(ROOT)
    if asked.program == "ffmpeg":
        ffmpeg.fetch()  # a guest has no network
    runs = kept(asked.json)
    words = [asked.program, asked.ways]
    keep(from_guest("cameras_inside", words, asked.kernel, 1, LIMIT_S), runs, asked.json)
    show(runs, asked.kernel, asked.keep)


if __name__ == "__main__":
    main()
