"""How a simulation is run: machine, scheduler, costs, length."""

from dataclasses import dataclass

from sched_ctl.errors import UserError

__all__ = ["SCHEDULERS", "Setting"]

# Who chooses what runs
SCHEDULERS = {
    "user": "a user-level scheduler: free workers take the most urgent operator",
    "os": "the OS's fair scheduler (EEVDF), a thread an operator; a policy sets nice values",
    "scx": "the BPF scheduler of sched-ctl: most urgent thread first, ages inherited, slices",
    "fifo": "real-time threads (SCHED_FIFO): strict priorities, wake-ups preempt",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """Times in seconds.

    level: for "user": "operator" (decide after each operator) or "query" (a tuple goes to the end).
    batch: for "user": tuples a turn at most; 0 all that wait, -1 half of them.
    clusters: > 0 quantises the wait-dependent part of the policy; uniform: not logarithmically.
    train: run a whole cluster on the tuple that was chosen (AQSIOS, 6.2.3).
    decision_s: of a scheduling decision; candidate_s: in addition for each candidate, as counted by
    candidates: "none", "operators", "groups" (clusters) or "fagin" (AQSIOS, 6.2.2).
    hop_s: overhead of each tuple at each operator. wake_s: of a wake-up, for whoever wakes.
    switch_s: of a context switch. source_s: what a thread takes that brings tuples from outside,
    before all operators, each time it wakes up. See `calibrate` for what they are on a machine.
    slice_s, tick_s: of threads; None: by scheduler. period_s: of the policy, for what is evaluated
    once a period (nice values; random draws).
    age: of threads under "scx": "head", "inherited" or "runnable".
    ties: who goes first of equally urgent ones: "oldest", as everywhere, or "row", by the order of
    the operators.
    capacity: bound of the queues between operators; 0: none.
    exponential: costs are drawn, else constant.
    """

    scheduler: str = "user"
    level: str = "operator"
    batch: int = 1
    cpus: int = 1
    duration_s: float = 10.0
    warm_s: float = 1.0
    seed: int = 1
    clusters: int = 0
    uniform: bool = False
    train: bool = False
    candidates: str = "none"
    decision_s: float = 0.0
    candidate_s: float = 0.0
    hop_s: float = 0.0
    wake_s: float = 0.0
    switch_s: float = 0.0
    source_s: float = 0.0
    slice_s: float | None = None
    tick_s: float | None = None
    period_s: float = 1.0
    wake_preempt: bool | None = None
    age: str = "inherited"
    ties: str = "oldest"
    capacity: int = 0
    exponential: bool = False
    nice_best: int = 0
    nice_worst: int = 19
    record: int = 0

    def __post_init__(self) -> None:
        def fail(name: str, what: str) -> UserError:
            return UserError(f"{name}={getattr(self, name)!r}: {what}")

        if self.scheduler not in SCHEDULERS:
            raise fail("scheduler", f"must be one of {', '.join(SCHEDULERS)}")
        if self.level not in ("operator", "query"):
            raise fail("level", "must be operator or query")
        if self.candidates not in ("none", "operators", "groups", "fagin"):
            raise fail("candidates", "must be none, operators, groups or fagin")
        if self.age not in ("head", "inherited", "runnable"):
            raise fail("age", "must be head, inherited or runnable")
        if self.ties not in ("oldest", "row"):
            raise fail("ties", "must be oldest or row")
        if not 1 <= self.cpus <= 1024:
            raise fail("cpus", "must be 1 to 1024")
        if not 0 < self.duration_s <= 1e7:
            raise fail("duration_s", "must be above 0, at most 1e7 seconds")
        if not 0 <= self.warm_s < self.duration_s:
            raise fail("warm_s", "must be at least 0 and shorter than the duration")
        if self.batch < -1 or self.clusters < 0 or self.capacity < 0:
            raise fail("batch", "batch, clusters and capacity must not be negative")
        if not 0 <= self.seed < 2**63:
            raise fail("seed", "must be 0 to 2^63 - 1")
        for name in ("decision_s", "candidate_s", "hop_s", "wake_s", "switch_s", "source_s"):
            if not 0 <= getattr(self, name) <= 1e3:
                raise fail(name, "must be 0 to 1000 seconds")
        if not 1e-4 <= self.period_s <= 1e6:
            raise fail("period_s", "must be 0.0001 to 1e6 seconds")
        if self.slice_s is not None and not self.slice_s >= 1e-6:
            raise fail("slice_s", "must be at least a microsecond")
        if self.tick_s is not None and not 0 <= self.tick_s <= 10:
            raise fail("tick_s", "must be 0 (exact) to 10 seconds")
        if not -20 <= self.nice_best <= self.nice_worst <= 19:
            raise fail("nice_best", "nice values lie in -20..19, the best first")

    @property
    def threads(self) -> bool:
        """Whether each operator is a thread of an operating system."""
        return self.scheduler != "user"
