"""A real Liebre under the BPF scheduler and by nice, in a guest with exact time: ratios to the OS.

    ./dev run python -m bench.guest.liebre --jar FILE [--kernel 6.18] [--runs 1] [--json FILE]
        [--ways PATTERN] [LOAD ...]

Liebre is at no registry: FILE is its jar, as `mvn package` makes it, with what
`mvn dependency:copy-dependencies` copies beside it. The query is tests/engines/jobs/Fork.java.
LOAD: parts of the capacity, which is measured first. Arrivals are the same in each phase.
"""

import argparse
import os
from pathlib import Path

from bench.guest.phases import ROOT, arguments, from_guest, keep, kept, show

LIMIT_S = 2400.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("loads", nargs="*", default=["0.8", "0.95"], metavar="LOAD")
    parser.add_argument("--jar", type=Path, required=True, help="of Liebre")
    parser.add_argument("--ways", default=".*", help="a regular expression for their names")
    arguments(parser)
    asked = parser.parse_args()
    jar = asked.jar.resolve()
    if not jar.is_file():
        parser.error(
            f"--jar: {jar} is no file; mvn package makes it, in target/ of Liebre's source"
        )
    os.chdir(ROOT)

    from engines.liebre import prepare

    prepare(jar)  # a guest sees nothing else, and can write nothing here
    runs = kept(asked.json)
    words = [jar.name, asked.ways, *asked.loads]
    limit_s = LIMIT_S * (1 + len(asked.loads))
    for _ in range(asked.runs):
        keep(from_guest("liebre_inside", words, asked.kernel, 1, limit_s), runs, asked.json)
    show(runs, asked.kernel, asked.keep)


if __name__ == "__main__":
    main()
