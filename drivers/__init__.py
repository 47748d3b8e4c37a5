"""Drivers read an engine: its topology, its threads, its metrics. They change nothing.

A scaler, where an engine has one, gives a query other numbers of replicas: only if asked to.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from sched_ctl.drivers.believed import Believed
from sched_ctl.errors import EngineError
from sched_ctl.model.access import Access
from sched_ctl.model.programs import Program
from sched_ctl.model.topology import Snapshot

__all__ = ["Driver", "DriverKind", "EngineError", "Scaler", "Target"]


@dataclass(frozen=True, slots=True)
class Target:
    """An engine instance found on this machine, or named with --engine.

    kind: the driver's name. address: what the driver needs to reach it ("4711", "127.0.0.1:8081").
    pid: its main process, or None if it was named and not found. uid: whose it is, where that is
    known without a process: threads of other users do not count as its own. access: what the
    configuration says of reaching it; never set by `find`.
    """

    kind: str
    address: str
    pid: int | None = None
    uid: int | None = None
    access: Access | None = None

    @property
    def engine(self) -> str:
        return f"{self.kind}:{self.address}"


class Driver(Protocol):
    """One connected engine.

    All methods are called from one thread of the driver's own, so a slow engine holds up nobody
    and a driver may enter the engine's network namespace. Of a `prompt` kind: from the main loop.
    """

    target: Target
    provides: frozenset[str]  # primitive metrics this engine can give, see metrics.PRIMITIVES
    # Optional, `derived`: metric -> how, in words for `explain`, where it is worked out by the
    # driver and not what the engine reports; one that is no primitive is an average over seconds.
    # `guesses`: those of `provides` that may be wrong by far, so that a policy goes by them only
    # where what comes of it is compared with the OS's own. `waiting`: its first metrics are still
    # on their way. `unsure`: what its operators cost is not known yet, so that an order by costs
    # would be a bad one. `counts_afresh`: it counts tuples from its first look on, and not since
    # the engine began; so is CPU time then.

    def poll(self, timeout_s: float) -> Snapshot:
        """Read the engine once. Raises EngineError within about `timeout_s`."""
        ...

    def close(self) -> None: ...


class Scaler(Protocol):
    """How the replicas of a query's operators are changed. For one thread; its own connection.

    An operator is named by those that it is fused from, `PhysicalOperator.logical`. All raise
    EngineError, in words for the user, for what the engine cannot do, refuses or does not answer.
    loses: what a query loses by a restart although it was secured, in words; "": nothing.
    """

    loses: str

    def current(self, query: str) -> Mapping[tuple[str, ...], tuple[int, int]]:
        """Operator -> its replicas, as they are asked for, and the most that it can have."""
        ...

    def secure(self, query: str, timeout_s: float) -> None:
        """Have the query keep its state now, so that a restart loses none."""
        ...

    def rescale(self, query: str, replicas: Mapping[tuple[str, ...], int]) -> None:
        """Ask for so many replicas; operators that are not named keep theirs. Does not wait."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class DriverKind:
    """An engine kind: how to find instances on this machine, and how to connect to one.

    prompt: connecting and polling read memory only and never wait, not even for an engine that
    hangs. They need no thread then, which saves a tenth of the CPU time of a pass.
    of_processes: `find` looks at the processes of this machine alone, so that it need not be asked
    again while no process or thread was born.
    of_several: an engine is one user's processes, and lasts while one of them does.
    mains: processes that look like such an engine, whether they answer or not.
    helpers: what to do with helper threads where the user says nothing, role pattern -> rule (see
    `decide.HELPER_RULES`); roles without one are left alone.
    declared: the kind with what the configuration says: programs, and which users are believed.
    check: raises EngineError for an address that can mean no engine, however long one waits.
    scaler: connects to what changes the replicas of its operators; None: it cannot be done.
    """

    name: str
    find: Callable[[], Sequence[Target]]
    connect: Callable[[Target], Driver]
    prompt: bool = False
    of_processes: bool = False
    of_several: bool = False
    mains: Callable[[], Iterable[int]] = tuple
    helpers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    declared: Callable[[Sequence[Program], Believed], "DriverKind"] | None = None
    check: Callable[[str], object] = str
    scaler: Callable[[Target], Scaler] | None = None
