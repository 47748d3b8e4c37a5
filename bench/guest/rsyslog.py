"""rsyslog's alarms beside an archive with bursts, in a guest with exact time: ratios to the OS.

    ./dev run python -m bench.guest.rsyslog [--kernel 6.18] [--runs 1] [--json FILE]
        [--ways PATTERN]

One rsyslogd with two actions, each with a queue and workers of its own, ordered by the declaration
that is shipped. What is shown: how long messages take from when they are due until they are
written, and how late a process wakes up that has nothing to do with it.
"""

import argparse
import os
import re

from bench import results
from bench.guest import rsyslog_inside
from bench.guest.phases import ROOT, arguments, from_guest, keep, kept, table

LIMIT_S = 5400.0
TITLE = "rsyslog's alarms beside an archive with bursts, four workers, on one CPU"


def fetch() -> None:
    """rsyslog and its libraries of the same Debian as this machine's, unpacked once."""
    if rsyslog_inside.TREE.exists():
        return
    import debian

    with debian.archive(debian.release(), rsyslog_inside.TREE) as archive:
        archive.unpack(*rsyslog_inside.PACKAGES)
        archive.tree.rename(rsyslog_inside.TREE)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ways", default=".*", help="a regular expression for their names")
    arguments(parser)
    asked = parser.parse_args()
    names = [way.name for way in rsyslog_inside.WAYS]
    if not any(re.fullmatch(asked.ways, name) for name in names):
        parser.error(f"no way {asked.ways}; there are {'; '.join(names)}")
    os.chdir(ROOT)
    fetch()  # a guest has no network
    runs = kept(asked.json)
    for _ in range(asked.runs):
        phases = from_guest("rsyslog_inside", [asked.ways], asked.kernel, 1, LIMIT_S)
        keep(phases, runs, asked.json)
    for own in runs.values():
        results.tell(table(TITLE, own, asked.kernel), asked.keep)


if __name__ == "__main__":
    main()
