"""What threads cost each other on this machine: the constants that a simulation of threads needs.

Measured by small programs and not fitted to anything that is to be predicted. `hop_s` is what the
lab engine takes for each tuple beside the work itself; an engine's own measured costs have that in
them.
"""

import ctypes
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from sched_ctl.errors import UserError, near_miss
from sched_ctl.lab import engine
from sched_ctl.sim.library import library
from sched_ctl.sim.setting import Costs

__all__ = ["as_json", "load", "measure", "of_engine", "of_pool", "of_threads"]

Ready = Callable[[Sequence[int]], None]

SHORT, LONG = 3, 12  # operators of the chains that are timed


def of_threads(ready: Ready | None = None) -> tuple[float, float, float]:
    """wake_s, switch_s, source_s: the median of thousands, in a second on one CPU.

    ready: told the tids of the threads that will wake each other up, and of the one that will be
    interrupted, to put them under a scheduler.
    """
    kind = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_int64), ctypes.c_int64)
    failed: list[BaseException] = []

    def told(tids: "ctypes._Pointer[ctypes.c_int64]", count: int) -> None:
        try:
            if ready:
                ready(tids[:count])
        except BaseException as error:  # which C would not pass on
            failed.append(error)

    found = (ctypes.c_double * 3)()
    if error := library().sim_calibrate(found, kind(told)):
        raise UserError(f"cannot start the threads that are measured: error {error}")
    if failed:
        raise failed[0]
    ring, wake, source = found
    return wake, max(ring - wake, 0.0), source


def of_engine(arguments: Sequence[str] = ()) -> float:
    """hop_s of the lab engine. arguments: more of its command line."""
    operators = _run(SHORT, 2.0, arguments)["operators"][1:]
    work = sum(operator["in"] * operator["cost_s"] for operator in operators)
    used = sum(operator["cpu_s"] for operator in operators)
    return max(0.0, float((used - work) / sum(operator["in"] for operator in operators)))


def of_pool(arguments: Sequence[str] = ()) -> tuple[float, float]:
    """hop_s and decision_s together, and candidate_s, of the lab engine's pool with one worker.

    By queue length, so that all queues stay equally long and each decision looks at all operators.
    """
    pool = ["--threads", "pool:1", "--pool-policy", "qs", *arguments]
    costs = []
    for length in (SHORT, LONG):
        found = _run(length, 1.0, pool)
        work = sum(operator["in"] * operator["cost_s"] for operator in found["operators"])
        tuples = sum(operator["in"] for operator in found["operators"])
        costs.append((found["cpu"] * found["seconds"] - work) / tuples)
    each = max(0.0, float(costs[1] - costs[0]) / (LONG - SHORT))
    return max(0.0, float(costs[0] - (SHORT + 1) * each)), each


def measure(ready: Ready | None = None, arguments: Sequence[str] = ()) -> Costs:
    """All of them. What is the lab engine's is 0 where it is not built."""
    hop = both = candidate = 0.0
    if engine.PROGRAM.exists():
        hop = of_engine(arguments)
        both, candidate = of_pool(arguments)
    return Costs(hop, *of_threads(ready), decision_s=max(0.0, both - hop), candidate_s=candidate)


def _chain(length: int, growth: float) -> str:
    """One tuple a few milliseconds makes a thousand of the second operator's, so what brings tuples
    from outside hardly ever runs. Where each operator takes longer than the one before, no queue of
    a thread is ever empty and none sleeps.
    """
    names = [f"o{i}" for i in range(length)]
    return "\n".join(
        [
            "workload hop base_cost_us=1",
            "query q",
            "op first cost=2000 selectivity=1000",
            *(f"op {name} cost={2 * growth**i:g}" for i, name in enumerate(names)),
            *(f"edge {a} {b}" for a, b in pairwise(["first", *names])),
            "source first",
            "",
        ]
    )


def _run(length: int, growth: float, arguments: Sequence[str]) -> Any:
    with tempfile.TemporaryDirectory(prefix="sched-ctl-") as folder:
        path = Path(folder, "hop.graph")
        path.write_text(_chain(length, growth))
        run = [
            "--utilisation",
            "3",
            "--cpus",
            "1",
            "--duration",
            "1.2",
            "--delay",
            "0.3",
            "--warmup",
            "0",
        ]
        with engine.running(path, [*run, "--drain", "0.01", *arguments], [_cpu()]) as child:
            return json.loads(child.results())


def as_json(costs: Costs) -> str:
    return json.dumps({name: round(value, 12) for name, value in asdict(costs).items()})


def load(path: Path) -> Costs:
    """What `as_json` wrote. Raises UserError."""
    try:
        given = msgspec.json.decode(path.read_bytes(), type=dict[str, float])
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise UserError(
            f"{path}: not the costs of a machine: {error}",
            "sched-ctl simulate --calibrate writes such a file",
        ) from error
    for name in given:
        if name not in Costs.__slots__:
            raise UserError(
                f"{path}: there is no cost {name!r}{near_miss(name, Costs.__slots__)}",
                "sched-ctl simulate --calibrate writes such a file",
            )
    return Costs(**given)


def _cpu() -> int:
    return min(os.sched_getaffinity(0))
