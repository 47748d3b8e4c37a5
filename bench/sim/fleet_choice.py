"""What `fleet sweep` would choose for workloads that nothing was fitted to, beside what is best.

    ./dev run python -m bench.sim.fleet_choice [--seeds 10] [CASE ...]

The profile has each operator's cost, selectivity and rate, as `fleet profile` would, and nothing of
the arrivals. The sweep's tasks run here, without Spark: with free switches, and with what
`simulate --calibrate` measured in the guest (`fleet sweep --costs`). What is best was measured by
`bench.guest.kernel` in guests with exact time, and is read from its results: rows `scx-*`, mean
latency over that of the system's own scheduling.
"""

import argparse
import itertools
import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench import results
from bench.guest.kernel import CASES
from bench.results import Figure, Result, Row
from bench.sim.predict import measured
from sched_ctl.lab import engine as lab
from sched_ctl.pipeline import sweep
from sched_ctl.sim import Costs, of_workload
from sched_ctl.telemetry import profiles
from sched_ctl.workloads import workload

UNSEEN = ("lr-0.95", "stats-0.95", "pred-0.95", "train-0.95")
COSTS = Path(__file__).with_name("guest-costs.json")
MACHINE = "guest, 1 CPUs"


def profile_of(case: str, hop_s: float) -> tuple[profiles.Profile, float]:
    """What a fleet would have measured of it, and the load. hop_s: of the engine's own work."""
    of = CASES[case]
    with lab.workload_file(of.workload, 1) as path:
        node = of_workload(workload.load(path), of.utilisation, folder=path.parent)
    node = replace(node, cost_s=node.cost_s + hop_s)
    rates = {row: stream.rate for stream in node.streams for row in stream.rows}
    queries = []
    operators = node.topology.operators
    for name in dict.fromkeys(operator.query for operator in operators):
        rows = [row for row, operator in enumerate(operators) if operator.query == name]
        place = {row: at for at, row in enumerate(rows)}
        queries.append(
            profiles.Query(
                engine="lab",
                machine=MACHINE,
                name=name,
                operators=[
                    profiles.Operator(
                        name=operators[row].name,
                        cost=float(node.cost_s[row]),
                        selectivity=float(node.selectivity[row]),
                        input_rate=rates.get(row),
                    )
                    for row in rows
                ],
                edges=[
                    (place[edge.source], place[edge.target], edge.share)
                    for edge in node.topology.edges
                    if edge.source in place
                ],
            )
        )
    return profiles.Profile(queries=queries), node.demand


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("cases", nargs="*", default=UNSEEN)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=6.0, help="as in the guests")
    results.argument(parser)
    given = parser.parse_args()
    real, _, _ = measured()
    lines = map(json.loads, COSTS.read_text().splitlines())
    [calibrated] = [
        Costs(**{key: value for key, value in line.items() if key != "job"})
        for line in lines
        if line["job"] == "os"
    ]
    rows: list[Row] = []
    for case in given.cases:
        tried = {"os": 1.0}
        tried |= {
            name: real[case, f"scx-{name}"]["mean"]
            for name in sweep.POLICIES
            if (case, f"scx-{name}") in real
        }
        best = min(tried, key=lambda name: tried[name])
        profile, load = profile_of(case, calibrated.hop_s)
        of = (load,), range(1, given.seeds + 1), (given.seconds,)
        tasks = [*itertools.product((MACHINE,), tried, *of)]
        for word, costs in (("free", None), ("calibrated", calibrated)):
            with ProcessPoolExecutor(2) as pool:
                swept = [*pool.map(partial(sweep.task, profile, costs=costs), tasks)]
            choice = next(iter(sweep.best(swept, ["latency"])), None)
            found: dict[str, Figure | str] = {
                "best": best,
                "measured: best": Figure(tried[best]),
                "chosen": "none: unstable" if choice is None else choice.policy,
            }
            if choice is not None:
                found["next"] = choice.next_policy
                found["margin"] = Figure(round(100 * choice.margin, 1), unit="%")
                found["measured: chosen"] = Figure(tried[choice.policy])
            rows.append(Row(f"{case}, {word} switches", found))
    result = Result(
        title="The policy that `fleet sweep` chooses, and what guests measured (ratio to EEVDF)",
        columns=["chosen", "next", "margin", "measured: chosen", "best", "measured: best"],
        n=given.seeds,
        spread=None,
        seeds=[*range(1, given.seeds + 1)],
        kernel=None,
        rows=rows,
        **results.here(),
    )
    results.tell(result, given.keep)


if __name__ == "__main__":
    main()
