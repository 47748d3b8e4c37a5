"""What the simulator predicts for the published tables of the guest, beside what was measured.

    ./dev run python -m bench.predict [--costs FILE] [--cases RE]
    ./dev run python -m bench.predict --work      # gains over the ratio of work to hop cost

Reads the measured ratios to EEVDF from docs/benchmarks.md and docs/kernel-benchmarks.md, and
simulates the same workloads at the same loads with the arrivals that the lab engine draws from
the same seeds. The costs of wake-ups and switches are those that `bench/kernel.py --calibrate`
measured in the guest, one a line; nothing is fitted to the tables.
"""

import argparse
import json
import math
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.kernel import CASES, VARIANTS
from sched_ctl.lab import engine as lab
from sched_ctl.sim import Costs, Node, Setting, Threads, User, of_workload, simulate_by_name
from sched_ctl.workloads import workload

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ("mean", "p99", "l2")
HELD_OUT = ("etl-0.9", "etl-1.2", "syn-0.7", "syn-1.1")


def engine_times(node: Node, seed: int, duration_s: float) -> Node:
    """The node with the arrivals that the lab engine draws (engine/sources.c), to the tuple."""

    def times(row: int, rate: float, arrivals: Any) -> NDArray[np.float64]:
        start = mix(seed) ^ mix(row + (1 << 30))
        count = int(duration_s * rate * 1.5 + 20 * math.sqrt(duration_s * rate) + 100)
        u = uniforms(start, count)
        if arrivals.kind == "poisson":
            due = np.cumsum(-np.log1p(-u) / rate)
        elif arrivals.kind == "constant":
            due = u[0] / rate + np.arange(count) / rate
        elif arrivals.kind == "onoff":
            due = on_off(u, rate, arrivals, duration_s)
        else:
            raise ValueError(f"no {arrivals.kind} arrivals in the published tables")
        return np.asarray(due[due < duration_s])

    return replace(
        node,
        streams=tuple(replace(s, times=times(s.rows[0], s.rate, s.arrivals)) for s in node.streams),
    )


def on_off(
    u: NDArray[np.float64], rate: float, arrivals: Any, duration_s: float
) -> NDArray[np.float64]:
    draw = iter(u.tolist())
    on_s, off_s, shape = arrivals.on_s, arrivals.off_s, arrivals.shape

    def period(mean: float) -> float:
        if shape <= 0:
            return -math.log(1 - next(draw)) * mean
        return float(mean * (shape - 1) / shape * (1 - next(draw)) ** (-1 / shape))

    on = next(draw) < on_s / (on_s + off_s)
    end = period(on_s if on else off_s)
    gap = on_s / (rate * (on_s + off_s))
    at, due = 0.0, []
    while at < duration_s:
        following = at - math.log(1 - next(draw)) * gap
        if on and following <= end:
            at = following
            due.append(at)
            continue
        at, on = end, not on
        end += period(on_s if on else off_s)
    return np.array(due)


MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    """As mix() of engine/util.h."""
    x = x + GOLDEN & MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def uniforms(state: int, count: int) -> NDArray[np.float64]:
    """What next_uniform() of engine/sources.c draws from this state on."""
    x = np.uint64(state) + np.arange(2, count + 2, dtype=np.uint64) * np.uint64(GOLDEN)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return (x >> np.uint64(11)).astype(np.float64) * 2.0**-53


# -- what was measured ----------------------------------------------------------------------------

Measured = dict[tuple[str, str], dict[str, float]]
NAMES = {  # of kernel-benchmarks.md
    "SCHED_BATCH": "batch", "nice, HR": "nice-hr", "nice, QS": "nice-qs",
    "SCHED_FIFO, HR": "fifo-hr", "scx, HR": "scx-hr", "scx, balanced": "scx-balanced",
    "scx, BSD": "scx-bsd", "scx, FCFS": "scx-fcfs", "scx, QS": "scx-qs",
    "pool, HR": "pool-hr", "pool, BSD": "pool-bsd",
}  # fmt: skip


def measured() -> tuple[Measured, dict[str, int], dict[str, float]]:
    """(case, variant) -> figures over EEVDF's; case -> seeds; case -> EEVDF's own mean in s."""
    found: Measured = {}
    seeds: dict[str, int] = {}
    base: dict[str, float] = {}
    case = ""
    for line in (ROOT / "docs" / "benchmarks.md").read_text().splitlines():
        if heading := re.fullmatch(r"### (\S+-[\d.]+\S*)", line):
            case = heading[1]
        elif line.startswith("#"):
            case = ""
        if not case:
            continue
        if first := re.match(r"(\d+) seeds\. eevdf: mean latency ([\d.]+) ms", line):
            seeds[case], base[case] = int(first[1]), float(first[2]) * 1e-3
        row = re.match(r"\| (\S+)(?: \((.*?)\))? \| \*\*", line)
        if row and "earlier" not in (row[2] or ""):
            cells = [float(x) for x in re.findall(r"\*\*([\d.]+)\*\*", line)]
            figures = dict(
                zip(
                    ("thr", "mean", "p99", "proc", "slow", "smax", "l2", "qvar", "cs"),
                    cells,
                    strict=True,
                )
            )
            found[case, row[1]] = figures
    text = (ROOT / "docs" / "kernel-benchmarks.md").read_text()
    loads = text[text.index("## Other loads") : text.index("## Single queries")]
    cases = ("syn-0.7", "syn-1.1", "etl-0.9", "etl-1.2", "etl-1.2-bounded")
    means = re.search(r"\(mean: ([\d., ]+) ms\)", loads)
    assert means
    for name, mean in zip(
        cases, re.findall(r"[\d,]*\d\.?\d*", means[1].replace(", ", " ")), strict=True
    ):
        seeds[name], base[name] = 5, float(mean.replace(",", "")) * 1e-3
    for line in loads.splitlines():
        label, *rest = [cell.strip() for cell in line.strip("|").split("|")]
        if label not in NAMES:
            continue
        for name, cell in zip(cases, rest, strict=True):
            mean, _, p99, l2, *_ = cell.split()
            found[name, NAMES[label]] = {"mean": float(mean), "p99": float(p99), "l2": float(l2)}
    return found, seeds, base


# -- what is predicted ----------------------------------------------------------------------------

SECONDS = 6.0


def setting(kind: str, job: Mapping[str, Any], seed: int, costs: Mapping[str, Costs]) -> Setting:
    basic = Setting(duration_s=SECONDS, warm_s=1.0, seed=seed)
    of = {"os": "os", "batch": "os", "nice": "os", "fifo": "fifo", "scx": "scx", "pool": "user"}
    return replace(
        basic,
        scheduler=of[kind],
        clusters=12 if kind == "scx" else 0,
        user=User(candidates="operators"),
        threads=Threads(
            wake_preempt=False if kind == "batch" else None, live=job.get("live", False)
        ),
        costs=costs[{"os": "os", "fifo": "fifo", "scx": "scx", "user": "os"}[of[kind]]],
    )


def one(
    case: str, variant: str, seed: int, costs: Mapping[str, Costs], base_cost_s: float | None = None
) -> dict[str, float]:
    """The figures of one run. base_cost_s: CPU time of a cost of 1; else the workload's."""
    c, job = CASES[case], VARIANTS[variant]
    with lab.workload_file(c.workload, seed) as path:
        node = of_workload(
            workload.load(path), c.utilisation, base_cost_s=base_cost_s, folder=path.parent
        )
    capacity = int(c.more[1]) if "--bounded" in c.more else 0
    now = replace(setting(job["kind"], job, seed, costs), capacity=capacity)
    name, options = job.get("policy"), job.get("options", {})
    result = simulate_by_name(engine_times(node, seed, SECONDS), name, options, now)
    summary = result.summary()
    return {
        "mean": summary.response_s,
        "p99": result.quantile(0.99),
        "l2": summary.l2,
        "cs": result.totals["switches"] / result.seconds,
        "busy": result.totals["busy"] / result.seconds,
    }


def ratios(runs: list[dict[str, float]], base: list[dict[str, float]]) -> dict[str, float]:
    return {
        figure: math.exp(
            sum(
                math.log(max(r[figure], 1e-12) / max(b[figure], 1e-12))
                for r, b in zip(runs, base, strict=True)
            )
            / len(runs)
        )
        for figure in ("mean", "p99", "l2", "cs")
    }


BASES_US = (40, 100, 200, 400)


def by_work(costs: Mapping[str, Costs], seeds: int) -> None:
    """Mean latency over EEVDF's, for work of several sizes: what is order, and what saved hops."""
    cases = ("lr-0.95", "etl-1.0", "stats-0.95", "vs-0.95", "pred-0.95", "syn-0.97", "multi-0.95")
    print("| B, us | " + " | ".join(f"{c} HR, BSD" for c in cases) + " |")
    print("|---" * (len(cases) + 1) + "|")
    for base in BASES_US:
        cells = []
        for case in cases:
            with ThreadPoolExecutor() as pool:
                runs = {
                    v: [pool.submit(one, case, v, s + 1, costs, base * 1e-6) for s in range(seeds)]
                    for v in ("eevdf", "scx-hr", "scx-bsd")
                }
                found = {v: [r.result() for r in of] for v, of in runs.items()}
            pair = [ratios(found[v], found["eevdf"])["mean"] for v in ("scx-hr", "scx-bsd")]
            cells.append(f"{pair[0]:.2f}, {pair[1]:.2f}")
        print(f"| {base} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--costs", type=Path, default=ROOT / "bench" / "guest-costs.json")
    parser.add_argument("--cases", default=".*", metavar="RE")
    parser.add_argument("--work", action="store_true", help="gains over the size of the work")
    parser.add_argument("--seeds", type=int, default=5, help="of --work")
    arguments = parser.parse_args()
    lines = map(json.loads, arguments.costs.read_text().splitlines())
    costs = {entry.pop("job"): Costs(**entry) for entry in lines}
    if arguments.work:
        by_work(costs, arguments.seeds)
        return
    known, seeds, base = measured()
    cases = [
        case for case in dict.fromkeys(c for c, _ in known) if re.fullmatch(arguments.cases, case)
    ]
    within = total = 0
    for case in cases:
        variants = [v for c, v in known if c == case and v in VARIANTS]
        with ThreadPoolExecutor() as pool:
            runs = {
                v: [pool.submit(one, case, v, s + 1, costs) for s in range(seeds[case])]
                for v in ["eevdf", *variants]
            }
            figures = {v: [r.result() for r in found] for v, found in runs.items()}
        own = sum(r["mean"] for r in figures["eevdf"]) / seeds[case]
        cs = sum(r["cs"] for r in figures["eevdf"]) / seeds[case]
        print(
            f"\n### {case}: EEVDF's mean {own * 1e3:.4g} ms, measured {base[case] * 1e3:.4g}; "
            f"{cs:.0f} switches/s"
        )
        for variant in variants:
            predicted = ratios(figures[variant], figures["eevdf"])
            row = []
            for figure in FIGURES:
                p, m = predicted[figure], known[case, variant][figure]
                good = abs(math.log(p / max(m, 1e-3))) <= math.log(1.25)
                within += good
                total += 1
                row.append(f"{p:5.2f} {m:5.2f}{' ' if good else '*'}")
            cs_m = known[case, variant].get("cs", float("nan"))
            print(f"{variant:16} " + "  ".join(row) + f"   cs {predicted['cs']:.2f} {cs_m:.2f}")
    print(f"\n{within} of {total} within 25% ({within / total:.0%})")


if __name__ == "__main__":
    main()
