"""What plug-ins hand over, looked at before it is used: a wrong answer is its maker's problem.

Drivers and policies of other distributions run in our process. What they return is checked where
it comes in, and what they raise is told with the file and the line in which they did.
"""

import functools
import traceback
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sched_ctl.errors import EngineError, UserError
from sched_ctl.model.policy import Policy
from sched_ctl.model.topology import Snapshot, Topology

__all__ = ["checked", "is_ours", "words"]


PLAIN = (dict, MappingProxyType)


def words(error: BaseException) -> str:
    """What went wrong, for people: with file and line where it is not meant for them."""
    if isinstance(error, UserError):
        return error.message
    said = f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    foreign = [frame for frame in frames if "/sched_ctl/" not in frame.filename]
    if not frames:
        return said
    frame = (foreign or frames)[-1]
    return f"{said} ({frame.filename}:{frame.lineno})"


def checked(answer: object, driver: object, known: Topology | None) -> Snapshot:
    """The answer of a driver's `poll`. known: the last topology, which was in order.

    Raises EngineError that names the driver and what is wrong.
    """
    kind = type(driver)
    maker = f"{kind.__module__}.{kind.__qualname__}.poll()"
    if not isinstance(answer, Snapshot):
        raise EngineError(f"{maker} returned {type(answer).__name__}, not a Snapshot")
    topology = answer.topology
    if topology is not known:
        try:
            _ = topology.graph, topology.logical_graph, topology.logical_rows
        except Exception as error:
            raise EngineError(f"{maker} returned a topology that is none: {words(error)}") from None
    _check_columns(maker, "columns", answer.columns, len(topology.operators))
    _check_columns(maker, "logical", answer.logical, len(topology.logical))
    return answer


def _check_columns(maker: str, which: str, columns: Any, n: int) -> None:
    # A look at the type first: isinstance() of an abstract class takes as long as all the rest.
    if not (type(columns) in PLAIN or isinstance(columns, Mapping)):
        raise EngineError(f"{maker}: {which} is {type(columns).__name__}, not a mapping")
    for name, column in columns.items():
        if getattr(column, "shape", None) != (n,) or column.dtype.kind not in "fiub":
            shape = getattr(column, "shape", type(column).__name__)
            raise EngineError(f"{maker}: {which}[{name!r}] is {shape} for {n} operators")


def is_ours(policy: Policy) -> bool:
    """Whether a policy's function comes with this program: then it takes no time to speak of."""
    function = policy.urgency
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__module__", "")).startswith("sched_ctl.")
