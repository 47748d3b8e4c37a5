"""What the simulator predicts for the published tables of the guest, beside what was measured.

    ./dev run python -m bench.sim.predict [--costs FILE] [--cases RE] [--keep sim]
    ./dev run python -m bench.sim.predict --results FILE  # of kernel --json, not those kept
    ./dev run python -m bench.sim.predict --work      # gains over the ratio of work to hop cost

Reads the measured ratios to EEVDF from bench/results, and simulates the same workloads at the same
loads with the arrivals that the lab engine draws from the same seeds. The costs of wake-ups and
switches are those that `bench.guest.kernel --calibrate` measured in the guest, one a line; nothing
is fitted.
"""

import argparse
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import results
from bench.guest.kernel import CASES, VARIANTS
from bench.guest.kernel import FIGURES as TOLD
from bench.results import Figure, Result, Row
from sched_ctl.lab import engine as lab
from sched_ctl.sim import Costs, Node, Setting, Threads, User, of_workload, simulate_by_name
from sched_ctl.workloads import workload

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ("mean", "p99", "l2")


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
PUBLISHED = (
    *("syn-0.9", "etl-1.0", "multi-0.95", "etl-1.0-bounded", "vs-0.95", "lr-0.95", "stats-0.95"),
    *("pred-0.95", "train-0.95", "syn-0.7", "syn-1.1", "etl-0.9", "etl-1.2", "etl-1.2-bounded"),
)


Known = tuple[Measured, dict[str, Sequence[int]], dict[str, float]]


def measured() -> Known:
    """(case, variant) -> figures over EEVDF's; case -> seeds; case -> EEVDF's own mean in s."""
    found: Measured = {}
    seeds: dict[str, Sequence[int]] = {}
    base: dict[str, float] = {}
    for case in PUBLISHED:
        result = results.load(f"guest-{case}")
        mean = re.search(r"mean latency is ([\d.]+) ms", result.title)
        assert mean and result.seeds
        seeds[case], base[case] = result.seeds, float(mean[1]) * 1e-3
        for row in result.rows:
            found[case, row.name] = {
                column: figure.value
                for column, figure in row.figures.items()
                if isinstance(figure, Figure) and figure.value is not None
            }
    return found, seeds, base


def results_of(path: Path) -> Known:
    """As `measured`, from what `bench.guest.kernel --json` wrote: seeds that all variants have."""
    by: dict[str, dict[str, dict[int, dict[str, float]]]] = {}
    for result in map(json.loads, path.read_text().splitlines()):
        if "error" not in result:
            case, variant = result["job"].split("/")
            figures = {name: TOLD[name](result) for name in FIGURES}
            by.setdefault(case, {}).setdefault(variant, {})[result["seed"]] = figures
    seeds = {
        case: sorted(set.intersection(*(set(of) for of in variants.values())))
        for case, variants in by.items()
    }
    own = {case: [variants["eevdf"][s] for s in seeds[case]] for case, variants in by.items()}
    found = {
        (case, variant): ratios([of[s] for s in seeds[case]], own[case])
        for case, variants in by.items()
        for variant, of in variants.items()
        if variant != "eevdf"
    }
    base = {case: sum(one["mean"] for one in of) / len(of) for case, of in own.items()}
    return found, dict(seeds), base


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
            wake_preempt=False if kind == "batch" else None,
            live=job.get("live", False),
            nice_best=0,  # as bench/guest/kernel_inside.py sets them
            nice_worst=19,
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
        for figure in base[0]
        if figure != "busy"
    }


BASES_US = (40, 100, 200, 400)


def by_work(costs: Mapping[str, Costs], seeds: int) -> Result:
    """Mean latency over EEVDF's, for work of several sizes: what is order, and what saved hops."""
    cases = ("lr-0.95", "etl-1.0", "stats-0.95", "vs-0.95", "pred-0.95", "syn-0.97", "multi-0.95")
    rows = []
    for base in BASES_US:
        cells: dict[str, Figure | str] = {}
        for case in cases:
            with ThreadPoolExecutor() as pool:
                runs = {
                    v: [pool.submit(one, case, v, s + 1, costs, base * 1e-6) for s in range(seeds)]
                    for v in ("eevdf", "scx-hr", "scx-bsd")
                }
                found = {v: [r.result() for r in of] for v, of in runs.items()}
            pair = [ratios(found[v], found["eevdf"])["mean"] for v in ("scx-hr", "scx-bsd")]
            cells[f"{case} HR, BSD"] = Figure(None, each=(round(pair[0], 4), round(pair[1], 4)))
        rows.append(Row(f"{base} us", cells))
    return told(
        "Simulated: mean latency over EEVDF under sched_ext, by the work of a cost of 1", rows
    )


Found = dict[tuple[str, str], dict[str, float]]  # (case, variant) -> figures over EEVDF's
FAMILIES = {"sched_ext": "scx-", "nice values": "nice-", "the pool": "pool-"}
FACTOR = 1.25


def within(predicted: float, real: float) -> bool:
    return abs(math.log(predicted / max(real, 1e-3))) <= math.log(FACTOR)


def shares(predicted: Found, real: Measured, group: Callable[[str, str], str]) -> dict[str, str]:
    """How many ratios of each group of (case, variant) are within 25%."""
    good: dict[str, list[bool]] = {}
    for at, figures in predicted.items():
        for figure in FIGURES:
            good.setdefault(group(*at), []).append(within(figures[figure], real[at][figure]))
    return {name: f"{sum(of)} of {len(of)}" for name, of in good.items()}


def regrets(predicted: Found, real: Measured) -> list[tuple[str, str, str, str, str, float]]:
    """Family, figure, case, the variant of the family that is predicted best, the one that is, and
    how much worse the former was measured to be, as a part of the latter."""
    found = []
    for family, prefix in FAMILIES.items():
        for case in dict.fromkeys(case for case, _ in predicted):
            names = [v for c, v in predicted if c == case and v.startswith(prefix)]
            if len(names) < 2:
                continue
            for figure in FIGURES:
                chosen = min(names, key=lambda v: predicted[case, v][figure])
                best = min(names, key=lambda v: real[case, v][figure])
                regret = real[case, chosen][figure] / real[case, best][figure] - 1
                found.append((family, figure, case, chosen, best, regret))
    return found


def choices(predicted: Found, real: Measured) -> Result:
    """How good a choice by the simulator is, by family of variants."""
    rows = []
    for family in FAMILIES:
        cells: dict[str, Figure | str] = {}
        for figure in FIGURES:
            of = [r for r in regrets(predicted, real) if r[:2] == (family, figure)]
            bad = [
                f"{case} {regret:.0%} ({chosen} for {best})"
                for _, _, case, chosen, best, regret in of
                if regret >= 0.05
            ]
            cells[figure] = "; ".join([f"{len(of) - len(bad)} of {len(of)}", *bad])
        rows.append(Row(family, cells))
    return told(
        "How often the variant that is predicted best was measured to be less than 5% worse than "
        "the best, and where not",
        rows,
    )


def hits(predicted: Found, real: Measured) -> Result:
    """How many ratios are within 25%: of all, by kind of variant, by workload."""
    groups: tuple[Callable[[str, str], str], ...] = (
        lambda *_: "all",
        lambda _, variant: variant.split("-")[0],
        lambda case, _: case,
    )
    found = {name: of for group in groups for name, of in shares(predicted, real, group).items()}
    return told(
        "Predicted ratios within 25% of those measured",
        [Row(name, {"within 25%": of}) for name, of in found.items()],
    )


def pairs(predicted: Found, real: Measured) -> Result:
    return told(
        "Predicted and measured, over EEVDF",
        [
            Row(
                f"{case} {variant}",
                {
                    f"{figure} {word}": Figure(round(of[case, variant][figure], 4))
                    for figure in FIGURES
                    for word, of in (("predicted", predicted), ("measured", real))
                },
            )
            for case, variant in predicted
        ],
    )


def told(title: str, rows: list[Row]) -> Result:
    return Result(
        title=title,
        columns=list(rows[0].figures),
        n=None,
        spread=None,
        seeds=None,
        kernel="6.18",
        rows=rows,
        **results.here(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--costs", type=Path, default=Path(__file__).with_name("guest-costs.json"))
    parser.add_argument("--cases", default=".*", metavar="RE")
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="measured by bench.guest.kernel"
    )
    parser.add_argument("--work", action="store_true", help="gains over the size of the work")
    parser.add_argument("--seeds", type=int, default=5, help="of --work")
    results.argument(parser)
    arguments = parser.parse_args()
    lines = map(json.loads, arguments.costs.read_text().splitlines())
    costs = {entry.pop("job"): Costs(**entry) for entry in lines}
    if arguments.work:
        result = by_work(costs, arguments.seeds)
        results.tell(result, arguments.keep and f"{arguments.keep}-work")
        return
    known, seeds, _ = results_of(arguments.results) if arguments.results else measured()
    predicted: Found = {}
    for case in dict.fromkeys(c for c, _ in known):
        if not re.fullmatch(arguments.cases, case):
            continue
        variants = [v for c, v in known if c == case and v in VARIANTS]
        with ThreadPoolExecutor() as pool:
            runs = {
                v: [pool.submit(one, case, v, seed, costs) for seed in seeds[case]]
                for v in ["eevdf", *variants]
            }
            figures = {v: [r.result() for r in found] for v, found in runs.items()}
        predicted |= {(case, v): ratios(figures[v], figures["eevdf"]) for v in variants}
    for name, make in (("hits", hits), ("choice", choices), ("pairs", pairs)):
        results.tell(make(predicted, known), arguments.keep and f"{arguments.keep}-{name}")


if __name__ == "__main__":
    main()
