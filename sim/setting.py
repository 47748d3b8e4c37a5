"""How a simulation is run: machine, scheduler, costs, length. Times in seconds."""

from dataclasses import dataclass, field
from typing import Any

from sched_ctl.errors import UserError

__all__ = ["SCHEDULERS", "Costs", "Setting", "Threads", "User"]

# Who chooses what runs
SCHEDULERS = {
    "user": "a user-level scheduler: free workers take the most urgent operator",
    "os": "the OS's fair scheduler (EEVDF), a thread an operator; a policy sets nice values",
    "scx": "the BPF scheduler of sched-ctl: most urgent thread first, ages inherited, slices",
    "fifo": "real-time threads (SCHED_FIFO): strict priorities, wake-ups preempt",
}


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU time beside the operators' own work; see `calibrate` for what it is on a machine.

    hop_s: of each tuple at each operator (queues, clocks). wake_s: of a wake-up, for whoever wakes.
    switch_s: of a switch to another thread. source_s: what a thread takes that brings tuples from
    outside, before all operators, each time it wakes up. decision_s: of a user-level scheduler's
    decision; candidate_s: in addition for each operator (`User.candidates`) that it looks at.
    queue_s: of each such decision, inside the lock of the queue that all workers share (to take the
    next operator and put back the last), before decision_s. Workers hold it one after the other, in
    the order of their decisions, and spin until then: at most 1 / queue_s decisions/s. Such queues
    has the dynamic model of Schneider and Wu (PLDI 2017). `calibrate` does not measure it.
    """

    hop_s: float = 0.0
    wake_s: float = 0.0
    switch_s: float = 0.0
    source_s: float = 0.0
    decision_s: float = 0.0
    candidate_s: float = 0.0
    queue_s: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            _check(self, name, 0 <= getattr(self, name) <= 1e3, "must be 0 to 1000 seconds")


@dataclass(frozen=True, slots=True)
class User:
    """How a user-level scheduler decides.

    level: "operator" (decide after each operator) or "query" (a tuple goes to the end).
    batch: tuples a turn at most; 0 all that wait, -1 half of them.
    train: run a whole cluster on the tuple that was chosen (AQSIOS, 6.2.3).
    candidates: what a decision looks at, each at a cost: "none", all waiting "operators", "groups"
    (clusters) or those that Fagin's algorithm visits, "fagin" (AQSIOS, 6.2.2).
    """

    level: str = "operator"
    batch: int = 1
    train: bool = False
    candidates: str = "none"

    def __post_init__(self) -> None:
        _check(self, "level", self.level in ("operator", "query"), "must be operator or query")
        kinds = ("none", "operators", "groups", "fagin")
        _check(self, "candidates", self.candidates in kinds, f"must be one of {', '.join(kinds)}")
        _check(self, "batch", self.batch >= -1, "must be a number above 0, 0 (all) or -1 (half)")


@dataclass(frozen=True, slots=True)
class Threads:
    """How an operating system schedules threads.

    slice_s, tick_s, wake_preempt: None: as the scheduler has it.
    age: under "scx": "head", "inherited" or "runnable".
    live: under "scx": queue lengths are read at each decision, as from an engine that writes them
    for the scheduler; else once a period, as nice values and real-time priorities always are.
    arrivals: under "scx": tuples begin with the age that is told of them (`Node.told`).
    nice_best, nice_worst: of what a policy sets under "os", as Lachesis. None: as the nice backend
    does, which keeps the weight of all threads together.
    """

    slice_s: float | None = None
    tick_s: float | None = None
    wake_preempt: bool | None = None
    age: str = "inherited"
    live: bool = False
    arrivals: bool = False
    nice_best: int | None = None
    nice_worst: int | None = None

    def __post_init__(self) -> None:
        ages = ("head", "inherited", "runnable")
        _check(self, "age", self.age in ages, "must be head, inherited or runnable")
        whole = self.slice_s is None or self.slice_s >= 1e-6
        _check(self, "slice_s", whole, "must be at least a microsecond")
        tick = self.tick_s is None or 0 <= self.tick_s <= 10
        _check(self, "tick_s", tick, "must be 0 (exact) to 10 seconds")
        best, worst = self.nice_best, self.nice_worst
        if best is None or worst is None:
            _check(self, "nice_best", best is worst, "needs a nice_worst, and the other way round")
        else:
            nice = -20 <= best <= worst <= 19
            _check(self, "nice_best", nice, "nice values lie in -20..19, the best first")


@dataclass(frozen=True, slots=True)
class Setting:
    """One run; with a node and a policy it is all that decides what comes out.

    period_s: of the policy, for what is evaluated once a period (nice values, real-time priorities,
    queue lengths of threads, random draws).
    clusters: > 0 quantises the wait-dependent part of the policy; uniform: not logarithmically.
    capacity: bound of the queues between operators; 0: none.
    exponential: costs are drawn, else constant. record: so many departures are kept one by one.
    user: for the scheduler of that name. threads: for all others.
    """

    scheduler: str = "user"
    cpus: int = 1
    duration_s: float = 10.0
    warm_s: float = 1.0
    seed: int = 1
    period_s: float = 1.0
    clusters: int = 0
    uniform: bool = False
    capacity: int = 0
    exponential: bool = False
    record: int = 0
    costs: Costs = field(default_factory=Costs)
    user: User = field(default_factory=User)
    threads: Threads = field(default_factory=Threads)

    def __post_init__(self) -> None:
        known = self.scheduler in SCHEDULERS
        _check(self, "scheduler", known, f"must be one of {', '.join(SCHEDULERS)}")
        _check(self, "cpus", 1 <= self.cpus <= 1024, "must be 1 to 1024")
        length = 0 < self.duration_s <= 1e7
        _check(self, "duration_s", length, "must be above 0, at most 1e7 seconds")
        warm = 0 <= self.warm_s < self.duration_s
        _check(self, "warm_s", warm, "must be at least 0 and shorter than the duration")
        for name in ("clusters", "capacity", "record"):
            _check(self, name, getattr(self, name) >= 0, "must not be negative")
        _check(self, "seed", 0 <= self.seed < 2**63, "must be 0 to 2^63 - 1")
        _check(self, "period_s", 1e-4 <= self.period_s <= 1e6, "must be 0.0001 to 1e6 seconds")

    @property
    def threaded(self) -> bool:
        """Whether each operator is a thread of an operating system."""
        return self.scheduler != "user"


def _check(section: Any, name: str, good: bool, what: str) -> None:
    if not good:
        raise UserError(f"{name}={getattr(section, name)!r}: {what}")
