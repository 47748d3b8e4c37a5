"""The lab engine under the BPF scheduler and its rivals, in a guest with exact time.

    ./dev run python -m bench.guest.kernel [--seeds 5] [--seconds 10] [--kernel 6.18] [--json FILE]
                                     [--variants RE] [--cpus 2] [--caches 2] [CASE ...]

Each case is a workload at a load, under each variant and seed; the same seed means the same
arrivals and the same filter decisions. The guest has one CPU whose time is counted in instructions
(QEMU's icount, 1 ns each), so a figure does not depend on what else the host does, and repeats.
With `--cpus 2` two take turns and share that clock, as the two threads of a core do: together they
do the work of one, so the load is that of one CPU.
Figures are ratios to EEVDF in the same seed: geometric mean over the seeds, and in brackets the
smallest and the largest. Costs and selectivities are the true ones (but see `--noise`).
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bench import results
from bench.results import Figure, Result, Row

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MARK = "@@"
BASE = "eevdf"
LOAD_DELAY_S = 60
JOB_LIMIT_S = 600.0  # of this machine's time, which others may use as well
DELAY_S = 1.5  # guest time to set up what schedules the threads, before tuples come
Job = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A workload at a load; more: further arguments of the engine."""

    workload: str
    utilisation: float
    more: tuple[str, ...] = ()
    job: Mapping[str, Any] | None = None


CASES = {
    **{f"syn-{u}": Case("syn", u) for u in (0.7, 0.9, 0.97, 1.1)},
    **{f"etl-{u}": Case("etl", u) for u in (0.9, 1.0, 1.2)},
    **{f"etl-{u}-bounded": Case("etl", u, ("--bounded", "64")) for u in (1.0, 1.2)},
    **{
        f"{name}-0.95": Case(name, 0.95)
        for name in ("vs", "lr", "stats", "pred", "train", "shared")
    },
    "multi-0.95": Case("multi", 0.95),
    "blocking-0.9": Case("blocking", 0.9),
    "flooded-0.9": Case("flooded", 0.9),
    "blocking-0.9-bounded": Case("blocking", 0.9, ("--bounded", "64")),
    "syn-1.1-bounded": Case("syn", 1.1, ("--bounded", "64")),
    "wasted-bounded": Case("wasted", 1.07, ("--bounded", "64")),  # as the file has it
    "syn-0.8-hog": Case("syn", 0.8, (), {"hogs": 1}),
    "syn-0.8": Case("syn", 0.8),
    # With time for `sched-ctl load` to start (while a guest waits for files its clock leaps ahead),
    # and then for its window, and to see who wakes whom.
    **{
        f"{name}-0.9-load": Case(name, 0.9, ("--delay", str(LOAD_DELAY_S), "--warmup", "6"))
        for name in ("syn", "etl", "lr", "multi")
    },
}


def scx(policy: str, **more: Any) -> Job:
    return {"kind": "scx", "policy": policy, **more}


VARIANTS: Mapping[str, Job] = {
    BASE: {"kind": "os"},
    "batch": {"kind": "batch"},
    "nice-hr": {"kind": "nice", "policy": "hr"},
    "nice-qs": {"kind": "nice", "policy": "qs", "period_s": 1.0},
    "nice-random": {"kind": "nice", "policy": "random", "period_s": 1.0},
    "nice-multi-class": {"kind": "nice", "policy": "multi-class", "period_s": 1.0},
    # Judged: the verdicts are worked out as for `-starved`, which takes time, and left at that.
    **{
        f"nice-{name}-{how}": {"kind": "nice", "policy": name, "period_s": 1.0, "only_starved": how}
        for name in ("hr", "qs")
        for how in ("judged", "starved")
    },
    "fifo-hr": {"kind": "fifo", "policy": "hr"},
    "scx-hr": scx("hr"),
    "scx-hr-aging": scx("hr", hints={"gap_s": 0.05}),
    "scx-balanced": scx("balanced"),
    "scx-balanced-again": scx("balanced", period_s=1.0),
    **{
        f"scx-{name}-{how}": scx(name, period_s=1.0, only_starved=how)
        for name in ("hr", "qs", "balanced")
        for how in ("judged", "starved")
    },
    # How far a query may lag behind its fair share before it goes first, ms
    **{
        f"scx-{name}-floor-{ms}": scx(name, period_s=1.0, control={"floor_us": 1000 * ms})
        for name in ("hr", "balanced", "bsd")
        for ms in (0, 25, 50, 100)
    },
    # All branches of a query wait alike.
    "scx-balanced-mean": scx("balanced", options={"branches": 0}),
    "scx-balanced-30": scx("balanced", options={"patience": 30.0}),
    # With the use of the CPU that is seen, each second; and the same without heavy queries.
    "scx-balanced-seen": scx("balanced", period_s=1.0, measured=True),
    "scx-balanced-equal": scx("balanced", options={"heavy": 0}, period_s=1.0, measured=True),
    "scx-bsd": scx("bsd"),
    **{
        f"scx-{name}-none": scx(name, options={"sharing": "none"})
        for name in ("hnr", "bsd", "balanced")
    },
    "scx-hnr": scx("hnr"),
    "scx-fcfs": scx("fcfs"),
    "scx-qs": scx("qs", period_s=1.0),
    "scx-qs-live": scx("qs", live=True),
    "scx-bsd-live": scx("bsd", live=True),
    "scx-fcfs-live": scx("fcfs", live=True),
    "scx-multi-class": scx("multi-class"),
    "scx-first-hr": scx("hr", tunables={"operators_first": True}),
    "scx-first-bsd": scx("bsd", tunables={"operators_first": True}),
    "scx-nobody-bsd": scx("bsd", whose=False),
    "scx-nodepth-bsd": scx("bsd", depth=False),
    "scx-full-hr": scx("hr", full=True),
    "scx-full-balanced": scx("balanced", full=True),
    "scx-full-bsd": scx("bsd", full=True),
    "pool-hr": {"kind": "pool", "policy": "hr"},
    "pool-bsd": {"kind": "pool", "policy": "bsd"},
    "pool-qs": {"kind": "pool", "policy": "qs"},
    "pool-multi-class": {"kind": "pool", "policy": "multi-class"},
    "pool-balanced": {"kind": "pool", "policy": "balanced"},
    # The program itself, by what the engine says of itself, or by what the kernel sees of it.
    **{
        f"load-{engine}-{policy}": {"kind": "load", "engine": engine, "by": policy}
        for engine in ("lab", "kernel")
        for policy in ("hr", "qs", "balanced", "min-cost")
    },
}


def jobs(
    case: str,
    variants: Sequence[str],
    seeds: Iterable[int],
    seconds: float,
    noise: float = 0.0,
    cpus: int = 1,
) -> list[Job]:
    """One run for each seed and variant; noise: sigma of the lognormal errors of costs."""
    c = CASES[case]
    return [
        {
            "name": f"{case}/{variant}",
            "workload": c.workload,
            "utilisation": c.utilisation,
            "seed": seed,
            "noise": noise,
            "cpus": cpus,
            **VARIANTS[variant],
            **(c.job or {}),
            "arguments": [
                *("--utilisation", c.utilisation, "--cpus", 1, "--seed", seed),
                *("--duration", seconds, "--delay", DELAY_S, "--burn", "nop"),
                *("--drain", 60, *c.more),
            ],
        }
        for seed in seeds
        for variant in variants
    ]


def run(todo: Sequence[Job], kernel: str, cpus: int = 1, caches: int = 1) -> Iterable[Job]:
    """The jobs in one guest."""
    import guest
    import kernels

    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sched-ctl-bench-", dir=ROOT / "build") as folder:
        path = Path(folder, "jobs")
        path.write_text("".join(json.dumps(job) + "\n" for job in todo))
        command = [sys.executable, str(HERE / "kernel_inside.py"), str(path)]
        timeout_s = 60 + JOB_LIMIT_S * len(todo)
        options = guest.Options(
            cpus=cpus,
            sockets=caches,
            icount=True,
            icount_shift=0,
            timeout_s=timeout_s,
            memory="2G",
        )
        rest, left = b"", len(todo)
        with guest.boot(kernels.find(kernel), command, options) as machine:
            for piece in machine.output():
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    text = line.decode(errors="replace").strip()
                    if text.startswith(MARK):
                        left -= 1
                        yield json.loads(text.removeprefix(MARK))
                    elif text:
                        print(text, file=sys.stderr)
        if left > 0:
            why = "its time was up" if machine.returncode == guest.TIMED_OUT else "it ended"
            print(f"the guest did {len(todo) - left} of {len(todo)} runs: {why}", file=sys.stderr)


SWITCHES: Mapping[str, Job] = {
    "eevdf": {"kind": "os"},
    "batch": {"kind": "batch"},
    "fifo": {"kind": "fifo"},
    "scx, one queue": {"kind": "scx"},
    "scx, 12 queues": {"kind": "scx", "queues": 12},
    "scx, one queue, live ages": {"kind": "scx", "live": True},
    "scx, full mode": {"kind": "scx", "full": True},
    "scx, full mode, not adopted": {"kind": "scx", "full": True, "adopt": False},
    **{  # as it is loaded wherever cgroups have weights, which is under systemd
        f"scx, full mode, cgroups{who}": {"kind": "scx", "full": True, "cgroups": True, **job}
        for who, job in (("", {}), (", not adopted", {"adopt": False}))
    },
    "eevdf, another process traced": {"kind": "os", "trace": "other"},
    "eevdf, traced": {"kind": "os", "trace": "own"},
    "eevdf, another process's wake-ups": {"kind": "os", "trace": "other", "wakings": True},
    "eevdf, traced with wake-ups": {"kind": "os", "trace": "own", "wakings": True},
    "eevdf, with stacks of its sleeps": {"kind": "os", "trace": "own", "stacks": True},
}


_ENGINE = {"tunables": {"operators_first": True}}
WAITS: Mapping[str, Job] = {
    "eevdf": {"kind": "os"},
    "scx, who waits first": {"kind": "scx", "full": True, "leads": [5_000_000, 0], **_ENGINE},
    "scx, who waits last": {"kind": "scx", "full": True, "leads": [0, 5_000_000], **_ENGINE},
    "scx, fair, who waits first": {"kind": "scx", "full": True, "leads": [5_000_000, 0]},
}


HELPERS: Mapping[str, Job] = {
    "eevdf": {"kind": "os"},
    "scx, full mode": {"kind": "scx", "full": True},
    "scx, full mode, cgroups": {"kind": "scx", "full": True, "cgroups": True},
}


def built(name: str) -> Path:
    """The program of the C file of this name in this folder."""
    program = ROOT / "build" / name
    program.parent.mkdir(exist_ok=True)
    source = HERE / f"{name}.c"
    subprocess.run(["cc", "-O2", "-pthread", "-o", str(program), str(source)], check=True)
    return program


def compare(
    jobs: Mapping[str, Job], words: Sequence[str], kernel: str, cpus: int = 1, caches: int = 1
) -> Result:
    """What the program prints of itself under each scheduler; the first is the base of ratios."""
    todo = [{"name": name, "seed": 0, "program": words, **job} for name, job in jobs.items()]
    found = list(run(todo, kernel, cpus, caches))
    base = found[0]["figures"]
    rows = []
    for result in found:
        if "error" in result:
            print(f"{result['job']}: {result['error']}", file=sys.stderr)
            continue
        figures = result["figures"]
        cells: dict[str, Figure | str] = {}
        for name, value in figures.items():
            cells[name] = Figure(round(value, 1), unit="/s" if "/s" in name else "ns")
            cells[f"{name}, ratio"] = Figure(round(value / max(base[name], 1e-9), 4))
        rows.append(Row(result["job"], cells))
        print(result["job"], result["counted"], file=sys.stderr)
    return Result(
        title="What threads cost each other under each scheduler, and ratios to the first",
        columns=[column for name in base for column in (name, f"{name}, ratio")],
        n=1,
        spread=None,
        seeds=None,
        kernel=kernel,
        rows=rows,
        **results.here(),
    )


def switches(
    kernel: str, chosen: str = ".*", cpus: int = 1, caches: int = 1, apart: int = 0
) -> Result:
    """What a context switch costs under each scheduler, ns, with a pair of threads on each CPU.

    apart: one pair, whose second thread is bound to the CPU so many after the first one's.
    """
    words = [str(built("switches")), str(1 if apart else cpus), str(apart)]
    some = {k: job for k, job in SWITCHES.items() if k == BASE or re.fullmatch(chosen, k)}
    whose = f"a pair on each of {cpus} CPUs" if cpus > 1 else "a pair on one CPU"
    title = (
        f"What a switch costs {'two threads on a CPU each' if apart else whose}; ratios to EEVDF"
    )
    return msgspec.structs.replace(compare(some, words, kernel, cpus, caches), title=title)


# As helpers.c prints them -> as they are told.
TOLD = {
    "tuples/s": "tuples",
    "ns/tuple": "operators' CPU time a tuple",
    "helper-ns/run": "a helper's turn",
    "helper-runs/s": "turns of helpers",
    "helper-wait-ns": "their wait",
    "runs/s": "turns of operators",
}


def helpers(kernel: str, count: int) -> Result:
    """What so many helper threads cost a saturated query under each scheduler (helpers.c)."""
    jobs = {name: {**job, "operators": 3} for name, job in HELPERS.items()}
    told = by_figure(compare(jobs, [str(built("helpers")), str(count)], kernel))
    title = f"{count} threads that wake up each millisecond beside a saturated query; over EEVDF"
    return msgspec.structs.replace(told, title=title)


def in_us(ns: Figure | str) -> Figure:
    assert isinstance(ns, Figure) and ns.value is not None
    return Figure(round(ns.value / 1e3, 1), unit="us")


def by_figure(told: Result) -> Result:
    """The same, a row for each figure: that of the first scheduler, and ratios of the others."""
    first, *others = told.rows
    rows = [
        Row(
            TOLD[name],
            {first.name: first.figures[name] if "/s" in name else in_us(first.figures[name])}
            | {other.name: other.figures[f"{name}, ratio"] for other in others},
        )
        for name in TOLD
    ]
    return msgspec.structs.replace(told, columns=[row.name for row in told.rows], rows=rows)


def waits(kernel: str, words: Sequence[str]) -> Result:
    """How far two threads get that wait for each other without sleeping (waits.c)."""
    return compare(WAITS, [str(built("waits")), *words], kernel)


def calibration(kernel: str) -> list[Job]:
    """What threads cost each other in the guest, for the simulator."""
    kinds = ("os", "fifo", "scx")
    found = list(run([{"name": k, "seed": 0, "calibrate": 1, "kind": k} for k in kinds], kernel))
    for result in found:
        print(json.dumps(result))
    return found


# Column -> figure of a result, as a ratio to EEVDF. high, hslow: latency, slowdown of that class.
FIGURES: Mapping[str, Callable[[Job], float]] = {
    "thr": lambda r: r["throughput"],
    "mean": lambda r: r["total"]["latency_s"]["mean"],
    "high": lambda r: r.get("high_latency_s", math.nan),
    "hslow": lambda r: r.get("high_slowdown", math.nan),
    "p50": lambda r: r["total"]["latency_s"]["p50"],
    "p99": lambda r: r["total"]["latency_s"]["p99"],
    "proc": lambda r: r["total"]["processing_s"]["mean"],
    "slow": lambda r: r["total"]["slowdown"]["mean"],
    "smax": lambda r: r["total"]["slowdown"]["max"],
    "l2": lambda r: r["total"]["slowdown_l2"],
    "qvar": lambda r: r["queue_variance"],
    "cs": lambda r: r["context_switches_per_s"],
}


def tables(found: Sequence[Job], kernel: str) -> dict[str, Result]:
    """Of each case ratios to EEVDF in the same seed; what a range is of are the seeds."""
    by: dict[str, dict[str, dict[int, Job]]] = {}
    for result in found:
        case, variant = result["job"].split("/")
        by.setdefault(case, {}).setdefault(variant, {})[result["seed"]] = result
    told = {}
    for case, variants in by.items():
        base = {s: r for s, r in variants.get(BASE, {}).items() if "error" not in r}
        if not base:
            continue
        mean_ms = 1e3 * sum(map(FIGURES["mean"], base.values())) / len(base)
        figures = {
            n: f for n, f in FIGURES.items() if not any(map(math.isnan, map(f, base.values())))
        }
        rows = []
        for variant, seeds in variants.items():
            common = [s for s in seeds if s in base and "error" not in seeds[s]]
            if variant == BASE or not common:
                continue
            cells = {
                name: results.over(figure(seeds[s]) / max(figure(base[s]), 1e-12) for s in common)
                for name, figure in figures.items()
            }
            n = None if len(common) == len(base) else len(common)
            rows.append(Row(variant, cells, n))
        told[case] = Result(
            title=f"{case}: ratios to EEVDF, whose mean latency is {mean_ms:.3g} ms",
            columns=list(figures),
            n=len(base),
            spread="smallest-largest over seeds",
            seeds=sorted(base),
            kernel=kernel,
            rows=rows,
            **results.here(),
        )
    return told


def together(found: Sequence[Job], kernel: str) -> Result:
    """The same in one table, a row for each case and variant."""
    told = tables(found, kernel)
    rows = [
        Row(f"{case}, {row.name}", row.figures, row.n or of_case.n)
        for case, of_case in told.items()
        for row in of_case.rows
    ]
    [*_, last] = told.values()
    seeds = sorted({seed for of_case in told.values() for seed in of_case.seeds or ()})
    return msgspec.structs.replace(
        last, title="Ratios to EEVDF in the same seed", n=None, seeds=seeds, rows=rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--noise", type=float, default=0.0, help="sigma of lognormal errors")
    parser.add_argument("--kernel", default="6.18")
    parser.add_argument("--cpus", type=int, default=1, help="of the guest")
    parser.add_argument("--caches", type=int, default=1, help="last-level, of these CPUs")
    parser.add_argument("--variants", default=".*", metavar="RE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append results, one a line")
    parser.add_argument("--switches", action="store_true", help="only what a switch costs")
    parser.add_argument("--helpers", type=int, metavar="N", help="only what helper threads cost")
    parser.add_argument("--waits", nargs="+", metavar="WORD", help="see waits.c: yield, pair ...")
    parser.add_argument("--apart", type=int, default=0, metavar="CPUS", help="see switches.c")
    parser.add_argument("--calibrate", action="store_true", help="only what a hop costs")
    parser.add_argument("--show", action="store_true", help="only the table of what is in --json")
    parser.add_argument("--together", action="store_true", help="one table of all cases")
    results.argument(parser)
    arguments = parser.parse_args()
    for case in arguments.cases:
        if case not in CASES:
            parser.error(f"no case {case}; there are {', '.join(CASES)}")
    found: list[Job] = []
    if arguments.switches:
        cpus, caches, apart = arguments.cpus, arguments.caches, arguments.apart
        told = switches(arguments.kernel, arguments.variants, cpus, caches, apart)
        results.tell(told, arguments.keep)
        return
    if arguments.waits:
        results.tell(waits(arguments.kernel, arguments.waits), arguments.keep)
        return
    if arguments.helpers:
        results.tell(helpers(arguments.kernel, arguments.helpers), arguments.keep)
        return
    if arguments.calibrate:
        subprocess.run(["make", "-s", "-C", str(ROOT / "bpf")], check=True)
        calibration(arguments.kernel)
        return
    if arguments.show:
        found = [json.loads(line) for line in arguments.json.read_text().splitlines()]
    else:
        chosen = [v for v in VARIANTS if v == BASE or re.fullmatch(arguments.variants, v)]
        seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
        os.nice(10)
        subprocess.run(["make", "-s", "-C", str(ROOT / "bpf")], check=True)
        for case in arguments.cases or CASES:
            todo = jobs(case, chosen, seeds, arguments.seconds, arguments.noise, arguments.cpus)
            for result in run(todo, arguments.kernel, arguments.cpus, arguments.caches):
                found.append(result)
                print(result["job"], result["seed"], result.get("error", ""), file=sys.stderr)
                if arguments.json:
                    with open(arguments.json, "a") as file:
                        file.write(json.dumps(result) + "\n")
    if arguments.together:
        results.tell(together(found, arguments.kernel), arguments.keep)
        return
    for case, of_case in tables(found, arguments.kernel).items():
        results.tell(of_case, arguments.keep and f"{arguments.keep}-{case}")


if __name__ == "__main__":
    main()
