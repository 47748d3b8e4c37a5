"""What sched-ctl does to queries of real engines, against the system's own scheduling.

    ./dev run python -m bench.real [CASE ...] [--ways NAMES] [--cycles N] [--seconds S]
                                      [--minutes M] [--loads L] [--alone] [--out FILE.json]

Needs root, Java 17 or newer, Maven for Storm and Kafka, and PyPI and Maven Central at the first
run. Each case prints a table in Markdown: what the system's own scheduling gave, and for each other
way the ratio to it, median (smallest-largest) over pairs of phases. A phase in which the engine had
less of its CPU than `--least` is left out.

A case takes a minute to start (of Storm four, as its capacity is measured first), then `--seconds`
and three or four more for each phase. `--minutes` ends it after a whole pair, so that it never
takes much longer than its part of them.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from bench import results
from bench.real import flink, kafka, spark, storm
from bench.real.abba import Phase, above_others, report

Case = flink.Case | storm.Case | spark.Case | kafka.Case


def main() -> None:
    cases: dict[str, Case] = {**flink.CASES, **storm.CASES, **spark.CASES, **kafka.CASES}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(cases))
    parser.add_argument("--cycles", type=int, default=3, help="two pairs of each way")
    parser.add_argument(
        "--ways", nargs="+", metavar="TEXT", help="only ways whose names begin with one of these"
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="for all cases: each has an equal part"
    )
    parser.add_argument("--loads", nargs="+", choices=storm.LOADS, help="of Storm; all by default")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of a phase")
    parser.add_argument("--least", type=float, default=0.9, help="CPUs the engine must have had")
    parser.add_argument(
        "--alone",
        action="store_true",
        help="this benchmark above all others of the machine (autogroup)",
    )
    parser.add_argument("--out", type=Path, help="write all phases as JSON")
    results.argument(parser)
    given = parser.parse_args()
    if unknown := set(given.cases) - cases.keys():
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    if given.alone:
        above_others()
    every = {}
    began_s = time.monotonic()
    names = given.cases or list(cases)
    for number, name in enumerate(names, 1):
        case = chosen(cases[name], given.ways)
        if given.loads and isinstance(case, storm.Case):
            case = replace(case, loads=tuple(given.loads))
        if not case.ways:
            parser.error(
                f"{name} has no such way: {', '.join(way.name for way in cases[name].ways)}"
            )
        end_s = began_s + 60 * given.minutes * number / len(names)
        phases = []
        try:
            with tempfile.TemporaryDirectory() as folder:
                for phase in run(case, Path(folder), given.cycles, given.seconds, end_s):
                    phases.append(phase)  # stays if the next one fails
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            print(f"{name}: ended early: {error}", file=sys.stderr)
        if len(phases) < 3:
            continue
        result = report(name, case.title, phases, given.least)
        results.tell(result, given.keep and f"{given.keep}-{name}")
        every[name] = [asdict(phase) for phase in phases]
        if given.out:
            given.out.write_text(json.dumps(every, indent=1))


def run(case: Case, folder: Path, cycles: int, seconds: float, end_s: float) -> Iterator[Phase]:
    if isinstance(case, storm.Case):
        return storm.run(case, folder, cycles, seconds, end_s)
    if isinstance(case, spark.Case):
        return spark.run(case, folder, cycles, seconds, end_s)
    if isinstance(case, kafka.Case):
        return kafka.run(case, folder, cycles, seconds, end_s)
    return flink.run(case, folder, cycles, seconds, end_s)


def chosen(case: Case, ways: Sequence[str] | None) -> Case:
    """The case with the ways whose names begin so."""
    if ways is None:
        return case
    return replace(case, ways=tuple(w for w in case.ways if w.name.startswith(tuple(ways))))


if __name__ == "__main__":
    main()
