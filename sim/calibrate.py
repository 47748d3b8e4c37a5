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
from pathlib import Path

import msgspec

from sched_ctl.errors import UserError
from sched_ctl.lab import engine
from sched_ctl.sim.library import library
from sched_ctl.sim.setting import Costs

__all__ = ["as_json", "load", "measure", "of_engine", "of_threads"]

Ready = Callable[[Sequence[int]], None]

# One tuple a few milliseconds makes a thousand of the second operator's, and each operator after
# that takes twice as long for one: so no queue is ever empty, no thread sleeps, and what brings
# tuples from outside hardly ever runs. What counts is all but the first.
_CHAIN = """workload hop base_cost_us=1
query q
op a cost=2000 selectivity=1000
op b cost=2
op c cost=4
op d cost=8
edge a b
edge b c
edge c d
source a
"""


def of_threads(ready: Ready | None = None) -> tuple[float, float, float]:
    """wake_s, switch_s, source_s: the median of thousands, in a second on one CPU.

    ready: told the tids of the threads that will wake each other up, to put them under a scheduler.
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
    with tempfile.TemporaryDirectory(prefix="sched-ctl-") as folder:
        path = Path(folder, "hop.graph")
        path.write_text(_CHAIN)
        run = ["--utilisation", "3", "--cpus", "1", "--duration", "1.2", "--delay", "0.3"]
        with engine.running(path, [*run, "--drain", "0.01", *arguments], [_cpu()]) as child:
            operators = json.loads(child.results())["operators"][1:]
    used = sum(operator["cpu_s"] for operator in operators)
    work = sum(operator["in"] * operator["cost_s"] for operator in operators)
    return max(0.0, float((used - work) / sum(operator["in"] for operator in operators)))


def measure(ready: Ready | None = None, arguments: Sequence[str] = ()) -> Costs:
    """All of them. hop_s is 0 where the lab engine is not built."""
    hop = 0.0
    if engine.PROGRAM.exists():
        hop = of_engine(arguments)
    return Costs(hop, *of_threads(ready))


def as_json(costs: Costs) -> str:
    return json.dumps({name: round(value, 12) for name, value in asdict(costs).items()})


def load(path: Path) -> Costs:
    """What `as_json` wrote. Raises UserError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Costs)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise UserError(
            f"{path}: not the costs of a machine: {error}",
            "sched-ctl simulate --calibrate writes such a file",
        ) from error


def _cpu() -> int:
    return min(os.sched_getaffinity(0))
