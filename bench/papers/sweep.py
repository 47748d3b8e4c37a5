"""Simulations of a sweep, over all cores, with low priority."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import Pool
from typing import Any, TypeVar

import numpy as np

from sched_ctl.model.policy import Policy
from sched_ctl.plugins import registry
from sched_ctl.sim import Node, Result, Setting, Stream, User, simulate

__all__ = ["POLICIES", "policy", "run_all", "under"]

T = TypeVar("T")
R = TypeVar("R")

# "rr" as one tuple a turn, "rr-time" as equal CPU time a turn: the paper does not say which.
POLICIES = ("rr", "rr-time", "fcfs", "srpt", "hr", "hnr", "lsf", "bsd")


def policy(name: str, node: Node, options: dict[str, object] | None = None) -> Policy:
    """A policy by name; "rr-time" gives each query's turn the same CPU time."""
    if name != "rr-time":
        return registry.policy(name, options or {})
    rr = registry.policy("rr")
    cost = node.frame(registry.policy("hr"))["global_cost"]
    share = {
        node.topology.operators[row].query: 1 / cost[row]
        for row in np.flatnonzero(node.topology.graph.ingress)
    }
    return replace(rr, groups=lambda _, query: (query, share[query]))


def under(
    node: Node,
    name: str,
    options: dict[str, object] | None = None,
    user: User | None = None,
    **changes: Any,
) -> Result:
    """The node under a policy at query level, until its trace ends; "rr-time" at operator level."""
    stream: Stream = node.streams[0]
    assert stream.times is not None
    basic = Setting(
        user=replace(user or User(), level="operator" if name == "rr-time" else "query"),
        warm_s=0.0,
        duration_s=float(stream.times[-1]) + 1.0,
    )
    return simulate(node, policy(name, node, options), replace(basic, **changes))


def run_all(function: Callable[[T], R], jobs: Sequence[T], advance: Callable[[], None]) -> list[R]:
    """function of each job, in the order of the jobs."""
    results = []
    with Pool(os.cpu_count(), initializer=os.nice, initargs=(10,)) as pool:
        for result in pool.imap(function, jobs, chunksize=1):
            results.append(result)
            advance()
    return results
