"""A real Storm under the BPF scheduler and by nice, in a guest with exact time: ratios to the OS.

    ./dev run python -m bench.guest.storm [--kernel 6.18] [--runs 1] [--json FILE] [--ways WAYS]
        [--skip-first] SHAPE [LOAD ...]

SHAPE: of bench/workloads (chain, etl, fork, stats, lr, vs). WAYS: `rule` sets `qs` by nice beside
the published rule of Lachesis (bench/lachesis.py), `queues` others, too; `judged` sets the race by
nice beside policies that are named, and beside both published rules; `default` and `default-scx`
set it beside those that it may take, `race` sets it alone. LOAD: parts of the capacity, which is
measured first, or `step`: .7 of it, then 1.1. Arrivals are the same in each phase. Shown are
latency and tuples that leave, and how long threads wait for a CPU, by what they do for the engine.
To boot and start Storm takes ten minutes, a load as long.
"""

import argparse
import os

from bench.guest.phases import ROOT, arguments, from_guest, keep, kept, show, without_first

LIMIT_S = 2400.0
SHAPES = ("chain", "etl", "fork", "stats", "lr", "vs")
WAYS = ("all", "default", "default-scx", "judged", "queues", "race", "rule")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("shape", metavar="SHAPE", choices=SHAPES)
    parser.add_argument("loads", nargs="*", default=["0.95"], metavar="LOAD")
    parser.add_argument("--ways", choices=WAYS, default="all")
    parser.add_argument(
        "--skip-first",
        action="store_true",
        help="leave out each way's very first phase, in which the virtual machine warms up",
    )
    arguments(parser)
    asked = parser.parse_args()
    os.chdir(ROOT)

    from engines import storm

    storm.job_jar(storm.download())  # a guest has no network, and can write nothing here
    runs = kept(asked.json)
    words = [asked.shape, asked.ways, *asked.loads]
    limit_s = LIMIT_S * (1 + len(asked.loads))
    for _ in range(asked.runs):
        keep(from_guest("storm_inside", words, asked.kernel, 1, limit_s), runs, asked.json)
    show(without_first(runs) if asked.skip_first else runs, asked.kernel, asked.keep)


if __name__ == "__main__":
    main()
