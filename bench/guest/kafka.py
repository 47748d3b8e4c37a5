"""A real worker of Kafka Connect in a guest with exact time: ratios to the OS.

    ./dev run python -m bench.guest.kafka [--kernel 6.18] [--runs 1] [--json FILE] [--ways PATTERN]

The connectors are those of `bench.real kafka-bursts`; the broker has the same CPU as the worker.
What is shown: how long records take from when they are due, what else waits for the CPU, and how
late a process wakes up that has nothing to do with it.
"""

import argparse
import os
import tempfile
from pathlib import Path

from bench.guest.phases import ROOT, arguments, from_guest, keep, kept, show

LIMIT_S = 5400.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ways", default=".*", help="a regular expression for their names")
    arguments(parser)
    asked = parser.parse_args()
    os.chdir(ROOT)

    from engines import kafka

    with tempfile.TemporaryDirectory() as folder:
        kafka.prepare(Path(folder) / "kafka")
    runs = kept(asked.json)
    for _ in range(asked.runs):
        keep(from_guest("kafka_inside", [asked.ways], asked.kernel, 1, LIMIT_S), runs, asked.json)
    show(runs, asked.kernel, asked.keep)


if __name__ == "__main__":
    main()
