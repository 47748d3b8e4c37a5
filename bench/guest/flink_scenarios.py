"""What bench/guest/flink.py runs: jobs of tests/engines/jobs/Query.java, and phases."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["RACE_S", "SCENARIOS", "SECONDS", "Phase", "Scenario"]

RACE_S = 5.0  # a phase of a race

SECONDS = 4.0  # a phase: the period of the arrivals, which are then the same in each
CHAINED = {"chain": "true", "shuffle": "true"}  # two threads a query; without it five
LIGHT_FIRST = {"classes": {"light": "hr", "heavy": "hr"}}


@dataclass(frozen=True)
class Phase:
    """policy: "" = the OS alone. load: arguments of `sched-ctl load`. measured: or to warm up.

    awake: the controller looks each second, instead of sleeping while the phase is measured.
    rival: a published rule instead, arguments of bench.lachesis. learns_s: before the first phase a
    race runs for so long.
    """

    name: str = "os"
    policy: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    load: tuple[str, ...] = ("--policy", "hr")
    measured: bool = True
    awake: bool = False
    rival: tuple[str, ...] = ()
    learns_s: float = 0.0


@dataclass(frozen=True)
class Scenario:
    """One guest: these jobs under the OS, and under each of `ours`.

    real_time_input: arrivals come through SCHED_FIFO threads, as from network interrupts.
    trace: after each phase it is traced who wakes whom.
    saturated: the jobs take all the CPU that they get; else a phase begins when none has a backlog.
    main: the program of the jobs. file: the argument by which each job writes down what is counted,
    where that is not "out". cluster: settings of Flink. settle_s: before a phase is measured.
    stop_s: for so long all of the engine's threads are stopped before each phase. seconds: of each.
    """

    jobs: Mapping[str, Mapping[str, Any]]
    ours: tuple[Phase, ...]
    all_jobs: Mapping[str, Any] = field(default_factory=lambda: {"buffer_timeout": "0 ms"})
    real_time_input: bool = True
    hog: bool = False
    trace: bool = False
    saturated: bool = True
    main: str = "Query"
    file: Mapping[str, str] = field(default_factory=dict)
    cluster: Mapping[str, str] = field(default_factory=dict)
    settle_s: float = 1.0
    stop_s: float = 0.0
    seconds: float = SECONDS

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The OS first and last, and ours in both directions, so that drift cancels.

        The first moments of each policy are not measured: the controller starts in them, and Java
        compiles what answers it.
        """
        named = (phase for phase in self.ours if phase.policy and not phase.learns_s)
        warm = tuple(replace(phase, measured=False) for phase in named)
        return (OS, *warm, *self.ours, *reversed(self.ours), OS)


OS = Phase()
HR, BSD, FCFS = (Phase(name, name) for name in ("hr", "bsd", "fcfs"))
BALANCED = Phase("balanced", "auto")  # which it stands for
MULTI = Phase("multi-class", "multi-class", LIGHT_FIRST)
BY_NICE = ("--policy", "hr", "--backend", "nice")
NICE = tuple(
    Phase(f"{name}, nice", policy, options, BY_NICE)
    for name, policy, options in (
        ("multi-class", "multi-class", LIGHT_FIRST),
        ("auto", "light-first", {}),
        ("hr", "hr", {}),
    )
)
REST = "127.0.0.1:8081"  # as in tests/engines/cluster.py
RACE = ("--policy", "auto", "--backend", "nice", "--period", "1", "--race", f"{RACE_S:g}")
# The race last, so that its phases lie in the middle, one after the other, and it learns once.
JUDGED = (
    *(replace(one, load=(*BY_NICE, "--period", "1"), awake=True) for one in NICE),
    Phase("Lachesis' rule", rival=("flink", REST)),
    Phase("CF 2023's rule", rival=("--real-time", "flink", REST)),
    Phase("auto, nice, race", "auto", load=RACE, awake=True, learns_s=220.0),
)
# The controller of all other phases sleeps while they are measured.
AWAKE = tuple(
    replace(phase, load=(*phase.load, "--period", "1"), awake=True)
    for phase in (HR, MULTI, BALANCED)
)
# Flushers come when their own timers ring, as they do without us.
UNALIGNED = tuple(
    replace(phase, load=(*phase.load, "--backend-option", "scx.align=0"))
    for phase in (HR, BALANCED)
)
ALIGN_S = 6.0  # with timers of 0.1 s
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
# .75 of the CPU with what the engine itself takes.
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
FIVE_90 = {name: {**arguments, "rate": 55} for name, arguments in FIVE.items()}


# Two threads for its dearest operator, and a heavy query like that; and one that two branches feed.
PARALLEL = {name: {**arguments, "parallelism": 2} for name, arguments in PAIR.items()}
SELDOM = {**PAIR, "light": {**PAIR["light"], "rate": 20}}
FORKED: dict[str, dict[str, Any]] = {**PAIR, "light": {**PAIR["light"], "shape": "fork"}}
# As in bench/real/flink.py, for a CPU of an eighth.
THREE = {
    "cheap": {"rate": 100, "parse_us": 50, "work_us": 150},
    "middle": {"rate": 50, "parse_us": 100, "work_us": 1000},
    "dear": {"rate": 1_000_000, "parse_us": 100, "work_us": 4000},
}
FOUR = {
    "lone": {"rate": 60, "parse_us": 100, "work_us": 400},
    "burst": {"rate": 100, "parse_us": 100, "work_us": 300},
    "side": {"rate": 30, "parse_us": 100, "work_us": 7000},
    "bulk": PAIR["heavy"],
}
AWAKE_MULTI = Phase(
    "multi-class",
    "multi-class",
    {"classes": {"lone": "hr", "burst": "hr", "*": "hr"}},
    AWAKE[0].load,
    awake=True,
)
EQUAL = dict.fromkeys(("large", "small"), PAIR["heavy"])
SHARES = Phase(
    "shares", "constant", load=("--policy", "constant", "--share=large=4", "--share=small=1")
)


def at(timeout_ms: int, **more: Any) -> dict[str, Any]:
    return {"buffer_timeout": f"{timeout_ms} ms", **more}


def sql(light: str, heavy: str, timeout_ms: int = 1, ours: tuple[Phase, ...] = ()) -> Scenario:
    """Two of Nexmark's queries, of which the heavy one takes all that it gets."""
    return Scenario(
        {
            "light": {"query": light, "rate": 500},
            "heavy": {"query": heavy, "rate": 1_000_000, "every": 100},
        },
        ours or (*NICE[:2], MULTI, BALANCED),
        at(timeout_ms),
        real_time_input=False,
        main="Sql",
        file={"heavy": "ingest"},
        cluster={"taskmanager.memory.managed.size": "128m"},  # of which windows want some
        settle_s=1.0 if timeout_ms < 50 else ALIGN_S,
    )


SCENARIOS = {
    "light": Scenario(PAIR, (HR, MULTI, BALANCED)),
    "light-bsd": Scenario(PAIR, (BSD, FCFS)),
    "light-10": Scenario(PAIR, (HR, MULTI, BALANCED), at(10), real_time_input=False),
    "light-10-follow": Scenario(PAIR, FOLLOWED, at(10), real_time_input=False),
    "light-10-trace": Scenario(PAIR, (MULTI,), at(10), real_time_input=False, trace=True),
    "light-100": Scenario(
        PAIR, (HR, MULTI, BALANCED), at(100), real_time_input=False, settle_s=ALIGN_S
    ),
    "light-100-unaligned": Scenario(
        PAIR, UNALIGNED, at(100), real_time_input=False, settle_s=ALIGN_S
    ),
    "light-100-parallel": Scenario(
        PARALLEL, (HR, BALANCED), at(100), real_time_input=False, settle_s=ALIGN_S
    ),
    "light-100-fork": Scenario(
        FORKED, (HR, BALANCED), at(100), real_time_input=False, settle_s=ALIGN_S
    ),
    "light-100-seldom": Scenario(
        SELDOM, (HR, BALANCED), at(100), real_time_input=False, settle_s=ALIGN_S
    ),
    "light-100-alone": Scenario(
        {"light": PAIR["light"]}, (HR, BALANCED), at(100), real_time_input=False, settle_s=ALIGN_S
    ),
    "light-chained": Scenario(PAIR, (HR, MULTI, BALANCED), at(0, **CHAINED)),
    "light-default": Scenario(
        PAIR, (HR, BALANCED), at(100, **CHAINED), real_time_input=False, settle_s=ALIGN_S
    ),
    "light-hog": Scenario(PAIR, (HR, MULTI, BALANCED), at(10), real_time_input=False, hog=True),
    # Each phase after the passes that a change of policy brings
    "light-hog-awake": Scenario(PAIR, AWAKE, at(10), real_time_input=False, hog=True, settle_s=8.0),
    "five": Scenario(FIVE, (HR, BALANCED, BSD), at(0, **CHAINED), saturated=False),
    "five-90": Scenario(FIVE_90, (HR, BALANCED), at(0, **CHAINED), saturated=False),
    "light-judged": Scenario(PAIR, JUDGED, at(1), real_time_input=False, settle_s=3.0, seconds=8.0),
    "five-judged": Scenario(
        FIVE_90, JUDGED, at(1, **CHAINED), real_time_input=False, settle_s=3.0, seconds=8.0
    ),
    "light-nice": Scenario(PAIR, NICE, at(1), real_time_input=False),
    "sql": sql("q18", "q5"),  # as in bench/real/flink.py
    "sql-17": sql("q17", "q19"),
    "sql-100": sql("q18", "q5", 100, (MULTI, BALANCED)),
    "sql-17-100": sql("q17", "q19", 100, (MULTI, BALANCED)),
    "sql-18-19": sql("q18", "q19", 1, (MULTI, BALANCED)),
    "sql-17-5": sql("q17", "q5", 1, (MULTI, BALANCED)),
    "three": Scenario(THREE, (HR, BALANCED), at(1), real_time_input=False),
    "equal": Scenario(EQUAL, (SHARES, BALANCED), at(1), real_time_input=False),
    # After shares that were unequal, with the default's own idea of who is heavy
    "equal-awake": Scenario(EQUAL, (SHARES, AWAKE[2]), at(1), real_time_input=False, settle_s=12.0),
    # After a stop each query has a backlog; all but one could catch up at their fair share. Before
    # it they have kept up for as long as counts (sched_ctl/metrics/backlog.py).
    "catch-up": Scenario(
        FOUR,
        (AWAKE[2], AWAKE[0], AWAKE_MULTI),
        at(10, **CHAINED),
        real_time_input=False,
        settle_s=13.0,
        stop_s=10.0,
        seconds=20.0,
    ),
    "one": Scenario({"heavy": PAIR["heavy"]}, (HR, BALANCED), at(10)),
}
