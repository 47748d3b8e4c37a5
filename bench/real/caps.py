"""Whether a real engine with many operators does more on fewer of this machine's CPUs.

    ./dev run python -m bench.real.caps [--pairs 7] [--seconds 5] [--cost US ...] [--keep NAME]

All queries get more than they can do, so that 5 to 15 times as many operators as there are CPUs
want to run, and the engine's threads may use all CPUs and one, in turns (A B B A ...). The figure
is the tuples that all operators took in, as in elastic scheduling; a ratio is one of two phases
side by side. The first pair is left out. Needs a quiet machine, Java and root.

A cap on how many operators run at once (`caps`) can leave no more of an engine's work than fewer
CPUs do: an operator that does not run holds none.
"""

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench import results
from bench.results import Figure, Result, Row
from engines import cluster as flink
from sched_ctl.kernel import procfs

QUERIES = 5
COSTS_US = (0.0, 20.0, 100.0)
WARM_S, SETTLE_S = 30.0, 2.0
TOO_MANY = 1_000_000  # tuples/s that are due
Count = Callable[[], float]


def pin(pid: int, cpus: set[int]) -> None:
    for tid in procfs.tids(pid):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(tid, cpus)


@contextmanager
def of_flink(cost_us: float, folder: Path) -> Iterator[tuple[int, Count]]:
    """Its process, and how many tuples its operators have taken in."""
    with flink.running(folder) as cluster:
        each = {"rate": TOO_MANY, "parse_us": cost_us, "work_us": cost_us, "every": TOO_MANY}
        jobs = [
            cluster.submit(name=f"q{number}", out=folder / f"out{number}", **each)
            for number in range(QUERIES)
        ]
        (process,) = cluster.task_managers

        def count() -> float:
            answers = [cluster.call("GET", f"/jobs/{job}") for job in jobs]
            vertices = [vertex for answer in answers for vertex in answer["vertices"]]
            return float(sum(vertex["metrics"]["read-records"] for vertex in vertices))

        yield process.pid, count


def pairs(pid: int, count: Count, n: int, seconds: float) -> tuple[list[float], list[float]]:
    """Tuples/s on all CPUs, and of each pair of phases what is left of that on one."""
    every = os.sched_getaffinity(0)
    found: list[tuple[bool, float]] = []
    for number in range(n):
        for single in (False, True) if number % 2 == 0 else (True, False):
            pin(pid, {max(every)} if single else every)
            time.sleep(SETTLE_S)
            began, before = time.monotonic(), count()
            time.sleep(seconds)
            found.append((single, (count() - before) / (time.monotonic() - began)))
    whole, parts = [], []
    for first, second in zip(found[2::2], found[3::2], strict=True):
        rate = dict((first, second))
        whole.append(rate[False])
        parts.append(rate[True] / rate[False])
    return whole, parts


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--cost", type=float, nargs="+", default=COSTS_US, help="of parse and work")
    results.argument(parser)
    options = parser.parse_args()
    here = results.here()  # before it writes anything
    cpus = len(os.sched_getaffinity(0))
    rows = []
    for cost_us in options.cost:
        with (
            tempfile.TemporaryDirectory() as name,
            of_flink(cost_us, Path(name)) as (pid, count),
        ):
            time.sleep(WARM_S)
            whole, parts = pairs(pid, count, options.pairs, options.seconds)
        figures: dict[str, Figure | str] = {
            f"{cpus} CPUs": results.median(whole, "/s"),
            "one CPU": results.median(parts),
        }
        rows.append(Row(f"{cost_us:g} us each", figures, len(parts)))
    result = Result(
        title=f"Tuples/s of all operators of {QUERIES} saturated queries of a real Flink, and what "
        "is left of that on one CPU",
        columns=list(rows[0].figures),
        n=None,
        spread="median; smallest-largest over pairs of phases",
        seeds=None,
        kernel=platform.release(),
        rows=rows,
        **here,
    )
    results.tell(result, options.keep)


if __name__ == "__main__":
    main()
