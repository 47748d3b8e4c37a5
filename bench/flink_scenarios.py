"""What bench/flink_kernel.py runs: jobs of tests/engines/jobs/Query.java, and phases."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["SCENARIOS", "Phase", "Scenario"]

CHAINED = {"chain": "true", "shuffle": "true"}  # two threads a query; without it five
LIGHT_FIRST = {"classes": {"light": "hr", "heavy": "hr"}}


@dataclass(frozen=True)
class Phase:
    """policy: "" = the OS alone. load: arguments of `sched-ctl load`."""

    name: str = "os"
    policy: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    load: tuple[str, ...] = ("--policy", "hr")


@dataclass(frozen=True)
class Scenario:
    """real_time_input: arrivals come through SCHED_FIFO threads, as from network interrupts."""

    jobs: Mapping[str, Mapping[str, Any]]
    phases: tuple[Phase, ...]
    all_jobs: Mapping[str, Any] = field(default_factory=lambda: {"buffer_timeout": "0 ms"})
    seconds: float = 2.5
    real_time_input: bool = True
    hog: bool = False


OS = Phase()
HR, BSD, BALANCED, FCFS = (Phase(name, name) for name in ("hr", "bsd", "balanced", "fcfs"))
MULTI = Phase("multi-class", "multi-class", LIGHT_FIRST)
FOLLOWING = ("--policy", "hr", *(f"--helper={role}=follow" for role in ("fetcher", "flusher")))
FOLLOWED = tuple(
    Phase(f"{name}, helpers follow", name, options, FOLLOWING)
    for name, options in (("hr", {}), ("multi-class", LIGHT_FIRST))
)
# 100 tuples a second that cost 0.5 ms, beside all that the CPU can do at 1.1 ms.
PAIR = {
    "light": {"rate": 100, "parse_us": 200, "work_us": 300},
    "heavy": {"rate": 1000000, "parse_us": 100, "work_us": 1000},
}
FIVE = {
    name: {"rate": 46, "parse_us": parse, "part": part, "work_us": work}
    for name, parse, part, work in (
        ("qa", 100, 1.0, 200),
        ("qb", 200, 0.5, 1000),
        ("qc", 200, 0.2, 5000),
        ("qd", 500, 1.0, 2000),
        ("qf", 1000, 1.0, 8000),
    )
}


def at(timeout_ms: int, **more: Any) -> dict[str, Any]:
    return {"buffer_timeout": f"{timeout_ms} ms", **more}


SCENARIOS = {
    "light": Scenario(PAIR, (OS, HR, MULTI, BALANCED, BSD, OS)),
    "light-10": Scenario(PAIR, (OS, HR, MULTI, *FOLLOWED, OS), at(10), real_time_input=False),
    "light-100": Scenario(PAIR, (OS, HR, MULTI, BALANCED, OS), at(100), real_time_input=False),
    "light-chained": Scenario(PAIR, (OS, HR, MULTI, BALANCED, OS), at(0, **CHAINED)),
    "light-hog": Scenario(PAIR, (OS, HR, MULTI, OS), at(10), real_time_input=False, hog=True),
    "five": Scenario(FIVE, (OS, HR, BALANCED, BSD, OS), at(0, **CHAINED), seconds=4.0),
    "one": Scenario({"heavy": PAIR["heavy"]}, (OS, HR, BALANCED, OS), at(10)),
}
