"""A query in Liebre's form under the BPF scheduler and by nice, in a guest with exact time.

    ./dev run python -m bench.guest.liebre [--kernel 6.18] [--json FILE] SHAPE [LOAD ...]

SHAPE: of bench/workloads (etl, fork, stats, lr, vs), its operators as threads that sleep for 1 to
10 ms where they find no input. LOAD: parts of the capacity, which is measured first. Arrivals are
the same in each phase. What is shown: latency and tuples that leave, and how long threads wait for
a CPU. A load takes ten minutes.
"""

import argparse
import os
import subprocess
from pathlib import Path

from bench import results
from bench.guest.phases import ROOT, from_guest, keep, kept, show

LIMIT_S = 3600.0
SHAPES = ("etl", "fork", "stats", "lr", "vs")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("shape", metavar="SHAPE", choices=SHAPES)
    parser.add_argument("loads", nargs="*", default=["0.95"], metavar="LOAD")
    parser.add_argument("--kernel", default="6.18")
    parser.add_argument("--json", type=Path, help="keep all phases there, beside those of before")
    results.argument(parser)
    asked = parser.parse_args()
    os.chdir(ROOT)

    from engines.cluster import CACHE

    source = ROOT / "tests" / "engines" / "jobs" / "LiebreQuery.java"
    subprocess.run(["javac", "-d", CACHE / "liebre-query", source], check=True, timeout=120)
    runs = kept(asked.json)
    words = [asked.shape, *asked.loads]
    keep(from_guest("liebre_inside", words, asked.kernel, 1, LIMIT_S), runs, asked.json)
    show(runs, asked.kernel, asked.keep)


if __name__ == "__main__":
    main()
