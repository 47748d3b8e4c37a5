"""Policies in the simulator, over what a fleet measured: which suits which kind of machine.

A task is one machine, policy, load and seed. They are spread over Spark's workers by
`mapInPandas`, one row each; results go to a folder a portion at a time, and a sweep that is
started again leaves out what is there of the same profile. No shuffle but the one that spreads the
tasks.
"""

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from sched_ctl.errors import UserError
from sched_ctl.pipeline.prior import Prior
from sched_ctl.plugins import registry
from sched_ctl.sim.result import interval
from sched_ctl.telemetry import profiles

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

    from sched_ctl.sim import Costs, Node, Setting

__all__ = ["DROP_IN", "GOALS", "POLICIES", "Choice", "best", "priors", "simulated", "sweep", "task"]

TASKS = "machine STRING, policy STRING, load DOUBLE, seed BIGINT, duration DOUBLE"
SCHEMA = (
    f"{TASKS}, mean DOUBLE, p50 DOUBLE, p99 DOUBLE, slowdown DOUBLE, memory DOUBLE, "
    "stable BOOLEAN, costs STRING, profile STRING"
)
KEY = ("machine", "policy", "load", "seed", "duration")
# goal -> column that is to be small
GOALS = {
    "latency": "mean",
    "median": "p50",
    "tail": "p99",
    "slowdown": "slowdown",
    "memory": "memory",
}
OS = "os"
DROP_IN = "50-fleet-sweep.toml"
POLICIES = (OS, "hr", "bsd", "fcfs", "qs", "balanced")
CLUSTERS = 12  # queues of the kernel's scheduler, by which it approximates ages
PORTION = 64  # tasks that are written together

Task = tuple[str, str, float, int, float]


@dataclass(frozen=True)
class Choice:
    """The best policy for a goal on a kind of machine. margin: of the next one, as a share.

    sure: its interval over seeds and loads does not reach that of the next one.
    """

    machine: str
    goal: str
    policy: str
    next_policy: str
    margin: float
    gain: float  # against the system's own scheduling, as a share; NaN if that was not tried
    sure: bool


def task(profile: profiles.Profile, of: Task, costs: "Costs | None" = None) -> dict[str, Any]:
    """Run one. In a worker, or anywhere. costs: of wake-ups and switches; None = they are free."""
    from sched_ctl.sim import simulate_by_name

    policy, costs = of[1], _beside(costs)
    node, setting = _made(profile, of, costs)
    result = simulate_by_name(node, None if policy == OS else policy, {}, setting)
    summary = result.summary()
    return {
        **dict(zip(KEY, of, strict=True)),
        "mean": summary.response_s,
        "p50": result.quantile(0.5),
        "p99": result.quantile(0.99),
        "slowdown": summary.slowdown,
        "memory": result.memory,
        "stable": result.stable,
        "costs": _text(costs),
        "profile": _print(profile, of[0]),
    }


def _made(
    profile: profiles.Profile, of: Task, costs: "Costs | None" = None
) -> tuple["Node", "Setting"]:
    from sched_ctl.sim import Costs, Setting, of_snapshot

    machine, policy, load, seed, duration_s = of
    cpus = cpus_of(machine)
    # What orders by the kernel is compared with what the kernel does by itself.
    setting = Setting(
        scheduler=OS if policy == OS else "scx",
        cpus=cpus,
        duration_s=duration_s,
        warm_s=duration_s / 10,
        seed=seed,
        clusters=0 if policy == OS else CLUSTERS,
        costs=costs or Costs(),
    )
    return of_snapshot(profiles.snapshot(profile, machine), load, cpus), setting


def simulated(profile: profiles.Profile) -> tuple[profiles.Profile, dict[str, str]]:
    """What of a profile can be swept, and why each other kind of machine cannot.

    Raises UserError if none can.
    """
    why: dict[str, str] = {}
    for machine in profiles.machines(profile):
        try:
            _made(profile, (machine, OS, 0.5, 1, 1.0))
        except UserError as error:
            why[machine] = error.message
    left = [query for query in profile.queries if query.machine not in why]
    if not left:
        told = "; ".join(why.values()) or "it is empty"
        raise UserError(f"no machine of this profile can be simulated: {told}")
    return structs.replace(profile, queries=left), why


def _beside(costs: "Costs | None") -> "Costs":
    """Without the engine's own work for a tuple: measured costs of operators have it in them."""
    from sched_ctl.sim import Costs

    return Costs() if costs is None else replace(costs, hop_s=0.0)


def _text(costs: "Costs") -> str:
    """By which results with other costs are told apart."""
    from sched_ctl.sim import Costs

    if costs == Costs():
        return ""
    return ",".join(f"{getattr(costs, name):.4g}" for name in Costs.__slots__)


def _print(profile: profiles.Profile, machine: str) -> str:
    """By which results over other measurements of a kind of machine are told apart."""
    mine = [query for query in profile.queries if query.machine == machine]
    return hashlib.sha256(msgspec.json.encode(mine)).hexdigest()[:16]


def cpus_of(machine: str) -> int:
    """As it stands at the end of a kind of machine's name; else 1."""
    words = machine.rsplit(", ", 1)[-1].split()
    return max(1, int(words[0])) if len(words) == 2 and words[0].isdecimal() else 1


def sweep(
    spark: "SparkSession",
    profile: profiles.Profile,
    out: str,
    policies: Sequence[str],
    loads: Sequence[float],
    seeds: int,
    duration_s: float,
    costs: "Costs | None" = None,
) -> list[dict[str, Any]]:
    """All results of these tasks; those that are in `out` already, of this profile, are not run
    again."""
    for name in policies:  # what cannot run raises UserError here, not in a worker
        if name != OS and registry.policy(name).groups is not None:
            raise UserError(
                f"{name} gives queries turns, which a sweep would take for one order of all "
                "operators",
                "turns are simulated by sched-ctl simulate --scheduler user alone",
            )
    wanted: list[Task] = list(
        itertools.product(
            profiles.machines(profile), policies, loads, range(1, seeds + 1), (duration_s,)
        )
    )
    there = _there(spark, out, profile, costs)
    done = {tuple(row[key] for key in KEY): row for row in there}
    left = [each for each in wanted if each not in done]
    for first in range(0, len(left), PORTION):
        portion = left[first : first + PORTION]
        frame = spark.createDataFrame(portion, TASKS)
        ran = frame.repartition(len(portion)).mapInPandas(_runner(profile, costs), SCHEMA)
        ran.coalesce(max(1, min(len(portion), spark.sparkContext.defaultParallelism))).write.mode(
            "append"
        ).parquet(out)
    there = _there(spark, out, profile, costs)
    done = {tuple(row[key] for key in KEY): row for row in there}
    return [done[each] for each in wanted if each in done]


def _runner(profile: profiles.Profile, costs: "Costs | None") -> Any:
    def run(frames: Iterable["pd.DataFrame"]) -> Iterator["pd.DataFrame"]:
        import pandas as pd

        for frame in frames:
            tasks = frame[list(KEY)].itertuples(index=False, name=None)
            yield pd.DataFrame([task(profile, each, costs) for each in tasks])

    return run


def _there(
    spark: "SparkSession", out: str, profile: profiles.Profile, costs: "Costs | None"
) -> list[dict[str, Any]]:
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F  # noqa: N812

    try:
        frame = spark.read.schema(SCHEMA).parquet(out)
    except AnalysisException as error:
        if "PATH_NOT_FOUND" in str(error):
            return []
        raise
    prints = [_print(profile, machine) for machine in profiles.machines(profile)]
    mine = frame.where((F.col("costs") == _text(_beside(costs))) & F.col("profile").isin(prints))
    mine = mine.where(F.col("p50").isNotNull() | F.col("p99").isNull())  # of before there was one
    return [row.asDict() for row in mine.dropDuplicates(list(KEY)).collect()]


def best(rows: Sequence[dict[str, Any]], goals: Iterable[str] = GOALS) -> list[Choice]:
    """Who is best where, by the geometric mean over loads and seeds. Unstable ones do not count."""
    found = []
    for machine in dict.fromkeys(row["machine"] for row in rows):
        mine = [row for row in rows if row["machine"] == machine and row["stable"]]
        for goal in goals:
            scores = _scores(mine, GOALS[goal])
            if len(scores) < 2:
                continue
            (first, (value, half)), (second, (other, other_half)) = sorted(
                scores.items(), key=lambda item: item[1][0]
            )[:2]
            os = scores.get(OS, (math.nan, 0.0))[0]
            found.append(
                Choice(
                    machine,
                    goal,
                    first,
                    second,
                    math.expm1(other - value),
                    1.0 - math.exp(value - os),
                    value + half < other - other_half,
                )
            )
    return found


def _scores(rows: Sequence[dict[str, Any]], column: str) -> dict[str, tuple[float, float]]:
    """Policy -> mean log of the figure, and half of its interval, relative to each task's mean.

    Only tasks (load and seed) that all policies ran count, so that a heavy load weighs on all.
    """
    by_task: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in rows:
        if row[column] > 0:
            at = (row["load"], row["seed"], row["duration"])
            by_task.setdefault(at, {})[row["policy"]] = math.log(row[column])
    policies = {row["policy"] for row in rows}
    whole = [task for task in by_task.values() if task.keys() == policies]
    centred = [
        {name: value - sum(task.values()) / len(task) for name, value in task.items()}
        for task in whole
    ]
    if not centred:
        return {}
    return {name: interval([task[name] for task in centred]) for name in sorted(policies)}


def priors(choices: Sequence[Choice], goal: str) -> list[Prior]:
    """The choices for a goal, by kind of machine."""
    return [Prior(c.policy, c.machine, None, _why(c)) for c in choices if c.goal == goal]


def _why(choice: Choice) -> str:
    gain = "" if math.isnan(choice.gain) else f", {choice.gain:.0%} below the system's own"
    sure = "" if choice.sure else "; the two are too close to tell apart"
    return (
        f"Simulated: best for {choice.goal}{gain}, {choice.margin:.1%} before "
        f"{choice.next_policy}{sure}."
    )
