"""Discrete-event simulator of a node: the yardstick for effects measured on real threads.

node = of_workload(workload.load("etl.graph"), utilisation=0.9)
result = simulate(node, registry.policy("hr"), Setting(duration_s=60))
print(result.summary().response_s)
"""

from sched_ctl.sim.node import Node, Stream, of_snapshot, of_workload
from sched_ctl.sim.result import Result, Summary, interval
from sched_ctl.sim.run import simulate, simulate_by_name
from sched_ctl.sim.setting import SCHEDULERS, Costs, Setting, Threads, User

__all__ = [
    "SCHEDULERS",
    "Costs",
    "Node",
    "Result",
    "Setting",
    "Stream",
    "Summary",
    "Threads",
    "User",
    "interval",
    "of_snapshot",
    "of_workload",
    "simulate",
    "simulate_by_name",
]
