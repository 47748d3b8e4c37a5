"""A real Kafka Connect or Kafka Streams in a guest with exact time: ratios to the OS.

    ./dev run python -m bench.guest.kafka [connect|streams] [--kernel 6.18] [--runs 1]
        [--json FILE] [--ways PATTERN]

Connect: the connectors of `bench.real kafka-bursts`; Streams: two applications in one process,
with the same records and costs. The broker has the same CPU. What is shown: how long records take
from when they are due, what else waits for the CPU, and how late a process wakes up that has
nothing to do with it.
"""

import argparse
import os
import tempfile
from pathlib import Path

from bench import results
from bench.guest.phases import ROOT, arguments, from_guest, keep, kept, table

LIMIT_S = 5400.0
TITLES = {
    "connect": "Connect's alarms beside bursts, broker and worker on one CPU",
    "streams": "An application of Streams beside one that gets bursts, and the broker, on one CPU",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", nargs="?", choices=TITLES, default="connect")
    parser.add_argument("--ways", default=".*", help="a regular expression for their names")
    arguments(parser)
    asked = parser.parse_args()
    os.chdir(ROOT)

    from engines import kafka

    with tempfile.TemporaryDirectory() as folder:
        kafka.prepare(Path(folder) / "kafka")
    runs = kept(asked.json)
    for _ in range(asked.runs):
        words = [asked.what, asked.ways]
        keep(from_guest("kafka_inside", words, asked.kernel, 1, LIMIT_S), runs, asked.json)
    if own := runs.get(asked.what):
        results.tell(table(TITLES[asked.what], own, asked.kernel), asked.keep)


if __name__ == "__main__":
    main()
