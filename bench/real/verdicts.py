"""What is said of planted causes, and how sure: `python -m bench.real.verdicts --in lab flink`.

In the lab engine, a real Flink or Storm, or GStreamer, each cause is planted anew a few times: an
operator that wants more than its thread can do, one that sleeps with work in hand, a lock that
replicas share, four hogs on the only CPU, a cgroup's limit. Of each window (0.4 s apart) it is
counted what was said of whom the cause is in, and of who has none. What is planted runs before all
others on this machine, so that nobody else's load is in it. All but GStreamer need two CPUs.
"""

import argparse
import contextlib
import os
import platform
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench import results
from bench.real.planted import KEEPS_UP, LIMITED, Case, Planted, in_gstreamer, in_storm
from bench.results import Figure, Result, Row
from sched_ctl.drivers import DriverKind, Target
from sched_ctl.drivers.lab.driver import kind as lab_kind
from sched_ctl.metrics.verdicts import LEAST_SHARE

WINDOWS = 12
SURE = 0.9  # who is so sure has to be right nine times of ten
ALONE = {  # by operator or query: what is said if it is right
    "heavy/crunch": ("single-thread-bound",),
    "heavy/in": ("backpressured",),
    "heavy/parse": ("backpressured",),
    "heavy": ("single-thread-bound",),
    "waits/lookup": ("io-bound",),
    "waits/ask": KEEPS_UP,
    "waits": KEEPS_UP,
    "light/read": KEEPS_UP,
    "light/work": KEEPS_UP,
    "light/write": KEEPS_UP,
    "light": KEEPS_UP,
    "quiet/listen": ("idle",),
    "quiet/act": ("idle",),
    "quiet": ("idle",),
}
STARVED = {
    "heavy/crunch": ("cpu-starved",),
    "heavy": ("cpu-starved",),
    "quiet/listen": ("idle",),
    "quiet": ("idle",),
}
FLINK: dict[str, dict[str, Any]] = {
    "single": {"rate": 2000, "work_us": 1000},
    "slow": {"rate": 400, "work_us": 20, "block_ms": 10},
    "guarded": {"rate": 400, "lock_ms": 10, "parallelism": 3},
    "light": {"rate": 50, "work_us": 20},
    "paced": {"rate": 50, "work_us": 20, "source": "paced"},
}
IN_FLINK = {
    "single/single-work": ("single-thread-bound",),
    "single/single-parse": ("backpressured",),
    "single": ("single-thread-bound",),
    "slow/slow-egress": ("io-bound",),
    "slow/slow-work": ("backpressured",),
    "slow": ("io-bound",),
    "guarded": ("lock-bound",),
    **{
        name: KEEPS_UP
        for q in ("light", "paced")
        for name in (q, f"{q}/{q}-parse", f"{q}/{q}-work")
    },
}


@dataclass(frozen=True)
class Said:
    """Of one window: what is right, what was said, and how sure."""

    case: str
    planted: tuple[str, ...]
    said: str
    sure: float


def seen(target: Target, kind: DriverKind, case: str, planted: Planted) -> Iterator[Said]:
    """What is said in some windows of those in whom something is planted."""
    from watching import observed

    found = observed(target, kind, WINDOWS)
    for name, right in planted.items():
        for row in found.get(name, ()):
            yield Said(f"{case}, {name}", right, _word(row), row["confidence"] or 0.0)


def _word(row: Mapping[str, Any]) -> str:
    """What is said of a query or an operator; who is stopped by a limit is told so."""
    stops = row["limit"] is not None and row["limit"]["stopped"] >= LEAST_SHARE
    return LIMITED[0] if stops and row["verdict"] == "cpu-starved" else str(row["verdict"])


def in_the_lab(seeds: Sequence[int]) -> Iterator[Said]:
    """Once each: by itself on all CPUs, and beside hogs on one. The rates are drawn."""
    from planted import causes, hogs

    cpu = max(os.sched_getaffinity(0))
    for drawn in map(random.Random, seeds):
        with causes(nice=-20, scale=drawn.uniform(0.75, 1.3)) as target:
            yield from seen(target, lab_kind, "lab", ALONE)
        with causes(nice=0, cpus={cpu}, scale=drawn.uniform(0.75, 1.3)) as target, hogs(4, cpu):
            yield from seen(target, lab_kind, "lab beside hogs", STARVED)


def in_flink(seeds: Sequence[int]) -> Iterator[Said]:
    """All jobs at once in one Flink, which runs before all others."""
    from engines import cluster
    from sched_ctl.drivers.flink import driver as flink
    from sched_ctl.kernel import procfs

    with TemporaryDirectory() as folder, cluster.running(Path(folder)) as running:
        for name, arguments in FLINK.items():
            running.submit(name=name, **arguments)
        target = next(t for t in flink.find() if t.pid == running.job_manager.pid)
        for _ in seeds:
            for tid in procfs.tids(running.task_managers[0].pid):
                with contextlib.suppress(ProcessLookupError):
                    os.setpriority(os.PRIO_PROCESS, tid, -20)
            yield from seen(target, flink.kind, "Flink", IN_FLINK)


def on_one_cpu(cases: Iterator[Case]) -> Iterator[Said]:
    for name, target, kind, planted in cases:
        yield from seen(target, kind, name, planted)


ENGINES: Mapping[str, Callable[[Sequence[int]], Iterator[Said]]] = {
    "lab": in_the_lab,
    "flink": in_flink,
    "storm": lambda seeds: on_one_cpu(in_storm(seeds)),
    "gstreamer": lambda seeds: on_one_cpu(in_gstreamer(seeds)),
}


def told(said: Sequence[Said], seeds: Sequence[int], made: Mapping[str, Any]) -> Result:
    """Rows: what was planted; columns: what was said, how often, and how much is right.

    made: build and command, as `results.here` told before all that.
    """
    by: dict[str, Counter[str]] = defaultdict(Counter)
    for one in said:
        by[one.planted[0]][one.said] += 1
    words = sorted({one.said for one in said}, key=lambda word: (word not in by, word))
    rows = [
        Row(planted, {word: str(counts[word]) if counts[word] else "" for word in words})
        for planted, counts in sorted(by.items())
    ]
    for name, least in (("right, %", 0.0), (f"right of those {SURE:.0%} sure, %", SURE)):
        figures: dict[str, Figure | str] = {}
        for word in words:
            of = [one.said in one.planted for one in said if one.said == word and one.sure >= least]
            says = of and word != "unknown"
            figures[word] = f"{100 * sum(of) / len(of):.1f} of {len(of)}" if says else "-"
        rows.append(Row(name, figures))
    return Result(
        title="What is said (columns) where this is planted (rows), in windows",
        columns=words,
        n=len(said),
        spread=None,
        seeds=list(seeds),
        kernel=platform.release(),
        rows=rows,
        **made,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=4, help="times that each is planted")
    parser.add_argument("--in", dest="engines", nargs="+", choices=ENGINES, default=["lab"])
    results.argument(parser)
    asked = parser.parse_args()
    seeds = range(1, asked.seeds + 1)
    made = results.here()  # in an hour the tree may be another one
    said = [one for engine in asked.engines for one in ENGINES[engine](seeds)]
    wrong = Counter((one.case, one.said) for one in said if one.said not in one.planted)
    for (case, word), times in wrong.most_common():
        print(f"{case}: {word}, {times} times", file=sys.stderr)
    results.tell(told(said, seeds, made), asked.keep)


if __name__ == "__main__":
    main()
