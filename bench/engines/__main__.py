"""What sched-ctl does to queries of real engines, against the system's own scheduling.

    ./dev run python -m bench.engines [CASE ...] [--cycles N] [--seconds S] [--out FILE.json]

Needs root, Java 17 or newer, Maven for Storm, and PyPI and Maven Central at the first run. Each
case prints a table in Markdown: what the system's own scheduling gave, and for each other way the
ratio to it, median (smallest-largest) over pairs of phases. A phase in which the engine had less of
its CPU than `--least` is left out.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from bench.engines import flink, storm
from bench.engines.abba import above_others, report


def main() -> None:
    cases: dict[str, flink.Case | storm.Case] = {**flink.CASES, **storm.CASES}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(cases))
    parser.add_argument("--cycles", type=int, default=3, help="two pairs of each way")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of a phase")
    parser.add_argument("--least", type=float, default=0.9, help="CPUs the engine must have had")
    parser.add_argument("--alone", action="store_true", help="this session above all others")
    parser.add_argument("--out", type=Path, help="write all phases as JSON")
    given = parser.parse_args()
    if unknown := set(given.cases) - cases.keys():
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    if given.alone:
        above_others()
    results = {}
    for name in given.cases or list(cases):
        case = cases[name]
        with tempfile.TemporaryDirectory() as folder:
            where = Path(folder)
            if isinstance(case, storm.Case):
                phases = storm.run(case, where, given.cycles, given.seconds)
            else:
                phases = flink.run(case, where, given.cycles, given.seconds)
        print(report(case.title, phases, given.least), flush=True)
        results[name] = [asdict(phase) for phase in phases]
        if given.out:
            given.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
