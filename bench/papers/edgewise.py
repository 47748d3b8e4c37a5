"""Fu et al., "EdgeWise: A Better Stream Processing Engine for the Edge" (USENIX ATC 2019): the
balance of operators (figure 8), and CPU shares that allow the largest input rate (section 5.1).
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from sched_ctl.model.graph import Array
from sched_ctl.plugins import registry
from sched_ctl.sim import Costs, Node, Setting, User, of_workload, simulate
from sched_ctl.workloads import workload

__all__ = ["balance", "capacity"]

PRED = Path(__file__).parents[1] / "workloads" / "pred.graph"
CPUS = 2  # the paper's Raspberry Pi has 4, and several instances of PRED's heavy operators
# Overheads of a hop and a switch as measured for a thread an operator and for a pool, in a VM
BATCH_S = 0.1
HOP_S = 2e-6
SWITCH_S = 5e-6


def balance(job: tuple[str, float, int]) -> dict[str, float]:
    """("os" or "pool", load, seed) -> variation of the utilisation (coefficient), latencies, s."""
    who, load, seed = job
    node = _in_batches(of_workload(workload.load(PRED), load, cpus=CPUS, folder=PRED.parent), 15)
    setting = Setting(duration_s=15, warm_s=3, cpus=CPUS, seed=seed)
    if who == "os":
        result = simulate(
            node,
            None,
            replace(setting, scheduler="os", costs=Costs(hop_s=HOP_S, switch_s=SWITCH_S)),
            window_s=1.0,
        )
    else:  # the longest queue first, all that waits, as in EdgeWise
        result = simulate(
            node,
            registry.policy("qs"),
            replace(setting, user=User(batch=0), costs=Costs(hop_s=HOP_S)),
            window_s=1.0,
        )
    return {
        "variation": result.imbalance,
        "mean": result.summary().response_s,
        "p50": result.quantile(0.5),
        "p99": result.quantile(0.99),
    }


def _in_batches(node: Node, duration_s: float) -> Node:
    """A timer feeds each source every 100 ms with what is due (section 7.1 there)."""

    def times(rate: float) -> Array:
        due = np.arange(int(rate * duration_s)) / rate
        return np.asarray(np.floor(due / BATCH_S) * BATCH_S if rate * BATCH_S >= 1 else due)

    streams = tuple(replace(stream, times=times(stream.rate)) for stream in node.streams)
    return replace(node, streams=streams)


def capacity(job: tuple[float, int]) -> dict[str, float]:
    """(alpha, seed) -> largest input rate, over the best possible, with CPU shares fixed at
    w_i proportional to (q_i / r_i)^alpha: each operator has a CPU of its own of that speed.
    """
    alpha, seed = job
    node = of_workload(workload.load(PRED), 1.3, cpus=CPUS, folder=PRED.parent)
    need = node.input_rate * node.cost_s  # q / r, up to a factor
    share = need**alpha / np.sum(need**alpha) * CPUS
    slowed = replace(node, cost_s=node.cost_s / share)
    result = simulate(
        slowed,
        registry.policy("fcfs"),
        Setting(duration_s=20, warm_s=8, cpus=node.n, seed=seed),
    )
    best = of_workload(workload.load(PRED), 1.0, cpus=CPUS, folder=PRED.parent)
    # What the slowest operator lets through, in the steady state of overload
    egress = np.flatnonzero(node.topology.graph.egress)
    wanted = float(best.input_rate[egress].sum())
    return {"rate": result.summary().throughput / wanted}
